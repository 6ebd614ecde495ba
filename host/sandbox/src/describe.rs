//! Asks a component what it is: its export `manifest` in an instance that can do nothing but talk, with a CPU budget and a deadline.

use std::time::Duration;

use operetta_core::{
    limit::Limits,
    manifest::{MAX_MANIFEST, Manifest, ManifestError},
};
use wasmtime::component::{Component, Linker};

use crate::{
    bindings::{OperatorPre, operetta::operator::log},
    fault::{Fault, one_line},
    meter::{Memory, Meter, metered},
    sandbox::Inner,
    stamp::SECTION,
    state::{Caps, State, store},
};

/// CPU time for a manifest. A Rust guest with CRDs takes well under a millisecond.
const CPU: Duration = Duration::from_secs(1);
/// Wall-clock time, for a machine that is busy.
const DEADLINE: Duration = Duration::from_secs(15);
/// Bytes of memory.
const MEMORY: usize = 256 << 20;

/// Why a component could not say what it is.
#[derive(Debug, thiserror::Error)]
pub enum DescribeError {
    /// It does not fit the contract's types.
    #[error("the component does not fit the contract: {0}; build it with the SDK of this host")]
    Link(String),
    /// It crashed.
    #[error("its function `manifest` crashed: {trap}{said}; it may call no import and must not fail")]
    Trap {
        /// Where and why.
        trap: String,
        /// What it logged before, in brackets, if anything.
        said: String,
    },
    /// It loops, or takes too much of something.
    #[error("its function `manifest` {0}; it should return a constant document")]
    Limit(String),
    /// It said something else.
    #[error("{0}")]
    Manifest(#[from] ManifestError),
    /// A stamp that is no manifest.
    #[error("its section {SECTION:?} cannot be used: {0}; write it anew with `operetta build FILE.wasm`")]
    Stamp(ManifestError),
    /// A stamp that says something else than the component.
    #[error(
        "its section {SECTION:?} and its function `manifest` differ in `{0}`, so one of them does not tell the truth; if it is yours, write the section anew with `operetta build FILE.wasm`"
    )]
    Differs(&'static str),
    /// The host's fault, which may pass.
    #[error("the host could not run `manifest`: {0}")]
    Host(String),
}

/// Runs `manifest`. To be called on a guests' thread.
pub(crate) async fn describe(
    inner: &Inner,
    component: &Component,
    full: &Linker<State>,
    wasi_p2: bool,
) -> Result<Manifest, DescribeError> {
    let link = |error: wasmtime::Error| DescribeError::Link(one_line(&format!("{error:#}")));
    let stubs;
    let linker = if wasi_p2 {
        // Its effects are refused by the state; stubs would shadow WASI, whose types are entangled.
        full
    } else {
        let mut linker = Linker::new(&inner.engine);
        log::add_to_linker::<State, Caps>(&mut linker, |state| state).map_err(link)?;
        linker.define_unknown_imports_as_traps(component).map_err(link)?;
        stubs = linker;
        &stubs
    };
    let pre = OperatorPre::new(linker.instantiate_pre(component).map_err(link)?).map_err(link)?;
    let meter = Meter::new(CPU);
    let _ticking = inner.ticker.run();
    let limits = Limits { memory: MEMORY, ..Limits::default() };
    let state = State::describe(Memory::new(meter.clone(), &limits, inner.memory.charge(None)));
    let mut store = store(&inner.engine, state, &meter, MAX_MANIFEST);
    let call = async {
        let operator = pre.instantiate_async(&mut store).await?;
        operator.call_manifest(&mut store).await
    };
    let fault = match tokio::time::timeout(DEADLINE, metered(meter, call)).await {
        Ok(Ok(Ok(json))) => return Ok(Manifest::parse(&json)?),
        Ok(Ok(Err(error))) => Fault::from(error),
        Ok(Err(limit)) => limit.into(),
        Err(_) => Fault::Deadline,
    };
    let said = one_line(&store.data().said().join(" | "));
    Err(match fault {
        Fault::Trap(trap) => {
            DescribeError::Trap { trap, said: if said.is_empty() { said } else { format!(" (it logged: {said})") } }
        }
        Fault::Memory { cap, .. } => DescribeError::Limit(format!("needs more than {} MiB of memory", cap >> 20)),
        Fault::NoRoom(none) => DescribeError::Host(format!(
            "its memory for guests is used up ({} bytes are free of {}); give it more with --guest-mib",
            none.free, none.total
        )),
        Fault::Tables { cap, .. } => DescribeError::Limit(format!("needs tables of more than {cap} elements")),
        Fault::Stack(place) => DescribeError::Limit(format!("exhausted its call stack {place}")),
        Fault::Cpu => DescribeError::Limit(format!("used more than {CPU:?} of CPU time")),
        // It may call nothing, and so waits for nobody.
        Fault::Deadline | Fault::Unanswered => DescribeError::Limit(format!("took longer than {DEADLINE:?}")),
        Fault::Limit(exceeded) => DescribeError::Limit(format!("met a limit: {}", exceeded.what)),
        Fault::Host(text) => DescribeError::Host(text),
    })
}
