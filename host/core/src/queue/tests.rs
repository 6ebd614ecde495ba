//! The guarantees of the queue, as sentences, in paused time.

use std::collections::HashSet;

use proptest::prelude::*;
use tokio::time::{advance, timeout};

use super::*;

const MS: Duration = Duration::from_millis(1);

fn queue() -> WorkQueue<u32> {
    let backoff = Backoff { first: 100 * MS, longest: 1000 * MS, jitter: 0.0 };
    WorkQueue::with_random(backoff, Box::new(|| 0.0))
}

fn live(queue: &WorkQueue<u32>, key: u32) {
    queue.add(key, Priority::Live, Cause::Changed);
}

fn drain(queue: &WorkQueue<u32>) -> Vec<u32> {
    std::iter::from_fn(|| queue.try_next().map(|job| job.key)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_key_waits_at_most_once() {
    let queue = queue();
    live(&queue, 1);
    live(&queue, 2);
    live(&queue, 1);
    assert_eq!(drain(&queue), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_key_never_runs_twice_at_a_time_and_an_event_during_its_run_makes_it_run_again() {
    let queue = queue();
    live(&queue, 1);
    assert_eq!(drain(&queue), [1]);
    live(&queue, 1);
    assert_eq!(drain(&queue), [] as [u32; 0]);
    queue.done(&1, Next::Await);
    assert_eq!(drain(&queue), [1]);
    queue.done(&1, Next::Await);
    assert_eq!(queue.depth(), Depth::default());
}

#[tokio::test(start_paused = true)]
async fn live_events_go_before_initial_lists_and_those_before_resyncs_in_the_order_of_arrival() {
    let queue = queue();
    queue.add(1, Priority::Resync, Cause::Resync);
    queue.add(2, Priority::Initial, Cause::Changed);
    queue.add(3, Priority::Initial, Cause::Changed);
    live(&queue, 4);
    live(&queue, 5);
    live(&queue, 3);
    assert_eq!(drain(&queue), [4, 5, 3, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn nothing_starves_under_a_flood_of_live_events() {
    let queue = queue();
    queue.add(0, Priority::Resync, Cause::Resync);
    let mut served = 0;
    for key in 1.. {
        live(&queue, key);
        live(&queue, key + 1_000_000);
        advance(10 * MS).await;
        let job = queue.try_next().unwrap();
        if job.key == 0 {
            break;
        }
        served += 1;
        assert!(served < 2_500, "the resync waits for ever");
    }
    assert!(served >= 500, "the resync went first");
}

#[tokio::test(start_paused = true)]
async fn a_failed_key_waits_twice_as_long_each_time_until_it_succeeds() {
    let queue = queue();
    live(&queue, 1);
    for (attempt, delay) in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1000), (5, 1000)] {
        let job = queue.try_next().unwrap();
        assert_eq!(job.attempt, attempt);
        assert_eq!(queue.done(&1, Next::Retry), Some(delay * MS));
        advance((delay - 1) * MS).await;
        assert_eq!(queue.try_next(), None);
        advance(MS).await;
        timeout(MS, queue.ready()).await.unwrap();
    }
    let job = queue.try_next().unwrap();
    assert_eq!((job.attempt, job.cause), (6, Cause::Retried));
    queue.done(&1, Next::Await);
    live(&queue, 1);
    assert_eq!(queue.try_next().unwrap().attempt, 0);
}

#[tokio::test(start_paused = true)]
async fn an_event_ends_a_delay_and_a_resync_does_not() {
    let queue = queue();
    live(&queue, 1);
    queue.try_next().unwrap();
    queue.done(&1, Next::Retry);
    queue.add(1, Priority::Resync, Cause::Resync);
    assert_eq!(queue.try_next(), None);
    live(&queue, 1);
    let job = queue.try_next().unwrap();
    assert_eq!((job.attempt, job.cause), (1, Cause::Changed));
    assert_eq!(queue.depth().delayed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_whose_own_writes_wake_it_does_not_spin() {
    let queue = queue();
    live(&queue, 1);
    for _ in 0..10 {
        queue.ready().await;
        queue.try_next().unwrap();
        live(&queue, 1);
        queue.done(&1, Next::Retry);
    }
    assert_eq!(queue.try_next(), None);
    let start = Instant::now();
    queue.ready().await;
    assert_eq!(start.elapsed(), 1000 * MS);
}

#[tokio::test(start_paused = true)]
async fn requeue_after_runs_at_its_time_and_earlier_when_something_happens() {
    let queue = queue();
    live(&queue, 1);
    queue.try_next().unwrap();
    queue.done(&1, Next::After(Duration::from_mins(1)));
    let start = Instant::now();
    queue.ready().await;
    assert_eq!(start.elapsed(), Duration::from_mins(1));
    assert_eq!(queue.try_next().unwrap().cause, Cause::Requeued);
    queue.done(&1, Next::After(Duration::from_mins(1)));
    live(&queue, 1);
    assert_eq!(queue.try_next().unwrap().cause, Cause::Changed);
    queue.done(&1, Next::Await);
    advance(Duration::from_mins(2)).await;
    assert_eq!(queue.try_next(), None, "the earlier wish is forgotten");
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_woken_by_an_arrival() {
    let queue = std::sync::Arc::new(queue());
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.ready().await }
    });
    tokio::task::yield_now().await;
    live(&queue, 1);
    timeout(MS, waiting).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_time_in_the_queue_is_told() {
    let queue = queue();
    live(&queue, 1);
    advance(7 * MS).await;
    assert_eq!(queue.try_next().unwrap().waited, 7 * MS);
}

#[derive(Debug, Clone)]
enum Step {
    Add(u32, Priority),
    Take,
    Done(Next),
    Advance(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let priority = prop_oneof![Just(Priority::Live), Just(Priority::Initial), Just(Priority::Resync)];
    let next = prop_oneof![
        Just(Next::Await),
        Just(Next::Retry),
        (0u64..500).prop_map(|ms| Next::After(Duration::from_millis(ms)))
    ];
    let step = prop_oneof![
        3 => (0u32..5, priority).prop_map(|(k, p)| Step::Add(k, p)),
        3 => Just(Step::Take),
        3 => next.prop_map(Step::Done),
        1 => (0u64..300).prop_map(Step::Advance),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// Whatever happens: no key runs twice at a time, and after its last event each key runs once more.
    #[test]
    fn no_event_is_lost_and_no_key_runs_twice(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let queue = queue();
            let (mut running, mut owed) = (Vec::new(), HashSet::new());
            for step in steps {
                match step {
                    Step::Add(key, priority) => {
                        queue.add(key, priority, Cause::Changed);
                        owed.insert(key);
                    }
                    Step::Take => {
                        if let Some(job) = queue.try_next() {
                            assert!(!running.contains(&job.key), "{} runs twice", job.key);
                            owed.remove(&job.key);
                            running.push(job.key);
                        }
                    }
                    Step::Done(next) => {
                        if let Some(key) = running.pop() {
                            queue.done(&key, next);
                        }
                    }
                    Step::Advance(ms) => advance(Duration::from_millis(ms)).await,
                }
                assert_eq!(queue.depth().running, running.len());
            }
            for key in running.drain(..) {
                queue.done(&key, Next::Await);
            }
            let mut ran = HashSet::new();
            while queue.depth() != Depth::default() {
                queue.ready().await;
                let job = queue.try_next().unwrap();
                ran.insert(job.key);
                queue.done(&job.key, Next::Await);
            }
            assert!(owed.is_subset(&ran), "owed {owed:?}, ran {ran:?}");
        });
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_person_asks_for_goes_before_all_others_whatever_it_waits_for() {
    let queue = queue();
    for key in 1..5 {
        live(&queue, key);
    }
    advance(1000 * MS).await;
    queue.add(4, Priority::Asked, Cause::Changed);
    queue.add(3, Priority::Asked, Cause::Changed);
    queue.add(9, Priority::Asked, Cause::Changed);
    let order = drain(&queue);
    assert_eq!((order[..3].iter().collect::<HashSet<_>>(), &order[3..]), (HashSet::from([&4, &3, &9]), &[1, 2][..]));
    queue.done(&1, Next::Retry);
    live(&queue, 2);
    queue.add(1, Priority::Asked, Cause::Changed);
    assert_eq!(drain(&queue), [1]);
    // During its run, a failure does not wait either.
    queue.add(1, Priority::Asked, Cause::Changed);
    assert_eq!(queue.done(&1, Next::Retry), Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_held_waits_whatever_happens_and_loses_nothing() {
    let queue = queue();
    for next in [Next::Await, Next::Retry, Next::After(50 * MS)] {
        live(&queue, 1);
        assert_eq!(drain(&queue), [1]);
        // Before and after it is given back.
        live(&queue, 1);
        assert_eq!(queue.hold(&1, next, 5000 * MS), Some(5000 * MS));
        live(&queue, 1);
        advance(4999 * MS).await;
        assert_eq!(drain(&queue), [] as [u32; 0]);
        advance(MS).await;
        assert_eq!(drain(&queue), [1]);
        queue.done(&1, Next::Await);
        assert_eq!(queue.depth(), Depth::default());
    }
    // An event that comes a moment later must not be lost, so that it runs in any case.
    live(&queue, 1);
    drain(&queue);
    assert_eq!(queue.hold(&1, Next::Await, 100 * MS), Some(100 * MS));
    // However long it would wait: until then no event counts.
    live(&queue, 2);
    assert_eq!(drain(&queue), [2]);
    assert_eq!(queue.hold(&2, Next::After(700 * MS), 100 * MS), Some(100 * MS));
    queue.add(2, Priority::Asked, Cause::Changed);
    assert_eq!(drain(&queue), [2]);
    queue.add(2, Priority::Asked, Cause::Changed);
    assert_eq!(queue.hold(&2, Next::Await, 5000 * MS), Some(Duration::ZERO));
    assert_eq!(drain(&queue), [2]);
    queue.hold(&2, Next::Await, 5000 * MS);
    queue.release();
    let mut all = drain(&queue);
    all.sort_unstable();
    assert_eq!(all, [1, 2]);
}
