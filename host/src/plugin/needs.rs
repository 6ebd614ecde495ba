//! What a plugin must be granted to start: its controllers list and watch their kinds, or objects of them that rules name.

use std::collections::{BTreeMap, BTreeSet};

use operetta_core::{
    cache::Scope,
    grant::{Access, Grants, Verb},
    manifest::Manifest,
    name::{Namespace, PluginName},
};

use super::{Phase, Problem};
use crate::controller::Extents;

/// How much of each kind its controllers will watch. Something of it must be granted in each namespace; for a plugin that works in all of them, in all or in some that rules
/// name. The missing rules are told all at once, ready to paste.
pub(crate) fn check(
    plugin: &PluginName,
    is_object: bool,
    manifest: &Manifest,
    grants: &Grants,
    scope: &Scope,
) -> Result<Extents, Problem> {
    let places: Vec<Option<&Namespace>> = match scope {
        Scope::All => vec![None],
        Scope::Namespaces(set) if set.is_empty() => {
            let text =
                "no namespace is left: the host's --namespace and the document's spec.namespaces have none in common";
            return Err(Problem::lasting(Phase::Grant, &text));
        }
        Scope::Namespaces(set) => set.iter().map(Some).collect(),
    };
    let named: BTreeSet<_> = grants.rules.iter().flat_map(|rule| &rule.namespaces).collect();
    let (mut extents, mut missing) = (Extents::new(), BTreeMap::new());
    for resource in manifest.controllers.iter().flat_map(|controller| controller.kinds()) {
        let mut all = Vec::new();
        for namespace in &places {
            let mut watchable = grants.watchable(resource, *namespace);
            if watchable.is_empty() && namespace.is_none() {
                watchable = named.iter().flat_map(|namespace| grants.watchable(resource, Some(namespace))).collect();
            }
            if !watchable.is_empty() {
                all.extend(watchable);
                continue;
            }
            for verb in [Verb::List, Verb::Watch] {
                let access = Access { verb, resource, subresource: None, namespace: *namespace, name: None };
                if grants.check(&access).is_err() {
                    missing.insert(access.words(), access.rule());
                }
            }
        }
        extents.insert(resource.clone(), all);
    }
    if missing.is_empty() {
        return Ok(extents);
    }
    let place = if is_object { "the Plugin".to_owned() } else { format!("{plugin}.yaml") };
    let (what, yaml): (Vec<_>, Vec<_>) = missing.into_iter().unzip();
    Err(Problem::lasting(
        Phase::Grant,
        &format!(
            "its controllers need what is not granted: {}; to allow it, add to spec.grants.rules of {place}:\n{}",
            what.join(", "),
            yaml.join("\n")
        ),
    ))
}
