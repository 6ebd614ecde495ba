//! Host calls, as the sandbox hands them to the one way out.

use std::time::Duration;

use futures::executor::block_on;
use operetta_core::{
    effect::{Ask, Effects, Policy},
    grant::Grants,
    limit::Limits,
    name::{ContinueToken, FieldSelector, LabelSelector, Namespace, Subresource},
    port::{
        DeleteOptions, Event, GrpcCall, Level, ListOptions, Patch, Severity,
        database::{Isolation, SqlValue},
    },
    resource::{ObjectKey, Resource},
};
use serde::Deserialize;

use super::witness::Witness;

/// What a plugin may do, and what it does.
#[derive(Deserialize)]
#[serde(default)]
pub(super) struct Program {
    grants: Grants,
    pub host_calls: u64,
    message: usize,
    traffic: u64,
    rows: usize,
    log_line: usize,
    pub calls: Vec<serde_json::Value>,
}

impl Default for Program {
    fn default() -> Self {
        Self {
            grants: Grants::default(),
            host_calls: 32,
            message: 1_000,
            traffic: 10_000,
            rows: 10,
            log_line: 200,
            calls: Vec::new(),
        }
    }
}

impl Program {
    pub fn read(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    pub fn policy(&self) -> Policy {
        let limits = Limits {
            host_calls: self.host_calls,
            message: self.message,
            traffic: self.traffic,
            rows: self.rows.max(1),
            log_line: self.log_line,
            deadline: Duration::from_secs(5),
            ..Limits::default()
        };
        Policy { grants: self.grants.clone(), limits, ..Policy::default() }
    }
}

/// One call; what it does not say is empty.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Call {
    #[serde(rename = "do")]
    pub what: String,
    group: String,
    version: String,
    resource: String,
    namespace: Option<String>,
    name: String,
    subresource: Option<String>,
    body: String,
    selector: Option<String>,
    limit: Option<u32>,
    channel: String,
    path: String,
    metadata: Vec<(String, String)>,
    deadline: Option<u64>,
    database: String,
    sql: String,
    parameters: Vec<String>,
    /// Bytes of the answer that comes.
    pub answer: u16,
    /// What is granted from here on.
    pub grants: Option<Grants>,
}

/// Nothing comes through that is not granted at that moment, or over a limit; and no answer over a limit comes back.
pub fn effects(data: &[u8]) {
    let Some(program) = Program::read(data) else { return };
    let witness = Witness::of(program.policy());
    let effects = witness.effects();
    let mut carried = 0;
    for call in program.calls.iter().take(64) {
        let Ok(call) = serde_json::from_value::<Call>(call.clone()) else { continue };
        witness.answer_with(call.answer.into());
        if let Some(grants) = call.grants.clone() {
            witness.change(|policy| policy.grants = grants);
        }
        if let Some(bytes) = block_on(make(&effects, call)) {
            assert!(bytes <= program.message.saturating_mul(10), "an answer of {bytes} bytes");
            carried += bytes as u64;
        }
        witness.testify();
    }
    assert!(carried <= program.traffic, "{carried} bytes of answers where {} may be", program.traffic);
    // An apply without the right to create looks first whether the object exists; a list may be asked for again in smaller pages.
    assert!(witness.arrived() as u64 <= program.host_calls.saturating_mul(4), "{} calls", witness.arrived());
}

/// Makes the call, and returns the bytes of the answer if there is one.
async fn make(effects: &Effects, call: Call) -> Option<usize> {
    let resource = Resource::parse(&call.group, &call.version, &call.resource);
    let key = ObjectKey::parse(call.namespace.as_deref(), &call.name);
    let subresource = call.subresource.as_deref().and_then(|part| Subresource::parse(part).ok());
    let namespace = call.namespace.as_deref().and_then(|name| Namespace::parse(name).ok());
    let deadline = call.deadline.map(Duration::from_millis);
    let grpc = GrpcCall {
        path: call.path,
        metadata: call.metadata.into_iter().map(|(key, value)| (key, value.into_bytes())).collect(),
        deadline,
    };
    let ask = Ask {
        sql: call.sql,
        parameters: call.parameters.into_iter().map(SqlValue::Text).collect(),
        deadline,
        max_rows: call.limit.map(|limit| limit as usize),
    };
    match call.what.as_str() {
        "get" => effects.get(&resource.ok()?, &key.ok()?, false).await.ok().map(|object| object.len()),
        "list" => {
            let text = call.selector.as_deref().unwrap_or_default();
            let options = ListOptions {
                namespace,
                label_selector: LabelSelector::parse(text).ok(),
                field_selector: FieldSelector::parse(text).ok(),
                limit: call.limit,
                continue_token: ContinueToken::parse(text).ok(),
                live: false,
            };
            let page = effects.list(&resource.ok()?, &options).await.ok()?;
            Some(page.items.iter().map(|item| item.len()).sum())
        }
        "create" => {
            effects.create(&resource.ok()?, namespace.as_ref(), call.body).await.ok().map(|object| object.len())
        }
        what @ ("apply" | "merge" | "json") => {
            let patch = match what {
                "apply" => Patch::Apply(call.body),
                "merge" => Patch::Merge(call.body),
                _ => Patch::Json(call.body),
            };
            effects
                .patch(&resource.ok()?, &key.ok()?, subresource.as_ref(), patch)
                .await
                .ok()
                .map(|object| object.len())
        }
        "replace" => {
            let replaced = effects.replace(&resource.ok()?, &key.ok()?, subresource.as_ref(), call.body).await;
            replaced.ok().map(|object| object.len())
        }
        "delete" => effects.delete(&resource.ok()?, &key.ok()?, &DeleteOptions::default()).await.ok().map(|()| 0),
        "publish" => {
            let (reason, action) = ("Fuzzed".to_owned(), "Fuzz".to_owned());
            let event = Event {
                resource: resource.ok()?,
                key: key.ok()?,
                severity: Severity::Normal,
                reason,
                action,
                message: call.body,
            };
            effects.publish(event).await.ok().map(|()| 0)
        }
        "unary" => {
            effects.unary(&call.channel, grpc, call.body.into_bytes()).await.ok().map(|reply| reply.message.len())
        }
        "exchange" => effects.open(&call.channel, grpc).await.ok().map(|_| 0),
        "sql" => effects.query(&call.database, ask).await.ok().map(|_| 0),
        "sql-execute" => effects.execute(&call.database, ask).await.ok().map(|_| 0),
        "transaction" => effects.begin(&call.database, Isolation::default(), deadline).await.ok().map(|_| 0),
        "log" => {
            effects.log(Level::Info, &call.name, &call.body, &[(call.channel, call.database)]);
            None
        }
        _ => None,
    }
}
