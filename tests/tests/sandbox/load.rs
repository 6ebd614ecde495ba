//! Loading: what is refused, in which phase, with which words; and what compiling may cost.

use std::time::{Duration, Instant};

use bytes::Bytes;
use operetta_core::{manifest::Manifest, name::Digest};
use operetta_sandbox::{
    CompileLimits, LoadError, Sandbox, SandboxConfig,
    stamp::{glance, stamp},
};

use crate::setup::{Crash, Plugin, config, imports, sandbox};

const CAP: usize = 64 << 20;

async fn refused(wasm: Vec<u8>) -> (&'static str, String) {
    let error = sandbox().load(wasm).await.err().expect("it loads");
    let text = error.to_string();
    assert!(text.starts_with(error.phase()), "{text}");
    assert!(!text.contains('\n'), "one line: {text}");
    (error.phase(), text)
}

#[tokio::test]
async fn what_is_no_component_is_refused_before_it_is_compiled() {
    let good = Crash::default().wasm();
    for (wasm, words) in [
        (Vec::new(), "empty"),
        (b"#!/bin/sh".to_vec(), "not WebAssembly"),
        (wat::parse_str("(module)").unwrap(), "core WebAssembly module"),
        (wat::parse_str("(component)").unwrap(), "does not export `manifest`"),
        (good[..good.len() / 2].to_vec(), "cut short"),
        (
            Crash { version: "0.2.0", ..Crash::default() }.wasm(),
            "version 0.2.0 of operetta:operator and this host speaks 0.1.0",
        ),
    ] {
        let (phase, text) = refused(wasm).await;
        assert!(phase == "verify" && text.contains(words), "{text} lacks {words}");
    }
}

#[tokio::test]
async fn what_is_not_valid_is_refused_by_the_compiler() {
    let mut damaged = Crash::default().wasm();
    let at = damaged.windows(6).position(|w| w == b"memory").unwrap();
    damaged[at] = b'n';
    let (phase, text) = refused(damaged).await;
    assert!(phase == "compile" && text.contains("not valid"), "{text}");
}

#[tokio::test]
async fn more_memories_than_a_slot_has_are_refused_when_it_is_loaded_not_when_it_runs() {
    let more_imports = "(core module $more (memory 1) (memory 1)) (core instance (instantiate $more)) (core instance (instantiate $more))";
    let (phase, text) = refused(Crash { more_imports, ..Crash::default() }.wasm()).await;
    assert!(phase == "compile" && text.contains("memories"), "{text}");
}

#[tokio::test]
async fn exports_of_another_shape_do_not_fit() {
    let wat = r#"(component (core module $m (func (export "f"))) (core instance $i (instantiate $m))
        (func $f (canon lift (core func $i "f"))) (export "manifest" (func $f)) (export "reconcile" (func $f)))"#;
    let (phase, text) = refused(wat::parse_str(wat).unwrap()).await;
    assert!(phase == "describe" && text.contains("does not fit the contract"), "{text}");
}

#[tokio::test]
async fn a_manifest_that_misbehaves_is_told_apart_and_ends_in_time() {
    let crash = |on_manifest| Crash { on_manifest, ..Crash::default() }.wasm();
    let said = |manifest: &str| Crash { manifest: manifest.into(), ..Crash::default() }.wasm();
    let began = Instant::now();
    for (wasm, words) in [
        (crash("unreachable"), "`manifest` crashed: it panicked or aborted"),
        (crash("(loop $forever (br $forever))"), "used more than 1s of CPU time"),
        (Crash { start: "(loop $forever (br $forever))", ..Crash::default() }.wasm(), "used more than 1s of CPU time"),
        (crash("(drop (call $recurse (i32.const 0)))"), "exhausted its call stack"),
        (
            crash("(loop $more (br_if $more (i32.ge_s (memory.grow (i32.const 16)) (i32.const 0))))"),
            "needs more than 256 MiB",
        ),
        (Crash { memory: "20000", ..Crash::default() }.wasm(), "needs more than 256 MiB"),
        (crash("(return (i32.const -4))"), "crashed"),
        (said("garbage"), "the manifest is not valid"),
        (said(r#"{"manifestVersion":2}"#), "version 2"),
        (
            said(
                r#"{"manifestVersion":1,"name":"x","version":"1","controllers":[{"name":"a","for":{"group":"a/b","version":"v1","resource":"x"}}]}"#,
            ),
            "is no API group",
        ),
    ] {
        let (phase, text) = refused(wasm).await;
        assert!(phase == "describe" && text.contains(words), "{text} lacks {words}");
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_manifest_may_call_nothing_but_the_log_which_then_explains_it() {
    let ask = Crash {
        more_imports: r#"
            (import "operetta:operator/settings@0.1.0" (instance $settings (export "get" (func (param "name" string) (result (option string))))))
            (core func $get (canon lower (func $settings "get") (memory $memory) (realloc $realloc)))"#,
        more_core_imports: r#"(import "host" "get" (func $get (param i32 i32 i32)))"#,
        more_instances: r#"(with "host" (instance (export "get" (func $get))))"#,
        on_manifest: "(call $get (i32.const 0) (i32.const 0) (i32.const 16))",
        ..Crash::default()
    };
    let (phase, text) = refused(ask.wasm()).await;
    assert!(phase == "describe" && text.contains("settings@0.1.0#get"), "{text}");
    let explain = Crash {
        more_imports: r#"
            (import "operetta:operator/log@0.1.0" (instance $log
                (type $level' (enum "trace" "debug" "info" "warn" "error"))
                (export "level" (type $level (eq $level')))
                (export "write" (func (param "level" $level) (param "target" string) (param "message" string) (param "fields" (list (tuple string string)))))))
            (core func $log (canon lower (func $log "write") (memory $memory)))"#,
        more_core_imports: r#"(import "host" "log" (func $log (param i32 i32 i32 i32 i32 i32 i32)))"#,
        more_instances: r#"(with "host" (instance (export "log" (func $log))))"#,
        on_manifest: r"(i32.store (i32.const 16) (i32.const 0x73706f6f))
            (call $log (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 16) (i32.const 4) (i32.const 0) (i32.const 0)) unreachable",
        ..Crash::default()
    };
    let (phase, text) = refused(explain.wasm()).await;
    assert!(phase == "describe" && text.contains("it logged: oops"), "{text}");
}

#[tokio::test]
async fn a_component_says_what_it_is_and_what_it_could_ask_for() {
    let wasm = imports();
    let component = sandbox().load(wasm.clone()).await.unwrap();
    assert_eq!(component.manifest().name.as_str(), "imports");
    assert_eq!(component.size(), wasm.len());
    assert_eq!(component.digest(), operetta_core::name::Digest::of(&wasm));
    for name in ["reader", "writer", "events", "grpc", "log", "settings"] {
        let name = format!("operetta:operator/{name}@0.1.0");
        assert!(component.imports().contains(&name), "{:?} lacks {name}", component.imports());
    }
    let small = sandbox().load(Crash::default().wasm()).await.unwrap();
    assert_eq!(small.imports(), ["operetta:operator/types@0.1.0"]);
}

#[tokio::test]
async fn a_stamp_that_tells_the_truth_costs_no_second_compilation() {
    let directory = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new(config(directory.path())).unwrap();
    let bare: Bytes = Crash::default().wasm().into();
    let component = sandbox.load(bare.clone()).await.unwrap();
    assert!(!component.stamped() && !component.cached());
    let stamped = stamp(&bare, component.manifest(), CAP).unwrap();
    assert_eq!(glance(&stamped, CAP).unwrap().manifest.as_ref(), Some(component.manifest()));
    let again = sandbox.load(stamped.clone()).await.unwrap();
    assert!(again.stamped() && again.cached());
    assert_eq!((again.digest(), again.size()), (Digest::of(&stamped), stamped.len()), "of the file, not of the code");
}

#[tokio::test]
async fn a_stamp_that_lies_is_refused_with_what_it_lies_about() {
    type Lie = fn(&mut Manifest);
    let bare: Bytes = Crash::default().wasm().into();
    let truth = sandbox().load(bare.clone()).await.unwrap();
    let lies: [(Lie, &str); 3] = [
        (|m| m.version = "9".into(), "version"),
        (|m| m.requests.events = true, "requests"),
        (|m| m.controllers[0].resync_seconds = 11, "controllers"),
    ];
    for (lie, field) in lies {
        let mut manifest = truth.manifest().clone();
        lie(&mut manifest);
        let (phase, text) = refused(stamp(&bare, &manifest, CAP).unwrap()).await;
        assert!(phase == "describe" && text.contains(&format!("differ in `{field}`")), "{text}");
        assert!(text.contains("operetta build"), "{text}");
    }
}

#[tokio::test]
async fn a_compiler_has_limits_and_a_failing_one_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let with = |change: &dyn Fn(&mut SandboxConfig)| {
        let mut config = config(directory.path());
        change(&mut config);
        Sandbox::new(config).unwrap()
    };
    let try_load = async |sandbox: Sandbox| match sandbox.load(imports()).await {
        Err(LoadError::Compile(error)) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it compiled"),
    };
    let limits = |limits: CompileLimits| with(&move |config| config.compile_limits = limits.clone());
    let text = try_load(limits(CompileLimits { memory: 64 << 20, ..CompileLimits::default() })).await;
    assert!(text.contains("64 MiB of memory"), "{text}");
    let text = try_load(limits(CompileLimits { data: 8 << 20, ..CompileLimits::default() })).await;
    assert!(text.contains("8 MiB of memory") && text.contains("give the host more memory"), "{text}");
    let text = try_load(limits(CompileLimits { cpu: Duration::ZERO, ..CompileLimits::default() })).await;
    assert!(text.contains("of CPU time"), "{text}");
    let text = try_load(limits(CompileLimits { wall: Duration::from_millis(5), ..CompileLimits::default() })).await;
    assert!(text.contains("needs more than 5ms"), "{text}");
    let program =
        |line: &'static [&'static str]| with(&|config| config.compiler = line.iter().map(Into::into).collect());
    let text = try_load(program(&["/nowhere/compiler"])).await;
    assert!(text.contains("/nowhere/compiler") && text.contains("does not run"), "{text}");
    let text = try_load(program(&["/bin/sh", "-c", "echo oh no >&2; exit 3"])).await;
    assert!(text.contains("oh no"), "{text}");
    let text = try_load(program(&["/bin/sh", "-c", "kill -KILL $$"])).await;
    assert!(text.contains("the system killed the compiler") && text.contains("give the host more memory"), "{text}");
    // One that says nothing wrong and writes nothing right.
    let error = program(&["/bin/sh", "-c", "cat >/dev/null; echo no code"]).load(imports()).await.err().unwrap();
    assert!(error.phase() == "compile" && error.to_string().contains("does not fit into this host"), "{error}");
    assert_eq!(std::fs::read_dir(directory.path().join("cache")).unwrap().count(), 0, "something stayed in the cache");
    let limit = CompileLimits { component: 1_000, ..CompileLimits::default() };
    let error = limits(limit).load(imports()).await.err().unwrap();
    assert!(error.phase() == "verify" && error.to_string().contains("at most 1000"), "{error}");
}

#[tokio::test]
async fn two_loads_of_the_same_bytes_compile_once() {
    let directory = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new(config(directory.path())).unwrap();
    let wasm = Crash::default().wasm();
    let (a, b) = tokio::join!(Plugin::load(&sandbox, wasm.clone()), Plugin::load(&sandbox, wasm));
    assert!(a.is_ok() && b.is_ok());
    assert_eq!(std::fs::read_dir(directory.path().join("cache")).unwrap().count(), 1);
}
