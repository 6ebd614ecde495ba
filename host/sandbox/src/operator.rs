//! Runs reconciles: a fresh instance each, on the guests' own threads, under every limit, and dropped whole whatever happens.

use std::{
    future::poll_fn,
    pin::pin,
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
use wasmtime::Store;

use crate::{
    bindings::{self, operetta::operator::types},
    component::Component,
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
        let limits = effects.limits();
        let state = State::reconcile(
            Arc::clone(&effects),
            main,
            Arc::clone(&self.component.share),
            Memory::new(Arc::clone(&meter), limits, self.component.inner.memory.charge(Some(&effects.caller().plugin))),
        );
        let mut answer = None;
        let fresh = async {
            let mut store = store(&self.component.inner.engine, state, &meter, limits.message);
            let operator = self.component.pre.instantiate_async(&mut store).await?;
            call(&mut store, &operator, request, &mut answer).await
        };
        let fault = self.limited(&effects, &meter, fresh).await;
        conclude(&effects, answer, fault)
    }

    /// Runs a guest until it ends or must: then with what it did wrong.
    async fn limited(
        &self,
        effects: &Effects,
        meter: &Arc<Meter>,
        guest: impl Future<Output = wasmtime::Result<()>>,
    ) -> Option<Fault> {
        let began = Instant::now();
        let _ticking = self.component.inner.ticker.run();
        // Kept until it is known what it waits for.
        let guest = pin!(metered(Arc::clone(meter), guest));
        let fault = match timeout(effects.limits().deadline, guest).await {
            Ok(Ok(Ok(()))) => None,
            Ok(Ok(Err(error))) => Some(Fault::from(error)),
            Ok(Err(limit)) => Some(limit.into()),
            Err(_) => Some(if effects.is_waiting() { Fault::Unanswered } else { Fault::Deadline }),
        };
        let usage = Usage { cpu: meter.cpu(), wall: began.elapsed(), memory: meter.memory() };
        (self.observe)(effects.caller(), &usage);
        fault
    }
}

/// What a guest returns.
type Answer = Result<types::Outcome, types::Failure>;

/// Calls an instance, and lets what it left behind run a little. The answer is put aside as soon as it is there: what comes later cannot take it back.
async fn call(
    store: &mut Store<State>,
    operator: &bindings::Operator,
    request: Request,
    answer: &mut Option<Answer>,
) -> wasmtime::Result<()> {
    let request = convert_request(&request);
    store
        .run_concurrent(async |accessor| {
            *answer = Some(operator.call_reconcile(accessor, request).await?);
            let _ = timeout(DRAIN, poll_fn(|context| accessor.poll_no_interesting_tasks(context))).await;
            wasmtime::error::Ok(())
        })
        .await?
}

/// What comes of it.
fn conclude(effects: &Effects, answer: Option<Answer>, fault: Option<Fault>) -> Result<Outcome, Failure> {
    let limits = effects.limits();
    let failure = fault.map(|fault| fault.of_reconcile(limits.deadline, limits.cpu));
    match (answer, failure) {
        (Some(answer), failure) => {
            if let Some(failure) = failure {
                let text = format!("a task that the reconcile left behind ended badly: {failure}");
                effects.log(Level::Warn, "operetta", &text, &[]);
            }
            convert_answer(answer)
        }
        (None, Some(failure)) => Err(failure),
        (None, None) => Err(Failure::Host("the guest ended without an answer".into())),
    }
}

/// One instance that is called again and again, under the same limits, to measure what a fresh one costs. **No host may do this**: what one object leaves in it, the next
/// one finds.
pub struct Warm {
    /// None after a call that was cut off.
    instance: Option<(Store<State>, bindings::Operator)>,
    operator: Operator,
    meter: Arc<Meter>,
}

impl Warm {
    /// Makes the instance.
    pub async fn new(operator: &Operator, effects: Arc<Effects>) -> Result<Self, Failure> {
        let limits = effects.limits().clone();
        let meter = Meter::new(Duration::MAX);
        let component = &operator.component;
        let charge = component.inner.memory.charge(Some(&effects.caller().plugin));
        let memory = Memory::new(Arc::clone(&meter), &limits, charge);
        let state = State::reconcile(effects, Handle::current(), Arc::clone(&component.share), memory);
        let mut store = store(&component.inner.engine, state, &meter, limits.message);
        let instance = component.pre.instantiate_async(&mut store).await;
        let instance = instance.map_err(|e| Fault::from(e).of_reconcile(limits.deadline, limits.cpu))?;
        Ok(Self { instance: Some((store, instance)), operator: operator.clone(), meter })
    }

    /// Calls it, with effects of this call's own.
    pub async fn reconcile(&mut self, request: Request, effects: Arc<Effects>) -> Result<Outcome, Failure> {
        let lost = || Failure::Host("the instance is lost".to_owned());
        let (mut store, instance) = self.instance.take().ok_or_else(lost)?;
        *store.data_mut().effects_mut().map_err(|_| lost())? = Arc::clone(&effects);
        let (operator, meter) = (self.operator.clone(), Arc::clone(&self.meter));
        let called = async move {
            let mut answer = None;
            let fault = operator.limited(&effects, &meter, call(&mut store, &instance, request, &mut answer)).await;
            (conclude(&effects, answer, fault), (store, instance))
        };
        let (guests, share) = (&self.operator.component.inner.guests, &self.operator.component.share);
        let (outcome, instance) = guests.run(share, Arc::clone(&self.meter), called).await.map_err(|_| lost())?;
        self.instance = Some(instance);
        outcome
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
