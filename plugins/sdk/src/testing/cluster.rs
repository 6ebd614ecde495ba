//! An API server in memory: good enough that a plugin's logic cannot tell the difference, and no better.
//!
//! It knows uids, resource versions, generations, the status subresource, finalizers, owner references with garbage collection (at once, in the background's
//! order), optimistic locking, selectors and server-side apply. It has no schemas, admission, defaults
//! or paging, and one field manager: an apply takes over what others wrote, as the host forces it where no other plugin is concerned.

use super::ownership::{Owned, leaves, remove, set};
use crate::{
    error::Error,
    host::{ObjectKey, Options, Patch, Resource},
};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Kind and key, whatever the version.
type Id = (String, String, ObjectKey);

struct Stored {
    object: Value,
    /// What the plugin applied, by subresource.
    owned: BTreeMap<String, Owned>,
}

/// The objects.
#[derive(Default)]
pub(super) struct Cluster {
    objects: BTreeMap<Id, Stored>,
    version: u64,
    uids: u64,
}

impl Cluster {
    pub(super) fn get(&self, resource: &Resource, key: &ObjectKey) -> Result<Value, Error> {
        self.objects.get(&id(resource, key)).map(|stored| stored.object.clone()).ok_or_else(|| missing(resource, key))
    }

    pub(super) fn list(&self, resource: &Resource, options: &Options) -> Result<Vec<Value>, Error> {
        let option = |name: &str| options.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let namespace = option("namespace");
        let mut found = Vec::new();
        for ((group, plural, key), stored) in &self.objects {
            if (group, plural) != (&resource.group, &resource.resource)
                || namespace.is_some_and(|namespace| key.namespace.as_deref() != Some(namespace))
            {
                continue;
            }
            let labels = &stored.object["metadata"]["labels"];
            let by_label = selects(option("label-selector"), |label| labels.get(label).and_then(Value::as_str))?;
            let by_field = selects(option("field-selector"), |field| {
                field.split('.').try_fold(&stored.object, |value, step| value.get(step)).and_then(Value::as_str)
            })?;
            if by_label && by_field {
                found.push(stored.object.clone());
            }
        }
        Ok(found)
    }

    pub(super) fn create(
        &mut self,
        resource: &Resource,
        namespace: Option<&str>,
        mut object: Value,
        now: &str,
    ) -> Result<Value, Error> {
        let Some(metadata) = object.as_object_mut().map(|object| object.entry("metadata").or_insert_with(|| json!({})))
        else {
            return Err(Error::Invalid("an object must be a JSON object".to_owned()));
        };
        let Some(name) = metadata["name"].as_str().map(str::to_owned) else {
            return Err(Error::Invalid("metadata.name is missing".to_owned()));
        };
        self.uids += 1;
        self.version += 1;
        metadata["uid"] = json!(format!("uid-{}", self.uids));
        metadata["generation"] = json!(1);
        metadata["creationTimestamp"] = json!(now);
        metadata["resourceVersion"] = json!(self.version.to_string());
        if let Some(namespace) = namespace {
            metadata["namespace"] = json!(namespace);
        }
        if let Some(object) = object.as_object_mut() {
            object.remove("status");
        }
        let key = ObjectKey { namespace: namespace.map(str::to_owned), name };
        if self.objects.contains_key(&id(resource, &key)) {
            return Err(Error::AlreadyExists(format!("{resource} {key}")));
        }
        self.objects.insert(id(resource, &key), Stored { object: object.clone(), owned: BTreeMap::new() });
        Ok(object)
    }

    /// The object after the change, and whether the request left the host: an apply that changes nothing does not.
    pub(super) fn patch(
        &mut self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        patch: &Patch,
        now: &str,
    ) -> Result<(Value, bool), Error> {
        match patch {
            Patch::Apply(text) => self.apply(resource, key, subresource, &parse(text)?, now),
            Patch::Merge(text) => {
                let mut next = self.get(resource, key)?;
                json_patch::merge(&mut next, &parse(text)?);
                Ok((self.update(resource, key, subresource, next)?, true))
            }
            Patch::Json(text) => {
                let mut next = self.get(resource, key)?;
                let Value::Array(mut operations) = parse(text)? else {
                    return Err(Error::Invalid("a JSON patch is a list".to_owned()));
                };
                // The API server takes an absent value for null in a test; the library does not.
                operations.retain(|operation| {
                    let absent = operation["path"].as_str().is_some_and(|path| next.pointer(path).is_none());
                    !(operation["op"] == "test" && operation["value"].is_null() && absent)
                });
                let invalid = |error: String| Error::Invalid(format!("{resource} {key}: {error}"));
                let operations: json_patch::Patch =
                    serde_json::from_value(Value::Array(operations)).map_err(|error| invalid(error.to_string()))?;
                json_patch::patch(&mut next, &operations).map_err(|error| invalid(error.to_string()))?;
                Ok((self.update(resource, key, subresource, next)?, true))
            }
        }
    }

    fn apply(
        &mut self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        applied: &Value,
        now: &str,
    ) -> Result<(Value, bool), Error> {
        if applied["apiVersion"].is_null() || applied["kind"].is_null() {
            return Err(Error::Invalid("an applied object must carry apiVersion and kind".to_owned()));
        }
        let mut created = false;
        if !self.objects.contains_key(&id(resource, key)) {
            if subresource.is_some() {
                return Err(missing(resource, key));
            }
            let bare =
                json!({"apiVersion": applied["apiVersion"], "kind": applied["kind"], "metadata": {"name": key.name}});
            self.create(resource, key.namespace.as_deref(), bare, now)?;
            created = true;
        }
        let wanted = leaves(applied);
        let slot = subresource.unwrap_or_default().to_owned();
        let stored = self.objects.get(&id(resource, key)).ok_or_else(|| missing(resource, key))?;
        for field in ["resourceVersion", "uid"] {
            let claimed = &applied["metadata"][field];
            if !claimed.is_null() && *claimed != stored.object["metadata"][field] {
                return Err(Error::Conflict(format!("{resource} {key}: {field} is out of date")));
            }
        }
        let before = stored.owned.get(&slot).cloned().unwrap_or_default();
        let mut next = stored.object.clone();
        let dropped: Vec<_> = before.iter().filter(|path| !wanted.contains_key(*path)).collect();
        // Back to front, so that the key of a list's item goes after the rest of it.
        for path in dropped.iter().rev() {
            remove(&mut next, path);
        }
        for (path, leaf) in &wanted {
            set(&mut next, path, leaf.clone());
        }
        let owned: Owned = wanted.into_keys().collect();
        if !created && next == stored.object && owned == before {
            return Ok((next, false));
        }
        let answer = self.update(resource, key, subresource, next)?;
        if let Some(stored) = self.objects.get_mut(&id(resource, key)) {
            stored.owned.insert(slot, owned);
            if created {
                stored.object["metadata"]["generation"] = json!(1);
            }
        }
        Ok((answer, true))
    }

    /// Takes over a whole object, or the named subresource of it.
    pub(super) fn update(
        &mut self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        mut next: Value,
    ) -> Result<Value, Error> {
        let stored = self.objects.get_mut(&id(resource, key)).ok_or_else(|| missing(resource, key))?;
        for field in ["resourceVersion", "uid"] {
            let claimed = &next["metadata"][field];
            if !claimed.is_null() && *claimed != stored.object["metadata"][field] {
                return Err(Error::Conflict(format!("{resource} {key}: {field} is out of date")));
            }
        }
        let old = &stored.object;
        if let Some(subresource) = subresource {
            let mut whole = old.clone();
            whole[subresource] = next[subresource].take();
            next = whole;
        } else {
            next["status"] = old["status"].clone();
            for field in ["uid", "generation", "creationTimestamp", "deletionTimestamp"] {
                next["metadata"][field] = old["metadata"][field].clone();
            }
            if rest(&next) != rest(old) {
                next["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or_default() + 1);
            }
        }
        prune(&mut next);
        if next == *old {
            return Ok(next);
        }
        self.version += 1;
        next["metadata"]["resourceVersion"] = json!(self.version.to_string());
        stored.object = next.clone();
        self.let_go(resource, key);
        Ok(next)
    }

    pub(super) fn delete(
        &mut self,
        resource: &Resource,
        key: &ObjectKey,
        options: &Options,
        now: &str,
    ) -> Result<(), Error> {
        let stored = self.objects.get_mut(&id(resource, key)).ok_or_else(|| missing(resource, key))?;
        let metadata = &mut stored.object["metadata"];
        for (option, field) in [("uid", "uid"), ("resource-version", "resourceVersion")] {
            let claimed = options.iter().find(|(name, _)| name == option).map(|(_, value)| value.as_str());
            if claimed.is_some_and(|claimed| metadata[field] != claimed) {
                return Err(Error::Conflict(format!("{resource} {key}: {field} is another one")));
            }
        }
        if metadata["deletionTimestamp"].is_null() {
            self.version += 1;
            metadata["deletionTimestamp"] = json!(now);
            metadata["generation"] = json!(metadata["generation"].as_i64().unwrap_or_default() + 1);
            metadata["resourceVersion"] = json!(self.version.to_string());
        }
        self.let_go(resource, key);
        Ok(())
    }

    /// Removes an object that is being deleted and held by nobody, and what it owned.
    fn let_go(&mut self, resource: &Resource, key: &ObjectKey) {
        let Some(stored) = self.objects.get(&id(resource, key)) else { return };
        let metadata = &stored.object["metadata"];
        let held = metadata["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        if metadata["deletionTimestamp"].is_null() || held {
            return;
        }
        let uid = metadata["uid"].clone();
        self.objects.remove(&id(resource, key));
        self.objects.retain(|_, stored| {
            let owners = stored.object["metadata"]["ownerReferences"].as_array();
            !owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == uid))
        });
    }
}

fn id(resource: &Resource, key: &ObjectKey) -> Id {
    (resource.group.clone(), resource.resource.clone(), key.clone())
}

fn missing(resource: &Resource, key: &ObjectKey) -> Error {
    Error::NotFound(format!("{resource} {key}"))
}

fn parse(text: &str) -> Result<Value, Error> {
    serde_json::from_str(text).map_err(|error| Error::Invalid(format!("no JSON: {error}")))
}

/// Everything that counts for the generation.
fn rest(object: &Value) -> Map<String, Value> {
    let mut object = object.as_object().cloned().unwrap_or_default();
    object.remove("metadata");
    object.remove("status");
    object
}

/// Takes out the nulls that indexing left behind, and an empty list of finalizers.
fn prune(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|_, value| !value.is_null() && *value != json!([]));
    }
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
}

fn selects<'a>(selector: Option<&str>, value_of: impl Fn(&str) -> Option<&'a str>) -> Result<bool, Error> {
    for term in selector.unwrap_or_default().split(',').filter(|term| !term.is_empty()) {
        if term.contains('(') {
            return Err(Error::Invalid(format!("the fake knows no set-based selector: {term}")));
        }
        let holds = if let Some((name, value)) = term.split_once("!=") {
            value_of(name.trim()) != Some(value.trim())
        } else if let Some((name, value)) = term.split_once('=') {
            value_of(name.trim()) == Some(value.trim_start_matches('=').trim())
        } else if let Some(name) = term.strip_prefix('!') {
            value_of(name.trim()).is_none()
        } else {
            value_of(term.trim()).is_some()
        };
        if !holds {
            return Ok(false);
        }
    }
    Ok(true)
}
