//! The life of one informer: wait for the kind, watch it as a sponsor, look again at everyone's rights.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use kube::{
    Api,
    core::ApiResource,
    runtime::watcher::{self, Event, watcher},
};
use operetta_core::{
    backoff::Backoff,
    cache::KindInfo,
    name::{Actor, FieldSelector},
    port::ApiError,
    resource::Resource,
};
use tracing::{debug, info, warn};

use super::store::Informer;
use crate::{
    access::{Access, LOOK_AGAIN_AFTER, Refusal, Whose},
    discovery::Discovery,
    identity::Identity,
    object::{Entry, Watched},
};

/// Between two attempts of a watch.
const RETRY: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(30), jitter: 0.5 };

/// What informers need of the cluster.
#[derive(Clone)]
pub struct Parts {
    /// Clients of sponsors.
    pub identity: Arc<dyn Identity>,
    /// Presence of kinds.
    pub discovery: Arc<Discovery>,
    /// Rights of subscribers.
    pub access: Arc<Access>,
}

/// Why a watch ended.
enum End {
    /// Its sponsor left or lost the right; another may go on.
    Sponsor,
    /// The API server refuses the sponsor.
    Refused(String),
    /// The API server does not serve the kind (any more).
    Absent,
    /// Something else, to be tried again.
    Failed(String),
}

/// Runs until it is aborted.
pub async fn run(informer: Arc<Informer>, parts: Parts) {
    // The right to be told is looked at even while the API server leaves a list unanswered.
    tokio::join!(watch_kind(&informer, &parts), recheck(&informer, &parts));
}

async fn recheck(informer: &Informer, parts: &Parts) {
    loop {
        tokio::time::sleep(LOOK_AGAIN_AFTER).await;
        for actor in informer.actors() {
            may_still(Whose::AccountAnew, informer, parts, &actor).await;
        }
        if informer.has_room_again() {
            informer.relist.notify_one();
        }
    }
}

/// Answers whether it is still allowed, and ends the account's streams if not. An API server that cannot be asked changes nothing: it cannot tell anything new either.
async fn may_still(whose: Whose, informer: &Informer, parts: &Parts, actor: &Actor) -> bool {
    let watched = &informer.watched;
    match parts.access.check(whose, actor, &watched.resource, &watched.extent).await {
        Err(Refusal::Lacks(why)) => {
            warn!(plugin = %actor.plugin, account = %actor.account, resource = %watched.resource, extent = %watched.extent, why, "the right to watch is lost");
            informer.revoke(actor);
            false
        }
        _ => true,
    }
}

async fn watch_kind(informer: &Informer, parts: &Parts) {
    let resource = &informer.watched.resource;
    let mut presence = parts.discovery.watch(resource);
    let mut failures = 0;
    loop {
        if let Err(error) = parts.discovery.lookup(resource).await {
            failures += 1;
            debug!(%resource, %error, "discovery failed and is tried again");
            pause(failures).await;
            continue;
        }
        informer.set_comparable(parts.discovery.comparable_versions().await);
        let kind = presence.borrow_and_update().clone();
        let kind = kind.filter(|kind| {
            let impossible = !kind.namespaced && informer.watched.extent.namespace.is_some();
            if impossible {
                warn!(%resource, "the kind is cluster-scoped and its plugin is limited to namespaces; nothing is watched");
            }
            !impossible
        });
        let Some(kind) = kind else {
            debug!(%resource, "the cluster does not know the kind; waiting for it");
            informer.absent();
            // The sender lives as long as discovery, which this task holds.
            let _ = presence.changed().await;
            continue;
        };
        tokio::select! {
            _ = presence.changed() => {}
            () = watch_as_sponsors(informer, parts, &kind, &mut failures) => {}
        }
    }
}

/// Ends when the kind seems to be gone.
async fn watch_as_sponsors(informer: &Informer, parts: &Parts, kind: &KindInfo, failures: &mut u32) {
    let resource = &informer.watched.resource;
    let mut refusals = 0;
    loop {
        let actors = informer.actors();
        let Some(sponsor) = actors.get(refusals % actors.len().max(1)).cloned() else {
            informer.changed.notified().await;
            continue;
        };
        debug!(%resource, extent = %informer.watched.extent, sponsor = %sponsor.account, "watching");
        match watch_as(informer, parts, kind, &sponsor, failures).await {
            End::Sponsor => {
                info!(%resource, sponsor = %sponsor.account, "the sponsor of a watch left; another goes on");
            }
            End::Refused(why) => {
                refusals += 1;
                if may_still(Whose::AccountAnew, informer, parts, &sponsor).await
                    && may_still(Whose::Host, informer, parts, &sponsor).await
                {
                    // RBAC says yes and the request is refused all the same: an authorizer that knows more, or RBAC that changes right now.
                    *failures += 1;
                    warn!(%resource, sponsor = %sponsor.account, why, "a watch is refused and tried again");
                    pause(*failures).await;
                }
            }
            End::Absent => {
                *failures += 1;
                if let Err(error) = parts.discovery.refresh(resource).await {
                    debug!(%resource, %error, "discovery failed and is tried again");
                }
                pause(*failures).await;
                return;
            }
            End::Failed(why) => {
                *failures += 1;
                debug!(%resource, why, "a watch failed and is tried again");
                pause(*failures).await;
            }
        }
    }
}

async fn watch_as(informer: &Informer, parts: &Parts, kind: &KindInfo, sponsor: &Actor, failures: &mut u32) -> End {
    let client = match parts.identity.client(sponsor).await {
        Ok(client) => client,
        Err(ApiError::Forbidden(why)) => return End::Refused(why),
        Err(error) => return End::Failed(error.to_string()),
    };
    let api_resource = api_resource(&informer.watched.resource, kind);
    let extent = &informer.watched.extent;
    let api: Api<Watched> = match &extent.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace.as_str(), &api_resource),
        None => Api::all_with(client, &api_resource),
    };
    // The default list is a consistent one (`ListSemantic::MostRecent`); streamed lists of kube begin with whatever a watch cache holds.
    let config = match &extent.name {
        // RBAC takes the name that is asked for so as if it stood in the path.
        Some(name) => watcher::Config::default().fields(FieldSelector::naming(name).as_str()),
        None => watcher::Config::default(),
    };
    let mut stream = std::pin::pin!(watcher(api, config));
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = informer.relist.notified() => return End::Failed("a new list is needed".to_owned()),
            () = informer.changed.notified() => {
                if informer.actors().contains(sponsor) {
                    continue;
                }
                return End::Sponsor;
            }
        };
        match event {
            Some(Ok(event)) => {
                // That a list is about to be asked for is no answer yet.
                if !matches!(event, Event::Init) {
                    *failures = 0;
                }
                take(informer, &api_resource, event);
            }
            Some(Err(error)) => {
                if let Some(end) = verdict(error) {
                    return end;
                }
                *failures += 1;
                pause(*failures).await;
            }
            None => return End::Failed("the watch ended".to_owned()),
        }
    }
}

fn take(informer: &Informer, kind: &ApiResource, event: Event<Watched>) {
    let decode = |watched: Watched| match Entry::of_text(&watched.object, &kind.api_version, &kind.kind) {
        Ok(decoded) => Some(decoded),
        Err(error) => {
            warn!(resource = %informer.watched.resource, %error, "an object cannot be kept and is left out");
            None
        }
    };
    match event {
        Event::Init => informer.list_begins(),
        Event::InitDone => informer.list_complete(),
        Event::InitApply(watched) => {
            if let Some((key, entry)) = decode(watched) {
                informer.apply(key, entry, true);
            }
        }
        Event::Apply(watched) => {
            if let Some((key, entry)) = decode(watched) {
                informer.apply(key, entry, false);
            }
        }
        Event::Delete(watched) => {
            if let Some((key, entry)) = decode(watched) {
                informer.delete(&key, &entry);
            }
        }
    }
}

/// What an error of a watch means; none where the watcher goes on by itself after a pause.
fn verdict(error: watcher::Error) -> Option<End> {
    let text = error.to_string();
    let code = match &error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.code,
        _ => 0,
    };
    match (code, error) {
        (401 | 403, _) => Some(End::Refused(text)),
        (404, _) => Some(End::Absent),
        // The watcher would ask for the same expired version again.
        (410, watcher::Error::WatchStartFailed(_)) => Some(End::Failed(text)),
        _ => {
            debug!(text, "a watch was interrupted");
            None
        }
    }
}

fn api_resource(resource: &Resource, kind: &KindInfo) -> ApiResource {
    ApiResource {
        group: resource.group().to_owned(),
        version: resource.version().to_owned(),
        api_version: resource.api_version(),
        kind: kind.kind.clone(),
        plural: resource.resource().to_owned(),
    }
}

async fn pause(failures: u32) {
    tokio::time::sleep(RETRY.delay(failures, rand::random())).await;
}
