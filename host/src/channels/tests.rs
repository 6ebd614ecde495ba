//! Against a real server in this process, made by hand: it takes bytes and answers bytes.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, BufMut as _};
use futures::{Stream, StreamExt as _, stream, stream::FuturesUnordered};
use http_body_util::{BodyExt as _, StreamBody};
use operetta_core::{limit::Limit, port::Objection};
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::Service,
    server,
    transport::Server,
};
use tower::service_fn;

use super::*;
use crate::testing::{Drawer, ear};

/// Of calls: longer than any test waits.
const DEADLINE: Duration = Duration::from_mins(2);
const SOON: Duration = Duration::from_secs(30);

/// What the server takes messages for: bytes.
#[derive(Debug, Clone, Copy)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;
    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;
    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; bytes.remaining()];
        bytes.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}

/// A server, and what it saw.
#[derive(Clone)]
pub(super) struct Echo {
    /// How many calls that never end are under way.
    pub waiting: watch::Sender<usize>,
}

/// One call that never ends.
struct Waiting(watch::Sender<usize>);

impl Waiting {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

type Messages = Pin<Box<dyn Stream<Item = Result<Vec<u8>, Status>> + Send>>;

fn tagged<T>(request: &MetadataMap, body: T) -> Response<T> {
    let mut response = Response::new(body);
    // What was sent comes back under another name, and bytes as bytes.
    for tag in request.get_all("x-tag") {
        response.metadata_mut().append("x-seen", tag.clone());
    }
    if let Some(tag) = request.get_bin("x-tag-bin") {
        response.metadata_mut().insert_bin("x-seen-bin", tag.clone());
    }
    if let Some(timeout) = request.get("grpc-timeout") {
        response.metadata_mut().insert("x-timeout", timeout.clone());
    }
    response
}

impl Echo {
    async fn answer(self, request: http::Request<Body>) -> http::Response<Body> {
        let mut grpc = server::Grpc::new(Bytes);
        let waiting = self.waiting;
        match request.uri().path() {
            "/test.Echo/Echo" => {
                let echo = |request: Request<Vec<u8>>| async move {
                    let (metadata, _, message) = request.into_parts();
                    Ok(tagged(&metadata, message))
                };
                grpc.unary(service_fn(echo), request).await
            }
            "/test.Echo/Big" => {
                grpc.unary(service_fn(|_: Request<Vec<u8>>| async { Ok(Response::new(vec![7; 3_000])) }), request).await
            }
            "/test.Echo/Fail" => {
                let fail = |_: Request<Vec<u8>>| async {
                    let mut status =
                        Status::with_details(Code::FailedPrecondition, "not now", b"why".as_slice().into());
                    status.metadata_mut().insert("x-hint", MetadataValue::from_static("later"));
                    Err::<Response<Vec<u8>>, _>(status)
                };
                grpc.unary(service_fn(fail), request).await
            }
            "/test.Echo/Never" => {
                let never = move |_: Request<Vec<u8>>| {
                    let waiting = Waiting::new(&waiting);
                    async move {
                        let _waiting = waiting;
                        std::future::pending::<Result<Response<Vec<u8>>, Status>>().await
                    }
                };
                grpc.unary(service_fn(never), request).await
            }
            // As many messages as the request has bytes, and for ever after an empty one.
            "/test.Echo/Count" => {
                let count = move |request: Request<Vec<u8>>| {
                    let waiting = waiting.clone();
                    async move {
                        let (metadata, _, message) = request.into_parts();
                        let messages = stream::iter(message.clone()).map(|byte| Ok(vec![byte]));
                        let messages: Messages = if message.is_empty() {
                            let waiting = Waiting::new(&waiting);
                            Box::pin(stream::once(async { Ok(vec![]) }).chain(stream::pending()).inspect(move |_| {
                                let _ = &waiting;
                            }))
                        } else {
                            Box::pin(messages)
                        };
                        Ok(tagged(&metadata, messages))
                    }
                };
                grpc.server_streaming(service_fn(count), request).await
            }
            "/test.Echo/Chat" => {
                let chat = |request: Request<Streaming<Vec<u8>>>| async move {
                    let (metadata, _, messages) = request.into_parts();
                    let answers: Messages = Box::pin(messages.map(|message| Ok([b"re: ", &*message?].concat())));
                    Ok(tagged(&metadata, answers))
                };
                grpc.streaming(service_fn(chat), request).await
            }
            // Hears everything before it says a word.
            "/test.Echo/Sum" => {
                let sum = |request: Request<Streaming<Vec<u8>>>| async move {
                    let all: Vec<_> = request.into_inner().collect().await;
                    Ok(Response::new(vec![u8::try_from(all.len()).unwrap()]))
                };
                grpc.client_streaming(service_fn(sum), request).await
            }
            // One message and trailers of its own, which tonic's server cannot send.
            "/test.Echo/Trailers" => {
                let message = http_body::Frame::data(bytes::Bytes::from_static(b"\0\0\0\0\x02hi"));
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                trailers.insert("x-cost", http::HeaderValue::from_static("3"));
                let frames = stream::iter([Ok::<_, Infallible>(message), Ok(http_body::Frame::trailers(trailers))]);
                let response = http::Response::builder().header("content-type", "application/grpc");
                response.body(Body::new(StreamBody::new(frames).boxed_unsync())).unwrap()
            }
            // Takes a call and reads none of it.
            "/test.Echo/Deaf" => {
                let deaf = move |request: Request<Streaming<Vec<u8>>>| {
                    let waiting = Waiting::new(&waiting);
                    async move {
                        let (_waiting, _request) = (waiting, request);
                        std::future::pending::<Result<Response<Messages>, Status>>().await
                    }
                };
                grpc.streaming(service_fn(deaf), request).await
            }
            // Half of a message, and never the rest.
            "/test.Echo/Part" => {
                let part = [&[0][..], &200_000_u32.to_be_bytes(), &vec![7; 100_000]].concat();
                let part = stream::iter([Ok::<_, Infallible>(http_body::Frame::data(bytes::Bytes::from(part)))]);
                let frames = StreamBody::new(part.chain(stream::pending()));
                let response = http::Response::builder().header("content-type", "application/grpc");
                response.body(Body::new(frames.boxed_unsync())).unwrap()
            }
            "/test.Echo/GiveUp" => Status::cancelled("no time").into_http(),
            _ => Status::unimplemented("no such method").into_http(),
        }
    }
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = self.clone().answer(request);
        Box::pin(async { Ok(answer.await) })
    }
}

impl server::NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

/// A server and a channel to it.
struct Scene {
    channels: GrpcChannels,
    waiting: watch::Receiver<usize>,
    at: SocketAddr,
    server: Running,
}

/// Ends with its connections.
struct Running {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn stop(self) {
        self.stop.cancel();
        soon(self.task).await.unwrap();
    }
}

pub(super) fn channel() -> ChannelName {
    ChannelName::parse("echo").unwrap()
}

pub(super) fn spec(endpoint: &str) -> ChannelSpec {
    ChannelSpec {
        name: channel(),
        endpoint: endpoint.to_owned(),
        ca_from: None,
        token_from: None,
        certificate_from: None,
    }
}

/// With what the administrator hears of them.
async fn overheard(endpoint: &str, limit: usize) -> (GrpcChannels, Arc<std::sync::Mutex<Vec<String>>>) {
    let vault: Arc<dyn Vault> = Drawer::new(&[]);
    let (aside, heard) = ear();
    (GrpcChannels::open(&[spec(endpoint)], limit, &vault, &aside).await.unwrap(), heard)
}

async fn channels(endpoint: &str, limit: usize) -> GrpcChannels {
    overheard(endpoint, limit).await.0
}

async fn serve(at: &str) -> (SocketAddr, Running, watch::Receiver<usize>) {
    let listener = TcpListener::bind(at).await.unwrap();
    let at = listener.local_addr().unwrap();
    let (tell, waiting) = watch::channel(0);
    let server = Server::builder().add_service(Echo { waiting: tell });
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let task = tokio::spawn(async move {
        server.serve_with_incoming_shutdown(TcpListenerStream::new(listener), stopped).await.unwrap();
    });
    (at, Running { stop, task }, waiting)
}

async fn scene() -> Scene {
    let (at, server, waiting) = serve("127.0.0.1:0").await;
    Scene { channels: channels(&format!("http://{at}"), 1_000).await, waiting, at, server }
}

pub(super) fn call(method: &str) -> GrpcCall {
    GrpcCall { path: format!("/test.Echo/{method}"), metadata: Metadata::new(), deadline: Some(DEADLINE) }
}

fn value<'a>(metadata: &'a Metadata, key: &str) -> Vec<&'a [u8]> {
    metadata.iter().filter(|(k, _)| k == key).map(|(_, value)| value.as_slice()).collect()
}

pub(super) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("it took too long")
}

impl Scene {
    async fn unary(&self, call: GrpcCall, message: &[u8]) -> Result<GrpcReply, GrpcStatus> {
        soon(self.channels.unary(&channel(), call, message.to_vec())).await
    }

    async fn open(&self, call: GrpcCall) -> Box<dyn Exchange> {
        soon(self.channels.open(&channel(), call)).await.unwrap()
    }

    async fn until_waiting(&mut self, count: usize) {
        soon(self.waiting.wait_for(|waiting| *waiting == count)).await.unwrap();
    }
}

/// All that comes, however it is grouped.
async fn all(exchange: &dyn Exchange) -> Result<Vec<Vec<u8>>, GrpcStatus> {
    let mut all = Vec::new();
    loop {
        let more = soon(exchange.receive(3)).await?;
        assert!(more.len() <= 3);
        if more.is_empty() {
            return Ok(all);
        }
        all.extend(more);
    }
}

#[tokio::test]
async fn one_message_goes_there_and_one_comes_back_with_metadata_of_both_forms() {
    let scene = scene().await;
    let metadata = [("x-tag", &b"one"[..]), ("x-tag", b"two"), ("x-tag-bin", b"\0\xff")];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_vec())).to_vec();
    let reply = scene.unary(GrpcCall { metadata, ..call("Echo") }, b"hello").await.unwrap();
    assert_eq!(reply.message, b"hello");
    assert_eq!(value(&reply.headers, "x-seen"), [b"one", b"two"]);
    assert_eq!(value(&reply.headers, "x-seen-bin"), [b"\0\xff"]);
    assert_eq!(value(&reply.headers, "x-timeout").len(), 1, "the service knows the deadline");
    assert_eq!(scene.unary(call("Echo"), b"").await.unwrap().message, b"");
}

#[tokio::test]
async fn metadata_that_cannot_be_sent_is_an_invalid_argument() {
    let scene = scene().await;
    for (key, value) in [("x y", &b"v"[..]), ("x-tag", b"\n"), (" -bin", b"v")] {
        let metadata = vec![(key.to_owned(), value.to_vec())];
        let status = scene.unary(GrpcCall { metadata, ..call("Echo") }, b"").await.unwrap_err();
        assert!(status.code == 3 && status.message.contains(&format!("{key:?}")), "{status:?}");
    }
}

#[tokio::test]
async fn a_failure_keeps_its_code_text_details_and_metadata() {
    let scene = scene().await;
    let status = scene.unary(call("Fail"), b"").await.unwrap_err();
    assert_eq!((status.code, status.message.as_str(), status.details.as_slice()), (9, "not now", &b"why"[..]));
    assert_eq!(value(&status.metadata, "x-hint"), [b"later"]);
    let status = scene.unary(call("Nothing"), b"").await.unwrap_err();
    assert_eq!((status.code, status.message.as_str()), (12, "no such method"));
    // That is the service's own word, and not about the deadline.
    let status = scene.unary(call("GiveUp"), b"").await.unwrap_err();
    assert_eq!((status.code, status.message.as_str()), (1, "no time"));
    let unknown = scene.channels.unary(&ChannelName::parse("other").unwrap(), call("Echo"), vec![]).await.unwrap_err();
    assert_eq!(unknown.code, 13);
}

#[tokio::test]
async fn a_call_ends_at_its_deadline_here_and_at_the_service() {
    let mut scene = scene().await;
    let deadline = Some(Duration::from_millis(200));
    let status = scene.unary(GrpcCall { deadline, ..call("Never") }, b"").await.unwrap_err();
    assert_eq!(status.code, 4, "{status:?}");
    scene.until_waiting(0).await;
    let exchange = scene.open(GrpcCall { deadline, ..call("Chat") }).await;
    exchange.send(b"x".to_vec()).await.unwrap();
    assert_eq!(soon(exchange.receive(1)).await.unwrap(), [b"re: x"]);
    let status = soon(exchange.receive(1)).await.unwrap_err();
    assert_eq!(status.code, 4, "{status:?}");
    assert_eq!(soon(exchange.receive(1)).await.unwrap_err().code, 4, "and it stays ended");
}

#[tokio::test]
async fn a_service_that_is_down_is_unavailable_and_answers_when_it_is_back_and_only_the_administrator_is_told_why() {
    let mut scene = scene().await;
    let heard;
    (scene.channels, heard) = overheard(&format!("http://{}", scene.at), 1_000).await;
    scene.unary(call("Echo"), b"").await.unwrap();
    scene.server.stop().await;
    let down = |status: GrpcStatus| {
        let told = "channel echo cannot be reached; the host's log says more";
        assert_eq!((status.code, status.message.as_str()), (14, told));
    };
    // The connection that was there may tell of its end first.
    let _ = soon(scene.channels.unary(&channel(), call("Echo"), vec![])).await;
    down(soon(scene.channels.unary(&channel(), call("Echo"), vec![])).await.unwrap_err());
    down(match soon(scene.channels.open(&channel(), call("Chat"))).await {
        Err(status) => status,
        Ok(exchange) => soon(exchange.receive(1)).await.unwrap_err(),
    });
    let said = heard.lock().unwrap().join("\n").to_lowercase();
    assert!(said.contains("channel echo cannot be reached: ") && said.contains("connection refused"), "{said}");

    let _again = serve(&scene.at.to_string()).await;
    let reply = soon(scene.channels.unary(&channel(), call("Echo"), b"back".to_vec())).await;
    assert_eq!(reply.unwrap().message, b"back");
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_told() {
    let (channels, heard) = overheard("http://no-such-host.invalid:1", 1_000).await;
    let status = soon(channels.unary(&channel(), call("Echo"), vec![])).await.unwrap_err();
    assert!(status.code == 14 && status.message.contains("cannot be reached"), "{status:?}");
    let said = heard.lock().unwrap().join("\n");
    assert!(said.contains("dns error"), "the cause: {said}");
}

#[tokio::test]
async fn an_answer_over_the_limit_is_refused_by_name() {
    let scene = scene().await;
    let told = |status: GrpcStatus| {
        assert!(status.code == 8 && status.message.contains("limits.messageKiB"), "{status:?}");
        assert_eq!(status.objection, Some(Objection::Limit(Limit::GrpcMessage)));
    };
    told(scene.unary(call("Big"), b"").await.unwrap_err());
    let exchange = scene.open(call("Big")).await;
    exchange.send(vec![]).await.unwrap();
    exchange.half_close();
    told(soon(exchange.receive(1)).await.unwrap_err());
    // The connection is as good as before.
    scene.unary(call("Echo"), b"small").await.unwrap();
}

#[tokio::test]
async fn a_stream_from_the_service_comes_whole_and_in_order() {
    let scene = scene().await;
    let exchange = scene.open(GrpcCall { metadata: vec![("x-tag".into(), b"t".to_vec())], ..call("Count") }).await;
    let bytes: Vec<u8> = (1..=50).collect();
    exchange.send(bytes.clone()).await.unwrap();
    exchange.half_close();
    assert_eq!(value(&soon(exchange.headers()).await.unwrap(), "x-seen"), [b"t"]);
    let received: Vec<u8> = all(&*exchange).await.unwrap().concat();
    assert_eq!(received, bytes);
    assert_eq!(soon(exchange.receive(1)).await.unwrap(), Vec::<Vec<u8>>::new(), "and it stays ended");
}

#[tokio::test]
async fn what_has_arrived_comes_together_and_not_more_than_one_message_may_have() {
    let scene = scene().await;
    let narrow = channels(&format!("http://{}", scene.at), 5).await;
    // The most that came at once of 50 messages of a byte; who waits long enough gets all that may.
    let most = async |channels: &GrpcChannels, limit: usize, wanted: usize| {
        let mut pause = Duration::from_millis(1);
        loop {
            let exchange = soon(channels.open(&channel(), call("Count"))).await.unwrap();
            exchange.send(vec![0; 50]).await.unwrap();
            exchange.half_close();
            soon(exchange.receive(1)).await.unwrap();
            tokio::time::sleep(pause).await;
            let came = soon(exchange.receive(limit)).await.unwrap().len();
            if came >= wanted || pause > SOON {
                return came;
            }
            pause *= 2;
        }
    };
    assert_eq!(most(&scene.channels, 3, 3).await, 3);
    assert_eq!(most(&narrow, 100, 5).await, 5);
}

#[tokio::test]
async fn a_stream_to_the_service_is_answered_at_its_end() {
    let scene = scene().await;
    let exchange = scene.open(call("Sum")).await;
    for _ in 0..40 {
        soon(exchange.send(vec![1])).await.unwrap();
    }
    exchange.half_close();
    let status = exchange.send(vec![1]).await.unwrap_err();
    assert!(status.code == 9 && status.message.contains("closed already"), "{status:?}");
    assert_eq!(all(&*exchange).await.unwrap(), [[40]]);
}

#[tokio::test]
async fn both_sides_of_a_stream_go_on_side_by_side() {
    let scene = scene().await;
    let exchange = scene.open(call("Chat")).await;
    for number in 0..3_u8 {
        exchange.send(vec![b'0' + number]).await.unwrap();
        assert_eq!(soon(exchange.receive(10)).await.unwrap(), [[b"re: ".as_slice(), &[b'0' + number]].concat()]);
    }
    // One waits for a message while the other sends it.
    let (received, sent) = tokio::join!(soon(exchange.receive(10)), exchange.send(b"x".to_vec()));
    sent.unwrap();
    assert_eq!(received.unwrap(), [b"re: x"]);
    exchange.half_close();
    assert_eq!(all(&*exchange).await.unwrap(), Vec::<Vec<u8>>::new());
}

#[tokio::test]
async fn trailers_come_with_the_end() {
    let scene = scene().await;
    let exchange = scene.open(call("Trailers")).await;
    exchange.half_close();
    assert!(exchange.trailers().is_empty());
    assert_eq!(all(&*exchange).await.unwrap(), [b"hi"]);
    assert_eq!(value(&exchange.trailers(), "x-cost"), [b"3"]);
    let reply = scene.unary(call("Trailers"), b"").await.unwrap();
    let both = [reply.headers, reply.trailers].concat();
    assert_eq!(value(&both, "x-cost"), [b"3"]);
}

#[tokio::test]
async fn a_stream_that_fails_tells_its_status_to_sender_and_receiver() {
    let scene = scene().await;
    let exchange = scene.open(call("Nothing")).await;
    assert_eq!(soon(exchange.receive(1)).await.unwrap_err().code, 12);
    assert_eq!(soon(exchange.headers()).await.unwrap_err().code, 12);
    let sent = soon(async {
        loop {
            if let Err(status) = exchange.send(vec![]).await {
                return status;
            }
        }
    });
    assert_eq!(sent.await.code, 12);
}

#[tokio::test]
async fn dropping_a_call_cancels_it_at_the_service() {
    let mut scene = scene().await;
    // Before an answer.
    let channel = channel();
    let unary = scene.channels.unary(&channel, call("Never"), vec![]);
    let mut waiting = scene.waiting.clone();
    tokio::select! {
        _ = unary => panic!("it never answers"),
        reached = soon(waiting.wait_for(|waiting| *waiting == 1)) => drop(reached.unwrap()),
    }
    scene.until_waiting(0).await;
    let exchange = scene.open(call("Never")).await;
    exchange.send(vec![]).await.unwrap();
    exchange.half_close();
    scene.until_waiting(1).await;
    drop(exchange);
    scene.until_waiting(0).await;
    // In the middle of one.
    let exchange = scene.open(call("Count")).await;
    exchange.send(vec![]).await.unwrap();
    exchange.half_close();
    assert_eq!(soon(exchange.receive(1)).await.unwrap(), [[0_u8; 0]]);
    scene.until_waiting(1).await;
    drop(exchange);
    scene.until_waiting(0).await;
}

#[tokio::test]
async fn messages_that_a_service_does_not_read_are_held_up_to_a_bound_and_let_go_with_their_calls() {
    const MESSAGE: usize = 1 << 20;
    let mut scene = scene().await;
    let wide = channels(&format!("http://{}", scene.at), MESSAGE).await;
    let channel = channel();
    let open = async || {
        let deadline = Some(Duration::from_secs(1));
        soon(wide.open(&channel, GrpcCall { deadline, ..call("Deaf") })).await.unwrap()
    };
    let fill = async |exchange: &dyn Exchange| {
        let mut sent = 0;
        while soon(exchange.send(vec![0; MESSAGE])).await.is_ok() {
            sent += 1;
        }
        sent
    };
    let (one, two, three) = (open().await, open().await, open().await);
    let (first, second, third) = tokio::join!(fill(&*one), fill(&*two), fill(&*three));
    // A window of HTTP/2 takes less than one of them.
    assert!((8..=9).contains(&(first + second + third)), "{first} {second} {third}");
    drop((one, two, three));
    scene.until_waiting(0).await;
    for _ in 0..20 {
        soon(wide.unary(&channel, call("Echo"), vec![0; MESSAGE])).await.unwrap();
    }
}

#[tokio::test]
async fn messages_that_never_end_are_held_up_to_a_bound_and_then_refused() {
    let scene = scene().await;
    let wide = channels(&format!("http://{}", scene.at), 200_000).await;
    let channel = channel();
    let mut calls: FuturesUnordered<_> = (0..80).map(|_| wide.unary(&channel, call("Part"), vec![])).collect();
    let status = soon(calls.next()).await.unwrap().unwrap_err();
    assert_eq!((status.code, status.objection), (8, Some(Objection::Limit(Limit::Waiting))), "{status:?}");
    let told = status.message.contains("channel echo") && status.message.contains("limits.messageKiB");
    assert!(told, "{status:?}");
    drop(calls);
    let reply = soon(wide.unary(&channel, call("Echo"), vec![1; 150_000])).await.unwrap();
    assert_eq!(reply.message.len(), 150_000);
}

#[tokio::test]
async fn an_endpoint_that_is_none_is_named() {
    for endpoint in ["http://", "http://a b"] {
        let vault: Arc<dyn Vault> = Drawer::new(&[]);
        let error = GrpcChannels::open(&[spec(endpoint)], 1, &vault, &ear().0).await.err().unwrap().to_string();
        assert!(error.contains("channel echo") && error.contains(endpoint), "{error}");
        assert_eq!(GrpcChannels::check(&[spec(endpoint)]).unwrap_err().to_string(), error);
    }
    GrpcChannels::check(&[spec("http://127.0.0.1:1")]).unwrap();
}
