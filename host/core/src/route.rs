//! Which keys an event wakes. Routes are declared in the manifest, so routing costs no guest call.
