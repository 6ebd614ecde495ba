//! Credentials of databases and channels: read from the host's namespace when a plugin starts, and read again when somebody refuses them, so that a rotated password needs no restart.
//!
//! **The values stay in this process**: they are in no error, no log line and nothing that prints itself, and no guest ever sees them.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use operetta_api::Reference;
use tokio::{sync::Mutex, time::Instant};

use crate::plugin::{Phase, Problem};

/// Refused credentials are read again at most so often.
const AGAIN: Duration = Duration::from_secs(1);

/// Where the values are.
#[async_trait]
pub trait Vault: Send + Sync {
    /// One of them; else what is missing and what to do, without a value.
    async fn read(&self, reference: &Reference) -> Result<Vec<u8>, String>;
}

#[async_trait]
impl Vault for operetta_cluster::vault::Vault {
    async fn read(&self, reference: &Reference) -> Result<Vec<u8>, String> {
        Self::read(self, reference).await.map_err(|error| error.to_string())
    }
}

/// Why a database or a channel cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unready {
    /// The document, or the host's environment.
    #[error("{0}")]
    Wrong(String),
    /// What it refers to, which may be there later.
    #[error("{0}")]
    Missing(String),
}

impl From<Unready> for Problem {
    fn from(unready: Unready) -> Self {
        match unready {
            Unready::Wrong(text) => Self::lasting(Phase::Grant, &text),
            Unready::Missing(text) => Self::passing(Phase::Start, &text),
        }
    }
}

/// The values of one database or channel, as they were read together.
#[derive(Default, PartialEq, Eq)]
pub struct Values(HashMap<Reference, Vec<u8>>);

impl Values {
    /// One of them.
    pub fn get(&self, reference: &Reference) -> Option<&[u8]> {
        self.0.get(reference).map(Vec::as_slice)
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The values that one database or channel refers to.
pub struct Credentials {
    /// `database NAME` or `channel NAME`, for the log.
    whose: String,
    vault: Arc<dyn Vault>,
    references: Vec<Reference>,
    current: ArcSwap<Values>,
    looked: Mutex<Option<Instant>>,
}

impl Credentials {
    /// Reads them all.
    ///
    /// # Errors
    /// One is missing; the text says which and what to do.
    pub async fn read(whose: String, vault: &Arc<dyn Vault>, references: Vec<Reference>) -> Result<Self, Unready> {
        let values = read(vault, &references).await.map_err(|why| Unready::Missing(format!("{whose}: {why}")))?;
        let current = ArcSwap::from_pointee(values);
        Ok(Self { whose, vault: Arc::clone(vault), references, current, looked: Mutex::new(None) })
    }

    /// As they were read last.
    pub fn current(&self) -> Arc<Values> {
        self.current.load_full()
    }

    /// After somebody refused `before`: reads them again, and says whether there are others now.
    pub async fn renew(&self, before: &Arc<Values>) -> bool {
        let mut looked = self.looked.lock().await;
        if !Arc::ptr_eq(&self.current.load(), before) {
            // Somebody else was refused, and read them meanwhile.
            return true;
        }
        if self.references.is_empty() || looked.is_some_and(|looked| looked.elapsed() < AGAIN) {
            return false;
        }
        *looked = Some(Instant::now());
        match read(&self.vault, &self.references).await {
            Ok(values) if values == **before => false,
            Ok(values) => {
                tracing::info!(
                    whose = self.whose,
                    "credentials were refused and have changed meanwhile; the new ones are used"
                );
                self.current.store(Arc::new(values));
                true
            }
            Err(error) => {
                tracing::warn!(whose = self.whose, error, "credentials were refused and cannot be read again");
                false
            }
        }
    }
}

async fn read(vault: &Arc<dyn Vault>, references: &[Reference]) -> Result<Values, String> {
    let mut values = HashMap::new();
    for reference in references {
        values.insert(reference.clone(), vault.read(reference).await?);
    }
    Ok(Values(values))
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::testing::{Drawer, secret};

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_read_again_and_not_too_often() {
        let drawer = Drawer::new(&[("people", "password", "old")]);
        let vault: Arc<dyn Vault> = drawer.clone();
        let credentials = Credentials::read("database people".to_owned(), &vault, vec![secret("people", "password")]);
        let credentials = credentials.await.unwrap();
        let before = credentials.current();
        assert!(!credentials.renew(&before).await);
        drawer.put("people", "password", "new");
        assert!(!credentials.renew(&before).await, "it was looked at this very second");
        advance(AGAIN).await;
        assert!(credentials.renew(&before).await);
        // Others that were refused with the old ones need not look.
        let reads = drawer.reads();
        assert!(credentials.renew(&before).await);
        assert_eq!(drawer.reads(), reads);
        let after = credentials.current();
        assert_eq!(after.get(&secret("people", "password")), Some(&b"new"[..]));
        drawer.take("people");
        advance(AGAIN).await;
        assert!(!credentials.renew(&after).await);
        assert_eq!(credentials.current(), after);
        let shown = format!("{after:?}");
        assert!(!shown.contains("new") && shown.contains("people"), "{shown}");
    }

    #[tokio::test]
    async fn what_is_missing_is_a_problem_that_may_pass() {
        let vault: Arc<dyn Vault> = Drawer::new(&[]);
        let credentials = Credentials::read("channel shop".to_owned(), &vault, vec![secret("shop", "token")]);
        let problem = Problem::from(credentials.await.err().unwrap());
        assert_eq!((problem.phase, problem.passing), (Phase::Start, true));
        assert!(problem.message.starts_with("channel shop: key token of Secret shop"), "{}", problem.message);
    }
}
