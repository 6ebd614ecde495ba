//! Runs reconciles: a fresh instance each, on the guests' own threads, under every limit, and dropped whole whatever happens.

use std::{
    future::poll_fn,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use operetta_core::{
    effect::{Effects, printable},
    port::{Caller, Level},
    reconcile::{Cause, Failure, Outcome, Reconciler, Request},
};
use tokio::{runtime::Handle, time::timeout};
use wasmtime::{Store, component::Accessor};

use crate::{
    bindings::{self, operetta::operator::types},
    component::Component,
    engine::Ticking,
    fault::Fault,
    meter::{Memory, Meter, metered},
    state::{State, store},
};

/// How long tasks that a reconcile left behind may go on after its answer.
const DRAIN: Duration = Duration::from_millis(100);
/// Bytes that are kept of a message that a guest returns.
const MESSAGE: usize = 4 << 10;

/// What one reconcile used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, that of host calls included.
    pub cpu: Duration,
    /// Wall-clock time, waiting for a free instance not included.
    pub wall: Duration,
    /// Bytes of linear memory at the end, which is the most it had.
    pub memory: usize,
}

/// Told what each reconcile used; called on a guests' thread, so it must not wait.
pub type Observer = Arc<dyn Fn(&Caller, &Usage) + Send + Sync>;

/// Runs the controllers of one component.
#[derive(Clone)]
pub struct Operator {
    component: Arc<Component>,
    observe: Observer,
}

impl Operator {
    pub(crate) fn new(component: Arc<Component>, observe: Observer) -> Self {
        Self { component, observe }
    }

    /// The component.
    pub fn component(&self) -> &Arc<Component> {
        &self.component
    }
}

#[async_trait]
impl Reconciler for Operator {
    async fn reconcile(&self, request: Request, effects: Arc<Effects>) -> Result<Outcome, Failure> {
        let host = |why: &dyn std::fmt::Display| Failure::Host(why.to_string());
        let slots = Arc::clone(&self.component.inner.slots);
        let slot = slots.acquire_owned().await.map_err(|e| host(&e))?;
        let (this, main) = (self.clone(), Handle::current());
        let meter = Meter::new(effects.limits().cpu);
        let metered = Arc::clone(&meter);
        let guest = async move {
            let outcome = this.run(request, effects, main, metered).await;
            // Only now, since the store that held the instance is gone.
            drop(slot);
            outcome
        };
        self.component.inner.guests.run(&self.component.share, meter, guest).await.map_err(|e| host(&e))?
    }
}

impl Operator {
    async fn run(
        &self,
        request: Request,
        effects: Arc<Effects>,
        main: Handle,
        meter: Arc<Meter>,
    ) -> Result<Outcome, Failure> {
        let (limits, began) = (effects.limits().clone(), Instant::now());
        let _ticking = self.component.inner.ticker.run();
        let mut answer = None;
        let state = State::reconcile(Arc::clone(&effects), main, Memory::new(Arc::clone(&meter), &limits));
        let drive = self.drive(request, state, &meter, limits.message, &mut answer);
        let fault = match timeout(limits.deadline, metered(Arc::clone(&meter), drive)).await {
            Ok(Ok(Ok(()))) => None,
            Ok(Ok(Err(error))) => Some(Fault::from(error)),
            Ok(Err(limit)) => Some(limit.into()),
            Err(_) => Some(Fault::Deadline),
        };
        let usage = Usage { cpu: meter.cpu(), wall: began.elapsed(), memory: meter.memory() };
        (self.observe)(effects.caller(), &usage);
        match (answer, fault) {
            (Some(answer), fault) => {
                if let Some(fault) = fault {
                    let failure = fault.of_reconcile(limits.deadline, limits.cpu);
                    let text = format!("a task that the reconcile left behind ended badly: {failure}");
                    effects.log(Level::Warn, "operetta", &text, &[]);
                }
                convert_answer(answer)
            }
            (None, Some(fault)) => Err(fault.of_reconcile(limits.deadline, limits.cpu)),
            (None, None) => Err(Failure::Host("the guest ended without an answer".into())),
        }
    }

    /// Makes an instance, calls it, and lets what it left behind run a little. The answer is put aside as soon as it is there: what comes later cannot take it back.
    async fn drive(
        &self,
        request: Request,
        state: State,
        meter: &Arc<Meter>,
        message: usize,
        answer: &mut Option<Result<types::Outcome, types::Failure>>,
    ) -> wasmtime::Result<()> {
        let mut store = store(&self.component.inner.engine, state, meter, message);
        let operator = self.component.pre.instantiate_async(&mut store).await?;
        let request = convert_request(&request);
        store
            .run_concurrent(async |accessor| {
                *answer = Some(operator.call_reconcile(accessor, request).await?);
                let _ = timeout(DRAIN, poll_fn(|context| accessor.poll_no_interesting_tasks(context))).await;
                wasmtime::error::Ok(())
            })
            .await?
    }
}

/// One instance that is called again and again on the guests' threads, to measure what a fresh one costs. **No host may do this**: what one object leaves in it, the next
/// one finds.
pub struct Warm {
    /// None after a call that was cut off.
    instance: Option<(Store<State>, bindings::Operator)>,
    component: Arc<Component>,
    meter: Arc<Meter>,
    _ticking: Ticking,
}

impl Warm {
    /// Makes the instance.
    pub async fn new(component: &Arc<Component>, effects: Arc<Effects>) -> Result<Self, Failure> {
        let limits = effects.limits().clone();
        let meter = Meter::new(Duration::MAX);
        let memory = Memory::new(Arc::clone(&meter), &limits);
        let state = State::reconcile(effects, Handle::current(), memory);
        let mut store = store(&component.inner.engine, state, &meter, limits.message);
        let operator = component.pre.instantiate_async(&mut store).await;
        let operator = operator.map_err(|e| Fault::from(e).of_reconcile(limits.deadline, limits.cpu))?;
        let (instance, component) = (Some((store, operator)), Arc::clone(component));
        Ok(Self { instance, _ticking: component.inner.ticker.run(), component, meter })
    }

    /// Calls it.
    pub async fn reconcile(&mut self, request: Request) -> Result<Outcome, Failure> {
        let lost = || Failure::Host("the instance is lost".to_owned());
        let (mut store, operator) = self.instance.take().ok_or_else(lost)?;
        let call = async move {
            let request = convert_request(&request);
            let call = async |accessor: &Accessor<State>| operator.call_reconcile(accessor, request).await;
            let ended = store.run_concurrent(call).await.and_then(|answer| answer);
            (store, operator, ended)
        };
        let (guests, share) = (&self.component.inner.guests, &self.component.share);
        let called = guests.run(share, Arc::clone(&self.meter), metered(Arc::clone(&self.meter), call)).await;
        let (store, operator, ended) = called.map_err(|_| lost())?.map_err(|_| lost())?;
        self.instance = Some((store, operator));
        match ended {
            Ok(answer) => convert_answer(answer),
            Err(error) => Err(Fault::from(error).of_reconcile(Duration::MAX, Duration::MAX)),
        }
    }
}

fn convert_request(request: &Request) -> bindings::Request {
    bindings::Request {
        controller: request.controller.as_str().to_owned(),
        key: types::ObjectKey {
            namespace: request.key.namespace.as_ref().map(|namespace| namespace.as_str().to_owned()),
            name: request.key.name.as_str().to_owned(),
        },
        object: request.object.as_deref().map(str::to_owned),
        attempt: request.attempt,
        cause: match request.cause {
            Cause::Changed => types::Cause::Changed,
            Cause::Resync => types::Cause::Resync,
            Cause::Requeued => types::Cause::Requeued,
            Cause::Retried => types::Cause::Retried,
        },
    }
}

fn convert_answer(answer: Result<types::Outcome, types::Failure>) -> Result<Outcome, Failure> {
    match answer {
        Ok(types::Outcome::AwaitChange | types::Outcome::Other(_)) => Ok(Outcome::AwaitChange),
        Ok(types::Outcome::RequeueAfter(millis)) => Ok(Outcome::RequeueAfter(Duration::from_millis(millis))),
        Err(types::Failure::Retryable(why)) => Err(Failure::Retryable(printable(&why, MESSAGE))),
        Err(types::Failure::Terminal(why)) => Err(Failure::Terminal(printable(&why, MESSAGE))),
        Err(types::Failure::Other(detail)) => {
            Err(Failure::Retryable(printable(&format!("{}: {}", detail.code, detail.message), MESSAGE)))
        }
    }
}
