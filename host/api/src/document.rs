//! Plugin documents: the YAML file beside a component.

use kube::ResourceExt as _;
use operetta_core::{
    effect::printable,
    manifest::Manifest,
    name::{NameError, PluginName},
};

use crate::{
    credential::FromKey,
    plugin::{Address, Channel, ConfigMapSource, Database, GrantSpec, Plugin, PluginSpec, Source},
};

/// The largest document, in bytes.
const MAX_DOCUMENT: usize = 1 << 20;
/// Bytes of an error that repeats a part of the document.
const ERROR: usize = 1_000;
/// Bytes of a word of the document that an error repeats.
const WORD: usize = 200;

/// A document that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Not the YAML it should be.
    #[error("not a Plugin document: {0}")]
    Yaml(String),
    /// Another kind or version.
    #[error(
        "the document is of apiVersion {0:?} and kind {1:?}; write apiVersion: operetta.dev/v1alpha1 and kind: Plugin"
    )]
    Kind(String, String),
    /// A name that differs from the file's.
    #[error("metadata.name is {0:?} and the file is called {1}; make them equal")]
    Name(String, PluginName),
    /// A part that is not what it should be.
    #[error("{0}")]
    Field(String),
}

/// Parses the document of the plugin called `name` (the file's name without its ending). A field that does not exist is an error, so that a misspelt limit is not a limit that silently is not there.
pub fn parse(name: &PluginName, yaml: &str) -> Result<Plugin, DocumentError> {
    read(name, yaml).map_err(DocumentError::short)
}

fn read(name: &PluginName, yaml: &str) -> Result<Plugin, DocumentError> {
    if yaml.len() > MAX_DOCUMENT {
        return Err(DocumentError::Yaml(format!("{} bytes, and at most {MAX_DOCUMENT} are read", yaml.len())));
    }
    let value: serde_json::Value = serde_saphyr::from_str(yaml).map_err(|e| DocumentError::Yaml(e.to_string()))?;
    let text = |field: &str| value.get(field).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version != "operetta.dev/v1alpha1" || kind != "Plugin" {
        return Err(DocumentError::Kind(api_version, kind));
    }
    for field in value.as_object().into_iter().flat_map(serde_json::Map::keys) {
        if !["apiVersion", "kind", "metadata", "spec", "status"].contains(&field.as_str()) {
            return Err(DocumentError::Field(format!("unknown field `{field}` beside `spec`")));
        }
    }
    let plugin: Plugin = serde_json::from_value(value).map_err(|e| DocumentError::Field(e.to_string()))?;
    if plugin.name_any() != name.as_str() {
        return Err(DocumentError::Name(plugin.name_any(), name.clone()));
    }
    check_channels(&plugin.spec.grants.channels)?;
    check_databases(&plugin.spec.grants.databases)?;
    check_source(plugin.spec.source.as_ref()).map_err(DocumentError::Field)?;
    plugin.spec.account(name).map_err(|e: NameError| DocumentError::Field(e.to_string()))?;
    Ok(plugin)
}

impl DocumentError {
    /// What it repeats of the document may be long and anything but text.
    fn short(self) -> Self {
        match self {
            // The parser shows no more than some lines of it.
            Self::Yaml(text) => Self::Yaml(text),
            Self::Kind(version, kind) => Self::Kind(printable(&version, WORD), printable(&kind, WORD)),
            Self::Name(said, file) => Self::Name(printable(&said, WORD), file),
            Self::Field(text) => Self::Field(printable(&text, ERROR)),
        }
    }
}

fn check_channels(channels: &[Channel]) -> Result<(), DocumentError> {
    for Channel { name, endpoint, ca_from, token_from, certificate_from } in channels {
        let wrong = |text: String| Err(DocumentError::Field(text));
        if !(endpoint.starts_with("http://") || endpoint.starts_with("https://")) {
            return wrong(format!(
                "the endpoint {endpoint:?} of channel {name} is not http://HOST:PORT or https://HOST:PORT"
            ));
        }
        let over_tls = [
            ("caFrom", ca_from.is_some()),
            ("tokenFrom", token_from.is_some()),
            ("certificateFrom", certificate_from.is_some()),
        ];
        if let Some((field, _)) = over_tls.into_iter().find(|(_, said)| *said)
            && !endpoint.starts_with("https://")
        {
            return wrong(format!(
                "channel {name} has {field}, and its endpoint {endpoint:?} is no https://HOST:PORT; credentials do not travel in the clear"
            ));
        }
        check_key(&format!("channel {name}"), ca_from.as_ref())?;
    }
    Ok(())
}

fn check_databases(databases: &[Database]) -> Result<(), DocumentError> {
    for database in databases {
        let name = &database.name;
        let wrong = |text: String| Err(DocumentError::Field(text));
        if let Address::Env(env) = database.address().map_err(DocumentError::Field)?
            && !is_variable(env)
        {
            return wrong(format!(
                "the env {env:?} of database {name} is not how names of environment variables begin; write capitals, digits and _, such as PSQL"
            ));
        }
        if database.port == Some(0) {
            return wrong(format!("the port of database {name} is a number from 1 to 65535"));
        }
        if database.connections.is_some_and(|n| !(1..=100).contains(&n)) {
            return wrong(format!("the connections of database {name} are a number from 1 to 100"));
        }
        if database.ca_from.is_some() && !database.tls {
            return wrong(format!("database {name} has caFrom and no TLS that would use it; add tls: true"));
        }
        check_key(&format!("database {name}"), database.ca_from.as_ref())?;
    }
    Ok(())
}

fn check_key(what: &str, from: Option<&FromKey>) -> Result<(), DocumentError> {
    match from {
        Some(from) if from.reference().is_none() => Err(DocumentError::Field(format!(
            "the caFrom of {what} has exactly one of secretKeyRef and configMapKeyRef, each with name and key"
        ))),
        _ => Ok(()),
    }
}

fn check_source(source: Option<&Source>) -> Result<(), String> {
    match source {
        None => Ok(()),
        Some(Source { file: Some(file), config_map: None }) => {
            let is_wasm = std::path::Path::new(file).extension().is_some_and(|e| e == "wasm");
            if !is_wasm || file.contains(['/', '\\', '\0']) || file.starts_with('.') {
                return Err(format!(
                    "spec.source.file is {file:?}; write the name of a .wasm file of the plugin directory, without a path"
                ));
            }
            Ok(())
        }
        Some(Source { file: None, config_map: Some(maps) }) => {
            if maps.chunks.is_some_and(|n| !(1..=ConfigMapSource::MOST).contains(&n)) {
                return Err(format!(
                    "spec.source.configMap.chunks is not a number from 1 to {}",
                    ConfigMapSource::MOST
                ));
            }
            maps.names().map(drop).map_err(|e| format!("spec.source.configMap: {e}"))
        }
        Some(_) => Err("spec.source names no source or two; write either file or configMap".into()),
    }
}

fn is_variable(env: &str) -> bool {
    env.starts_with(|c: char| c.is_ascii_uppercase())
        && env.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// The document that grants a plugin all that it asks for, as YAML for an administrator to read and cut.
pub fn render(name: &PluginName, manifest: &Manifest) -> Result<String, DocumentError> {
    let requests = &manifest.requests;
    let channels = requests.channels.iter().map(|c| Channel {
        name: c.name.clone(),
        endpoint: if c.example.is_empty() { "http://HOST:PORT".to_owned() } else { c.example.clone() },
        ca_from: None,
        token_from: None,
        certificate_from: None,
    });
    let databases = requests
        .databases
        .iter()
        .map(|d| Database::from_env(d.name.clone(), if d.example.is_empty() { "PSQL" } else { &d.example }));
    let grants = GrantSpec {
        rules: requests.rules.clone(),
        channels: channels.collect(),
        databases: databases.collect(),
        events: requests.events,
    };
    let settings = requests.settings.iter().filter_map(|s| Some((s.name.clone(), s.default.clone()?))).collect();
    let plugin = Plugin::new(name.as_str(), PluginSpec { grants, settings, ..PluginSpec::default() });
    let mut value = serde_json::to_value(&plugin).map_err(|e| DocumentError::Yaml(e.to_string()))?;
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
    }
    serde_saphyr::to_string(&value).map_err(|e| DocumentError::Yaml(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> PluginName {
        PluginName::parse("demo").unwrap()
    }

    fn document(spec: &str) -> String {
        format!("apiVersion: operetta.dev/v1alpha1\nkind: Plugin\nmetadata: {{name: demo}}\nspec: {spec}\n")
    }

    #[test]
    fn an_empty_spec_grants_nothing_and_acts_as_the_account_of_its_name() {
        let plugin = parse(&name(), &document("{}")).unwrap();
        assert_eq!(plugin.spec.account(&name()).unwrap().to_string(), "operetta-plugins/demo");
        let policy = plugin.spec.policy();
        assert!(policy.grants.rules.is_empty() && !policy.grants.events);
        assert_eq!(policy.limits, operetta_core::limit::Limits::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (yaml, expected) in [
            ("a: [", "not a Plugin document"),
            ("apiVersion: v1\nkind: Pod", "apiVersion \"v1\" and kind \"Pod\""),
            (&document("{limits: {memory: 5}}"), "unknown field `memory`"),
            (
                &document("{grants: {rules: [{apiGroups: [\"\"], resources: [pods], verb: [get]}]}}"),
                "unknown field `verb`",
            ),
            (&document("{colour: red}"), "unknown field `colour`"),
            (&format!("{}extra: 1\n", document("{}")), "unknown field `extra`"),
            (&format!("{}\"\\t\": 1\n", document("{}")), "unknown field `\\t`"),
            (&document("{}").replace("demo", "other"), "metadata.name is \"other\" and the file is called demo"),
            (
                &document("{grants: {channels: [{name: x, endpoint: \"unix:/tmp/x\"}]}}"),
                "endpoint \"unix:/tmp/x\" of channel x",
            ),
            (&document("{grants: {databases: [{name: x, env: \"a b\"}]}}"), "env \"a b\" of database x"),
            (&document("{grants: {databases: [{name: x, env: Path}]}}"), "env \"Path\" of database x"),
            (&document("{grants: {databases: [{name: x, env: 1A}]}}"), "env \"1A\" of database x"),
            (&document("{grants: {databases: [{name: x, env: A-B}]}}"), "env \"A-B\" of database x"),
            (&document("{grants: {databases: [{name: x, env: A, connections: 0}]}}"), "connections of database x"),
            (&document("{grants: {databases: [{name: x, env: A, password: p}]}}"), "unknown field `password`"),
            (&document("{grants: {databases: [{name: x}]}}"), "database x has no host; write host, dbname and user"),
            (&document("{grants: {databases: [{name: x, host: h, user: u}]}}"), "database x has no dbname"),
            (&document("{grants: {databases: [{name: x, env: A, host: h}]}}"), "both env and host"),
            (
                &document(
                    "{grants: {databases: [{name: x, env: A, passwordFrom: {secretKeyRef: {name: a, key: b}}}]}}",
                ),
                "both env and passwordFrom",
            ),
            (
                &document("{grants: {databases: [{name: x, host: h, dbname: d, user: u, port: 0}]}}"),
                "a number from 1 to 65535",
            ),
            (
                &document("{grants: {databases: [{name: x, host: h, dbname: d, user: u, tls: true, caFrom: {}}]}}"),
                "exactly one of secretKeyRef and configMapKeyRef",
            ),
            (
                &document(
                    "{grants: {databases: [{name: x, host: h, dbname: d, user: u, caFrom: {configMapKeyRef: {name: a, key: b}}}]}}",
                ),
                "add tls: true",
            ),
            (
                &document(
                    "{grants: {databases: [{name: x, host: h, dbname: d, user: u, passwordFrom: {secretKeyRef: {name: a, key: b, namespace: c}}}]}}",
                ),
                "unknown field `namespace`",
            ),
            (
                &document(
                    "{grants: {databases: [{name: x, host: h, dbname: d, user: u, passwordFrom: {secretKeyRef: {name: ../a, key: b}}}]}}",
                ),
                "is no name of a Secret",
            ),
            (
                &document(
                    "{grants: {channels: [{name: x, endpoint: \"http://h:1\", tokenFrom: {secretKeyRef: {name: a, key: b}}}]}}",
                ),
                "credentials do not travel in the clear",
            ),
            (
                &document("{grants: {channels: [{name: x, endpoint: \"https://h:1\", caFrom: {}}]}}"),
                "the caFrom of channel x",
            ),
            (&document("{}").replace("Plugin", "Pod"), "kind \"Pod\""),
            (&document("{}").replace("v1alpha1", "v1"), "apiVersion \"operetta.dev/v1\""),
            (&document("{source: {file: ../x.wasm}}"), "without a path"),
            (&document("{source: {file: a/x.wasm}}"), "without a path"),
            (&document("{source: {file: 'a\\x.wasm'}}"), "without a path"),
            (&document("{source: {file: .x.wasm}}"), "without a path"),
            (&document("{source: {file: x.yaml}}"), "the name of a .wasm file"),
            (&document("{source: {}}"), "either file or configMap"),
            (&document("{source: {file: x.wasm, configMap: {name: x}}}"), "either file or configMap"),
            (&document("{source: {configMap: {name: x, chunks: 65}}}"), "a number from 1 to 64"),
            (&document("{source: {configMap: {name: ../x}}}"), "is no name of a Secret or ConfigMap"),
            (&document("{source: {configMap: {name: x, namespace: y}}}"), "unknown field `namespace`"),
            (&document("{deletionPolicy: Abandon}"), "unknown variant `Abandon`"),
            (&document("{namespaces: [\"a/b\"]}"), "\"a/b\" is no namespace"),
            (&document("{digest: \"sha256:zz\"}"), "is no digest"),
        ] {
            let error = parse(&name(), yaml).unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        }
        // However long the word is that is wrong.
        let long = "a\u{1b}".repeat(5_000);
        let quoted = serde_json::to_string(&long).unwrap();
        for yaml in [
            format!("apiVersion: {quoted}\nkind: {quoted}\n"),
            document("{}").replace("demo", &quoted),
            document(&format!("{{{quoted}: 1}}")),
            document(&format!("{{source: {{file: {quoted}}}}}")),
            document(&format!("{{grants: {{channels: [{{name: x, endpoint: {quoted}}}]}}}}")),
            document(&format!("{{grants: {{databases: [{{name: x, env: {quoted}}}]}}}}")),
            document(&format!("{{serviceAccount: {{name: {quoted}}}}}")),
        ] {
            let error = parse(&name(), &yaml).unwrap_err().to_string();
            assert!(error.len() < 2_000 && !error.contains('\u{1b}'), "{} bytes: {error}", error.len());
        }
    }

    #[test]
    fn what_is_right_is_taken() {
        for spec in [
            "{source: {file: x.wasm}}",
            "{source: {configMap: {name: x, chunks: 64}}}",
            "{grants: {databases: [{name: x, env: PSQL_2, connections: 100}]}}",
            "{grants: {databases: [{name: x, host: h, dbname: d, user: u, tls: true, caFrom: {configMapKeyRef: {name: a, key: b}}}]}}",
            "{grants: {channels: [{name: x, endpoint: \"https://h:1\", caFrom: {secretKeyRef: {name: a, key: b}}}]}}",
        ] {
            parse(&name(), &document(spec)).unwrap();
        }
        let mut largest = document("{}") + "#";
        largest.push_str(&"x".repeat(MAX_DOCUMENT - largest.len()));
        assert_eq!(largest.len(), 1_048_576);
        parse(&name(), &largest).unwrap();
        let error = parse(&name(), &(largest + "x")).unwrap_err();
        assert!(error.to_string().contains("1048577 bytes, and at most 1048576 are read"), "{error}");
    }

    #[test]
    fn the_rendered_document_grants_what_the_manifest_asks_for() {
        let manifest = Manifest::parse(
            &serde_json::json!({
                "manifestVersion": 1, "name": "demo", "version": "1",
                "controllers": [{"name": "a", "for": {"group": "x.example.com", "version": "v1", "resource": "things"}}],
                "requests": {"rules": [{"apiGroups": ["x.example.com"], "resources": ["things"], "verbs": ["get"]}],
                    "channels": [{"name": "shop", "example": "http://127.0.0.1:1"}], "events": true,
                    "databases": [{"name": "people"}],
                    "settings": [{"name": "image", "default": "x:1"}, {"name": "none"}]}
            })
            .to_string(),
        )
        .unwrap();
        let plugin = parse(&name(), &render(&name(), &manifest).unwrap()).unwrap();
        let policy = plugin.spec.policy();
        assert_eq!(*policy.grants.rules, *manifest.requests.rules);
        assert!(policy.grants.events && policy.grants.check_channel("shop").is_ok());
        assert!(policy.grants.check_database("people").is_ok());
        assert_eq!(policy.settings.get("image").map(String::as_str), Some("x:1"));
    }
}
