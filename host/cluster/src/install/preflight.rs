//! What an installation would change, found out before anything is written: the rights that the person lacks, CRDs that cannot take the place of those that are
//! there, and of each object how it would be, by a dry run of the API server.

use kube::Client;
use serde_json::Value;

use super::{How, InstallError, Outcome, PLUGIN_LABEL, planned::Planned};
use crate::review::Question;

/// What would become of one object.
#[derive(Debug, Clone)]
pub struct Change {
    /// Kind in lower case, with its group where it has one, and name.
    pub what: String,
    /// As it is, if it is there.
    pub before: Option<Value>,
    /// As it would be.
    pub after: Value,
}

impl Change {
    /// What would become of it.
    pub fn outcome(&self) -> Outcome {
        match &self.before {
            None => Outcome::Created,
            Some(before) if essence(before) == essence(&self.after) => Outcome::Unchanged,
            Some(_) => Outcome::Configured,
        }
    }
}

/// Of an object what a person wrote or would write: without what the API server keeps for itself.
pub fn essence(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for own in ["managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink"] {
            metadata.remove(own);
        }
    }
    object
}

/// Finds out what would become of the objects; writes nothing.
pub(super) async fn preflight(
    client: &Client,
    plugin: &str,
    objects: &[Planned],
    how: How<'_>,
) -> Result<Vec<Change>, InstallError> {
    let there = check_rights(client, objects).await?;
    for (object, there) in objects.iter().zip(&there) {
        if let Some(there) = there.as_ref().filter(|_| object.is_crd()) {
            check_crd(plugin, object, there)?;
        }
    }
    let mut changes: Vec<Change> = Vec::new();
    for (object, before) in objects.iter().zip(there) {
        let after = match object.send(client, How { dry_run: true, ..how }, &object.beside(before.as_ref())?).await {
            Ok(after) => after,
            // The API server tries nothing out in a namespace, or on a role, that is itself only tried out.
            Err(InstallError::Refused { fault, .. })
                if fault.is_not_found() && changes.iter().any(|change| object.stands_on(change)) =>
            {
                object.object().clone()
            }
            Err(error) => return Err(error),
        };
        changes.push(Change { what: object.what.clone(), before, after });
    }
    Ok(changes)
}

/// Reads the objects, and refuses with all the rights that are missing at once.
async fn check_rights(client: &Client, objects: &[Planned]) -> Result<Vec<Option<Value>>, InstallError> {
    let rights = Rights::of(client).await?;
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    for object in objects {
        if !rights.allow("get", object).await? {
            missing.push(object.deed("get"));
            continue;
        }
        let before = object.read(client).await?;
        let verbs: &[&str] = if before.is_none() { &["create", "patch"] } else { &["patch"] };
        for verb in verbs {
            if !rights.allow(verb, object).await? {
                missing.push(object.deed(verb));
            }
        }
        there.push(before);
    }
    if missing.is_empty() { Ok(there) } else { Err(InstallError::Lacks(missing)) }
}

/// What the person may do.
pub(super) struct Rights<'a> {
    client: &'a Client,
    everything: bool,
}

impl<'a> Rights<'a> {
    pub(super) async fn of(client: &'a Client) -> Result<Self, InstallError> {
        let everything = Question { group: "*", resource: "*", verb: "*", ..Question::default() };
        Ok(Self { client, everything: ask(client, &everything).await? })
    }

    pub(super) async fn allow(&self, verb: &str, object: &Planned) -> Result<bool, InstallError> {
        if self.everything {
            return Ok(true);
        }
        ask(self.client, &object.question(verb)).await
    }
}

async fn ask(client: &Client, question: &Question<'_>) -> Result<bool, InstallError> {
    let refused = |fault| InstallError::Refused { what: "selfsubjectaccessreview.authorization.k8s.io".into(), fault };
    question.ask(client, None).await.map_err(refused)
}

/// Whether the new CRD can take the place of the one that is there.
fn check_crd(plugin: &str, object: &Planned, there: &Value) -> Result<(), InstallError> {
    let other = there.pointer("/metadata/labels").and_then(|labels| labels.get(PLUGIN_LABEL)).and_then(Value::as_str);
    if let Some(other) = other.filter(|other| *other != plugin) {
        return Err(InstallError::Taken { crd: object.what.clone(), other: other.to_owned() });
    }
    let versions = object.object().pointer("/spec/versions").and_then(Value::as_array);
    let names: Vec<_> = versions.into_iter().flatten().filter_map(|v| v.get("name")?.as_str()).collect();
    let stored = there.pointer("/status/storedVersions").and_then(Value::as_array);
    match stored.into_iter().flatten().filter_map(Value::as_str).find(|version| !names.contains(version)) {
        None => Ok(()),
        Some(version) => Err(InstallError::StoredVersion {
            crd: object.what.clone(),
            name: object.name().to_owned(),
            version: version.to_owned(),
            versions: names.join(", "),
        }),
    }
}
