//! That a stamp is found, replaced and taken off again, and that one that is made to deceive is not.

use super::*;

const CAP: usize = 8 << 20;

fn component() -> Bytes {
    let wat = r#"(component (core module $m (func (export "f"))) (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f"))) (export "manifest" (func $f)) (export "reconcile" (func $f)))"#;
    wat::parse_str(wat).unwrap().into()
}

fn manifest(version: &str) -> Manifest {
    Manifest::parse(&format!(
        r#"{{"manifestVersion":1,"name":"demo","version":"{version}","crds":[{{"b":1,"a":null}}],"requests":{{"events":true,
            "rules":[{{"apiGroups":[""],"resources":["pods"],"verbs":["get"],"namespaces":["a"]}}],"settings":[{{"name":"x"}}]}},
            "controllers":[{{"name":"a","for":{{"group":"x.example.com","version":"v1","resource":"things"}},"predicates":["labels"],
            "watches":[{{"resource":{{"group":"","version":"v1","resource":"secrets"}},"map":{{"reference":"spec.secretName"}}}}]}}]}}"#
    ))
    .unwrap()
}

/// A custom section, with a length written in as many bytes as wanted.
fn section(name: &str, content: &[u8], padding: usize) -> Vec<u8> {
    let body = [&length(name.len()), name.as_bytes(), content].concat();
    let mut size = length(body.len());
    if padding > 0 {
        *size.last_mut().unwrap() |= 0x80;
        size.extend(vec![0x80; padding - 1]);
        size.push(0);
    }
    [&[0], &size[..], &body].concat()
}

fn code(wasm: &[u8]) -> Bytes {
    verify::outline(wasm, CAP).unwrap().code(&wasm.to_vec().into())
}

#[test]
fn a_stamp_is_read_without_running_anything_and_is_no_part_of_the_code() {
    let bare = component();
    assert_eq!(glance(&bare, CAP).unwrap().manifest, None);
    let stamped = stamp(&bare, &manifest("1"), CAP).unwrap();
    let seen = glance(&stamped, CAP).unwrap();
    assert_eq!(seen.manifest, Some(manifest("1")));
    assert_eq!((seen.size, seen.digest), (stamped.len(), Digest::of(&stamped)));
    assert_eq!(code(&stamped), bare);
    assert_eq!(code(&bare), bare);
}

#[test]
fn a_second_stamp_takes_the_place_of_the_first() {
    let once = stamp(&component(), &manifest("1"), CAP).unwrap();
    let twice = stamp(&once.into(), &manifest("2"), CAP).unwrap();
    assert_eq!(glance(&twice, CAP).unwrap().manifest, Some(manifest("2")));
    assert_eq!(code(&twice), component());
}

#[test]
fn a_stamp_is_found_wherever_it_stands() {
    const HEADER: usize = 8;
    let bare = component();
    let (header, rest) = bare.split_at(HEADER);
    let one = section(SECTION, manifest("1").render().unwrap().as_bytes(), 0);
    for stamped in [[header, &one, rest].concat(), [header, rest, &one].concat()] {
        assert_eq!(glance(&stamped, CAP).unwrap().manifest, Some(manifest("1")));
        assert_eq!(code(&stamped), bare);
    }
}

#[test]
fn two_stamps_or_one_that_is_too_large_are_refused_at_first_sight() {
    let text = manifest("1").render().unwrap();
    let one = section(SECTION, text.as_bytes(), 0);
    let two = [&component()[..], &one, &one].concat();
    assert!(matches!(glance(&two, CAP), Err(LoadError::Verify(VerifyError::TwoManifests))));
    let large = [&component()[..], &section(SECTION, &vec![b' '; (2 << 20) + 1], 0)].concat();
    assert!(matches!(glance(&large, CAP), Err(LoadError::Verify(VerifyError::LargeManifest(_)))));
    let blank = [&component()[..], &section(SECTION, &vec![b' '; 2 << 20], 0)].concat();
    assert!(
        matches!(glance(&blank, CAP), Err(LoadError::Describe(_))),
        "it is just as large as it may be, and no manifest"
    );
    let whole = stamp(&component(), &manifest("1"), CAP).unwrap().len();
    assert!(stamp(&component(), &manifest("1"), whole).is_ok());
    let error = stamp(&component(), &manifest("1"), whole - 1).unwrap_err();
    assert!(matches!(error, LoadError::Verify(VerifyError::TooLarge { size, .. }) if size == whole), "{error}");
}

#[test]
fn a_stamp_that_is_no_manifest_is_named() {
    for (content, says) in [(&b"\xff"[..], "UTF-8"), (b"{", "not valid"), (br#"{"manifestVersion":9}"#, "version 9")] {
        let wasm = [&component()[..], &section(SECTION, content, 0)].concat();
        let error = glance(&wasm, CAP).unwrap_err();
        assert!(error.phase() == "describe" && error.to_string().contains(says), "{error}");
        assert!(error.to_string().contains("operetta build"), "{error}");
    }
}

#[test]
fn a_stamp_that_names_more_than_a_plugin_may_is_refused_at_first_sight() {
    let mut many = manifest("1");
    let watch = many.controllers[0].watches[0].clone();
    many.controllers[0].watches = vec![watch; 129];
    let wasm = stamp(&component(), &many, CAP).unwrap();
    let error = glance(&wasm, CAP).unwrap_err();
    assert!(error.phase() == "describe" && error.to_string().contains("it has 129 watches"), "{error}");
}

/// A header may be longer than it must be. Were only a part of it taken off, what is left could be read as another component.
#[test]
fn a_stamp_is_taken_off_with_all_of_its_header() {
    let text = manifest("1").render().unwrap();
    let other = section("other", b"x", 2);
    for padding in [0, 1, 2] {
        let wasm = [&component()[..], &other, &section(SECTION, text.as_bytes(), padding), &other].concat();
        assert_eq!(code(&wasm), [&component()[..], &other, &other].concat(), "{padding}");
        assert_eq!(glance(&wasm, CAP).unwrap().manifest, Some(manifest("1")), "{padding}");
    }
}

/// What lies in a module within says nothing of the component.
#[test]
fn a_section_of_a_part_is_no_stamp() {
    let text = manifest("1").render().unwrap();
    let module = [&b"\0asm\x01\0\0\0"[..], &section(SECTION, text.as_bytes(), 0)].concat();
    let within = [&[1][..], &length(module.len()), &module].concat();
    let wasm = [&component()[..], &within].concat();
    assert_eq!(glance(&wasm, CAP).unwrap().manifest, None);
    assert_eq!(code(&wasm), wasm);
}
