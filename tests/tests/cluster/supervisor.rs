//! The supervisor of the control plane leaves nothing behind, whichever way it or its parent ends.

use std::path::Path;

use anyhow::ensure;
use operetta_tests::{
    control_plane::{
        run_dir::{self, processes},
        supervised::Supervised,
    },
    eventually,
};

use crate::shared::{ONE_MORE_CONTROL_PLANE, SOON, program};

const PROGRAMS: usize = 5;

async fn nothing_is_left(run: &Path, of: &[run_dir::Process]) {
    eventually("nothing is left of the control plane", SOON, async || {
        let alive = of.iter().filter(|process| process.is_alive()).collect::<Vec<_>>();
        ensure!(alive.is_empty(), "still running: {alive:?}");
        ensure!(!run.exists(), "{} is still there", run.display());
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn everything_stops_when_the_parent_lets_go_of_standard_input() {
    let _turn = ONE_MORE_CONTROL_PLANE.lock().await;
    let supervised = Supervised::start(program()).unwrap();
    let run = supervised.access().run_dir.clone();
    let started = processes(&run);
    assert_eq!(started.len(), PROGRAMS);
    assert!(started.iter().all(run_dir::Process::is_alive));
    drop(supervised);
    nothing_is_left(&run, &started).await;
}

#[tokio::test]
async fn everything_stops_on_sigterm() {
    let _turn = ONE_MORE_CONTROL_PLANE.lock().await;
    let supervised = Supervised::start(program()).unwrap();
    let run = supervised.access().run_dir.clone();
    let started = processes(&run);
    signal(supervised.pid(), rustix::process::Signal::TERM);
    nothing_is_left(&run, &started).await;
}

#[tokio::test]
async fn the_next_start_cleans_up_after_a_supervisor_that_was_killed() {
    let _turn = ONE_MORE_CONTROL_PLANE.lock().await;
    let killed = Supervised::start(program()).unwrap();
    let run = killed.access().run_dir.clone();
    let started = processes(&run);
    signal(killed.pid(), rustix::process::Signal::KILL);
    drop(killed);
    drop(Supervised::start(program()).unwrap());
    nothing_is_left(&run, &started).await;
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
