//! What a write says of an object, as far as [`super::Bounds`] ask: its name, its owners, its finalizers, its annotations that are the host's affair, and whom a binding binds.
//!
//! Most writes say nothing of these, which a glance at the text shows. The others are read into types that take each field once, so that what is judged is what the API server reads.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor},
};
use serde_json::Value;

use crate::{annotation, name::ServiceAccount};

/// The text of a write.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// An object, or those fields of it that change.
    Object(&'a str),
    /// Steps of RFC 6902.
    Steps(&'a str),
}

/// An owner reference.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Owner {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

/// Whom a binding binds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Subject {
    kind: String,
    name: String,
    namespace: Option<String>,
}

/// What a write says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub name: Option<String>,
    pub owners: Vec<Owner>,
    pub finalizers: Vec<String>,
    /// Those whose key begins with [`annotation::PREFIX`]; of one that is taken away the value is null, as it is of one whose value is not seen.
    pub annotations: Vec<(String, Value)>,
    pub subjects: Vec<Subject>,
}

/// What a text with one of the host's annotations holds: their prefix without the slash, which JSON may write as `\/`.
const ANNOTATIONS: &str = "operetta.dev";

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    metadata: Option<Metadata>,
    subjects: Option<Vec<Subject>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: Option<String>,
    owner_references: Option<Vec<Owner>>,
    finalizers: Option<Vec<String>>,
    annotations: Option<Annotations>,
}

/// All of them, also where a key comes twice, so that none hides behind another.
#[derive(Default)]
struct Annotations(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Pairs)
    }
}

struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = Annotations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Annotations(pairs))
    }
}

#[derive(Deserialize)]
struct Step {
    op: String,
    path: String,
    #[serde(default)]
    from: String,
    #[serde(default)]
    value: Value,
}

/// Whether the text can hold a word: as it is, or in the escapes of JSON, which no encoder uses for letters.
fn may_hold(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word)) || text.contains("\\u")
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

impl<'a> Change<'a> {
    /// All of it.
    pub fn text(self) -> &'a str {
        let (Self::Object(text) | Self::Steps(text)) = self;
        text
    }

    /// Whether it certainly says nothing of owners, finalizers and the host's annotations.
    pub fn says_nothing(self) -> bool {
        // A step may copy what it does not name.
        matches!(self, Self::Object(text) if !may_hold(text, &["ownerReferences", "finalizers", ANNOTATIONS]))
    }

    /// Whether it may be about a Secret that is a service account's token.
    pub fn mentions_token(self) -> bool {
        let text = self.text();
        may_hold(text, &["service-account"])
            && serde_json::from_str(text).map_or(true, |value: Value| holds(&value, "kubernetes.io/service-account"))
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is no such text.
    pub fn read(self) -> Result<Written, String> {
        match self {
            Self::Object(text) => {
                let object = serde_json::from_str(text).map_err(|error| error.to_string())?;
                Ok(Written::default().object(object))
            }
            Self::Steps(text) => {
                let steps: Vec<Step> = serde_json::from_str(text).map_err(|error| error.to_string())?;
                steps.into_iter().try_fold(Written::default(), Written::step)
            }
        }
    }
}

/// The parts of a JSON pointer.
fn pointer(path: &str) -> Vec<String> {
    path.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect()
}

/// Whether some text in it has the word, as itself or within a JSON pointer.
fn holds(value: &Value, word: &str) -> bool {
    let is = |text: &str| text.contains(word) || text.replace("~1", "/").contains(word);
    match value {
        Value::String(text) => is(text),
        Value::Array(items) => items.iter().any(|item| holds(item, word)),
        Value::Object(fields) => fields.iter().any(|(name, value)| is(name) || holds(value, word)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

impl Written {
    fn object(mut self, object: Object) -> Self {
        self.subjects.extend(object.subjects.into_iter().flatten());
        self.metadata(object.metadata.unwrap_or_default())
    }

    fn metadata(mut self, metadata: Metadata) -> Self {
        self.name = metadata.name.or(self.name);
        self.owners.extend(metadata.owner_references.into_iter().flatten());
        self.finalizers.extend(metadata.finalizers.into_iter().flatten());
        self.annotate(metadata.annotations.unwrap_or_default());
        self
    }

    fn annotate(&mut self, Annotations(all): Annotations) {
        self.annotations.extend(all.into_iter().filter(|(key, _)| key.starts_with(annotation::PREFIX)));
    }

    /// What a step takes away.
    fn removal(&mut self, path: &str) {
        if let [metadata, annotations, key, ..] = pointer(path).as_slice()
            && metadata == "metadata"
            && annotations == "annotations"
        {
            self.annotate(Annotations(vec![(key.clone(), Value::Null)]));
        }
    }

    /// Of what cannot be seen, an owner, a finalizer, an annotation or a subject is kept that is nobody's, and so is allowed to nobody.
    fn step(mut self, step: Step) -> Result<Self, String> {
        let path = pointer(&step.path);
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        let value = match step.op.as_str() {
            "test" => return Ok(self),
            "remove" => {
                self.removal(&step.path);
                return Ok(self);
            }
            "move" => {
                self.removal(&step.from);
                None
            }
            "copy" => None,
            _ => Some(step.value),
        };
        match (path.as_slice(), value) {
            ([], Some(value)) => return Ok(self.object(typed(value)?)),
            (["metadata"], Some(value)) => return Ok(self.metadata(typed(value)?)),
            (["metadata", "ownerReferences"], Some(value)) => self.owners.extend(typed::<Vec<_>>(value)?),
            (["metadata", "ownerReferences", _], Some(value)) => self.owners.push(typed(value)?),
            (["metadata", "ownerReferences", ..], _) => self.owners.push(Owner::default()),
            (["metadata", "finalizers"], Some(value)) => self.finalizers.extend(typed::<Vec<_>>(value)?),
            (["metadata", "finalizers", _], Some(value)) => self.finalizers.push(typed(value)?),
            (["metadata", "finalizers", ..], _) => self.finalizers.push(String::new()),
            (["metadata", "annotations"], Some(value)) => {
                self.annotate(typed::<Option<Annotations>>(value)?.unwrap_or_default());
            }
            (["metadata", "annotations"], None) => self.annotations.push((String::new(), Value::Null)),
            (["metadata", "annotations", key, ..], value) => {
                self.annotate(Annotations(vec![((*key).to_owned(), value.unwrap_or_default())]));
            }
            (["subjects"], Some(value)) => self.subjects.extend(typed::<Vec<_>>(value)?),
            (["subjects", _], Some(value)) => self.subjects.push(typed(value)?),
            (["subjects", ..], _) => self.subjects.push(Subject::default()),
            ([] | ["metadata"], None) => {
                self.owners.push(Owner::default());
                self.finalizers.push(String::new());
                self.annotations.push((String::new(), Value::Null));
                self.subjects.push(Subject::default());
            }
            _ => {}
        }
        Ok(self)
    }
}

impl Owner {
    /// Whether both lead to one object; the API server may serve it in another version.
    pub fn is(&self, other: &Self) -> bool {
        let group =
            |owner: &Self| owner.api_version.split_once('/').map_or_else(String::new, |(group, _)| group.to_owned());
        let named = |owner: &Self| [&owner.kind, &owner.name, &owner.uid].map(Clone::clone);
        !self.uid.is_empty() && group(self) == group(other) && named(self) == named(other)
    }

    /// Its kind, for people.
    pub fn kind(&self) -> &str {
        if self.kind.is_empty() { "that is not named" } else { &self.kind }
    }
}

impl Subject {
    /// Whether the account is bound by it: itself, or by a group that the API server puts it into.
    pub fn includes(&self, account: &ServiceAccount) -> bool {
        let Self { kind, name, namespace } = self;
        match kind.as_str() {
            "ServiceAccount" => {
                name == account.name.as_str() && namespace.as_deref().is_none_or(|n| n == account.namespace.as_str())
            }
            "User" => *name == account.user(),
            "Group" => {
                let groups = ["system:serviceaccounts", "system:authenticated"];
                groups.contains(&name.as_str()) || *name == format!("system:serviceaccounts:{}", account.namespace)
            }
            // Not seen, or nothing that a binding knows.
            _ => true,
        }
    }
}
