//! Other versions and broken builds of a component, made of its bytes in no time.
//!
//! A text in a component's data can be overwritten by one of the same length, and the component stays valid: no length and no checksum stands beside it.

use anyhow::{Result, ensure};

/// What stands in the fixture hostile about its build, see its `BUILD`.
fn build(make: &str, version: &str) -> String {
    format!("hostile-build make={make:<6} version={version:<6}")
}

/// The fixture hostile in another version.
pub fn hostile_version(code: &[u8], version: &str) -> Result<Vec<u8>> {
    overwrite(&bare(code)?, &build("good", "1.0.0"), &build("good", version))
}

/// The fixture hostile whose manifest does something else: `loop`, `panic`, `kind` (names an impossible one), `absent` (names one that no cluster has).
pub fn hostile_make(code: &[u8], make: &str) -> Result<Vec<u8>> {
    overwrite(&bare(code)?, &build("good", "1.0.0"), &build(make, "1.0.0"))
}

/// Without the manifest that `operetta build` wrote into it, which would not be the variant's.
fn bare(code: &[u8]) -> Result<Vec<u8>> {
    Ok(operetta_sandbox::stamp::bare(&code.to_vec().into(), code.len())?.to_vec())
}

/// The same bytes with each occurrence of a text replaced by one of the same length.
///
/// # Errors
/// The lengths differ, or the text is not there, so that nothing would change.
pub fn overwrite(code: &[u8], text: &str, by: &str) -> Result<Vec<u8>> {
    ensure!(text.len() == by.len(), "{text:?} and {by:?} have not the same length");
    let mut changed = code.to_vec();
    let mut found = 0;
    let mut at = 0;
    while let Some(place) = changed.get_mut(at..at + text.len()) {
        if place == text.as_bytes() {
            place.copy_from_slice(by.as_bytes());
            found += 1;
        }
        at += 1;
    }
    ensure!(found > 0, "the component does not hold the text {text:?}");
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_overwritten_wherever_it_stands_and_nowhere_else() {
        assert_eq!(overwrite(b"a1b1c", "1", "2").unwrap(), b"a2b2c");
        assert!(overwrite(b"abc", "x", "y").is_err());
        assert!(overwrite(b"abc", "a", "aa").is_err());
    }

    #[test]
    fn a_build_is_described_in_as_many_bytes_as_any_other() {
        assert_eq!(build("good", "1.0.0"), "hostile-build make=good   version=1.0.0 ");
        assert_eq!(build("absent", "10.0.0").len(), build("good", "1.0.0").len());
    }
}
