//! Compiled components on disk, each with a MAC, and marks of those that are being compiled.
//!
//! wasmtime runs what it maps: of 150 one-byte changes to a compiled component 145 loaded and ran. Hence **no byte of an entry is executed before its MAC was found right**, under a key that lies
//! outside the cache. The MAC covers which component, which engine and all the code, so that an entry cannot stand in for another. What is wrong with an entry is logged, and the entry deleted.

mod mark;

use std::{
    fs::{self, File, OpenOptions},
    hash::{Hash, Hasher},
    io::{self, Read, Seek, SeekFrom, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use operetta_core::name::Digest;
use tempfile::NamedTempFile;
use wasmtime::{Engine, component::Component};

pub use self::mark::forget_marks;
pub(crate) use self::mark::{Dead, Mark};

/// Bytes of key and MAC.
const LEN: usize = 32;
/// Before everything else in the MAC; changes when the layout of an entry does.
const LAYOUT: &[u8] = b"operetta compiled component 1\0";
/// How the name of a file begins that is not an entry yet.
const DRAFT: &str = ".draft-";
/// How the name of an entry ends.
const ENTRY: &str = ".cwasm";
/// How the name of a mark ends.
const MARK: &str = ".compiling";
/// How long it is remembered that hosts died.
const MARK_AGE: Duration = Duration::from_hours(24);
/// No compiler runs that long.
const DRAFT_AGE: Duration = Duration::from_hours(1);
/// An entry that was not used for that long goes; compiling it again costs seconds.
const ENTRY_AGE: Duration = Duration::from_hours(30 * 24);
/// Bytes of all entries: more are those of components that were replaced, and the folder they lie in may be a volume of 1 GiB.
const MOST: u64 = 640 << 20;
/// Tenths of that for those which this process has used: it would compile them again at its next start.
const IN_USE: u64 = 13;
/// Write permission of group and others.
const OTHERS_WRITE: u32 = 0o022;
/// Any permission of group and others.
const OTHERS: u32 = 0o077;

/// A cache that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The file system said no.
    #[error("cannot use {path}: {error}; make it readable and writable for the user of the host")]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What happened.
        error: io::Error,
    },
    /// Somebody else could write there.
    #[error("{path} is not safe: {why}; {fix}")]
    Unsafe {
        /// Which file or folder.
        path: PathBuf,
        /// Who could.
        why: String,
        /// What to do.
        fix: &'static str,
    },
}

/// The cache of one engine.
pub(crate) struct Cache {
    dir: PathBuf,
    key: [u8; LEN],
    engine: Engine,
    engine_hash: blake3::Hash,
    /// What was touched since is in use.
    began: SystemTime,
    told: AtomicBool,
}

/// Why an entry is not used.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    #[error("it does not exist")]
    Absent,
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Owner(String),
    #[error("it is too short")]
    Short,
    #[error("its MAC is wrong, so this host did not write it, or not like this")]
    Mac,
    #[error("wasmtime refuses it: {0}")]
    Refused(String),
}

/// Why compiled code was not kept.
#[derive(Debug)]
pub(crate) enum KeepError {
    /// wasmtime does not load it.
    Unfit(String),
    /// The file system, or somebody else.
    Host(String),
}

impl Cache {
    /// Opens the cache in `dir` under the key in `key_file`; makes what does not exist.
    pub fn open(engine: &Engine, dir: &Path, key_file: &Path) -> Result<Self, CacheError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| CacheError::Io { path, error }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(at(dir))?;
        let dir = dir.canonicalize().map_err(at(dir))?;
        check(&fs::metadata(&dir).map_err(at(&dir))?, OTHERS_WRITE).map_err(|why| CacheError::Unsafe {
            path: dir.clone(),
            why,
            fix: "give it to the user of the host and `chmod go-w` it, or name another folder",
        })?;
        if let Some(folder) = key_file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(at(folder))?;
            if folder.canonicalize().map_err(at(folder))?.starts_with(&dir) {
                return Err(CacheError::Unsafe {
                    path: key_file.to_owned(),
                    why: "the key lies within the cache that it protects".into(),
                    fix: "name a key file elsewhere",
                });
            }
        }
        // Nobody knows yet which of them will be used.
        sweep(&dir, MOST, SystemTime::UNIX_EPOCH);
        let key = read_key(key_file)?;
        let mut hasher = StableHasher(blake3::Hasher::new());
        engine.precompile_compatibility_hash().hash(&mut hasher);
        let (engine_hash, began) = (hasher.0.finalize(), SystemTime::now());
        Ok(Self { dir, key, engine: engine.clone(), engine_hash, began, told: AtomicBool::new(false) })
    }

    /// The compiled form of this component, if there is one that this host wrote.
    pub fn find(&self, digest: &Digest) -> Option<Component> {
        let path = self.path(digest);
        match self.read(&path, digest) {
            Ok(component) => {
                // By its age an entry that nobody uses is found.
                let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
                Some(component)
            }
            Err(EntryError::Absent) => None,
            Err(why) => {
                tracing::warn!(path = %path.display(), reason = %why, "a cached component is not used; it is deleted and compiled again");
                if let Err(error) = fs::remove_file(&path) {
                    tracing::warn!(path = %path.display(), %error, "a bad cache entry cannot be deleted");
                }
                None
            }
        }
    }

    /// An empty file that only this user can read, for a compiler to write to.
    pub fn draft(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new().prefix(DRAFT).tempfile_in(&self.dir)
    }

    /// Makes what a compiler wrote into the entry of this component, and maps it.
    pub fn keep(&self, digest: &Digest, mut draft: NamedTempFile) -> Result<Component, KeepError> {
        let path = self.path(digest);
        let written = (|| {
            let file = draft.as_file_mut();
            let len = file.seek(SeekFrom::End(0))?;
            let mac = self.mac(file, len, digest)?;
            file.seek(SeekFrom::End(0))?;
            file.write_all(mac.as_bytes())?;
            draft.persist(&path).map_err(|error| error.error)
        })();
        written.map_err(|error| KeepError::Host(format!("cannot write {}: {error}", path.display())))?;
        let kept = self.read(&path, digest).map_err(|why| {
            let _ = fs::remove_file(&path);
            match why {
                EntryError::Refused(why) => KeepError::Unfit(why),
                why => KeepError::Host(format!("{}: {why}", path.display())),
            }
        });
        // Each version of a plugin is an entry, and a host runs for months. After this one was mapped, since it may be among what goes.
        let used = sweep(&self.dir, MOST, self.began);
        if used > MOST && !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                path = %self.dir.display(), mib = used >> 20, most_mib = (MOST * IN_USE / 10) >> 20,
                "the compiled components in use nearly fill the cache; beyond the most, those that were loaded longest ago are compiled again at each start: run fewer or smaller plugins in one host"
            );
        }
        kept
    }

    /// Remembers until the answer is dropped that this component is being compiled, even if the host dies meanwhile. The error: that it did, and should not try again.
    pub fn mark(&self, digest: &Digest) -> Result<Mark, Dead> {
        Mark::set(&self.file(digest, MARK))
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.file(digest, ENTRY)
    }

    /// The file of a component and this sort of engine, since another one may fare better.
    fn file(&self, digest: &Digest, ending: &str) -> PathBuf {
        let engine: String = self.engine_hash.to_hex().chars().take(16).collect();
        self.dir.join(format!("{}-{engine}{ending}", digest.hex()))
    }

    fn read(&self, path: &Path, digest: &Digest) -> Result<Component, EntryError> {
        let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let mut file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(EntryError::Absent),
            Err(error) => return Err(error.into()),
        };
        let meta = file.metadata()?;
        check(&meta, OTHERS_WRITE).map_err(EntryError::Owner)?;
        if !meta.is_file() {
            return Err(EntryError::Owner("it is no regular file".into()));
        }
        let len = meta.len().checked_sub(LEN as u64).ok_or(EntryError::Short)?;
        let expected = self.mac(&mut file, len, digest)?;
        let mut found = [0; LEN];
        file.read_exact(&mut found)?;
        // blake3's comparison takes the same time whatever differs.
        if expected != found {
            return Err(EntryError::Mac);
        }
        map(&self.engine, &file).map_err(|error| EntryError::Refused(format!("{error:#}")))
    }

    /// The MAC over the first `len` bytes of the file, which is left behind them.
    fn mac(&self, file: &mut File, len: u64, digest: &Digest) -> io::Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(LAYOUT).update(digest.hex().as_bytes()).update(self.engine_hash.as_bytes());
        file.seek(SeekFrom::Start(0))?;
        let mut buffer = vec![0; 256 << 10];
        let mut rest = file.take(len);
        loop {
            match rest.read(&mut buffer)? {
                0 => return Ok(hasher.finalize()),
                n => hasher.update(buffer.get(..n).unwrap_or_default()),
            };
        }
    }
}

/// Maps compiled code. **The one `unsafe` of the host.**
#[allow(unsafe_code)]
fn map(engine: &Engine, file: &File) -> wasmtime::Result<Component> {
    // The descriptor's name, so that what is mapped is what was checked even if the path leads elsewhere by now.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the bytes must be what `Engine::precompile_component` made and must not change while mapped. The only caller has just found their MAC right, under a key that only this user
    // can read, and this host writes a MAC only over what its own compiler printed. Only this user can write to the file (owner and mode were checked on this descriptor), and the
    // host never writes to an entry after it was renamed into place.
    unsafe { Component::deserialize_file(engine, path) }
}

/// Deletes drafts that a host left behind when it was killed, entries of components or engines that are used no more, marks of long ago, and what was not used for longest where all entries
/// have more than `most` bytes, of which those that were used since `began` may have [`IN_USE`] tenths. The newest one stays in any case. What is mapped stays so without its file. Answers how
/// many bytes those have that were used since.
fn sweep(dir: &Path, most: u64, began: SystemTime) -> u64 {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_entry = name.ends_with(ENTRY) && !name.starts_with(DRAFT);
        let kept = if name.starts_with(DRAFT) {
            DRAFT_AGE
        } else if is_entry {
            ENTRY_AGE
        } else if name.ends_with(MARK) {
            MARK_AGE
        } else {
            continue;
        };
        let Ok(meta) = entry.metadata() else { continue };
        let Ok(modified) = meta.modified() else { continue };
        if modified.elapsed().is_ok_and(|age| age > kept) {
            let _ = fs::remove_file(entry.path());
        } else if is_entry {
            entries.push((modified, meta.len(), entry.path()));
        }
    }
    entries.sort_by_key(|(modified, ..)| std::cmp::Reverse(*modified));
    let (mut bytes, mut used) = (0_u64, 0_u64);
    for (position, (modified, len, path)) in entries.into_iter().enumerate() {
        bytes = bytes.saturating_add(len);
        let most = if modified >= began { most.saturating_mul(IN_USE) / 10 } else { most };
        if modified >= began {
            used = bytes;
        }
        if position > 0 && bytes > most {
            let _ = fs::remove_file(path);
        }
    }
    used
}

/// Refuses what belongs to someone else, or what others have a forbidden right to.
fn check(meta: &fs::Metadata, forbidden: u32) -> Result<(), String> {
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me {
        return Err(format!("it belongs to user {}, and the host runs as {me}", meta.uid()));
    }
    if meta.mode() & forbidden != 0 {
        return Err(format!("its mode {:o} lets others in", meta.mode() & 0o7777));
    }
    Ok(())
}

/// Reads the key, or makes one. Two hosts that start at once end with the same.
fn read_key(path: &Path) -> Result<[u8; LEN], CacheError> {
    let at = |error| CacheError::Io { path: path.to_owned(), error };
    if !path.exists() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut draft = NamedTempFile::new_in(folder).map_err(at)?;
        draft.write_all(&rand::random::<[u8; LEN]>()).map_err(at)?;
        match draft.persist_noclobber(path) {
            Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => return Err(at(error.error)),
            _ => {}
        }
    }
    let fix = "delete it, and the host makes a new one";
    let unfit = |why: String| CacheError::Unsafe { path: path.to_owned(), why, fix };
    let mut file = File::open(path).map_err(at)?;
    check(&file.metadata().map_err(at)?, OTHERS).map_err(unfit)?;
    let mut key = Vec::new();
    Read::by_ref(&mut file).take(LEN as u64 + 1).read_to_end(&mut key).map_err(at)?;
    key.try_into().map_err(|_| unfit(format!("it does not hold a key of {LEN} bytes")))
}

/// Hands what is hashed to blake3, so that the result is the same in each process.
struct StableHasher(blake3::Hasher);

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Not used: the whole hash is.
    fn finish(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_for_one_sort_of_engine() {
        let folder = tempfile::tempdir().unwrap();
        let path = |fuel: bool| {
            let engine = Engine::new(wasmtime::Config::new().consume_fuel(fuel)).unwrap();
            let cache = Cache::open(&engine, &folder.path().join("cache"), &folder.path().join("key")).unwrap();
            cache.path(&Digest::of(b"a component"))
        };
        assert_eq!(path(true), path(true));
        assert_ne!(path(true), path(false));
    }

    #[test]
    fn what_is_not_there_is_told_from_what_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, key) = (folder.path().join("cache"), folder.path().join("key"));
        let cache = Cache::open(&Engine::default(), &dir, &key).unwrap();
        let digest = Digest::of(b"a component");
        let path = cache.path(&digest);
        let why = || cache.read(&path, &digest).err();
        assert!(matches!(why(), Some(EntryError::Absent)));
        std::os::unix::fs::symlink(&key, &path).unwrap();
        assert!(matches!(why(), Some(EntryError::Io(_))), "a link is not followed");
        fs::remove_file(&path).unwrap();
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        assert!(matches!(why(), Some(EntryError::Owner(_))));
    }

    #[test]
    fn entries_that_are_too_many_bytes_go_from_the_one_that_was_not_used_for_longest() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: u64, age: u64| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_len(bytes).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        };
        let swept = |most: u64, since: u64| {
            let used = sweep(folder.path(), most, SystemTime::now() - Duration::from_secs(since));
            let mut left: Vec<_> = fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            left.sort();
            (left.join(" "), used)
        };
        let told = |left: &str, used: u64| (left.to_owned(), used);
        write("new.cwasm", 60, 10);
        write("used.cwasm", 30, 20);
        write("old.cwasm", 30, 30);
        write(".draft-1", 500, 40);
        write("other", 500, 50);
        write("unused.cwasm", 1, ENTRY_AGE.as_secs() + 10);
        assert_eq!(swept(120, 0), told(".draft-1 new.cwasm old.cwasm other used.cwasm", 0));
        assert_eq!(swept(119, 0), told(".draft-1 new.cwasm other used.cwasm", 0));
        assert_eq!(swept(70, 25), told(".draft-1 new.cwasm other used.cwasm", 90), "what is in use may be more");
        assert_eq!(swept(69, 25), told(".draft-1 new.cwasm other", 90), "and not anything");
        assert_eq!(swept(10, 0), told(".draft-1 new.cwasm other", 0), "the newest is about to be used");
    }

    #[test]
    fn a_store_sweeps_what_lies_there_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, key) = (folder.path().join("cache"), folder.path().join("key"));
        let cache = Cache::open(&Engine::default(), &dir, &key).unwrap();
        let stale = dir.join("x.cwasm");
        let old = SystemTime::now() - ENTRY_AGE - Duration::from_secs(10);
        File::create(&stale).unwrap().set_modified(old).unwrap();
        // That it is no code is found out afterwards.
        assert!(cache.keep(&Digest::of(b"a component"), cache.draft().unwrap()).is_err());
        assert!(!stale.exists());
    }

    #[test]
    fn hosts_that_start_at_once_end_with_the_same_key() {
        const HOSTS: usize = 8;
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let (path, at_once) = (folder.path().join("key"), std::sync::Barrier::new(HOSTS));
            let start = || {
                at_once.wait();
                read_key(&path).unwrap()
            };
            let keys: Vec<_> = std::thread::scope(|scope| {
                let hosts: Vec<_> = (0..HOSTS).map(|_| scope.spawn(start)).collect();
                hosts.into_iter().map(|host| host.join().unwrap()).collect()
            });
            assert!(keys.iter().all(|key| *key == keys[0]));
        }
    }

    #[test]
    fn a_key_is_just_as_long_as_a_key() {
        for (length, fits) in [(LEN - 1, false), (LEN, true), (LEN + 1, false)] {
            let file = NamedTempFile::new().unwrap();
            fs::write(file.path(), vec![7; length]).unwrap();
            assert_eq!(read_key(file.path()).is_ok(), fits, "{length}");
        }
    }
}
