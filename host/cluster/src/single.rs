//! The same question, asked by many at once: one asks, the others wait and share the answer. Who asks for a plugin does so in a task of the host, which goes on while the plugin computes.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::{sync::Mutex as Turn, time::Instant};

/// The last answer, and when its question was sent.
type Last<T> = Turn<Option<(Instant, T)>>;

/// Questions under way. Nothing stays of one for which nobody waits.
pub struct Single<K, T> {
    turns: Mutex<HashMap<K, Weak<Last<T>>>>,
}

impl<K, T> Default for Single<K, T> {
    fn default() -> Self {
        Self { turns: Mutex::default() }
    }
}

impl<K: Clone + Eq + Hash, T: Clone> Single<K, T> {
    /// Waits for its turn, and asks only then, and only where it is not `known` by then and nobody sent the same question since this one came.
    pub async fn ask(&self, key: &K, known: impl Fn() -> Option<T>, ask: impl Future<Output = T>) -> T {
        let came = Instant::now();
        let turn = self.turn(key);
        let mut last = turn.lock().await;
        if let Some(known) = known() {
            return known;
        }
        if let Some((sent, answer)) = &*last
            && *sent >= came
        {
            return answer.clone();
        }
        let sent = Instant::now();
        let answer = ask.await;
        *last = Some((sent, answer.clone()));
        answer
    }

    fn turn(&self, key: &K) -> Arc<Last<T>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(key).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Turn::new(None));
        turns.insert(key.clone(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use futures::future::join_all;
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_shares_what_was_asked_since_it_came_and_nothing_older() {
        let (single, asked) = (Single::default(), AtomicUsize::new(0));
        let slowly = async || {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_secs(1)).await;
            number
        };
        let first = single.ask(&"a", || None, slowly());
        let later = async {
            sleep(Duration::from_millis(1)).await;
            join_all((0..100).map(|_| single.ask(&"a", || None, slowly()))).await
        };
        let (first, later) = tokio::join!(first, later);
        assert_eq!((first, later), (0, vec![1; 100]));
        assert_eq!(single.ask(&"a", || Some(7), slowly()).await, 7);
        assert_eq!(single.ask(&"a", || None, slowly()).await, 2);
        single.ask(&"b", || None, slowly()).await;
        assert_eq!(single.turns.lock().unwrap().len(), 1, "nothing stays of what nobody waits for");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_given_up_lets_the_next_ask() {
        let single = Single::default();
        let given_up = single.ask(&(), || None, std::future::pending());
        let next = async {
            sleep(Duration::from_millis(1)).await;
            single.ask(&(), || None, async { 2 }).await
        };
        let (given_up, next) = tokio::join!(timeout(Duration::from_secs(1), given_up), next);
        assert!(given_up.is_err());
        assert_eq!(next, 2);
    }
}
