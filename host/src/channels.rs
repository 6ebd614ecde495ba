//! Outbound gRPC: the channels that a Plugin document names, each one pooled HTTP/2 connection with keep-alive, over which messages pass as bytes.

mod load;
mod wire;

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use operetta_api::Channel as ChannelSpec;
use operetta_core::{
    aside::Aside,
    name::ChannelName,
    port::{Channels, Exchange, GrpcCall, GrpcReply, GrpcStatus, Metadata},
};
use tokio::{
    sync::{Mutex, mpsc},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Response, Status, Streaming,
    client::Grpc,
    metadata::{AsciiMetadataKey, BinaryMetadataKey, KeyAndValueRef, MetadataMap, MetadataValue},
};

use crate::credentials::{Unready, Vault};
use load::{Carrier, Passing, Sent};
use wire::{Link, UNAUTHENTICATED, Wire};

/// How many messages wait to be sent on one stream before the guest must wait, however short they are.
const SEND_AHEAD: usize = 16;

/// The channels of one plugin.
#[derive(Default)]
pub struct GrpcChannels {
    channels: HashMap<ChannelName, Arc<Wire>>,
    /// Bytes of one message.
    limit: usize,
}

impl GrpcChannels {
    /// Reads the credentials and connects to nothing yet: each channel does when it is first called, and again whenever its connection is lost.
    ///
    /// # Errors
    /// An endpoint is no URL, or a Secret is missing.
    pub async fn open(
        specs: &[ChannelSpec],
        limit: usize,
        vault: &Arc<dyn Vault>,
        aside: &Aside,
    ) -> Result<Self, Unready> {
        let mut channels = HashMap::new();
        for spec in specs {
            channels.insert(spec.name.clone(), Arc::new(Wire::read(spec, limit, vault, aside.clone()).await?));
        }
        Ok(Self { channels, limit })
    }

    /// Whether the endpoints can be used, as far as that shows without a cluster.
    ///
    /// # Errors
    /// An endpoint is no URL.
    pub fn check(specs: &[ChannelSpec]) -> Result<(), Unready> {
        specs.iter().try_for_each(|spec| wire::endpoint(spec).map(drop))
    }

    fn wire(&self, channel: &ChannelName) -> Result<&Arc<Wire>, GrpcStatus> {
        // Grants and channels come from one document, so this is a fault of the host and no denial.
        self.channels.get(channel).ok_or_else(|| GrpcStatus::of(13, format!("channel {channel} has no endpoint")))
    }

    fn client(&self, link: &Link, passing: &Arc<Passing>) -> Grpc<Carrier> {
        passing.client(link.channel.clone()).max_decoding_message_size(self.limit)
    }
}

/// A call's parts: the request with its metadata, its path, and when it must be over.
fn begin<T>(
    call: GrpcCall,
    link: &Link,
    body: T,
) -> Result<(Request<T>, http::uri::PathAndQuery, Option<Instant>), GrpcStatus> {
    let invalid = |what: String| GrpcStatus::of(3, what);
    let mut request = Request::new(body);
    for (key, value) in call.metadata {
        let map = request.metadata_mut();
        if key.ends_with("-bin") {
            let key = BinaryMetadataKey::from_bytes(key.as_bytes())
                .map_err(|e| invalid(format!("metadata key {key:?}: {e}")))?;
            map.append_bin(key, MetadataValue::from_bytes(&value));
        } else {
            let name = AsciiMetadataKey::from_bytes(key.as_bytes())
                .map_err(|e| invalid(format!("metadata key {key:?}: {e}")))?;
            let value = MetadataValue::try_from(value.as_slice())
                .map_err(|e| invalid(format!("metadata value of {key:?}: {e}")))?;
            map.append(name, value);
        }
    }
    if let Some(token) = &link.token {
        // In place of whatever else it may be.
        request.metadata_mut().insert("authorization", token.clone());
    }
    if let Some(deadline) = call.deadline {
        request.set_timeout(deadline);
    }
    let path = call.path.parse().map_err(|e| invalid(format!("path {:?}: {e}", call.path)))?;
    Ok((request, path, call.deadline.map(|d| Instant::now() + d)))
}

async fn until<T>(
    wire: &Wire,
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, GrpcStatus> {
    let late = || GrpcStatus::of(4, "the call took longer than its deadline");
    let Some(at) = deadline else { return work.await.map_err(|found| wire.tell(&found)) };
    let result = tokio::time::timeout_at(at, work).await.map_err(|_| late())?;
    // tonic watches the same deadline, on both sides, and calls what it does then a cancellation.
    result.map_err(
        |found| if found.code() == Code::Cancelled && Instant::now() >= at { late() } else { wire.tell(&found) },
    )
}

#[async_trait]
impl Channels for GrpcChannels {
    async fn unary(&self, channel: &ChannelName, call: GrpcCall, message: Vec<u8>) -> Result<GrpcReply, GrpcStatus> {
        let wire = self.wire(channel)?;
        let link = wire.link();
        let status = match self.unary_over(wire, &link, call.clone(), message.clone()).await {
            Err(status) => status,
            reply => return reply,
        };
        // A service that does not know the caller has done nothing, so it may be asked again; of any other failure the plugin decides.
        let renewed = wire.refused(&link, &status).await;
        if renewed && status.code == UNAUTHENTICATED {
            return self.unary_over(wire, &wire.link(), call, message).await;
        }
        Err(status)
    }

    async fn open(&self, channel: &ChannelName, call: GrpcCall) -> Result<Box<dyn Exchange>, GrpcStatus> {
        let wire = Arc::clone(self.wire(channel)?);
        let (link, passing) = (wire.link(), wire.load.call());
        let mut client = self.client(&link, &passing);
        let (outgoing, messages) = mpsc::channel(SEND_AHEAD);
        let (request, path, deadline) = begin(call, &link, ReceiverStream::new(messages))?;
        until(&wire, deadline, async { client.ready().await.map_err(|e| Status::from_error(e.into())) }).await?;
        // In a task, since the peer may answer only after it has heard something.
        let codec = passing.codec();
        let answer = tokio::spawn(async move { client.streaming(request, path, codec).await });
        Ok(Box::new(OpenExchange {
            outgoing: std::sync::Mutex::new(Some(outgoing)),
            passing,
            cancel: answer.abort_handle(),
            incoming: Mutex::new(Incoming::Waiting(answer)),
            trailers: std::sync::Mutex::default(),
            deadline,
            limit: self.limit,
            over: (wire, link),
        }))
    }
}

impl GrpcChannels {
    async fn unary_over(
        &self,
        wire: &Wire,
        link: &Link,
        call: GrpcCall,
        message: Vec<u8>,
    ) -> Result<GrpcReply, GrpcStatus> {
        let passing = wire.load.call();
        let mut client = self.client(link, &passing);
        let (request, path, deadline) = begin(call, link, ())?;
        let response = until(wire, deadline, async {
            let message = passing.send(message).await?;
            let (metadata, extensions, ()) = request.into_parts();
            client.ready().await.map_err(|e| Status::from_error(e.into()))?;
            client.unary(Request::from_parts(metadata, extensions, message), path, passing.codec()).await
        })
        .await?;
        // tonic merges the trailers of a unary answer into its headers.
        let (headers, message, _) = response.into_parts();
        Ok(GrpcReply { headers: metadata(&headers), message, trailers: Metadata::new() })
    }
}

struct OpenExchange {
    outgoing: std::sync::Mutex<Option<mpsc::Sender<Sent>>>,
    passing: Arc<Passing>,
    cancel: tokio::task::AbortHandle,
    incoming: Mutex<Incoming>,
    trailers: std::sync::Mutex<Metadata>,
    deadline: Option<Instant>,
    limit: usize,
    over: (Arc<Wire>, Arc<Link>),
}

enum Incoming {
    Waiting(tokio::task::JoinHandle<Result<Response<Streaming<Vec<u8>>>, Status>>),
    Open { headers: Metadata, messages: Streaming<Vec<u8>> },
    Ended(Result<(), GrpcStatus>),
}

impl Drop for OpenExchange {
    fn drop(&mut self) {
        self.cancel.abort();
    }
}

fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl OpenExchange {
    /// Waits until the answer has begun, or has ended already.
    async fn begun(&self, incoming: &mut Incoming) -> Result<(), GrpcStatus> {
        if let Incoming::Waiting(answer) = incoming {
            let (wire, link) = &self.over;
            let answer =
                until(wire, self.deadline, async { answer.await.map_err(|e| Status::cancelled(e.to_string()))? }).await;
            *incoming = match answer {
                Ok(response) => {
                    let (headers, messages, _) = response.into_parts();
                    Incoming::Open { headers: metadata(&headers), messages }
                }
                Err(status) => {
                    // For the next call; what was sent on this one is gone.
                    wire.refused(link, &status).await;
                    Incoming::Ended(Err(status))
                }
            };
        }
        match incoming {
            Incoming::Ended(Err(status)) => Err(status.clone()),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Exchange for OpenExchange {
    async fn send(&self, message: Vec<u8>) -> Result<(), GrpcStatus> {
        let outgoing = locked(&self.outgoing).clone();
        let Some(outgoing) = outgoing else {
            return Err(GrpcStatus::of(9, "this side of the stream is closed already"));
        };
        let send = async {
            let message = tokio::select! {
                biased;
                () = outgoing.closed() => return Ok::<_, Status>(false),
                message = self.passing.send(message) => message?,
            };
            Ok(outgoing.send(message).await.is_ok())
        };
        if until(&self.over.0, self.deadline, send).await? {
            return Ok(());
        }
        // The call has ended; how, only its answer knows.
        let mut incoming = self.incoming.lock().await;
        self.begun(&mut incoming).await?;
        Err(GrpcStatus::of(9, "the service takes no more messages on this stream"))
    }

    fn half_close(&self) {
        locked(&self.outgoing).take();
    }

    async fn headers(&self) -> Result<Metadata, GrpcStatus> {
        let mut incoming = self.incoming.lock().await;
        self.begun(&mut incoming).await?;
        Ok(match &*incoming {
            Incoming::Open { headers, .. } => headers.clone(),
            _ => Metadata::new(),
        })
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Vec<u8>>, GrpcStatus> {
        let mut incoming = self.incoming.lock().await;
        self.begun(&mut incoming).await?;
        let Incoming::Open { messages, .. } = &mut *incoming else { return Ok(Vec::new()) };
        let wire = &self.over.0;
        let first = until(wire, self.deadline, messages.message()).await;
        let first = match first {
            Ok(Some(message)) => message,
            Ok(None) => {
                let trailers = messages.trailers().await.map_err(|found| wire.tell(&found))?;
                *locked(&self.trailers) = trailers.as_ref().map(metadata).unwrap_or_default();
                *incoming = Incoming::Ended(Ok(()));
                return Ok(Vec::new());
            }
            Err(status) => {
                *incoming = Incoming::Ended(Err(status.clone()));
                return Err(status);
            }
        };
        let mut received = vec![first];
        // What has arrived already; an end or an error is met again by the next call.
        let mut bytes = received.iter().map(Vec::len).sum::<usize>();
        while received.len() < limit && bytes < self.limit {
            let next = futures::FutureExt::now_or_never(messages.message());
            match next {
                Some(Ok(Some(message))) => {
                    bytes += message.len();
                    received.push(message);
                }
                Some(Ok(None)) => {
                    let trailers = messages.trailers().await.map_err(|found| wire.tell(&found))?;
                    *locked(&self.trailers) = trailers.as_ref().map(metadata).unwrap_or_default();
                    *incoming = Incoming::Ended(Ok(()));
                    break;
                }
                Some(Err(error)) => {
                    *incoming = Incoming::Ended(Err(wire.tell(&error)));
                    break;
                }
                None => break,
            }
        }
        Ok(received)
    }

    fn trailers(&self) -> Metadata {
        locked(&self.trailers).clone()
    }
}

fn metadata(map: &MetadataMap) -> Metadata {
    map.iter()
        .filter_map(|entry| match entry {
            KeyAndValueRef::Ascii(key, value) => Some((key.as_str().to_owned(), value.as_bytes().to_vec())),
            KeyAndValueRef::Binary(key, value) => Some((key.as_str().to_owned(), value.to_bytes().ok()?.to_vec())),
        })
        .collect()
}

#[cfg(test)]
mod credential_tests;
#[cfg(test)]
mod tests;
