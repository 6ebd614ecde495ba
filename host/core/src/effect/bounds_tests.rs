//! What no grant allows is refused at the door: strangers' owners and finalizers, and what people told the host.

use super::{tests::*, *};
use crate::grant::Rule;

/// What an operator does with the objects that it makes.
fn owned() -> String {
    r#"{"metadata":{"ownerReferences":[{"apiVersion":"x.example.com/v1","kind":"Thing","name":"t","uid":"u"}]}}"#.into()
}

#[tokio::test]
async fn what_a_plugin_made_it_may_apply_again_and_nothing_else_gets_an_owner_of_its_choice() {
    let fake = Arc::new(Fake { exists: true, ..Fake::default() });
    let (effects, _) = effects(&fake, Policy { grants: rules(&["patch", "create", "update"]), ..Policy::default() });
    let steps = || r#"[{"op":"add","path":"/metadata/ownerReferences/-","value":{"uid":"u"}}]"#.to_owned();
    let applied = async || effects.patch(&pods(), &key(), None, Patch::Apply(owned())).await;
    let ways = async || {
        [
            applied().await,
            effects.patch(&pods(), &key(), None, Patch::Merge(owned())).await,
            effects.patch(&pods(), &key(), None, Patch::Json(steps())).await,
            effects.patch(&pods(), &key(), Some(&"status".parse().unwrap()), Patch::Merge(owned())).await,
            effects.replace(&pods(), &key(), None, owned()).await,
        ]
    };
    for refused in ways().await.map(Result::unwrap_err).into_iter().filter(|e| !e.to_string().contains("pods/status")) {
        let said = refused.to_string();
        assert!(said.contains("with a new owner of kind") && said.contains("verbs: [\"delete\"]"), "{said}");
    }
    assert!(
        fake.reached.lock().unwrap().iter().all(|call| call.starts_with("get")),
        "{:?}",
        fake.reached.lock().unwrap()
    );
    assert_eq!(fake.denied.lock().unwrap().len(), 5);
    // It is new, or carries that owner.
    effects.create(&pods(), key().namespace.as_ref(), owned()).await.unwrap();
    *fake.object.lock().unwrap() = Some(owned());
    applied().await.unwrap();
    // Whoever may delete it may have it deleted.
    *fake.object.lock().unwrap() = None;
    let with = |grants: Grants| {
        let policy = Arc::new(ArcSwap::from_pointee(Policy { grants, ..Policy::default() }));
        Effects::new(effects.caller.clone(), policy, effects.ports.clone())
    };
    fake.reached.lock().unwrap().clear();
    let deletes = with(rules(&["patch", "create", "delete"]));
    deletes.patch(&pods(), &key(), None, Patch::Apply(owned())).await.unwrap();
    assert_eq!(*fake.reached.lock().unwrap(), ["patch"], "nothing is read for it");
    // It is the object that goes with its owner, whichever part of it the write is about.
    let status = async |deletes: &str| {
        let rule = |resource: &str, verb: &str| Rule {
            resources: vec![resource.into()],
            verbs: vec![verb.into()],
            ..rules(&[]).rules.iter().next().unwrap().clone()
        };
        let rules = vec![rule("pods/status", "patch"), rule(deletes, "delete")].into();
        let effects = with(Grants { rules, ..Grants::default() });
        effects.patch(&pods(), &key(), Some(&"status".parse().unwrap()), Patch::Merge(owned())).await
    };
    assert!(status("pods").await.is_ok());
    assert!(matches!(status("pods/status").await, Err(ApiError::Denied(_))));
}

#[tokio::test]
async fn what_writes_did_is_told_of_the_first_and_of_none_that_changed_nothing() {
    let written = async |free: bool, writes: usize| {
        let fake = Arc::new(Fake { exists: true, free, ..Fake::default() });
        let (effects, _) = effects(&fake, Policy { grants: rules(&["patch"]), ..Policy::default() });
        for _ in 0..writes {
            effects.patch(&pods(), &key(), None, Patch::Merge("{}".into())).await.unwrap();
        }
        let steps = effects.steps();
        assert!(steps.iter().all(|step| step.key == key() && step.resource == pods()));
        steps.len()
    };
    assert_eq!(written(false, MOST_STEPS - 1).await, MOST_STEPS - 1);
    assert_eq!(written(false, MOST_STEPS + 1).await, MOST_STEPS);
    assert_eq!(written(true, 3).await, 0);
}

#[tokio::test]
async fn an_object_that_is_not_there_is_made_with_its_owner() {
    let fake = Arc::new(Fake::default());
    let (effects, policy) = effects(&fake, Policy { grants: rules(&["patch", "create"]), ..Policy::default() });
    effects.patch(&pods(), &key(), None, Patch::Apply(owned())).await.unwrap();
    assert_eq!(*fake.reached.lock().unwrap(), ["get", "patch"]);
    policy.store(Arc::new(Policy { grants: rules(&["patch"]), ..Policy::default() }));
    let denied = effects.patch(&pods(), &key(), None, Patch::Apply(owned())).await.unwrap_err();
    assert!(denied.to_string().contains("create pods"), "{denied}");
}

#[tokio::test]
async fn a_finalizer_that_nobody_declared_stays_only_where_it_is() {
    let fake = Arc::new(Fake { exists: true, ..Fake::default() });
    let (effects, _) = effects(&fake, Policy { grants: rules(&["*"]), ..Policy::default() });
    let held = || r#"{"metadata":{"finalizers":["x.example.com/f"]}}"#.to_owned();
    let denied = effects.create(&pods(), key().namespace.as_ref(), held()).await.unwrap_err();
    assert!(
        denied.to_string().contains("with the finalizer x.example.com/f is refused, whatever is granted"),
        "{denied}"
    );
    assert!(matches!(effects.replace(&pods(), &key(), None, held()).await, Err(ApiError::Denied(_))));
    *fake.object.lock().unwrap() = Some(held());
    effects.replace(&pods(), &key(), None, held()).await.unwrap();
}

#[tokio::test]
async fn a_pause_is_dropped_by_no_write_and_nobody_else_notices() {
    let of = |version: &str, annotations: &str| {
        format!(r#"{{"metadata":{{"name":"x","resourceVersion":"{version}","annotations":{annotations}}}}}"#)
    };
    let (free, paused) = (of("7", "{}"), of("8", r#"{"operetta.dev/paused":"x"}"#));
    let fake = Arc::new(Fake { exists: true, ..Fake::default() });
    let (effects, _) = effects(&fake, Policy { grants: rules(&["create", "update", "patch"]), ..Policy::default() });
    let reached = || std::mem::take(&mut *fake.reached.lock().unwrap());
    let replace = async |object: &str| effects.replace(&pods(), &key(), None, object.into()).await.map(drop);
    let merge = async |patch: &str| effects.patch(&pods(), &key(), None, Patch::Merge(patch.into())).await.map(drop);
    let steps = async |patch: &str| effects.patch(&pods(), &key(), None, Patch::Json(patch.into())).await.map(drop);
    let (null, remove) =
        (r#"{"metadata":{"annotations":null}}"#, r#"[{"op":"remove","path":"/metadata/annotations"}]"#);
    let denied = |ended: Result<(), ApiError>, words: &str| {
        assert!(matches!(&ended, Err(ApiError::Denied(why)) if why.contains(words)), "{ended:?}");
    };

    *fake.object.lock().unwrap() = Some(free.clone());
    replace(&free).await.unwrap();
    assert_eq!(reached(), ["get", "replace"], "of the version that is there, and so the API server sees to the rest");
    merge(null).await.unwrap();
    steps(remove).await.unwrap();
    assert_eq!(reached(), ["get", "get live", "patch", "get", "get live", "patch"], "no version holds it");

    // A person has paused it, which the cache does not know yet.
    *fake.newer.lock().unwrap() = Some(paused.clone());
    for object in [&of("8", "{}"), &of("0", "{}"), "{}"] {
        denied(replace(object).await, "without the annotation operetta.dev/paused is refused, whatever is granted");
        assert_eq!(reached(), ["get", "get live"], "{object}");
    }
    // Made from another version than the one that is there.
    let ended = replace(&of("9", "{}")).await;
    assert!(
        matches!(&ended, Err(ApiError::Conflict(why)) if why.contains("made from version 9, and the object is of version 8")),
        "{ended:?}"
    );
    assert_eq!(reached(), ["get", "get live"]);
    for ended in [merge(null).await, merge(r#"{"metadata":null}"#).await, steps(remove).await] {
        denied(ended, "write back what was read, or use patch");
    }
    assert!(!reached().contains(&"patch".to_owned()));
    // With the version that has none, it is the API server that refuses.
    replace(&free).await.unwrap();

    *fake.object.lock().unwrap() = Some(paused.clone());
    reached();
    // It was read before the pause, and tries again.
    assert!(matches!(replace(&of("7", "{}")).await, Err(ApiError::Conflict(_))));
    assert_eq!(reached(), ["get", "get live"]);
    replace(&paused).await.unwrap();
    merge(r#"{"metadata":{"annotations":{"mine":"x"},"labels":null}}"#).await.unwrap();
    assert_eq!(reached(), ["get", "replace", "patch"]);
    denied(replace(&paused.replace("\"x\"}", "\"y\"}")).await, "with the annotation operetta.dev/paused is refused");
    let told = fake.denied.lock().unwrap().len();
    assert_eq!(told, 3 + 3 + 1);
}

#[tokio::test]
async fn a_replace_of_another_version_is_a_conflict_unless_the_api_server_says_so_itself() {
    let of = |version: &str| format!(r#"{{"metadata":{{"name":"x","resourceVersion":"{version}"}}}}"#);
    let fake = Arc::new(Fake { exists: true, ..Fake::default() });
    let (effects, _) = effects(&fake, Policy { grants: rules(&["create", "update", "patch"]), ..Policy::default() });
    for (there, replaced, sent) in [
        ("8", "8", true),
        // It is older, and nothing came since that it would drop.
        ("8", "7", true),
        ("10", "9", true),
        // It may be anything by then.
        ("8", "9", false),
        ("8", "10", false),
        // Nobody can say which came first.
        ("b", "a", false),
        ("b", "b", true),
    ] {
        *fake.object.lock().unwrap() = Some(of(there));
        let ended = effects.replace(&pods(), &key(), None, of(replaced)).await;
        let conflicts = matches!(&ended, Err(ApiError::Conflict(why)) if why.contains("read it again"));
        assert_eq!((ended.is_ok(), conflicts), (sent, !sent), "{replaced} on {there}");
    }
}

#[tokio::test]
async fn what_the_account_may_not_look_at_it_does_not_replace() {
    let fake = Arc::new(Fake { exists: true, hidden: true, ..Fake::default() });
    let (effects, _) = effects(&fake, Policy { grants: rules(&["create", "update", "patch"]), ..Policy::default() });
    let scale = "scale".parse().unwrap();
    let denied = effects.replace(&pods(), &key(), None, "{}".into()).await.unwrap_err();
    assert!(matches!(&denied, ApiError::Denied(why) if why.contains("nobody can say")), "{denied}");
    assert!(!fake.reached.lock().unwrap().contains(&"replace".to_owned()));
    effects.patch(&pods(), &key(), None, Patch::Merge("{}".into())).await.unwrap();
    assert!(
        effects
            .replace(&pods(), &key(), Some(&scale), "{}".into())
            .await
            .is_err_and(|e| !e.to_string().contains("nobody"))
    );
}

/// As a value these are other objects than by their fields.
#[tokio::test]
async fn a_text_that_hides_another_from_the_checks_is_refused() {
    let fake = Arc::new(Fake { exists: true, ..Fake::default() });
    let (effects, _) = effects(&fake, Policy { grants: rules(&["create", "update", "patch"]), ..Policy::default() });
    let hidden = r#"{"$serde_json::private::RawValue":"{\"operetta.dev/paused\":null}"}"#;
    let escaped = hidden.replace("$serde", "\\u0024serde");
    for value in [hidden, &escaped] {
        let object = format!(r#"{{"metadata":{{"annotations":{value}}}}}"#);
        let steps = format!(r#"[{{"op":"add","path":"/metadata/annotations","value":{value}}}]"#);
        for ended in [
            effects.patch(&pods(), &key(), None, Patch::Merge(object.clone())).await,
            effects.patch(&pods(), &key(), None, Patch::Apply(object.clone())).await,
            effects.patch(&pods(), &key(), None, Patch::Json(steps)).await,
            effects.replace(&pods(), &key(), None, object.clone()).await,
            effects.create(&pods(), key().namespace.as_ref(), object).await,
            effects.create(&pods(), key().namespace.as_ref(), value.to_owned()).await,
        ] {
            assert!(matches!(&ended, Err(ApiError::Invalid(why)) if why.contains("leave it out")), "{ended:?}");
        }
    }
    let writes = |fake: &Fake| fake.reached.lock().unwrap().iter().any(|call| !call.starts_with("get"));
    assert!(!writes(&fake));
    // As a value it is somebody's text.
    let told = r#"{"data":{"a":"$serde_json::private::RawValue","b":"\u0024x","c":[1,2.5,true,null]}}"#;
    effects.patch(&pods(), &key(), None, Patch::Merge(told.into())).await.unwrap();
    assert!(writes(&fake));
}

#[tokio::test]
async fn a_list_of_namespaces_has_not_the_hosts_unless_a_rule_names_it() {
    let of = |name: &str| format!(r#"{{"metadata":{{"name":"{name}","labels":{{"a":"host"}}}}}}"#);
    let fake = Arc::new(Fake { more: vec![of("n"), of("host"), of("hostile")], ..Fake::default() });
    let all = rules(&["list"]).rules.iter().next().unwrap().clone();
    let list = async |group: &str, plural: &str, named: Option<&str>| {
        let resource = Resource::parse(group, "v1", plural).unwrap();
        let any = Rule { api_groups: vec!["*".into()], resources: vec!["*".into()], ..all.clone() };
        let here = Rule { namespaces: named.map(|name| name.parse().unwrap()).into_iter().collect(), ..any.clone() };
        let grants = Grants {
            rules: vec![any, here].into(),
            host_namespace: Some("host".parse().unwrap()),
            ..Grants::default()
        };
        let (effects, _) = effects(&fake, Policy { grants, ..Policy::default() });
        effects.list(&resource, &ListOptions::default()).await.unwrap().items.len()
    };
    assert_eq!(list("", "namespaces", None).await, 2);
    assert_eq!(list("", "namespaces", Some("host")).await, 3);
    // What is only called so, or like the host's, is not its own.
    assert_eq!(list("", "nodes", None).await, 3);
    assert_eq!(list("x.example.com", "namespaces", None).await, 3);
}
