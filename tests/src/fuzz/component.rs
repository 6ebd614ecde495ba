//! The first look at a component, and the section with its manifest.

use bytes::Bytes;
use operetta_core::manifest::Manifest;
use operetta_sandbox::stamp;

/// What the first look takes at most, here.
const CAP: usize = 1 << 20;
const MANIFEST: &str = r#"{"manifestVersion":1,"name":"fuzz","version":"1","controllers":[{"name":"any","for":{"group":"x.example.com","version":"v1","resource":"things"}}]}"#;

/// A component that is taken imports nothing but what the host offers; its section can be taken off and put on, and nothing else of it changes by that.
pub fn look(data: &[u8]) {
    let Ok(glance) = stamp::glance(data, CAP) else { return };
    for import in &glance.imports {
        let known = [
            "operetta:operator/",
            "wasi:clocks/",
            "wasi:random/",
            "wasi:io/",
            "wasi:cli/",
            "wasi:filesystem/",
            "wasi:sockets/",
        ];
        assert!(known.iter().any(|package| import.starts_with(package)), "the import {import:?} was taken");
    }
    let whole = Bytes::copy_from_slice(data);
    let bare = stamp::bare(&whole, CAP).expect("what was looked at can be looked at");
    if glance.manifest.is_none() {
        assert_eq!(bare, whole, "a component without a section was changed");
    }
    let again = stamp::glance(&bare, CAP).expect("a component without its section is one");
    assert_eq!((again.manifest.as_ref(), &again.imports), (None, &glance.imports));
    let manifest = glance.manifest.unwrap_or_else(|| Manifest::parse(MANIFEST).unwrap());
    // One that ends within a part of it, which the compiler is the first to see.
    let Ok(stamped) = stamp::stamp(&whole, &manifest, 2 * CAP).map(Bytes::from) else { return };
    let read = stamp::glance(&stamped, 2 * CAP).expect("a stamped component is one");
    assert_eq!(read.manifest.as_ref(), Some(&manifest), "the section says something else than what was written");
    assert_eq!(read.imports, glance.imports);
    assert_eq!(
        stamp::bare(&stamped, 2 * CAP).expect("it is one"),
        bare,
        "the section's place is not where it was written"
    );
}
