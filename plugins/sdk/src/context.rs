//! What a reconcile function is given: the request, and the way to every effect.

use crate::{
    api::Api,
    error::Failure,
    events::Events,
    grpc::Channel,
    host::{Handle, Host, ObjectKey, Resource},
    kind::Kind,
    plugin::Plugin,
    sql::Database,
};
use std::{rc::Rc, time::Duration};

/// Why a reconcile runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The object, or one that it owns or watches, changed, or was found at start.
    Changed,
    /// The regular look, or a new version of the plugin took over.
    Resync,
    /// The last reconcile asked for it.
    Requeued,
    /// The last reconcile failed.
    Retried,
    /// A cause that this SDK does not know yet.
    Other(String),
}

/// What to reconcile, without the object itself.
#[derive(Clone, Debug)]
pub struct Request {
    /// The controller's name.
    pub controller: String,
    /// Which object.
    pub key: ObjectKey,
    /// How many failures in a row came before.
    pub attempt: u32,
    /// Why now.
    pub cause: Cause,
}

/// A reconcile that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As desired: call again when something changes.
    AwaitChange,
    /// Call again after this long, or earlier if something changes.
    RequeueAfter(Duration),
}

/// Everything that a reconcile can reach. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    host: Handle,
    plugin: Rc<Plugin>,
    primary: Resource,
    request: Rc<Request>,
}

impl Context {
    pub(crate) fn new(host: Handle, plugin: Rc<Plugin>, primary: Resource, request: Request) -> Self {
        Self { host, plugin, primary, request: Rc::new(request) }
    }

    /// What is being reconciled, and why.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Objects of a kind, in the namespace of the object being reconciled (none for a cluster-scoped kind).
    pub fn api<K: Kind>(&self) -> Api<K> {
        let namespace = if K::NAMESPACED { self.request.key.namespace.clone() } else { None };
        Api::typed(self.host.clone(), namespace)
    }

    /// Objects of a kind in some namespace.
    pub fn api_in<K: Kind>(&self, namespace: &str) -> Api<K> {
        Api::typed(self.host.clone(), Some(namespace.to_owned()))
    }

    /// Objects of a kind in every namespace: for lists only. Needs a grant for all namespaces.
    pub fn api_everywhere<K: Kind>(&self) -> Api<K> {
        Api::typed(self.host.clone(), None)
    }

    /// Objects of a kind that is known only at run time, as JSON. What is written must carry `apiVersion` and `kind`.
    pub fn dynamic(&self, resource: Resource, namespace: Option<&str>) -> Api<serde_json::Value> {
        Api::dynamic(self.host.clone(), resource, namespace.map(str::to_owned))
    }

    /// Events about the object being reconciled.
    pub fn events(&self) -> Events<'_> {
        Events::new(&self.host, &self.primary, &self.request.key)
    }

    /// A channel for clients that tonic generated.
    pub fn channel(&self, name: &str) -> Channel {
        Channel::new(self.host.clone(), name)
    }

    /// A PostgreSQL database.
    pub fn database(&self, name: &str) -> Database {
        Database::new(self.host.clone(), name)
    }

    /// A setting from the Plugin document, or the default that the plugin announced.
    pub fn setting(&self, name: &str) -> Option<String> {
        self.host.setting(name).or_else(|| self.plugin.default_of(name).map(str::to_owned))
    }

    /// A setting that holds a duration: a whole number and one of `ms`, `s`, `m`, `h`. A terminal failure where it is missing or malformed.
    pub fn duration_setting(&self, name: &str) -> Result<Duration, Failure> {
        let text = self.setting(name).unwrap_or_default();
        parse_duration(&text).ok_or_else(|| {
            Failure::terminal(format!(
                "setting {name:?} is {text:?}, no duration such as 30s, 5m or 1h; correct it in the Plugin document"
            ))
        })
    }

    /// The time of day.
    pub fn now(&self) -> jiff::Timestamp {
        self.host.now()
    }

    /// Waits. The reconcile's deadline goes on running meanwhile: prefer [`Outcome::RequeueAfter`].
    pub async fn sleep(&self, duration: Duration) {
        self.host.sleep(duration).await;
    }

    /// Sixty-four random bits.
    pub fn random(&self) -> u64 {
        self.host.random()
    }

    /// The contract itself, in strings, for what the typed layers do not offer.
    pub fn host(&self) -> &Handle {
        &self.host
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        "h" => number.checked_mul(3_600).map(Duration::from_secs),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::parse_duration;
    use std::time::Duration;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_duration(" 5m "), Some(Duration::from_mins(5)));
        assert_eq!(parse_duration("2h"), Some(Duration::from_hours(2)));
        for bad in ["", "5", "m", "-1s", "1.5h", "99999999999999999h", "5 m"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
