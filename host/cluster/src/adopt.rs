//! Fields that an operator of before owns are handed to the plugin that follows it, **with the rights of the person who asks**.
//!
//! Without this, what the new operator sets otherwise is taken over by its first apply, but what it no longer names stays for ever: its old owner is gone and never removes it.
//! What client-go calls `csaupgrade` does the same for `kubectl apply`. Only `metadata.managedFields` is written: no value of any object changes here, so no generation does, and
//! nothing restarts. The plugin's next apply then removes what it does not name.
//!
//! Of a primary only the status changes hands. Its finalizers are set and removed one by one, and an apply that owned them would remove what it does not name.

use std::collections::BTreeMap;

use http::Method;
use kube::Client;
use operetta_core::{
    name::{FieldManager, NameError, Namespace},
    resource::ObjectKey,
};
use serde_json::{Map, Value, json};

use crate::{
    kinds::Kind,
    request::{Fault, Url, send_json},
};

/// How often an object that others write meanwhile is looked at anew.
const ATTEMPTS: usize = 5;
/// Objects of a page of a list.
const PAGE: &str = "500";

/// Which objects, and whose they become.
#[derive(Debug, Clone)]
pub struct Adoption<'a> {
    /// Their kind.
    pub kind: &'a Kind,
    /// Only those that an object of this group and kind controls.
    pub controlled_by: Option<(&'a str, &'a str)>,
    /// The part that the plugin writes; the object itself where there is none.
    pub subresource: Option<&'a str>,
    /// The plugin's controller.
    pub heir: &'a FieldManager,
}

/// An object whose fields change hands, or would.
#[derive(Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Which.
    pub key: ObjectKey,
    /// How many fields.
    pub fields: usize,
}

/// Why an adoption ended.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The API server refuses.
    #[error("cannot {what}")]
    Refused {
        /// What was asked.
        what: String,
        /// Why.
        #[source]
        fault: Fault,
    },
    /// Owned under another version of the API, whose fields may be called otherwise.
    #[error(
        "{what} is owned by {manager} as {theirs}, and the plugin writes it as {ours}; let the operator of before write it once as {ours}, or build the plugin for {theirs}"
    )]
    Version {
        /// The object.
        what: String,
        /// Its owner.
        manager: String,
        /// The API version of its fields.
        theirs: String,
        /// The plugin's.
        ours: String,
    },
    /// Others write all the time.
    #[error("{0} changes all the time; is the operator of before still running? Scale it down first")]
    Busy(String),
    /// A name that cannot be.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// Who else owns how many fields of how many objects, by manager. Plugins are left out.
///
/// # Errors
/// The API server refuses.
pub async fn owners(
    client: &Client,
    adoption: &Adoption<'_>,
    namespace: Option<&Namespace>,
) -> Result<BTreeMap<String, (usize, usize)>, AdoptError> {
    let mut owners = BTreeMap::<String, (usize, usize)>::new();
    for object in adoption.objects(client, namespace).await? {
        let mut of_object = BTreeMap::<String, usize>::new();
        for entry in adoption.entries(&object).filter(|entry| !FieldManager::is_plugin(text(entry, "manager"))) {
            *of_object.entry(text(entry, "manager").to_owned()).or_default() += count(entry.get("fieldsV1"));
        }
        for (manager, fields) in of_object {
            let sums = owners.entry(manager).or_default();
            *sums = (sums.0 + fields, sums.1 + 1);
        }
    }
    Ok(owners)
}

/// Hands over what these managers own, or tells what would be where `write` is false. Again and again to the same end.
///
/// # Errors
/// The API server refuses, or fields are owned under another version of the API. Objects before that one are adopted.
pub async fn adopt(
    client: &Client,
    adoption: &Adoption<'_>,
    namespace: Option<&Namespace>,
    from: &[String],
    write: bool,
) -> Result<Vec<Adopted>, AdoptError> {
    let mut all = Vec::new();
    for object in adoption.objects(client, namespace).await? {
        let metadata = |field: &str| object.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
        let key = ObjectKey::parse(metadata("namespace"), metadata("name").unwrap_or_default())?;
        let Some((_, fields)) = adoption.handed_over(&object, &key, from)? else { continue };
        if write {
            adoption.write(client, object, &key, from).await?;
        }
        all.push(Adopted { key, fields });
    }
    Ok(all)
}

impl Adoption<'_> {
    async fn objects(&self, client: &Client, namespace: Option<&Namespace>) -> Result<Vec<Value>, AdoptError> {
        let refused = |fault| AdoptError::Refused { what: format!("list {}", self.kind.resource), fault };
        let namespace = namespace.filter(|_| self.kind.namespaced);
        let mut objects = Vec::new();
        let mut next = String::new();
        loop {
            let mut url = Url::of(&self.kind.resource, namespace).query("limit", PAGE);
            if !next.is_empty() {
                url = url.query("continue", &next);
            }
            let mut page = send_json(client, url.get().map_err(refused)?).await.map_err(refused)?;
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                objects.extend(items.into_iter().filter(|object| self.is_meant(object)));
            }
            match page.pointer("/metadata/continue").and_then(Value::as_str) {
                Some(more) if !more.is_empty() => more.clone_into(&mut next),
                _ => return Ok(objects),
            }
        }
    }

    fn is_meant(&self, object: &Value) -> bool {
        let Some((group, kind)) = self.controlled_by else { return true };
        let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        owners.into_iter().flatten().any(|owner| {
            let owner_group = text(owner, "apiVersion").split_once('/').map_or("", |(group, _)| group);
            let controls = owner.get("controller").and_then(Value::as_bool) == Some(true);
            controls && owner_group == group && text(owner, "kind") == kind
        })
    }

    /// The entries of managed fields that are about what the plugin writes.
    fn entries<'o>(&self, object: &'o Value) -> impl Iterator<Item = &'o Value> + use<'o, '_> {
        let all = object.pointer("/metadata/managedFields").and_then(Value::as_array);
        let subresource = self.subresource.unwrap_or_default();
        all.into_iter().flatten().filter(move |entry| text(entry, "subresource") == subresource)
    }

    /// The managed fields after the handover, and how many fields change hands; none where there is nothing to hand over.
    fn handed_over(
        &self,
        object: &Value,
        key: &ObjectKey,
        from: &[String],
    ) -> Result<Option<(Vec<Value>, usize)>, AdoptError> {
        let ours = self.kind.resource.api_version();
        let leaves = |entry: &Value| from.iter().any(|manager| manager == text(entry, "manager"));
        let own = |entry: &Value| text(entry, "manager") == self.heir.as_str() && text(entry, "operation") == "Apply";
        let mut fields = Map::new();
        let mut time = Value::Null;
        for entry in self.entries(object) {
            if !own(entry) && !leaves(entry) {
                continue;
            }
            if !own(entry) && text(entry, "apiVersion") != ours {
                return Err(AdoptError::Version {
                    what: format!("{} {key}", self.kind.resource),
                    manager: text(entry, "manager").to_owned(),
                    theirs: text(entry, "apiVersion").to_owned(),
                    ours,
                });
            }
            if let Some(Value::Object(more)) = entry.get("fieldsV1") {
                unite(&mut fields, more);
            }
            if let Some(at) = entry.get("time") {
                time = at.clone();
            }
        }
        let leaving: Vec<_> = self.entries(object).filter(|entry| leaves(entry)).collect();
        if leaving.is_empty() {
            return Ok(None);
        }
        let count = leaving.iter().map(|entry| count(entry.get("fieldsV1"))).sum();
        let mut heir = json!({
            "manager": self.heir.as_str(), "operation": "Apply", "apiVersion": ours, "fieldsType": "FieldsV1", "fieldsV1": fields,
        });
        if let Some(heir) = heir.as_object_mut() {
            heir.extend(self.subresource.map(|subresource| ("subresource".to_owned(), subresource.into())));
            heir.extend(Some(("time".to_owned(), time)).filter(|(_, time)| !time.is_null()));
        }
        let subresource = self.subresource.unwrap_or_default();
        let stays = |entry: &&Value| text(entry, "subresource") != subresource || !(leaves(entry) || own(entry));
        let all = object.pointer("/metadata/managedFields").and_then(Value::as_array);
        let kept = all.into_iter().flatten().filter(stays).cloned();
        Ok(Some((kept.chain([heir]).collect(), count)))
    }

    async fn write(&self, client: &Client, object: Value, key: &ObjectKey, from: &[String]) -> Result<(), AdoptError> {
        let what = format!("{} {key}", self.kind.resource);
        let refused = |fault| AdoptError::Refused { what: format!("adopt {what}"), fault };
        let url = Url::of(&self.kind.resource, key.namespace.as_ref()).object(&key.name);
        let mut object = object;
        for _ in 0..ATTEMPTS {
            let Some((entries, _)) = self.handed_over(&object, key, from)? else { return Ok(()) };
            let version = object.pointer("/metadata/resourceVersion");
            // The version that was read stands among what is written, so that nobody's change is lost.
            let patch = json!([
                {"op": "replace", "path": "/metadata/managedFields", "value": entries},
                {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            ]);
            let body = patch.to_string().into_bytes();
            let request = url.request(Method::PATCH, Some("application/json-patch+json"), body).map_err(refused)?;
            match send_json(client, request).await {
                Ok(_) => return Ok(()),
                Err(Fault::Answer { code: 409, .. }) => {}
                Err(fault) if fault.is_not_found() => return Ok(()),
                Err(fault) => return Err(refused(fault)),
            }
            object = match send_json(client, url.get().map_err(refused)?).await {
                Ok(object) => object,
                Err(fault) if fault.is_not_found() => return Ok(()),
                Err(fault) => return Err(refused(fault)),
            };
        }
        Err(AdoptError::Busy(what))
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// How many fields are owned: those that hold no others.
fn count(fields: Option<&Value>) -> usize {
    match fields {
        Some(Value::Object(fields)) if !fields.is_empty() => {
            fields.iter().filter(|(name, _)| *name != ".").map(|(_, child)| count(Some(child))).sum()
        }
        Some(Value::Object(_)) => 1,
        _ => 0,
    }
}

/// Adds the fields of another set. Of a field that one set owns as a whole and the other in parts, `.` says the whole.
fn unite(fields: &mut Map<String, Value>, more: &Map<String, Value>) {
    for (name, child) in more {
        let Some(own) = fields.get_mut(name) else {
            fields.insert(name.clone(), child.clone());
            continue;
        };
        let (Value::Object(own), Value::Object(child)) = (own, child) else { continue };
        if own.is_empty() != child.is_empty() {
            own.insert(".".to_owned(), json!({}));
        }
        unite(own, child);
    }
}

#[cfg(test)]
mod tests;
