//! An operator that misbehaves on demand, to be contained by the host: each `Mischief` names what its reconcile does.
//!
//! It also plays its own other versions and its own broken builds: [`BUILD`] stands in the file as text, and whoever overwrites it there in the same length
//! has another component without another compilation. `make` is what `manifest` does, `version` what it says.

use k8s_openapi::api::core::v1::Secret;
use kube::CustomResource;
use operetta_sdk::{host::Host as _, prelude::*};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{hint::black_box, time::Duration};

/// How this component was built; 40 bytes in any build.
pub const BUILD: &str = "hostile-build make=good   version=1.0.0 ";

/// Something that an operator should not do.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "hostile.example.com", version = "v1", kind = "Mischief", plural = "mischiefs", namespaced)]
#[kube(status = "MischiefStatus")]
#[serde(rename_all = "camelCase")]
pub struct MischiefSpec {
    /// What its reconcile does.
    pub act: Act,
    /// A longer stay within the reconcile, for tests that need one under way.
    #[serde(default)]
    pub milliseconds: u64,
}

/// What a reconcile does.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum Act {
    /// Writes into the status which version ran, and nothing else.
    Behave,
    /// Never ends.
    Loop,
    /// Waits far longer than its deadline.
    Wait,
    /// Crashes.
    Panic,
    /// Calls itself until its stack is full.
    Recurse,
    /// Takes all the memory that it gets.
    Hoard,
    /// Creates a Secret, which nobody granted.
    Steal,
    /// Creates an object that is no JSON.
    CreateGarbage,
    /// Patches its object with what is no JSON.
    PatchGarbage,
    /// Logs without end.
    Chatter,
    /// Calls a gRPC channel that nobody granted.
    Call,
    /// Reads without end what the host has at hand.
    Pester,
    /// Changes its own spec each time, which wakes it again, and says so.
    Flap,
    /// Changes the spec of the other one of `one` and `two`, which does the same.
    Volley,
    /// Asks the API server without end.
    Reread,
    /// Writes without end, and each write wakes it again.
    Churn,
    /// Publishes events without end.
    Publish,
    /// Computes a little and asks to be called again at once, so that no single reconcile takes much.
    Nibble,
}

/// What its reconcile has to say.
#[derive(Serialize, Deserialize, Clone, Debug, Default, JsonSchema)]
pub struct MischiefStatus {
    /// The version of the component that ran last.
    #[serde(default)]
    pub version: String,
}

/// A kind that no API server can have.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "hostile.example.com", version = "v1", kind = "Impossible", plural = "No Kind", namespaced)]
pub struct ImpossibleSpec {}

/// A kind that no API server has.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "hostile.example.com", version = "v1", kind = "Absent", plural = "absentees", namespaced)]
pub struct AbsentSpec {}

/// The value of a word of [`BUILD`] as it stands in the file now.
fn build(word: &str) -> &'static str {
    // The compiler must not know the text.
    let words = black_box(BUILD).split_whitespace();
    words.filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == word).map_or("", |(_, value)| value)
}

/// The plugin, or what its build makes of it.
pub fn plugin() -> Plugin {
    let plugin = operetta_sdk::plugin!().version(build("version"));
    match build("make") {
        "absent" => {
            return plugin.controller(Controller::new("mischief", async |_, _: Absent| Ok(Outcome::AwaitChange)));
        }
        "kind" => {
            return plugin.controller(Controller::new("mischief", async |_, _: Impossible| Ok(Outcome::AwaitChange)));
        }
        "loop" => spin(),
        "panic" => crash("the manifest panics on purpose"),
        _ => {}
    }
    plugin
        .crd::<Mischief>()
        .controller(Controller::new("mischief", reconcile).status().wakes_on([Predicate::Generation]))
        // Granted, so that garbage gets as far as it can.
        .allow(Rule::of::<Mischief>([Verb::Create, Verb::Patch]))
        .events()
}

operetta_sdk::export!(plugin);

async fn reconcile(ctx: &Context, mischief: Mischief) -> Result<Outcome, Failure> {
    let name = &ctx.request().key.name;
    match mischief.spec.act {
        Act::Behave => {
            if mischief.spec.milliseconds > 0 {
                ctx.sleep(Duration::from_millis(mischief.spec.milliseconds)).await;
            }
            let status = MischiefStatus { version: build("version").to_owned() };
            ctx.api::<Mischief>().apply_status(name, &status).await?;
        }
        Act::Loop => spin(),
        Act::Wait => ctx.sleep(Duration::from_hours(1)).await,
        Act::Panic => crash("the reconcile panics on purpose"),
        Act::Recurse => {
            black_box(recurse(1));
        }
        Act::Hoard => hoard(),
        Act::Steal => {
            ctx.api::<Secret>().create(&json!({"metadata": {"name": "loot"}, "stringData": {"key": "value"}})).await?;
        }
        Act::CreateGarbage => {
            let resource = <Mischief as operetta_sdk::Kind>::resource();
            ctx.host().create(&resource, ctx.request().key.namespace.as_deref(), "{\"metadata\": {".to_owned()).await?;
        }
        Act::PatchGarbage => {
            let resource = <Mischief as operetta_sdk::Kind>::resource();
            let patch = operetta_sdk::host::Patch::Merge("[\u{7}not json".to_owned());
            ctx.host().patch(&resource, &ctx.request().key, None, patch).await?;
        }
        Act::Chatter => {
            for line in 0..100_000 {
                tracing::info!(line, "\u{1b}[31mchatter\nchatter");
            }
        }
        Act::Call => {
            let call = operetta_sdk::host::Call {
                channel: "elsewhere".to_owned(),
                path: "/a.B/C".to_owned(),
                metadata: Vec::new(),
                deadline: None,
            };
            if let Err(status) = ctx.host().open(call).await {
                return Err(Failure::retryable(status.message()));
            }
        }
        Act::Pester => loop {
            ctx.api::<Mischief>().get_opt(name).await?;
        },
        Act::Flap => {
            let resource = <Mischief as operetta_sdk::Kind>::resource();
            let milliseconds = if mischief.spec.milliseconds == 3 { 4 } else { 3 };
            let patch = json!({"spec": {"milliseconds": milliseconds}}).to_string();
            ctx.host().patch(&resource, &ctx.request().key, None, operetta_sdk::host::Patch::Merge(patch)).await?;
            ctx.events().normal("Flapped", "it is otherwise now").await;
        }
        Act::Volley => {
            let resource = <Mischief as operetta_sdk::Kind>::resource();
            let mut other = ctx.request().key.clone();
            if name == "one" { "two" } else { "one" }.clone_into(&mut other.name);
            let patch = json!({"spec": {"milliseconds": mischief.spec.milliseconds + 1}}).to_string();
            ctx.host().patch(&resource, &other, None, operetta_sdk::host::Patch::Merge(patch)).await?;
        }
        Act::Reread => loop {
            ctx.api::<Mischief>().get_live(name).await?;
        },
        Act::Churn => {
            for version in 0_u64.. {
                let status = MischiefStatus { version: version.to_string() };
                ctx.api::<Mischief>().apply_status(name, &status).await?;
            }
        }
        Act::Publish => {
            for number in 0..5_000 {
                ctx.events().normal("Published", &format!("number {number}")).await;
            }
        }
        Act::Nibble => {
            for step in 0..NIBBLE {
                black_box(step);
            }
            return Ok(Outcome::RequeueAfter(Duration::ZERO));
        }
    }
    Ok(Outcome::AwaitChange)
}

#[allow(clippy::panic)]
fn crash(how: &str) -> ! {
    panic!("{how}")
}

/// Some two milliseconds of computing.
const NIBBLE: u32 = 4_000_000;

fn spin() -> ! {
    loop {
        black_box(());
    }
}

#[inline(never)]
#[allow(unconditional_recursion, reason = "that is the act")]
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    recurse(depth + 1) + frame.iter().sum::<u64>()
}

fn hoard() {
    let mut held = Vec::new();
    loop {
        held.push(black_box(vec![1_u8; 1 << 20]));
    }
}
