//! The way of changes from an informer to one who listens.
//!
//! Who listens may be slower than the cluster changes. What waits here is therefore bounded by the objects that there are: of each the first state that was not told and the last one, in
//! the order in which they came. The states between are kept as well while they are few, since each may be of somebody else's concern. Once they are many they are left out, and where one
//! of them named somebody whom neither the first nor the last state names, [`Change::Missed`] says so.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use futures::{Stream, StreamExt as _};

use super::{Cached, Change};
use crate::resource::ObjectKey;

/// Bytes of states that wait though there is a later one of the same object.
const MOST_PASSED: usize = 4 << 20;
/// What a state takes beside its text.
const BESIDE: usize = 600;

/// A way for changes, empty.
pub fn channel() -> (Teller, Changes) {
    let way = Arc::new(Way::default());
    (Teller(Arc::clone(&way)), Changes(way))
}

/// The end that is told. Dropping it ends the other one's stream, after what waits.
#[derive(Debug)]
pub struct Teller(Arc<Way>);

/// The end that listens: a stream of changes.
#[derive(Debug)]
pub struct Changes(Arc<Way>);

#[derive(Debug, Default)]
struct Way(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    /// In the order of their coming.
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
    /// Where the last change of each object is.
    last: BTreeMap<ObjectKey, u64>,
    /// Bytes of the states that are not the last ones of their objects.
    passed: usize,
    /// It waits to be said that states were left out.
    missed: bool,
    ended: bool,
    deaf: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Waiting {
    change: Change,
    /// What is counted for it, once there is a later one.
    passed: usize,
}

impl Way {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Teller {
    /// Tells a change. Nobody who listens is no error: whoever left is about to leave the informer, too.
    pub fn tell(&self, change: Change) {
        let mut queue = self.0.queue();
        if queue.deaf {
            return;
        }
        match change {
            Change::Object { key, old, new, initial } => queue.add(key, old, new, initial),
            Change::Synced | Change::Missed => queue.append(change),
        }
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.ended = true;
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Changes {
    /// The next change; none once nothing more will be told.
    pub async fn recv(&mut self) -> Option<Change> {
        self.next().await
    }

    /// The next change, if there is one already.
    pub fn try_recv(&mut self) -> Option<Change> {
        self.0.queue().take()
    }
}

impl Stream for Changes {
    type Item = Change;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Change>> {
        // A long queue must not keep the thread from its other tasks.
        let turn = ready!(tokio::task::coop::poll_proceed(context));
        let mut queue = self.0.queue();
        let change = queue.take();
        if change.is_none() && !queue.ended {
            queue.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        turn.made_progress();
        Poll::Ready(change)
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let left = {
            let mut queue = self.0.queue();
            std::mem::replace(&mut *queue, Queue { deaf: true, ..Queue::default() })
        };
        // There may be much of it, for which nobody else has to wait.
        drop(left);
    }
}

impl Queue {
    fn add(&mut self, key: ObjectKey, old: Option<Arc<Cached>>, new: Option<Arc<Cached>>, initial: bool) {
        if let Some(at) = self.last.get(&key).copied()
            && let Some(Waiting { change, passed }) = self.waiting.get_mut(&at)
            && let Change::Object { old: first, new: last, initial: found, .. } = change
        {
            let bytes = last.as_ref().map_or(0, |last| last.json.len()).saturating_add(BESIDE);
            if self.passed.saturating_add(bytes) > MOST_PASSED {
                let between = std::mem::replace(last, new);
                let names_others = between.is_some_and(|between| {
                    let mut known = [&*first, &*last].into_iter().flatten();
                    !known.any(|known| names_the_same(known, &between))
                });
                *found &= initial;
                if first.is_none() && last.is_none() {
                    // It came and went, and nobody has heard of it.
                    self.waiting.remove(&at);
                    self.last.remove(&key);
                }
                if names_others && !std::mem::replace(&mut self.missed, true) {
                    self.append(Change::Missed);
                }
                return;
            }
            *passed = bytes;
            self.passed = self.passed.saturating_add(bytes);
        }
        self.last.insert(key.clone(), self.next);
        self.append(Change::Object { key, old, new, initial });
    }

    fn append(&mut self, change: Change) {
        self.waiting.insert(self.next, Waiting { change, passed: 0 });
        self.next = self.next.saturating_add(1);
    }

    fn take(&mut self) -> Option<Change> {
        let (at, Waiting { change, passed }) = self.waiting.pop_first()?;
        self.passed = self.passed.saturating_sub(passed);
        match &change {
            Change::Object { key, .. } => {
                if self.last.get(key) == Some(&at) {
                    self.last.remove(key);
                }
            }
            Change::Missed => self.missed = false,
            Change::Synced => {}
        }
        Some(change)
    }
}

/// Whether two states are of the same objects' concern, as far as routes can tell.
fn names_the_same(a: &Cached, b: &Cached) -> bool {
    let of = |object: &Cached| (object.meta.labels, object.meta.annotations);
    of(a) == of(b) && a.meta.controller() == b.meta.controller()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A state of so many bytes or some more that belongs to this owner; version 0 is none.
    fn state(version: u32, owner: &str, bytes: usize) -> Option<Arc<Cached>> {
        let owner = json!({"apiVersion": "x.example.com/v1", "kind": "Thing", "name": owner, "controller": true});
        let metadata = json!({"name": "x", "resourceVersion": version.to_string(), "ownerReferences": [owner]});
        let object = json!({"metadata": metadata, "spec": "x".repeat(bytes)});
        (version > 0).then(|| Arc::new(Cached::of(object).unwrap().1))
    }

    fn change(name: &str, old: Option<Arc<Cached>>, new: Option<Arc<Cached>>, initial: bool) -> Change {
        Change::Object { key: ObjectKey::parse(Some("n"), name).unwrap(), old, new, initial }
    }

    /// From one version to another, of an object of one and the same owner.
    fn step(name: &str, old: u32, new: u32, initial: bool) -> Change {
        change(name, state(old, "o", 10), state(new, "o", 10), initial)
    }

    /// All that waits: `NAME OLD>NEW`, initial ones in parentheses.
    fn told(changes: &mut Changes) -> Vec<String> {
        let version =
            |state: Option<Arc<Cached>>| state.map_or_else(|| "-".to_owned(), |s| s.meta.resource_version.clone());
        let text = |change| match change {
            Change::Synced => "synced".to_owned(),
            Change::Missed => "missed".to_owned(),
            Change::Object { key, old, new, initial } => {
                let text = format!("{} {}>{}", key.name, version(old), version(new));
                if initial { format!("({text})") } else { text }
            }
        };
        std::iter::from_fn(|| changes.try_recv()).map(text).collect()
    }

    /// So far behind that no state between is kept any more; two changes wait.
    fn far_behind() -> (Teller, Changes) {
        let (teller, changes) = channel();
        teller.tell(change("large", None, state(1, "l", MOST_PASSED - 1_000), true));
        teller.tell(change("large", None, state(2, "l", 1), true));
        assert_eq!(teller.0.queue().waiting.len(), 2, "for the first there is just room");
        (teller, changes)
    }

    #[test]
    fn all_states_are_told_in_turn_while_they_are_few() {
        let (teller, mut changes) = channel();
        teller.tell(step("a", 0, 1, true));
        teller.tell(step("b", 0, 1, true));
        teller.tell(Change::Synced);
        teller.tell(step("a", 1, 2, false));
        teller.tell(step("a", 2, 3, false));
        teller.tell(step("b", 1, 0, false));
        teller.tell(step("c", 0, 1, false));
        teller.tell(step("c", 1, 0, false));
        let all = ["(a ->1)", "(b ->1)", "synced", "a 1>2", "a 2>3", "b 1>-", "c ->1", "c 1>-"];
        assert_eq!(told(&mut changes), all);
        assert_eq!(told(&mut changes), [""; 0]);
        let queue = teller.0.queue();
        assert_eq!((queue.passed, queue.last.len()), (0, 0));
    }

    #[test]
    fn who_is_far_behind_is_told_the_first_and_the_last_state_of_each_object_where_its_first_change_was() {
        let (teller, mut changes) = far_behind();
        teller.tell(step("a", 0, 1, true));
        teller.tell(step("b", 0, 1, true));
        teller.tell(step("b", 1, 2, true));
        teller.tell(Change::Synced);
        for _ in 0..100 {
            teller.tell(step("a", 1, 2, false));
            teller.tell(step("a", 2, 1, false));
        }
        teller.tell(step("a", 1, 3, false));
        teller.tell(step("c", 1, 2, false));
        teller.tell(step("c", 2, 0, false));
        teller.tell(step("d", 1, 0, false));
        teller.tell(step("d", 0, 2, false));
        let waiting = teller.0.queue().waiting.len();
        assert_eq!(waiting, 7, "one for each object, two of the large one, and the end of the list");
        let all = told(&mut changes);
        assert_eq!(all[2..], ["a ->3", "(b ->2)", "synced", "c 1>-", "d 1>2"]);
        assert!(all[..2].iter().all(|text| text.starts_with("(large")), "{all:?}");
        // Who has caught up is told all again.
        teller.tell(step("a", 3, 1, false));
        teller.tell(step("a", 1, 2, false));
        assert_eq!(told(&mut changes), ["a 3>1", "a 1>2"]);
    }

    #[test]
    fn what_came_and_went_unheard_is_forgotten_and_whoever_it_named_is_to_look() {
        let (teller, mut changes) = far_behind();
        for number in 0..100 {
            let name = format!("pod-{number}");
            teller.tell(step(&name, 0, 1, false));
            teller.tell(step(&name, 1, 0, false));
        }
        assert_eq!(teller.0.queue().last.len(), 1, "nothing is kept of what is gone");
        assert_eq!(told(&mut changes)[2..], ["missed"], "once for all of them");
        let (teller, mut again) = far_behind();
        for (old, new) in [(0, 1), (1, 0), (0, 2)] {
            teller.tell(step("a", old, new, false));
        }
        assert_eq!(told(&mut again)[2..], ["missed", "a ->2"]);
    }

    #[test]
    fn a_state_between_that_names_somebody_else_is_not_left_out_in_silence() {
        let states = |between: &str| {
            let (teller, mut changes) = far_behind();
            teller.tell(change("a", state(1, "o", 10), state(2, between, 10), false));
            teller.tell(change("a", state(2, between, 10), state(3, "p", 10), false));
            told(&mut changes).split_off(2)
        };
        assert_eq!(states("o"), ["a 1>3"]);
        assert_eq!(states("p"), ["a 1>3"]);
        assert_eq!(states("q"), ["a 1>3", "missed"]);
        let of = |metadata: serde_json::Value| Cached::of(json!({"metadata": metadata})).unwrap().1;
        let a = of(json!({"name": "x", "labels": {"of": "a"}, "annotations": {"by": "b"}}));
        let relabelled = of(json!({"name": "x", "labels": {"of": "b"}, "annotations": {"by": "b"}}));
        let annotated = of(json!({"name": "x", "labels": {"of": "a"}, "annotations": {"by": "c"}}));
        assert!(names_the_same(&a, &a) && !names_the_same(&a, &relabelled) && !names_the_same(&a, &annotated));
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_a_change_and_by_the_end() {
        let (teller, mut changes) = channel();
        let listener = tokio::spawn(async move {
            let mut heard = 0;
            while changes.recv().await.is_some() {
                heard += 1;
            }
            heard
        });
        for _ in 0..300 {
            teller.tell(step("a", 0, 1, false));
            tokio::task::yield_now().await;
        }
        // What waits is told before the end.
        teller.tell(Change::Synced);
        drop(teller);
        assert_eq!(listener.await.unwrap(), 301);
    }

    #[tokio::test]
    async fn a_long_queue_leaves_the_thread_to_others_now_and_then() {
        let (teller, mut changes) = channel();
        for number in 0..10_000 {
            teller.tell(change(&format!("a{number}"), None, None, true));
        }
        let others = tokio::spawn(async {});
        let mut heard = 0;
        while !others.is_finished() {
            assert!(changes.recv().await.is_some());
            heard += 1;
        }
        assert!(heard < 10_000, "{heard}");
    }

    #[test]
    fn nothing_is_kept_for_who_left() {
        let (teller, changes) = channel();
        let one = state(1, "o", 1).unwrap();
        teller.tell(change("a", None, Some(Arc::clone(&one)), true));
        drop(changes);
        teller.tell(change("b", None, Some(Arc::clone(&one)), true));
        assert_eq!(Arc::strong_count(&one), 1);
    }
}
