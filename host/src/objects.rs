//! `operetta reconcile`, `pause` and `resume`: what a person says to the host on an object, as an annotation that is set with their own rights.
//!
//! Nothing here talks to a host: whichever one looks after the object sees the annotation by its watch.

use anyhow::Context as _;
use operetta_cluster::{annotate, kinds::Kinds};
use operetta_core::{
    annotation::{PAUSED, RECONCILE_REQUESTED},
    name::Namespace,
    resource::ObjectKey,
};

use crate::{cli::ReachArgs, exit::Failed, output::print};

#[derive(Debug, clap::Args)]
pub(crate) struct ObjectsArgs {
    #[command(flatten)]
    cluster: ReachArgs,
    /// Where the objects live; the namespace of the kubeconfig unless told
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<Namespace>,
    /// KIND/NAME of each object, or a kind and then names; the kind as kubectl takes it: pet, pets, pets.petstore.example.com
    #[arg(required = true, value_name = "KIND/NAME")]
    objects: Vec<String>,
}

/// What to say.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Deed {
    /// Reconcile it now.
    Reconcile,
    /// Leave it alone.
    Pause,
    /// No longer.
    Resume,
}

impl Deed {
    fn annotation(self) -> (&'static str, Option<String>) {
        match self {
            // To the nanosecond, so that two wishes in one second are two.
            Self::Reconcile => (RECONCILE_REQUESTED, Some(jiff::Timestamp::now().to_string())),
            Self::Pause => (PAUSED, Some("true".to_owned())),
            Self::Resume => (PAUSED, None),
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Reconcile => "reconcile requested",
            Self::Pause => "paused",
            Self::Resume => "resumed",
        }
    }
}

pub(crate) async fn annotate(args: ObjectsArgs, deed: Deed) -> anyhow::Result<()> {
    let objects = pairs(&args.objects)?;
    let client = args.cluster.connect().await?;
    let kinds = Kinds::read(&client).await?;
    let namespace = args.namespace.as_ref().map_or(client.default_namespace(), Namespace::as_str);
    // All kinds are known before anything is written.
    let mut found = Vec::new();
    for (kind, name) in objects {
        let kind = kinds.named(kind)?;
        let key = ObjectKey::parse(kind.namespaced.then_some(namespace), name)
            .map_err(|error| Failed::usage(error.to_string()))?;
        found.push((kind, key));
    }
    for (kind, key) in found {
        let shown = kind.show(key.name.as_str());
        let (annotation, value) = deed.annotation();
        let place = key.namespace.as_ref().map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
        let object = annotate::annotate(&client, kind, &key, annotation, value.as_deref())
            .await
            .with_context(|| format!("{shown}{place}"))?;
        let annotations = object.pointer("/metadata/annotations");
        let waits = matches!(deed, Deed::Reconcile) && annotations.is_some_and(|all| all.get(PAUSED).is_some());
        let waits = if waits { "; it is paused, and reconciled when it is resumed" } else { "" };
        print(&format!("{shown} {}{waits}\n", deed.done()))?;
    }
    Ok(())
}

/// Kind and name of each object, in either of kubectl's two forms.
fn pairs(words: &[String]) -> anyhow::Result<Vec<(&str, &str)>> {
    let usage = |word: &str| Failed::usage(format!("{word:?}: name objects as KIND/NAME, or a kind and then names"));
    if let [kind, names @ ..] = words
        && !kind.contains('/')
    {
        return match names.iter().find(|name| name.contains('/')) {
            Some(word) => Err(usage(word)),
            None if names.is_empty() => Err(usage(kind)),
            None => Ok(names.iter().map(|name| (kind.as_str(), name.as_str())).collect()),
        };
    }
    words.iter().map(|word| word.split_once('/').ok_or_else(|| usage(word))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_as_kubectl_takes_them() {
        let parsed = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            pairs(&words).map(|pairs| pairs.iter().map(|(kind, name)| format!("{kind} {name}")).collect::<Vec<_>>())
        };
        assert_eq!(parsed(&["pet/thor"]).unwrap(), ["pet thor"]);
        assert_eq!(parsed(&["pet", "thor", "tron"]).unwrap(), ["pet thor", "pet tron"]);
        assert_eq!(parsed(&["pet/thor", "pets.petstore.example.com/tron"]).unwrap().len(), 2);
        for bad in [&["pet"][..], &["pet", "pet/thor"], &["pet/thor", "tron"]] {
            let error = parsed(bad).unwrap_err();
            assert!(error.to_string().contains("KIND/NAME"), "{error}");
            assert_eq!(crate::exit::of(&error), crate::exit::Exit::Usage);
        }
    }
}
