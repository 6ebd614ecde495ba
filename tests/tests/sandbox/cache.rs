//! The cache of compiled code: what somebody else wrote is never executed, and what the host wrote is found again.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use operetta_sandbox::{LoadError, Sandbox, SandboxError, compile::CompileError};

use crate::setup::{Crash, Plugin, config};

fn entry(directory: &Path) -> PathBuf {
    let entries: Vec<_> = fs::read_dir(directory.join("cache")).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].clone()
}

/// Whether a load finds the entry, and that what it loads works.
async fn found(directory: &Path) -> bool {
    let plugin = Plugin::load(&Sandbox::new(config(directory)).unwrap(), Crash::default().wasm()).await.unwrap();
    plugin.call("any", None, 0).await.unwrap();
    plugin.component.cached()
}

#[tokio::test]
async fn an_entry_is_found_again_until_anything_about_it_is_changed() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    assert!(!found(directory).await);
    assert!(found(directory).await);
    let path = entry(directory);
    let good = fs::read(&path).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&directory.join("key")), mode(&directory.join("cache"))), (0o600, 0o600, 0o700));

    let len = good.len();
    for at in [0, 16, 100, len / 3, len / 2, len - 33, len - 32, len - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert!(!found(directory).await, "a flipped bit at {at} of {len} was executed");
        assert!(found(directory).await, "it was not compiled again");
    }
    for cut in [0, 5, 31, 32, len - 1] {
        fs::write(&path, &good[..cut]).unwrap();
        assert!(!found(directory).await, "{cut} bytes of {len} were executed");
    }
    fs::write(&path, [&good[..], b"more"].concat()).unwrap();
    assert!(!found(directory).await, "an entry with something behind it was executed");

    for mode in [0o620, 0o602, 0o666] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(!found(directory).await, "an entry of mode {mode:o} was executed");
    }
    fs::rename(&path, directory.join("elsewhere")).unwrap();
    symlink(directory.join("elsewhere"), &path).unwrap();
    assert!(!found(directory).await, "a link was followed");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    // Only root can give files away.
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(65_534), None).unwrap();
        assert!(!found(directory).await, "another user's entry was executed");
        assert!(found(directory).await);
    }
}

#[tokio::test]
async fn an_entry_stands_in_for_no_other_component_and_no_other_key() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    assert!(!found(directory).await);
    let path = entry(directory);
    let ours = fs::read(&path).unwrap();
    // Another component's entry, written by this very host, under our name.
    let other = Crash { on_reconcile: "unreachable", ..Crash::default() };
    fs::remove_file(&path).unwrap();
    Plugin::load(&Sandbox::new(config(directory)).unwrap(), other.wasm()).await.unwrap();
    fs::rename(entry(directory), &path).unwrap();
    assert!(!found(directory).await, "another component's code was executed");
    // Our own entry, from before the key was exchanged.
    fs::remove_file(directory.join("key")).unwrap();
    fs::write(&path, &ours).unwrap();
    assert!(!found(directory).await, "an entry under another key was executed");
    assert!(found(directory).await);
}

#[tokio::test]
async fn an_unsafe_folder_or_key_is_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        match Sandbox::new(config(directory.path())) {
            Err(SandboxError::Cache(error)) => error.to_string(),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{} of mode {mode:o} was taken", path.display()),
        }
    };
    drop(Sandbox::new(config(directory.path())).unwrap());
    let (cache, key) = (directory.path().join("cache"), directory.path().join("key"));
    let text = refused(&cache, 0o777);
    assert!(text.contains("chmod go-w"), "{text}");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o755)).unwrap();
    let text = refused(&key, 0o640);
    assert!(text.contains("delete it"), "{text}");
    fs::write(&key, b"short").unwrap();
    let text = refused(&key, 0o600);
    assert!(text.contains("does not hold a key"), "{text}");
    let mut inside = config(directory.path());
    inside.key_file = cache.join("key");
    let text = Sandbox::new(inside).err().unwrap().to_string();
    assert!(text.contains("within the cache"), "{text}");
}

#[tokio::test]
async fn what_nobody_uses_any_more_goes_and_the_rest_stays() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    assert!(!found(directory).await);
    let used = entry(directory);
    let age = |path: &Path, days: u64| {
        let then = SystemTime::now() - Duration::from_hours(days * 24);
        fs::File::options().write(true).create(true).truncate(false).open(path).unwrap().set_modified(then).unwrap();
    };
    let cache = directory.join("cache");
    for (name, days) in [
        ("old.cwasm", 31),
        ("recent.cwasm", 29),
        (".draft-old", 1),
        (".draft-new", 0),
        ("old.compiling", 2),
        ("recent.compiling", 0),
        ("notes.txt", 400),
    ] {
        age(&cache.join(name), days);
    }
    age(&used, 29);
    assert!(found(directory).await);
    assert!(fs::metadata(&used).unwrap().modified().unwrap().elapsed().unwrap() < Duration::from_mins(1));
    let mut left: Vec<_> =
        fs::read_dir(&cache).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    let used = used.file_name().unwrap().to_str().unwrap();
    assert_eq!(left, [".draft-new", used, "notes.txt", "recent.compiling", "recent.cwasm"]);
}

#[tokio::test]
async fn a_component_that_the_host_died_of_twice_is_not_compiled_until_somebody_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    assert!(!found(directory).await);
    let used = entry(directory);
    let mark = used.with_extension("compiling");
    fs::remove_file(&used).unwrap();
    // As a host leaves it that is killed.
    fs::write(&mark, "!").unwrap();
    assert!(!found(directory).await, "once may be an accident");
    assert_eq!(entry(directory), used, "what ended well is remembered no more");
    assert!(found(directory).await);

    fs::write(&mark, "!!").unwrap();
    assert!(found(directory).await, "what is compiled already runs");
    fs::remove_file(&used).unwrap();
    let sandbox = Sandbox::new(config(directory)).unwrap();
    let refused = sandbox.load(Crash::default().wasm()).await.err().unwrap();
    let text = refused.to_string();
    assert!(matches!(refused, LoadError::Compile(CompileError::Deadly { deaths: 2, .. })), "{text}");
    assert!(refused.may_pass() && !refused.is_the_hosts(), "a host that goes on tries it again when the mark is gone");
    assert!(text.contains("died 2 times") && text.contains(mark.to_str().unwrap()), "{text}");
    let other = Crash { on_reconcile: "unreachable", ..Crash::default() };
    Plugin::load(&sandbox, other.wasm()).await.unwrap();
    fs::remove_file(&mark).unwrap();
    Plugin::load(&sandbox, Crash::default().wasm()).await.unwrap();
}
