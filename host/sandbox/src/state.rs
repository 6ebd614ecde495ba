//! What one instance has with it: its limits, its handles, and the effects it may have on the world, or none while it is only described.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
};

use operetta_core::{
    effect::{Effects, UnderWay},
    limit::Exceeded,
};
use tokio::runtime::Handle;
use wasmtime::{
    Engine, Store, UpdateDeadline,
    component::{Accessor, HasSelf, ResourceTable},
};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::{
    capability::wasi,
    fault::one_line,
    guests::Share,
    meter::{Memory, Meter},
};

/// The resources (gRPC streams, WASI's handles) that one instance may hold.
const HANDLES: usize = 1_000;
/// The component model's own handles: calls under way, and the guest's side of resources.
const COMPONENT_HANDLES: usize = 10_000;
/// The lines that are kept of what a guest says while it is described.
const SAID: usize = 5;

/// The data of a store.
pub(crate) struct State {
    /// Limits its memory.
    pub memory: Memory,
    /// Its handles.
    pub table: ResourceTable,
    /// Made when it is first asked for: most guests never ask, and its random numbers cost more than their instance.
    wasi: Option<WasiCtx>,
    world: World,
}

enum World {
    /// It reconciles.
    Reconcile { effects: Arc<Effects>, main: Handle, share: Arc<Share> },
    /// It is asked for its manifest, and may only talk.
    Describe { said: Vec<String> },
}

/// An import was called that a description must not need.
#[derive(Debug, thiserror::Error)]
#[error("it called an import; `manifest` may call none")]
pub(crate) struct NotWhileDescribing;

/// Which data a host function sees: all of it.
pub(crate) type Caps = HasSelf<State>;

impl State {
    /// Of an instance that reconciles. The futures of its effects run in the context of the runtime `main`, so that their connections and timers live there, not among guests.
    pub fn reconcile(effects: Arc<Effects>, main: Handle, share: Arc<Share>, memory: Memory) -> Self {
        Self::new(memory, World::Reconcile { effects, main, share })
    }

    /// Of an instance that is asked for its manifest.
    pub fn describe(memory: Memory) -> Self {
        Self::new(memory, World::Describe { said: Vec::new() })
    }

    fn new(memory: Memory, world: World) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(HANDLES);
        Self { memory, table, wasi: None, world }
    }

    /// The effects it may have.
    pub fn effects(&self) -> Result<&Arc<Effects>, NotWhileDescribing> {
        match &self.world {
            World::Reconcile { effects, .. } => Ok(effects),
            World::Describe { .. } => Err(NotWhileDescribing),
        }
    }

    /// The same, to be replaced by those of the next call.
    pub fn effects_mut(&mut self) -> Result<&mut Arc<Effects>, NotWhileDescribing> {
        match &mut self.world {
            World::Reconcile { effects, .. } => Ok(effects),
            World::Describe { .. } => Err(NotWhileDescribing),
        }
    }

    /// Keeps a line of a guest that is being described, as much as the error will say if there will be one.
    pub fn say(&mut self, line: &str) {
        if let World::Describe { said } = &mut self.world
            && said.len() < SAID
        {
            said.push(one_line(line));
        }
    }

    /// What it said while it was described.
    pub fn said(&self) -> &[String] {
        match &self.world {
            World::Describe { said } => said,
            World::Reconcile { .. } => &[],
        }
    }

    /// Begins a call to the world that holds `bytes` of arguments while it waits. The inner error: all that wait hold too much.
    pub fn begin(&self, bytes: usize) -> Result<Result<Call, Exceeded>, NotWhileDescribing> {
        let World::Reconcile { effects, main, share } = &self.world else { return Err(NotWhileDescribing) };
        let call = effects.under_way(bytes).map(|under_way| Call {
            effects: Arc::clone(effects),
            main: main.clone(),
            share: Arc::clone(share),
            _under_way: under_way,
        });
        Ok(call)
    }
}

/// A store under all limits that a store can have. `message` is `limits.message`.
pub(crate) fn store(engine: &Engine, state: State, meter: &Arc<Meter>, message: usize) -> Store<State> {
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.memory);
    // What a guest hands over in one call; twice the limit, so that a call slightly over it gets an answer that says so.
    store.set_hostcall_fuel(message.saturating_mul(2).saturating_add(1 << 20));
    store.set_max_component_handles(COMPONENT_HANDLES);
    let meter = Arc::clone(meter);
    store.epoch_deadline_callback(move |_| {
        meter.check()?;
        Ok(UpdateDeadline::Yield(1))
    });
    store.set_epoch_deadline(1);
    store
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let ctx = self.wasi.get_or_insert_with(|| match &self.world {
            World::Reconcile { effects, .. } => wasi::context(Some(effects)),
            World::Describe { .. } => wasi::context(None),
        });
        WasiCtxView { ctx, table: &mut self.table }
    }
}

/// A call to the world under way.
pub(crate) struct Call {
    /// Whom to call.
    pub effects: Arc<Effects>,
    main: Handle,
    share: Arc<Share>,
    _under_way: UnderWay,
}

impl Call {
    /// Polls `future` in the context of the host's main runtime, as one of the calls of its component. It may wait for its turn first, and thousands beside it: all that it carries was
    /// counted when the call began, and has its form.
    pub async fn on_main<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let future = poll_fn(|context| {
            let _entered = self.main.enter();
            future.as_mut().poll(context)
        });
        self.share.outside(future).await
    }
}

/// Begins a call from a host function.
pub(crate) fn begin(accessor: &Accessor<State, Caps>, bytes: usize) -> wasmtime::Result<Result<Call, Exceeded>> {
    Ok(accessor.with(|mut store| store.get().begin(bytes))?)
}

#[cfg(test)]
pub(crate) mod testing {
    //! States for tests.

    use std::time::Duration;

    use operetta_core::limit::Limits;

    use super::*;
    use crate::budget::GuestBudget;

    /// Of an instance that is asked for its manifest.
    pub fn described() -> State {
        let charge = Arc::new(GuestBudget::default()).charge(None);
        State::describe(Memory::new(Meter::new(Duration::MAX), &Limits::default(), charge))
    }

    #[test]
    fn of_what_is_said_while_it_is_described_the_first_lines_are_kept() {
        let mut state = described();
        for number in 0..10 {
            state.say(&number.to_string());
        }
        assert_eq!(state.said(), ["0", "1", "2", "3", "4"]);
        let mut state = described();
        state.say(&"x ".repeat(1 << 20));
        assert!(state.said()[0].len() < 3_000);
    }
}
