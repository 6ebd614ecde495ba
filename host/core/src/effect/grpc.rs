//! Effects on gRPC services: the channel is granted, path and metadata cannot be taken for anything else, and all that passes is counted.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{
    Call, Effects, printable,
    tally::{Held, Tally},
    view::Still,
};
use crate::{
    grant::Denial,
    limit::{Exceeded, Limit},
    name::ChannelName,
    port::{Exchange, GrpcCall, GrpcReply, GrpcStatus, Metadata, Objection},
};

/// gRPC's INVALID_ARGUMENT.
const INVALID_ARGUMENT: u32 = 3;
/// gRPC's PERMISSION_DENIED.
const PERMISSION_DENIED: u32 = 7;
/// gRPC's RESOURCE_EXHAUSTED.
const RESOURCE_EXHAUSTED: u32 = 8;
/// Bytes of all metadata of a call; gRPC's own default for what a peer takes.
const METADATA: usize = 8 << 10;
/// Bytes of a path.
const PATH: usize = 512;

impl From<Exceeded> for GrpcStatus {
    fn from(exceeded: Exceeded) -> Self {
        let objection = Some(Objection::Limit(exceeded.limit));
        Self { objection, ..Self::of(RESOURCE_EXHAUSTED, exceeded.to_string()) }
    }
}

fn denied(denial: &Denial) -> GrpcStatus {
    let objection = Some(Objection::Denied);
    GrpcStatus { objection, ..GrpcStatus::of(PERMISSION_DENIED, format!("denied: {denial}")) }
}

impl Effects {
    /// A unary gRPC call on a named channel.
    pub async fn unary(&self, channel: &str, call: GrpcCall, message: Vec<u8>) -> Result<GrpcReply, GrpcStatus> {
        let effect = async {
            let (channel, call) = self.allow_grpc(channel, call, message.len())?;
            // An answer that is never whole holds as much as a stream does.
            let _place = self.tally.stream()?;
            let reply = self.ports.channels.unary(&channel, call, message).await;
            let reply = self.tally.told(reply)?;
            self.tally.answer(reply.message.len(), Limit::GrpcMessage)?;
            Ok(reply)
        };
        self.metered(Call::Grpc, effect).await
    }

    /// Opens a streaming gRPC call on a named channel.
    pub async fn open(&self, channel: &str, call: GrpcCall) -> Result<Box<dyn Exchange>, GrpcStatus> {
        let effect = async {
            let (channel, call) = self.allow_grpc(channel, call, 0)?;
            let place = self.tally.stream()?;
            let exchange = self.ports.channels.open(&channel, call).await;
            let inner = self.tally.told(exchange)?;
            let (tally, still) = (Arc::clone(&self.tally), self.still());
            let exchange: Box<dyn Exchange> = Box::new(Counted { inner, channel, still, tally, _place: place });
            Ok(exchange)
        };
        self.metered(Call::Grpc, effect).await
    }

    fn allow_grpc(&self, channel: &str, call: GrpcCall, bytes: usize) -> Result<(ChannelName, GrpcCall), GrpcStatus> {
        self.tally.call(bytes, Limit::GrpcMessage)?;
        self.tally.beside(call.size())?;
        let channel = self.policy.now().grants.check_channel(channel).map_err(|denial| {
            let denial = self.policy.told(denial);
            (self.ports.denials)(&denial);
            denied(&denial)
        })?;
        call.check_form()?;
        let limit = self.tally.limits.deadline;
        Ok((channel, GrpcCall { deadline: Some(call.deadline.map_or(limit, |d: Duration| d.min(limit))), ..call }))
    }
}

impl GrpcCall {
    /// Whether its path is one, and its metadata is a plugin's to send.
    pub fn check_form(&self) -> Result<(), GrpcStatus> {
        let form = check_path(&self.path).and_then(|()| check_metadata(&self.metadata));
        form.map_err(|why| GrpcStatus::of(INVALID_ARGUMENT, why))
    }

    /// Bytes of its path and its metadata.
    fn size(&self) -> usize {
        self.path.len() + bytes(&self.metadata)
    }
}

impl Tally {
    /// Counts a limit that the port itself met.
    fn told<T>(&self, result: Result<T, GrpcStatus>) -> Result<T, GrpcStatus> {
        if let Err(GrpcStatus { objection: Some(Objection::Limit(limit)), .. }) = &result {
            self.exceed(*limit, "");
        }
        result
    }
}

/// An open exchange whose every message is counted, as long as its channel is granted.
struct Counted {
    inner: Box<dyn Exchange>,
    channel: ChannelName,
    still: Still,
    tally: Arc<Tally>,
    _place: Held,
}

impl Counted {
    fn is_granted(&self) -> Result<(), GrpcStatus> {
        self.still.check(|grants| grants.check_channel(self.channel.as_str())).map_err(|denial| denied(&denial))
    }
}

#[async_trait]
impl Exchange for Counted {
    async fn send(&self, message: Vec<u8>) -> Result<(), GrpcStatus> {
        self.tally.call(message.len(), Limit::GrpcMessage)?;
        self.is_granted()?;
        self.tally.told(self.inner.send(message).await)
    }

    fn half_close(&self) {
        self.inner.half_close();
    }

    async fn headers(&self) -> Result<Metadata, GrpcStatus> {
        self.tally.call(0, Limit::GrpcMessage)?;
        self.is_granted()?;
        self.tally.told(self.inner.headers().await)
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Vec<u8>>, GrpcStatus> {
        self.tally.call(0, Limit::GrpcMessage)?;
        self.is_granted()?;
        let messages = self.tally.told(self.inner.receive(limit).await)?;
        // It may have waited for long.
        self.is_granted()?;
        for message in &messages {
            self.tally.answer(message.len(), Limit::GrpcMessage)?;
        }
        Ok(messages)
    }

    fn trailers(&self) -> Metadata {
        self.is_granted().map_or_else(|_| Metadata::new(), |()| self.inner.trailers())
    }
}

fn check_path(path: &str) -> Result<(), String> {
    let word = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    match path.strip_prefix('/').and_then(|rest| rest.split_once('/')) {
        Some((service, method)) if path.len() <= PATH && service.split('.').all(word) && word(method) => Ok(()),
        _ => Err(format!("{:?} is not a gRPC path; write /package.Service/Method", printable(path, 200))),
    }
}

/// Whether a metadata key belongs to gRPC, to HTTP, or to whoever vouches for the caller: the host, where the channel has credentials, and nobody where it has none.
fn is_reserved(key: &str) -> bool {
    const WORDS: [&str; 14] = [
        "authorization",
        "connection",
        "cookie",
        "expect",
        "forwarded",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "via",
    ];
    const FAMILIES: [&str; 4] = ["content-", "grpc-", "proxy-", "x-forwarded-"];
    WORDS.contains(&key) || FAMILIES.iter().any(|family| key.starts_with(family))
}

fn bytes(metadata: &[(String, Vec<u8>)]) -> usize {
    metadata.iter().map(|(key, value)| key.len() + value.len()).sum()
}

fn check_metadata(metadata: &[(String, Vec<u8>)]) -> Result<(), String> {
    let bytes = bytes(metadata);
    if bytes > METADATA {
        return Err(format!("the metadata has {bytes} bytes; a call takes at most {METADATA}"));
    }
    for (key, value) in metadata {
        let form = !key.is_empty()
            && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.'));
        if !form || is_reserved(key) {
            return Err(format!("metadata key {:?} is not allowed from a plugin", printable(key, 100)));
        }
        if !key.ends_with("-bin") && !value.iter().all(|b| matches!(b, 0x20..=0x7e)) {
            return Err(format!(
                "metadata value of {key:?} is not printable ASCII; a key that ends in -bin may carry bytes"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn metadata_is_as_large_as_a_peer_takes_and_no_larger() {
        let of = |key: &str, bytes: usize| check_metadata(&[(key.to_owned(), vec![b'x'; bytes])]);
        assert!(of("xy", 5_000).is_ok() && of("x", METADATA - 1).is_ok());
        assert!(of("x", METADATA).is_err() && of("x", 2 * METADATA).is_err());
    }

    proptest! {
        #[test]
        fn a_path_that_is_taken_has_one_service_and_one_method(path in "\\PC{0,40}|/[a-zA-Z0-9_./%?#\\\\\r\n\0-]{0,40}") {
            if check_path(&path).is_ok() {
                prop_assert_eq!(path.matches('/').count(), 2);
                prop_assert!(path.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'/')), "{:?}", path);
                prop_assert!(!path.contains(".."), "{:?}", path);
            }
        }

        #[test]
        fn no_metadata_that_is_taken_is_a_header_of_the_hosts_or_breaks_out_of_its_own(
            key in "\\PC{0,20}|[a-z0-9:_.-]{1,20}|(grpc|content|proxy|x-forwarded)-[a-z]{0,8}|(te|host|authorization|cookie|user-agent)",
            value in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            if check_metadata(&[(key.clone(), value.clone())]).is_ok() {
                for owned in ["grpc-", "content-", "proxy-", "x-forwarded-", ":"] {
                    prop_assert!(!key.starts_with(owned), "{:?}", key);
                }
                prop_assert!(!["te", "host", "authorization", "cookie", "user-agent"].contains(&&*key), "{:?}", key);
                prop_assert!(key.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase()), "{:?}", key);
                prop_assert!(key.ends_with("-bin") || value.iter().all(|b| (0x20..0x7f).contains(b)), "{:?}", value);
            }
        }
    }
}
