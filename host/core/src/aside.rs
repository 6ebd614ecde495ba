//! What is said to the administrator alone where a plugin is told less: where services are and how the host gets there, whom an account names, who else owns a field.
//!
//! A plugin can bring it about as often as it likes, so it is said seldom: some texts at once and then a trickle, the same one not twice within a minute.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{effect::Bucket, name::PluginName};

/// Texts at once, and in a minute from then on.
const A_MINUTE: u64 = 6;
/// The same text is said again after this time.
const AGAIN: Duration = Duration::from_mins(1);

/// What a plugin reads in its place.
pub const ELSEWHERE: &str = "the host's log says more";

/// The administrator's ear.
#[derive(Clone)]
pub struct Aside(Arc<Inner>);

struct Inner {
    tell: Box<dyn Fn(&str) + Send + Sync>,
    rate: Bucket,
    last: Mutex<Option<(String, Instant)>>,
}

impl Aside {
    /// The host's log, in which each text is said to be about this plugin.
    pub fn in_log(plugin: &PluginName) -> Self {
        let plugin = plugin.clone();
        Self::to(move |why| tracing::warn!(%plugin, why, "the plugin was told less of this"))
    }

    /// Whoever is given.
    pub fn to(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { tell: Box::new(tell), rate: Bucket::default(), last: Mutex::default() }))
    }

    /// Says it, if it is time.
    pub fn say(&self, text: &str) {
        let Inner { tell, rate, last } = &*self.0;
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let said = last.as_ref().is_some_and(|(said, at)| said == text && at.elapsed() < AGAIN);
        if said || rate.take(A_MINUTE).is_err() {
            return;
        }
        *last = Some((text.to_owned(), Instant::now()));
        drop(last);
        tell(text);
    }
}

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Aside")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_same_is_said_once_a_minute_and_a_flood_is_a_trickle() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = said.clone();
        let aside = Aside::to(move |text| heard.lock().unwrap().push(text.to_owned()));
        let count = || said.lock().unwrap().len();
        for _ in 0..100 {
            aside.say("again");
        }
        assert_eq!(*said.lock().unwrap(), ["again"]);
        tokio::time::advance(AGAIN).await;
        aside.say("again");
        assert_eq!(count(), 2);
        tokio::time::advance(AGAIN).await;
        for number in 0..100 {
            aside.say(&format!("flood {number}"));
        }
        assert_eq!(count(), 2 + 6);
        tokio::time::advance(Duration::from_secs(10)).await;
        aside.say("one more");
        aside.say("and another");
        assert_eq!(count(), 2 + 6 + 1);
    }
}
