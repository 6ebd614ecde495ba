//! Holds an object back until what belongs to it outside the cluster is cleaned up.

use crate::{
    api::{Api, JsonPatch},
    context::Outcome,
    error::{Error, Failure},
    kind::Kind,
};
use serde_json::Value;

/// What to do with an object that has a finalizer.
#[derive(Clone, Debug)]
pub enum Event<K> {
    /// Make it so. The finalizer is on the object; this is the object as the API server has it.
    Apply(K),
    /// Undo everything; success lets the object go. May be called again after a success whose finalizer could not be removed.
    Cleanup(K),
}

/// Runs `reconcile` under a finalizer, in the shape of `kube::runtime::finalizer`.
///
/// # Guarantees
/// - `Event::Apply` is only called while the finalizer is on the object, `Event::Cleanup` only while the object is being deleted.
/// - The finalizer is removed only after a `Cleanup` that succeeded.
/// - No other finalizer is lost, however many write at once: each write tests what it read, and a test that fails is a retryable failure.
/// - One write for a new object, none for an object that has the finalizer. Unlike kube's, the call that adds the finalizer goes on to
///   `Apply`, so that predicates need not wake anybody for it.
///
/// # Assumptions
/// `name` is declared by [`Controller::finalizer`](crate::Controller::finalizer), and `reconcile` is idempotent.
pub async fn finalizer<K, F>(api: &Api<K>, name: &str, object: K, reconcile: F) -> Result<Outcome, Failure>
where
    K: Kind,
    F: AsyncFnOnce(Event<K>) -> Result<Outcome, Failure>,
{
    let meta = object.meta().clone();
    let object_name = meta.name.unwrap_or_default();
    let finalizers = meta.finalizers.unwrap_or_default();
    let position = finalizers.iter().position(|held| held == name);
    match (position, meta.deletion_timestamp.is_some()) {
        (Some(_), false) => reconcile(Event::Apply(object)).await,
        (None, false) => {
            let patch = JsonPatch::default().test("/metadata/uid", meta.uid.unwrap_or_default());
            let patch = if finalizers.is_empty() {
                patch.test("/metadata/finalizers", Value::Null).add("/metadata/finalizers", vec![name])
            } else {
                patch.test("/metadata/finalizers", finalizers).add("/metadata/finalizers/-", name)
            };
            let object = api.json_patch(&object_name, patch).await?;
            reconcile(Event::Apply(object)).await
        }
        (Some(position), true) => {
            reconcile(Event::Cleanup(object)).await?;
            let path = format!("/metadata/finalizers/{position}");
            match api.json_patch(&object_name, JsonPatch::default().test(&path, name).remove(&path)).await {
                Ok(_) | Err(Error::NotFound(_)) => Ok(Outcome::AwaitChange),
                Err(error) => Err(error.into()),
            }
        }
        (None, true) => Ok(Outcome::AwaitChange),
    }
}
