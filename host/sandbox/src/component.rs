//! A component from bytes to something that can run: verify, compile (or find it compiled), describe.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use operetta_core::{manifest::Manifest, name::Digest};

use crate::{
    bindings::OperatorPre,
    cache::{Dead, KeepError},
    capability,
    compile::{self, CompileError},
    describe::{self, DescribeError},
    fault::one_line,
    guests::Share,
    operator::{Observer, Operator},
    sandbox::Inner,
    state::State,
    verify::{self, Outline, VerifyError},
};

/// Why a component was not loaded. Displayed as phase, reason and next step; the caller adds the file.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Refused at first sight.
    #[error("verify: {0}")]
    Verify(#[from] VerifyError),
    /// Refused by the compiler.
    #[error("compile: {0}")]
    Compile(#[from] CompileError),
    /// It cannot say what it is.
    #[error("describe: {0}")]
    Describe(#[from] DescribeError),
    /// The host could not.
    #[error("{phase}: the host failed: {why}; see the host's log and its cache folder")]
    Host {
        /// During what.
        phase: &'static str,
        /// What happened.
        why: String,
    },
}

impl LoadError {
    /// Whether the component is not to blame.
    pub fn is_the_hosts(&self) -> bool {
        matches!(self, Self::Host { .. } | Self::Describe(DescribeError::Host(_)))
    }

    /// Whether it may load later as it is.
    pub fn may_pass(&self) -> bool {
        // What the host died of is left alone for a time.
        self.is_the_hosts() || matches!(self, Self::Compile(CompileError::Deadly { .. }))
    }

    /// `verify`, `compile` or `describe`.
    pub fn phase(&self) -> &'static str {
        match self {
            Self::Verify(_) => "verify",
            Self::Compile(_) => "compile",
            Self::Describe(_) => "describe",
            Self::Host { phase, .. } => phase,
        }
    }
}

/// A component that is ready to run.
pub struct Component {
    digest: Digest,
    size: usize,
    imports: Vec<String>,
    stamped: bool,
    cached: bool,
    took: Duration,
    manifest: Manifest,
    pub(crate) pre: OperatorPre<State>,
    /// Of the guests' threads.
    pub(crate) share: Arc<Share>,
    pub(crate) inner: Arc<Inner>,
}

impl Component {
    /// Of its bytes.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Its bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The interfaces that it imports, such as `operetta:operator/writer@0.1.0`: all that it can even ask for.
    pub fn imports(&self) -> &[String] {
        &self.imports
    }

    /// Whether it carries its manifest in a section, too; it was found to be the same.
    pub fn stamped(&self) -> bool {
        self.stamped
    }

    /// Whether it was found compiled.
    pub fn cached(&self) -> bool {
        self.cached
    }

    /// How long loading took.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// Runs its controllers; `observe` is told what each reconcile used.
    pub fn operator(self: &Arc<Self>, observe: Observer) -> Operator {
        Operator::new(Arc::clone(self), observe)
    }
}

/// Loads a component: all of `Sandbox::load`.
pub(crate) async fn load(inner: &Arc<Inner>, wasm: Bytes) -> Result<Arc<Component>, LoadError> {
    let began = Instant::now();
    let host = |phase| move |why: String| LoadError::Host { phase, why };
    // Reading and hashing some megabytes takes milliseconds, for which no other task should wait.
    let (outline, claimed, digest, bytes, key, found) = {
        let (inner, wasm) = (Arc::clone(inner), wasm.clone());
        let first = move || -> Result<_, LoadError> {
            let outline = verify::outline(&wasm, inner.compile_limits.component)?;
            let claimed = outline.stamp.as_ref().map(|stamp| stamp.manifest(&wasm)).transpose()?;
            let digest = Digest::of(&wasm);
            // What is compiled is what the cache's key names, to the byte.
            let bytes = outline.code(&wasm);
            let key = if claimed.is_some() { Digest::of(&bytes) } else { digest };
            let found = inner.cache.find(&key);
            Ok((outline, claimed, digest, bytes, key, found))
        };
        tokio::task::spawn_blocking(first).await.map_err(|e| host("verify")(e.to_string()))??
    };
    let cached = found.is_some();
    let code = match found {
        Some(code) => code,
        None => compile(inner, &bytes, &key).await?,
    };
    let Outline { imports, wasi_p2, .. } = outline;
    let share = inner.guests.share();
    let (pre, manifest) = {
        let inner_here = Arc::clone(inner);
        let describe = async move {
            let link = |error: wasmtime::Error| DescribeError::Link(one_line(&format!("{error:#}")));
            let linker = capability::linker(&inner_here.engine, wasi_p2).map_err(link)?;
            let pre = OperatorPre::new(linker.instantiate_pre(&code).map_err(link)?).map_err(link)?;
            let _slot = inner_here.describe_slots.acquire().await;
            describe::describe(&inner_here, &code, &linker, wasi_p2).await.map(|manifest| (pre, manifest))
        };
        let described = inner.guests.run_at_once(describe).await;
        described.map_err(|e| host("describe")(e.to_string()))??
    };
    if let Some(field) = claimed.as_ref().and_then(|claimed| claimed.difference(&manifest)) {
        return Err(DescribeError::Differs(field).into());
    }
    let (inner, size, stamped, took) = (Arc::clone(inner), wasm.len(), claimed.is_some(), began.elapsed());
    Ok(Arc::new(Component { digest, size, imports, stamped, cached, took, manifest, pre, share, inner }))
}

/// Compiles it and keeps what came of it. One at a time: a compiler uses all cores.
async fn compile(
    inner: &Arc<Inner>,
    wasm: &Bytes,
    digest: &Digest,
) -> Result<wasmtime::component::Component, LoadError> {
    let host = |why: String| LoadError::Host { phase: "compile", why };
    let _turn = inner.compiling.acquire().await.map_err(|e| host(e.to_string()))?;
    // Somebody else may have compiled the same bytes while this one waited.
    if let Some(code) = inner.cache.find(digest) {
        return Ok(code);
    }
    let draft = inner.cache.draft().map_err(|e| host(format!("cannot write to the cache: {e}")))?;
    let mark = inner.cache.mark(digest).map_err(|Dead { deaths, mark }| CompileError::Deadly { deaths, mark })?;
    compile::compile(&inner.compiler, &inner.compile_limits, wasm, &draft).await?;
    drop(mark);
    let (inner, digest) = (Arc::clone(inner), *digest);
    tokio::task::spawn_blocking(move || inner.cache.keep(&digest, draft))
        .await
        .map_err(|e| host(e.to_string()))?
        .map_err(|why| match why {
            KeepError::Unfit(why) => CompileError::Unfit(why).into(),
            KeepError::Host(why) => host(why),
        })
}
