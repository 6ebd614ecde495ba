//! `operetta deploy` and `operetta undeploy`: the host itself in a cluster. What is applied is what `config/` holds, from the one source in [`objects`].

use anyhow::Context as _;
use operetta_cluster::install::{How, Installed, Way, admission, apply, host_rbac, plugins, remove};
use operetta_core::name::{Namespace, ServiceAccount};
use serde_json::{Value, json};

use crate::{
    cli::ReachArgs,
    exit::Failed,
    impersonation::{HostSide, ImpersonationArgs},
    output::print,
};

/// Where the host itself lives when it runs in the cluster.
pub(crate) const NAMESPACE: &str = "operetta-system";
/// What all of the host's objects are called.
pub(crate) const NAME: &str = operetta_core::bounds::HOST;
/// The image that `config/host/Containerfile` builds.
const IMAGE: &str = concat!("operetta:", env!("CARGO_PKG_VERSION"));
/// Under which name a deployment owns fields.
const MANAGER: &str = "operetta-deploy";
/// As distroless images call it: nobody, by number, so that the kubelet can tell that it is not root.
const USER: u32 = 65532;

#[derive(Debug, clap::Args)]
pub(crate) struct DeployArgs {
    #[command(flatten)]
    cluster: ReachArgs,
    /// The image of the host, as the nodes pull it
    #[arg(long, value_name = "IMAGE", default_value = IMAGE)]
    image: String,
    /// Where the host runs
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    namespace: Namespace,
    #[command(flatten)]
    impersonation: ImpersonationArgs,
    /// Let the API server check everything, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Take over fields that others own otherwise
    #[arg(long)]
    force: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct UndeployArgs {
    #[command(flatten)]
    cluster: ReachArgs,
    /// Where the host runs
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    namespace: Namespace,
    /// Tell what would be deleted, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Delete the Plugins that are still there first, and the accounts of installed plugins
    #[arg(long)]
    with_plugins: bool,
}

pub(crate) async fn deploy(args: DeployArgs) -> anyhow::Result<()> {
    let client = args.cluster.connect().await?;
    let way = args.impersonation.known_to(&client).await.context("cannot ask the API server for its version")?;
    let how = How { manager: MANAGER, force: args.force, dry_run: args.dry_run };
    tell(&apply(&client, objects(&args.namespace, &args.image, way)?.all(), how).await?, args.dry_run)
}

pub(crate) async fn undeploy(args: UndeployArgs) -> anyhow::Result<()> {
    let client = args.cluster.connect().await?;
    let left = plugins(&client, &accounts()?).await?;
    if !left.is_empty() && !args.with_plugins {
        let left: Vec<_> = left.iter().map(shown).collect();
        return Err(Failed::refused(format!(
            "plugins are still installed ({}), and without a host nobody would remove their finalizers; run `operetta uninstall` for each first, or \
             delete them, too, with --with-plugins",
            left.join(", ")
        )));
    }
    // As long as the host still runs, which lets go of what they hold.
    let of_plugins =
        remove(&client, left, args.dry_run).await.context("the host still runs, and nothing of it was deleted")?;
    tell(&of_plugins, args.dry_run)?;
    tell(&remove(&client, objects(&args.namespace, IMAGE, Way::Constrained)?.all(), args.dry_run).await?, args.dry_run)
}

fn shown(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    format!("{} {}", text("/kind"), text("/metadata/name"))
}

fn tell(objects: &[Installed], dry_run: bool) -> anyhow::Result<()> {
    let suffix = if dry_run { " (dry run)" } else { "" };
    objects.iter().try_for_each(|object| print(&format!("{object}{suffix}\n")))
}

fn accounts() -> anyhow::Result<Namespace> {
    Ok(Namespace::parse(operetta_api::DEFAULT_ACCOUNT_NAMESPACE)?)
}

/// What a host in the cluster consists of, by the file of `config/` that holds it.
pub(crate) struct Objects {
    /// `crd/operetta.dev_plugins.yaml`.
    pub(crate) crd: Value,
    /// `rbac/host.yaml`: namespaces, account and rights.
    pub(crate) rbac: Vec<Value>,
    /// `admission/policies.yaml`: what the API server refuses.
    pub(crate) admission: Vec<Value>,
    /// `host/deployment.yaml`.
    pub(crate) deployment: Value,
    /// `host/pod_disruption_budget.yaml`.
    pub(crate) budget: Value,
}

impl Objects {
    /// In an order in which they can be applied to an empty cluster.
    fn all(self) -> Vec<Value> {
        [self.crd].into_iter().chain(self.rbac).chain(self.admission).chain([self.deployment, self.budget]).collect()
    }
}

/// With the host in this namespace and of this image.
pub(crate) fn objects(namespace: &Namespace, image: &str, way: Way) -> anyhow::Result<Objects> {
    let host = HostSide::of(namespace, way)?;
    Ok(Objects {
        crd: serde_json::to_value(operetta_api::crd())?,
        rbac: host_rights(&host)?,
        admission: admission(namespace, &labels()),
        deployment: deployment(&host.account, image),
        budget: json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(namespace),
            // Of two hosts one works and one waits for its turn; a node that is drained takes one of them at a time.
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector()}},
        }),
    })
}

/// The namespaces, account and rights of a host.
pub(crate) fn host_rights(host: &HostSide) -> anyhow::Result<Vec<Value>> {
    Ok(host_rbac(&host.account, &accounts()?, host.way))
}

/// As config/default has it.
pub(crate) fn default_objects() -> anyhow::Result<Objects> {
    objects(&Namespace::parse(NAMESPACE)?, IMAGE, Way::Constrained)
}

fn metadata(namespace: &Namespace) -> Value {
    json!({
        "name": NAME, "namespace": namespace.as_str(),
        "labels": labels(),
    })
}

fn labels() -> Value {
    json!({"app.kubernetes.io/managed-by": "operetta", "app.kubernetes.io/name": "operetta"})
}

fn selector() -> Value {
    json!({"app.kubernetes.io/name": "operetta"})
}

fn deployment(account: &ServiceAccount, image: &str) -> Value {
    let probe = |path: &str, first: u32, period: u32| json!({"httpGet": {"path": path, "port": "probes"}, "initialDelaySeconds": first, "periodSeconds": period});
    let container = json!({
        "name": "host", "image": image,
        "args": [
            "run", "--plugin-dir=/plugins", "--state-dir=/state", "--log-format=json", "--leader-elect",
            "--metrics-bind-address=:8080", "--health-probe-bind-address=:8081",
        ],
        "ports": [{"name": "metrics", "containerPort": 8080}, {"name": "probes", "containerPort": 8081}],
        "livenessProbe": probe("/healthz", 15, 20),
        "readinessProbe": probe("/readyz", 2, 5),
        // No limit of CPU: a throttled host would lose its lease. Strangers' components are compiled in a child process, whose memory counts here: the host gives a quarter of this to it, a quarter to caches and three eighths to guests (`core::memory`).
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "plugins", "mountPath": "/plugins", "readOnly": true},
            {"name": "state", "mountPath": "/state"},
        ],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(&account.namespace),
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": selector()},
            "template": {
                "metadata": {"labels": selector()},
                "spec": {
                    "serviceAccountName": account.name.as_str(),
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    // Reconciles in flight may end within 28 s.
                    "terminationGracePeriodSeconds": 30,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": selector()},
                    }],
                    "containers": [container],
                    "volumes": [
                        // Small plugins need no more than a ConfigMap; any other volume with NAME.wasm and NAME.yaml does as well.
                        {"name": "plugins", "configMap": {"name": "operetta-plugins", "optional": true}},
                        {"name": "state", "emptyDir": {"sizeLimit": "1Gi"}},
                    ],
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use operetta_core::{
        bounds::Bounds,
        grant::{Access, Verb},
        name::ObjectName,
        resource::Resource,
    };

    use super::*;

    #[test]
    fn no_plugin_writes_what_is_deployed() {
        let host = Namespace::parse(NAMESPACE).unwrap();
        let mut guarded = 0;
        for object in default_objects().unwrap().all() {
            let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
            let kind = text("/kind").to_lowercase();
            let plural = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
            let (resource, name) =
                (Resource::parse(group, version, &plural).unwrap(), ObjectName::parse(text("/metadata/name")).unwrap());
            let namespace = Namespace::parse(text("/metadata/namespace")).ok();
            let access = |verb| Access {
                verb,
                resource: &resource,
                subresource: None,
                namespace: namespace.as_ref(),
                name: Some(&name),
            };
            // What lies in the host's own namespace is out of reach of every grant.
            if access(Verb::Delete).place() == Some(host.as_str()) {
                continue;
            }
            guarded += 1;
            for verb in [Verb::Update, Verb::Patch, Verb::Delete] {
                let denied = Bounds::default().check(&access(verb)).unwrap_err();
                assert_eq!(denied.grant(), "none", "{} {name}", access(verb).words());
            }
        }
        // The CRD, the namespace of accounts, three roles with their bindings, two policies with theirs.
        assert_eq!(guarded, 1 + 1 + 6 + 4);
    }
}
