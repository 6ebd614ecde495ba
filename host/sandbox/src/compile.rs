//! Compiles strangers' components, in a child process that the kernel limits: Cranelift has no deadline, some valid components take all memory, and compiling in the host's own process would keep
//! some 300 MB of heap for ever.
//!
//! The protocol: the child reads two limits (8 bytes each, little-endian) and the component from standard input, writes compiled code to standard output, or one line that says
//! why not to standard error. It gets no environment and no arguments but those that make it a compiler.

use std::{
    ffi::OsString,
    io::{Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    process::{ExitCode, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Resource, Rlimit, setrlimit};
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{engine, fault::one_line};

/// How much compiling one component may cost.
#[derive(Debug, Clone)]
pub struct CompileLimits {
    /// Bytes of address space.
    pub memory: u64,
    /// CPU time, in whole seconds.
    pub cpu: Duration,
    /// Wall-clock time.
    pub wall: Duration,
    /// Bytes of a component.
    pub component: usize,
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self {
            // An operator of 1.3 MB takes 300 MB and 2.3 s; the largest that make sense (a scripting language's interpreter) some ten times as much.
            memory: 4 << 30,
            cpu: Duration::from_mins(1),
            wall: Duration::from_mins(2),
            component: 64 << 20,
        }
    }
}

/// A component that did not compile.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// Not valid.
    #[error("the component is not valid: {0}; build it again")]
    Invalid(String),
    /// wasmtime does not load what was compiled.
    #[error("the compiled component does not fit into this host: {0}; make it smaller, or build it again")]
    Unfit(String),
    /// Took too much of something.
    #[error("compiling needs more than {0}; make the component smaller")]
    Limit(String),
    /// The compiler itself failed.
    #[error("the compiler failed ({status}): {stderr}; please report it with the component")]
    Crashed {
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// It could not even run.
    #[error(
        "the compiler {program:?} does not run: {error}; was the host's program replaced while it runs? then start it again"
    )]
    Spawn {
        /// Which program.
        program: OsString,
        /// Why not.
        error: std::io::Error,
    },
}

/// Compiles `wasm` into `draft` in a child process; dropping the future kills it.
pub(crate) async fn compile(
    compiler: &[OsString],
    limits: &CompileLimits,
    wasm: &[u8],
    draft: &NamedTempFile,
) -> Result<(), CompileError> {
    let (program, arguments) = compiler.split_first().map_or((OsString::new(), &[][..]), |(p, a)| (p.clone(), a));
    let failed = |error| CompileError::Spawn { program: program.clone(), error };
    let mut child = tokio::process::Command::new(&program)
        .args(arguments)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(draft.as_file().try_clone().map_err(failed)?)
        .stderr(Stdio::piped())
        // Ctrl-C at the terminal is for the host, which knows what to finish.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            let header = [limits.memory.to_le_bytes(), limits.cpu.as_secs().to_le_bytes()].concat();
            // A child that died early says why by its status.
            let _ = async {
                stdin.write_all(&header).await?;
                stdin.write_all(wasm).await?;
                stdin.shutdown().await
            }
            .await;
        }
    };
    let listen = async {
        let mut said = Vec::new();
        if let Some(stderr) = stderr {
            let _ = stderr.take(8 << 10).read_to_end(&mut said).await;
        }
        one_line(&String::from_utf8_lossy(&said).trim().replace('\n', " | "))
    };
    let all = async { tokio::join!(feed, listen, child.wait()) };
    let Ok(((), stderr, status)) = tokio::time::timeout(limits.wall, all).await else {
        return Err(CompileError::Limit(format!("{:?}", limits.wall)));
    };
    let status = status.map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let signal = status.signal().and_then(rustix::process::Signal::from_named_raw);
    Err(match (status.code(), signal) {
        (Some(1), _) => CompileError::Invalid(stderr),
        (_, Some(rustix::process::Signal::XCPU)) => CompileError::Limit(format!("{:?} of CPU time", limits.cpu)),
        _ if stderr.contains("memory allocation") || stderr.contains("Cannot allocate memory") => {
            CompileError::Limit(format!("{} MiB of memory", limits.memory >> 20))
        }
        _ => CompileError::Crashed { status, stderr },
    })
}

/// What the child runs: the whole of `main` for a program or a hidden subcommand that serves as [`crate::SandboxConfig::compiler`]. Where it is `quick`, the code is there
/// sooner and runs slower.
pub fn compile_main(quick: bool) -> ExitCode {
    match compile_stdin(quick) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "{why}");
            ExitCode::FAILURE
        }
    }
}

fn compile_stdin(quick: bool) -> Result<(), String> {
    let mut stdin = std::io::stdin().lock();
    let mut number = || {
        let mut bytes = [0; 8];
        stdin
            .read_exact(&mut bytes)
            .map(|()| u64::from_le_bytes(bytes))
            .map_err(|e| format!("no limits on standard input: {e}"))
    };
    let (memory, cpu) = (number()?, number()?);
    let limit = |resource, soft, hard| {
        setrlimit(resource, Rlimit { current: Some(soft), maximum: Some(hard) })
            .map_err(|e| format!("cannot limit this process: {e}"))
    };
    limit(Resource::As, memory, memory)?;
    limit(Resource::Cpu, cpu, cpu + 1)?;
    limit(Resource::Core, 0, 0)?;
    // Reconciles are more urgent.
    let _ = rustix::process::nice(5);
    let mut wasm = Vec::new();
    stdin.read_to_end(&mut wasm).map_err(|e| format!("cannot read the component: {e}"))?;
    let code = engine::for_compiling(quick)
        .and_then(|engine| engine.precompile_component(&wasm))
        .map_err(|error| format!("{error:#}").replace('\n', " "))?;
    std::io::stdout().write_all(&code).map_err(|e| format!("cannot write the code: {e}"))
}
