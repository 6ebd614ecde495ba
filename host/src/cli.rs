//! The command line: what a person can type, and how each command ends.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use operetta_cluster::client::{self, ConnectError, Target};
use operetta_core::name::Namespace;

use crate::{
    adopt::AdoptArgs,
    build::BuildArgs,
    can_i::CanIArgs,
    catalog::CatalogArgs,
    completions::{CompletionsArgs, completions},
    deploy::{DeployArgs, UndeployArgs},
    dev::DevArgs,
    election::ElectionArgs,
    exit,
    impersonation::HostArgs,
    inspect::InspectArgs,
    new::NewArgs,
    objects::{Deed, ObjectsArgs},
    output::OutputArgs,
    telemetry::LogFormat,
    uninstall::UninstallArgs,
    validate::ValidateArgs,
};

/// Runs Kubernetes operators as sandboxed WebAssembly components.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, max_term_width = 120, after_help = exit::TABLE)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lay down a project for a new plugin, which builds, runs and is tested as it is
    #[command(
        disable_version_flag = true,
        after_help = "Example:\n  operetta new greeter --group hello.example.com --version v1alpha1 --kind Greeting"
    )]
    New(NewArgs),
    /// Build a plugin whenever its sources change, install what it needs and run it against a cluster
    #[command(
        after_help = "Shows what the plugin logs and reconciles, and what the compiler says; what does not compile leaves the version before running.\nNAME.yaml beside Cargo.toml is what it is granted, where there is one, else all that it asks for.\n\n\
        Example:\n  cd greeter\n  operetta dev --namespace default"
    )]
    Dev(DevArgs),
    /// Run the plugins of a directory and the Plugins of a cluster against that cluster
    #[command(
        after_help = "Copy NAME.wasm and NAME.yaml into the plugin directory and the plugin runs; replace the file and the new code takes over; remove both and it stops.\n\n\
        Example:\n  operetta install petstore.wasm\n  operetta run --plugin-dir ./plugins --namespace default"
    )]
    Run(RunArgs),
    /// Apply the CRDs, the service account and the RBAC of components to a cluster, with your own rights
    #[command(
        after_help = "Grants come from NAME.yaml beside NAME.wasm where there is one, else the component gets all that it asks for.\n\nEverything that can be known to fail is found before anything is written: rights that you lack, kinds of other plugins, versions that objects are stored in.\n\nExamples:\n  operetta install petstore.wasm memcached.wasm\n  operetta install petstore.wasm --plugin && kubectl wait --for=condition=Ready plugin/petstore\n  operetta install petstore.wasm --dry-run"
    )]
    Install(InstallArgs),
    /// Take back what `install` brought: CRDs, service accounts and RBAC of plugins
    #[command(
        after_help = "Deletes only what carries the plugin's label and was written by `operetta install`; namespaces stay. A CRD takes all objects of its kind along, so where there are any, it asks for --delete-objects or --keep-crds. Let the plugin run until its objects are gone: it may hold them by finalizers.\n\nExamples:\n  operetta uninstall petstore --dry-run\n  operetta uninstall petstore.wasm --delete-objects"
    )]
    Uninstall(UninstallArgs),
    /// Hand the fields that an operator of before owns to the plugin that follows it
    #[command(
        after_help = "Scale the operator of before down first. Without --from it only tells which managers own fields. Nothing but ownership changes here, so nothing restarts; what the plugin does not name, it removes with its next apply.\n\n\
        Example:\n  operetta adopt memcached.wasm\n  operetta adopt memcached.wasm --from manager"
    )]
    Adopt(AdoptArgs),
    /// Reconcile objects now, whatever their plugin waits for
    #[command(
        after_help = "Sets the annotation operetta.dev/reconcile-requested-at, with your own rights.\n\nExample:\n  operetta reconcile pet/thor -n default\n  operetta reconcile pets.petstore.example.com thor tron"
    )]
    Reconcile(ObjectsArgs),
    /// Leave objects alone until they are resumed, even their deletion
    #[command(
        after_help = "Sets the annotation operetta.dev/paused, with your own rights; its presence counts, whatever its value.\n\nExample:\n  operetta pause memcached/cache -n default"
    )]
    Pause(ObjectsArgs),
    /// Look after paused objects again
    #[command(
        after_help = "Removes the annotation operetta.dev/paused, with your own rights.\n\nExample:\n  operetta resume memcached/cache -n default"
    )]
    Resume(ObjectsArgs),
    /// Run the host itself in a cluster: its namespace, account and rights, the Plugin kind, and a Deployment
    #[command(
        after_help = "What is applied is what `kubectl apply --server-side -k config/default` applies.\n\nExamples:\n  operetta deploy --image example.com/operetta:0.1.0\n  operetta deploy --dry-run"
    )]
    Deploy(DeployArgs),
    /// Take the host itself out of a cluster
    #[command(after_help = "Example:\n  operetta undeploy")]
    Undeploy(UndeployArgs),
    /// Build a plugin to hand on: its component with the manifest written into it, and its Plugin document
    #[command(
        after_help = "Adds the wasm target to the Rust toolchain where it is missing. A document that you edited is never overwritten.\n\nExamples:\n  operetta build                                    # the plugin of this folder, into target/operetta\n  operetta build ./petstore --out ./plugins\n  operetta build some.wasm -o ./plugins/some.wasm   # one that is built already"
    )]
    Build(BuildArgs),
    /// Say what a component is and what it asks for, without running it where it says so itself
    #[command(
        after_help = "A component made by `operetta build` carries its manifest in a section, which is read without running or compiling anything. NAME.yaml beside it says what is granted.\n\nExamples:\n  operetta inspect petstore.wasm\n  operetta inspect petstore.wasm -o json | jq .asks.warnings"
    )]
    Inspect(InspectArgs),
    /// Find what a load would find wrong with components and their documents, without a cluster
    #[command(
        after_help = "A line for each check: ok, note (it would load, and somebody should know) or FAILED. Ends with code 3 if any failed. Several files are also compared with each other.\n\nExamples:\n  operetta validate petstore.wasm\n  operetta validate ./plugins/*.wasm -o json"
    )]
    Validate(ValidateArgs),
    /// Say whether a plugin may do something, as its document grants and as the cluster's RBAC lets its account
    #[command(
        after_help = "Prints yes or no with both halves, and where it is no, the rule to add, ready to paste; ends with code 6 for no.\n\nExamples:\n  operetta can-i petstore get secrets\n  operetta can-i petstore patch pets/status thor -n default\n  operetta can-i ./plugins/petstore.yaml channel store\n  operetta can-i petstore --list"
    )]
    CanI(CanIArgs),
    /// Print what would otherwise be written by hand
    #[command(subcommand)]
    Generate(Generate),
    /// Print the script that completes this command line in a shell
    #[command(
        after_help = "Examples:\n  operetta completions bash > ~/.local/share/bash-completion/completions/operetta\n  operetta completions zsh > \"${fpath[1]}/_operetta\"\n  operetta completions fish > ~/.config/fish/completions/operetta.fish"
    )]
    Completions(CompletionsArgs),
    /// Compile a component from standard input to standard output, within limits (what `run` starts for each new component)
    #[command(hide = true)]
    CompileComponent {
        /// Code that is there sooner and runs slower
        #[arg(long)]
        quick: bool,
    },
}

/// Which cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// The kubeconfig; KUBECONFIG, ~/.kube/config and then the pod's own account unless told
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Act as the pod's own account, whose token, ca.crt and namespace lie here, whatever kubeconfig there is
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    service_account_dir: Option<PathBuf>,
}

impl ClusterArgs {
    /// As the cluster layer takes it.
    pub(crate) fn target(&self) -> Target {
        Target {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            service_account_dir: self.service_account_dir.clone(),
        }
    }
}

/// Which cluster, for a command that ends.
#[derive(Debug, clap::Args)]
pub(crate) struct ReachArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Give up when the API server has not answered for this long, such as 10s or 2m
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
}

impl ReachArgs {
    /// A connection to an API server that is ready.
    pub(crate) async fn connect(&self) -> Result<kube::Client, ConnectError> {
        client::connect_within(&self.cluster.target(), self.timeout).await
    }
}

/// `10s`, `1m30s`, `500ms`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.filter(|duration| !duration.is_zero()).ok_or_else(|| "write a time such as 10s, 500ms or 2m".to_owned())
}

/// Where the host keeps what survives a restart.
#[derive(Debug, clap::Args)]
pub(crate) struct StateArgs {
    /// Where compiled components, the key that authenticates them and the last good version of each plugin are kept
    #[arg(long, value_name = "DIR", env = "OPERETTA_STATE_DIR", default_value_os_t = default_state_dir())]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) catalog: CatalogArgs,
    /// Work in this namespace only; may be repeated; all unless told
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) namespace: Vec<Namespace>,
    /// Where the Secrets and ConfigMaps lie that Plugins take credentials and components from; the pod's own namespace unless told, and operetta-system outside of a cluster
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) host_namespace: Option<Namespace>,
    /// Where /metrics is served; 0 for nowhere
    #[arg(long, value_name = "ADDRESS", default_value = ":8080")]
    pub(crate) metrics_bind_address: String,
    /// Where /healthz and /readyz are served; 0 for nowhere
    #[arg(long, value_name = "ADDRESS", default_value = ":8081")]
    pub(crate) health_probe_bind_address: String,
    /// Reconciles of all plugins at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) max_concurrent_reconciles: u16,
    /// Memory for the objects that plugins watch, of which each has a fair share; a quarter of the machine's or the container's unless told. What has no room is read from the API server
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cache_mib: Option<u32>,
    /// Memory for the guests of all plugins together, of which each plugin has a fair share; three eighths of the machine's or the container's unless told. A reconcile that finds no room is tried again
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) guest_mib: Option<u32>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) election: ElectionArgs,
    /// How log lines look
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
    /// What is logged: a level, or a filter as in RUST_LOG
    #[arg(long, value_name = "FILTER", env = "RUST_LOG", default_value = "info")]
    pub(crate) log_level: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    pub(crate) cluster: ReachArgs,
    /// Components
    #[arg(required = true, value_name = "FILE.wasm")]
    pub(crate) files: Vec<PathBuf>,
    /// Take over fields that others own otherwise
    #[arg(long)]
    pub(crate) force: bool,
    /// Print what would change, line by line, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Put the component into the cluster too, as ConfigMaps and a Plugin that names them: the host runs it from there
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) plugin: bool,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Generate {
    /// The Plugin document that grants a component all that it asks for, to read and cut
    #[command(after_help = "Example:\n  operetta generate plugin petstore.wasm > petstore.yaml")]
    Plugin(GenerateArgs),
    /// The CRDs of a component, and of the Plugin kind without one
    Crd(GenerateCrdArgs),
    /// The service account and the RBAC of a component, and of the host itself without one
    Rbac(GenerateRbacArgs),
    /// The JSON schema of a component's manifest
    ManifestSchema,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    /// The component
    #[arg(value_name = "FILE.wasm")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GenerateCrdArgs {
    /// The component
    #[arg(value_name = "FILE.wasm")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GenerateRbacArgs {
    #[command(flatten)]
    pub(crate) component: GenerateCrdArgs,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

/// `$XDG_STATE_HOME/operetta`, or `~/.local/state/operetta`.
fn default_state_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    base.map_or_else(|| PathBuf::from(".operetta"), |base| base.join("operetta"))
}

/// Parses the arguments and does what they say.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        // Without a runtime and its threads: the child lives under a limit of memory.
        Command::CompileComponent { quick } => return operetta_sandbox::compile_main(quick),
        Command::New(args) => crate::new::new(&args),
        Command::Dev(args) => block_on(crate::dev::dev(args)),
        Command::Run(args) => block_on(crate::run::run(args)),
        Command::Install(args) => block_on(crate::install::install(args)),
        Command::Uninstall(args) => block_on(crate::uninstall::uninstall(args)),
        Command::Adopt(args) => block_on(crate::adopt::adopt(args)),
        Command::Build(args) => block_on(crate::build::build(args)),
        Command::CanI(args) => block_on(crate::can_i::can_i(args)),
        Command::Inspect(args) => block_on(crate::inspect::inspect(args)),
        Command::Pause(args) => block_on(crate::objects::annotate(args, Deed::Pause)),
        Command::Reconcile(args) => block_on(crate::objects::annotate(args, Deed::Reconcile)),
        Command::Resume(args) => block_on(crate::objects::annotate(args, Deed::Resume)),
        Command::Deploy(args) => block_on(crate::deploy::deploy(args)),
        Command::Undeploy(args) => block_on(crate::deploy::undeploy(args)),
        Command::Validate(args) => block_on(crate::validate::validate(args)),
        Command::Generate(what) => block_on(crate::generate::generate(what)),
        Command::Completions(args) => completions(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("operetta: {error:#}");
            exit::of(&error).into()
        }
    }
}

fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("host").build()?;
    let result = runtime.block_on(work);
    // Whatever still runs is a watch or an idle connection.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_namespace_that_is_none_is_refused_with_the_rule() {
        let error = Cli::try_parse_from(["operetta", "run", "--plugin-dir", ".", "--namespace", "a/b"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"a/b\" is no namespace"), "{error}");
    }
}
