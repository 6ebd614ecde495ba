//! The Memcached operator in Go of `tests/moving`, on controller-runtime in the shape of a kubebuilder project: what a team moves away from. Built here, and run as a child.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Result;

use crate::{child::Child, control_plane::run_dir::RunDir, go::Module, progress::Progress};

/// Its file, after which the API server names its field manager: what kubebuilder's image calls it.
pub const MANAGER: &str = "manager";
/// controller-runtime gives its runnables 30 seconds.
const ENDS_WITHIN: Duration = Duration::from_secs(40);

const MODULE: Module = Module {
    name: "moving",
    title: "operator in Go",
    files: &[
        ("go.mod", include_str!("../moving/go.mod")),
        ("go.sum", include_str!("../moving/go.sum")),
        ("cmd/main.go", include_str!("../moving/cmd/main.go")),
        ("api/v1alpha1/memcached_types.go", include_str!("../moving/api/v1alpha1/memcached_types.go")),
        (
            "internal/controller/memcached_controller.go",
            include_str!("../moving/internal/controller/memcached_controller.go"),
        ),
    ],
    recipe: "1",
};

/// Finds it in the cache or builds it there: seconds where the control plane was built, whose modules it shares.
pub fn build(progress: &Progress) -> Result<PathBuf> {
    let directory = MODULE.build(progress, |go, out, step| {
        step.say("fetching Go modules");
        step.expect(go.answer(&["list", "-deps", "./cmd"])?.lines().count() as u64);
        let program = out.join(MANAGER).display().to_string();
        // With the flags of the control plane, so that the same packages are compiled once.
        go.build(&["build", "-v", "-trimpath", "-ldflags=-s -w", "-o", &program, "./cmd"], step)
    })?;
    Ok(directory.join(MANAGER))
}

/// The operator at work. It ends with this value.
#[derive(Debug)]
pub struct Operator(Child);

impl Operator {
    /// Starts it against the cluster of a kubeconfig.
    pub fn start(run: &RunDir, program: &Path, kubeconfig: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", kubeconfig);
        Child::start(run, "go-operator", &run.path().join("go-operator.log"), &mut command).map(Self)
    }

    /// Ends it in order, as scaling its Deployment to none would.
    pub async fn stop(mut self) -> Result<()> {
        self.0.stop(ENDS_WITHIN).await.map(drop)
    }
}
