//! Starts the control plane's programs in their order and says when they are ready, in about five seconds.
//!
//! Everything listens on loopback, on ports that the system chose a moment before; if somebody else got one of them in between, the
//! start is repeated with others.

use std::{
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::{Api, api::PostParams};
use serde_json::json;
use tokio::process::{Child, Command};

use super::{Access, build::Programs, pki, run_dir::RunDir};

/// Ready takes 5 seconds on two idle cores; tests of several crates at once have made it 30.
const READY_WITHIN: Duration = Duration::from_mins(2);
/// How often readiness is asked for: every program takes hundreds of milliseconds to get there.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Losing a port to somebody else is rare; losing one so many times in a row means something else is wrong.
const ATTEMPTS: usize = 5;
/// How much of a program's log an error shows.
const LOG_LINES: usize = 20;
/// What a program logs when somebody else has its port.
const PORT_TAKEN: &str = "address already in use";
/// The file of the audit log in the run directory.
const AUDIT_LOG: &str = "audit.log";

/// A running control plane. [`Running::stop`] ends it; if it is dropped instead, the next start anywhere cleans up.
#[derive(Debug)]
pub struct Running {
    run: RunDir,
    children: Vec<(&'static str, Child)>,
    access: Access,
}

/// Starts everything and returns when a pod could be scheduled and run.
pub async fn start(programs: &Programs) -> Result<Running> {
    for _ in 1..ATTEMPTS {
        let mut running = Running::create(programs)?;
        match running.bring_up(programs).await {
            Ok(()) => return Ok(running),
            Err(error) if format!("{error:#}").contains(PORT_TAKEN) => running.stop()?,
            Err(error) => return Err(running.give_up(error)),
        }
    }
    let mut running = Running::create(programs)?;
    match running.bring_up(programs).await {
        Ok(()) => Ok(running),
        Err(error) => Err(running.give_up(error)),
    }
}

/// Ports that were free a moment ago. All are held until all are known, so that they differ.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("ask the system for a free port")?;
        *port = listener.local_addr().context("ask which port the system chose")?.port();
        held.push(listener);
    }
    Ok(ports)
}

impl Running {
    fn create(programs: &Programs) -> Result<Self> {
        let run = RunDir::create()?;
        let access = Access {
            kubeconfig: run.path().join("kubeconfig"),
            audit_log: run.path().join(AUDIT_LOG),
            run_dir: run.path().to_owned(),
            kubectl: programs.path("kubectl"),
        };
        Ok(Self { run, children: Vec::new(), access })
    }

    /// Where to find what runs.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Waits until one of the programs ends, which none should, and says which and why.
    pub async fn broken(&mut self) -> anyhow::Error {
        loop {
            if let Err(error) = self.all_running() {
                return error;
            }
            tokio::time::sleep(ASK_EVERY * 10).await;
        }
    }

    /// Kills every program and removes the run directory; their data is worth nothing without them.
    pub fn stop(self) -> Result<()> {
        self.run.remove()
    }

    fn give_up(self, error: anyhow::Error) -> anyhow::Error {
        match self.stop() {
            Ok(()) => error,
            Err(stop) => error.context(format!("and could not clean up: {stop:#}")),
        }
    }

    async fn bring_up(&mut self, programs: &Programs) -> Result<()> {
        let [api, etcd, etcd_peer, kwok] = free_ports()?;
        let pki = self.run.directory("pki")?;
        let tokens = pki::write(&pki)?;
        let ca = pki.join("ca.crt");
        self.write("kubeconfig", &kubeconfig(api, &ca, "admin", &tokens.admin))?;
        let manager_config = self.write(
            "controller-manager.kubeconfig",
            &kubeconfig(api, &ca, "controller-manager", &tokens.controller_manager),
        )?;
        let scheduler_config =
            self.write("scheduler.kubeconfig", &kubeconfig(api, &ca, "scheduler", &tokens.scheduler))?;
        self.write("audit-policy.json", AUDIT_POLICY)?;

        self.spawn(programs, "etcd", etcd_flags(etcd, etcd_peer))?;
        // The API server retries a missing etcd only after a second.
        self.until("etcd listens", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", etcd)).await.context("connect to etcd").map(drop)
        })
        .await?;
        self.spawn(programs, "kube-apiserver", apiserver_flags(api, etcd))?;
        let client = super::client(&self.access.kubeconfig).await?;
        self.until("kube-apiserver is ready", async || {
            let ready = http::Request::get("/readyz").body(Vec::new()).context("ask for /readyz")?;
            client.request_text(ready).await.context("ask whether the API server is ready").map(drop)
        })
        .await?;
        self.spawn(programs, "kube-controller-manager", controller_manager_flags(&manager_config))?;
        self.spawn(programs, "kube-scheduler", scheduler_flags(&scheduler_config))?;
        let mut flags = vec![
            format!("--kubeconfig={}", self.access.kubeconfig.display()),
            "--manage-all-nodes=true".into(),
            format!("--server-address=127.0.0.1:{kwok}"),
        ];
        flags.extend(programs.stages().map(|stage| format!("--config={}", stage.display())));
        self.spawn(programs, "kwok", flags)?;

        let nodes = Api::<Node>::all(client.clone());
        nodes.create(&PostParams::default(), &node()?).await.context("create the node")?;
        self.until("the node is ready", async || {
            let node = nodes.get("node-0").await.context("get the node")?;
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            ensure!(conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"), "the node is not ready");
            let tainted = node.spec.and_then(|spec| spec.taints).is_some_and(|taints| !taints.is_empty());
            ensure!(!tainted, "the node is still tainted");
            Ok(())
        })
        .await?;
        let accounts = Api::<ServiceAccount>::namespaced(client, "default");
        self.until("service accounts are made", async || {
            accounts.get("default").await.context("get the default service account").map(drop)
        })
        .await
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.run.path().join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.run.path().join(format!("{name}.log"))
    }

    fn spawn(&mut self, programs: &Programs, name: &'static str, flags: Vec<String>) -> Result<()> {
        let log = File::create(self.log(name)).with_context(|| format!("create the log of {name}"))?;
        let child = Command::new(programs.path(name))
            .args(flags)
            .current_dir(self.run.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("share a log file")?)
            .stderr(log)
            // Ctrl-C on the terminal is for the supervisor, which then ends these in its own way.
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        if let Some(pid) = child.id() {
            self.run.record(name, pid)?;
        }
        self.children.push((name, child));
        Ok(())
    }

    fn all_running(&mut self) -> Result<()> {
        let mut ended = None;
        for (name, child) in &mut self.children {
            if let Some(status) = child.try_wait().with_context(|| format!("look after {name}"))? {
                ended = Some((*name, status));
            }
        }
        let Some((name, status)) = ended else { return Ok(()) };
        let log = fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines = log.lines().collect::<Vec<_>>();
        let last = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n");
        bail!("{name} ended ({status}); the end of its log:\n{last}")
    }

    async fn until(&mut self, what: &str, ready: impl AsyncFn() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        loop {
            self.all_running().with_context(|| format!("wait until {what}"))?;
            let last = match tokio::time::timeout(READY_WITHIN, ready()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => anyhow::anyhow!("no answer"),
            };
            if start.elapsed() > READY_WITHIN {
                return Err(last).with_context(|| format!("wait {READY_WITHIN:?} until {what}"));
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}

/// Who asked for what, without the contents; a request appears when it is answered, a watch when it begins and when it ends.
const AUDIT_POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "omitManagedFields": true,
  "rules": [{"level": "Metadata"}]
}
"#;

fn kubeconfig(port: u16, ca: &Path, user: &str, token: &str) -> String {
    // JSON is YAML, and needs no care for quoting.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "operetta", "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority": ca}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "operetta", "context": {"cluster": "operetta", "user": user, "namespace": "default"}}],
        "current-context": "operetta",
    });
    format!("{config:#}\n")
}

fn node() -> Result<Node> {
    serde_json::from_value(json!({
        "metadata": {
            "name": "node-0",
            "labels": {"kubernetes.io/hostname": "node-0"},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
    }))
    .context("describe the node")
}

fn strings<const N: usize>(flags: [&str; N]) -> Vec<String> {
    flags.map(str::to_owned).to_vec()
}

fn etcd_flags(port: u16, peer: u16) -> Vec<String> {
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
    let mut flags = strings(["--name=node", "--data-dir=etcd", "--unsafe-no-fsync", "--log-level=warn"]);
    flags.extend([
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=node={peer}"),
    ]);
    flags
}

fn apiserver_flags(port: u16, etcd: u16) -> Vec<String> {
    let mut flags = strings([
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        // One server on loopback has no use for the `kubernetes` endpoints.
        "--endpoint-reconciler-type=none",
        "--storage-media-type=application/vnd.kubernetes.protobuf",
        "--tls-cert-file=pki/apiserver.crt",
        "--tls-private-key-file=pki/apiserver.key",
        "--client-ca-file=pki/ca.crt",
        "--token-auth-file=pki/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-account-key-file=pki/sa.pub",
        "--service-account-signing-key-file=pki/sa.key",
        "--requestheader-client-ca-file=pki/front.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--proxy-client-cert-file=pki/front-client.crt",
        "--proxy-client-key-file=pki/front-client.key",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--allow-privileged=true",
        "--profiling=false",
        "--audit-policy-file=audit-policy.json",
        // Blocking: a request is in the file when its answer is out, or a moment later. One file, never rotated away.
        "--audit-log-mode=blocking",
        "--audit-log-maxsize=65536",
    ]);
    flags.extend([
        format!("--secure-port={port}"),
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        format!("--audit-log-path={AUDIT_LOG}"),
    ]);
    flags
}

/// Without the rates the garbage collector and the deployment controller are held to 20 requests a second.
const RATES: [&str; 2] = ["--kube-api-qps=500", "--kube-api-burst=1000"];

fn controller_manager_flags(kubeconfig: &Path) -> Vec<String> {
    let mut flags = strings([
        // It serves nothing that anybody here asks for.
        "--secure-port=0",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        "--service-account-private-key-file=pki/sa.key",
        "--root-ca-file=pki/ca.crt",
        "--cluster-signing-cert-file=pki/ca.crt",
        "--cluster-signing-key-file=pki/ca.key",
        "--profiling=false",
        "--concurrent-gc-syncs=20",
        // On a busy machine the node's heartbeat is late. The pods of a node that is late are not ready, and nobody makes simulated ones ready a second time.
        "--node-monitor-grace-period=24h",
    ]);
    flags.extend(strings(RATES));
    flags.push(format!("--kubeconfig={}", kubeconfig.display()));
    flags
}

fn scheduler_flags(kubeconfig: &Path) -> Vec<String> {
    let mut flags = strings(["--secure-port=0", "--leader-elect=false", "--profiling=false"]);
    flags.extend(strings(RATES));
    flags.push(format!("--kubeconfig={}", kubeconfig.display()));
    flags
}
