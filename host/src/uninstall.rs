//! `operetta uninstall`: takes back what `operetta install` brought, with the rights of the person who types it.
//!
//! **Objects that people made are never deleted unasked**: a CRD takes all objects of its kind along.

use operetta_cluster::install::{Installed, KindSurvey, Survey};
use operetta_core::name::PluginName;

use crate::{
    cli::ReachArgs,
    exit::Failed,
    output::{OutputArgs, print},
};

#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArgs {
    /// Plugins by name, or by their components' files
    #[arg(required = true, value_name = "NAME|FILE.wasm")]
    plugins: Vec<String>,
    /// Delete all objects of the plugins' kinds, too
    #[arg(long, conflicts_with = "keep_crds")]
    delete_objects: bool,
    /// Leave the CRDs, and with them the objects of their kinds
    #[arg(long)]
    keep_crds: bool,
    /// Tell what would be deleted, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    cluster: ReachArgs,
}

pub(crate) async fn uninstall(args: UninstallArgs) -> anyhow::Result<()> {
    let plugins: Vec<_> = args.plugins.iter().map(|plugin| name(plugin)).collect::<Result<_, _>>()?;
    let client = args.cluster.connect().await?;
    // All of them are looked at before anything is deleted.
    let mut surveys = Vec::new();
    for (number, plugin) in plugins.iter().enumerate() {
        let before = plugins.get(..number).unwrap_or_default();
        let survey = Survey::of(&client, plugin, before, args.keep_crds).await?;
        if survey.objects().next().is_none() {
            eprintln!("{plugin}: nothing of it is installed here");
        }
        for foreign in &survey.foreign {
            eprintln!("{plugin}: {foreign} carries its label, and `operetta install` did not write it; it stays");
        }
        for shared in &survey.shared {
            eprintln!("{plugin}: {shared}");
        }
        surveys.push(survey);
    }
    let kinds: Vec<&KindSurvey> =
        surveys.iter().flat_map(|survey| &survey.kinds).filter(|kind| kind.objects > 0).collect();
    for kind in &kinds {
        eprintln!("{}", warning(kind, &args));
    }
    if !kinds.is_empty() && !args.keep_crds && !args.delete_objects && !args.dry_run {
        return Err(Failed::refused(
            "objects would be deleted with their kinds, and nothing was changed; look at them, and type --delete-objects, or --keep-crds to leave both",
        ));
    }
    let mut done = Vec::new();
    let mut tell = |removed: &Installed| {
        if args.output.output.is_none() {
            // Whoever reads may stop reading.
            let _ = print(&format!("{removed}{}\n", if args.dry_run { " (dry run)" } else { "" }));
        }
        done.push(removed.clone());
    };
    for survey in &surveys {
        if args.dry_run {
            survey.objects().for_each(|object| tell(&object));
        } else {
            survey.remove(&client, &mut tell).await?;
        }
    }
    match args.output.output {
        Some(format) => print(&format.render(&done)?),
        None => Ok(()),
    }
}

/// `petstore` of `petstore` and of `./plugins/petstore.wasm`, which need not be there any more.
fn name(plugin: &str) -> anyhow::Result<PluginName> {
    let file = plugin.strip_suffix(".wasm").map(|path| path.rsplit('/').next().unwrap_or_default());
    PluginName::parse(file.unwrap_or(plugin)).map_err(|error| Failed::usage(error.to_string()))
}

fn warning(kind: &KindSurvey, args: &UninstallArgs) -> String {
    let (count, name) = (kind.objects, &kind.name);
    let held: Vec<_> = kind.finalizers.iter().map(|(finalizer, count)| format!("{count} by {finalizer}")).collect();
    let mut text = match (args.keep_crds, args.delete_objects, count) {
        (true, _, _) => format!("{name}: {count} objects stay, and nobody looks after them"),
        (_, true, _) => format!("{name}: {count} objects go with their kind"),
        (_, _, 1) => format!("{name}: there is 1 object"),
        _ => format!("{name}: there are {count} objects"),
    };
    if !held.is_empty() {
        text.push_str(&format!(
            "; finalizers hold them ({}): without the running plugin none of these can be deleted",
            held.join(", ")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_named_as_itself_or_as_its_file() {
        for text in ["petstore", "petstore.wasm", "./plugins/petstore.wasm", "/x/petstore.wasm"] {
            assert_eq!(name(text).unwrap().as_str(), "petstore");
        }
        for text in ["", "Pet", "a/b", ".wasm", "plugins/petstore.yaml"] {
            assert!(name(text).is_err(), "{text:?}");
        }
    }
}
