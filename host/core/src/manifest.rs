//! What a plugin says of itself: a versioned JSON document that the export `manifest` returns. Its JSON schema is `config/manifest.schema.json`.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    effect::printable,
    grant::Rule,
    name::{ChannelName, ControllerName, DatabaseName, PluginName},
    resource::Resource,
};

/// The version of the document that this host reads.
pub const MANIFEST_VERSION: u32 = 1;

/// The largest manifest, in bytes. CRDs make up most of it; the API server takes none above 1.5 MiB.
pub const MAX_MANIFEST: usize = 2 << 20;

/// Controllers of one plugin: each has a queue, tasks and some 65 series of metrics. The largest operators have some twenty.
pub const MAX_CONTROLLERS: usize = 32;

/// Kinds that one plugin names: of each there is a watch, and the API server is asked again and again whether the account may have it, even of a kind that the cluster does not know.
pub const MAX_KINDS: usize = 64;

/// Watches by a mapping that the controllers of one plugin have together.
pub const MAX_WATCHES: usize = 128;

/// Bytes of a mapping. The key of a label or an annotation has at most 317.
pub const MAX_MAPPING: usize = 512;

/// A manifest that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Too many bytes.
    #[error("the manifest has {0} bytes; at most {MAX_MANIFEST} are read")]
    TooLarge(usize),
    /// A document of a later version.
    #[error(
        "the manifest is of version {0} and this host reads version {MANIFEST_VERSION}; use a newer host or build with an older SDK"
    )]
    Version(u64),
    /// Not the JSON it should be.
    #[error("the manifest is not valid: {0}")]
    Json(String),
    /// Well-formed, but it makes no sense.
    #[error("the manifest is not valid: {0}")]
    Content(String),
}

/// What a plugin says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// The version of this document, 1.
    pub manifest_version: u32,
    /// The plugin's own name; the file may call it otherwise.
    pub name: PluginName,
    /// The plugin's version, for people.
    pub version: String,
    /// One sentence for people.
    #[serde(default)]
    pub description: String,
    /// At least one, at most 32. All of them together name at most 64 kinds, and each kind in one version only.
    pub controllers: Vec<Controller>,
    /// CustomResourceDefinitions that it brings; `operetta install` applies them, the host never does.
    #[serde(default)]
    pub crds: Vec<serde_json::Value>,
    /// What it asks for.
    #[serde(default)]
    pub requests: Requests,
}

/// One controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Controller {
    /// Unique within the plugin.
    pub name: ControllerName,
    /// The primary kind: each key names an object of it.
    #[serde(rename = "for")]
    pub primary: Resource,
    /// Kinds whose objects wake the primary that is their controller by owner reference, none twice.
    #[serde(default)]
    pub owns: Vec<Resource>,
    /// Kinds whose objects wake primaries by another mapping, none twice by the same one; at most 128 in all controllers together.
    #[serde(default)]
    pub watches: Vec<Watch>,
    /// Which changes of a primary wake it, apart from its coming, going and the begin of its deletion; empty means every change.
    #[serde(default)]
    pub predicates: BTreeSet<Predicate>,
    /// Finalizers that it sets on primaries.
    #[serde(default)]
    pub finalizers: BTreeSet<String>,
    /// Each object is looked at again after this time; 36,000 unless told, as in controller-runtime.
    #[serde(default = "default_resync")]
    pub resync_seconds: u32,
}

fn default_resync() -> u32 {
    36_000
}

/// A watched kind and whom it wakes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Watch {
    /// The kind.
    pub resource: Resource,
    /// From its objects to keys of primaries in the same namespace.
    pub map: Mapping,
}

/// From a watched object to primaries in the same namespace. A key or path has at most 512 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Mapping {
    /// The label of this key holds the primary's name.
    Label(String),
    /// The annotation of this key holds the primary's name.
    Annotation(String),
    /// The field of the primary at this path, such as `spec.secretName`, holds the watched object's name. Of one primary at most 1,000 names are followed, of all 200,000.
    Reference(String),
}

/// A part of an object whose change wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Predicate {
    /// `metadata.generation`, so the spec.
    Generation,
    /// `metadata.labels`.
    Labels,
    /// `metadata.annotations`.
    Annotations,
}

/// What a plugin asks for; the administrator's grants decide.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Requests {
    /// Kubernetes requests.
    pub rules: Vec<Rule>,
    /// gRPC channels.
    pub channels: Vec<ChannelRequest>,
    /// Databases.
    pub databases: Vec<DatabaseRequest>,
    /// Publishing events.
    pub events: bool,
    /// Settings that it reads.
    pub settings: Vec<SettingRequest>,
}

/// A gRPC channel that a plugin would call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChannelRequest {
    /// How the plugin calls it.
    pub name: ChannelName,
    /// What for.
    #[serde(default)]
    pub description: String,
    /// An endpoint such as `http://127.0.0.1:6742`, to begin with.
    #[serde(default)]
    pub example: String,
}

/// A PostgreSQL database that a plugin would use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatabaseRequest {
    /// How the plugin calls it.
    pub name: DatabaseName,
    /// What for.
    #[serde(default)]
    pub description: String,
    /// How the host's environment variables that lead there begin, such as `PSQL`, to begin with.
    #[serde(default)]
    pub example: String,
}

/// A setting that a plugin reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SettingRequest {
    /// How the plugin calls it.
    pub name: String,
    /// What for.
    #[serde(default)]
    pub description: String,
    /// What the plugin takes without it.
    #[serde(default)]
    pub default: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versioned {
    manifest_version: Option<serde_json::Value>,
}

/// Bytes of an error about the JSON, which repeats what a stranger wrote.
const ERROR: usize = 500;

/// Straight into the type: by way of a map, a key that is given twice would silently be its last.
fn typed<T: DeserializeOwned>(json: &str) -> Result<T, ManifestError> {
    serde_json::from_str(json).map_err(|e| ManifestError::Json(printable(&e.to_string(), ERROR)))
}

impl Manifest {
    /// Parses and checks a manifest.
    pub fn parse(json: &str) -> Result<Self, ManifestError> {
        if json.len() > MAX_MANIFEST {
            return Err(ManifestError::TooLarge(json.len()));
        }
        // The version first: the rest of a later document may have any form.
        let Versioned { manifest_version } = typed(json)?;
        match manifest_version.as_ref().and_then(serde_json::Value::as_u64) {
            Some(version) if version != u64::from(MANIFEST_VERSION) => return Err(ManifestError::Version(version)),
            _ => {}
        }
        let manifest: Self = typed(json)?;
        manifest.check().map_err(ManifestError::Content)?;
        Ok(manifest)
    }

    /// The document again.
    ///
    /// # Errors
    /// Never in practice: what was parsed can be written, unless it is larger than what is read.
    pub fn render(&self) -> Result<String, ManifestError> {
        let json = serde_json::to_string(self).map_err(|e| ManifestError::Json(e.to_string()))?;
        if json.len() > MAX_MANIFEST { Err(ManifestError::TooLarge(json.len())) } else { Ok(json) }
    }

    /// The first field in which two manifests differ.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        [
            ("manifestVersion", self.manifest_version == other.manifest_version),
            ("name", self.name == other.name),
            ("version", self.version == other.version),
            ("description", self.description == other.description),
            ("controllers", self.controllers == other.controllers),
            ("crds", self.crds == other.crds),
            ("requests", self.requests == other.requests),
        ]
        .into_iter()
        .find_map(|(field, same)| (!same).then_some(field))
    }

    /// The controller of this name.
    pub fn controller(&self, name: &ControllerName) -> Option<&Controller> {
        self.controllers.iter().find(|c| c.name == *name)
    }

    fn check(&self) -> Result<(), String> {
        if self.controllers.is_empty() {
            return Err("it names no controller; add one to `controllers`".into());
        }
        // How many there are comes first: what is checked of each takes time.
        at_most(MAX_CONTROLLERS, self.controllers.len(), "controllers")?;
        at_most(MAX_WATCHES, self.controllers.iter().map(|controller| controller.watches.len()).sum(), "watches")?;
        if self.version.is_empty() || self.version.len() > 64 || self.version.chars().any(char::is_control) {
            return Err("`version` is not a text of 1 to 64 printable characters".into());
        }
        let mut names = BTreeSet::new();
        let mut primaries = BTreeSet::new();
        for controller in &self.controllers {
            if !names.insert(&controller.name) {
                return Err(format!("two controllers are called {}", controller.name));
            }
            if !primaries.insert(&controller.primary) {
                return Err(format!("two controllers are for {}", controller.primary));
            }
            controller.check()?;
        }
        self.check_kinds()
    }

    /// Versions can be made up without end, and those that exist show the same objects.
    fn check_kinds(&self) -> Result<(), String> {
        let mut kinds = BTreeMap::new();
        for kind in self.controllers.iter().flat_map(Controller::named) {
            let known: &Resource = kinds.entry((kind.group(), kind.resource())).or_insert(kind);
            if known != kind {
                return Err(format!("it names both {known} and {kind}, which are the same objects; name one version"));
            }
        }
        at_most(MAX_KINDS, kinds.len(), "kinds")
    }
}

fn at_most(most: usize, count: usize, what: &str) -> Result<(), String> {
    if count <= most {
        return Ok(());
    }
    Err(format!("it has {count} {what}, and a plugin may have {most}; make several plugins of it"))
}

impl Controller {
    /// Each kind that it needs an informer for, its primary first, none twice.
    pub fn kinds(&self) -> Vec<&Resource> {
        let mut kinds = Vec::new();
        for kind in self.named() {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// The same, as often as it names them.
    fn named(&self) -> impl Iterator<Item = &Resource> {
        std::iter::once(&self.primary).chain(&self.owns).chain(self.watches.iter().map(|watch| &watch.resource))
    }

    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if self.resync_seconds < 10 {
            return Err(format!("resyncSeconds of controller {name} is below 10"));
        }
        let mut owned = BTreeSet::new();
        if let Some(kind) = self.owns.iter().find(|kind| !owned.insert(*kind)) {
            return Err(format!("controller {name} owns {kind} twice; leave one out"));
        }
        let mut watched = BTreeSet::new();
        for watch in &self.watches {
            let (Mapping::Label(text) | Mapping::Annotation(text) | Mapping::Reference(text)) = &watch.map;
            let what = || format!("the mapping of {} in controller {name}", watch.resource);
            if text.is_empty() || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
                return Err(format!("{} is empty or has white space", what()));
            }
            if text.len() > MAX_MAPPING {
                return Err(format!("{} has {} bytes; at most {MAX_MAPPING} are taken", what(), text.len()));
            }
            if !watched.insert(watch) {
                return Err(format!("controller {name} watches {} twice by the same mapping", watch.resource));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(change: impl FnOnce(&mut serde_json::Value)) -> String {
        let mut value = serde_json::json!({
            "manifestVersion": 1, "name": "demo", "version": "1.0",
            "controllers": [{"name": "a", "for": {"group": "x.example.com", "version": "v1", "resource": "things"}}]
        });
        change(&mut value);
        value.to_string()
    }

    fn watched(by: &str, text: &str) -> serde_json::Value {
        serde_json::json!([{"resource": {"group": "", "version": "v1", "resource": "pods"}, "map": {by: text}}])
    }

    /// A kind of its own.
    fn kind(plural: &str, n: usize) -> serde_json::Value {
        serde_json::json!({"group": "y.example.com", "version": "v1", "resource": format!("{plural}{n}")})
    }

    fn many(count: usize, each: impl Fn(usize) -> serde_json::Value) -> serde_json::Value {
        (0..count).map(each).collect()
    }

    /// Of one kind, by as many labels.
    fn mappings(count: usize) -> serde_json::Value {
        many(count, |n| watched("label", &format!("l{n}"))[0].clone())
    }

    #[test]
    fn a_small_manifest_is_enough() {
        let manifest = Manifest::parse(&json(|_| {})).unwrap();
        assert_eq!(manifest.controllers[0].resync_seconds, 36_000);
        assert_eq!(manifest.controllers[0].primary.to_string(), "things.v1.x.example.com");
    }

    #[test]
    fn manifests_that_differ_say_where() {
        type Change = fn(&mut serde_json::Value);
        let whole = Manifest::parse(&json(|_| {})).unwrap();
        assert_eq!(whole.difference(&Manifest::parse(&whole.render().unwrap()).unwrap()), None);
        let cases: [(Change, &str); 6] = [
            (|m| m["name"] = "other".into(), "name"),
            (|m| m["version"] = "2".into(), "version"),
            (|m| m["description"] = "x".into(), "description"),
            (|m| m["controllers"][0]["resyncSeconds"] = 60.into(), "controllers"),
            (|m| m["crds"] = serde_json::json!([{}]), "crds"),
            (|m| m["requests"] = serde_json::json!({"events": true}), "requests"),
        ];
        for (change, field) in cases {
            assert_eq!(whole.difference(&Manifest::parse(&json(change)).unwrap()), Some(field));
        }
    }

    #[test]
    fn an_error_is_short_and_one_line_whatever_it_repeats() {
        for field in ["x".repeat(100_000), "\u{1b}[2J\n\u{202e}".to_owned()] {
            let error = Manifest::parse(&json(|m| m[&*field] = 1.into())).unwrap_err().to_string();
            assert!(error.contains("unknown field"), "{error}");
            assert!(error.len() < 600 && !error.contains(['\u{1b}', '\n', '\u{202e}']), "{error:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        type Change = fn(&mut serde_json::Value);
        let cases: [(Change, &str); 24] = [
            (|m| m["manifestVersion"] = 2.into(), "version 2"),
            (|m| m["version"] = "".into(), "1 to 64 printable"),
            (|m| m["version"] = "1".repeat(65).into(), "1 to 64 printable"),
            (|m| m["version"] = "1\n".into(), "1 to 64 printable"),
            (|m| m["controllers"][0]["resyncSeconds"] = 9.into(), "resyncSeconds of controller a is below 10"),
            (|m| m["controllers"][0]["watches"] = watched("label", ""), "the mapping of pods.v1 in controller a"),
            (|m| m["controllers"][0]["watches"] = watched("label", "a b"), "is empty or has white space"),
            (|m| m["controllers"][0]["watches"] = watched("annotation", "a\u{1b}"), "is empty or has white space"),
            (|m| m["controllers"][0]["watches"] = watched("reference", "\t"), "is empty or has white space"),
            (|m| m["controllers"] = serde_json::json!([m["controllers"][0], m["controllers"][0]]), "called a"),
            (
                |m| {
                    let mut other = m["controllers"][0].clone();
                    other["name"] = "b".into();
                    m["controllers"] = serde_json::json!([m["controllers"][0], other]);
                },
                "two controllers are for things.v1.x.example.com",
            ),
            (|m| m["controllers"] = serde_json::json!([]), "no controller"),
            (
                |m| {
                    m["controllers"] =
                        many(33, |n| serde_json::json!({"name": format!("c{n}"), "for": kind("things", n)}));
                },
                "it has 33 controllers, and a plugin may have 32; make several plugins of it",
            ),
            (
                |m| {
                    m["controllers"][0]["watches"] = mappings(129);
                },
                "it has 129 watches, and a plugin may have 128",
            ),
            // As many as a manifest has room for, and duplicates of one at that.
            (
                |m| {
                    m["controllers"][0]["watches"] = many(20_000, |_| watched("label", "a")[0].clone());
                },
                "it has 20000 watches, and a plugin may have 128",
            ),
            (
                |m| m["controllers"][0]["watches"] = many(2, |_| watched("label", "a")[0].clone()),
                "controller a watches pods.v1 twice by the same mapping",
            ),
            (
                |m| m["controllers"][0]["watches"] = watched("reference", &"a".repeat(513)),
                "the mapping of pods.v1 in controller a has 513 bytes; at most 512 are taken",
            ),
            (
                |m| m["controllers"][0]["owns"] = many(2, |_| kind("parts", 0)),
                "controller a owns parts0.v1.y.example.com twice",
            ),
            (
                |m| m["controllers"][0]["owns"] = many(20_000, |n| kind("parts", n)),
                "it has 20001 kinds, and a plugin may have 64",
            ),
            (
                |m| {
                    m["controllers"][0]["owns"] = many(2, |n| {
                        let mut kind = kind("parts", 0);
                        kind["version"] = format!("v{}", n + 1).into();
                        kind
                    });
                },
                "it names both parts0.v1.y.example.com and parts0.v2.y.example.com, which are the same objects; name one version",
            ),
            (|m| m["colour"] = 1.into(), "unknown field `colour`"),
            (|m| m["controllers"][0]["for"]["resource"] = "Things".into(), "\"Things\" is no resource"),
            (|m| m["controllers"][0]["for"]["group"] = "a/b".into(), "\"a/b\" is no API group"),
            (|m| m["name"] = "../x".into(), "plugin name"),
        ];
        for (change, expected) in cases {
            let error = Manifest::parse(&json(change)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} lacks {expected}");
        }
    }

    #[test]
    fn what_is_just_within_its_limit_is_taken() {
        let manifest = Manifest::parse(&json(|m| {
            m["version"] = "1".repeat(64).into();
            m["controllers"][0]["resyncSeconds"] = 10.into();
            m["controllers"][0]["watches"] = watched("label", "a");
        }));
        let mut manifest = manifest.unwrap();
        let room = MAX_MANIFEST - manifest.render().unwrap().len();
        manifest.description = "x".repeat(room);
        let largest = manifest.render().unwrap();
        assert_eq!(Manifest::parse(&largest), Ok(manifest.clone()));
        manifest.description.push('x');
        assert_eq!(manifest.render(), Err(ManifestError::TooLarge(MAX_MANIFEST + 1)));
        assert_eq!(Manifest::parse(&(largest + " ")), Err(ManifestError::TooLarge(MAX_MANIFEST + 1)));
        assert_eq!(MAX_MANIFEST, 2_097_152);
    }

    #[test]
    fn as_many_as_a_plugin_may_have_are_taken() {
        let manifest = Manifest::parse(&json(|m| {
            let mut controllers = many(32, |n| serde_json::json!({"name": format!("c{n}"), "for": kind("things", n)}));
            // Another controller may watch and own the same.
            controllers[0]["owns"] = many(31, |n| kind("parts", n));
            controllers[1]["owns"] = controllers[0]["owns"].clone();
            controllers[0]["watches"] = mappings(64);
            controllers[1]["watches"] = mappings(63);
            controllers[2]["watches"] = watched("reference", &"a".repeat(512));
            m["controllers"] = controllers;
        }))
        .unwrap();
        assert_eq!(manifest.controllers[0].kinds().len(), 33);
        assert_eq!((MAX_CONTROLLERS, MAX_KINDS, MAX_WATCHES, MAX_MAPPING), (32, 64, 128, 512));
    }

    #[test]
    fn a_controller_is_found_by_its_name_and_names_each_kind_once() {
        let manifest = Manifest::parse(&json(|m| {
            let resource = |resource: &str| serde_json::json!({"group": "", "version": "v1", "resource": resource});
            let mut other = m["controllers"][0].clone();
            other["name"] = "b".into();
            other["for"]["resource"] = "others".into();
            other["owns"] = serde_json::json!([resource("pods"), resource("services")]);
            other["watches"] = watched("label", "a");
            m["controllers"] = serde_json::json!([m["controllers"][0], other]);
        }))
        .unwrap();
        let controller = |name: &str| manifest.controller(&ControllerName::parse(name).unwrap());
        let kinds: Vec<_> = controller("b").unwrap().kinds().into_iter().map(ToString::to_string).collect();
        assert_eq!(kinds, ["others.v1.x.example.com", "pods.v1", "services.v1"]);
        assert_eq!(controller("a").unwrap().kinds().len(), 1);
        assert!(controller("c").is_none());
    }
}
