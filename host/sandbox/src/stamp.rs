//! The manifest in a custom section of the component, so that registries and people read it without running a stranger's code.
//!
//! **A stamp is a claim**: loading compares it with what the component says when it is asked, and refuses the component where they differ. It is no part of the
//! code: a component with and without it is compiled once.

use std::ops::Range;

use bytes::Bytes;
use operetta_core::{
    manifest::{Manifest, ManifestError},
    name::Digest,
};

use crate::{
    component::LoadError,
    describe::DescribeError,
    verify::{self, VerifyError},
};

/// The name of the section. Its content is the manifest as JSON.
pub const SECTION: &str = "operetta:manifest";

/// Where the section lies in a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// All of it, with its header.
    pub whole: Range<usize>,
    /// The manifest.
    pub text: Range<usize>,
}

impl Stamp {
    /// The component without it.
    pub fn without(&self, wasm: &[u8]) -> Vec<u8> {
        let part = |range: Range<usize>| wasm.get(range).unwrap_or_default();
        [part(0..self.whole.start), part(self.whole.end..wasm.len())].concat()
    }

    /// What it claims.
    pub fn manifest(&self, wasm: &[u8]) -> Result<Manifest, DescribeError> {
        let text = wasm.get(self.text.clone()).unwrap_or_default();
        let text = std::str::from_utf8(text).map_err(|_| ManifestError::Json("it is no UTF-8 text".into()));
        text.and_then(Manifest::parse).map_err(DescribeError::Stamp)
    }
}

/// What can be said of a component without compiling or running it.
#[derive(Debug, Clone)]
pub struct Glance {
    /// Of its bytes.
    pub digest: Digest,
    /// Its bytes.
    pub size: usize,
    /// The interfaces that it imports.
    pub imports: Vec<String>,
    /// What its stamp claims, if it has one.
    pub manifest: Option<Manifest>,
}

/// Looks at a component of at most `cap` bytes.
///
/// # Errors
/// It is none, or its stamp is no manifest.
pub fn glance(wasm: &[u8], cap: usize) -> Result<Glance, LoadError> {
    let outline = verify::outline(wasm, cap)?;
    let manifest = outline.stamp.map(|stamp| stamp.manifest(wasm)).transpose()?;
    Ok(Glance { digest: Digest::of(wasm), size: wasm.len(), imports: outline.imports, manifest })
}

/// The component without its section, if it has one.
///
/// # Errors
/// It is no component of at most `cap` bytes.
pub fn bare(wasm: &Bytes, cap: usize) -> Result<Bytes, LoadError> {
    Ok(verify::outline(wasm, cap)?.code(wasm))
}

/// The component with this manifest in its section, in place of the one that it may have had.
///
/// # Errors
/// It is no component of at most `cap` bytes, or ends before it says.
pub fn stamp(wasm: &Bytes, manifest: &Manifest, cap: usize) -> Result<Vec<u8>, LoadError> {
    let bare = bare(wasm, cap)?;
    let text = manifest.render().map_err(DescribeError::Stamp)?;
    let name = length(SECTION.len());
    let content = length(name.len() + SECTION.len() + text.len());
    // Custom sections have the number 0.
    let stamped = [&bare[..], &[0], &content, &name, SECTION.as_bytes(), text.as_bytes()].concat();
    if stamped.len() > cap {
        return Err(VerifyError::TooLarge { size: stamped.len(), cap }.into());
    }
    // Where a component within it says that it is longer than it is, the section would be part of that one.
    verify::outline(&stamped, cap)?;
    Ok(stamped)
}

/// A number as the format writes it: seven bits a byte, the lowest first (LEB128).
fn length(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or_default();
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests;
