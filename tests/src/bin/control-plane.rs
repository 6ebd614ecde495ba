//! Runs a local Kubernetes control plane until it is told to stop, and leaves nothing behind.

use std::{
    io::{Read, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Parser;
use operetta_tests::{
    control_plane::{build, run_dir, start},
    progress::Progress,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// A local Kubernetes control plane: etcd, API server, controller manager, scheduler and a simulated node, on loopback.
#[derive(Debug, Parser)]
struct Arguments {
    /// Print where to find it as one line of JSON, and stop when standard input closes, as it does when the parent process ends.
    #[arg(long)]
    until_stdin_closes: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("control-plane: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let progress = Progress::stderr();
    let programs = build::build(&progress)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("make a runtime")?.block_on(async {
        // Listened for before the first process starts: a signal in the middle of the start ends what has started so far.
        let end = stop_asked(arguments.until_stdin_closes)?;
        tokio::pin!(end);
        let step = progress.step("control plane");
        let mut running = tokio::select! {
            running = start::start(&programs) => running?,
            // What was started is recorded on disk, and ended as any dead run's processes are.
            () = &mut end => return run_dir::remove_dead(),
        };
        step.done("running");
        announce(&running, arguments.until_stdin_closes)?;
        let broken = tokio::select! {
            () = &mut end => None,
            error = running.broken() => Some(error),
        };
        running.stop()?;
        broken.map_or(Ok(()), Err)
    })
}

/// Completes at Ctrl-C, SIGTERM, the terminal's end or, if asked for, the end of standard input.
fn stop_asked(until_stdin_closes: bool) -> Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    let closed = until_stdin_closes.then(stdin_closed);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
            Some(_) = async { Some(closed?.await) } => {}
        }
    })
}

/// Completes at the end of standard input.
fn stdin_closed() -> oneshot::Receiver<()> {
    let (closed, at_close) = oneshot::channel();
    // A thread of its own: a read that waits cannot be given up, and the process does not wait for this one.
    std::thread::spawn(move || {
        let mut sink = [0; 64];
        while matches!(std::io::stdin().read(&mut sink), Ok(1..)) {}
        let _ = closed.send(());
    });
    at_close
}

fn announce(running: &start::Running, to_a_program: bool) -> Result<()> {
    let access = running.access();
    let mut out = std::io::stdout().lock();
    if to_a_program {
        let line = serde_json::to_string(access).context("describe the control plane")?;
        writeln!(out, "{line}").context("print where the control plane is")?;
    } else {
        let (config, kubectl) = (access.kubeconfig.display(), access.kubectl.display());
        let (logs, audit) = (access.run_dir.display(), access.audit_log.display());
        write!(
            out,
            "\nexport KUBECONFIG={config}\nalias kubectl={kubectl}\n\n  kubectl get nodes\n  kubectl create deployment web --image=nginx --replicas=2\n  \
             kubectl get pods --watch\n\nlogs   {logs}\naudit  {audit}\nCtrl-C stops everything.\n"
        )
        .context("print where the control plane is")?;
    }
    out.flush().context("print where the control plane is")
}
