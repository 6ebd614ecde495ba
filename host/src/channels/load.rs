//! What one channel holds of messages: of those that were sent until they have left the host, and of those that come until they are whole.
//!
//! # Guarantees
//! - **A service that does not read costs [`OUT`] messages**, however many streams to it are open: who wants to send another waits. A message counts from before it waits for its turn until
//!   HTTP/2 has written its last byte, or has given up its stream.
//! - **A service that never ends a message costs [`IN`] messages**: a call that would hold more ends with an error that says so. Waiting would not do there, since all that has come would
//!   wait for one another. Each call has [`FREE`] bytes apart from that.
//!
//! # Assumptions
//! - tonic's encoder keeps nothing back of what it encoded when it yields a frame.
//! - What nobody asks for stays within the windows of HTTP/2: 2 MiB of a stream, 5 MiB of a connection.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BufMut as _, Bytes};
use futures::future::BoxFuture;
use http_body::{Body as HttpBody, Frame, SizeHint};
use operetta_core::{
    limit::{Exceeded, Limit},
    name::ChannelName,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{
    Status,
    body::Body,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Channel,
};
use tower::Service;

/// Messages, as long as one may be, that may be on their way out.
const OUT: usize = 8;
/// Messages, as long as one may be, of which a part may have come.
const IN: usize = 32;
/// Bytes that each call may hold of a message that comes, whatever the others hold: nearly all messages are shorter.
const FREE: usize = 64 << 10;
/// Bytes before each message: whether it is compressed, and its length.
const HEADER: usize = 5;

/// What a channel holds.
pub(super) struct Load {
    channel: ChannelName,
    /// A permit for each byte.
    out: Arc<Semaphore>,
    most_out: u32,
    coming: AtomicUsize,
    most_coming: usize,
}

impl Load {
    /// Of a channel with messages of so many bytes.
    pub fn new(channel: &ChannelName, message: usize) -> Arc<Self> {
        let whole = message.saturating_add(HEADER);
        let most_out = u32::try_from(whole.saturating_mul(OUT)).unwrap_or(u32::MAX);
        let out = Arc::new(Semaphore::new(usize::try_from(most_out).unwrap_or(Semaphore::MAX_PERMITS)));
        let (coming, most_coming) = (AtomicUsize::new(0), whole.saturating_mul(IN));
        Arc::new(Self { channel: channel.clone(), out, most_out, coming, most_coming })
    }

    /// Of one call.
    pub fn call(self: &Arc<Self>) -> Arc<Passing> {
        let (encoded, coming) = (Mutex::default(), AtomicUsize::new(0));
        Arc::new(Passing { load: Arc::clone(self), encoded, coming })
    }
}

/// A message that has a place on its way out.
pub(super) struct Sent {
    message: Vec<u8>,
    place: OwnedSemaphorePermit,
}

/// What passes in one call.
pub(super) struct Passing {
    load: Arc<Load>,
    /// The places of what was encoded and is in no frame yet.
    encoded: Mutex<Vec<OwnedSemaphorePermit>>,
    /// Bytes that came and are no message yet.
    coming: AtomicUsize,
}

impl Passing {
    /// Waits until there is room for it on its way out.
    pub async fn send(&self, message: Vec<u8>) -> Result<Sent, Status> {
        let bytes = u32::try_from(message.len().saturating_add(HEADER)).unwrap_or(u32::MAX).min(self.load.most_out);
        let place = Arc::clone(&self.load.out).acquire_many_owned(bytes).await;
        // Nobody closes it.
        let place = place.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Sent { message, place })
    }

    /// Calls over this connection.
    pub fn client(self: &Arc<Self>, channel: Channel) -> Grpc<Carrier> {
        Grpc::new(Carrier { channel, passing: Arc::clone(self) })
    }

    /// How messages become bytes.
    pub fn codec(self: &Arc<Self>) -> Bare {
        Bare(Arc::clone(self))
    }

    fn encoded(&self, place: OwnedSemaphorePermit) {
        self.encoded.lock().unwrap_or_else(PoisonError::into_inner).push(place);
    }

    /// Gives what is to be written the places of the messages in it.
    fn leaves(&self, bytes: Bytes) -> Bytes {
        let places = std::mem::take(&mut *self.encoded.lock().unwrap_or_else(PoisonError::into_inner));
        if places.is_empty() { bytes } else { Bytes::from_owner(Leaving { bytes, _places: places }) }
    }

    fn came(&self, bytes: usize) -> Result<(), Exceeded> {
        if bytes == 0 {
            return Ok(());
        }
        let here = self.coming.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let (most, before) = (self.load.most_coming, self.load.coming.fetch_add(bytes, Ordering::Relaxed));
        if here <= FREE || before.saturating_add(bytes) <= most {
            return Ok(());
        }
        let what = format!(
            "what has come over channel {} of messages that are not whole yet is more than {most} bytes, {IN} messages; ask for less at a time",
            self.load.channel
        );
        Err(Exceeded { limit: Limit::Waiting, what })
    }

    /// So much of it is a message, or nobody's any more.
    fn gone(&self, bytes: usize) {
        // Whoever reads a call's messages is alone, so that nothing comes meanwhile.
        let gone = self.coming.load(Ordering::Relaxed).min(bytes);
        self.coming.fetch_sub(gone, Ordering::Relaxed);
        self.load.coming.fetch_sub(gone, Ordering::Relaxed);
    }
}

/// What HTTP/2 keeps until it is written.
struct Leaving {
    bytes: Bytes,
    _places: Vec<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Leaving {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A connection that counts what passes in one call.
pub(super) struct Carrier {
    channel: Channel,
    passing: Arc<Passing>,
}

impl Service<http::Request<Body>> for Carrier {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = BoxFuture<'static, Result<http::Response<Body>, tonic::transport::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), tonic::transport::Error>> {
        <Channel as Service<http::Request<Body>>>::poll_ready(&mut self.channel, context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let passing = Arc::clone(&self.passing);
        let request = request.map(|body| Body::new(Outgoing { body, passing: Arc::clone(&passing) }));
        let answer = Service::call(&mut self.channel, request);
        Box::pin(async move { Ok(answer.await?.map(|body| Body::new(Coming { body, passing }))) })
    }
}

/// The messages of the plugin.
struct Outgoing {
    body: Body,
    passing: Arc<Passing>,
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| self.passing.leaves(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The messages of the service.
struct Coming {
    body: Body,
    passing: Arc<Passing>,
}

impl HttpBody for Coming {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        Poll::Ready(match self.passing.came(bytes) {
            Ok(()) => frame,
            Err(exceeded) => Some(Err(Status::from_error(Box::new(exceeded)))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.passing.gone(usize::MAX);
    }
}

/// Messages are bytes already.
pub(super) struct Bare(Arc<Passing>);

impl Codec for Bare {
    type Encode = Sent;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self(Arc::clone(&self.0))
    }

    fn decoder(&mut self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl Encoder for Bare {
    type Item = Sent;
    type Error = Status;

    fn encode(&mut self, item: Sent, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item.message);
        self.0.encoded(item.place);
        Ok(())
    }
}

impl Decoder for Bare {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; bytes.remaining()];
        bytes.copy_to_slice(&mut message);
        self.0.gone(message.len().saturating_add(HEADER));
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, stream};
    use http_body_util::BodyExt as _;
    use tonic::codec::EncodeBody;

    use super::*;

    fn load(message: usize) -> Arc<Load> {
        Load::new(&ChannelName::parse("echo").unwrap(), message)
    }

    #[tokio::test]
    async fn a_message_has_its_place_from_before_it_is_encoded_until_its_bytes_are_written() {
        let load = load(10);
        let call = load.call();
        let mut messages = Vec::new();
        for _ in 0..OUT {
            messages.push(call.send(vec![1; 10]).await);
        }
        let waits = || load.call().send(vec![1; 10]).now_or_never().is_none();
        assert!(waits());
        let encoded = EncodeBody::new_client(call.codec(), stream::iter(messages), None, None);
        let mut body = Outgoing { body: Body::new(encoded), passing: call };
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame.len(), OUT * (10 + HEADER));
        // HTTP/2 takes it apart as there is room.
        let rest = frame.slice(100..);
        drop(frame);
        assert!(waits());
        drop(rest);
        assert!(!waits());
        // And one that is longer than may be does not wait for ever.
        assert!(load.call().send(vec![1; 1_000]).now_or_never().is_some());
    }

    #[test]
    fn what_comes_is_counted_until_it_is_whole_and_what_is_short_always_comes() {
        let load = load(FREE);
        let held = || load.coming.load(Ordering::Relaxed);
        let calls: Vec<_> = (0..=IN).map(|_| load.call()).collect();
        for call in &calls[..IN] {
            call.came(FREE + HEADER).unwrap();
        }
        calls[IN].came(FREE).unwrap();
        let error = calls[IN].came(1).unwrap_err();
        assert!(error.limit == Limit::Waiting && error.to_string().contains("channel echo"), "{error}");
        // The end of a call is none of it.
        calls[IN].came(0).unwrap();
        calls[IN].gone(usize::MAX);
        assert_eq!(held(), load.most_coming);
        calls[0].gone(FREE + HEADER);
        calls[IN].came(FREE + HEADER).unwrap();
        assert_eq!(held(), load.most_coming);
        for call in &calls {
            call.gone(usize::MAX);
        }
        assert_eq!(held(), 0);
    }
}
