//! How a guest ends badly, from wasmtime's errors to words: each limit is told from a crash, and a crash says where.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use operetta_core::{
    effect::printable,
    limit::{Exceeded, Limit},
    reconcile::Failure,
};
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace, component::ResourceTableError};
use wasmtime_wasi::I32Exit;

use crate::{
    budget::NoRoom,
    meter::{CpuLimit, MemoryLimit, TableLimit},
    state::NotWhileDescribing,
};

/// Functions that a backtrace names.
const FRAMES: usize = 8;
/// Characters of a function's name.
const NAME: usize = 120;
/// Bytes of a name that are written before the hashes are taken out of it.
const WRITTEN: usize = 512;
/// Bytes of a mangled name that is made readable. Nested generics make names long, and people read the beginning.
const MANGLED: usize = 1_024;
/// Bytes of an error that repeats what stands in a component.
const ERROR: usize = 2_000;

/// An error about a component as one line of text: names in it are whatever a stranger wrote.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        // What follows is cut off anyhow, and may be millions of words.
        if line.len() > ERROR {
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    printable(&line, ERROR)
}

/// How a guest ended badly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It crashed.
    Trap(String),
    /// It wanted too much memory.
    Memory { wanted: usize, cap: usize },
    /// There was no room for its memory among all guests.
    NoRoom(NoRoom),
    /// It wanted too long tables.
    Tables { wanted: usize, cap: usize },
    /// It called itself too deep.
    Stack(String),
    /// It used too much CPU time.
    Cpu,
    /// It took too long.
    Deadline,
    /// It took too long, and waits for an answer.
    Unanswered,
    /// It met another limit.
    Limit(Exceeded),
    /// It is not the guest's fault.
    Host(String),
}

impl From<CpuLimit> for Fault {
    fn from(_: CpuLimit) -> Self {
        Self::Cpu
    }
}

impl From<wasmtime::Error> for Fault {
    fn from(error: wasmtime::Error) -> Self {
        if let Some(limit) = error.downcast_ref::<MemoryLimit>() {
            return Self::Memory { wanted: limit.wanted, cap: limit.cap };
        }
        if let Some(none) = error.downcast_ref::<NoRoom>() {
            return Self::NoRoom(*none);
        }
        if let Some(limit) = error.downcast_ref::<TableLimit>() {
            return Self::Tables { wanted: limit.wanted, cap: limit.cap };
        }
        if error.is::<CpuLimit>() {
            return Self::Cpu;
        }
        if error.is::<PoolConcurrencyLimitError>() {
            return Self::Host("the pool of instances is full".into());
        }
        let cause = one_line(&error.root_cause().to_string());
        if cause.contains("allocated for hostcalls") {
            let what = "one host call carried far more data than it may".to_owned();
            return Self::Limit(Exceeded { limit: Limit::Message, what });
        }
        if cause.contains("handle") && cause.contains("limit") || error.is::<ResourceTableError>() {
            let what = format!("too many handles or host calls at the same time: {cause}");
            return Self::Limit(Exceeded { limit: Limit::Handles, what });
        }
        let what = match error.downcast_ref::<Trap>() {
            Some(Trap::UnreachableCodeReached) => "it panicked or aborted (a panic's message is in the log)".to_owned(),
            Some(Trap::MemoryOutOfBounds) => "it left its memory: endless recursion with large frames?".to_owned(),
            Some(trap) => trap.to_string(),
            None if error.is::<NotWhileDescribing>() => cause,
            None => match error.downcast_ref::<I32Exit>() {
                Some(exit) => format!("it called exit({})", exit.0),
                None => cause,
            },
        };
        let place = error.downcast_ref::<WasmBacktrace>().map(backtrace).unwrap_or_default();
        if error.downcast_ref() == Some(&Trap::StackOverflow) {
            return Self::Stack(format!("at {place}"));
        }
        Self::Trap(if place.is_empty() { what } else { format!("{what}; at {place}") })
    }
}

impl Fault {
    /// As the end of a reconcile that had this deadline and this CPU budget.
    pub fn of_reconcile(self, deadline: Duration, cpu: Duration) -> Failure {
        match self {
            Self::Trap(text) => Failure::Trap(text),
            Self::Memory { wanted, cap } => Failure::Memory { wanted, cap },
            Self::NoRoom(NoRoom { wanted, held, free, total }) => Failure::NoRoom { wanted, held, free, total },
            Self::Tables { wanted, cap } => Failure::Tables { wanted, cap },
            Self::Stack(place) => Failure::Stack(place),
            Self::Cpu => Failure::Cpu(cpu),
            Self::Deadline => Failure::Deadline(deadline),
            Self::Unanswered => Failure::Unanswered(deadline),
            Self::Limit(exceeded) => Failure::Limit(exceeded),
            Self::Host(text) => Failure::Host(text),
        }
    }
}

/// The innermost functions in one line, without the machinery of panics.
fn backtrace(trace: &WasmBacktrace) -> String {
    const MACHINERY: [&str; 6] =
        ["core::panicking", "std::panicking", "std::sys", "std::process", "rust_begin_unwind", "__rust"];
    let names = trace.frames().iter().map(|frame| match frame.func_name() {
        Some(name) => readable(name),
        None => format!("<wasm function {}>", frame.func_index()),
    });
    let shown: Vec<_> = names.filter(|name| !MACHINERY.iter().any(|machinery| name.starts_with(machinery))).collect();
    let mut place = one_line(&shown.iter().take(FRAMES).map(String::as_str).collect::<Vec<_>>().join(" < "));
    if shown.len() > FRAMES {
        place.push_str(" < …");
    }
    place
}

/// A name that a stranger chose, as people read it. Rust's are demangled; C++'s are not, since a few hundred bytes of such a name can stand for terabytes.
fn readable(name: &str) -> String {
    let mut beginning = Beginning(String::new());
    let demangled =
        Some(name).filter(|name| name.len() <= MANGLED).and_then(|name| rustc_demangle::try_demangle(name).ok());
    // The error says that there is more.
    let _ = match demangled {
        Some(demangled) => write!(beginning, "{demangled:#}"),
        None => beginning.write_str(name),
    };
    tidy(&beginning.0)
}

/// Keeps the first [`WRITTEN`] bytes of what is written, and then refuses more: Rust's names refer back to parts of themselves too, and what writes them ends with the first error.
struct Beginning(String);

impl fmt::Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = WRITTEN.saturating_sub(self.0.len());
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        self.0.push_str(text.get(..text.floor_char_boundary(room)).unwrap_or_default());
        Err(fmt::Error)
    }
}

/// A name without the hashes that tell compilations apart, where a linker demangled it already: `std[a543996e6e7dbf1e]::rt`, `imports::run::h3d5e7299e04bc7c9`.
fn tidy(name: &str) -> String {
    let name = match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => name,
        _ => name,
    };
    let mut tidy = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('[') {
        tidy.push_str(before);
        rest = match after.split_once(']') {
            Some((hash, after)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => after,
            _ => {
                tidy.push('[');
                after
            }
        };
    }
    tidy.push_str(rest);
    tidy.chars().take(NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_text_whatever_it_repeats() {
        assert_eq!(one_line("bad magic [\n    0x0,\n]"), "bad magic [ 0x0, ]");
        assert_eq!(one_line("import `\u{1b}[2J\0`"), "import `\\u{1b}[2J\\u{0}`");
        assert!(one_line(&"x".repeat(100_000)).len() < ERROR + 4);
        let words = one_line(&"x ".repeat(1 << 20));
        assert!(words.starts_with("x x x ") && words.ends_with('…') && words.len() < ERROR + 4, "{}", words.len());
    }

    #[test]
    fn each_error_is_the_fault_that_it_tells_of() {
        const NO_ROOM: NoRoom = NoRoom { wanted: 1, held: 2, free: 3, total: 4 };
        let trap = |text: &str| Fault::Trap(text.to_owned());
        for (error, fault) in [
            (wasmtime::Error::from(CpuLimit), Fault::Cpu),
            (NO_ROOM.into(), Fault::NoRoom(NO_ROOM)),
            (Trap::StackOverflow.into(), Fault::Stack("at ".into())),
            (Trap::IntegerDivisionByZero.into(), trap("wasm trap: integer divide by zero")),
            (I32Exit(3).into(), trap("it called exit(3)")),
            (NotWhileDescribing.into(), trap("it called an import; `manifest` may call none")),
            // Words of a limit that are not all there.
            (wasmtime::Error::msg("an unhandled case"), trap("an unhandled case")),
            (wasmtime::Error::msg("a limit of some kind"), trap("a limit of some kind")),
        ] {
            assert_eq!(Fault::from(error), fault);
        }
        let limit = |error: wasmtime::Error| match Fault::from(error) {
            Fault::Limit(exceeded) => exceeded.limit,
            other => panic!("{other:?}"),
        };
        assert_eq!(limit(wasmtime::Error::msg("the limit of component handles")), Limit::Handles);
        assert_eq!(limit(ResourceTableError::Full.into()), Limit::Handles);
        assert_eq!(limit(wasmtime::Error::msg("too much was allocated for hostcalls")), Limit::Message);
    }

    #[test]
    fn a_name_of_rust_is_made_readable_and_any_other_stays_as_it_is() {
        for (name, expected) in [
            ("_ZN4core9panicking5panic17h05af221e174051e9E", "core::panicking::panic"),
            ("_RNvCs1234_7imports3run", "imports::run"),
            ("_RINvC7imports3runmE", "imports::run::<u32>"),
            ("_ZN3foo3barEv", "_ZN3foo3barEv"),
            ("reconcile", "reconcile"),
            ("", ""),
        ] {
            assert_eq!(readable(name), expected);
        }
    }

    /// A function of C++ whose parameters are each made of ten of the one before: 450 bytes that stand for 10^12.
    fn bomb() -> String {
        let mut name = "_Z1f1a1bI".to_owned() + &"S_".repeat(10) + "E";
        for before in "123456789ABC".chars() {
            name += &format!("S0_I{}E", format!("S{before}_").repeat(10));
        }
        name
    }

    /// The same of Rust, two of each.
    fn rust_bomb() -> String {
        const DIGITS: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let digit = |number: usize| DIGITS.chars().nth(number).unwrap();
        let mut name = "IC1aTuuE".to_owned();
        let mut before = "IC1a".len();
        for _ in 0..60 {
            let here = name.len();
            // Where it stands, less one, by the base 62.
            let place: String = match before - 1 {
                small @ ..62 => digit(small).into(),
                large => [digit(large / 62), digit(large % 62)].iter().collect(),
            };
            name += &format!("TB{place}_B{place}_E");
            before = here;
        }
        format!("_R{name}E")
    }

    #[test]
    fn no_name_is_more_than_its_beginning_whatever_it_stands_for() {
        let cut: String = bomb().chars().take(NAME).collect();
        assert_eq!(readable(&bomb()), cut);
        let rust = readable(&rust_bomb());
        assert!(rust.starts_with("a::<((), ()), (((), ()), ((), ())), ((((), ())"), "{rust}");
        assert_eq!(rust.len(), NAME);
        // Too long to be looked at.
        let long = format!("_ZN{}E", "1x".repeat(5 << 20));
        assert_eq!(readable(&long), long.chars().take(NAME).collect::<String>());
        assert_eq!(readable(&"ü".repeat(5 << 20)), "ü".repeat(NAME));
    }

    #[test]
    fn a_name_loses_its_hashes_and_nothing_else() {
        for (name, expected) in [
            ("std[a543996e6e7dbf1e]::panicking::panic", "std::panicking::panic"),
            ("imports::run::{{closure}}::h3d5e7299e04bc7c9", "imports::run::{{closure}}"),
            ("core::slice::<impl [T]>::len", "core::slice::<impl [T]>::len"),
            // What only looks like a hash.
            ("imports::handle", "imports::handle"),
            ("imports::habc", "imports::habc"),
            ("imports::h3d5e7299e04bc7cz", "imports::h3d5e7299e04bc7cz"),
            ("std[abc]::rt", "std[abc]::rt"),
            ("std[a543996e6e7dbf1z]::rt", "std[a543996e6e7dbf1z]::rt"),
            ("a[", "a["),
            ("main", "main"),
        ] {
            assert_eq!(tidy(name), expected);
        }
    }
}
