//! What is refused at first sight, and that nothing panics on the way.

use super::*;

const CAP: usize = 1 << 20;

fn look(wat: &str) -> Result<Outline, VerifyError> {
    outline(&wat::parse_str(wat).unwrap(), CAP)
}

/// A component that exports what an operator exports, with more around it.
fn operator(more: &str) -> String {
    format!(
        r#"(component {more} (core module $m (func (export "f"))) (core instance $i (instantiate $m))
           (func $f (canon lift (core func $i "f"))) (export "manifest" (func $f)) (export "reconcile" (func $f)))"#
    )
}

fn import(name: &str) -> String {
    operator(&format!(r#"(import "{name}" (instance))"#))
}

#[test]
fn what_is_no_component_is_named() {
    assert_eq!(outline(b"", CAP), Err(VerifyError::Empty));
    assert_eq!(outline(b"(component)", CAP), Err(VerifyError::NotWasm));
    assert_eq!(outline(b"\x7fELF\x02\x01\x01", CAP), Err(VerifyError::NotWasm));
    assert_eq!(outline(&[0; 100], CAP), Err(VerifyError::NotWasm));
    assert_eq!(look(r"(module)"), Err(VerifyError::CoreModule));
    assert_eq!(look("(component)"), Err(VerifyError::MissingExport("manifest")));
    let misnamed = |name: &str| operator("").replace(&format!("(export \"{name}\""), "(export \"another\"");
    for name in ["manifest", "reconcile"] {
        assert_eq!(look(&misnamed(name)), Err(VerifyError::MissingExport(name)));
    }
    let whole = wat::parse_str(operator("")).unwrap();
    assert_eq!(
        outline(&whole, whole.len() - 1),
        Err(VerifyError::TooLarge { size: whole.len(), cap: whole.len() - 1 })
    );
    assert!(outline(&whole, whole.len()).is_ok());
}

#[test]
fn what_is_damaged_is_said_in_one_line() {
    // A component within, of another magic number: the parser shows it in seven lines.
    let error = outline(b"\0asm\x0d\0\x01\0\x04\x08\x08\x01\x7f\x01\x0d\0\x01\0", CAP).unwrap_err().to_string();
    assert!(error.contains("bad magic number") && !error.contains('\n'), "{error:?}");
}

#[test]
fn a_file_that_is_still_copied_is_cut_short_not_damaged() {
    let whole = wat::parse_str(operator("")).unwrap();
    let mut ends_between_sections = 0;
    for len in 1..whole.len() {
        match outline(&whole[..len], CAP) {
            Err(VerifyError::Truncated(at)) => assert_eq!(at, len),
            // Between two sections it looks complete, and something is missing, or only the names that come last.
            Err(VerifyError::MissingExport(_)) | Ok(_) => ends_between_sections += 1,
            other => panic!("{len} of {}: {other:?}", whole.len()),
        }
    }
    assert!(ends_between_sections < 20, "{ends_between_sections}");
}

#[test]
fn no_flipped_byte_makes_it_panic() {
    let whole = wat::parse_str(import("operetta:operator/log@0.1.0")).unwrap();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let _ = outline(&bytes, CAP);
        }
    }
}

#[test]
fn a_name_of_a_function_has_a_length_and_other_sections_may_hold_what_they_like() {
    let named = |bytes: usize| operator(&format!(r#"(core module (func (@name "{}")))"#, "x".repeat(bytes)));
    assert!(look(&named(MAX_NAME)).is_ok());
    assert_eq!(look(&named(MAX_NAME + 1)), Err(VerifyError::LongName(MAX_NAME + 1)));
    let long = "x".repeat(MAX_NAME + 1);
    assert!(look(&operator(&format!(r#"(core module (@custom "notes" "{long}"))"#))).is_ok());
    // What the compiler does not read either.
    assert!(look(&operator(r#"(core module (@custom "name" "\ff\ff"))"#)).is_ok());
}

#[test]
fn the_contract_is_named_when_it_is_another() {
    for (name, wanted) in [
        ("operetta:operator/reader@0.2.0", "0.2.0"),
        ("operetta:operator/types@1.0.0", "1.0.0"),
        ("operetta:operator/anything@0.0.9", "0.0.9"),
    ] {
        assert_eq!(look(&import(name)), Err(VerifyError::Contract { wanted: wanted.into() }), "{name}");
    }
    let export = r#"(component (instance $i) (export "operetta:operator/reconciler@0.3.0" (instance $i)))"#;
    let error = look(export).unwrap_err().to_string();
    assert!(error.contains("0.3.0") && error.contains(CONTRACT), "{error}");
    // A patch release of the same contract only adds documentation.
    assert!(look(&import("operetta:operator/reader@0.1.7")).is_ok());
}

#[test]
fn an_import_is_known_or_named() {
    for name in [
        "operetta:operator/types@0.1.0",
        "operetta:operator/grpc@0.1.0",
        "wasi:clocks/monotonic-clock@0.3.0",
        "wasi:random/random@0.3.0",
        "wasi:filesystem/types@0.2.6",
        "wasi:io/poll@0.2.0",
    ] {
        assert_eq!(look(&import(name)).unwrap().wasi_p2, name.contains("@0.2"), "{name}");
    }
    for name in [
        "operetta:operator/shell@0.1.0",
        "wasi:http/outgoing-handler@0.2.6",
        "wasi:clocks/monotonic-clock@0.4.0",
        "wasi:random/random@0.1.0",
        "wasi:sockets/tcp@0.3.0",
        "wasi:filesystem/types@0.3.0",
        "other:thing/x@1.0.0",
        "operetta:operators/reader@0.1.0",
        "plain",
    ] {
        assert_eq!(look(&import(name)), Err(VerifyError::UnknownImport(name.into())), "{name}");
    }
    assert_eq!(look(&import("operetta:operator/log@0.1.0")).unwrap().imports, ["operetta:operator/log@0.1.0"]);
}

#[test]
fn imports_of_inner_components_are_not_those_of_the_outer() {
    let inner = operator(r#"(component (import "plain" (func)) (export "manifest" (func 0)))"#);
    assert_eq!(look(&inner).unwrap().imports, Vec::<String>::new());
}

#[test]
fn bombs_are_refused_before_anything_expensive() {
    let mut nested = wat::parse_str("(component)").unwrap();
    for depth in 1..=20_u64 {
        let mut outer = wat::parse_str("(component)").unwrap();
        outer.push(4);
        let mut len = nested.len();
        while len >= 0x80 {
            outer.push(u8::try_from(len & 0x7f).unwrap() | 0x80);
            len >>= 7;
        }
        outer.push(u8::try_from(len).unwrap());
        outer.extend(&nested);
        nested = outer;
        let expected = if depth <= MAX_DEPTH {
            VerifyError::MissingExport("manifest")
        } else {
            VerifyError::TooMany { what: "components within components", count: MAX_DEPTH + 1, cap: MAX_DEPTH }
        };
        assert_eq!(outline(&nested, CAP), Err(expected), "{depth}");
    }
    let functions = format!("(component (core module {}))", "(func)".repeat(100_001));
    let error = outline(&wat::parse_str(functions).unwrap(), 10 << 20).unwrap_err();
    assert!(matches!(error, VerifyError::TooMany { what: "functions", .. }), "{error}");
    let types = format!("(component {})", "(type u8)".repeat(100_001));
    let error = outline(&wat::parse_str(types).unwrap(), 10 << 20).unwrap_err();
    assert!(matches!(error, VerifyError::TooMany { what: "types, aliases and instances", .. }), "{error}");
    let modules = format!("(component {})", "(core module)".repeat(1_001));
    let error = outline(&wat::parse_str(modules).unwrap(), 10 << 20).unwrap_err();
    assert!(matches!(error, VerifyError::TooMany { what: "modules and components", .. }), "{error}");
}

/// The counts stand where sections begin, so that nothing of what should follow is needed here.
#[test]
fn items_of_all_sorts_are_counted_before_they_are_read() {
    let section = |id: u8, content: &[u8]| [&[id, u8::try_from(content.len()).unwrap()], content].concat();
    let component = |sections: &[u8]| [b"\0asm\x0d\0\x01\0", sections].concat();
    let (core_instances, core_types, instances, aliases, types, functions, imports, exports) =
        (2, 3, 5, 6, 7, 8, 10, 11);
    for id in [core_instances, core_types, instances, aliases, types, functions, imports, exports] {
        // 99,999 and 100,000, seven bits a byte; and the component that has them within is one item, too.
        let of = |count: [u8; 3]| outline(&component(&section(4, &component(&section(id, &count)))), CAP);
        assert_eq!(of([0x9f, 0x8d, 0x06]), Err(VerifyError::MissingExport("manifest")), "{id}");
        let (what, count) = ("types, aliases and instances", MAX_ITEMS + 1);
        assert_eq!(of([0xa0, 0x8d, 0x06]), Err(VerifyError::TooMany { what, count, cap: MAX_ITEMS }), "{id}");
    }
}
