//! What an author types without a cluster: `build`, `inspect`, `validate`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use operetta_tests::variant::{hostile_make, overwrite};
use serde_json::Value;
use tempfile::TempDir;

use crate::{cli::operetta, shared::built};

/// A folder with a copy of a component and its document.
struct Folder {
    home: TempDir,
}

impl Folder {
    fn with(names: &[&str]) -> Self {
        let folder = Self { home: tempfile::tempdir().unwrap() };
        for name in names {
            let component = built().component(name).unwrap();
            fs::copy(&component.wasm, folder.file(&format!("{name}.wasm"))).unwrap();
            fs::copy(&component.document, folder.file(&format!("{name}.yaml"))).unwrap();
        }
        folder
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn path(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        operetta(self.home.path(), arguments)
    }

    /// What a command that succeeds says.
    fn said(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.said(&[arguments, &["-o", "json"]].concat())).unwrap()
    }

    fn edit(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.file(name)).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(self.file(name), text.replace(from, to)).unwrap();
    }
}

fn bare(wasm: &Path) -> Vec<u8> {
    let wasm = fs::read(wasm).unwrap();
    let cap = wasm.len();
    operetta_sandbox::stamp::bare(&wasm.into(), cap).unwrap().to_vec()
}

#[test]
fn the_shipped_components_together_are_small() {
    let sizes: Vec<_> = operetta_tests::components::PLUGINS
        .map(|name| (name, fs::metadata(&built().component(name).unwrap().wasm).unwrap().len()))
        .to_vec();
    let sum: u64 = sizes.iter().map(|(_, size)| size).sum();
    assert!(sum < 6_000_000, "{sum} bytes: {sizes:?}");
}

#[test]
fn what_a_component_says_of_itself_is_read_without_running_it() {
    let folder = Folder::with(&["memcached"]);
    let wasm = folder.path("memcached.wasm");
    let report = folder.json(&["inspect", &wasm]);
    assert_eq!(
        (&report["name"], &report["version"], &report["readFrom"]),
        (&"memcached".into(), &"0.1.0".into(), &"section".into())
    );
    assert_eq!(report["crds"][0]["name"], "memcacheds.cache.example.com");
    assert_eq!(report["controllers"][0]["finalizers"][0], "cache.example.com/finalizer");
    assert!(!folder.file("state").exists(), "it needs no compiler and no cache");
    let text = folder.said(&["inspect", &wasm]);
    for says in [
        "memcached 0.1.0",
        "the component was not run",
        "may create, update and patch Deployments in any namespace: decides which images and commands run there",
        "reads Pods in any namespace",
        "Granted\n  all that it asks for",
    ] {
        assert!(text.contains(says), "{text} lacks {says:?}");
    }
    // The same component without its section is asked.
    fs::write(&wasm, bare(Path::new(&wasm))).unwrap();
    assert_eq!(folder.json(&["inspect", &wasm])["readFrom"], "compiled");
    let asked = folder.json(&["inspect", &wasm]);
    assert_eq!(asked["readFrom"], "cached");
    assert_eq!((&asked["asks"], &asked["controllers"]), (&report["asks"], &report["controllers"]));
}

#[test]
fn what_a_document_withholds_is_said_and_is_no_failure_until_a_controller_needs_it() {
    let folder = Folder::with(&["memcached"]);
    let wasm = folder.path("memcached.wasm");
    folder.edit("memcached.yaml", "    - pods\n", "    - services\n");
    let report = folder.json(&["inspect", &wasm]);
    assert_eq!(report["granted"]["missing"], serde_json::json!(["get, list, watch pods"]));
    assert_eq!(report["granted"]["beyond"], serde_json::json!(["get, list, watch services"]));
    let checks = folder.said(&["validate", &wasm]);
    assert!(checks.contains("note") && checks.contains("asked for and not granted: get, list, watch pods"), "{checks}");
    assert!(!checks.contains("FAILED"), "{checks}");

    folder.edit("memcached.yaml", "    - deployments\n", "    - jobs\n");
    let output = folder.run(&["validate", &wasm]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("FAILED") && said.contains("list deployments of group apps"), "{said}");
}

#[test]
fn a_component_is_stamped_and_a_document_that_somebody_edited_stays() {
    let folder = Folder::with(&["immortal-container"]);
    fs::write(folder.file("some.wasm"), bare(&folder.file("immortal-container.wasm"))).unwrap();
    let out = folder.path("out");
    let said = folder.said(&["build", &folder.path("some.wasm"), "--out", &out]);
    assert!(said.contains("out/immortal-container.wasm  immortal-container 0.1.0"), "{said}");
    let (wasm, yaml) = (folder.path("out/immortal-container.wasm"), "out/immortal-container.yaml");
    assert_eq!(fs::read(&wasm).unwrap(), fs::read(folder.file("immortal-container.wasm")).unwrap());
    assert!(folder.said(&["validate", &wasm]).contains("its section says the same"));

    folder.edit(yaml, "- delete", "- deletecollection");
    let said = folder.said(&["build", &folder.path("some.wasm"), "--out", &out]);
    assert!(said.contains("was edited and stays as it is"), "{said}");
    assert!(fs::read_to_string(folder.file(yaml)).unwrap().contains("deletecollection"));
    // Again into itself, under another name: the file's.
    let named = folder.path("out/other.wasm");
    fs::rename(&wasm, &named).unwrap();
    folder.said(&["build", &named]);
    assert!(fs::read_to_string(folder.file("out/other.yaml")).unwrap().contains("name: other"));
    for (arguments, code) in [(["build", "/no/such"], 2), (["build", yaml], 2), (["build", "/no/such.wasm"], 2)] {
        assert_eq!(folder.run(&arguments).status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn each_thing_that_is_wrong_is_a_failed_check() {
    let folder = Folder::with(&["hostile", "memcached"]);
    let hostile = fs::read(folder.file("hostile.wasm")).unwrap();
    let whole = fs::read(folder.file("memcached.wasm")).unwrap();
    // What a component says of itself, otherwise in one of both places.
    let lies = overwrite(&whole, "\"cache.example.com/finalizer\"", "\"other.example.com/finalizer\"").unwrap();
    let cases: &[(&str, Vec<u8>, &str, &str)] = &[
        ("text", b"#!/bin/sh".to_vec(), "verify", "not WebAssembly"),
        ("short", whole[..whole.len() / 2].to_vec(), "verify", "cut short"),
        ("panics", hostile_make(&hostile, "panic").unwrap(), "describe", "crashed"),
        ("lies", lies, "describe", "differ in `controllers`"),
    ];
    for (name, wasm, check, says) in cases {
        let file = folder.path(&format!("{name}.wasm"));
        fs::write(&file, wasm).unwrap();
        let output = folder.run(&["validate", &file, "-o", "json"]);
        assert_eq!(output.status.code(), Some(3), "{name}");
        let checks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let failed: Vec<_> = checks.iter().filter(|check| check["verdict"] == "failed").collect();
        assert!(failed.len() == 1 && failed[0]["check"] == *check, "{name}: {checks:?}");
        assert!(failed[0]["message"].as_str().unwrap().contains(says), "{name}: {failed:?}");
    }
    // The document's own faults, and those that only show beside another file.
    fs::copy(folder.file("memcached.wasm"), folder.file("twin.wasm")).unwrap();
    fs::write(folder.file("twin.yaml"), "kind: Pod").unwrap();
    let (one, twin) = (folder.path("memcached.wasm"), folder.path("twin.wasm"));
    let said = String::from_utf8(folder.run(&["validate", &one, &twin]).stdout).unwrap();
    assert!(said.contains("twin.yaml: the document is of apiVersion"), "{said}");
    assert!(said.contains("memcacheds.cache.example.com is reconciled by") && said.contains("leave one out"), "{said}");
    let zeros = format!("spec:\n  digest: sha256:{}", "0".repeat(64));
    folder.edit("memcached.yaml", "spec:", &zeros);
    let said = String::from_utf8(folder.run(&["validate", &one]).stdout).unwrap();
    assert!(said.contains("digest: spec.digest is sha256:000") && said.contains("FAILED"), "{said}");
}
