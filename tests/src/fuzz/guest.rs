//! The same through a real guest and the whole of the sandbox: what it writes into the contract's types is what the host must take apart. And components of strangers, loaded.

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use operetta_core::{
    name::ControllerName,
    reconcile::{Cause, Failure, Reconciler as _, Request},
    resource::ObjectKey,
};
use operetta_sandbox::{Component, LoadError, Sandbox, SandboxConfig};
use tokio::runtime::Runtime;

use super::{calls::Program, witness::Witness};

/// A sandbox, and the guest of the tests that does what it is told (`tests/guests/imports`).
struct Stage {
    runtime: Runtime,
    sandbox: Sandbox,
    guest: Arc<Component>,
}

static STAGE: OnceLock<Mutex<Stage>> = OnceLock::new();

/// What its commands are called. The others wait, or take all that they can get.
const COMMANDS: [&str; 14] = [
    "get",
    "list",
    "create",
    "patch",
    "replace",
    "delete",
    "publish",
    "log",
    "unary",
    "exchange",
    "sql",
    "sql-execute",
    "transaction",
    "request",
];

/// Sets the stage, once: `compiler` is a program with its arguments that is [`operetta_sandbox::compile_main`], `guest` the component of `tests/guests/imports`.
///
/// # Panics
/// There is no sandbox here, or the guest is another.
pub fn prepare(state: PathBuf, compiler: Vec<OsString>, guest: Vec<u8>) {
    STAGE.get_or_init(|| {
        let runtime = Runtime::new().expect("threads");
        let sandbox = runtime.block_on(async {
            Sandbox::new(SandboxConfig {
                concurrency: 4,
                ..SandboxConfig::new(state.join("cache"), state.join("key"), compiler)
            })
        });
        let sandbox = sandbox.expect("a sandbox");
        let guest = runtime.block_on(sandbox.load(guest)).expect("the guest of the tests");
        Mutex::new(Stage { runtime, sandbox, guest })
    });
}

/// For one input at a time, after which nothing may be left on it.
fn stage() -> MutexGuard<'static, Stage> {
    let stage = STAGE.get().expect("the stage is set before guests come on");
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whatever a guest writes into a call, nothing comes through that is not granted, and nothing crashes but the guest.
pub(super) fn calls(data: &[u8]) {
    let (Some(program), stage) = (Program::read(data), stage()) else { return };
    let operator = stage.guest.operator(Arc::new(|_, _| {}));
    let witness = Witness::of(program.policy());
    for call in program.calls.iter().take(8) {
        let command = call.get("do").and_then(serde_json::Value::as_str).unwrap_or_default();
        let Some(command) = COMMANDS.iter().find(|known| **known == command) else { continue };
        let request = Request {
            controller: ControllerName::parse(command).unwrap(),
            key: ObjectKey::parse(Some("default"), "thing").unwrap(),
            object: Some(call.to_string().into()),
            attempt: 0,
            cause: Cause::Changed,
        };
        let ended = stage.runtime.block_on(operator.reconcile(request, Arc::new(witness.effects())));
        // It answers what came of its call, and does not crash of it.
        assert!(matches!(ended, Err(Failure::Terminal(_))), "{call}: {ended:?}");
        witness.testify();
    }
    nothing_is_left(&stage);
}

/// A component is loaded or refused, in words that can be printed; nothing of it stays behind.
pub(super) fn load(data: &[u8]) {
    let stage = stage();
    match stage.runtime.block_on(stage.sandbox.load(data.to_vec())) {
        Ok(component) => assert!(!component.manifest().controllers.is_empty()),
        Err(error) => {
            assert!(!matches!(error, LoadError::Host { .. }), "the host failed: {error}");
            let text = error.to_string();
            assert!(text.len() < 20_000, "an error of {} bytes", text.len());
            assert!(!text.contains(['\n', '\0', '\u{1b}']), "{text:?}");
        }
    }
    nothing_is_left(&stage);
}

fn nothing_is_left(stage: &Stage) {
    let left = stage.sandbox.occupancy();
    assert_eq!((left.instances, left.reconciles), (0, 0), "{left:?}");
}
