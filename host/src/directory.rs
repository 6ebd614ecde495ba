//! The plugin directory: which plugins lie in it, as complete pairs of `NAME.wasm` and `NAME.yaml`.
//!
//! Tells each change once, with the bytes read, so that nobody reads a file twice and finds two different ones. Refuses to judge the contents.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use notify::{
    EventKind, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, ModifyKind},
};
use operetta_core::name::PluginName;
use tokio::{sync::mpsc, time::Instant};

/// After a write that was not followed by the file's closing, wait so long for quiet.
const QUIET: Duration = Duration::from_millis(300);
/// The whole directory is looked at this often, since network file systems tell of no changes and inotify may lose some.
const LOOK: Duration = Duration::from_secs(10);
/// A file over this size is no plugin: the largest components of interpreters have some 50 MB.
const MAX_WASM: u64 = 256 << 20;
/// Over this, no Plugin document.
const MAX_YAML: u64 = 1 << 20;

/// What lies in the directory under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Both files.
    Present {
        /// `NAME.wasm`.
        wasm: Bytes,
        /// `NAME.yaml`.
        yaml: String,
    },
    /// One of them is missing or cannot be read; the text says which and what to do.
    Incomplete(String),
    /// Nothing any more.
    Gone,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Under which name.
    pub name: PluginName,
    /// What is there now.
    pub entry: Entry,
}

/// What tells whether a file was written since.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    len: u64,
    inode: u64,
}

/// Watches a plugin directory.
pub struct Directory {
    path: PathBuf,
    /// As last told.
    known: BTreeMap<PluginName, [Option<Stamp>; 2]>,
    /// Names that can be no plugin, said once.
    refused: BTreeSet<String>,
    events: mpsc::UnboundedReceiver<notify::Result<notify::Event>>,
    /// Keeps the watch.
    _watcher: notify::RecommendedWatcher,
    /// Names that were written, and until when to wait for quiet.
    pending: BTreeMap<PluginName, Instant>,
    found: std::collections::VecDeque<Found>,
    next_look: Instant,
}

impl Directory {
    /// Begins to watch. All that lies there already is told first; when it was all told, [`Self::next`] waits.
    ///
    /// # Errors
    /// The directory cannot be read or watched.
    pub fn watch(path: &Path) -> anyhow::Result<Self> {
        use anyhow::Context as _;
        let problem = || format!("--plugin-dir {}: cannot be read; create it or name another", path.display());
        let path = path.canonicalize().with_context(problem)?;
        std::fs::read_dir(&path).with_context(problem)?;
        let (tell, events) = mpsc::unbounded_channel();
        let mut watcher = notify::recommended_watcher(move |event| {
            // The receiver is gone only when the host stops.
            let _ = tell.send(event);
        })?;
        watcher
            .watch(&path, RecursiveMode::NonRecursive)
            .with_context(|| format!("--plugin-dir {}: cannot be watched", path.display()))?;
        let mut directory = Self {
            path,
            known: BTreeMap::new(),
            refused: BTreeSet::new(),
            events,
            _watcher: watcher,
            pending: BTreeMap::new(),
            found: std::collections::VecDeque::new(),
            next_look: Instant::now(),
        };
        directory.look_at_all();
        Ok(directory)
    }

    /// How many changes have been found and not been told yet.
    pub fn untold(&self) -> usize {
        self.found.len()
    }

    /// The next change. Cancel-safe.
    pub async fn next(&mut self) -> Found {
        loop {
            if let Some(found) = self.found.pop_front() {
                return found;
            }
            let quiet = self.pending.values().min().copied();
            let wake = quiet.map_or(self.next_look, |at| at.min(self.next_look));
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(Ok(event)) => self.heed(&event),
                    Some(Err(error)) => {
                        tracing::warn!(%error, "the watch of the plugin directory failed; looking at all of it");
                        self.look_at_all();
                    }
                    // The watcher is ours, so its end cannot be told; the regular look goes on.
                    None => tokio::time::sleep_until(wake).await,
                },
                () = tokio::time::sleep_until(wake) => self.look(Instant::now()),
            }
        }
    }

    fn heed(&mut self, event: &notify::Event) {
        // A closed or renamed file is complete; one that was merely written to may go on growing.
        let complete = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Modify(ModifyKind::Name(_))
            | EventKind::Remove(_) => true,
            EventKind::Access(_) => return,
            _ => false,
        };
        for path in &event.paths {
            match self.name_of(path) {
                Some(name) if complete => {
                    self.pending.remove(&name);
                    self.look_at(name);
                }
                Some(name) => {
                    self.pending.insert(name, Instant::now() + QUIET);
                }
                // A mounted ConfigMap is changed by moving the link `..data`.
                None if complete && path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("..")) => {
                    self.look_at_all();
                }
                None => {}
            }
        }
    }

    fn look(&mut self, now: Instant) {
        if now >= self.next_look {
            self.look_at_all();
        }
        let due: Vec<_> = self.pending.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.pending.remove(&name);
            self.look_at(name);
        }
    }

    fn look_at_all(&mut self) {
        self.next_look = Instant::now() + LOOK;
        let mut names: BTreeSet<_> = self.known.keys().cloned().collect();
        match std::fs::read_dir(&self.path) {
            Ok(entries) => names.extend(entries.flatten().filter_map(|entry| self.name_of(&entry.path()))),
            Err(error) => {
                // Not the same as an empty directory: what runs goes on.
                tracing::error!(path = %self.path.display(), %error, "the plugin directory cannot be read; all plugins go on as they are");
                return;
            }
        }
        for name in names {
            if !self.pending.contains_key(&name) {
                self.look_at(name);
            }
        }
    }

    fn look_at(&mut self, name: PluginName) {
        let [wasm, yaml] = ["wasm", "yaml"].map(|ending| self.path.join(format!("{name}.{ending}")));
        let stamps = [stamp(&wasm), stamp(&yaml)];
        if self.known.get(&name) == Some(&stamps) {
            return;
        }
        let entry = match &stamps {
            [None, None] => Entry::Gone,
            [Some(_), None] => Entry::Incomplete(format!(
                "{name}.wasm has no {name}.yaml beside it, so nothing is granted to it; `operetta generate plugin {0}` writes one to read and cut",
                wasm.display()
            )),
            [None, Some(_)] => Entry::Incomplete(format!(
                "{name}.yaml has no {name}.wasm beside it; copy the component there, or remove the document"
            )),
            [Some(_), Some(_)] => match (read(&wasm, MAX_WASM), read(&yaml, MAX_YAML)) {
                (Ok(wasm), Ok(yaml)) => match String::from_utf8(yaml) {
                    Ok(yaml) => Entry::Present { wasm: wasm.into(), yaml },
                    Err(_) => Entry::Incomplete(format!("{name}.yaml is no UTF-8 text")),
                },
                (Err(error), _) | (_, Err(error)) => Entry::Incomplete(error),
            },
        };
        if entry == Entry::Gone {
            if self.known.remove(&name).is_none() {
                return;
            }
        } else {
            self.known.insert(name.clone(), stamps);
        }
        self.found.push_back(Found { name, entry });
    }

    /// The plugin that a file belongs to; none for files that are no plugin's.
    fn name_of(&mut self, path: &Path) -> Option<PluginName> {
        let file = path.file_name()?.to_str()?;
        let stem = file.strip_suffix(".wasm").or_else(|| file.strip_suffix(".yaml"))?;
        if stem.starts_with('.') {
            // Editors and copying tools write to hidden files first.
            return None;
        }
        match PluginName::parse(stem) {
            Ok(name) => Some(name),
            Err(error) => {
                if self.refused.insert(file.to_owned()) {
                    tracing::error!(file, %error, phase = "fetch", "not a plugin; rename the file");
                }
                None
            }
        }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path).ok()?;
    metadata.is_file().then(|| Stamp { modified: metadata.modified().ok(), len: metadata.len(), inode: metadata.ino() })
}

fn read(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let len = std::fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?.len();
    if len > limit {
        return Err(format!("{} has {len} bytes, and at most {limit} are read", path.display()));
    }
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    async fn next(directory: &mut Directory) -> (String, Entry) {
        let found = timeout(SOON, directory.next()).await.expect("a change is told");
        (found.name.to_string(), found.entry)
    }

    fn present(wasm: &str, yaml: &str) -> Entry {
        Entry::Present { wasm: Bytes::copy_from_slice(wasm.as_bytes()), yaml: yaml.into() }
    }

    #[tokio::test]
    async fn a_pair_is_told_when_complete_then_its_changes_then_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("a.wasm"), "1").unwrap();
        fs::write(path("a.yaml"), "x").unwrap();
        fs::write(path("notes.txt"), "x").unwrap();
        fs::write(path(".b.wasm"), "x").unwrap();
        fs::write(path("Not A Name.wasm"), "x").unwrap();
        let mut directory = Directory::watch(dir.path()).unwrap();
        assert_eq!(directory.untold(), 1);
        assert_eq!(next(&mut directory).await, ("a".into(), present("1", "x")));

        fs::write(path("b.wasm"), "2").unwrap();
        let (name, entry) = next(&mut directory).await;
        assert!(matches!(&entry, Entry::Incomplete(why) if why.contains("has no b.yaml")), "{entry:?}");
        assert_eq!(name, "b");
        fs::write(path("b.yaml"), "y").unwrap();
        assert_eq!(next(&mut directory).await, ("b".into(), present("2", "y")));

        fs::write(path("c.tmp"), "33").unwrap();
        fs::rename(path("c.tmp"), path("a.wasm")).unwrap();
        assert_eq!(next(&mut directory).await, ("a".into(), present("33", "x")));

        fs::remove_file(path("b.yaml")).unwrap();
        let (_, entry) = next(&mut directory).await;
        assert!(matches!(entry, Entry::Incomplete(_)));
        fs::remove_file(path("b.wasm")).unwrap();
        assert_eq!(next(&mut directory).await, ("b".into(), Entry::Gone));
    }

    #[tokio::test]
    async fn a_file_that_is_still_being_copied_is_told_once_and_whole() {
        use std::io::Write as _;
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), "x").unwrap();
        let mut directory = Directory::watch(dir.path()).unwrap();
        next(&mut directory).await;
        let mut file = fs::File::create(dir.path().join("a.wasm")).unwrap();
        for _ in 0..5 {
            file.write_all(b"part ").unwrap();
            assert!(timeout(QUIET / 6, directory.next()).await.is_err(), "told before it was whole");
        }
        drop(file);
        assert_eq!(next(&mut directory).await, ("a".into(), present(&"part ".repeat(5), "x")));
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error_that_names_it() {
        let error = Directory::watch(Path::new("/no/such/dir")).err().unwrap();
        assert!(error.to_string().contains("--plugin-dir /no/such/dir"), "{error}");
    }
}
