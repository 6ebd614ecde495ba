//! Whether anything changed that a plugin is made of. Refuses to look into what cargo builds, and at what editors and version control keep beside the sources.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use notify::{
    EventKind, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use tokio::{sync::mpsc, time::Instant};

/// An editor that saves does several things to a file, and a person that changes a branch does them to many.
const QUIET: Duration = Duration::from_millis(25);

/// Watches folders of sources.
pub(super) struct Sources {
    folders: Vec<PathBuf>,
    target: PathBuf,
    watcher: notify::RecommendedWatcher,
    watched: BTreeSet<PathBuf>,
    events: mpsc::UnboundedReceiver<()>,
    /// When the last change was seen that nobody was told of.
    last: Option<Instant>,
}

impl Sources {
    /// All of the folders but `target`.
    ///
    /// # Errors
    /// They cannot be watched.
    pub(super) fn watch(folders: &[PathBuf], target: &Path) -> anyhow::Result<Self> {
        let (tell, events) = mpsc::unbounded_channel();
        let ours = (folders.to_vec(), target.to_owned());
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // A watch that failed may have missed something.
            if event.is_ok_and(|event| !matters(&event, &ours.0, &ours.1)) {
                return;
            }
            // An error means that nobody listens any more.
            let _ = tell.send(());
        });
        let watcher = watcher.context("watch the sources")?;
        let (folders, target) = (folders.to_vec(), target.to_owned());
        let mut sources = Self { folders, target, watcher, watched: BTreeSet::new(), events, last: None };
        sources.look()?;
        Ok(sources)
    }

    /// Watches what is not watched yet: each folder itself, and all that lies below those in it that hold sources.
    fn look(&mut self) -> anyhow::Result<()> {
        for folder in self.folders.clone() {
            self.add(&folder, RecursiveMode::NonRecursive)?;
            let entries = fs::read_dir(&folder).with_context(|| format!("watch {}", folder.display()))?;
            for path in entries.flatten().map(|entry| entry.path()) {
                if path.is_dir() && is_source(&path, &self.folders, &self.target) {
                    self.add(&path, RecursiveMode::Recursive)?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, mode: RecursiveMode) -> anyhow::Result<()> {
        if self.watched.insert(path.to_owned()) {
            self.watcher.watch(path, mode).with_context(|| {
                format!("watch {}; where there are too many watches, raise fs.inotify.max_user_watches", path.display())
            })?;
        }
        Ok(())
    }

    /// Waits until something has changed since the last time, and is quiet again. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        loop {
            let Some(last) = self.last else {
                // The watcher is ours, so its end cannot be told.
                self.events.recv().await;
                self.last = Some(Instant::now());
                continue;
            };
            tokio::select! {
                biased;
                Some(()) = self.events.recv() => self.last = Some(Instant::now()),
                () = tokio::time::sleep_until(last + QUIET) => break,
            }
        }
        self.last = None;
        if let Err(error) = self.look() {
            tracing::warn!("{error:#}");
        }
    }
}

fn matters(event: &notify::Event, folders: &[PathBuf], target: &Path) -> bool {
    let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
    (!event.kind.is_access() || event.kind == written)
        && (event.need_rescan() || event.paths.iter().any(|path| is_source(path, folders, target)))
}

/// Whether what lies there may be part of a plugin.
fn is_source(path: &Path, folders: &[PathBuf], target: &Path) -> bool {
    let Some(inside) =
        folders.iter().filter_map(|folder| path.strip_prefix(folder).ok()).min_by_key(|p| p.as_os_str().len())
    else {
        return false;
    };
    let kept = |name: &str| (!name.starts_with('.') || name == ".cargo") && !name.ends_with('~');
    // Cargo writes its lock file while it builds. Vim tries under that number whether it may write to a folder.
    !path.starts_with(target)
        && !inside.ends_with("Cargo.lock")
        && inside.iter().all(|name| kept(&name.to_string_lossy()) && name != "target" && name != "4913")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than a test waits for what does not come.
    const NEVER: Duration = Duration::from_millis(300);

    async fn tells(sources: &mut Sources) -> bool {
        tokio::time::timeout(NEVER, sources.changed()).await.is_ok()
    }

    #[tokio::test]
    async fn a_save_is_told_once_and_what_is_no_source_never() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().canonicalize().unwrap();
        for folder in ["src/deep", "target/debug", ".git", "out"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let mut sources = Sources::watch(std::slice::from_ref(&root), &root.join("out")).unwrap();
        let write = |path: &str| fs::write(root.join(path), "x").unwrap();
        for noise in
            ["target/debug/x", ".git/index", "out/x.wasm", ".lib.rs.swp", "src/lib.rs~", "src/4913", "Cargo.lock"]
        {
            write(noise);
        }
        assert!(!tells(&mut sources).await);
        for source in ["src/lib.rs", "src/deep/a.rs", "Cargo.toml"] {
            write(source);
            assert!(tells(&mut sources).await, "{source}");
            assert!(!tells(&mut sources).await, "{source} was told twice");
        }
        fs::read(root.join("src/lib.rs")).unwrap();
        assert!(!tells(&mut sources).await, "reading is no change");

        // A folder that comes later, and a change that comes while nobody listens.
        fs::create_dir(root.join("wit")).unwrap();
        assert!(tells(&mut sources).await);
        write("wit/world.wit");
        let waiting = tokio::time::timeout(Duration::from_millis(5), sources.changed()).await;
        assert!(waiting.is_err() && tells(&mut sources).await, "a change was lost");
    }
}
