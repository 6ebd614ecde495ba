//! The host's own objects, and what defines Plugins and guards them: whoever writes those says what plugins may do, as much as whoever writes Plugins.

use super::{ACCOUNTS, GROUP, HOST, HOST_ACCOUNTS, HOST_EVENTS, OF_PLUGINS, RBAC};
use crate::{grant::Access, name::ServiceAccount};

/// Whether objects of this kind are guarded by their names, so that of what is made the name in the text counts.
pub(super) fn by_name(access: &Access<'_>) -> bool {
    matches!(
        (access.resource.group(), access.resource.resource()),
        (RBAC | "apiextensions.k8s.io" | "apiregistration.k8s.io" | "admissionregistration.k8s.io", _)
            | ("", "namespaces")
    )
}

/// Why no plugin writes an object of this name, wherever it lies; none where plugins may. `account` is the plugin's own.
pub(super) fn why(access: &Access<'_>, name: &str, account: Option<&ServiceAccount>) -> Option<&'static str> {
    match (access.resource.group(), access.resource.resource()) {
        (RBAC, _) if [HOST, HOST_ACCOUNTS, HOST_EVENTS].contains(&name) || name.starts_with(OF_PLUGINS) => {
            Some("it is among the rights of the host, or of another plugin")
        }
        // These are called by what they define and the group of it, or as whoever made them chose; the host's are called alike.
        ("apiextensions.k8s.io" | "apiregistration.k8s.io" | "admissionregistration.k8s.io", _)
            if name.split_once('.').is_some_and(|(_, group)| group == GROUP) =>
        {
            Some("it defines Plugins, or guards them and the host")
        }
        ("", "namespaces") if holds_accounts(name, account) => Some("accounts of plugins lie there, and go with it"),
        _ => None,
    }
}

/// Whether accounts of plugins lie in this namespace, as far as this one knows.
pub(super) fn holds_accounts(namespace: &str, account: Option<&ServiceAccount>) -> bool {
    namespace == ACCOUNTS || account.is_some_and(|account| account.namespace.as_str() == namespace)
}
