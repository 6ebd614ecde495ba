//! Claims storage for each `DemoVolume`: a PersistentVolumeClaim of the same name, which it owns.
//!
//! **A claim is made by `create`, never by an apply**, so that one that was there is never taken over; and what is asked of one that we made is only ever more storage.
//! A claim of the right name that the object does not control is never touched.

mod api;
mod plan;
#[cfg(test)]
mod tests;

pub use api::{DemoVolume, DemoVolumeSpec, DemoVolumeStatus};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use operetta_sdk::{Api, JsonPatch, prelude::*};
use plan::{ClaimView, Progress, Step, claim, plan, quantity};
use std::time::Duration;

/// How soon a name that somebody else holds is looked at again: their claim is not watched on our behalf.
const NAME_TAKEN_AGAIN: Duration = Duration::from_secs(10);
/// How soon a refused growth is tried again. What changes the claim wakes us; a storage class that becomes expandable does not.
const REFUSED_AGAIN: Duration = Duration::from_mins(5);

/// The plugin.
pub fn plugin() -> Plugin {
    operetta_sdk::plugin!()
        .crd::<DemoVolume>()
        .controller(
            Controller::new("demo-volume", reconcile)
                .owns::<PersistentVolumeClaim>()
                .status()
                .wakes_on([Predicate::Generation]),
        )
        .allow(Rule::of::<PersistentVolumeClaim>([Verb::Create, Verb::Patch]))
        .events()
}

operetta_sdk::export!(plugin);

async fn reconcile(ctx: &Context, object: DemoVolume) -> Result<Outcome, Failure> {
    if object.metadata.deletion_timestamp.is_some() {
        // What is left to do is the garbage collector's.
        return Ok(Outcome::AwaitChange);
    }
    let claims = ctx.api::<PersistentVolumeClaim>().view::<ClaimView>();
    let name = &ctx.request().key.name;
    let found = claims.get_opt(name).await?;
    let status = Status { ctx, object: &object };
    let size = quantity(&object);
    match plan(&object, found.as_ref()) {
        Step::Create => match claims.create(&claim(&object)).await {
            Ok(_) => {
                ctx.events().normal("Claimed", &format!("made claim {name} for {size}")).await;
                status.write("Pending", &format!("claim {name} has no volume yet")).await?;
                Ok(Outcome::AwaitChange)
            }
            Err(error @ (Error::Invalid(_) | Error::Forbidden(_) | Error::Denied(_))) => {
                let message = format!("claim {name} cannot be made: {error}");
                status.warn(error.reason(), &message).await?;
                // A quota or a grant may change without the object; what is invalid stays so.
                Err(if matches!(error, Error::Invalid(_)) {
                    Failure::terminal(message)
                } else {
                    Failure::retryable(message)
                })
            }
            Err(error) => Err(error.into()),
        },
        Step::NameTaken => {
            let message = format!("claim {name} belongs to somebody else; delete it or rename this object");
            status.warn("NameTaken", &message).await?;
            Ok(Outcome::RequeueAfter(NAME_TAKEN_AGAIN))
        }
        Step::Wait => {
            status.write("Terminating", &format!("claim {name} is about to go; a new one follows")).await?;
            Ok(Outcome::AwaitChange)
        }
        Step::Grow => {
            let uid = found.and_then(|claim| claim.metadata.uid).unwrap_or_default();
            match grow(&claims, name, &uid, &size).await {
                Ok(()) => {
                    ctx.events().normal("Growing", &format!("claim {name} now asks for {size}")).await;
                    status.write("Growing", &format!("claim {name} grows to {size}")).await?;
                    Ok(Outcome::AwaitChange)
                }
                Err(error @ (Error::Invalid(_) | Error::Forbidden(_))) => {
                    let message = format!("the API server does not let claim {name} grow to {size}: {error}");
                    status.warn("ResizeRefused", &message).await?;
                    Ok(Outcome::RequeueAfter(REFUSED_AGAIN))
                }
                Err(error) => Err(error.into()),
            }
        }
        Step::TooLarge(requested) => {
            let message = format!(
                "claim {name} asks for {requested} and cannot shrink to {size}; set a size of {requested} or more"
            );
            status.warn("ShrinkRefused", &message).await?;
            Ok(Outcome::AwaitChange)
        }
        Step::Keep(progress) => {
            match progress {
                Progress::Bound => status.ready(&format!("claim {name} is bound to a volume of {size}")).await?,
                Progress::Growing(said) if said.is_empty() => {
                    status.write("Growing", &format!("claim {name} grows to {size}")).await?;
                }
                Progress::Growing(said) => {
                    status.write("Growing", &format!("claim {name} grows to {size}: {said}")).await?;
                }
                Progress::Unbound(phase) if phase == "Pending" => {
                    status.write("Pending", &format!("claim {name} has no volume yet")).await?;
                }
                Progress::Unbound(phase) => {
                    status.warn(&phase, &format!("claim {name} has no volume: {phase}")).await?;
                }
            }
            Ok(Outcome::AwaitChange)
        }
    }
}

/// Asks for more. Whether the storage can is the API server's to say; the test keeps the patch from any other claim of this name.
async fn grow(claims: &Api<ClaimView>, name: &str, uid: &str, size: &str) -> Result<(), Error> {
    let patch = JsonPatch::default().test("/metadata/uid", uid).replace("/spec/resources/requests/storage", size);
    claims.json_patch(name, patch).await.map(drop)
}

/// The status on its way to the object.
struct Status<'a> {
    ctx: &'a Context,
    object: &'a DemoVolume,
}

impl Status<'_> {
    /// The volume is as desired.
    async fn ready(&self, message: &str) -> Result<(), Failure> {
        self.set(State::True, "Bound", message).await.map(drop)
    }

    /// It is not there yet.
    async fn write(&self, reason: &str, message: &str) -> Result<(), Failure> {
        self.set(State::False, reason, message).await.map(drop)
    }

    /// It will not be there unless a person helps: told by an event as well, once.
    async fn warn(&self, reason: &str, message: &str) -> Result<(), Failure> {
        if self.set(State::False, reason, message).await? {
            self.ctx.events().warning(reason, message).await;
        }
        Ok(())
    }

    /// Writes it, and says whether its condition changed.
    async fn set(&self, state: State, reason: &str, message: &str) -> Result<bool, Failure> {
        let observed = self.object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let mut conditions = Conditions::of(self.ctx, self.object, observed);
        let news = conditions.set("Ready", state, reason, message);
        let status = DemoVolumeStatus { name: self.object.spec.name.clone(), conditions: conditions.to_vec() };
        self.ctx.api::<DemoVolume>().apply_status(&self.ctx.request().key.name, &status).await?;
        Ok(news)
    }
}
