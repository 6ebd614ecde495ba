//! Kubernetes events (`events.k8s.io/v1`) of one plugin.
//!
//! **Repetitions become one event that counts**: it tells the count now and then, and no repetition is lost. Events that differ are all published, up to so many about one object, and one
//! beyond is refused: how many a plugin may publish in all is [`operetta_core::limit::Limits::event_rate`], which holds before anything comes here.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
use kube::Client;
use operetta_core::{
    cache::KindInfo,
    name::{NameError, Namespace, ObjectName},
    port::{Caller, Event, Severity},
    resource::{ObjectKey, Resource},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    object::Entry,
    request::{Fault, Url, Wait, send},
};

/// Events about one object within [`SERIES`] that are not the same, as many as client-go's spam filter allows at once. What differs each time (a message with the time in it) says nothing
/// to people, and each is kept for an hour.
const ABOUT_ONE: usize = 25;
/// Of these, so many are for reasons that were not given yet: an operator in a loop that publishes another event each time does not keep back the one that says so.
const NEWS: usize = 5;
/// Counts that are told at once.
const BURST: f64 = 25.0;
/// Counts that are told in a second in the long run.
const RATE: f64 = 1.0;
/// Repetitions within this time are one event, as in client-go.
const SERIES: Duration = Duration::from_mins(6);
/// Series remembered, at most.
const MOST: usize = 2_000;

/// The events of one plugin.
pub struct Recorder {
    state: Mutex<State>,
}

struct State {
    series: HashMap<Series, Published>,
    tokens: f64,
    filled: Instant,
}

/// What makes two events the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Series {
    controller: String,
    resource: Resource,
    key: ObjectKey,
    uid: String,
    warning: bool,
    reason: String,
    action: String,
    message: String,
}

#[derive(Debug, Clone)]
struct Published {
    name: String,
    count: i32,
    last: Instant,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { state: Mutex::new(State { series: HashMap::new(), tokens: BURST, filled: Instant::now() }) }
    }
}

/// What to send.
enum Plan {
    Create(String),
    Count(String, i32),
    /// A later repetition tells the count.
    Nothing,
    /// There are too many about the object; when one of them ends.
    Refuse(Duration),
}

impl Recorder {
    /// Publishes or counts an event.
    pub async fn publish(
        &self,
        client: &Client,
        caller: &Caller,
        event: &Event,
        kind: &KindInfo,
        known: Option<&Entry>,
    ) -> Result<(), Fault> {
        let uid = known.map(|entry| entry.cached.meta.uid.clone()).unwrap_or_default();
        let series = Series {
            controller: caller.field_manager().to_string(),
            resource: event.resource.clone(),
            key: event.key.clone(),
            uid,
            warning: event.severity == Severity::Warning,
            reason: event.reason.clone(),
            action: event.action.clone(),
            message: event.message.clone(),
        };
        let now = Timestamp::now();
        let namespace = namespace(&event.key)?;
        match self.plan(&series, &event_name(&event.key, now)) {
            Plan::Nothing => Ok(()),
            Plan::Refuse(after) => {
                let why = format!(
                    "more than {} different events about the object within {} minutes",
                    ABOUT_ONE - NEWS,
                    SERIES.as_secs() / 60
                );
                Err(Fault::Busy(Wait { why, after: Some(after) }))
            }
            Plan::Create(name) => {
                let body = render(&series, caller, event, kind, known, &namespace, &name, now);
                self.create(client, &series, &namespace, &name, body).await
            }
            Plan::Count(name, count) => {
                let patch = json!({"series": {"count": count, "lastObservedTime": micro(now)}}).to_string();
                let url = events(&namespace)?.object(&ObjectName::parse(&name).map_err(unsendable)?);
                let request = url.request(Method::PATCH, Some("application/merge-patch+json"), patch.into_bytes())?;
                match send(client, request).await {
                    Ok(_) => Ok(()),
                    // The API server keeps events for an hour only.
                    Err(fault) if fault.is_not_found() => {
                        let name = event_name(&event.key, now);
                        let body = render(&series, caller, event, kind, known, &namespace, &name, now);
                        self.create(client, &series, &namespace, &name, body).await
                    }
                    Err(fault) => Err(fault),
                }
            }
        }
    }

    fn plan(&self, series: &Series, name: &str) -> Plan {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.tokens = (state.tokens + (now - state.filled).as_secs_f64() * RATE).min(BURST);
        state.filled = now;
        state.series.retain(|_, published| now - published.last < SERIES);
        let may_tell = state.tokens >= 1.0;
        if let Some(published) = state.series.get_mut(series) {
            published.count = published.count.saturating_add(1);
            published.last = now;
            let plan = Plan::Count(published.name.clone(), published.count);
            if may_tell {
                state.tokens -= 1.0;
                return plan;
            }
            return Plan::Nothing;
        }
        let (mut about_it, mut is_news, mut oldest) = (0, true, now);
        for (other, published) in &state.series {
            if other.resource == series.resource && other.key == series.key {
                about_it += 1;
                is_news &= other.reason != series.reason;
                oldest = oldest.min(published.last);
            }
        }
        let most = if is_news { ABOUT_ONE } else { ABOUT_ONE - NEWS };
        if about_it < most { Plan::Create(name.to_owned()) } else { Plan::Refuse(SERIES.saturating_sub(now - oldest)) }
    }

    async fn create(
        &self,
        client: &Client,
        series: &Series,
        namespace: &Namespace,
        name: &str,
        body: Value,
    ) -> Result<(), Fault> {
        let request = events(namespace)?.request(Method::POST, Some("application/json"), body.to_string().into_bytes());
        send(client, request?).await?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.series.len() >= MOST {
            state.series.clear();
        }
        state.series.insert(series.clone(), Published { name: name.to_owned(), count: 1, last: Instant::now() });
        Ok(())
    }
}

fn unsendable(error: NameError) -> Fault {
    Fault::Unsendable(error.to_string())
}

fn events(namespace: &Namespace) -> Result<Url, Fault> {
    let resource = Resource::parse("events.k8s.io", "v1", "events").map_err(unsendable)?;
    Ok(Url::of(&resource, Some(namespace)))
}

/// Events about cluster-scoped objects live in the namespace `default`, by the API server's own rule.
fn namespace(key: &ObjectKey) -> Result<Namespace, Fault> {
    match &key.namespace {
        Some(namespace) => Ok(namespace.clone()),
        None => Namespace::parse("default").map_err(unsendable),
    }
}

/// The object's name and the time, as client-go names events; lower case and cut, since an object's name may be looser than an event's.
fn event_name(key: &ObjectKey, now: Timestamp) -> String {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let name: String =
        key.name.as_str().to_ascii_lowercase().chars().map(|c| if fine(c) { c } else { '-' }).take(200).collect();
    format!("{}.{:x}", name.trim_matches(['-', '.']), now.as_nanosecond())
}

fn micro(time: Timestamp) -> String {
    format!("{time:.6}")
}

#[expect(clippy::too_many_arguments, reason = "each is a part of the event")]
fn render(
    series: &Series,
    caller: &Caller,
    event: &Event,
    kind: &KindInfo,
    known: Option<&Entry>,
    namespace: &Namespace,
    name: &str,
    now: Timestamp,
) -> Value {
    let meta = known.map(|entry| &entry.cached.meta);
    let regarding = json!({
        "apiVersion": event.resource.api_version(), "kind": kind.kind,
        "name": event.key.name.as_str(), "namespace": event.key.namespace.as_ref().map(Namespace::as_str),
        "uid": meta.map(|m| m.uid.as_str()), "resourceVersion": meta.map(|m| m.resource_version.as_str()),
    });
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": name, "namespace": namespace.as_str()},
        "eventTime": micro(now),
        "type": if series.warning { "Warning" } else { "Normal" },
        "reason": series.reason, "action": series.action, "note": series.message,
        "regarding": regarding,
        "reportingController": format!("operetta.dev/{}", caller.plugin),
        "reportingInstance": format!("{}-{}", caller.plugin, caller.controller),
    })
}

#[cfg(test)]
mod tests;
