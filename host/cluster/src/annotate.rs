//! Sets or removes one annotation of one object, **with the rights of the person who asks**.

use http::Method;
use kube::Client;
use operetta_core::resource::ObjectKey;
use serde_json::{Value, json};

use crate::{
    kinds::Kind,
    request::{Fault, Url, send_json},
};

/// Under which name these annotations are owned.
pub const MANAGER: &str = "operetta-cli";

/// Sets the annotation, or removes it where there is no value; answers the object as it is then.
///
/// # Errors
/// The object is not there, or the API server refuses.
pub async fn annotate(
    client: &Client,
    kind: &Kind,
    key: &ObjectKey,
    annotation: &str,
    value: Option<&str>,
) -> Result<Value, Fault> {
    let url = Url::of(&kind.resource, key.namespace.as_ref()).object(&key.name).query("fieldManager", MANAGER);
    let patch = json!({"metadata": {"annotations": {annotation: value}}});
    let request = url.request(Method::PATCH, Some("application/merge-patch+json"), patch.to_string().into_bytes())?;
    send_json(client, request).await
}
