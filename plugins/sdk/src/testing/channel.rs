//! gRPC in process: a named channel leads to a tower service, such as a server that tonic generated.

use super::FakeHost;
use crate::{
    grpc::{frame, metadata, metadata_map, unframe},
    host::{Call, Exchange, Metadata},
};
use bytes::{Bytes, BytesMut};
use futures::{FutureExt, StreamExt, channel::mpsc, future::LocalBoxFuture, lock::Mutex};
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use std::{
    cell::RefCell,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};
use tonic::Status;

/// What stands behind a channel's name.
#[derive(Clone)]
pub(super) enum Route {
    /// A service.
    Service(Rc<RefCell<Dispatch>>),
    /// Every call fails with this status.
    Down(Status),
    /// Nobody answers: a call with a deadline runs into it, any other waits for ever.
    Silent,
}

pub(super) type Answer = LocalBoxFuture<'static, Result<Response<tonic::body::Body>, Status>>;
pub(super) type Dispatch = dyn FnMut(Request<tonic::body::Body>) -> Answer;

/// One call in process.
pub struct FakeExchange {
    host: FakeHost,
    requests: RefCell<Option<mpsc::UnboundedSender<Bytes>>>,
    response: Mutex<Far>,
    trailers: RefCell<Metadata>,
}

enum Far {
    Waiting(Answer),
    Open(Metadata, tonic::body::Body, BytesMut),
    Ended(Option<Status>),
}

impl FakeExchange {
    pub(super) fn open(host: FakeHost, route: Route, call: &Call) -> Result<Self, Status> {
        let deadline = call.deadline;
        let (sender, receiver) = mpsc::unbounded();
        let answer: Answer = match route {
            Route::Down(status) => return Err(status),
            Route::Silent if deadline.is_some() => {
                std::future::ready(Err(Status::deadline_exceeded("no answer in time"))).boxed_local()
            }
            Route::Silent => std::future::pending().boxed_local(),
            Route::Service(service) => {
                let mut request = Request::new(tonic::body::Body::new(RequestBody(receiver)));
                *request.method_mut() = http::Method::POST;
                *request.uri_mut() =
                    call.path.parse().map_err(|_| Status::invalid_argument(format!("path {:?}", call.path)))?;
                *request.headers_mut() = metadata_map(&call.metadata).into_headers();
                request
                    .headers_mut()
                    .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
                (service.borrow_mut())(request)
            }
        };
        Ok(Self {
            host,
            requests: RefCell::new(Some(sender)),
            response: Mutex::new(Far::Waiting(answer)),
            trailers: RefCell::default(),
        })
    }

    /// Waits for the headers where they are not there yet.
    async fn settle(far: &mut Far) -> Result<(), Status> {
        if let Far::Waiting(answer) = far {
            let answer = answer.await;
            let opened = answer.and_then(|response| {
                let (parts, body) = response.into_parts();
                match Status::from_header_map(&parts.headers) {
                    Some(status) if status.code() != tonic::Code::Ok => Err(status),
                    _ => Ok(Far::Open(metadata(parts.headers), body, BytesMut::new())),
                }
            });
            *far = opened.unwrap_or_else(|status| Far::Ended(Some(status)));
        }
        match far {
            Far::Ended(Some(status)) => Err(status.clone()),
            _ => Ok(()),
        }
    }

    async fn next(&self) -> Result<Vec<Vec<u8>>, Status> {
        let mut far = self.response.lock().await;
        Self::settle(&mut far).await?;
        loop {
            let Far::Open(_, body, buffer) = &mut *far else { return Ok(Vec::new()) };
            if let Some(message) = unframe(buffer)? {
                return Ok(vec![message]);
            }
            let status = match body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        buffer.extend_from_slice(&data);
                        continue;
                    }
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        let status = Status::from_header_map(&trailers);
                        *self.trailers.borrow_mut() = metadata(trailers);
                        status.filter(|status| status.code() != tonic::Code::Ok)
                    }
                },
                Some(Err(status)) => Some(status),
                None => None,
            };
            *far = Far::Ended(status.clone());
            return status.map_or(Ok(Vec::new()), Err);
        }
    }
}

impl Exchange for FakeExchange {
    async fn send(&self, message: Vec<u8>) -> Result<(), Status> {
        self.host
            .call(unavailable, async || {
                let mut buffer = BytesMut::new();
                frame(&message, &mut buffer)?;
                let sent = self.requests.borrow().as_ref().map(|requests| requests.unbounded_send(buffer.freeze()));
                // A service that has answered already takes no more; its status says why.
                sent.map_or_else(|| Err(Status::internal("sent after half-close")), |_| Ok(()))
            })
            .await
    }

    fn half_close(&self) {
        self.requests.borrow_mut().take();
    }

    async fn headers(&self) -> Result<Metadata, Status> {
        self.host
            .call(unavailable, async || {
                let mut far = self.response.lock().await;
                Self::settle(&mut far).await?;
                Ok(match &*far {
                    Far::Open(headers, ..) => headers.clone(),
                    _ => Metadata::new(),
                })
            })
            .await
    }

    async fn receive_many(&self, _limit: u32) -> Result<Vec<Vec<u8>>, Status> {
        self.host.call(unavailable, async || self.next().await).await
    }

    fn trailers(&self) -> Metadata {
        self.trailers.borrow().clone()
    }
}

pub(super) fn unavailable() -> Status {
    Status::unavailable("cut by the test")
}

struct RequestBody(mpsc::UnboundedReceiver<Bytes>);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.poll_next_unpin(cx).map(|data| data.map(|data| Ok(Frame::data(data))))
    }
}
