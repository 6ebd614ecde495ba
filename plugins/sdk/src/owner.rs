//! Owner references: whose object is this?

use crate::kind::Kind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// What an object carries that `owner` controls. None where the owner has not been to the API server.
pub fn controller_reference<K: Kind>(owner: &K) -> Option<OwnerReference> {
    let meta = owner.meta();
    Some(OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: meta.name.clone()?,
        uid: meta.uid.clone()?,
        controller: Some(true),
        block_owner_deletion: Some(true),
    })
}

/// Whether `owner` controls the object of this metadata; told by uid, so that an earlier owner of the same name is somebody else.
pub fn controls<K: kube::Resource>(owner: &K, object: &ObjectMeta) -> bool {
    let Some(uid) = owner.meta().uid.as_deref() else { return false };
    object.owner_references.iter().flatten().any(|reference| reference.controller == Some(true) && reference.uid == uid)
}
