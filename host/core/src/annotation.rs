//! What a person says to the host on an object itself. Plugins have no part in it: the host looks at these before it calls them, and no write of theirs gives one,
//! changes it or takes it away (see [`crate::bounds`]).

/// How the keys of all of these begin.
pub const PREFIX: &str = "operetta.dev/";

/// Present with any value: the object is not reconciled, not even its deletion, until the annotation is removed. Presence counts and the value does not, as with Cluster API's
/// `cluster.x-k8s.io/paused`.
pub const PAUSED: &str = "operetta.dev/paused";

/// A new value reconciles the object now, whatever the controller's predicates say and however long it would wait otherwise. By convention when it was asked for, as RFC 3339.
pub const RECONCILE_REQUESTED: &str = "operetta.dev/reconcile-requested-at";
