//! The one way out of a sandbox: every effect of a reconcile is a method here, which checks the limits and the grant and then calls the port.
//!
//! **The ports are private fields and nothing hands them out**, so an effect that forgets its check cannot be written elsewhere.

mod database;
mod grpc;
mod meter;
mod tally;
mod view;

pub use database::Ask;
pub use meter::{Call, Ending, Meter};
pub(crate) use tally::Bucket;
pub use tally::{OnExceeded, Rates};

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use tokio::time::Instant;

use crate::{
    bounds::{Bounds, Change, Claims, Outside, There},
    cache::Cached,
    grant::{Access, Denial, Grants, Verb},
    limit::{Exceeded, Limit, Limits},
    looping::{Deed, Errand, Step},
    name::{FieldSelector, Namespace, ObjectName, Subresource},
    port::{
        ApiError, Caller, Channels, DeleteOptions, Event, Kubernetes, Level, ListOptions, Log, Page, Patch, Written,
        database::Databases,
    },
    reconcile::{Failure, Outcome},
    resource::{ObjectKey, Resource},
};
use tally::{Counted, Held, Line, Tally, TooFast};
use view::View;

/// How often a page is asked for anew because what came does not fit into an answer: each time as much as fitted before.
const SMALLER_PAGES: usize = 3;
/// Fields of a log line; the rest is left out.
const MOST_FIELDS: usize = 32;
/// Bytes of an event's message, as the API server takes them, with room for a mark where more was cut off.
const MOST_EVENT: usize = 1_021;
/// Writes of a reconcile that are told apart afterwards.
const MOST_STEPS: usize = 32;

/// The ports of one plugin.
#[derive(Clone)]
pub struct Ports {
    /// The API server, as the plugin's service account.
    pub kubernetes: Arc<dyn Kubernetes>,
    /// Its gRPC channels.
    pub channels: Arc<dyn Channels>,
    /// Its databases.
    pub databases: Arc<dyn Databases>,
    /// Its log.
    pub log: Arc<dyn Log>,
    /// Told of every denial.
    pub denials: Arc<dyn Fn(&Denial) + Send + Sync>,
    /// Told of every limit that is met.
    pub exceeded: OnExceeded,
    /// What is counted over all reconciles.
    pub rates: Arc<Rates>,
}

/// What one plugin may do, and with how much; shared by its reconciles and exchanged live.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// What it may do.
    pub grants: Grants,
    /// What it may not do, whatever it is granted.
    pub bounds: Bounds,
    /// How much.
    pub limits: Limits,
    /// Text by name.
    pub settings: BTreeMap<String, String>,
}

/// The effects of one reconcile.
pub struct Effects {
    caller: Caller,
    policy: Arc<View>,
    ports: Ports,
    tally: Arc<Tally>,
    /// What it is about; none where the host itself acts.
    errand: Option<Errand>,
    /// What its writes did.
    steps: Mutex<Vec<Step>>,
}

/// Whether a write makes an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Makes {
    /// It does.
    Surely,
    /// It does where there is none.
    Perhaps,
    /// The same, and there was one a moment ago.
    Hardly,
    /// It does not.
    Never,
}

impl Makes {
    fn unless(never: bool, is_there: bool) -> Self {
        match (never, is_there) {
            (true, _) => Self::Never,
            (false, true) => Self::Hardly,
            (false, false) => Self::Perhaps,
        }
    }
}

/// A write under way. Where it ends without an answer, or its guest drops it, nobody knows what it did.
struct Sent<'a> {
    effects: &'a Effects,
    resource: &'a Resource,
    namespace: Option<&'a Namespace>,
    key: Option<&'a ObjectKey>,
    /// That it may bring.
    events: u32,
    since: Instant,
    answered: bool,
}

impl<'a> Sent<'a> {
    fn begin(
        effects: &'a Effects,
        resource: &'a Resource,
        namespace: Option<&'a Namespace>,
        key: Option<&'a ObjectKey>,
        events: u32,
        since: Instant,
    ) -> Self {
        Self { effects, resource, namespace, key, events, since, answered: false }
    }

    fn ended<T>(&mut self, answer: Result<T, ApiError>) -> Result<T, ApiError> {
        self.answered = !answer.as_ref().is_err_and(ApiError::may_have_happened);
        answer
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if let Some(errand) = self.effects.errand.as_ref().filter(|_| !self.answered) {
            let name = self.key.map(|key| &key.name);
            errand.unanswered(self.resource, self.namespace, name, self.since, self.events);
            // Nobody looks for an object under a name that the API server chose.
            let name = name.unwrap_or(&errand.by().key.name).clone();
            let key = ObjectKey { namespace: self.namespace.cloned(), name };
            self.effects.step(self.resource, key, Deed::Unanswered);
        }
    }
}

/// A call to the world under way, for as long as it is held.
pub struct UnderWay(Held);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.tally().end();
    }
}

impl From<Exceeded> for ApiError {
    fn from(exceeded: Exceeded) -> Self {
        Self::TooLarge(exceeded.to_string())
    }
}

impl Effects {
    /// For one reconcile of `caller`.
    pub fn new(caller: Caller, policy: Arc<ArcSwap<Policy>>, ports: Ports) -> Self {
        Self::since(policy.load_full(), caller, policy, ports)
    }

    /// The same, of a reconcile that began under this policy, to which its ports belong. Whatever the policy becomes, it allows no more than both do.
    pub fn since(began: Arc<Policy>, caller: Caller, policy: Arc<ArcSwap<Policy>>, ports: Ports) -> Self {
        let tally = Tally::new(began.limits.clone(), Arc::clone(&ports.rates), Arc::clone(&ports.exceeded));
        let (policy, tally) = (Arc::new(View::new(began, policy)), Arc::new(tally));
        Self { caller, policy, ports, tally, errand: None, steps: Mutex::default() }
    }

    /// About this object: what it writes is noted there, and what it makes is held to the rate of one object.
    pub fn on(self, errand: Errand) -> Self {
        Self { errand: Some(errand), ..self }
    }

    /// Who acts.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The limits as they were when the reconcile began.
    pub fn limits(&self) -> &Limits {
        &self.policy.began.limits
    }

    /// A setting, as it was when the reconcile began.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.policy.began.settings.get(name).map(String::as_str)
    }

    /// How the reconcile ended, with the limits that it met in the words of a failure: of some of them a plugin learns nothing but to come again later, and says so.
    pub fn concluded(&self, result: Result<Outcome, Failure>) -> Result<Outcome, Failure> {
        let met = self.tally.met();
        let with = |text: String| {
            let field = |limit: &Limit| limit.field().map_or_else(String::new, |field| format!(" (limits.{field})"));
            let limits: Vec<_> = met.iter().map(|limit| format!("{limit}{}", field(limit))).collect();
            if limits.is_empty() { text } else { format!("{text}; it met limits: {}", limits.join(", ")) }
        };
        result.map_err(|failure| match failure {
            Failure::Retryable(text) => Failure::Retryable(with(text)),
            Failure::Terminal(text) => Failure::Terminal(with(text)),
            // The others are limits themselves, or none of the plugin's affairs.
            other => other,
        })
    }

    /// What the writes so far did to which objects; the first of them, where there are many.
    pub fn steps(&self) -> Vec<Step> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a limit that a reconcile meets on its way to an effect.
    pub fn exceed(&self, limit: Limit, what: impl Into<String>) -> Exceeded {
        self.tally.exceed(limit, what)
    }

    /// Holds the arguments of a call while it waits.
    pub fn under_way(&self, bytes: usize) -> Result<UnderWay, Exceeded> {
        let held = self.tally.wait(bytes)?;
        self.tally.begin();
        Ok(UnderWay(held))
    }

    /// Whether a call to the world is under way: what ends now does so while it waits for an answer.
    pub fn is_waiting(&self) -> bool {
        self.tally.is_waiting()
    }

    /// One object.
    pub async fn get(&self, resource: &Resource, key: &ObjectKey, live: bool) -> Result<Arc<str>, ApiError> {
        let effect = async {
            self.call(0)?;
            self.allow(&of(Verb::Get, resource, None, key))?;
            let object = self.ports.kubernetes.get(&self.caller, resource, key, live).await;
            self.answer(object.map(|object| Arc::clone(&object.json)))
        };
        self.metered(Call::Get, effect).await
    }

    /// Objects of one kind: a page of at most as many as asked for, and of no more bytes than an answer may have.
    pub async fn list(&self, resource: &Resource, options: &ListOptions) -> Result<Page, ApiError> {
        let effect = async {
            self.call(0)?;
            self.tally.beside(selection(options))?;
            let name = options.field_selector.as_ref().and_then(FieldSelector::object);
            let namespace = options.namespace.as_ref();
            let access = Access { verb: Verb::List, resource, subresource: None, namespace, name: name.as_ref() };
            self.allow(&access)?;
            let hidden = self.policy.now().grants.hidden(&access).cloned();
            let most = self.tally.limits.message;
            let mut options = options.clone();
            for _ in 0..SMALLER_PAGES {
                let mut page = self.ports.kubernetes.list(&self.caller, resource, &options).await?;
                if let Some(hidden) = &hidden {
                    page.items.retain(|item| !lies_in(item, resource, hidden));
                }
                let mut bytes = 0_usize;
                let fitting = page.items.iter().take_while(|item| {
                    bytes = bytes.saturating_add(item.len());
                    bytes <= most
                });
                let fitting = fitting.count();
                if fitting == page.items.len() {
                    self.tally.answer(bytes, Limit::List)?;
                    return Ok(page);
                }
                self.tally.exceed(Limit::List, "");
                // What came counts, whatever is done with it: else asking for large pages again and again would cost nothing.
                self.tally.carried(page.items.iter().map(|item| item.len()).sum())?;
                if fitting == 0 {
                    break;
                }
                // Pages come in the order of names, so that fewer objects are the first of those that came.
                options.limit = u32::try_from(fitting).ok();
            }
            let what = format!("a page of one object of {resource} has more than {most} bytes");
            Err(Exceeded { limit: Limit::List, what }.into())
        };
        self.metered(Call::List, effect).await
    }

    /// Makes an object.
    pub async fn create(
        &self,
        resource: &Resource,
        namespace: Option<&Namespace>,
        object: String,
    ) -> Result<Arc<str>, ApiError> {
        let effect = async {
            self.call(object.len())?;
            let access = Access { verb: Verb::Create, resource, subresource: None, namespace, name: None };
            self.allow(&access)?;
            self.keep_bounds(&access, None, Change::Fields(&object), None).await?;
            // Where the API server chooses the name, each is an object of its own.
            let key = name_of(&object).map(|name| ObjectKey { namespace: namespace.cloned(), name });
            let write = self.ports.kubernetes.create(&self.caller, resource, namespace, object);
            self.write(resource, namespace, key.as_ref(), Makes::Surely, write).await
        };
        self.metered_write(Call::Create, effect).await
    }

    /// Changes an object. Without the right to create, an apply to an object that does not exist is `NotFound`, as with kubectl.
    pub async fn patch(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        patch: Patch,
    ) -> Result<Arc<str>, ApiError> {
        let effect = async {
            let change = match &patch {
                Patch::Apply(body) => Change::Fields(body),
                Patch::Merge(body) => Change::Merge(body),
                Patch::Json(body) => Change::Steps(body),
            };
            self.call(change.text().len())?;
            let access = of(Verb::Patch, resource, subresource, key);
            self.allow(&access)?;
            // Server-side apply makes the object where there is none, which RBAC lets pass with `create`.
            let creates = matches!(patch, Patch::Apply(_)) && subresource.is_none();
            let there = if creates { self.check_creation(resource, key).await? } else { None };
            let is_there = self.keep_bounds(&access, Some(key), change, there).await?;
            let write = self.ports.kubernetes.patch(&self.caller, resource, key, subresource, patch);
            let makes = Makes::unless(!creates, is_there);
            self.write(resource, key.namespace.as_ref(), Some(key), makes, write).await
        };
        self.metered_write(Call::Patch, effect).await
    }

    /// Replaces an object.
    pub async fn replace(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&Subresource>,
        object: String,
    ) -> Result<Arc<str>, ApiError> {
        let effect = async {
            self.call(object.len())?;
            let access = of(Verb::Update, resource, subresource, key);
            self.allow(&access)?;
            // Of some kinds the API server makes an object where there is none to replace.
            let there = if subresource.is_none() { self.check_creation(resource, key).await? } else { None };
            let is_there = self.keep_bounds(&access, Some(key), Change::Whole(&object), there).await?;
            let write = self.ports.kubernetes.replace(&self.caller, resource, key, subresource, object);
            let makes = Makes::unless(subresource.is_some(), is_there);
            self.write(resource, key.namespace.as_ref(), Some(key), makes, write).await
        };
        self.metered_write(Call::Update, effect).await
    }

    /// Removes an object.
    pub async fn delete(&self, resource: &Resource, key: &ObjectKey, options: &DeleteOptions) -> Result<(), ApiError> {
        let effect = async {
            self.call(0)?;
            self.tally.beside(options.size())?;
            self.allow(&of(Verb::Delete, resource, None, key))?;
            self.tally.write(resource, key, Instant::now()).map_err(|rate| self.slow_down(rate))?;
            // An object that something holds is told of twice: it is to go, and it is gone.
            let mut sent = Sent::begin(self, resource, key.namespace.as_ref(), Some(key), 2, Instant::now());
            let was = sent.ended(self.ports.kubernetes.delete(&self.caller, resource, key, options).await)?;
            if let Some(errand) = &self.errand {
                errand.removed(&was);
            }
            self.step(resource, key.clone(), Deed::Removed);
            Ok(())
        };
        self.metered(Call::Delete, effect).await
    }

    /// Publishes an event. What its message hides or could do to a terminal is escaped.
    pub async fn publish(&self, mut event: Event) -> Result<(), ApiError> {
        let effect = async {
            self.call(event.message.len())?;
            self.tally.beside(event.reason.len() + event.action.len())?;
            self.policy.now().grants.check_events().map_err(|denial| self.deny(denial))?;
            // Regarding an object that it could not read, an event would be a way to write about strangers' objects.
            self.allow(&of(Verb::Get, &event.resource, None, &event.key))?;
            self.tally.event().map_err(|rate| self.slow_down(rate))?;
            event.message = printable(&event.message, MOST_EVENT);
            self.ports.kubernetes.publish(&self.caller, event).await
        };
        self.metered(Call::Publish, effect).await
    }

    /// Publishes what the host has to say about an object of the plugin's. The host has no rights of its own there, so it uses the plugin's, and answers whether these are enough: where
    /// they are not, nothing was denied to the plugin, which asked for nothing.
    pub async fn announce(&self, event: Event) -> Result<bool, ApiError> {
        let may = self.policy.now().grants.check_events().is_ok()
            && self.may(&of(Verb::Get, &event.resource, None, &event.key)).is_ok();
        if may {
            self.ports.kubernetes.publish(&self.caller, event).await?;
        }
        Ok(may)
    }

    /// Whether a log line of this level would be kept.
    pub fn log_enabled(&self, level: Level) -> bool {
        self.ports.log.enabled(level)
    }

    /// Writes a log line: control characters escaped, cut to the limit; of those over the limit only the first is said.
    pub fn log(&self, level: Level, target: &str, message: &str, fields: &[(String, String)]) {
        if !self.ports.log.enabled(level) {
            return;
        }
        let limits = &self.tally.limits;
        match self.tally.line() {
            Line::Kept(0) => {}
            Line::Kept(left_out) => {
                let text = format!(
                    "{left_out} lines were left out: the plugin logs more than its limit of {} a minute",
                    limits.log_rate
                );
                self.ports.log.write(Level::Warn, "operetta", &text, &[]);
            }
            Line::FirstOver => {
                let text = format!(
                    "this reconcile logs more than its limit of {} lines; the rest is dropped",
                    limits.log_lines
                );
                self.ports.log.write(Level::Warn, "operetta", &text, &[]);
                return;
            }
            Line::LeftOut => return,
        }
        let (mut room, mut whole) = (limits.log_line, true);
        let mut clean = |text: &str| {
            let (text, all) = cut(text, room);
            room = room.saturating_sub(text.len());
            whole &= all;
            text
        };
        let (target, message) = (clean(target), clean(message));
        let kept: Vec<_> = fields.iter().take(MOST_FIELDS).map(|(name, value)| (clean(name), clean(value))).collect();
        if !whole || fields.len() > kept.len() {
            self.tally.exceed(Limit::LogLine, "");
        }
        self.ports.log.write(level, &target, &message, &kept);
    }

    fn allow(&self, access: &Access<'_>) -> Result<(), ApiError> {
        self.may(access).map_err(|denial| self.deny(denial))
    }

    /// The same, and nobody is told.
    fn may(&self, access: &Access<'_>) -> Result<(), Denial> {
        let policy = self.policy.now();
        policy.bounds.check(access)?;
        policy.grants.check(access)
    }

    /// Holds a plugin that may not create to objects that exist; the answer is the object, where it was looked at.
    async fn check_creation(&self, resource: &Resource, key: &ObjectKey) -> Result<Option<Arc<Cached>>, ApiError> {
        let Err(denial) = self.may(&of(Verb::Create, resource, None, key)) else { return Ok(None) };
        match self.ports.kubernetes.get(&self.caller, resource, key, true).await {
            Ok(object) => Ok(Some(object)),
            Err(ApiError::NotFound(_) | ApiError::Forbidden(_)) => Err(self.deny(denial)),
            Err(error) => Err(error),
        }
    }

    /// Checks what a write says against what no grant allows. Almost all say nothing of it, or what is there already, and cost a glance. Answers whether the object was seen.
    async fn keep_bounds(
        &self,
        access: &Access<'_>,
        key: Option<&ObjectKey>,
        change: Change<'_>,
        there: Option<Arc<Cached>>,
    ) -> Result<bool, ApiError> {
        let mut claims = self.claims(access, |bounds| bounds.claims(access, change))?;
        if claims.is_empty() {
            return Ok(there.is_some());
        }
        let there = match there {
            Some(there) => There::Object(there),
            None => self.look(access.resource, key, &claims).await?,
        };
        let replaced = claims.replaced();
        claims.allow_what_is_there(&there);
        if claims.are_at_most() && !claims.is_empty() {
            claims = self.claims(access, |bounds| bounds.all_claims(access, change))?;
            claims.allow_what_is_there(&there);
        }
        // Of an older version the API server says so itself, unless this would be refused for what came since; one that is not there yet may be anything.
        if let (Some(version), There::Object(there)) = (replaced, &there)
            && let is = &there.meta.resource_version
            && *version != **is
            && (!claims.is_empty() || !is_older(&version, is))
        {
            return Err(ApiError::Conflict(format!(
                "{}: it is made from version {version}, and the object is of version {is}; read it again",
                access.words()
            )));
        }
        claims.check(access).map_err(|denial| self.deny(denial))?;
        Ok(matches!(there, There::Object(_)))
    }

    /// What a write claims. Of what is made, or may be deleted anyhow, owners are no matter.
    fn claims<'a>(
        &self,
        access: &Access<'_>,
        of: impl FnOnce(&Bounds) -> Result<Claims<'a>, Outside>,
    ) -> Result<Claims<'a>, ApiError> {
        let policy = self.policy.now();
        let mut claims = of(&policy.bounds).map_err(|outside| match outside {
            Outside::Denied(denial) => self.deny(denial),
            Outside::Unclear(why) => {
                ApiError::Invalid(format!("{}: the text is not understood: {why}", access.words()))
            }
        })?;
        let delete = Access { verb: Verb::Delete, subresource: None, ..*access };
        let may_delete = || policy.grants.allow(&delete) && policy.bounds.check(&delete).is_ok();
        if claims.has_owners() && (access.verb == Verb::Create || may_delete()) {
            claims.allow_owners();
        }
        Ok(claims)
    }

    /// What a write meets, as new as its claims need it.
    async fn look(&self, resource: &Resource, key: Option<&ObjectKey>, claims: &Claims<'_>) -> Result<There, ApiError> {
        let Some(key) = key else { return Ok(There::Nothing) };
        let get = |live| self.ports.kubernetes.get(&self.caller, resource, key, live);
        let mut there = get(false).await;
        if claims.need_newer(there.as_ref().ok().map(|there| &there.meta)) {
            there = get(true).await;
        }
        match there {
            Ok(there) => Ok(There::Object(there)),
            Err(ApiError::NotFound(_)) => Ok(There::Nothing),
            Err(ApiError::Forbidden(_)) => Ok(There::Unseen),
            Err(error) => Err(error),
        }
    }

    fn deny(&self, denial: Denial) -> ApiError {
        let denial = self.policy.told(denial);
        (self.ports.denials)(&denial);
        ApiError::Denied(denial.to_string())
    }

    fn call(&self, bytes: usize) -> Result<(), Exceeded> {
        self.tally.call(bytes, Limit::Message)
    }

    /// Counts how an effect ends.
    async fn metered<T, E>(&self, call: Call, effect: impl Future<Output = Result<T, E>>) -> Result<T, E>
    where
        for<'a> Ending: From<&'a E>,
    {
        let answer = effect.await;
        self.ports.rates.meter.count(call, answer.as_ref().err().map_or(Ending::Ok, Ending::from));
        answer
    }

    /// Counts how a write ends, which says more of a success.
    async fn metered_write(
        &self,
        call: Call,
        effect: impl Future<Output = Result<(Arc<str>, Ending), ApiError>>,
    ) -> Result<Arc<str>, ApiError> {
        let answer = effect.await;
        self.ports.rates.meter.count(call, answer.as_ref().map_or_else(Ending::from, |(_, ending)| *ending));
        answer.map(|(object, _)| object)
    }

    /// Makes a write that is counted: none that would have changed nothing is.
    async fn write(
        &self,
        resource: &Resource,
        namespace: Option<&Namespace>,
        key: Option<&ObjectKey>,
        makes: Makes,
        write: impl Future<Output = Result<Written, ApiError>>,
    ) -> Result<(Arc<str>, Ending), ApiError> {
        let now = Instant::now();
        let maker = self.errand.as_ref().map(Errand::by);
        let made = maker.filter(|_| matches!(makes, Makes::Surely | Makes::Perhaps)).map(|by| self.tally.make(by, now));
        let made = made.transpose().map_err(|rate| self.slow_down(rate))?;
        let free = |counted: Option<Counted>| {
            if let Some(counted) = counted {
                self.tally.was_free(&counted);
            }
        };
        let counted = match key.map(|key| self.tally.write(resource, key, now)).transpose() {
            Ok(counted) => counted,
            Err(rate) => {
                free(made);
                return Err(self.slow_down(rate));
            }
        };
        let mut sent = Sent::begin(self, resource, namespace, key, 1, now);
        let written = match sent.ended(write.await) {
            Ok(written) => written,
            Err(error) => {
                if !error.may_have_happened() {
                    free(made);
                }
                return Err(error);
            }
        };
        let is_new = written.sent && (makes == Makes::Surely || written.made);
        if !is_new {
            free(made);
        } else if let (Makes::Hardly, Some(by)) = (makes, maker) {
            // It went meanwhile. What is made counts, though it is too late to refuse it.
            let _ = self.tally.make(by, now);
        }
        if !written.sent {
            free(counted);
        }
        let (json, sent) = (Arc::clone(&written.now.json), written.sent);
        if sent {
            self.wrote(resource, namespace, key, is_new, written);
        }
        let ending = if sent { Ending::Ok } else { Ending::Unchanged };
        Ok((self.answer(Ok(json))?, ending))
    }

    /// Notes what a write did.
    fn wrote(
        &self,
        resource: &Resource,
        namespace: Option<&Namespace>,
        key: Option<&ObjectKey>,
        is_new: bool,
        written: Written,
    ) {
        let Written { now, before, .. } = written;
        let same = |before: &Arc<Cached>| before.meta.resource_version == now.meta.resource_version;
        if let Some(errand) = self.errand.as_ref().filter(|_| is_new || !before.as_ref().is_some_and(same)) {
            errand.wrote(&now.meta);
        }
        let generated = || Some(ObjectKey { namespace: namespace.cloned(), name: name_of(&now.json)? });
        if let Some(key) = key.cloned().or_else(generated) {
            self.step(resource, key, if is_new { Deed::Made } else { Deed::Changed { before, now } });
        }
    }

    fn step(&self, resource: &Resource, key: ObjectKey, deed: Deed) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.len() < MOST_STEPS {
            steps.push(Step { resource: resource.clone(), key, deed });
        }
    }

    /// A rate is no matter of this one call, so that the answer says when to come again; which rate it is, the log says once.
    fn slow_down(&self, rate: TooFast) -> ApiError {
        if let Some(exceeded) = rate.first {
            self.ports.log.write(Level::Warn, "operetta", &format!("refused for now: {exceeded}"), &[]);
        }
        ApiError::TooManyRequests(rate.after)
    }

    fn answer(&self, answer: Result<Arc<str>, ApiError>) -> Result<Arc<str>, ApiError> {
        let object = answer?;
        self.tally.answer(object.len(), Limit::Message)?;
        Ok(object)
    }
}

/// What an object says of itself.
#[derive(serde::Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(serde::Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

/// Bytes of what says which objects a page has.
fn selection(options: &ListOptions) -> usize {
    let ListOptions { label_selector, field_selector, continue_token, .. } = options;
    label_selector.as_ref().map_or(0, |text| text.as_str().len())
        + field_selector.as_ref().map_or(0, |text| text.as_str().len())
        + continue_token.as_ref().map_or(0, |text| text.as_str().len())
}

/// Whether a version surely came before another.
fn is_older(version: &str, other: &str) -> bool {
    let number = |version: &str| version.parse::<u128>().ok();
    number(version).zip(number(other)).is_some_and(|(version, other)| version < other)
}

/// The name that an object gives itself.
fn name_of(object: &str) -> Option<ObjectName> {
    let object: Object = serde_json::from_str(object).ok()?;
    ObjectName::parse(&object.metadata.name).ok()
}

/// Whether an object that the API server answered lies in this namespace, as the object of a namespace itself does.
fn lies_in(object: &str, resource: &Resource, namespace: &Namespace) -> bool {
    let is_namespace = resource.group().is_empty() && resource.resource() == "namespaces";
    let place = |Metadata { name, namespace }| if is_namespace { name } else { namespace };
    // Almost none does, which a glance shows: nobody writes a namespace in escapes.
    object.contains(namespace.as_str())
        && serde_json::from_str(object).is_ok_and(|object: Object| place(object.metadata) == namespace.as_str())
}

/// To one object.
fn of<'a>(verb: Verb, resource: &'a Resource, subresource: Option<&'a Subresource>, key: &'a ObjectKey) -> Access<'a> {
    Access { verb, resource, subresource, namespace: key.namespace.as_ref(), name: Some(&key.name) }
}

/// The text without control characters (escaped as Rust does) and without those that change the direction of writing, at most `room` bytes.
pub fn printable(text: &str, room: usize) -> String {
    cut(text, room).0
}

/// The same, and whether that is all of it.
fn cut(text: &str, room: usize) -> (String, bool) {
    let mut clean = String::with_capacity(text.len().min(room));
    for c in text.chars() {
        let hidden = c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
        let size = if hidden { c.escape_default().count() } else { c.len_utf8() };
        if clean.len() + size > room {
            clean.push('…');
            return (clean, false);
        }
        if hidden { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    (clean, true)
}

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod loop_tests;
#[cfg(test)]
mod tests;
