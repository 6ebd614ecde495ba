//! What all components share: one engine with its pool of instances, the guests' threads, the cache.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use bytes::Bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Semaphore;
use wasmtime::Engine;

use crate::{
    budget::GuestBudget,
    cache::{Cache, CacheError},
    compile::CompileLimits,
    component::{self, Component, LoadError},
    engine::{self, Ticker},
    guests::Guests,
};

/// Components that are described at the same time; their slots are not those of reconciles, so that guests that hang never hold up a load.
const DESCRIBE_SLOTS: u16 = 2;

/// How a sandbox is set up.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// The folder for compiled components; made where it does not exist.
    pub cache_dir: PathBuf,
    /// The file with the key that authenticates them, outside that folder; made where it does not exist.
    pub key_file: PathBuf,
    /// Program and arguments whose `main` is [`crate::compile_main`].
    pub compiler: Vec<OsString>,
    /// Reconciles at the same time, of all plugins.
    pub concurrency: u16,
    /// What the memories of all guests take together.
    pub memory: Arc<GuestBudget>,
    /// What compiling a component may cost.
    pub compile_limits: CompileLimits,
}

impl SandboxConfig {
    /// With defaults for all numbers.
    pub fn new(cache_dir: impl Into<PathBuf>, key_file: impl Into<PathBuf>, compiler: Vec<OsString>) -> Self {
        Self {
            cache_dir: cache_dir.into(),
            key_file: key_file.into(),
            compiler,
            // Most reconciles wait for the API server. A slot costs address space, not memory.
            concurrency: 64,
            memory: Arc::default(),
            compile_limits: CompileLimits::default(),
        }
    }
}

/// A sandbox that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The cache or its key.
    #[error("cache of compiled components: {0}")]
    Cache(#[from] CacheError),
    /// wasmtime.
    #[error(
        "cannot set up wasmtime: {0}; it reserves some gigabytes of address space for each concurrent reconcile: lift `ulimit -v`, or lower the concurrency"
    )]
    Engine(String),
    /// Threads.
    #[error("cannot start the threads for guests: {0}")]
    Threads(#[from] std::io::Error),
}

/// Loads and runs components. Cheap to clone; the last clone and the last component end its threads.
#[derive(Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
}

/// What a component needs to run.
pub(crate) struct Inner {
    pub engine: Engine,
    pub ticker: Ticker,
    pub guests: Guests,
    pub concurrency: usize,
    pub slots: Arc<Semaphore>,
    pub describe_slots: Semaphore,
    pub compiling: Semaphore,
    pub memory: Arc<GuestBudget>,
    pub cache: Cache,
    pub compiler: Vec<OsString>,
    pub compile_limits: CompileLimits,
}

/// How much of the sandbox is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupancy {
    /// Instances that exist.
    pub instances: u64,
    /// Stacks in use.
    pub stacks: usize,
    /// Reconciles that run or are about to.
    pub reconciles: usize,
    /// Tasks on the guests' threads.
    pub tasks: usize,
}

impl Sandbox {
    /// Sets one up. Raises the process's limit of open files to the hard one: each mapped component keeps one open.
    pub fn new(config: SandboxConfig) -> Result<Self, SandboxError> {
        let files = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: files.maximum, maximum: files.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files cannot be raised; each loaded component keeps one open");
        }
        let slots = config.concurrency.max(1);
        let engine = engine::for_running(u32::from(slots) + u32::from(DESCRIBE_SLOTS))
            .map_err(|error| SandboxError::Engine(format!("{error:#}")))?;
        Ok(Self {
            inner: Arc::new(Inner {
                ticker: Ticker::start(&engine)?,
                guests: Guests::start()?,
                concurrency: usize::from(slots),
                slots: Arc::new(Semaphore::new(usize::from(slots))),
                describe_slots: Semaphore::new(usize::from(DESCRIBE_SLOTS)),
                compiling: Semaphore::new(1),
                memory: config.memory,
                cache: Cache::open(&engine, &config.cache_dir, &config.key_file)?,
                compiler: config.compiler,
                compile_limits: config.compile_limits,
                engine,
            }),
        })
    }

    /// Loads a component: verify, compile or find it compiled, describe.
    pub async fn load(&self, wasm: impl Into<Bytes>) -> Result<Arc<Component>, LoadError> {
        component::load(&self.inner, wasm.into()).await
    }

    /// How much of it is in use.
    pub fn occupancy(&self) -> Occupancy {
        let pool = self.inner.engine.pooling_allocator_metrics();
        Occupancy {
            instances: pool.as_ref().map_or(0, wasmtime::PoolingAllocatorMetrics::component_instances),
            stacks: pool.as_ref().map_or(0, wasmtime::PoolingAllocatorMetrics::stacks),
            reconciles: self.inner.concurrency.saturating_sub(self.inner.slots.available_permits()),
            tasks: self.inner.guests.tasks(),
        }
    }
}
