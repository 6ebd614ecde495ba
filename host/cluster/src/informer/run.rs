//! The life of one informer: wait for the kind, watch it as a sponsor, look again at everyone's rights.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, future::join_all};
use http::Request;
use kube::{
    Api, Client,
    client::Body,
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
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::store::Informer;
use crate::{
    access::{Access, LOOK_AGAIN_AFTER, Refusal, Whose},
    answer::{Purpose, TooLarge},
    discovery::Discovery,
    identity::Identity,
    object::{Entry, Watched},
    request::cause,
};

/// Between two attempts of a watch.
const RETRY: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(30), jitter: 0.5 };

/// A watch that goes on for so long after its list, or after it was taken up again, is a sound one, and what failed before counts no more.
const SOUND: Duration = Duration::from_secs(10);

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
    /// A page of the list is larger than is read at once.
    TooLarge,
    /// The API server does not serve the kind (any more).
    Absent,
    /// A new list is needed.
    Again,
    /// Something else, to be tried again.
    Failed(String),
}

/// Objects of a page; where they are too large, so many times fewer.
const PAGE: u32 = 500;
const SMALLER: u32 = 8;

/// Runs until it is aborted.
pub async fn run(informer: Arc<Informer>, parts: Parts) {
    // The right to be told is looked at even while the API server leaves a list unanswered.
    tokio::join!(watch_kind(&informer, &parts), recheck(&informer, &parts));
}

async fn recheck(informer: &Informer, parts: &Parts) {
    loop {
        tokio::time::sleep(LOOK_AGAIN_AFTER).await;
        // Side by side, since each may have to wait for an answer.
        let actors = informer.actors();
        join_all(actors.iter().map(|actor| may_still(Whose::AccountAnew, informer, parts, actor))).await;
        // Here, and so not more often than a list is worth: who writes faster than is remembered would otherwise have one list follow the other.
        if informer.has_room_again() || informer.is_outrun() {
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
    let (mut refusals, mut page) = (0, PAGE);
    loop {
        let actors = informer.actors();
        let Some(sponsor) = actors.get(refusals % actors.len().max(1)).cloned() else {
            informer.changed.notified().await;
            continue;
        };
        debug!(%resource, extent = %informer.watched.extent, sponsor = %sponsor.account, "watching");
        match watch_as(informer, parts, kind, &sponsor, page, failures).await {
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
            End::TooLarge if page > 1 => {
                page = (page / SMALLER).max(1);
                info!(%resource, page, "the objects are so large that they are listed in smaller pages");
            }
            End::TooLarge => {
                *failures += 1;
                warn!(%resource, "one object has more than is read at once, and the watch is tried again");
                pause(*failures).await;
            }
            End::Absent => {
                *failures += 1;
                if let Err(error) = parts.discovery.refresh(resource).await {
                    debug!(%resource, %error, "discovery failed and is tried again");
                }
                pause(*failures).await;
                return;
            }
            End::Again => {
                debug!(%resource, "listing again");
                pause(1).await;
            }
            End::Failed(why) => {
                *failures += 1;
                debug!(%resource, why, "a watch failed and is tried again");
                pause(*failures).await;
            }
        }
    }
}

async fn watch_as(
    informer: &Informer,
    parts: &Parts,
    kind: &KindInfo,
    sponsor: &Actor,
    page: u32,
    failures: &mut u32,
) -> End {
    let client = match parts.identity.client(sponsor).await {
        Ok(client) => caching(client),
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
    let config = watcher::Config::default().page_size(page);
    let config = match &extent.name {
        // RBAC takes the name that is asked for so as if it stood in the path.
        Some(name) => config.fields(FieldSelector::naming(name).as_str()),
        None => config,
    };
    // Who wanted a list before this is served by the one that comes.
    let _ = informer.relist.notified().now_or_never();
    let mut again = false;
    // When it will be a sound one, if nothing happens.
    let mut sound = None;
    let mut stream = std::pin::pin!(watcher(api, config));
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            // A list under way ends first: who asks again and again would have none ever end.
            () = informer.relist.notified() => {
                again = true;
                if informer.is_listing() {
                    continue;
                }
                return End::Again;
            }
            () = informer.changed.notified() => {
                if informer.actors().contains(sponsor) {
                    continue;
                }
                return End::Sponsor;
            }
            () = reached(sound) => {
                (*failures, sound) = (0, None);
                continue;
            }
        };
        match event {
            Some(Ok(event)) => {
                match &event {
                    // A list that succeeds says nothing of the watch after it: where that fails at once each time, one list would follow the other.
                    Event::Init | Event::InitApply(_) => sound = None,
                    Event::InitDone => sound = Some(Instant::now() + SOUND),
                    Event::Apply(_) | Event::Delete(_) => *failures = 0,
                }
                take(informer, &api_resource, event);
                if again && !informer.is_listing() {
                    return End::Again;
                }
            }
            Some(Err(error)) => {
                if let Some(end) = verdict(error) {
                    return end;
                }
                *failures += 1;
                pause(*failures).await;
                sound = Some(Instant::now() + SOUND);
            }
            None => return End::Failed("the watch ended".to_owned()),
        }
    }
}

/// A client whose requests say that they are of a shared cache.
fn caching(client: Client) -> Client {
    let service = tower::service_fn(move |mut request: Request<Body>| {
        request.extensions_mut().insert(Purpose::Cache);
        let client = client.clone();
        async move { client.send(request).await }
    });
    Client::new(service, "default")
}

fn take(informer: &Informer, kind: &ApiResource, event: Event<Watched>) {
    let read = |watched: &Watched| Entry::of_text(&watched.object, &kind.api_version, &kind.kind);
    let left_out = |error: &dyn std::fmt::Display| {
        warn!(resource = %informer.watched.resource, %error, "an object cannot be kept and is left out");
    };
    let put = |watched: &Watched, initial| match read(watched) {
        Ok((key, entry)) => informer.apply(key, entry, initial),
        Err(error) => match watched.unreadable() {
            Ok((key, entry)) => {
                warn!(resource = %informer.watched.resource, %error, "an object cannot be read");
                informer.apply_unreadable(key, entry, initial);
            }
            Err(_) => left_out(&error),
        },
    };
    match event {
        Event::Init => informer.list_begins(),
        Event::InitDone => informer.list_complete(),
        Event::InitApply(watched) => put(&watched, true),
        Event::Apply(watched) => put(&watched, false),
        Event::Delete(watched) => match read(&watched) {
            Ok((key, entry)) => informer.delete(&key, &entry),
            Err(error) => match watched.unreadable() {
                Ok((key, _)) => informer.delete_unreadable(&key),
                Err(_) => left_out(&error),
            },
        },
    }
}

/// What an error of a watch means; none where the watcher goes on by itself after a pause.
fn verdict(error: watcher::Error) -> Option<End> {
    if cause::<TooLarge>(&error).is_some() {
        return Some(End::TooLarge);
    }
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
        // Nor does it ask again for an event that is not understood, so that only a list tells what it was.
        (410, watcher::Error::WatchStartFailed(_)) | (_, watcher::Error::WatchFailed(kube::Error::SerdeError(_))) => {
            Some(End::Failed(text))
        }
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

/// Waits for this moment; for ever if there is none.
async fn reached(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

async fn pause(failures: u32) {
    tokio::time::sleep(RETRY.delay(failures, rand::random())).await;
}
