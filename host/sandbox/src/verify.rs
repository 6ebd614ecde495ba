//! The first look at a stranger's component: cheap, in the host's process, and enough to refuse what would cost too much to look at more closely.
//!
//! It reads section headers, and the names of imports, exports and functions. It does not validate: wasmtime does, in a child process. Both are needed, since a valid component of 57 kB
//! with thousands of components nested in each other takes 360 MB to load.

use std::ops::Range;

use bytes::Bytes;
use operetta_core::manifest::MAX_MANIFEST;
use wasmparser::{ComponentTypeRef, CustomSectionReader, Encoding, KnownCustom, Name, Parser, Payload};

use crate::{
    fault::one_line,
    stamp::{SECTION, Stamp},
};

/// The version of `operetta:operator` that this host speaks.
pub const CONTRACT: &str = "0.1.0";

/// Components within components: real ones, composed or with an adapter, have two or three levels; loading takes time and memory by the square of it.
const MAX_DEPTH: u64 = 10;
/// Functions of all modules: a large operator has 5,000, Python's interpreter some 15,000; 200,000 empty ones take 800 MB to compile.
const MAX_FUNCTIONS: u64 = 100_000;
/// Types, aliases, instances and other items of all components; a composed one has some hundreds.
const MAX_ITEMS: u64 = 100_000;
/// Modules and components within.
const MAX_PARTS: u64 = 1_000;

/// Bytes of a function's name, as of an import's or an export's: each trap copies the names of the functions that it went through, in the host, where no limit of a guest counts.
const MAX_NAME: usize = 100_000;

/// Why a component is refused at first sight.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// 0 bytes.
    #[error("the file is empty; copy it again")]
    Empty,
    /// It does not begin with Wasm's magic number.
    #[error(
        "this is not WebAssembly; a plugin is a component, such as `cargo build --target wasm32-unknown-unknown` with the linker wasm-component-ld makes"
    )]
    NotWasm,
    /// A core module.
    #[error(
        "this is a core WebAssembly module, not a component; link it with wasm-component-ld (`linker = \"wasm-component-ld\"` for wasm32-unknown-unknown), or wrap it with `wasm-tools component new`"
    )]
    CoreModule,
    /// Over the limit.
    #[error(
        "the component has {size} bytes and at most {cap} are taken; strip its debug information (`strip = \"debuginfo\"`)"
    )]
    TooLarge {
        /// Its bytes.
        size: usize,
        /// As many would do.
        cap: usize,
    },
    /// It ends before its end.
    #[error("the component is cut short after {0} bytes; copy it again, and rename it into place when it is complete")]
    Truncated(usize),
    /// Not the format.
    #[error("the component is damaged: {0}; build or copy it again")]
    Malformed(String),
    /// A bomb.
    #[error("the component has too many {what}: {count} where {cap} are taken; split it into several plugins")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many were seen.
        count: u64,
        /// How many may be.
        cap: u64,
    },
    /// A name over the limit.
    #[error(
        "a function of the component has a name of {0} bytes and at most {MAX_NAME} are taken; strip its names (`strip = true`)"
    )]
    LongName(usize),
    /// For another contract.
    #[error(
        "the component is built for version {wanted} of operetta:operator and this host speaks {CONTRACT}; build it with the SDK of this host, or use a host that speaks {wanted}"
    )]
    Contract {
        /// The version in its imports or exports.
        wanted: String,
    },
    /// An import that the host lacks.
    #[error(
        "the component imports {0:?}, which this host does not offer; it offers operetta:operator@{CONTRACT}, wasi:clocks and wasi:random 0.3, and WASI 0.2 without files, environment and sockets that work"
    )]
    UnknownImport(String),
    /// Two stamps.
    #[error("the component has more than one section {SECTION:?}, so nobody could say which one holds; build it again")]
    TwoManifests,
    /// A stamp over the limit.
    #[error("the section {SECTION:?} has {0} bytes and at most {MAX_MANIFEST} are read; bring smaller CRDs")]
    LargeManifest(usize),
    /// An export that an operator has.
    #[error(
        "the component does not export `{0}`, so it is no operator; build it against the world `operator` of operetta:operator@{CONTRACT}"
    )]
    MissingExport(&'static str),
}

/// What the first look saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outline {
    /// Names of the imported interfaces, as written.
    pub imports: Vec<String>,
    /// Whether WASI 0.2 is among them.
    pub wasi_p2: bool,
    /// The section that holds its manifest, if it has one.
    pub stamp: Option<Stamp>,
}

impl Outline {
    /// The component without its stamp: what is compiled.
    pub fn code(&self, wasm: &Bytes) -> Bytes {
        self.stamp.as_ref().map_or_else(|| wasm.clone(), |stamp| stamp.without(wasm).into())
    }
}

/// What went by outside of all parts.
#[derive(Default)]
struct Seen {
    imports: Vec<String>,
    exports: Vec<String>,
    stamp: Option<Stamp>,
}

/// Looks at a component of at most `cap` bytes.
pub(crate) fn outline(wasm: &[u8], cap: usize) -> Result<Outline, VerifyError> {
    if wasm.is_empty() {
        return Err(VerifyError::Empty);
    }
    if wasm.len() > cap {
        return Err(VerifyError::TooLarge { size: wasm.len(), cap });
    }
    if !wasm.starts_with(b"\0asm".get(..wasm.len().min(4)).unwrap_or_default()) {
        return Err(VerifyError::NotWasm);
    }
    let Seen { imports, exports, stamp } = scan(wasm)?;
    let named = imports.iter().chain(&exports);
    if let Some(wanted) = named.filter_map(|name| contract_version(name)).find(|version| !same_contract(version)) {
        return Err(VerifyError::Contract { wanted: wanted.to_owned() });
    }
    if let Some(unknown) = imports.iter().find(|name| !is_known(name)) {
        return Err(VerifyError::UnknownImport(unknown.chars().take(200).collect()));
    }
    if let Some(missing) = ["manifest", "reconcile"].into_iter().find(|name| !exports.iter().any(|e| e == name)) {
        return Err(VerifyError::MissingExport(missing));
    }
    let wasi_p2 = imports.iter().any(|name| is_wasi_p2(name));
    Ok(Outline { imports, wasi_p2, stamp })
}

/// Goes over all sections, counts, and returns what the outermost ones say.
fn scan(wasm: &[u8]) -> Result<Seen, VerifyError> {
    let broken = |error: wasmparser::BinaryReaderError| {
        // Whatever is missing, it is missing where the file ends.
        if error.message().contains("unexpected end") || error.offset() >= wasm.len() {
            return VerifyError::Truncated(wasm.len());
        }
        VerifyError::Malformed(format!("{} at byte {}", one_line(error.message()), error.offset()))
    };
    let mut seen = Seen::default();
    // Where the section before ended, outside of all parts: there a section's header begins.
    let mut end = 0;
    let (mut depth, mut functions, mut items, mut parts) = (0_u64, 0, 0, 0);
    let limit = |what, count, cap| if count > cap { Err(VerifyError::TooMany { what, count, cap }) } else { Ok(()) };
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(broken)?;
        let outermost = (depth == 0).then(|| payload.as_section()).flatten();
        let added = match payload {
            Payload::Version { encoding: Encoding::Module, .. } if parts == 0 => return Err(VerifyError::CoreModule),
            Payload::Version { range, .. } => {
                if depth == 0 {
                    end = range.end;
                }
                parts += 1;
                0
            }
            Payload::CustomSection(section) if depth == 0 && section.name() == SECTION => {
                let text = section.data_offset()..section.range().end;
                if text.len() > MAX_MANIFEST {
                    return Err(VerifyError::LargeManifest(text.len()));
                }
                let whole = Range { start: end, end: text.end };
                if seen.stamp.replace(Stamp { whole, text }).is_some() {
                    return Err(VerifyError::TwoManifests);
                }
                0
            }
            Payload::CustomSection(section) => {
                if let Some(long) = long_name(&section) {
                    return Err(VerifyError::LongName(long));
                }
                0
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                depth += 1;
                1
            }
            Payload::End(_) => {
                depth = depth.saturating_sub(1);
                0
            }
            Payload::FunctionSection(section) => {
                functions += u64::from(section.count());
                0
            }
            Payload::ComponentImportSection(section) => {
                if depth == 0 {
                    for import in section.clone() {
                        let import = import.map_err(broken)?;
                        // A type is the name of a shape, and brings nothing.
                        if !matches!(import.ty, ComponentTypeRef::Type(_)) {
                            seen.imports.push(import.name.name.to_owned());
                        }
                    }
                }
                section.count()
            }
            Payload::ComponentExportSection(section) => {
                if depth == 0 {
                    for export in section.clone() {
                        seen.exports.push(export.map_err(broken)?.name.name.to_owned());
                    }
                }
                section.count()
            }
            Payload::InstanceSection(section) => section.count(),
            Payload::CoreTypeSection(section) => section.count(),
            Payload::ComponentInstanceSection(section) => section.count(),
            Payload::ComponentAliasSection(section) => section.count(),
            Payload::ComponentTypeSection(section) => section.count(),
            Payload::ComponentCanonicalSection(section) => section.count(),
            _ => 0,
        };
        if let Some((_, content)) = outermost {
            end = content.end;
        }
        items += u64::from(added);
        limit("components within components", depth, MAX_DEPTH)?;
        limit("modules and components", parts, MAX_PARTS)?;
        limit("functions", functions, MAX_FUNCTIONS)?;
        limit("types, aliases and instances", items, MAX_ITEMS)?;
    }
    Ok(seen)
}

/// The length of a function's name that is too long. What comes after a mistake in the section nobody reads.
fn long_name(section: &CustomSectionReader<'_>) -> Option<usize> {
    let KnownCustom::Name(names) = section.as_known() else { return None };
    let functions = names.map_while(Result::ok).filter_map(|names| match names {
        Name::Function(names) => Some(names),
        _ => None,
    });
    let mut lengths = functions.flat_map(|names| names.into_iter().map_while(Result::ok)).map(|named| named.name.len());
    lengths.find(|length| *length > MAX_NAME)
}

/// `0.2.0` of `operetta:operator/reader@0.2.0`.
fn contract_version(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("operetta:operator")?;
    let (_, version) = rest.split_once('@')?;
    rest.starts_with(['/', '@']).then_some(version)
}

/// Before 1.0 each minor version is a contract of its own.
fn same_contract(version: &str) -> bool {
    minor(version) == minor(CONTRACT)
}

fn minor(version: &str) -> (&str, &str) {
    let mut parts = version.split('.');
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

fn is_known(name: &str) -> bool {
    let Some((interface, version)) = name.split_once('@') else { return false };
    match interface.split_once('/') {
        Some(("operetta:operator", interface)) => {
            same_contract(version)
                && matches!(
                    interface,
                    "types" | "log" | "settings" | "reader" | "writer" | "events" | "grpc" | "postgres"
                )
        }
        Some(("wasi:clocks" | "wasi:random", _)) if minor(version) == ("0", "3") => true,
        _ => is_wasi_p2(name),
    }
}

fn is_wasi_p2(name: &str) -> bool {
    name.split_once('@').is_some_and(|(interface, version)| {
        minor(version) == ("0", "2")
            && interface.split_once('/').is_some_and(|(package, _)| {
                matches!(
                    package,
                    "wasi:io" | "wasi:clocks" | "wasi:random" | "wasi:cli" | "wasi:filesystem" | "wasi:sockets"
                )
            })
    })
}

#[cfg(test)]
mod tests;
