//! Files and objects of one name.

use std::fs;

use tokio::time::{Duration, timeout};

use super::*;

struct Stage {
    directory: tempfile::TempDir,
    objects: mpsc::UnboundedSender<PluginChange>,
    catalog: Catalog,
}

impl Stage {
    fn new(files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let (objects, changes) = mpsc::unbounded_channel();
        let catalog = Catalog::new(Some(Directory::watch(directory.path()).unwrap()), changes);
        Self { directory, objects, catalog }
    }

    fn tell(&self, change: PluginChange) {
        self.objects.send(change).unwrap();
    }

    async fn next(&mut self) -> News {
        timeout(Duration::from_secs(30), self.catalog.next()).await.expect("something is told")
    }

    async fn found(&mut self) -> (String, Entry) {
        match self.next().await {
            News::Found(name, entry) => (name.to_string(), entry),
            News::AllTold => panic!("something should be found"),
        }
    }
}

fn plugin(name: &str, spec: Value, metadata: &[(&str, Value)]) -> PluginChange {
    let mut object = json!({
        "apiVersion": "operetta.dev/v1alpha1", "kind": "Plugin",
        "metadata": {"name": name, "uid": "u", "generation": 3}, "spec": spec, "status": {"version": "1"},
    });
    for (field, value) in metadata {
        object["metadata"][field] = value.clone();
    }
    PluginChange::Is(object)
}

/// The component, whether the document is the file's, and whether it shadows one.
fn shown(entry: &Entry) -> (String, bool, bool) {
    let Entry::Present { wasm, object, .. } = entry else { panic!("{entry:?}") };
    let wasm = match wasm {
        Wasm::File { bytes, .. } => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    };
    (wasm, object.is_none(), object.as_ref().is_some_and(|object| object.shadows))
}

#[tokio::test]
async fn nothing_is_told_before_the_cluster_is_known_and_then_an_object_goes_before_the_document() {
    let mut stage = Stage::new(&[("a.wasm", "A"), ("a.yaml", "x"), ("b.wasm", "B"), ("c.wasm", "C")]);
    assert!(timeout(Duration::from_millis(200), stage.catalog.next()).await.is_err());
    stage.tell(plugin("a", json!({}), &[]));
    stage.tell(plugin("other", json!({"source": {"file": "b.wasm"}}), &[]));
    stage.tell(PluginChange::Synced);
    let (name, entry) = stage.found().await;
    assert_eq!((name.as_str(), shown(&entry)), ("a", ("A".into(), false, true)));
    let (name, entry) = stage.found().await;
    assert_eq!(name, "c");
    assert!(
        matches!(&entry, Entry::WithoutDocument(why) if why.contains("has no c.yaml")),
        "b.wasm is in use; {entry:?}"
    );
    let (name, entry) = stage.found().await;
    assert_eq!((name.as_str(), shown(&entry)), ("other", ("B".into(), false, false)));
    assert_eq!(stage.next().await, News::AllTold);

    // What is written into the status is no change.
    stage.tell(plugin("a", json!({}), &[("resourceVersion", "7".into())]));
    stage.tell(PluginChange::Gone("a".into()));
    let (name, entry) = stage.found().await;
    assert_eq!(
        (name.as_str(), shown(&entry)),
        ("a", ("A".into(), true, false)),
        "the document in the directory holds again"
    );
    fs::write(stage.directory.path().join("b.wasm"), "B2").unwrap();
    assert_eq!(shown(&stage.found().await.1).0, "B2");
    stage.tell(PluginChange::Gone("other".into()));
    let mut told = BTreeMap::from([stage.found().await, stage.found().await]);
    assert_eq!(told.remove("other"), Some(Entry::Gone));
    assert!(matches!(told.remove("b"), Some(Entry::WithoutDocument(_))));
}

#[tokio::test]
async fn an_object_that_is_deleted_stays_while_the_host_keeps_it() {
    let mut stage = Stage::new(&[]);
    let kept = ("finalizers", json!([FINALIZER, "other"]));
    let deleted = ("deletionTimestamp", json!("2024-01-01T00:00:00Z"));
    stage.tell(plugin(
        "a",
        json!({"source": {"configMap": {"name": "a", "chunks": 2}}}),
        &[kept.clone(), deleted.clone()],
    ));
    stage.tell(plugin("b", json!({}), std::slice::from_ref(&deleted)));
    stage.tell(PluginChange::Synced);
    let (name, entry) = stage.found().await;
    let Entry::Present { wasm: Wasm::ConfigMap(source), object: Some(object), .. } = entry else { panic!("{entry:?}") };
    assert_eq!((name.as_str(), source.chunks, object.generation, object.deleting), ("a", Some(2), 3, true));
    assert_eq!(stage.next().await, News::AllTold);
    stage.tell(plugin("a", json!({}), &[deleted]));
    assert_eq!(stage.found().await, ("a".into(), Entry::Gone));
}

#[tokio::test]
async fn a_file_that_is_not_there_is_named_with_what_to_do() {
    let (objects, changes) = mpsc::unbounded_channel();
    let mut catalog = Catalog::new(None, changes);
    objects.send(plugin("a", json!({}), &[])).unwrap();
    objects.send(PluginChange::Synced).unwrap();
    let News::Found(_, Entry::Present { wasm: Wasm::Missing(why), .. }) = catalog.next().await else { panic!() };
    assert!(why.contains("this host has no plugin directory"), "{why}");

    let mut stage = Stage::new(&[]);
    stage.tell(plugin("a", json!({"source": {"file": "b.wasm"}}), &[]));
    stage.tell(PluginChange::Synced);
    let (_, Entry::Present { wasm: Wasm::Missing(why), .. }) = stage.found().await else { panic!() };
    assert!(why.contains("no file b.wasm"), "{why}");
}

#[tokio::test]
async fn a_document_without_its_component_is_told_all_the_same() {
    let mut stage = Stage::new(&[("a.yaml", "x"), ("b.yaml", "x")]);
    stage.tell(plugin("b", json!({}), &[]));
    stage.tell(PluginChange::Synced);
    // In which order they are found, nobody knows.
    let mut found = std::collections::BTreeMap::new();
    while !(found.contains_key("a") && found.get("b").is_some_and(|entry| shown(entry).2)) {
        let (name, entry) = stage.found().await;
        found.insert(name, entry);
    }
    let Some(Entry::Present { wasm: Wasm::Missing(why), yaml, object: None }) = found.remove("a") else {
        panic!("{found:?}")
    };
    assert_eq!(yaml, "x");
    assert!(why.contains("a.yaml has no a.wasm beside it"), "{why}");
}
