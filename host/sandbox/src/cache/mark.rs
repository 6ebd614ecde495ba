//! Marks of components that are being compiled, so that one that takes the whole host with it is not compiled again and again.
//!
//! Where a control group holds the host and its compiler, and is ended as one (as Kubernetes has it), a compiler without memory is the end of both, and whatever the host remembers of it must lie
//! on disk. A mark is a file beside the entries, which is locked as long as its host lives and goes when the compiler has ended, however it did. **One that is there and not locked is of a host that
//! died**; its length says how many did. Once may be an accident: hosts are killed for many reasons. A host that ends on purpose forgets its marks before it does, and what is older than
//! [`MARK_AGE`] says nothing, whether anybody has swept it or not.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::MARK_AGE;

/// Deaths after which it is not tried again.
const ENOUGH: u64 = 2;

/// The marks of this process: one for each sandbox, at most.
static HELD: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn held() -> MutexGuard<'static, Vec<PathBuf>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Deletes the marks of this process, which is about to end whatever it compiles: that is not a death of it.
pub fn forget_marks() {
    forget(|_| true);
}

fn forget(which: impl Fn(&Path) -> bool) {
    held().retain(|path| {
        let goes = which(path);
        if goes {
            let _ = fs::remove_file(path);
        }
        !goes
    });
}

/// As long as this lives, its component is being compiled.
#[derive(Debug)]
pub(crate) struct Mark {
    /// None where another host that lives marks it, or nothing can be written.
    locked: Option<(File, PathBuf)>,
}

/// Hosts died while they compiled a component.
#[derive(Debug)]
pub(crate) struct Dead {
    /// How many.
    pub deaths: u64,
    /// What says so.
    pub mark: PathBuf,
}

impl Mark {
    /// Marks what `path` stands for.
    pub(super) fn set(path: &Path) -> Result<Self, Dead> {
        match lock(path) {
            Ok(Some((_, deaths))) if deaths >= ENOUGH => Err(Dead { deaths, mark: path.to_owned() }),
            Ok(Some((file, deaths))) => {
                if deaths > 0 {
                    tracing::warn!(path = %path.display(), "the host died when it compiled this component the last time; it is tried once more");
                }
                held().push(path.to_owned());
                Ok(Self { locked: Some((file, path.to_owned())) })
            }
            Ok(None) => Ok(Self { locked: None }),
            Err(error) => {
                // A full disk, or a file system without locks: compiling is possible all the same.
                tracing::warn!(path = %path.display(), %error, "it cannot be remembered what is being compiled, should the host die of it");
                Ok(Self { locked: None })
            }
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some((file, path)) = &self.locked {
            held().retain(|held| held != path);
            // Whoever has it open already finds that nobody died.
            let _ = file.set_len(0);
            let _ = fs::remove_file(path);
        }
    }
}

/// The mark, locked and with one more byte unless that would be too many, and how many hosts died before; none where another host that lives has it.
fn lock(path: &Path) -> io::Result<Option<(File, u64)>> {
    let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    if file.metadata()?.modified()?.elapsed().is_ok_and(|age| age > MARK_AGE) {
        file.set_len(0)?;
    }
    let deaths = file.seek(SeekFrom::End(0))?;
    if deaths < ENOUGH {
        file.write_all(b"!")?;
    }
    Ok(Some((file, deaths)))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A host that dies: nothing of it is left but the file, whose lock goes with it.
    fn die(mut mark: Mark) {
        drop(mark.locked.take());
    }

    #[test]
    fn a_component_that_a_host_died_of_twice_is_left_alone_until_the_mark_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        die(Mark::set(&path).unwrap());
        die(Mark::set(&path).unwrap());
        for _ in 0..3 {
            let dead = Mark::set(&path).unwrap_err();
            assert_eq!((dead.deaths, &dead.mark), (2, &path));
        }
        fs::remove_file(&path).unwrap();
        drop(Mark::set(&path).unwrap());
        assert!(!path.exists(), "what ended leaves nothing");
    }

    #[test]
    fn one_that_ends_after_an_accident_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        for _ in 0..5 {
            die(Mark::set(&path).unwrap());
            drop(Mark::set(&path).unwrap());
            assert!(!path.exists());
        }
    }

    #[test]
    fn deaths_of_long_ago_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        let age = |seconds: u64| {
            fs::write(&path, "!!").unwrap();
            let at = SystemTime::now() - MARK_AGE + Duration::from_mins(1) - Duration::from_secs(seconds);
            File::options().write(true).open(&path).unwrap().set_modified(at).unwrap();
        };
        age(0);
        assert_eq!(Mark::set(&path).unwrap_err().deaths, 2);
        age(120);
        die(Mark::set(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "!", "that is the first one since");
    }

    #[test]
    fn a_host_that_ends_on_purpose_leaves_no_mark() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        let mark = Mark::set(&path).unwrap();
        assert!(held().contains(&path));
        // Those of other tests are theirs.
        forget(|held| held == path);
        assert!(!path.exists());
        die(mark);
        drop(Mark::set(&path).unwrap());
        assert!(!held().contains(&path), "what ended is none of them");
    }

    #[test]
    fn what_another_host_compiles_that_lives_is_no_death() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        let first = Mark::set(&path).unwrap();
        for _ in 0..5 {
            let second = Mark::set(&path).unwrap();
            assert!(second.locked.is_none());
            drop(second);
        }
        assert!(path.exists(), "it is the first one's");
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn where_nothing_can_be_written_it_is_compiled_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Mark::set(&folder.path().join("nowhere").join("mark")).unwrap().locked.is_none());
        let (link, secret) = (folder.path().join("link"), folder.path().join("secret"));
        fs::write(&secret, "x").unwrap();
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        assert!(Mark::set(&link).unwrap().locked.is_none(), "a link is not followed");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "x");
    }
}
