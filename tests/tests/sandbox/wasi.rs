//! Components that come with a standard library and so import WASI 0.2: output becomes log lines, and there is no environment.

use operetta_core::reconcile::Outcome;

use crate::setup::{Crash, Plugin, sandbox};

/// Prints `hi` and more in pieces that are no lines, and traps if there is an environment, in manifest and reconcile.
fn guest() -> Crash {
    const PRINT: &str = r"
        (i32.store (i32.const 16) (i32.const 0x0a6968))
        (call $write (call $stdout) (i32.const 16) (i32.const 2) (i32.const 24))
        (call $write (call $stdout) (i32.const 18) (i32.const 1) (i32.const 24))
        (i64.store (i32.const 16) (i64.const 0x0a632e0a620a2e61))
        (call $write (call $stdout) (i32.const 16) (i32.const 4) (i32.const 24))
        (call $write (call $stdout) (i32.const 20) (i32.const 4) (i32.const 24))
        (memory.fill (i32.const 4096) (i32.const 0x78) (i32.const 4096))
        (call $write (call $stdout) (i32.const 4096) (i32.const 4096) (i32.const 24))
        (call $write (call $stdout) (i32.const 4096) (i32.const 4096) (i32.const 24))
        (call $write (call $stdout) (i32.const 4096) (i32.const 4096) (i32.const 24))
        (call $write (call $stdout) (i32.const 4096) (i32.const 4096) (i32.const 24))
        (call $write (call $stdout) (i32.const 16) (i32.const 2) (i32.const 24))
        (call $environment (i32.const 32))
        (if (i32.load (i32.const 36)) (then unreachable))";
    Crash {
        more_imports: r#"
            (import "wasi:io/error@0.2.0" (instance $error (export "error" (type (sub resource)))))
            (alias export $error "error" (type $error-type))
            (import "wasi:io/streams@0.2.0" (instance $streams
                (export "output-stream" (type $out (sub resource)))
                (alias outer 1 $error-type (type $error-outer))
                (export "error" (type $error (eq $error-outer)))
                (type $stream-error' (variant (case "last-operation-failed" (own $error)) (case "closed")))
                (export "stream-error" (type $stream-error (eq $stream-error')))
                (export "[method]output-stream.blocking-write-and-flush"
                    (func (param "self" (borrow $out)) (param "contents" (list u8)) (result (result (error $stream-error)))))))
            (alias export $streams "output-stream" (type $out-type))
            (import "wasi:cli/stdout@0.2.0" (instance $stdout
                (alias outer 1 $out-type (type $out-outer))
                (export "output-stream" (type $out (eq $out-outer)))
                (export "get-stdout" (func (result (own $out))))))
            (import "wasi:cli/environment@0.2.0" (instance $environment
                (export "get-environment" (func (result (list (tuple string string)))))))
            (core func $stdout (canon lower (func $stdout "get-stdout")))
            (core func $write (canon lower (func $streams "[method]output-stream.blocking-write-and-flush") (memory $memory)))
            (core func $environment (canon lower (func $environment "get-environment") (memory $memory) (realloc $realloc)))"#,
        more_core_imports: r#"
            (import "wasi" "stdout" (func $stdout (result i32)))
            (import "wasi" "write" (func $write (param i32 i32 i32 i32)))
            (import "wasi" "environment" (func $environment (param i32)))"#,
        more_instances: r#"(with "wasi" (instance
            (export "stdout" (func $stdout)) (export "write" (func $write)) (export "environment" (func $environment))))"#,
        on_manifest: PRINT,
        on_reconcile: PRINT,
        ..Crash::default()
    }
}

#[tokio::test]
async fn what_it_prints_is_logged_by_lines_and_nothing_of_the_machine_is_there() {
    let plugin = Plugin::load(&sandbox(), guest().wasm()).await.unwrap();
    assert_eq!(plugin.world.lines(), Vec::<String>::new(), "a description may not talk to anybody");
    assert_eq!(plugin.call("any", None, 0).await, Ok(Outcome::AwaitChange));
    let lines = plugin.world.lines();
    // What is too long for a line ends there, and what no line ends is said at the end.
    assert!(lines[4].starts_with("Info stdout: xxxx"), "{lines:?}");
    let told: Vec<_> = [0, 1, 2, 3, 5].map(|at| lines[at].as_str()).to_vec();
    let expected = ["hi", "a.", "b", ".c", "a."].map(|line| format!("Info stdout: {line} []"));
    assert_eq!((told, lines.len()), (expected.iter().map(String::as_str).collect(), 6));
}
