//! Keeps one pod alive for each `ImmortalContainer`.
//!
//! **A start is counted by the pod that it made.** Each pod carries the number of its own start, and the status follows the pod; so it does not matter where a
//! reconcile is cut off. A pod is made by `create`, never by an apply, so that a number never moves to a pod that was there; and a pod that ended is removed only after
//! the status knows its number.
//!
//! A pod of the right name that the object does not control is never touched.

mod api;
mod plan;
#[cfg(test)]
mod tests;

pub use api::{ImmortalContainer, ImmortalContainerSpec, ImmortalContainerStatus};

use k8s_openapi::api::core::v1::Pod;
use operetta_sdk::{Api, DeleteParams, JsonPatch, prelude::*};
use plan::{CONTAINER, PodView, Step, plan, pod, pod_name};
use std::time::Duration;

/// How soon a name that somebody else holds is looked at again: their pod is not watched on our behalf.
const NAME_TAKEN_AGAIN: Duration = Duration::from_secs(10);

/// The plugin.
pub fn plugin() -> Plugin {
    operetta_sdk::plugin!()
        .crd::<ImmortalContainer>()
        .controller(
            Controller::new("immortal-container", reconcile).owns::<Pod>().status().wakes_on([Predicate::Generation]),
        )
        .allow(Rule::of::<Pod>([Verb::Create, Verb::Patch, Verb::Delete]))
        .events()
}

operetta_sdk::export!(plugin);

async fn reconcile(ctx: &Context, object: ImmortalContainer) -> Result<Outcome, Failure> {
    if object.metadata.deletion_timestamp.is_some() {
        // What is left to do is the garbage collector's.
        return Ok(Outcome::AwaitChange);
    }
    let pods = ctx.api::<Pod>().view::<PodView>();
    let name = pod_name(&ctx.request().key.name);
    let found = pods.get_opt(&name).await?;
    let (step, starts) = plan(&object, found.as_ref());
    let uid = found.as_ref().and_then(|pod| pod.metadata.uid.as_deref()).unwrap_or_default();
    let status = Status { ctx, object: &object, starts };
    match step {
        Step::Keep { running: true } => {
            status.write((State::True, "Running"), &format!("pod {name} runs")).await?;
            Ok(Outcome::AwaitChange)
        }
        Step::Keep { running: false } => {
            status.write((State::False, "Pending"), &format!("pod {name} does not run yet")).await?;
            Ok(Outcome::AwaitChange)
        }
        Step::SetImage(position) => {
            let image = object.spec.image.as_str();
            set_image(&pods, &name, uid, position, image).await?;
            status.write((State::False, "Pending"), &format!("pod {name} changes to image {image}")).await?;
            Ok(Outcome::AwaitChange)
        }
        Step::Wait => {
            status.write((State::False, "Terminating"), &format!("pod {name} is about to go")).await?;
            Ok(Outcome::AwaitChange)
        }
        Step::Remove(phase) => {
            status.write((State::False, "Terminated"), &format!("pod {name} ended: {phase}")).await?;
            match pods.delete(&name, DeleteParams::default().uid(uid)).await {
                // Its deletion wakes us for the next start.
                Ok(()) | Err(Error::NotFound(_)) => Ok(Outcome::AwaitChange),
                Err(error) => Err(error.into()),
            }
        }
        Step::NameTaken => {
            let message = format!("pod {name} belongs to somebody else; delete it or rename this object");
            if status.write((State::False, "NameTaken"), &message).await? {
                ctx.events().warning("NameTaken", &message).await;
            }
            Ok(Outcome::RequeueAfter(NAME_TAKEN_AGAIN))
        }
        Step::Create(start) => match pods.create(&pod(&object, start)).await {
            Ok(_) => {
                let status = Status { starts: start, ..status };
                status.write((State::False, "Pending"), &format!("pod {name} does not run yet")).await?;
                ctx.events().normal("Started", &format!("made pod {name}, start {start}")).await;
                Ok(Outcome::AwaitChange)
            }
            Err(error @ (Error::Invalid(_) | Error::Forbidden(_) | Error::Denied(_))) => {
                let message = format!("pod {name} cannot be made: {error}");
                if status.write((State::False, error.reason()), &message).await? {
                    ctx.events().warning(error.reason(), &message).await;
                }
                // A quota or a grant may change without the object; what is invalid stays so.
                Err(if matches!(error, Error::Invalid(_)) {
                    Failure::terminal(message)
                } else {
                    Failure::retryable(message)
                })
            }
            Err(error) => Err(error.into()),
        },
    }
}

/// Changes the image in place: the same pod, so no start. The tests keep the patch from any other pod or container.
async fn set_image(pods: &Api<PodView>, pod: &str, uid: &str, position: usize, image: &str) -> Result<(), Error> {
    let container = format!("/spec/containers/{position}");
    let patch = JsonPatch::default()
        .test("/metadata/uid", uid)
        .test(&format!("{container}/name"), CONTAINER)
        .replace(&format!("{container}/image"), image);
    pods.json_patch(pod, patch).await.map(drop)
}

/// The status on its way to the object.
struct Status<'a> {
    ctx: &'a Context,
    object: &'a ImmortalContainer,
    starts: u64,
}

impl Status<'_> {
    /// Writes it, and says whether its condition changed.
    async fn write(&self, (state, reason): (State, &str), message: &str) -> Result<bool, Failure> {
        let name = &self.ctx.request().key.name;
        let observed = self.object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let mut conditions = Conditions::of(self.ctx, self.object, observed);
        let news = conditions.set("Ready", state, reason, message);
        let status = ImmortalContainerStatus {
            current_pod: (self.starts > 0).then(|| pod_name(name)),
            start_times: self.starts,
            conditions: conditions.to_vec(),
        };
        self.ctx.api::<ImmortalContainer>().apply_status(name, &status).await?;
        Ok(news)
    }
}
