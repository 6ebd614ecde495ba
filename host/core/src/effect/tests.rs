//! Each effect is checked before its port is reached: the fake ports here count who comes through.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::*;
use crate::{
    cache::{Cached, Meta, Scope},
    grant::Rule,
    name::{ChannelName, ContinueToken, ControllerName, DatabaseName, PluginName, ServiceAccount},
    port::{
        Channels, Exchange, GrpcCall, GrpcReply, GrpcStatus, Metadata, Objection, Severity, Written,
        database::{Isolation, SqlError, SqlRows, SqlStatement, SqlValue, Transaction},
    },
};

#[derive(Default)]
pub(super) struct Fake {
    pub reached: Mutex<Vec<String>>,
    pub denied: Mutex<Vec<String>>,
    pub exceeded: Mutex<Vec<Limit>>,
    pub logged: Mutex<Vec<(String, String)>>,
    /// What transactions were told.
    pub noted: Arc<Mutex<Vec<String>>>,
    pub exists: bool,
    /// Whether writes would change nothing.
    pub free: bool,
    /// Whether an apply makes what it is about.
    pub makes: AtomicBool,
    /// Of what was written so far.
    pub versions: AtomicU64,
    /// Whether a patch finds all as it wants it, and is sent all the same.
    pub same: AtomicBool,
    /// Whether writes are never answered.
    pub hangs: AtomicBool,
    /// What a create fails with.
    pub refusal: Mutex<Option<ApiError>>,
    /// What exists.
    pub object: Mutex<Option<String>>,
    /// What exists where the cache has not seen it yet.
    pub newer: Mutex<Option<String>>,
    /// Whether the account may not look at it.
    pub hidden: bool,
    /// Bytes of each object of a list.
    pub objects: Vec<usize>,
    /// And more objects of it.
    pub more: Vec<String>,
}

impl Fake {
    fn note(&self, what: &str) {
        self.reached.lock().unwrap().push(what.to_owned());
    }

    async fn answers(&self) {
        if self.hangs.load(Ordering::Relaxed) {
            self.versions.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
    }

    /// What it is after the last write.
    pub fn meta(&self) -> Meta {
        let resource_version = self.versions.load(Ordering::Relaxed).to_string();
        Meta { uid: "u".into(), resource_version, ..Meta::default() }
    }

    fn written(&self, object: &str, made: bool) -> Written {
        if self.same.load(Ordering::Relaxed) {
            let now = Arc::new(Cached { json: object.into(), meta: self.meta() });
            return Written { before: Some(now.clone()), now, sent: true, made: false };
        }
        self.versions.fetch_add(u64::from(!self.free), Ordering::Relaxed);
        let now = Arc::new(Cached { json: object.into(), meta: self.meta() });
        Written { now, before: None, sent: !self.free, made }
    }
}

#[async_trait]
impl Kubernetes for Fake {
    async fn get(&self, _: &Caller, _: &Resource, key: &ObjectKey, live: bool) -> Result<Arc<Cached>, ApiError> {
        self.note(if live { "get live" } else { "get" });
        let newer = self.newer.lock().unwrap().clone().filter(|_| live);
        let object = newer.or_else(|| self.object.lock().unwrap().clone());
        if self.hidden {
            return Err(ApiError::Forbidden("cannot get".into()));
        }
        if self.exists {
            Ok(Arc::new(Cached::read(object.unwrap_or_else(|| "{}".to_owned()).into())))
        } else {
            Err(ApiError::NotFound(key.to_string()))
        }
    }
    async fn list(&self, _: &Caller, _: &Resource, options: &ListOptions) -> Result<Page, ApiError> {
        self.note("list");
        let limit = options.limit.unwrap_or(500) as usize;
        let objects = self.objects.iter().take(limit).map(|bytes| "x".repeat(*bytes).into());
        let items = objects.chain(self.more.iter().map(|object| object.as_str().into())).collect();
        let continue_token = (self.objects.len() > limit).then(|| ContinueToken::parse("more").unwrap());
        Ok(Page { items, continue_token, ..Page::default() })
    }
    async fn create(
        &self,
        _: &Caller,
        _: &Resource,
        _: Option<&Namespace>,
        object: String,
    ) -> Result<Written, ApiError> {
        self.note("create");
        if let Some(refusal) = &*self.refusal.lock().unwrap() {
            return Err(refusal.clone());
        }
        self.answers().await;
        // As the API server does, which chooses a name.
        Ok(self.written(&object.replace("generateName", "name"), false))
    }
    async fn patch(
        &self,
        _: &Caller,
        _: &Resource,
        _: &ObjectKey,
        _: Option<&Subresource>,
        _: Patch,
    ) -> Result<Written, ApiError> {
        self.note("patch");
        self.answers().await;
        Ok(self.written("{}", self.makes.load(Ordering::Relaxed)))
    }
    async fn replace(
        &self,
        _: &Caller,
        _: &Resource,
        _: &ObjectKey,
        _: Option<&Subresource>,
        object: String,
    ) -> Result<Written, ApiError> {
        self.note("replace");
        Ok(self.written(&object, false))
    }
    async fn delete(&self, _: &Caller, _: &Resource, _: &ObjectKey, _: &DeleteOptions) -> Result<Meta, ApiError> {
        self.note("delete");
        self.answers().await;
        Ok(self.written("", false).now.meta.clone())
    }
    async fn publish(&self, _: &Caller, event: Event) -> Result<(), ApiError> {
        self.note(&format!("publish {}", event.message));
        Ok(())
    }
}

#[async_trait]
impl Channels for Fake {
    async fn unary(&self, _: &ChannelName, call: GrpcCall, message: Vec<u8>) -> Result<GrpcReply, GrpcStatus> {
        self.note(&format!("unary {} {:?}", call.path, call.deadline));
        if call.path.ends_with("/Closed") {
            return Err(GrpcStatus::of(7, "the service does not let you"));
        }
        Ok(GrpcReply { headers: vec![], message, trailers: vec![] })
    }
    async fn open(&self, _: &ChannelName, call: GrpcCall) -> Result<Box<dyn Exchange>, GrpcStatus> {
        self.note("open");
        if call.path.ends_with("/Open") { Ok(Box::new(Still)) } else { Err(GrpcStatus::of(14, "closed")) }
    }
}

/// An exchange that answers three messages of 30 bytes at a time.
struct Still;

#[async_trait]
impl Exchange for Still {
    async fn send(&self, message: Vec<u8>) -> Result<(), GrpcStatus> {
        match message.as_slice() {
            // As the port says that it met a limit of its own.
            b"limit" => Err(GrpcStatus {
                objection: Some(Objection::Limit(Limit::GrpcMessage)),
                ..GrpcStatus::of(8, "too long")
            }),
            _ => Ok(()),
        }
    }
    fn half_close(&self) {}
    async fn headers(&self) -> Result<Metadata, GrpcStatus> {
        Ok(Metadata::new())
    }
    async fn receive(&self, _: usize) -> Result<Vec<Vec<u8>>, GrpcStatus> {
        Ok(vec![vec![0; 30]; 3])
    }
    fn trailers(&self) -> Metadata {
        Metadata::new()
    }
}

#[async_trait]
impl Databases for Fake {
    async fn query(&self, _: &DatabaseName, statement: SqlStatement) -> Result<SqlRows, SqlError> {
        self.note(&format!("query {} {:?} {}", statement.sql, statement.deadline, statement.max_rows));
        if statement.sql == "too many" {
            return Err(SqlError::TooLarge("rows".into()));
        }
        Ok(SqlRows::default())
    }
    async fn execute(&self, _: &DatabaseName, statement: SqlStatement) -> Result<u64, SqlError> {
        self.note(&format!("execute {}", statement.sql));
        Ok(1)
    }
    async fn begin(
        &self,
        _: &DatabaseName,
        isolation: Isolation,
        deadline: Duration,
    ) -> Result<Box<dyn Transaction>, SqlError> {
        self.note(&format!("begin {isolation:?} {deadline:?}"));
        match isolation {
            Isolation::Serializable => Err(SqlError::Timeout("busy".into())),
            _ => Ok(Box::new(Begun(self.noted.clone()))),
        }
    }
}

/// A transaction that answers a row of 16 bytes and says what it is told to do.
struct Begun(Arc<Mutex<Vec<String>>>);

impl Begun {
    fn note(&self, what: &str) {
        self.0.lock().unwrap().push(what.to_owned());
    }
}

#[async_trait]
impl Transaction for Begun {
    async fn query(&self, statement: SqlStatement) -> Result<SqlRows, SqlError> {
        self.note(&statement.sql);
        match statement.sql.as_str() {
            "too many" => Err(SqlError::TooLarge("rows".into())),
            _ => Ok(SqlRows { columns: vec!["a".into()], rows: vec![vec![SqlValue::Text("12345678".into())]] }),
        }
    }
    async fn execute(&self, statement: SqlStatement) -> Result<u64, SqlError> {
        self.note(&statement.sql);
        Ok(7)
    }
    async fn commit(&self) -> Result<(), SqlError> {
        self.note("commit");
        Ok(())
    }
    async fn rollback(&self) -> Result<(), SqlError> {
        self.note("rollback");
        Err(SqlError::Unavailable("gone".into()))
    }
}

impl Log for Fake {
    fn enabled(&self, level: Level) -> bool {
        level >= Level::Info
    }
    fn write(&self, _: Level, target: &str, message: &str, _: &[(String, String)]) {
        self.logged.lock().unwrap().push((target.to_owned(), message.to_owned()));
    }
}

pub(super) fn effects(fake: &Arc<Fake>, policy: Policy) -> (Effects, Arc<ArcSwap<Policy>>) {
    let caller = Caller { plugin: PluginName::parse("p").unwrap(), controller: ControllerName::parse("c").unwrap() };
    let (noted, met) = (fake.clone(), fake.clone());
    let ports = Ports {
        kubernetes: fake.clone(),
        channels: fake.clone(),
        databases: fake.clone(),
        log: fake.clone(),
        denials: Arc::new(move |denial| noted.denied.lock().unwrap().push(denial.what.clone())),
        exceeded: Arc::new(move |limit| met.exceeded.lock().unwrap().push(limit)),
        rates: Arc::default(),
    };
    let policy = Arc::new(ArcSwap::from_pointee(policy));
    (Effects::new(caller, policy.clone(), ports), policy)
}

pub(super) fn rules(verbs: &[&str]) -> Grants {
    let verbs = verbs.iter().map(|v| (*v).to_owned()).collect();
    let rule = Rule { api_groups: vec![String::new()], resources: vec!["pods".into()], verbs, ..Rule::default() };
    Grants { rules: vec![rule].into(), ..Grants::default() }
}

pub(super) fn pods() -> Resource {
    Resource::parse("", "v1", "pods").unwrap()
}

pub(super) fn key() -> ObjectKey {
    ObjectKey::parse(Some("n"), "x").unwrap()
}

pub(super) fn call(path: &str) -> GrpcCall {
    GrpcCall { path: path.into(), metadata: vec![], deadline: None }
}

/// Every effect once, its outcome as whether a denial stopped it.
async fn all(effects: &Effects) -> Vec<(&'static str, bool)> {
    let (pods, key) = (pods(), key());
    let denied = |error: ApiError| matches!(error, ApiError::Denied(_));
    let event = Event {
        resource: pods.clone(),
        key: key.clone(),
        severity: Severity::Normal,
        reason: "R".into(),
        action: "A".into(),
        message: "m".into(),
    };
    vec![
        ("get", effects.get(&pods, &key, false).await.is_err_and(denied)),
        ("list", effects.list(&pods, &ListOptions::default()).await.is_err_and(denied)),
        ("create", effects.create(&pods, key.namespace.as_ref(), "{}".into()).await.is_err_and(denied)),
        ("patch", effects.patch(&pods, &key, None, Patch::Merge("{}".into())).await.is_err_and(denied)),
        ("update", effects.replace(&pods, &key, None, "{}".into()).await.is_err_and(denied)),
        ("delete", effects.delete(&pods, &key, &DeleteOptions::default()).await.is_err_and(denied)),
        ("events", effects.publish(event).await.is_err_and(denied)),
        ("unary", effects.unary("shop", call("/a.B/C"), vec![]).await.is_err_and(|s| s.code == 7)),
        ("open", effects.open("shop", call("/a.B/C")).await.is_err_and(|s| s.code == 7)),
    ]
}

#[tokio::test]
async fn without_grants_no_port_is_reached_and_each_denial_is_told() {
    let fake = Arc::new(Fake::default());
    let (effects, _) = effects(&fake, Policy::default());
    assert!(all(&effects).await.iter().all(|(_, denied)| *denied));
    assert_eq!(*fake.reached.lock().unwrap(), [] as [String; 0]);
    assert_eq!(fake.denied.lock().unwrap().len(), 9);
}

#[tokio::test]
async fn what_the_host_says_about_an_object_it_says_by_the_plugins_rights_and_denies_nobody_anything() {
    let event = || Event {
        resource: pods(),
        key: key(),
        severity: Severity::Warning,
        reason: "R".into(),
        action: "A".into(),
        message: "m".into(),
    };
    for (grants, said) in [
        (Grants { events: true, ..rules(&["get"]) }, true),
        (rules(&["get"]), false),
        (Grants { events: true, ..rules(&["list"]) }, false),
    ] {
        let fake = Arc::new(Fake::default());
        let (effects, _) = effects(&fake, Policy { grants, ..Policy::default() });
        assert_eq!(effects.announce(event()).await.unwrap(), said);
        assert_eq!(fake.reached.lock().unwrap().len(), usize::from(said));
        assert_eq!(*fake.denied.lock().unwrap(), [] as [String; 0]);
        assert_eq!(effects.ports.rates.meter.calls().count(), 0, "the plugin asked for nothing");
    }
}

#[tokio::test]
async fn each_verb_opens_only_its_own_effect() {
    for verb in ["get", "list", "create", "patch", "update", "delete"] {
        let fake = Arc::new(Fake { exists: true, ..Fake::default() });
        let (effects, _) = effects(&fake, Policy { grants: rules(&[verb]), ..Policy::default() });
        let open: Vec<_> =
            all(&effects).await.into_iter().filter(|(_, denied)| !denied).map(|(what, _)| what).collect();
        assert_eq!(open, [verb]);
    }
}

#[tokio::test]
async fn a_list_of_all_namespaces_has_nothing_of_the_hosts_own_unless_a_rule_names_it() {
    let of = |namespace: &str| format!(r#"{{"metadata":{{"namespace":"{namespace}","labels":{{"a":"host"}}}}}}"#);
    let fake = Arc::new(Fake { more: vec![of("n"), of("host"), of("hostile")], ..Fake::default() });
    let list = async |named: Option<&str>, asked: Option<&str>| {
        let mut grants = Grants { host_namespace: Some("host".parse().unwrap()), ..rules(&["list"]) };
        let namespaces = named.map(|name| name.parse().unwrap()).into_iter().collect();
        let rule = Rule { namespaces, ..rules(&["list"]).rules.iter().next().unwrap().clone() };
        grants.rules = rules(&["list"]).rules.iter().cloned().chain([rule]).collect::<Vec<_>>().into();
        let (effects, _) = effects(&fake, Policy { grants, ..Policy::default() });
        let namespace = asked.map(|name| name.parse().unwrap());
        let page = effects.list(&pods(), &ListOptions { namespace, ..ListOptions::default() }).await;
        page.map(|page| page.items.len())
    };
    assert_eq!(list(None, None).await, Ok(2));
    assert_eq!(list(Some("host"), None).await, Ok(3));
    assert_eq!(list(None, Some("n")).await, Ok(3), "where it is not meant, nobody looks");
    assert!(matches!(list(None, Some("host")).await, Err(ApiError::Denied(_))));
}

#[tokio::test]
async fn grants_change_during_a_reconcile() {
    let fake = Arc::new(Fake { exists: true, ..Fake::default() });
    let (effects, policy) = effects(&fake, Policy { grants: rules(&["get"]), ..Policy::default() });
    assert!(effects.get(&pods(), &key(), false).await.is_ok());
    policy.store(Arc::default());
    assert!(matches!(effects.get(&pods(), &key(), false).await, Err(ApiError::Denied(_))));
}

#[tokio::test]
async fn what_is_granted_in_addition_waits_for_the_next_reconcile() {
    let fake = Arc::new(Fake { exists: true, ..Fake::default() });
    let (effects, policy) = effects(&fake, Policy { grants: rules(&["get", "list"]), ..Policy::default() });
    let may = async |effects: &Effects| {
        [
            effects.get(&pods(), &key(), false).await.is_ok(),
            effects.list(&pods(), &ListOptions::default()).await.is_ok(),
            effects.delete(&pods(), &key(), &DeleteOptions::default()).await.is_ok(),
        ]
    };
    assert_eq!(may(&effects).await, [true, true, false]);
    let grant = |verbs: &[&str]| policy.store(Arc::new(Policy { grants: rules(verbs), ..Policy::default() }));
    grant(&["get", "delete"]);
    assert_eq!(may(&effects).await, [true, false, false]);
    let said = effects.delete(&pods(), &key(), &DeleteOptions::default()).await.unwrap_err().to_string();
    assert!(said.contains("began under the document before") && !said.contains("add to"), "{said}");
    let next = Effects::new(effects.caller.clone(), policy.clone(), effects.ports.clone());
    assert_eq!(may(&next).await, [true, false, true]);
    // As often as it changes.
    grant(&["list", "delete"]);
    assert_eq!((may(&effects).await, may(&next).await), ([false, true, false], [false, false, true]));
    grant(&["*"]);
    assert_eq!((may(&effects).await, may(&next).await), ([true, true, false], [true, false, true]));
}

#[tokio::test]
async fn whoever_began_as_another_account_may_do_nothing_any_more() {
    let of = |account: &str| {
        let account = ServiceAccount { namespace: "plugins".parse().unwrap(), name: account.parse().unwrap() };
        let bounds = Bounds::of(&PluginName::parse("p").unwrap(), &[], &account, &Scope::All);
        let (channels, databases) = ([ChannelName::parse("shop").unwrap()], [DatabaseName::parse("people").unwrap()]);
        let grants = Grants { channels: channels.into(), databases: databases.into(), events: true, ..rules(&["*"]) };
        Policy { grants, bounds, ..Policy::default() }
    };
    let fake = Arc::new(Fake { exists: true, ..Fake::default() });
    let (effects, policy) = effects(&fake, of("p"));
    let open = effects.open("shop", call("/a.B/Open")).await.unwrap();
    policy.store(Arc::new(of("p")));
    assert!(all(&effects).await.iter().all(|(_, denied)| !denied));
    open.receive(1).await.unwrap();

    policy.store(Arc::new(of("q")));
    fake.reached.lock().unwrap().clear();
    assert!(all(&effects).await.iter().all(|(_, denied)| *denied));
    let said = effects.query("people", Ask::default()).await.unwrap_err().to_string();
    assert!(said.contains("the plugin acts as another account by now"), "{said}");
    assert_eq!(open.receive(1).await.unwrap_err().objection, Some(Objection::Denied));
    assert_eq!(*fake.reached.lock().unwrap(), [] as [String; 0]);
    let next = Effects::new(effects.caller.clone(), policy.clone(), effects.ports.clone());
    assert!(all(&next).await.iter().all(|(_, denied)| !denied));
    // A reconcile whose ports are older than the policy that it finds.
    let late = Effects::since(Arc::new(of("p")), effects.caller.clone(), policy.clone(), effects.ports.clone());
    assert!(all(&late).await.iter().all(|(_, denied)| *denied));
}

#[tokio::test]
async fn what_is_open_ends_with_the_grant() {
    let fake = Arc::new(Fake::default());
    let grants = Grants {
        channels: [ChannelName::parse("shop").unwrap()].into(),
        databases: [DatabaseName::parse("people").unwrap()].into(),
        ..Grants::default()
    };
    let (effects, policy) = effects(&fake, Policy { grants: grants.clone(), ..Policy::default() });
    let open = effects.open("shop", call("/a.B/Open")).await.unwrap();
    let begun = effects.begin("people", Isolation::default(), None).await.unwrap();
    let statement = || effects.statement(Ask { sql: "SELECT 1".into(), ..Ask::default() }).unwrap();
    let each = async || {
        let exchange = [open.send(vec![]).await.err(), open.headers().await.err(), open.receive(1).await.err()];
        let transaction =
            [begun.query(statement()).await.err(), begun.execute(statement()).await.err(), begun.commit().await.err()];
        (exchange.map(|e| e.map(|e| e.objection)), transaction.map(|e| e.map(|e| matches!(e, SqlError::Denied(_)))))
    };
    assert_eq!(each().await, ([None; 3], [None; 3]));
    // Another document, that grants the same.
    policy.store(Arc::new(Policy { grants: grants.clone(), ..Policy::default() }));
    assert_eq!(each().await, ([None; 3], [None; 3]));
    fake.noted.lock().unwrap().clear();

    policy.store(Arc::new(Policy {
        grants: Grants { channels: grants.channels, ..Grants::default() },
        ..Policy::default()
    }));
    assert_eq!(each().await, ([None; 3], [Some(true); 3]));
    policy.store(Arc::new(Policy {
        grants: Grants { databases: grants.databases, ..Grants::default() },
        ..Policy::default()
    }));
    assert_eq!(each().await, ([Some(Some(Objection::Denied)); 3], [None; 3]));
    assert_eq!(fake.noted.lock().unwrap().len(), 3, "what is denied reaches nobody");
    policy.store(Arc::default());
    fake.denied.lock().unwrap().clear();
    assert_eq!(each().await, ([Some(Some(Objection::Denied)); 3], [Some(true); 3]));
    assert_eq!(fake.denied.lock().unwrap().len(), 6, "each is told");
    assert_eq!(begun.rollback().await, Err(SqlError::Unavailable("gone".into())), "it can be given up");
}

#[tokio::test]
async fn settings_and_limits_are_those_of_the_beginning_and_levels_those_of_the_log() {
    let limits = Limits { host_calls: 7, ..Limits::default() };
    let settings = BTreeMap::from([("colour".to_owned(), "red".to_owned())]);
    let (effects, policy) =
        effects(&Arc::new(Fake::default()), Policy { limits: limits.clone(), settings, ..Policy::default() });
    policy.store(Arc::default());
    assert_eq!((effects.setting("colour"), effects.setting("size")), (Some("red"), None));
    assert_eq!(*effects.limits(), limits);
    assert!(effects.log_enabled(Level::Info) && !effects.log_enabled(Level::Debug));
}

#[tokio::test]
async fn an_apply_without_create_changes_but_never_makes_an_object() {
    let apply = || Patch::Apply("{}".into());
    for (exists, verbs, allowed) in
        [(true, &["patch"][..], true), (false, &["patch"], false), (false, &["patch", "create"], true)]
    {
        let fake = Arc::new(Fake { exists, ..Fake::default() });
        let (effects, _) = effects(&fake, Policy { grants: rules(verbs), ..Policy::default() });
        assert_eq!(effects.patch(&pods(), &key(), None, apply()).await.is_ok(), allowed, "{exists} {verbs:?}");
    }
}

#[tokio::test]
async fn a_name_that_a_rule_is_limited_to_may_be_applied_and_listed() {
    let fake = Arc::new(Fake::default());
    let any = rules(&["patch", "create", "list"]).rules;
    let named: Vec<_> = any.iter().cloned().map(|rule| Rule { resource_names: vec!["x".into()], ..rule }).collect();
    let grants = Grants { rules: named.into(), ..Grants::default() };
    let (effects, _) = effects(&fake, Policy { grants, ..Policy::default() });
    let other = ObjectKey::parse(Some("n"), "y").unwrap();
    let apply = async |key: &ObjectKey| effects.patch(&pods(), key, None, Patch::Apply("{}".into())).await;
    assert!(apply(&key()).await.is_ok());
    assert!(matches!(apply(&other).await, Err(ApiError::Denied(_))));
    // RBAC knows no name of what is created otherwise.
    let made = effects.create(&pods(), key().namespace.as_ref(), "{}".into()).await;
    assert!(matches!(made, Err(ApiError::Denied(_))));
    let list = async |selector: &str| {
        let field_selector = (!selector.is_empty()).then(|| FieldSelector::parse(selector).unwrap());
        effects.list(&pods(), &ListOptions { field_selector, ..ListOptions::default() }).await
    };
    assert!(list("metadata.name=x").await.is_ok());
    for selector in ["", "metadata.name=y", "metadata.name!=x", "spec.nodeName=x"] {
        assert!(matches!(list(selector).await, Err(ApiError::Denied(_))), "{selector}");
    }
}

#[tokio::test]
async fn a_patch_that_means_two_things_reaches_nobody() {
    let fake = Arc::new(Fake::default());
    let (effects, _) = effects(&fake, Policy { grants: rules(&["*"]), ..Policy::default() });
    let twice = r#"{"metadata":{"finalizers":["f"]},"metadata":{}}"#.to_owned();
    let refused = effects.patch(&pods(), &key(), None, Patch::Merge(twice)).await.unwrap_err();
    assert!(matches!(&refused, ApiError::Invalid(why) if why.contains("duplicate field")), "{refused}");
    assert_eq!(*fake.reached.lock().unwrap(), ["get"]);
}

#[tokio::test]
async fn paths_and_metadata_that_smuggle_are_refused_before_the_channel() {
    let fake = Arc::new(Fake::default());
    let grants = Grants { channels: [ChannelName::parse("shop").unwrap()].into(), ..Grants::default() };
    let (effects, _) = effects(&fake, Policy { grants, ..Policy::default() });
    for path in ["", "a.B/C", "/a.B", "/a.B/C/D", "/a.B/C?x", "/../C", "/a.B/C\r\nx: y", "//C"] {
        assert_eq!(effects.unary("shop", call(path), vec![]).await.unwrap_err().code, 3, "{path:?}");
    }
    for (key, value) in [
        ("authorization", "x"),
        ("grpc-timeout", "1S"),
        ("Upper", "x"),
        ("te", "x"),
        ("a b", "x"),
        (":path", "/x"),
        ("ok", "a\r\nb"),
    ] {
        let call = GrpcCall { metadata: vec![(key.into(), value.into())], ..call("/a.B/C") };
        assert_eq!(effects.unary("shop", call, vec![]).await.unwrap_err().code, 3, "{key:?}");
    }
    assert!(fake.reached.lock().unwrap().is_empty());
    let fine = GrpcCall {
        metadata: vec![("trace-bin".into(), vec![0, 255])],
        deadline: Some(Duration::from_hours(1)),
        ..call("/a.B/C")
    };
    effects.unary("shop", fine, vec![]).await.unwrap();
    assert_eq!(*fake.reached.lock().unwrap(), ["unary /a.B/C Some(30s)"]);
}

#[tokio::test]
async fn a_database_needs_a_grant_and_statements_are_held_to_the_limits() {
    let fake = Arc::new(Fake::default());
    let grants = Grants { databases: [DatabaseName::parse("people").unwrap()].into(), ..Grants::default() };
    let limits = Limits { host_calls: 10, message: 100, ..Limits::default() };
    let (effects, _) = effects(&fake, Policy { grants, limits, ..Policy::default() });
    let ask = |sql: &str| Ask { sql: sql.into(), ..Ask::default() };
    let denied = effects.query("other", ask("SELECT 1")).await.unwrap_err().to_string();
    assert!(denied.contains("spec.grants.databases") && denied.contains("- name: \"other\""), "{denied}");
    assert!(matches!(effects.begin("other", Isolation::default(), None).await, Err(SqlError::Denied(_))));
    assert_eq!(*fake.denied.lock().unwrap(), ["database \"other\""; 2]);

    for (bad, what) in [
        (ask("SELECT '\0'"), "NUL"),
        (Ask { max_rows: Some(0), ..ask("SELECT 1") }, "max-rows"),
        (Ask { max_rows: Some(10_001), ..ask("SELECT 1") }, "max-rows"),
    ] {
        let error = effects.query("people", bad).await.unwrap_err();
        assert!(matches!(&error, SqlError::Invalid(why) if why.contains(what)), "{error}");
    }
    let long = Ask { parameters: vec![SqlValue::Text("x".repeat(100))], ..ask("SELECT 1") };
    assert!(matches!(effects.execute("people", long).await, Err(SqlError::TooLarge(_))));
    assert!(fake.reached.lock().unwrap().is_empty());

    effects.query("people", Ask { deadline: Some(Duration::from_hours(1)), ..ask("SELECT 1") }).await.unwrap();
    effects
        .query("people", Ask { deadline: Some(Duration::from_secs(1)), max_rows: Some(7), ..ask("SELECT 2") })
        .await
        .unwrap();
    effects.execute("people", ask("DELETE")).await.unwrap();
    assert!(effects.begin("people", Isolation::Serializable, None).await.is_err());
    assert_eq!(
        *fake.reached.lock().unwrap(),
        ["query SELECT 1 30s 1000", "query SELECT 2 1s 7", "execute DELETE", "begin Serializable 30s"]
    );
    effects.count_sql(0).unwrap();
    assert!(matches!(effects.query("people", ask("SELECT 3")).await, Err(SqlError::TooLarge(_))));
}

#[tokio::test]
async fn what_a_transaction_is_told_reaches_it_and_what_it_answers_is_held_to_the_limits() {
    let fake = Arc::new(Fake::default());
    let grants = Grants { databases: [DatabaseName::parse("people").unwrap()].into(), ..Grants::default() };
    let limits = Limits { traffic: 16 + 2 * 8, ..Limits::default() };
    let (effects, _) = effects(&fake, Policy { grants, limits, ..Policy::default() });
    let statement = |sql: &str| effects.statement(Ask { sql: sql.into(), ..Ask::default() }).unwrap();
    let (query, execute) = (statement("SELECT 1"), statement("DELETE 1"));
    let begun = effects.begin("people", Isolation::default(), None).await.unwrap();
    assert_eq!(begun.query(query.clone()).await.unwrap().rows.len(), 1);
    assert_eq!(begun.execute(execute).await, Ok(7));
    begun.commit().await.unwrap();
    assert_eq!(begun.rollback().await, Err(SqlError::Unavailable("gone".into())));
    assert_eq!(*fake.noted.lock().unwrap(), ["SELECT 1", "DELETE 1", "commit", "rollback"]);
    assert_eq!(*fake.exceeded.lock().unwrap(), []);
    // Its bytes count, and it knows itself how many rows are too many.
    assert!(begun.query(query.clone()).await.unwrap_err().to_string().contains("limits.trafficMiB"));
    let many = SqlStatement { sql: "too many".into(), ..query };
    assert_eq!(begun.query(many).await, Err(SqlError::TooLarge("rows".into())));
    assert_eq!(*fake.exceeded.lock().unwrap(), [Limit::Traffic, Limit::Rows]);
}

#[tokio::test]
async fn a_statement_is_as_long_as_an_argument_and_has_as_many_parameters_as_the_protocol_takes() {
    let limits = Limits { message: 27, rows: 20_000, ..Limits::default() };
    let (short, _) = effects(&Arc::new(Fake::default()), Policy { limits, ..Policy::default() });
    let (long, _) = effects(&Arc::new(Fake::default()), Policy::default());
    let ask = |parameters| Ask { sql: "SELECT 1".into(), parameters, max_rows: Some(10_000), deadline: None };
    let text = |length| vec![SqlValue::Text("x".repeat(length))];
    assert_eq!(short.statement(ask(text(11))).unwrap().max_rows, 10_000);
    assert!(matches!(short.statement(ask(text(12))), Err(SqlError::TooLarge(_))));
    let nulls = |count| vec![SqlValue::Null; count];
    assert_eq!(long.statement(ask(nulls(65_535))).unwrap().parameters.len(), 65_535);
    let error = long.statement(ask(nulls(65_536))).unwrap_err();
    assert!(matches!(&error, SqlError::Invalid(why) if why.contains("65536 parameters")), "{error}");
}

#[test]
fn each_end_of_a_call_is_counted_under_its_own_word() {
    let text = String::new;
    let grpc = |code| Ending::from(&GrpcStatus::of(code, ""));
    let objected = |objection| Ending::from(&GrpcStatus { objection: Some(objection), ..GrpcStatus::of(5, "") });
    let database = SqlError::Database { sqlstate: text(), message: text(), more: vec![] };
    for (endings, word) in [
        (vec![Ending::from(&ApiError::NotFound(text())), grpc(5)], "not_found"),
        (vec![Ending::from(&ApiError::AlreadyExists(text())), grpc(6)], "already_exists"),
        (vec![Ending::from(&ApiError::Conflict(text()))], "conflict"),
        (vec![Ending::from(&ApiError::Invalid(text())), grpc(3), Ending::from(&SqlError::Invalid(text()))], "invalid"),
        (vec![Ending::from(&ApiError::Forbidden(text())), grpc(7), grpc(16)], "forbidden"),
        (
            vec![
                Ending::from(&ApiError::Denied(text())),
                objected(Objection::Denied),
                Ending::from(&SqlError::Denied(text())),
            ],
            "denied",
        ),
        (vec![Ending::from(&ApiError::Gone(text()))], "gone"),
        (vec![Ending::from(&ApiError::TooManyRequests(None))], "too_many_requests"),
        (
            vec![Ending::from(&ApiError::Unavailable(text())), grpc(14), Ending::from(&SqlError::Unavailable(text()))],
            "unavailable",
        ),
        (vec![Ending::from(&ApiError::Timeout(text())), grpc(4), Ending::from(&SqlError::Timeout(text()))], "timeout"),
        (
            vec![
                Ending::from(&ApiError::TooLarge(text())),
                objected(Objection::Limit(Limit::GrpcMessage)),
                Ending::from(&SqlError::TooLarge(text())),
            ],
            "too_large",
        ),
        (vec![grpc(2), grpc(8), Ending::from(&database), Ending::from(&SqlError::Unsupported(text()))], "error"),
    ] {
        assert!(endings.iter().all(|ending| ending.label() == word), "{word}: {endings:?}");
    }
}

#[tokio::test]
async fn what_a_plugin_uses_is_counted_over_all_its_reconciles() {
    let fake = Arc::new(Fake { exists: true, ..Fake::default() });
    let grants = Grants { channels: [ChannelName::parse("shop").unwrap()].into(), ..rules(&["*"]) };
    let (first, _) = effects(&fake, Policy { grants: grants.clone(), ..Policy::default() });
    all(&first).await;
    // Another one, of what is not granted and would change nothing.
    let free = Arc::new(Fake { free: true, ..Fake::default() });
    let ports = Ports { rates: first.ports.rates.clone(), ..effects(&free, Policy::default()).0.ports };
    let grants = Arc::new(ArcSwap::from_pointee(Policy { grants: rules(&["patch"]), ..Policy::default() }));
    let next = Effects::new(first.caller.clone(), grants, ports);
    next.patch(&pods(), &key(), None, Patch::Merge("12345".into())).await.unwrap();
    assert!(next.get(&pods(), &key(), false).await.is_err());
    assert!(next.query("people", Ask { sql: "SELECT 1".into(), ..Ask::default() }).await.is_err());
    // What the host denies is told from what a service does, though both have gRPC's word for it.
    assert_eq!(next.unary("shop", call("/a.B/Closed"), vec![]).await.unwrap_err().code, 7);
    assert_eq!(first.unary("shop", call("/a.B/Closed"), vec![]).await.unwrap_err().code, 7);

    let meter = &first.ports.rates.meter;
    let mut counted: Vec<_> =
        meter.calls().map(|(c, e, count)| format!("{} {} {count}", c.label(), e.label())).collect();
    counted.sort();
    assert_eq!(
        counted,
        [
            "create ok 1",
            "delete ok 1",
            "get denied 1",
            "get ok 1",
            "grpc denied 1",
            "grpc forbidden 1",
            "grpc ok 1",
            "grpc unavailable 1",
            "list ok 1",
            "patch ok 1",
            "patch unchanged 1",
            "publish denied 1",
            "sql denied 1",
            "update ok 1"
        ]
    );
    // Of {} three times and of an event there, of 12345 and of a statement, and of the paths of four calls; and {} back, each time.
    assert_eq!(meter.bytes(), (2 + 2 + 2 + 3 + 5 + 8 + 6 + 6 + 11 + 11, 2 * 5));
    // What is denied was called all the same.
    assert_eq!(meter.host_calls(), 9 + 3 + 2);
}
