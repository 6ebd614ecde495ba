//! `operetta adopt`: the fields that an operator of before owns become those of the plugin that follows it, with the rights of the person who types it.

use std::path::PathBuf;

use anyhow::Context as _;
use operetta_cluster::{
    adopt::{self, Adoption},
    kinds::Kinds,
};
use operetta_core::name::{FieldManager, Namespace};

use crate::{
    cli::{ReachArgs, StateArgs},
    exit::Failed,
    generate::COMMAND_CONCURRENCY,
    loader::{load_file, sandbox},
    output::print,
};

#[derive(Debug, clap::Args)]
pub(crate) struct AdoptArgs {
    #[command(flatten)]
    cluster: ReachArgs,
    /// Only objects of this namespace; all unless told
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<Namespace>,
    /// A field manager of before, such as `manager`; may be repeated. Unless told, those that own fields are listed
    #[arg(long, value_name = "MANAGER")]
    from: Vec<String>,
    /// Tell what would be handed over, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// The component of the plugin
    #[arg(value_name = "FILE.wasm")]
    file: PathBuf,
    #[command(flatten)]
    state: StateArgs,
}

pub(crate) async fn adopt(args: AdoptArgs) -> anyhow::Result<()> {
    if let Some(plugin) = args.from.iter().find(|manager| FieldManager::is_plugin(manager)) {
        return Err(Failed::usage(format!("--from {plugin}: that is a plugin; remove it, and its fields go with it")));
    }
    let sandbox = sandbox(&args.state.state_dir, COMMAND_CONCURRENCY)?;
    let (plugin, component) = load_file(&sandbox, &args.file).await?;
    let client = args.cluster.connect().await?;
    let kinds = Kinds::read(&client).await?;
    let mut any = false;
    for controller in &component.manifest().controllers {
        let heir = FieldManager::of(&plugin, &controller.name);
        let primary = kinds.of(&controller.primary).with_context(|| {
            format!("plugin {plugin}: install it first with `operetta install {}`", args.file.display())
        })?;
        let controlled_by = Some((controller.primary.group(), primary.kind.as_str()));
        let mut adoptions =
            vec![Adoption { kind: primary, controlled_by: None, subresource: Some("status"), heir: &heir }];
        for owned in &controller.owns {
            adoptions.push(Adoption { kind: kinds.of(owned)?, controlled_by, subresource: None, heir: &heir });
        }
        for adoption in &adoptions {
            let part = adoption.subresource.map(|subresource| format!("{subresource} of ")).unwrap_or_default();
            if args.from.is_empty() {
                for (manager, (fields, objects)) in adopt::owners(&client, adoption, args.namespace.as_ref()).await? {
                    let resource = &adoption.kind.resource;
                    print(&format!("{manager} owns {fields} fields in {part}{objects} {resource}\n"))?;
                    any = true;
                }
                continue;
            }
            let adopted = adopt::adopt(&client, adoption, args.namespace.as_ref(), &args.from, !args.dry_run).await?;
            for object in adopted {
                let shown = adoption.kind.show(object.key.name.as_str());
                let place = object.key.namespace.map(|namespace| format!(" -n {namespace}")).unwrap_or_default();
                let would = if args.dry_run { " (dry run)" } else { "" };
                // At once, since what follows may fail.
                print(&format!("{part}{shown}{place} adopted: {} fields{would}\n", object.fields))?;
                any = true;
            }
        }
    }
    if !any {
        eprintln!("nothing to hand over of what {plugin} looks after");
    } else if args.from.is_empty() {
        eprintln!("hand over what the operator of before owns with --from MANAGER");
    }
    Ok(())
}
