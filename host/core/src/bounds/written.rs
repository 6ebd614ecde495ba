//! What a write says of an object, as far as [`super::Bounds`] ask: its name, its owners, its finalizers, its annotations that are the host's affair, and whom a binding binds.
//!
//! - **A glance** finds the fields by their names, wherever they stand, and reads nothing else: what a text says at most. Most writes say nothing of them, or only what is allowed.
//! - **The others are read** into types that take each field once, so that what is judged is what the API server reads.

use std::{borrow::Cow, fmt, sync::LazyLock};

use memchr::memmem::Finder;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use super::{
    RBAC,
    named::{Named, PRIVATE},
};
use crate::{
    annotation,
    cache::{self, group_of},
    grant::{Access, same},
    name::ServiceAccount,
};

/// The text of a write.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// Fields of an object; those that are there and not named stay.
    Fields(&'a str),
    /// The same, and null takes away what is there (RFC 7386).
    Merge(&'a str),
    /// An object that takes the place of the one that is there.
    Whole(&'a str),
    /// Steps of RFC 6902.
    Steps(&'a str),
}

/// What of a write is looked at besides its metadata: other kinds may call anything so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matter {
    /// Nothing.
    Metadata,
    /// Of a binding, whom it binds.
    Subjects,
    /// Of a Namespace, the finalizers of its spec.
    SpecFinalizers,
}

impl Matter {
    pub fn of(access: &Access<'_>) -> Self {
        match (access.resource.group(), access.resource.resource()) {
            (RBAC, "rolebindings" | "clusterrolebindings") => Self::Subjects,
            ("", "namespaces") => Self::SpecFinalizers,
            _ => Self::Metadata,
        }
    }
}

/// An owner reference.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Owner<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
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
pub struct Written<'a> {
    pub name: Option<String>,
    /// What the API server chooses a name by, where there is none.
    pub generated_from: Option<String>,
    /// Which version of the object it was made from.
    pub version: Option<Cow<'a, str>>,
    pub owners: Vec<Owner<'a>>,
    pub finalizers: Vec<String>,
    /// Those whose key begins with [`annotation::PREFIX`]; of one that is taken away the value is null, as it is of one whose value is not seen.
    pub annotations: Vec<(String, Value)>,
    /// All other annotations go: all but those from this place on.
    pub swept: Option<usize>,
    /// None where they are not the matter.
    pub subjects: Vec<Subject>,
    /// None where they are not the matter.
    pub spec_finalizers: Vec<String>,
}

static NULL: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("null"));

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object<'a> {
    #[serde(borrow)]
    metadata: Given<Metadata<'a>>,
    #[serde(borrow)]
    subjects: Option<&'a RawValue>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
}

/// The spec of a Namespace.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    finalizers: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata<'a> {
    name: Option<String>,
    generate_name: Option<String>,
    #[serde(borrow)]
    resource_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    owner_references: Option<Vec<Owner<'a>>>,
    finalizers: Option<Vec<String>>,
    annotations: Given<Annotations>,
}

/// A field, where null is not the same as nothing.
#[derive(Default)]
enum Given<T> {
    #[default]
    Nothing,
    Null,
    Value(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(|value| value.map_or(Self::Null, Self::Value))
    }
}

impl<T: Default> Given<T> {
    fn or_default(self) -> T {
        match self {
            Self::Value(value) => value,
            Self::Nothing | Self::Null => T::default(),
        }
    }
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
struct Step<'a> {
    #[serde(borrow)]
    op: Cow<'a, str>,
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow, default)]
    from: Cow<'a, str>,
    /// None where it is null, too.
    #[serde(borrow, default)]
    value: Option<&'a RawValue>,
}

/// Whether a key of it, or of what is in it, is private.
struct Keys(bool);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Walk)
    }
}

struct Walk;

impl<'de> Visitor<'de> for Walk {
    type Value = Keys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Keys, E> {
        Ok(Keys(false))
    }
    fn visit_bool<E>(self, _: bool) -> Result<Keys, E> {
        Ok(Keys(false))
    }
    fn visit_i64<E>(self, _: i64) -> Result<Keys, E> {
        Ok(Keys(false))
    }
    fn visit_u64<E>(self, _: u64) -> Result<Keys, E> {
        Ok(Keys(false))
    }
    fn visit_f64<E>(self, _: f64) -> Result<Keys, E> {
        Ok(Keys(false))
    }
    fn visit_str<E>(self, _: &str) -> Result<Keys, E> {
        Ok(Keys(false))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Keys, A::Error> {
        let mut private = false;
        while let Some(Keys(within)) = items.next_element()? {
            private |= within;
        }
        Ok(Keys(private))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Keys, A::Error> {
        let mut private = false;
        while let Some((key, Keys(within))) = fields.next_entry::<String, Keys>()? {
            private |= within || key.starts_with(PRIVATE);
        }
        Ok(Keys(private))
    }
}

fn typed<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

impl<'a> Change<'a> {
    /// All of it.
    pub fn text(self) -> &'a str {
        let (Self::Fields(text) | Self::Merge(text) | Self::Whole(text) | Self::Steps(text)) = self;
        text
    }

    /// Whether some object in it has a key by which serde_json hides a text of JSON in a string. Almost none has, which what is named shows.
    ///
    /// # Errors
    /// It is no JSON, or too deep.
    pub(super) fn has_private_key(self, named: &Named) -> Result<bool, String> {
        if !(named.private || named.escapes) {
            return Ok(false);
        }
        typed::<Keys>(self.text()).map(|Keys(private)| private)
    }

    /// What it says at most of owners, finalizers and annotations: besides those of the object itself, those of what the object holds within. None where only reading tells.
    pub(super) fn glance(self, named: &Named<'a>) -> Option<Written<'a>> {
        let swept = match self {
            // A step may copy what it does not name.
            Self::Steps(_) => return None,
            // It may take all annotations away at once.
            Self::Merge(text) if NULL.find(text.as_bytes()).is_some() => return None,
            Self::Merge(_) | Self::Fields(_) => None,
            Self::Whole(_) => Some(0),
        };
        if named.escapes || named.told {
            return None;
        }
        Some(Written {
            version: swept.and_then(|_| named.sole::<Option<&str>>(named.version).flatten().map(Cow::Borrowed)),
            owners: named.sole::<Option<_>>(named.owners)?.unwrap_or_default(),
            finalizers: named.sole::<Option<_>>(named.finalizers)?.unwrap_or_default(),
            swept,
            ..Written::default()
        })
    }

    /// Whether it may be about a Secret that is a service account's token.
    pub(super) fn mentions_token(self, named: &Named) -> bool {
        let text = self.text();
        (text.contains("service-account") || named.escapes)
            && serde_json::from_str(text).map_or(true, |value: Value| holds(&value, "kubernetes.io/service-account"))
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is no such text.
    pub fn read(self, matter: Matter) -> Result<Written<'a>, String> {
        let mut written = Written::default();
        match self {
            Self::Fields(text) => written.object(typed(text)?, matter)?,
            Self::Merge(text) => {
                let object: Object = typed(text)?;
                if matches!(&object.metadata, Given::Null | Given::Value(Metadata { annotations: Given::Null, .. })) {
                    written.sweep();
                }
                written.object(object, matter)?;
            }
            Self::Whole(text) => {
                written.sweep();
                written.object(typed(text)?, matter)?;
            }
            Self::Steps(text) => {
                for step in typed::<Vec<Step>>(text)? {
                    written.step(&step, matter)?;
                }
            }
        }
        Ok(written)
    }
}

/// The parts of a JSON pointer.
fn pointer(path: &str) -> Vec<Cow<'_, str>> {
    let unescaped = |part: &str| part.replace("~1", "/").replace("~0", "~");
    let part = |part| if str::contains(part, '~') { Cow::Owned(unescaped(part)) } else { Cow::Borrowed(part) };
    path.split('/').skip(1).map(part).collect()
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

impl<'a> Written<'a> {
    fn object(&mut self, object: Object<'a>, matter: Matter) -> Result<(), String> {
        match (matter, object.subjects, object.spec) {
            (Matter::Subjects, Some(subjects), _) => self.subjects.extend(typed::<Vec<_>>(subjects.get())?),
            (Matter::SpecFinalizers, _, Some(spec)) => self.spec(spec.get())?,
            _ => {}
        }
        self.metadata(object.metadata.or_default());
        Ok(())
    }

    fn spec(&mut self, text: &str) -> Result<(), String> {
        let spec: Option<Spec> = typed(text)?;
        self.spec_finalizers.extend(spec.unwrap_or_default().finalizers.into_iter().flatten());
        Ok(())
    }

    fn metadata(&mut self, metadata: Metadata<'a>) {
        self.name = metadata.name.or(self.name.take());
        self.generated_from = metadata.generate_name.or(self.generated_from.take());
        self.version = metadata.resource_version.or(self.version.take());
        self.owners.extend(metadata.owner_references.into_iter().flatten());
        self.finalizers.extend(metadata.finalizers.into_iter().flatten());
        self.annotate(metadata.annotations.or_default());
    }

    fn annotate(&mut self, Annotations(all): Annotations) {
        self.annotations.extend(all.into_iter().filter(|(key, _)| key.starts_with(annotation::PREFIX)));
    }

    /// All annotations are taken away, or exchanged for those that come next.
    fn sweep(&mut self) {
        self.swept = Some(self.annotations.len());
    }

    /// What a step takes away.
    fn removal(&mut self, path: &str) {
        match pointer(path).iter().map(AsRef::as_ref).collect::<Vec<_>>().as_slice() {
            [] | ["metadata"] | ["metadata", "annotations"] => self.sweep(),
            ["metadata", "annotations", key, ..] => {
                self.annotate(Annotations(vec![((*key).to_owned(), Value::Null)]));
            }
            _ => {}
        }
    }

    /// Of what cannot be seen, an owner, a finalizer, an annotation or a subject is kept that is nobody's, and so is allowed to nobody.
    fn step(&mut self, step: &Step<'a>, matter: Matter) -> Result<(), String> {
        let path = pointer(&step.path);
        let path: Vec<_> = path.iter().map(AsRef::as_ref).collect();
        let value = match &*step.op {
            "test" => return Ok(()),
            "remove" => {
                self.removal(&step.path);
                return Ok(());
            }
            "move" => {
                self.removal(&step.from);
                None
            }
            "copy" => None,
            _ => Some(step.value.map_or("null", RawValue::get)),
        };
        match (path.as_slice(), value) {
            ([], Some(value)) => {
                self.sweep();
                self.object(typed(value)?, matter)?;
            }
            (["metadata"], Some(value)) => {
                self.sweep();
                self.metadata(typed(value)?);
            }
            (["metadata", "ownerReferences"], Some(value)) => self.owners.extend(typed::<Vec<_>>(value)?),
            (["metadata", "ownerReferences", _], Some(value)) => self.owners.push(typed(value)?),
            (["metadata", "ownerReferences", ..], _) => self.owners.push(Owner::default()),
            (["metadata", "finalizers"], Some(value)) => self.finalizers.extend(typed::<Vec<_>>(value)?),
            (["metadata", "finalizers", _], Some(value)) => self.finalizers.push(typed(value)?),
            (["metadata", "finalizers", ..], _) => self.finalizers.push(String::new()),
            (["metadata", "annotations"], Some(value)) => {
                self.sweep();
                self.annotate(typed::<Option<Annotations>>(value)?.unwrap_or_default());
            }
            (["metadata", "annotations"], None) => self.annotations.push((String::new(), Value::Null)),
            (["metadata", "annotations", key, ..], value) => {
                let value = value.map_or(Ok(Value::Null), typed)?;
                self.annotate(Annotations(vec![((*key).to_owned(), value)]));
            }
            ([] | ["metadata"], None) => {
                self.owners.push(Owner::default());
                self.finalizers.push(String::new());
                self.annotations.push((String::new(), Value::Null));
            }
            _ => {}
        }
        match matter {
            Matter::Metadata => Ok(()),
            Matter::Subjects => self.step_on_subjects(&path, value),
            Matter::SpecFinalizers => self.step_on_spec(&path, value),
        }
    }

    fn step_on_subjects(&mut self, path: &[&str], value: Option<&str>) -> Result<(), String> {
        match (path, value) {
            (["subjects"], Some(value)) => self.subjects.extend(typed::<Option<Vec<_>>>(value)?.into_iter().flatten()),
            (["subjects", _], Some(value)) => self.subjects.push(typed(value)?),
            (["subjects", ..], _) | ([], None) => self.subjects.push(Subject::default()),
            _ => {}
        }
        Ok(())
    }

    fn step_on_spec(&mut self, path: &[&str], value: Option<&str>) -> Result<(), String> {
        let finalizers = &mut self.spec_finalizers;
        match (path, value) {
            (["spec"], Some(value)) => self.spec(value)?,
            (["spec", "finalizers"], Some(value)) => {
                finalizers.extend(typed::<Option<Vec<_>>>(value)?.into_iter().flatten());
            }
            (["spec", "finalizers", _], Some(value)) => finalizers.push(typed(value)?),
            (["spec", "finalizers", ..], _) | (["spec"] | [], None) => finalizers.push(String::new()),
            _ => {}
        }
        Ok(())
    }
}

impl Owner<'_> {
    /// Whether it leads to this one; the API server may serve that in another version.
    pub fn is(&self, there: &cache::Owner) -> bool {
        !self.uid.is_empty()
            && self.uid == there.uid
            && self.name == there.name
            && self.kind == there.kind
            && same(group_of(&self.api_version), &there.group)
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
        // The API server takes an empty one for none, which is that of the binding.
        let namespace = namespace.as_deref().filter(|namespace| !namespace.is_empty());
        match kind.as_str() {
            "ServiceAccount" => {
                name == account.name.as_str() && namespace.is_none_or(|n| n == account.namespace.as_str())
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
