//! Runs a Memcached Deployment for each `Memcached`.
//!
//! **Only the fields that [`plan`] names are written**, by server-side apply: what others inject stays, what the API server fills in is no difference, and
//! replicas that somebody scaled go back. A Deployment of the same name that the object does not control is never touched.
//!
//! The feature `next` makes version 0.2.0, which differs visibly: it annotates the Deployment with its version and says so in `Available`.

mod api;
mod plan;
#[cfg(test)]
mod tests;

pub use api::{Memcached, MemcachedSpec, MemcachedStatus};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use operetta_sdk::prelude::*;
use plan::{DeploymentView, IMAGE, available_message, deployment, progress};
use std::time::Duration;

/// What holds a `Memcached` until its end was announced.
pub const FINALIZER: &str = "cache.example.com/finalizer";
/// The setting that names another image.
const IMAGE_SETTING: &str = "image";
/// When to look again at a Deployment that was just made, or at a name that somebody else holds, should no event wake us.
const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// The plugin's version.
const VERSION: &str = if cfg!(feature = "next") { "0.2.0" } else { env!("CARGO_PKG_VERSION") };

/// The plugin.
pub fn plugin() -> Plugin {
    operetta_sdk::plugin!()
        .version(VERSION)
        .crd::<Memcached>()
        .controller(
            Controller::new("memcached", reconcile)
                .owns::<Deployment>()
                .finalizer(FINALIZER)
                .status()
                .wakes_on([Predicate::Generation]),
        )
        .allow(Rule::of::<Memcached>(Verb::ALL))
        .allow(Rule::of_sub::<Memcached>("status", [Verb::Get, Verb::Patch, Verb::Update]))
        .allow(Rule::of::<Deployment>(Verb::ALL))
        .allow(Rule::of::<Pod>(Verb::READ))
        .events()
        .setting(IMAGE_SETTING, "the image to run", Some(IMAGE))
}

operetta_sdk::export!(plugin);

async fn reconcile(ctx: &Context, object: Memcached) -> Result<Outcome, Failure> {
    let observed = object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let mut status = Status { ctx, conditions: Conditions::of(ctx, &object, observed) };
    if status.conditions.is_empty() && object.metadata.deletion_timestamp.is_none() {
        status.conditions.set("Available", State::Unknown, "Reconciling", "Starting reconciliation");
        status.write().await?;
    }
    finalizer(&ctx.api::<Memcached>(), FINALIZER, object, async |event| match event {
        Event::Apply(object) => run(ctx, &object, &mut status).await,
        Event::Cleanup(object) => end(ctx, &object, &mut status).await,
    })
    .await
}

/// Makes the Deployment as the object describes it.
async fn run(ctx: &Context, object: &Memcached, status: &mut Status<'_>) -> Result<Outcome, Failure> {
    let name = &ctx.request().key.name;
    let deployments = ctx.api::<Deployment>().view::<DeploymentView>();
    let found = deployments.get_opt(name).await?;
    if found.as_ref().is_some_and(|found| !controls(object, &found.metadata)) {
        let message = format!(
            "Deployment {name} belongs to somebody else; delete it or give the custom resource ({name}) another name"
        );
        status.conditions.set("Available", State::False, "Reconciling", message);
        status.write().await?;
        return Ok(Outcome::RequeueAfter(LOOK_AGAIN));
    }
    let image = ctx.setting(IMAGE_SETTING).unwrap_or_else(|| IMAGE.to_owned());
    let applied = match deployments.apply(name, &deployment(object, &image)).await {
        Ok(applied) => applied,
        Err(error) => return Err(report(object, found.as_ref(), &error, status).await),
    };
    if found.is_none() {
        // Its events wake us; this is for the case that none comes.
        return Ok(Outcome::RequeueAfter(LOOK_AGAIN));
    }
    status.conditions.set("Available", State::True, "Reconciling", available_message(name, object.spec.size));
    let (state, reason, message) = progress(&applied);
    status.conditions.set("Progressing", state, reason, message);
    status.write().await?;
    Ok(Outcome::AwaitChange)
}

/// Announces the end. The Deployment goes with its owner.
async fn end(ctx: &Context, object: &Memcached, status: &mut Status<'_>) -> Result<Outcome, Failure> {
    let key = &ctx.request().key;
    let name = &key.name;
    // A repetition says nothing twice.
    if !status.conditions.is("Degraded", State::True, "Finalizing") {
        let message = format!("Performing finalizer operations for the custom resource: {name}");
        status.conditions.set("Degraded", State::Unknown, "Finalizing", message);
        status.write().await?;
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let message = format!("Custom Resource {name} is being deleted from the namespace {namespace}");
        ctx.events().warning("Deleting", &message).await;
        let message = format!("Finalizer operations for custom resource {name} were accomplished successfully");
        status.conditions.set("Degraded", State::True, "Finalizing", message);
        status.write().await?;
    }
    Ok(Outcome::AwaitChange)
}

/// Puts an apply that failed into the status.
async fn report(object: &Memcached, found: Option<&DeploymentView>, error: &Error, status: &mut Status<'_>) -> Failure {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let size = found.and_then(|found| found.spec.replicas);
    let (reason, message) = match size {
        None => ("Reconciling", format!("Failed to create Deployment for the custom resource ({name}): {error}")),
        Some(size) if size != object.spec.size => {
            ("Resizing", format!("Failed to update the size for the custom resource ({name}): {error}"))
        }
        Some(_) => ("Reconciling", format!("Failed to update Deployment for the custom resource ({name}): {error}")),
    };
    status.conditions.set("Available", State::False, reason, message.as_str());
    if let Err(error) = status.write().await {
        // The cause of it all matters more.
        tracing::warn!(error = error.message(), "status not written");
    }
    if matches!(error, Error::Invalid(_)) { Failure::terminal(message) } else { Failure::retryable(message) }
}

/// The status on its way to the object.
struct Status<'a> {
    ctx: &'a Context,
    conditions: Conditions,
}

impl Status<'_> {
    async fn write(&self) -> Result<(), Failure> {
        let status = MemcachedStatus { conditions: self.conditions.to_vec() };
        self.ctx.api::<Memcached>().apply_status(&self.ctx.request().key.name, &status).await?;
        Ok(())
    }
}
