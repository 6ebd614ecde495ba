//! Names, on their way into URLs, error messages and documents.

use http::Uri;
use operetta_cluster::request::Url;
use operetta_core::{
    grant::{Access, Denial, Grants, Remedy, Rules, Verb},
    name::{
        ChannelName, Digest, FieldManager, FieldSelector, LabelSelector, Namespace, ObjectName, PluginName, Subresource,
    },
    resource::{ObjectKey, Resource},
};

/// Each line is a part: group, version, resource, namespace, name, subresource, a value. Names that are taken make the URL that they should and no other; what is said of them is
/// one line, short, and can be pasted.
pub fn parse(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut parts = text.split('\n');
    let mut part = || parts.next().unwrap_or_default();
    let (group, version, plural) = (part(), part(), part());
    let (namespace, name, subresource, value) = (part(), part(), part(), part());

    for error in [
        Resource::parse(group, version, plural).err(),
        ObjectKey::parse(Some(namespace), name).err(),
        PluginName::parse(name).err(),
        Digest::parse(value).err(),
    ]
    .into_iter()
    .flatten()
    {
        is_said_well(&error.to_string());
    }
    strangers(value);

    let Ok(resource) = Resource::parse(group, version, plural) else { return };
    let (namespace, subresource) = (Namespace::parse(namespace).ok(), Subresource::parse(subresource).ok());
    let name = ObjectName::parse(name).ok();
    url(&resource, namespace.as_ref(), name.as_ref(), subresource.as_ref(), value);
    for verb in [Verb::Get, Verb::List, Verb::Create, Verb::Patch] {
        let access = Access {
            verb,
            resource: &resource,
            subresource: subresource.as_ref(),
            namespace: namespace.as_ref(),
            name: name.as_ref(),
        };
        let denial = Grants::default().check(&access).expect_err("nothing is granted");
        let rules: Rules = serde_saphyr::from_str(paste(&denial)).expect("a denial names a rule");
        let granted = Grants { rules, ..Grants::default() };
        assert!(granted.check(&access).is_ok(), "what the denial names does not grant it: {denial}");
        let all: usize = [Verb::Get, Verb::List, Verb::Create, Verb::Patch, Verb::Delete, Verb::Update, Verb::Watch]
            .into_iter()
            .filter(|verb| granted.check(&Access { verb: *verb, ..access }).is_ok())
            .count();
        assert_eq!(all, 1, "what the denial names grants more: {denial}");
    }
}

/// The piece of YAML that a denial names.
fn paste(denial: &Denial) -> &str {
    match &denial.remedy {
        Remedy::Grant { yaml, .. } => yaml,
        Remedy::None(why) => panic!("nothing to paste: {why}"),
        Remedy::Closed(why) => panic!("nothing to paste: {why}"),
    }
}

fn is_said_well(text: &str) {
    assert!(text.len() < 2_000, "{} bytes", text.len());
    assert!(!text.chars().any(|c| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c)), "{text:?}");
}

/// Names that are compared with what is granted, and parsed by nobody: a guest writes them.
fn strangers(text: &str) {
    let grants = Grants::default();
    let denials = [grants.check_channel(text).expect_err("none"), grants.check_database(text).expect_err("none")];
    for denial in denials {
        is_said_well(&denial.what);
        for line in paste(&denial).lines() {
            is_said_well(line);
        }
        if ChannelName::parse(text).is_ok() {
            let pasted: Vec<serde_json::Value> = serde_saphyr::from_str(paste(&denial)).expect("it can be pasted");
            assert_eq!(pasted[0]["name"], text);
        }
    }
}

fn url(
    resource: &Resource,
    namespace: Option<&Namespace>,
    name: Option<&ObjectName>,
    subresource: Option<&Subresource>,
    value: &str,
) {
    let mut url = Url::of(resource, namespace);
    let mut segments = if resource.group().is_empty() { vec!["api"] } else { vec!["apis", resource.group()] };
    segments.push(resource.version());
    segments.extend(namespace.into_iter().flat_map(|namespace| ["namespaces", namespace.as_str()]));
    segments.push(resource.resource());
    if let Some(name) = name {
        url = url.object(name).subresource(subresource);
        segments.push(name.as_str());
        segments.extend(subresource.map(Subresource::as_str));
    }
    let plugin = PluginName::parse("fuzz").unwrap();
    let manager = FieldManager::of(&plugin, &operetta_core::name::ControllerName::parse("c").unwrap());
    url = url.query("fieldManager", manager.as_str());
    let selectors = LabelSelector::parse(value).is_ok() || FieldSelector::parse(value).is_ok();
    if selectors {
        url = url.query("selector", value);
    }
    let request = url.get().expect("names make a URL");
    let uri: &Uri = request.uri();
    assert_eq!((uri.scheme(), uri.authority()), (None, None), "{uri}");
    let path: Vec<_> = uri.path().trim_start_matches('/').split('/').map(decoded).collect();
    assert_eq!(path, segments, "{uri}");
    let query: Vec<_> = uri.query().unwrap_or_default().split('&').map(decoded).collect();
    let mut expected = vec![format!("fieldManager={manager}")];
    expected.extend(selectors.then(|| format!("selector={value}")));
    assert_eq!(query, expected, "{uri}");
    assert!(!uri.to_string().contains('#'));
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                bytes.extend(hex::decode([*high, *low]).expect("two digits after %"));
                rest = tail;
            }
            (byte, tail) => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).expect("names are text")
}
