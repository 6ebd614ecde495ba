//! Mirrors `Pet` objects into an external pet store over gRPC.
//!
//! **The store holds exactly one pet for each object.** The object's uid is the pet's external reference, which the store keeps unique, so a call can be cut from
//! its answer anywhere and be repeated. The identifier in the status is for people: nothing is ever looked up by it.
//!
//! Writes for a new object: one patch for the finalizer, before the first call to the store, and one for the status at the end.

mod api;
mod store;
#[cfg(test)]
mod tests;

pub use api::{Pet, PetSpec, PetStatus, PetType};

use operetta_sdk::prelude::*;
use std::time::Duration;
use store::{PetStore, StoreError};

/// What holds a `Pet` until its pet has left the store.
pub const FINALIZER: &str = "petstore.example.com/finalizer";
/// The gRPC channel that leads to the store.
pub const CHANNEL: &str = "petstore";
/// How often the store is looked at although nothing changed.
const RESYNC: &str = "resync";
/// The store's own limit for one call is this plugin's, too.
const DEADLINE: Duration = Duration::from_secs(5);

/// The plugin.
pub fn plugin() -> Plugin {
    operetta_sdk::plugin!()
        .crd::<Pet>()
        .controller(Controller::new("pet", reconcile).finalizer(FINALIZER).status().wakes_on([Predicate::Generation]))
        .channel(CHANNEL, "the pet store, petstore.v1.PetStore", "http://127.0.0.1:6742")
        .events()
        .setting(RESYNC, "look at the store again after this long, such as 30s, 5m or 1h", Some("5m"))
}

operetta_sdk::export!(plugin);

async fn reconcile(ctx: &Context, pet: Pet) -> Result<Outcome, Failure> {
    let resync = ctx.duration_setting(RESYNC)?;
    let store = PetStore::new(ctx.channel(CHANNEL), DEADLINE);
    finalizer(&ctx.api::<Pet>(), FINALIZER, pet, async |event| match event {
        Event::Apply(pet) => match mirror(&store, &pet).await {
            Ok(id) => {
                say(ctx, &pet, Some(id), (State::True, "Synced"), "the store holds the pet as described").await?;
                Ok(Outcome::RequeueAfter(resync))
            }
            Err(error) => Err(report(ctx, &pet, error).await),
        },
        Event::Cleanup(pet) => match remove(&store, &pet).await {
            Ok(()) => Ok(Outcome::AwaitChange),
            Err(error) => Err(report(ctx, &pet, error).await),
        },
    })
    .await
}

/// Makes the store hold the pet as the object describes it, and returns its identifier there.
async fn mirror(store: &PetStore, pet: &Pet) -> Result<String, StoreError> {
    let desired = store::desired(&pet.spec, uid(pet));
    let mut observed = store.find(uid(pet)).await?;
    if observed.is_none() {
        // The answer holds what is there now: another one than desired, if somebody was faster.
        observed = store.add(desired.clone()).await?;
    }
    let Some(observed) = observed else {
        return Err(StoreError::Broken("it added no pet".to_owned()));
    };
    match store::difference(&observed, desired) {
        None => Ok(observed.id),
        Some(update) => {
            store.update(update).await?;
            Ok(observed.id)
        }
    }
}

/// Makes the store hold no pet of the object.
async fn remove(store: &PetStore, pet: &Pet) -> Result<(), StoreError> {
    match store.find(uid(pet)).await? {
        Some(found) => store.delete(found.id).await,
        None => Ok(()),
    }
}

/// Puts what went wrong into the status, with an event when it is news. The next try is the queue's business.
async fn report(ctx: &Context, pet: &Pet, error: StoreError) -> Failure {
    let message = format!("the pet store failed: {error}");
    let id = pet.status.as_ref().and_then(|status| status.id.clone());
    match say(ctx, pet, id, (State::False, error.reason()), &message).await {
        Ok(true) => ctx.events().warning(error.reason(), &message).await,
        Ok(false) => {}
        // The cause of it all matters more.
        Err(error) => tracing::warn!(error = error.message(), "status not written"),
    }
    Failure::retryable(message)
}

/// Writes the status, and says whether its condition changed.
async fn say(
    ctx: &Context,
    pet: &Pet,
    id: Option<String>,
    (state, reason): (State, &str),
    message: &str,
) -> Result<bool, Failure> {
    let observed = pet.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let mut conditions = Conditions::of(ctx, pet, observed);
    let news = conditions.set("Ready", state, reason, message);
    let status = PetStatus { id, conditions: conditions.to_vec() };
    ctx.api::<Pet>().apply_status(&ctx.request().key.name, &status).await?;
    Ok(news)
}

/// The object's identity over all clusters and times.
fn uid(pet: &Pet) -> &str {
    pet.metadata.uid.as_deref().unwrap_or_default()
}
