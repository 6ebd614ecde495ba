//! One request to the API server: its URL, its deadline, and what a failure means.
//!
//! **A write whose answer was lost is told apart from one that was refused**, since only the first leaves open what happened.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header::RETRY_AFTER};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body, core::Status};
use operetta_core::{
    name::{Namespace, ObjectName, Subresource},
    port::ApiError,
    resource::Resource,
};
use serde::de::DeserializeOwned;

use crate::answer::{Busy, TooLarge};

/// No answer within this time is a lost answer. The API server itself gives up after 60 s, and a reconcile after 30 unless told otherwise.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A request that failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Fault {
    /// The API server answered with an error.
    #[error("{message} (HTTP {code})")]
    Answer {
        /// The HTTP status.
        code: u16,
        /// The API server's own word for it, such as `AlreadyExists`.
        reason: String,
        /// For people.
        message: String,
        /// What it says in detail.
        status: Box<Status>,
        /// When to come back.
        retry_after: Option<Duration>,
    },
    /// No answer, for the reason given.
    #[error("no answer from the API server: {0}")]
    Lost(String),
    /// No connection, so that the request was never sent.
    #[error("cannot connect to the API server: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("no answer from the API server within {} s", REQUEST_TIMEOUT.as_secs())]
    Timeout,
    /// An answer beyond [`crate::answer::MOST`].
    #[error("{}", crate::answer::TooLarge)]
    TooLarge,
    /// The plugin asks for too much at once or too often, so that this was never sent.
    #[error("{0}")]
    Busy(Wait),
    /// Nothing that could be sent.
    #[error("cannot be sent: {0}")]
    Unsendable(String),
    /// No client to send with, so that the request was never sent.
    #[error("{0}")]
    NoClient(ApiError),
    /// An answer that is not the JSON it should be.
    #[error("the API server's answer is not understood: {0}")]
    Garbled(String),
}

/// Why something has to wait, and for how long where that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// For people.
    pub why: String,
    /// When to come back.
    pub after: Option<Duration>,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<http::Error> for Fault {
    fn from(error: http::Error) -> Self {
        Self::Unsendable(error.to_string())
    }
}

impl Fault {
    /// Whether a write that ended so may have happened.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Answer { code, .. } => *code >= 500,
            Self::Lost(_) | Self::Timeout | Self::Garbled(_) | Self::TooLarge => true,
            Self::Unreachable(_) | Self::Busy(_) | Self::Unsendable(_) | Self::NoClient(_) => false,
        }
    }

    /// Whether the cluster does not know the kind or the object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Answer { code: 404, .. })
    }

    /// As the contract's errors; `what` names the operation and the object.
    pub fn into_api_error(self, what: &str) -> ApiError {
        match self {
            Self::Answer { code, reason, message, retry_after, .. } => {
                let mut text = format!("{what}: {message}");
                if code == 403 && message.contains("impersonate-on:serviceaccount:") {
                    text.push_str("; as a plugin the host may do only what was installed with it: run `operetta install` for the plugin");
                }
                match (code, reason.as_str()) {
                    (404, _) => ApiError::NotFound(text),
                    (409, "AlreadyExists") => ApiError::AlreadyExists(text),
                    (409, _) => ApiError::Conflict(text),
                    (401 | 403, _) => ApiError::Forbidden(text),
                    (410, _) => ApiError::Gone(text),
                    (413, _) => ApiError::TooLarge(text),
                    (429, _) => ApiError::TooManyRequests(retry_after),
                    (504, _) | (_, "Timeout" | "ServerTimeout") => ApiError::Timeout(text),
                    (500.., _) => ApiError::Unavailable(text),
                    _ => ApiError::Invalid(text),
                }
            }
            Self::Timeout => ApiError::Timeout(format!("{what}: {self}")),
            Self::TooLarge => ApiError::AnswerTooLarge(format!("{what}: {self}")),
            Self::NoClient(error) => error.before_sending(),
            Self::Busy(wait) => ApiError::TooManyRequests(wait.after),
            Self::Unsendable(_) => ApiError::Invalid(format!("{what}: {self}")),
            Self::Unreachable(_) => ApiError::Unreachable(format!("{what}: {self}")),
            Self::Lost(_) | Self::Garbled(_) => ApiError::Unavailable(format!("{what}: {self}")),
        }
    }
}

/// Sends and reads the whole answer.
pub async fn send(client: &Client, request: Request<Vec<u8>>) -> Result<Bytes, Fault> {
    in_time(client, request).await.map(|(_, body)| body)
}

async fn in_time(client: &Client, request: Request<Vec<u8>>) -> Result<(StatusCode, Bytes), Fault> {
    tokio::time::timeout(REQUEST_TIMEOUT, exchange(client, request)).await.map_err(|_| Fault::Timeout)?
}

/// Whether the API server is of this minor version of Kubernetes 1, or a later one.
pub async fn is_at_least(client: &Client, minor: u32) -> Result<bool, Fault> {
    let version = send_json(client, Request::get("/version").body(Vec::new())?).await?;
    let number = |field: &str| {
        let text = version.get(field).and_then(serde_json::Value::as_str).unwrap_or_default();
        // Some providers write a minor version such as `35+`.
        text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap_or_default()
    };
    Ok(number("major") == 1 && number("minor") >= minor)
}

/// Sends, and reads the answer as JSON.
pub async fn send_json(client: &Client, request: Request<Vec<u8>>) -> Result<serde_json::Value, Fault> {
    send_for(client, request).await
}

/// Sends, and reads of the answer what is asked for.
pub async fn send_for<T: DeserializeOwned>(client: &Client, request: Request<Vec<u8>>) -> Result<T, Fault> {
    read_in_time(client, request).await.map(|(_, answer)| answer)
}

/// Sends, reads the answer as JSON, and says whether the API server made what it answers.
pub async fn send_write(client: &Client, request: Request<Vec<u8>>) -> Result<(serde_json::Value, bool), Fault> {
    read_in_time(client, request).await.map(|(status, answer)| (answer, status == StatusCode::CREATED))
}

async fn read_in_time<T: DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
) -> Result<(StatusCode, T), Fault> {
    let (status, body) = in_time(client, request).await?;
    serde_json::from_slice(&body).map(|answer| (status, answer)).map_err(|e| Fault::Garbled(e.to_string()))
}

async fn exchange(client: &Client, request: Request<Vec<u8>>) -> Result<(StatusCode, Bytes), Fault> {
    let answer = client.send(request.map(Body::from)).await.map_err(|error| unanswered(&error))?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(|error| Fault::Lost(chain(&error)))?.to_bytes();
    if head.status.is_success() {
        return Ok((head.status, body));
    }
    let code = head.status.as_u16();
    let retry_after = head
        .headers
        .get(RETRY_AFTER)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse().ok())
        .map(Duration::from_secs);
    let status: Status = serde_json::from_slice(&body).unwrap_or_else(|_| {
        // A proxy, or a path that no API serves, answers with plain text.
        let text: String = String::from_utf8_lossy(&body).trim().chars().take(400).collect();
        Status::failure(
            if text.is_empty() { head.status.canonical_reason().unwrap_or("no reason given") } else { &text },
            "",
        )
    });
    Err(Fault::Answer {
        code,
        reason: status.reason.clone(),
        message: status.message.clone(),
        status: Box::new(status),
        retry_after,
    })
}

fn unanswered(error: &kube::Error) -> Fault {
    let text = chain(error);
    // The pool's error says whether a connection came about; it sits at some depth of the chain.
    let mut of_pool = causes(error).filter_map(|cause| cause.downcast_ref::<hyper_util::client::legacy::Error>());
    if of_pool.any(hyper_util::client::legacy::Error::is_connect) {
        Fault::Unreachable(text)
    } else if cause::<TooLarge>(error).is_some() {
        Fault::TooLarge
    } else if let Some(busy) = cause::<Busy>(error) {
        Fault::Busy(Wait { why: busy.to_string(), after: None })
    } else {
        Fault::Lost(text)
    }
}

/// An error and what is behind it.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// The error of this type that is behind it.
pub(crate) fn cause<'a, T: std::error::Error + 'static>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// An error with its causes, each said once.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).fold(String::new(), |text, cause| {
        let more = cause.to_string();
        if text.is_empty() {
            more
        } else if text.contains(&more) {
            text
        } else {
            format!("{text}: {more}")
        }
    })
}

/// The URL of a kind, an object or a subresource, with a query.
#[derive(Debug, Clone)]
pub struct Url {
    text: String,
    first: bool,
}

impl Url {
    /// Of the whole kind, or of its objects in one namespace.
    pub fn of(resource: &Resource, namespace: Option<&Namespace>) -> Self {
        let root = if resource.group().is_empty() { "/api/" } else { "/apis/" };
        let mut text = format!("{root}{}/", resource.api_version());
        if let Some(namespace) = namespace {
            let _ = write!(text, "namespaces/{namespace}/");
        }
        text.push_str(resource.resource());
        Self { text, first: true }
    }

    /// Of one object.
    pub fn object(mut self, name: &ObjectName) -> Self {
        self.text.push('/');
        self.text.push_str(&encode(name.as_str()));
        self
    }

    /// Of a part of it.
    pub fn subresource(mut self, subresource: Option<&Subresource>) -> Self {
        if let Some(subresource) = subresource {
            let _ = write!(self.text, "/{subresource}");
        }
        self
    }

    /// With a parameter.
    pub fn query(mut self, name: &str, value: &str) -> Self {
        let _ = write!(self.text, "{}{name}={}", if self.first { '?' } else { '&' }, encode(value));
        self.first = false;
        self
    }

    /// A request to it.
    pub fn request(
        &self,
        method: Method,
        content_type: Option<&str>,
        body: Vec<u8>,
    ) -> Result<Request<Vec<u8>>, Fault> {
        let mut builder = Request::builder().method(method).uri(&self.text);
        if let Some(content_type) = content_type {
            builder = builder.header(http::header::CONTENT_TYPE, content_type);
        }
        Ok(builder.body(body)?)
    }

    /// A GET.
    pub fn get(&self) -> Result<Request<Vec<u8>>, Fault> {
        self.request(Method::GET, None, Vec::new())
    }
}

/// Percent-encodes all but RFC 3986's unreserved characters, the colon among those encoded.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests;
