//! Attacks that are too long or too broken to be written down.

use crate::setup::Crash;

/// A component's first bytes.
const PREAMBLE: [u8; 8] = [0, b'a', b's', b'm', 0x0d, 0, 1, 0];
/// The section of a component within a component.
const COMPONENT: u8 = 4;

/// The file that goes by this name in the corpus.
pub fn make(name: &str) -> Vec<u8> {
    let good = || Crash::default().wasm();
    let with = |more_imports: String| Crash { more_imports: more_imports.leak(), ..Crash::default() }.wasm();
    let doing = |on_reconcile: String| Crash { on_reconcile: on_reconcile.leak(), ..Crash::default() }.wasm();
    match name {
        "empty" => Vec::new(),
        "script" => b"#!/bin/sh\necho hello\n".to_vec(),
        "truncated" => good()[..good().len() / 2].to_vec(),
        "flipped" => {
            let mut wasm = good();
            let at = wasm.windows(6).position(|window| window == b"memory").unwrap();
            wasm[at] = b'n';
            wasm
        }
        "nested-components" => nested(5_000),
        "many-functions" => with(format!("(core module $more {})", "(func)".repeat(200_000))),
        "many-exports" => {
            let exports = (0..100_000).map(|n| format!("(export \"e{n}\" (type $failure))"));
            with(exports.collect())
        }
        "many-types" => with("(type (list u8))".repeat(100_000)),
        "many-modules" => with("(core module)".repeat(1_000)),
        "nested-blocks" => doing(format!("{}{}", "(block ".repeat(20_000), ")".repeat(20_000))),
        "many-locals" => with(format!("(core module $more (func (local {})))", "i64 ".repeat(100_000))),
        "branch-table" => {
            doing(format!("(block $out (br_table {} $out (local.get $attempt)))", "$out ".repeat(100_000)))
        }
        "live-locals" => with(format!("(core module $more {})", live_locals(20_000, 5_000))),
        "long-import" => with(format!("(import \"{}:b/c@1.0.0\" (instance))", "a".repeat(90_000))),
        "demangling" => with(crashing(&cpp_name())),
        "long-name" => with(crashing(&"x".repeat(10 << 20))),
        "many-watches" => {
            let pods = r#""resource":{"group":"","version":"v1","resource":"pods"}"#;
            let watches: Vec<_> = (0..20_000).map(|n| format!(r#"{{{pods},"map":{{"label":"l{n}"}}}}"#)).collect();
            saying("watches", &watches)
        }
        "many-versions" => {
            let owned = |n: usize| format!(r#"{{"group":"apps","version":"v{n}","resource":"deployments"}}"#);
            saying("owns", &(0..20_000).map(owned).collect::<Vec<_>>())
        }
        "deep-manifest" => Crash { manifest: "[".repeat(30_000), ..Crash::default() }.wasm(),
        other => panic!("no bomb is called {other}"),
    }
}

/// A component whose manifest has this list in its controller.
fn saying(field: &str, items: &[String]) -> Vec<u8> {
    let things = r#""name":"any","for":{"group":"x.example.com","version":"v1","resource":"things"}"#;
    let controller = format!(r#"{{{things},"{field}":[{}]}}"#, items.join(","));
    let manifest = format!(r#"{{"manifestVersion":1,"name":"crash","version":"1","controllers":[{controller}]}}"#);
    // In pages, all that a manifest may have.
    Crash { manifest, memory: "33", ..Crash::default() }.wasm()
}

/// A function in a loop, so many of whose locals are set in so many branches and all needed after them: a compiler keeps account of each local at each branch.
fn live_locals(locals: usize, branches: usize) -> String {
    let declared = "i64 ".repeat(locals);
    let branch = |n: usize| format!("(if (local.get 0) (then (local.set {} (i64.const {n}))))", n % locals + 1);
    let branches: String = (0..branches).map(branch).collect();
    let sum = |n: usize| format!("(local.set 1 (i64.add (local.get 1) (local.get {n})))");
    let sums: String = (1..=locals).map(sum).collect();
    format!("(func (param i32) (local {declared}) (loop $again {branches} {sums} (br_if $again (local.get 0))))")
}

/// A module whose start function has this name, and crashes.
fn crashing(name: &str) -> String {
    format!("(core module $more (func ${name} unreachable) (start 0)) (core instance (instantiate $more))")
}

/// A function of C++ that takes a, b<a, …>, b<b<a, …>, …> and so on, ten of the one before each time.
fn cpp_name() -> String {
    let before = "123456789ABC".chars().map(|before| format!("S0_I{}E", format!("S{before}_").repeat(10)));
    format!("_Z1f1a1bI{}E{}", "S_".repeat(10), before.collect::<String>())
}

/// A component in a component, again and again.
fn nested(depth: usize) -> Vec<u8> {
    let mut inner = PREAMBLE.to_vec();
    for _ in 0..depth {
        let mut outer = PREAMBLE.to_vec();
        outer.push(COMPONENT);
        let mut length = inner.len();
        loop {
            let low = u8::try_from(length & 0x7f).unwrap();
            length >>= 7;
            outer.push(if length > 0 { low | 0x80 } else { low });
            if length == 0 {
                break;
            }
        }
        outer.append(&mut inner);
        inner = outer;
    }
    inner
}
