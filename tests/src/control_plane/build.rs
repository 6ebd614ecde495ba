//! Compiles the control plane's programs from Go modules into the cache, once per version. It never starts them.
//!
//! `tests/cluster/go.mod` names the programs in its `tool` lines and pins every module; there is no Go code of ours. The first build takes
//! about four minutes on two cores and a warm Go cache makes it seconds; the result is 450 MB.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    go::{Go, Module},
    progress::{Progress, Step},
};

const MODULE: Module = Module {
    name: "control-plane",
    title: "control plane",
    files: &[("go.mod", include_str!("../../cluster/go.mod")), ("go.sum", include_str!("../../cluster/go.sum"))],
    recipe: "1",
};

/// kwok's stages, files of its module: they make nodes ready and run, complete, delete and, on a label's demand, fail pods.
const STAGES: [&str; 7] = [
    "node/fast/node-initialize.yaml",
    "node/heartbeat/node-heartbeat.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
    "pod/chaos/pod-container-running-failed.yaml",
];

/// A directory with the built programs.
#[derive(Debug, Clone)]
pub struct Programs(PathBuf);

impl Programs {
    /// The path of one of them.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The files that tell kwok what to do.
    pub fn stages(&self) -> impl Iterator<Item = PathBuf> {
        STAGES.iter().map(|stage| self.0.join("stages").join(flat(stage)))
    }
}

/// A stage's file name in the result: its path's parts joined, since two folders may use the same name.
fn flat(stage: &str) -> String {
    stage.replace('/', "-")
}

/// Finds the programs in the cache or builds them there.
pub fn build(progress: &Progress) -> Result<Programs> {
    MODULE.build(progress, compile).map(Programs)
}

fn compile(go: &Go, out: &Path, step: &mut Step) -> Result<()> {
    step.say("fetching Go modules");
    let version = go.answer(&["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"])?;
    let packages = go.answer(&["list", "-deps", "tool"])?;
    step.expect(packages.lines().count() as u64);
    let stamp = version_stamp(&version)?;
    let target = format!("{}/", out.display());
    go.build(&["build", "-v", "-trimpath", &format!("-ldflags={stamp}"), "-o", &target, "tool"], step)?;
    // etcd's main package is named server.
    fs::rename(out.join("server"), out.join("etcd")).context("name etcd")?;

    let kwok = go.answer(&["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"])?;
    let stages = Path::new(&kwok).join("kustomize/stage");
    fs::create_dir(out.join("stages")).context("create the directory of kwok's stages")?;
    for stage in STAGES {
        // Read and write instead of copy: the module cache is read-only, and a copy would be as well.
        let text = fs::read(stages.join(stage)).with_context(|| format!("read kwok's stage {stage}"))?;
        fs::write(out.join("stages").join(flat(stage)), text).with_context(|| format!("write kwok's stage {stage}"))?;
    }
    Ok(())
}

/// The linker's flags that make the programs say which version they are. Without them clients cannot parse the server's version.
fn version_stamp(version: &str) -> Result<String> {
    let minor = version.split('.').nth(1).with_context(|| format!("read the minor version of Kubernetes {version}"))?;
    let values = [
        ("gitVersion", version),
        ("gitMajor", "1"),
        ("gitMinor", minor),
        ("gitCommit", "unknown"),
        ("gitTreeState", "archive"),
    ];
    let flags = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"]
        .iter()
        .flat_map(|package| values.iter().map(move |(name, value)| format!("-X {package}.{name}={value}")));
    Ok(["-s".to_owned(), "-w".to_owned()].into_iter().chain(flags).collect::<Vec<_>>().join(" "))
}
