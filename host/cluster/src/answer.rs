//! Answers of the API server on their way in: how many a plugin may wait for at once, and how much of the host's memory they take meanwhile.
//!
//! What is small is read as it comes. The rest of a large answer waits for its turn, of which each plugin has one and all together have [`LARGE_AT_ONCE`]; whoever waits for the turn of
//! all has that of its plugin, and so a plugin is in line once, however much it asks for. Watches are read event by event and wait for nobody, and neither does what the host itself asks.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Uri;
use http_body::{Body, Frame, SizeHint};
use operetta_core::name::PluginName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;
use tower::BoxError;

/// The largest answer that is read: 500 objects a page, of which etcd takes none above 1.5 MiB; a page of large ones is better read in smaller pages.
pub const MOST: usize = 64 << 20;
/// Requests of one plugin that are under way at once; more wait. Each of its 16 reconciles may ask for two things side by side.
const AT_ONCE: usize = 32;
/// Up to here an answer is small: an object hardly ever has more, nor a list of a hundred common ones.
const SMALL: usize = 256 << 10;
/// Large answers that are read at once, for all plugins.
const LARGE_AT_ONCE: usize = 2;

/// An answer beyond [`MOST`].
#[derive(Debug, thiserror::Error)]
#[error("the answer has more than {} MiB; list with a smaller `limit`", MOST >> 20)]
pub struct TooLarge;

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
}

/// The right to ask and to read a small answer, held until the answer is read.
#[derive(Debug)]
pub struct Turn {
    _request: Option<OwnedSemaphorePermit>,
    plugin: PollSemaphore,
    all: PollSemaphore,
}

impl Default for Answers {
    fn default() -> Self {
        Self { large: Arc::new(Semaphore::new(LARGE_AT_ONCE)), plugins: Mutex::default() }
    }
}

impl Answers {
    /// Waits until the plugin may ask.
    pub async fn turn(&self, plugin: &PluginName) -> Turn {
        let Places { requests, large } = self.places(plugin);
        // An error would say that the semaphore was closed, which nobody does.
        let request = requests.acquire_owned().await.ok();
        Turn { _request: request, plugin: PollSemaphore::new(large), all: PollSemaphore::new(Arc::clone(&self.large)) }
    }

    fn places(&self, plugin: &PluginName) -> Places {
        let mut plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        if !plugins.contains_key(plugin) {
            plugins.retain(|_, places| places.requests.available_permits() < AT_ONCE);
        }
        let new = || Places { requests: Arc::new(Semaphore::new(AT_ONCE)), large: Arc::new(Semaphore::new(1)) };
        plugins.entry(plugin.clone()).or_insert_with(new).clone()
    }
}

/// Whether the answer is a stream of events.
pub fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")))
}

/// The body of an answer, held to its share.
#[derive(Debug)]
pub struct Measured<B> {
    inner: B,
    /// Bytes so far; none where nobody counts.
    read: Option<usize>,
    turn: Option<Turn>,
    /// The turns of the plugin and of all.
    large: (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>),
}

impl<B> Measured<B> {
    /// A stream of events, which never ends.
    pub fn stream(inner: B) -> Self {
        Self { inner, read: None, turn: None, large: (None, None) }
    }

    /// Of a plugin where there is a turn, and else of the host itself.
    pub fn whole(inner: B, turn: Option<Turn>) -> Self {
        Self { inner, read: Some(0), turn, large: (None, None) }
    }

    fn poll_large(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(turn) = &mut self.turn {
            if self.large.0.is_none() {
                self.large.0 = ready!(turn.plugin.poll_acquire(cx));
            }
            if self.large.1.is_none() {
                self.large.1 = ready!(turn.all.poll_acquire(cx));
            }
        }
        Poll::Ready(())
    }
}

impl<B> Body for Measured<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.read.is_some_and(|read| read > SMALL) {
            ready!(self.poll_large(cx));
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let (Some(read), Some(Ok(frame))) = (&mut self.read, &frame) {
            *read = read.saturating_add(frame.data_ref().map_or(0, Bytes::len));
            if *read > MOST {
                return Poll::Ready(Some(Err(TooLarge.into())));
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests;
