//! Answers of the API server on their way in: how many a plugin may wait for at once, and how much of the host's memory they take meanwhile.
//!
//! What is small is read as it comes. The rest of a large answer waits for its turn, of which each plugin has one and all together have [`LARGE_AT_ONCE`]; whoever waits for the turn of
//! all has that of its plugin, and so a plugin is in line once, however much it asks for. Caches have a turn of their own, so that what a plugin asks for holds up no cache that others
//! share with it. Watches are read event by event and wait for nobody, and neither does what the host itself asks.
//!
//! **An answer is read by the host and not by who waits for it**: a guest that does nothing for a while holds no turn of the others. Its plugin's own turn it holds until it has taken the
//! answer, which bounds what lies there for it.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::Uri;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use operetta_core::name::PluginName;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tower::BoxError;

/// The largest answer that is read: 500 objects a page, of which etcd takes none above 1.5 MiB; a page of large ones is better read in smaller pages.
pub const MOST: usize = 64 << 20;
/// Requests of one plugin that are under way at once; more wait. Each of its 16 reconciles may ask for two things side by side.
const AT_ONCE: usize = 32;
/// Up to here an answer is small: an object hardly ever has more, nor a list of a hundred common ones.
const SMALL: usize = 256 << 10;
/// Large answers that are read at once, for all plugins.
const LARGE_AT_ONCE: usize = 2;
/// An answer that stops for so long gives the turn of all back until it goes on.
const STALLED: Duration = Duration::from_secs(2);
/// How long a request waits for one before it, of the time that it has for an answer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An answer beyond [`MOST`].
#[derive(Debug, thiserror::Error)]
#[error("the answer has more than {} MiB; list with a smaller `limit`", MOST >> 20)]
pub struct TooLarge;

/// A request that was not sent, since too many of its plugin are under way.
#[derive(Debug, thiserror::Error)]
#[error("{AT_ONCE} requests of the plugin are under way, and none ended within {} s", PATIENCE.as_secs())]
pub struct Busy;

/// What a request that a plugin's account makes is for, where it is not for one of its reconciles; travels with it and is never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A shared cache.
    Cache,
    /// The host wants to know what the account may do, and must learn it whatever the plugin does.
    Rights,
}

/// The places of all plugins.
#[derive(Debug)]
pub struct Answers {
    large: Arc<Semaphore>,
    plugins: Mutex<HashMap<PluginName, Places>>,
}

/// The places of one plugin.
#[derive(Debug, Clone)]
struct Places {
    requests: Arc<Semaphore>,
    large: Arc<Semaphore>,
    caches: Arc<Semaphore>,
}

/// The right to ask and to read a small answer, and the way to a large one.
#[derive(Debug)]
pub struct Turn {
    request: Option<OwnedSemaphorePermit>,
    plugin: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

impl Default for Answers {
    fn default() -> Self {
        Self { large: Arc::new(Semaphore::new(LARGE_AT_ONCE)), plugins: Mutex::default() }
    }
}

impl Answers {
    /// Waits until the plugin may ask. None where nobody counts.
    ///
    /// # Errors
    /// It asks for too much at once.
    pub async fn turn(&self, plugin: &PluginName, purpose: Option<Purpose>) -> Result<Option<Turn>, Busy> {
        let Places { requests, large, caches } = self.places(plugin);
        let all = Arc::clone(&self.large);
        Ok(match purpose {
            Some(Purpose::Rights) => None,
            Some(Purpose::Cache) => Some(Turn { request: None, plugin: caches, all }),
            None => {
                // An error within would say that the semaphore was closed, which nobody does.
                let request = timeout(PATIENCE, requests.acquire_owned()).await.map_err(|_| Busy)?.ok();
                Some(Turn { request, plugin: large, all })
            }
        })
    }

    fn places(&self, plugin: &PluginName) -> Places {
        let mut plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        if !plugins.contains_key(plugin) {
            // Whoever asks, or holds an answer, holds one of these.
            let idle = |semaphore: &Arc<Semaphore>| Arc::strong_count(semaphore) == 1;
            plugins.retain(|_, places| !(idle(&places.requests) && idle(&places.large) && idle(&places.caches)));
        }
        let of = |places| Arc::new(Semaphore::new(places));
        let new = || Places { requests: of(AT_ONCE), large: of(1), caches: of(1) };
        plugins.entry(plugin.clone()).or_insert_with(new).clone()
    }
}

/// Whether the answer is a stream of events.
pub fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")))
}

/// Reads a whole answer: of a plugin where there is a turn, and else of the host itself.
///
/// # Errors
/// [`TooLarge`], or what ended it.
pub async fn read<B>(mut body: B, turn: Option<Turn>) -> Result<Answer<B>, BoxError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let (mut frames, mut bytes) = (VecDeque::new(), 0_usize);
    let (mut own, mut of_all) = (None, None);
    loop {
        if let Some(turn) = turn.as_ref().filter(|_| bytes > SMALL) {
            if own.is_none() {
                own = Arc::clone(&turn.plugin).acquire_owned().await.ok();
            }
            if of_all.is_none() {
                of_all = Arc::clone(&turn.all).acquire_owned().await.ok();
            }
        }
        let frame = if let Ok(frame) = timeout(STALLED, body.frame()).await {
            frame
        } else {
            of_all = None;
            body.frame().await
        };
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(Into::into)?.into_data() else { continue };
        bytes = bytes.saturating_add(data.len());
        if bytes > MOST {
            return Err(TooLarge.into());
        }
        frames.push_back(data);
    }
    Ok(Answer::Whole { frames, held: (turn.and_then(|turn| turn.request), own) })
}

/// The body of an answer.
#[derive(Debug)]
pub enum Answer<B> {
    /// Events, one after the other.
    Stream(B),
    /// All of it, and the plugin's turns, which it has until the answer is taken.
    Whole {
        /// What is left of it.
        frames: VecDeque<Bytes>,
        /// The turns.
        held: (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>),
    },
}

impl<B> Body for Answer<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Stream(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Whole { frames, .. } => Poll::Ready(frames.pop_front().map(|data| Ok(Frame::data(data)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Stream(body) => body.is_end_stream(),
            Self::Whole { frames, .. } => frames.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Stream(body) => body.size_hint(),
            Self::Whole { frames, .. } => SizeHint::with_exact(frames.iter().map(|data| data.len() as u64).sum()),
        }
    }
}

#[cfg(test)]
mod tests;
