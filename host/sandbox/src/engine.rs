//! The engine's settings, each with its reason, and the tick that interrupts guests.
//!
//! **Nothing here may make a result depend on the machine**: NaNs are canonical and relaxed SIMD is deterministic, so that a reconcile can be replayed elsewhere.

use std::{
    num::NonZero,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::Thread,
    time::Duration,
};

use operetta_core::limit::{MOST_TABLE_ELEMENTS, STACK};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig, RegallocAlgorithm,
    WasmBacktraceDetails,
};

/// How often a running guest is asked to yield and its CPU time is looked at. Below it CPU budgets are not exact.
const TICK: Duration = Duration::from_millis(2);
/// After so many ticks without a guest the ticker sleeps until one comes.
const IDLE_TICKS: u32 = 100;
/// The most core modules a component may instantiate. A Rust guest has 3 (itself and two shims of the adapter), a scripting language's some 20.
const CORE_INSTANCES: u32 = 40;
/// The most memories. A Rust guest has 1; each part of a composed component has its own.
const MEMORIES: u32 = 4;
/// The most tables. A Rust guest has 2.
const TABLES: u32 = 12;
/// Stacks for each slot: one for the call and one for each task in it that waits in a synchronous import.
const STACKS: u32 = 8;
/// Functions that a trap remembers. Each with a copy of its name, whose length the first look at a component bounds.
const FRAMES: usize = 20;

/// What decides how code is compiled; the same in the host and in the compiler's process, else the cache's key would differ.
fn common() -> Config {
    let mut config = Config::new();
    config
        .wasm_component_model_async(true)
        .epoch_interruption(true)
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .max_wasm_stack(STACK)
        // The pool's slots and the limits are made for addresses of 32 bits.
        .wasm_memory64(false)
        // Resolving lines costs 7 ms a trap; names of functions are kept and cost microseconds.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .wasm_backtrace_max_frames(NonZero::new(FRAMES));
    config
}

/// The engine of the compiler's process, which has no address space for a pool and runs nothing. Neither setting of a `quick` one changes what the code does, so that what it
/// compiles fits every host.
pub(crate) fn for_compiling(quick: bool) -> wasmtime::Result<Engine> {
    let mut config = common();
    if quick {
        // Measured for a new project of 1.3 MB: 1.0 s of CPU instead of 1.4, in an unoptimised host.
        config.cranelift_opt_level(OptLevel::None).cranelift_regalloc_algorithm(RegallocAlgorithm::SinglePass);
    }
    Engine::new(&config)
}

/// The engine that runs at most `slots` instances at once.
pub(crate) fn for_running(slots: u32) -> wasmtime::Result<Engine> {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(slots)
        .total_core_instances(slots.saturating_mul(CORE_INSTANCES))
        .total_memories(slots.saturating_mul(MEMORIES))
        .total_tables(slots.saturating_mul(TABLES))
        .total_stacks(slots.saturating_mul(STACKS))
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .max_tables_per_module(TABLES)
        .max_core_instance_size(1 << 20)
        .max_component_instance_size(1 << 20)
        .table_elements(MOST_TABLE_ELEMENTS)
        // All that 32 bits can address: the limit of a reconcile is the limiter's affair, and this is address space only.
        .max_memory_size(4 << 30)
        // Measured for a fresh instance: 30 µs of CPU with these, 58 without the scan, 55 without the tables.
        .pagemap_scan(Enabled::Auto)
        .linear_memory_keep_resident(2 << 20)
        .table_keep_resident(64 << 10);
    Engine::new(common().allocation_strategy(InstanceAllocationStrategy::Pooling(pool)))
}

/// Raises the engine's epoch while guests run, so that they yield.
pub(crate) struct Ticker {
    shared: Arc<TickerState>,
    thread: Thread,
}

struct TickerState {
    running: AtomicUsize,
    asleep: AtomicBool,
}

/// A guest may run while this lives.
pub(crate) struct Ticking(Arc<TickerState>);

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ticker {
    /// Starts the ticker's thread, which ends with the ticker or the engine.
    pub fn start(engine: &Engine) -> std::io::Result<Self> {
        let shared = Arc::new(TickerState { running: AtomicUsize::new(0), asleep: AtomicBool::new(false) });
        let (weak, engine) = (Arc::downgrade(&shared), engine.weak());
        let thread = std::thread::Builder::new().name("epoch-ticker".into()).spawn(move || {
            let mut idle = 0;
            while let Some(busy) = wait_for_tick(&weak, idle >= IDLE_TICKS) {
                idle = if busy { 0 } else { idle + 1 };
                match engine.upgrade() {
                    Some(engine) => engine.increment_epoch(),
                    None => return,
                }
            }
        })?;
        Ok(Self { shared, thread: thread.thread().clone() })
    }

    /// Says that a guest is about to run.
    pub fn run(&self) -> Ticking {
        self.shared.running.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
        Ticking(Arc::clone(&self.shared))
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.thread.unpark();
    }
}

/// Waits for the next tick, or while nothing runs if it may `sleep`. None: the ticker is gone.
fn wait_for_tick(shared: &Weak<TickerState>, sleep: bool) -> Option<bool> {
    if sleep {
        {
            let shared = shared.upgrade()?;
            shared.asleep.store(true, Ordering::SeqCst);
            // A guest that came in between finds nobody to wake.
            if shared.running.load(Ordering::SeqCst) > 0 {
                shared.asleep.store(false, Ordering::SeqCst);
            }
        }
        while shared.upgrade()?.asleep.load(Ordering::SeqCst) {
            // The host looks every second whether it is gone, which costs nothing one could measure.
            std::thread::park_timeout(Duration::from_secs(1));
        }
    }
    std::thread::sleep(TICK);
    Some(shared.upgrade()?.running.load(Ordering::SeqCst) > 0)
}
