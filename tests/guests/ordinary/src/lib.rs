//! A guest for `wasm32-wasip2` that knows nothing of sandboxes: it uses the standard library as any program does. The controller's name is what it tries, the object its
//! argument, and what came of it returns as the message of a terminal failure.
#![cfg(target_arch = "wasm32")]

#[allow(unsafe_code, missing_docs, clippy::all, clippy::pedantic, reason = "generated code")]
mod bindings {
    wit_bindgen::generate!({ path: "../../../wit", world: "operator", generate_all });
}

use std::{
    collections::HashMap,
    env, fs,
    io::Read as _,
    net::{TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket},
    process::Command,
    thread,
    time::{Duration, Instant, SystemTime},
};

use bindings::{Failure, Guest, Outcome, Request, export};
use serde_json::Value;

struct Ordinary;

#[allow(unsafe_code, clippy::pedantic, reason = "generated code")]
mod exported {
    use super::{Ordinary, bindings, export};

    export!(Ordinary with_types_in bindings);
}

impl Guest for Ordinary {
    fn manifest() -> String {
        r#"{"manifestVersion": 1, "name": "ordinary", "version": "0.1.0",
            "controllers": [{"name": "any", "for": {"group": "x.example.com", "version": "v1", "resource": "things"}}]}"#
            .to_owned()
    }

    async fn reconcile(request: Request) -> Result<Outcome, Failure> {
        let object: Option<Value> = request.object.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let argument = object.as_ref().and_then(Value::as_str).unwrap_or_default();
        if request.controller == "behave" {
            behave();
            return Ok(Outcome::AwaitChange);
        }
        Err(Failure::Terminal(attempt(&request.controller, argument)))
    }
}

/// What a harmless program does: it looks at the clocks, sleeps a little, computes with a hash map, which wants random numbers, and prints.
fn behave() {
    let began = Instant::now();
    thread::sleep(Duration::from_millis(5));
    let counted: HashMap<_, _> = "to be or not to be".split(' ').map(|word| (word, word.len())).collect();
    let today =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|since| since.as_secs() > 1_700_000_000);
    println!("{} words, {today}, {}", counted.len(), began.elapsed() >= Duration::from_millis(5));
    eprintln!("a word of warning");
}

fn attempt(what: &str, argument: &str) -> String {
    match what {
        "read" => show(fs::read_to_string(argument)),
        "write" => show(fs::write(argument, "x")),
        "list" => show(fs::read_dir(argument).map(Iterator::count)),
        "directory" => show(env::current_dir()),
        "environment" => show(env::vars().collect::<Vec<_>>()),
        "arguments" => show(env::args().collect::<Vec<_>>()),
        "input" => {
            let mut text = String::new();
            show(std::io::stdin().read_to_string(&mut text).map(|_| text))
        }
        "connect" => show(TcpStream::connect(argument).map(drop)),
        "listen" => show(TcpListener::bind(argument).map(drop)),
        "send" => show(UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"x", argument))),
        "resolve" => show(argument.to_socket_addrs().map(Iterator::collect::<Vec<_>>)),
        "run" => show(Command::new(argument).spawn().map(drop)),
        "thread" => show(thread::Builder::new().spawn(|| ()).map(drop)),
        "exit" => std::process::exit(0),
        "abort" => std::process::abort(),
        // The smallest step between two looks at the clock, in nanoseconds.
        "clock" => {
            let smallest = (0..100).map(|_| {
                let now = Instant::now();
                loop {
                    let step = now.elapsed();
                    if !step.is_zero() {
                        return step;
                    }
                }
            });
            show(smallest.min())
        }
        other => format!("no such attempt: {other}"),
    }
}

fn show(result: impl std::fmt::Debug) -> String {
    format!("{result:?}")
}
