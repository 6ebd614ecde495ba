//! The plugin directory: which plugins lie in it, as complete pairs of `NAME.wasm` and `NAME.yaml`.
//!
//! Tells each change once, with the bytes read, so that nobody reads a file twice and finds two different ones. Refuses to judge the contents.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use notify::{
    EventKind, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, ModifyKind},
};
use operetta_core::name::{Digest, PluginName};
use tokio::{sync::mpsc, time::Instant};

use crate::exit::Failed;

/// A file that was written to and not closed since may go on growing; without another write for so long it is taken as it is. Linux tells when a file is closed, so that only a copy
/// that stalls is ever waited for; elsewhere this is the only sign.
const QUIET: Duration = Duration::from_millis(if cfg!(target_os = "linux") { 3_000 } else { 300 });
/// A file that went may be about to be replaced, as editors do.
const GRACE: Duration = Duration::from_millis(300);
/// The whole directory is looked at this often, since network file systems tell of no changes and inotify may lose some.
const LOOK: Duration = Duration::from_secs(10);
/// A file over this size is no plugin: as many bytes as the sandbox takes.
const MAX_WASM: u64 = 64 << 20;
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
    /// The component alone.
    WithoutDocument {
        /// `NAME.wasm`.
        wasm: Bytes,
        /// Why it does not run, and what to do.
        why: String,
    },
    /// The component is missing, or one of them cannot be read.
    Incomplete {
        /// Which, and what to do.
        why: String,
        /// `NAME.yaml`, where it can be read.
        yaml: Option<String>,
    },
    /// Nothing any more.
    Gone,
}

impl Entry {
    /// The same with the component's digest in its place: to find that it changed, nobody keeps 64 MiB.
    fn outline(&self) -> Self {
        let digest = |wasm: &Bytes| Bytes::from(Digest::of(wasm).hex());
        match self {
            Self::Present { wasm, yaml } => Self::Present { wasm: digest(wasm), yaml: yaml.clone() },
            Self::WithoutDocument { wasm, why } => Self::WithoutDocument { wasm: digest(wasm), why: why.clone() },
            Self::Incomplete { .. } | Self::Gone => self.clone(),
        }
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Under which name.
    pub name: PluginName,
    /// What is there now.
    pub entry: Entry,
}

/// What tells whether a file was written since: the times of its contents and of its inode, of which the latter tells of changed permissions too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: (i64, i64),
    changed: (i64, i64),
    len: u64,
    inode: u64,
}

/// One of the two files of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Wasm,
    Yaml,
}

/// What was told of one name.
struct Known {
    /// [`Entry::outline`].
    entry: Entry,
    stamps: [Option<Stamp>; 2],
    /// A file was there and could not be read.
    failed: bool,
}

/// A file that is to be read soon.
struct Pending {
    at: Instant,
    /// How it is now, if it must still be so then.
    stamp: Option<Stamp>,
}

/// Watches a plugin directory.
pub struct Directory {
    path: PathBuf,
    known: BTreeMap<PluginName, Known>,
    /// Names that can be no plugin, said once.
    refused: BTreeSet<String>,
    events: mpsc::UnboundedReceiver<notify::Result<notify::Event>>,
    /// Keeps the watch.
    _watcher: notify::RecommendedWatcher,
    pending: BTreeMap<(PluginName, Part), Pending>,
    found: VecDeque<Found>,
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
        let unusable = |error| Failed::usage(format!("{}: {error}", problem()));
        let path = path.canonicalize().map_err(unusable)?;
        std::fs::read_dir(&path).map_err(unusable)?;
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
            found: VecDeque::new(),
            next_look: Instant::now(),
        };
        directory.look_at_all(Duration::ZERO);
        Ok(directory)
    }

    /// A change that has been found already.
    pub fn try_next(&mut self) -> Option<Found> {
        self.found.pop_front()
    }

    /// The next change. Cancel-safe.
    pub async fn next(&mut self) -> Found {
        loop {
            if let Some(found) = self.found.pop_front() {
                return found;
            }
            let wake = self.pending.values().map(|pending| pending.at).min();
            let wake = wake.map_or(self.next_look, |at| at.min(self.next_look));
            tokio::select! {
                // All events first: that one file is complete means nothing while another is being written.
                biased;
                event = self.events.recv() => match event {
                    Some(Ok(event)) => self.heed(&event),
                    Some(Err(error)) => {
                        tracing::warn!(%error, "the watch of the plugin directory failed; looking at all of it");
                        self.look_at_all(QUIET);
                    }
                    // The watcher is ours, so its end cannot be told; the regular look goes on.
                    None => tokio::time::sleep_until(wake).await,
                },
                () = tokio::time::sleep_until(wake) => self.look(Instant::now()),
            }
        }
    }

    fn heed(&mut self, event: &notify::Event) {
        if event.need_rescan() {
            tracing::debug!("events of the plugin directory were lost; looking at all of it");
            self.look_at_all(QUIET);
        }
        for path in &event.paths {
            let is_link = || path.symlink_metadata().is_ok_and(|found| found.is_symlink());
            let wait = match event.kind {
                EventKind::Access(AccessKind::Close(AccessMode::Write)) => Duration::ZERO,
                EventKind::Access(_) => continue,
                // A file that was moved here is complete, and a link is nothing that could be written.
                EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) if path.exists() => Duration::ZERO,
                EventKind::Create(_) if is_link() => Duration::ZERO,
                EventKind::Modify(ModifyKind::Name(_) | ModifyKind::Metadata(_)) | EventKind::Remove(_) => GRACE,
                _ => QUIET,
            };
            match self.part_of(path) {
                // The permissions of a file change while it is copied, too.
                Some(part)
                    if matches!(event.kind, EventKind::Modify(ModifyKind::Metadata(_)))
                        && self.pending.contains_key(&part) => {}
                Some(part) => self.expect(part, path, wait),
                // A mounted ConfigMap is changed by moving the link `..data`.
                None if wait.is_zero() && path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("..")) => {
                    self.look_at_all(Duration::ZERO);
                }
                None => {}
            }
        }
    }

    /// Will look at this file when it has been quiet for so long.
    fn expect(&mut self, part: (PluginName, Part), path: &Path, wait: Duration) {
        let stamp = if wait.is_zero() { None } else { stamp(path).ok().flatten() };
        self.pending.insert(part, Pending { at: Instant::now() + wait, stamp });
    }

    fn look(&mut self, now: Instant) {
        if now >= self.next_look {
            self.look_at_all(QUIET);
        }
        let due: Vec<_> =
            self.pending.iter().filter(|(_, pending)| pending.at <= now).map(|(part, _)| part.clone()).collect();
        for part in due {
            let path = self.path_of(&part.0, part.1);
            let Some(pending) = self.pending.remove(&part) else { continue };
            if pending.stamp.is_some() && stamp(&path).ok().flatten() != pending.stamp {
                self.expect(part, &path, QUIET);
            } else {
                self.look_at(part.0);
            }
        }
    }

    /// Looks at all files, and reads those that changed when they have been quiet for so long.
    fn look_at_all(&mut self, wait: Duration) {
        self.next_look = Instant::now() + LOOK;
        let mut names: BTreeSet<_> = self.known.keys().cloned().collect();
        match std::fs::read_dir(&self.path) {
            Ok(entries) => names.extend(entries.flatten().filter_map(|entry| Some(self.part_of(&entry.path())?.0))),
            Err(error) => {
                // Not the same as an empty directory: what runs goes on.
                tracing::error!(path = %self.path.display(), %error, "the plugin directory cannot be read; all plugins go on as they are");
                return;
            }
        }
        for name in names {
            let parts = [Part::Wasm, Part::Yaml].map(|part| (part, self.path_of(&name, part)));
            let stamps = parts.each_ref().map(|(_, path)| stamp(path).ok().flatten());
            if self.known.get(&name).is_some_and(|known| known.stamps == stamps && !known.failed) {
                continue;
            }
            if wait.is_zero() {
                self.look_at(name);
                continue;
            }
            for (part, path) in parts {
                if !self.pending.contains_key(&(name.clone(), part)) {
                    self.expect((name.clone(), part), &path, wait);
                }
            }
        }
    }

    /// Reads both files and tells if they differ from what was told, unless one of them may go on changing.
    fn look_at(&mut self, name: PluginName) {
        let unfinished = |part| self.pending.contains_key(&(name.clone(), part));
        if unfinished(Part::Wasm) || unfinished(Part::Yaml) {
            return;
        }
        let [wasm, yaml] = [Part::Wasm, Part::Yaml].map(|part| self.path_of(&name, part));
        let stamps = match (stamp(&wasm), stamp(&yaml)) {
            (Ok(wasm), Ok(yaml)) => [wasm, yaml],
            (Err(error), _) | (_, Err(error)) => {
                // Not the same as a file that is gone: what runs goes on.
                tracing::error!(plugin = %name, %error, phase = "fetch", "the plugin's files cannot be looked at; it goes on as it is");
                return;
            }
        };
        let mut failed = false;
        let entry = match &stamps {
            [None, None] => Entry::Gone,
            [Some(_), None] => match read(&wasm, MAX_WASM) {
                Ok(bytes) => Entry::WithoutDocument {
                    wasm: bytes.into(),
                    why: format!(
                        "{name}.wasm has no {name}.yaml beside it, so nothing is granted to it; `operetta generate plugin {0}` writes one to read and cut",
                        wasm.display()
                    ),
                },
                Err(why) => {
                    failed = true;
                    Entry::Incomplete { why, yaml: None }
                }
            },
            [component, Some(_)] => {
                // Also without a component: it says what the code that runs may do.
                let document = read(&yaml, MAX_YAML);
                let component = match component {
                    Some(_) => read(&wasm, MAX_WASM).inspect_err(|_| failed = true),
                    None => Err(format!(
                        "{name}.yaml has no {name}.wasm beside it; copy the component there, or remove the document"
                    )),
                };
                failed |= document.is_err();
                let not_text = |_| format!("{name}.yaml is no UTF-8 text");
                match (component, document.and_then(|yaml| String::from_utf8(yaml).map_err(not_text))) {
                    (Ok(wasm), Ok(yaml)) => Entry::Present { wasm: wasm.into(), yaml },
                    (Ok(_), Err(why)) => Entry::Incomplete { why, yaml: None },
                    (Err(why), yaml) => Entry::Incomplete { why, yaml: yaml.ok() },
                }
            }
        };
        let outline = entry.outline();
        let told = self.known.get(&name).map_or(&Entry::Gone, |known| &known.entry);
        let news = (*told != outline).then(|| Found { name: name.clone(), entry });
        if outline == Entry::Gone {
            self.known.remove(&name);
        } else {
            self.known.insert(name, Known { entry: outline, stamps, failed });
        }
        self.found.extend(news);
    }

    fn path_of(&self, name: &PluginName, part: Part) -> PathBuf {
        self.path.join(match part {
            Part::Wasm => format!("{name}.wasm"),
            Part::Yaml => format!("{name}.yaml"),
        })
    }

    /// The plugin that a file belongs to and what it is to it; none for files that are no plugin's.
    fn part_of(&mut self, path: &Path) -> Option<(PluginName, Part)> {
        let file = path.file_name()?.to_str()?;
        let wasm = file.strip_suffix(".wasm").map(|stem| (stem, Part::Wasm));
        let (stem, part) = wasm.or_else(|| file.strip_suffix(".yaml").map(|stem| (stem, Part::Yaml)))?;
        if stem.starts_with('.') {
            // Editors and copying tools write to hidden files first.
            return None;
        }
        match PluginName::parse(stem) {
            Ok(name) => Some((name, part)),
            Err(error) => {
                if self.refused.insert(file.to_owned()) {
                    tracing::error!(file, %error, phase = "fetch", "not a plugin; rename the file");
                }
                None
            }
        }
    }
}

/// None where there is no such file.
fn stamp(path: &Path) -> Result<Option<Stamp>, String> {
    use std::os::unix::fs::MetadataExt as _;
    match std::fs::metadata(path) {
        Ok(found) => Ok(found.is_file().then(|| Stamp {
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
            len: found.len(),
            inode: found.ino(),
        })),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// All of a file of at most so many bytes, and never more of one that is longer or grows.
fn read(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let mut file = File::open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    let mut bytes = Vec::new();
    if len <= limit {
        bytes.reserve_exact(usize::try_from(len).unwrap_or_default());
        file.by_ref().take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    }
    let len = len.max(bytes.len() as u64);
    if len > limit {
        return Err(format!(
            "{} has {len} bytes and at most {limit} are taken; make it smaller: a component without its debug information (`strip = \"debuginfo\"`) is",
            path.display()
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
