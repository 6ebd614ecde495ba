//! A real directory, with real events.

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
    let first = directory.try_next().unwrap();
    assert_eq!((first.name.as_str(), first.entry), ("a", present("1", "x")));
    assert_eq!(directory.try_next(), None);

    fs::write(path("b.wasm"), "2").unwrap();
    let (name, entry) = next(&mut directory).await;
    assert!(matches!(&entry, Entry::WithoutDocument { why, .. } if why.contains("has no b.yaml")), "{entry:?}");
    assert_eq!(name, "b");
    fs::write(path("b.yaml"), "y").unwrap();
    assert_eq!(next(&mut directory).await, ("b".into(), present("2", "y")));

    fs::write(path("c.tmp"), "33").unwrap();
    fs::rename(path("c.tmp"), path("a.wasm")).unwrap();
    assert_eq!(next(&mut directory).await, ("a".into(), present("33", "x")));

    fs::remove_file(path("b.yaml")).unwrap();
    let (_, entry) = next(&mut directory).await;
    assert!(matches!(entry, Entry::WithoutDocument { .. }));
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

#[tokio::test]
async fn a_document_that_comes_while_its_component_is_copied_waits_for_it() {
    use std::io::Write as _;
    let dir = tempfile::tempdir().unwrap();
    let mut directory = Directory::watch(dir.path()).unwrap();
    let mut file = fs::File::create(dir.path().join("a.wasm")).unwrap();
    file.write_all(b"half ").unwrap();
    fs::write(dir.path().join("a.yaml"), "x").unwrap();
    assert!(timeout(QUIET / 6, directory.next()).await.is_err(), "told before the component was whole");
    file.write_all(b"whole").unwrap();
    drop(file);
    assert_eq!(next(&mut directory).await, ("a".into(), present("half whole", "x")));
}

#[tokio::test]
async fn a_copy_that_stalls_is_told_as_it_is_and_again_when_it_is_whole() {
    use std::io::Write as _;
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), "x").unwrap();
    let mut directory = Directory::watch(dir.path()).unwrap();
    next(&mut directory).await;
    let mut file = fs::File::create(dir.path().join("a.wasm")).unwrap();
    file.write_all(b"half ").unwrap();
    assert_eq!(next(&mut directory).await, ("a".into(), present("half ", "x")));
    file.write_all(b"whole").unwrap();
    drop(file);
    assert_eq!(next(&mut directory).await, ("a".into(), present("half whole", "x")));
}

/// Whatever happens to `a` in `change` is not told: the next thing told is of another plugin.
async fn is_not_told(directory: &mut Directory, dir: &Path, change: impl FnOnce(&Path)) {
    change(dir);
    // The end of a file is told later than anything else, so that what is told in vain comes before it.
    let mark = dir.join("mark.yaml");
    fs::write(&mark, "x").unwrap();
    assert_eq!(next(directory).await.0, "mark");
    fs::remove_file(&mark).unwrap();
    assert_eq!(next(directory).await, ("mark".into(), Entry::Gone));
}

#[tokio::test]
async fn only_other_contents_are_told_and_those_always() {
    let dir = tempfile::tempdir().unwrap();
    let wasm = dir.path().join("a.wasm");
    fs::write(&wasm, "111").unwrap();
    fs::write(dir.path().join("a.yaml"), "x").unwrap();
    let mut directory = Directory::watch(dir.path()).unwrap();
    next(&mut directory).await;
    is_not_told(&mut directory, dir.path(), |_| fs::write(&wasm, "111").unwrap()).await;

    // Of the same length and with the same time: only the event says that something changed.
    let written = fs::metadata(&wasm).unwrap().modified().unwrap();
    let keep_time = |path: &Path| fs::File::options().write(true).open(path).unwrap().set_modified(written).unwrap();
    fs::write(&wasm, "222").unwrap();
    keep_time(&wasm);
    assert_eq!(next(&mut directory).await, ("a".into(), present("222", "x")));
    let other = dir.path().join("other");
    fs::write(&other, "333").unwrap();
    keep_time(&other);
    fs::rename(&other, &wasm).unwrap();
    assert_eq!(next(&mut directory).await, ("a".into(), present("333", "x")));
}

#[tokio::test]
async fn a_file_that_is_replaced_by_removing_it_first_is_never_told_as_missing() {
    let dir = tempfile::tempdir().unwrap();
    let wasm = dir.path().join("a.wasm");
    fs::write(&wasm, "1").unwrap();
    fs::write(dir.path().join("a.yaml"), "x").unwrap();
    let mut directory = Directory::watch(dir.path()).unwrap();
    next(&mut directory).await;
    fs::remove_file(&wasm).unwrap();
    assert!(timeout(GRACE / 6, directory.next()).await.is_err(), "told too early");
    fs::write(&wasm, "2").unwrap();
    assert_eq!(next(&mut directory).await, ("a".into(), present("2", "x")));
}

#[tokio::test]
async fn links_are_followed_as_in_a_mounted_config_map() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for version in ["..1", "..2"] {
        fs::create_dir(path(version)).unwrap();
        fs::write(path(version).join("a.wasm"), version).unwrap();
        fs::write(path(version).join("a.yaml"), "x").unwrap();
    }
    symlink("..1", path("..data")).unwrap();
    let mut directory = Directory::watch(dir.path()).unwrap();
    assert_eq!(directory.try_next(), None);
    symlink("..data/a.wasm", path("a.wasm")).unwrap();
    symlink("..data/a.yaml", path("a.yaml")).unwrap();
    let (name, mut entry) = next(&mut directory).await;
    if matches!(entry, Entry::WithoutDocument { .. }) {
        // Between the two links.
        entry = next(&mut directory).await.1;
    }
    assert_eq!((name.as_str(), entry), ("a", present("..1", "x")));
    symlink("..2", path("..data_tmp")).unwrap();
    fs::rename(path("..data_tmp"), path("..data")).unwrap();
    let told = timeout(LOOK / 2, next(&mut directory)).await.expect("told before the regular look");
    assert_eq!(told, ("a".into(), present("..2", "x")));
}

#[tokio::test]
async fn a_file_that_cannot_be_looked_at_is_not_taken_for_one_that_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (wasm, yaml) = (dir.path().join("a.wasm"), dir.path().join("a.yaml"));
    fs::write(&wasm, "1").unwrap();
    fs::write(&yaml, "x").unwrap();
    let mut directory = Directory::watch(dir.path()).unwrap();
    next(&mut directory).await;
    let turn_into_loop = |path: &Path| {
        fs::remove_file(path).unwrap();
        std::os::unix::fs::symlink(path.file_name().unwrap(), path).unwrap();
    };
    is_not_told(&mut directory, dir.path(), |_| {
        turn_into_loop(&wasm);
        turn_into_loop(&yaml);
    })
    .await;
}

#[tokio::test]
async fn a_component_that_is_too_long_is_not_read_and_named() {
    assert_eq!(MAX_WASM, operetta_sandbox::CompileLimits::default().component as u64);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), "x").unwrap();
    // It takes no room on the disk.
    fs::File::create(dir.path().join("a.wasm")).unwrap().set_len(MAX_WASM + 1).unwrap();
    let mut directory = Directory::watch(dir.path()).unwrap();
    let (name, entry) = next(&mut directory).await;
    let Entry::Incomplete { why, yaml } = &entry else { panic!("{entry:?}") };
    assert!(why.contains("a.wasm has 67108865 bytes and at most 67108864"), "{why}");
    assert_eq!((name.as_str(), yaml.as_deref()), ("a", Some("x")));
}

#[tokio::test]
async fn a_document_is_told_and_told_again_though_it_has_no_component() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, "first").unwrap();
    let mut directory = Directory::watch(dir.path()).unwrap();
    for text in ["first", "second"] {
        let (name, entry) = next(&mut directory).await;
        let Entry::Incomplete { why, yaml } = &entry else { panic!("{entry:?}") };
        assert!(why.contains("a.yaml has no a.wasm beside it"), "{why}");
        assert_eq!((name.as_str(), yaml.as_deref()), ("a", Some(text)));
        fs::write(&path, "second").unwrap();
    }
}

#[test]
fn a_file_is_read_to_its_bound_and_no_further_even_where_it_says_that_it_is_empty() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "12345").unwrap();
    assert_eq!(read(file.path(), 5).unwrap(), b"12345");
    assert!(read(file.path(), 4).unwrap_err().contains("has 5 bytes and at most 4"));
    // Of such a file the length is known at its end only.
    assert!(read(Path::new("/proc/self/status"), 10).unwrap_err().contains("has 11 bytes and at most 10"));
}

#[test]
fn of_a_component_only_the_digest_is_kept() {
    let of = |wasm: &str| present(wasm, "x").outline();
    let Entry::Present { wasm, yaml } = of(&"1".repeat(1_000)) else { panic!() };
    assert_eq!((wasm.len(), yaml.as_str()), (64, "x"));
    assert_ne!(of("1"), of("2"));
}
