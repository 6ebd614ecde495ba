//! Compiles strangers' components, in a child process that the kernel limits: Cranelift has no deadline, some valid components take all memory, and compiling in the host's own process would keep
//! some 300 MB of heap for ever.
//!
//! **What it takes counts as the host's** where a control group holds both, as in a container, so the host's memory bounds it; and where the kernel has to end one of them, it is the child's turn first.
//!
//! The protocol: the child reads three limits (8 bytes each, little-endian) and the component from standard input, writes compiled code to standard output, or one line that says
//! why not to standard error, with exit code 1 where the component is to blame and 2 where it is not. It gets no arguments but those that make it a compiler, and of the environment nothing but
//! how many threads it may have.

use std::{
    ffi::OsString,
    fs,
    io::{Read as _, Write as _},
    num::NonZero,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{ExitCode, ExitStatus, Stdio},
    time::Duration,
};

use operetta_core::memory::{COMPILER, share};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{engine, fault::one_line};

/// How much compiling one component may cost.
#[derive(Debug, Clone)]
pub struct CompileLimits {
    /// Bytes of address space.
    pub memory: u64,
    /// Bytes that it may write to, touched or not: its heap and its threads' stacks. Unlike addresses, they are close to what it takes of the machine.
    pub data: u64,
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
            memory: ADDRESSES,
            data: u64::try_from(share(COMPILER, LEAST)).unwrap_or(ADDRESSES).min(ADDRESSES),
            cpu: Duration::from_mins(1),
            wall: Duration::from_mins(2),
            component: 64 << 20,
        }
    }
}

/// Bytes of address space, unless told otherwise.
const ADDRESSES: u64 = 4 << 30;
/// What an ordinary operator needs, whatever the machine has.
const LEAST: usize = 384 << 20;

/// Bytes of it for one of its threads.
const EACH_THREAD: u64 = 64 << 20;

/// Threads that compile at a time: each takes a stack, and memory for the function that it is at, whatever the cores are.
fn threads(cores: usize, data: u64) -> usize {
    let room = usize::try_from(data / EACH_THREAD).unwrap_or(usize::MAX);
    cores.min(room).max(1)
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
    /// Took more memory than there is for it.
    #[error(
        "compiling needs more than {0}; make the component smaller, or give the host more memory, of which a quarter is for compiling"
    )]
    Memory(String),
    /// The host died while it was compiled, more than once.
    #[error(
        "the host died {deaths} times while it compiled this component, which is left alone for a day: had the host too little memory? \
         Build the component smaller, or give the host more memory; then, or to try again, delete {mark:?} (in a pod whose state is an emptyDir: delete the pod), which the host finds out within a minute"
    )]
    Deadly {
        /// How often.
        deaths: u64,
        /// The file that remembers it.
        mark: PathBuf,
    },
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

/// How the child ends where the component is to blame.
const INVALID: u8 = 1;
/// How it ends where it could not even try.
const TROUBLE: u8 = 2;
/// What allocators say, in small letters, and last what there is to hear where there is no room for the stack of another thread.
const OUT_OF_MEMORY: [&str; 4] =
    ["memory allocation", "cannot allocate memory", "out of memory", "resource temporarily unavailable"];

/// Compiles `wasm` into `draft` in a child process; dropping the future kills it.
pub(crate) async fn compile(
    compiler: &[OsString],
    limits: &CompileLimits,
    wasm: &[u8],
    draft: &NamedTempFile,
) -> Result<(), CompileError> {
    let (program, arguments) = compiler.split_first().map_or((OsString::new(), &[][..]), |(p, a)| (p.clone(), a));
    let failed = |error| CompileError::Spawn { program: program.clone(), error };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let mut child = tokio::process::Command::new(&program)
        .args(arguments)
        .env_clear()
        .env("RAYON_NUM_THREADS", threads(cores, limits.data).to_string())
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
            let header = [limits.memory, limits.data, limits.cpu.as_secs()].map(u64::to_le_bytes).concat();
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
    let said = stderr.to_lowercase();
    Err(match (status.code().and_then(|code| u8::try_from(code).ok()), signal) {
        // Memory that is not there may also be an error like any other.
        (Some(INVALID), _) if !said.contains("(os error 12)") => CompileError::Invalid(stderr),
        (_, Some(rustix::process::Signal::XCPU)) => CompileError::Limit(format!("{:?} of CPU time", limits.cpu)),
        // Nobody else sends it, and no limit that is set here ends a process by it.
        (_, Some(rustix::process::Signal::KILL)) => CompileError::Memory(
            "the machine or the container has left of memory (the system killed the compiler)".to_owned(),
        ),
        _ if OUT_OF_MEMORY.iter().any(|words| said.contains(words)) => {
            CompileError::Memory(format!("{} MiB of memory", limits.memory.min(limits.data) >> 20))
        }
        _ => CompileError::Crashed { status, stderr },
    })
}

/// What the child runs: the whole of `main` for a program or a hidden subcommand that serves as [`crate::SandboxConfig::compiler`]. Where it is `quick`, the code is there
/// sooner and runs slower.
pub fn compile_main(quick: bool) -> ExitCode {
    match compile_stdin(quick) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, why)) => {
            let _ = writeln!(std::io::stderr(), "{why}");
            code.into()
        }
    }
}

fn compile_stdin(quick: bool) -> Result<(), (u8, String)> {
    // Where memory runs out, this process goes before the host does. Anybody may ask for that; where there is no such file, the host's limits have to do.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let mut stdin = std::io::stdin().lock();
    let mut number = || {
        let mut bytes = [0; 8];
        stdin
            .read_exact(&mut bytes)
            .map(|()| u64::from_le_bytes(bytes))
            .map_err(|e| (TROUBLE, format!("no limits on standard input: {e}")))
    };
    let (memory, data, cpu) = (number()?, number()?, number()?);
    let limit = |resource, soft: u64, hard: u64| {
        // There may be a lower one already, which cannot be raised.
        let hard = getrlimit(resource).maximum.map_or(hard, |most| most.min(hard));
        setrlimit(resource, Rlimit { current: Some(soft.min(hard)), maximum: Some(hard) })
            .map_err(|e| (TROUBLE, format!("cannot limit this process: {e}")))
    };
    limit(Resource::As, memory, memory)?;
    limit(Resource::Data, data, data)?;
    limit(Resource::Cpu, cpu, cpu + 1)?;
    limit(Resource::Core, 0, 0)?;
    // Reconciles are more urgent.
    let _ = rustix::process::nice(5);
    let mut wasm = Vec::new();
    stdin.read_to_end(&mut wasm).map_err(|e| (TROUBLE, format!("cannot read the component: {e}")))?;
    let blame = |code| move |error: wasmtime::Error| (code, format!("{error:#}").replace('\n', " "));
    let engine = engine::for_compiling(quick).map_err(blame(TROUBLE))?;
    let code = engine.precompile_component(&wasm).map_err(blame(INVALID))?;
    std::io::stdout().write_all(&code).map_err(|e| (TROUBLE, format!("cannot write the code: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_has_no_more_threads_than_its_memory_bears() {
        for (cores, data, expected) in [
            (2, 384 << 20, 2),
            (64, 384 << 20, 6),
            (64, 512 << 20, 8),
            (4, ADDRESSES, 4),
            (128, ADDRESSES, 64),
            (8, 1, 1),
        ] {
            assert_eq!(threads(cores, data), expected, "{cores} {data}");
        }
    }

    #[test]
    fn a_compiler_has_a_quarter_of_the_memory_and_enough_for_an_ordinary_component() {
        let limits = CompileLimits::default();
        let part = u64::try_from(share(COMPILER, LEAST)).unwrap();
        assert_eq!(limits.data, part.min(limits.memory), "{limits:?}");
    }
}
