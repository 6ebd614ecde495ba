//! A gate before the API server: a port that a test opens, shuts and silences, so that the server is away for one host only.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use operetta_tests::control_plane::run_dir::RunDir;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};

/// A port in front of a server.
pub struct Gate {
    address: SocketAddr,
    server: String,
    silent: watch::Sender<bool>,
    open: Option<JoinSet<()>>,
}

impl Gate {
    /// A gate to the server of a kubeconfig, shut, and a kubeconfig that leads to it.
    pub fn before(kubeconfig: &Path, run: &RunDir) -> Result<(Self, PathBuf)> {
        let text = std::fs::read_to_string(kubeconfig).context("read the kubeconfig")?;
        let mut config: Value = serde_saphyr::from_str(&text).context("understand the kubeconfig")?;
        // Nobody else is given this port while it is shut: the system goes round all of them first.
        let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let cluster = config.pointer_mut("/clusters/0/cluster").context("a kubeconfig has a cluster")?;
        let url = cluster["server"].as_str().context("a cluster has a server")?.to_owned();
        let server = url.trim_start_matches("https://").trim_end_matches('/').to_owned();
        let host = server.rsplit_once(':').map_or(server.as_str(), |(host, _)| host).to_owned();
        cluster["server"] = format!("https://{address}").into();
        cluster["tls-server-name"] = host.into();
        let path = run.path().join(format!("gate-{}.kubeconfig", address.port()));
        std::fs::write(&path, config.to_string()).context("write a kubeconfig")?;
        Ok((Self { address, server, silent: watch::channel(false).0, open: None }, path))
    }

    /// Lets through.
    pub async fn open(&mut self) -> Result<()> {
        let listener = TcpListener::bind(self.address).await.context("listen at the gate")?;
        let (server, silent) = (self.server.clone(), self.silent.subscribe());
        let mut open = JoinSet::new();
        open.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (server, silent) = (server.clone(), silent.clone());
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::select! {
                        () = pass(from_client, to_server, silent.clone()) => {}
                        () = pass(from_server, to_client, silent) => {}
                    }
                });
            }
        });
        self.open = Some(open);
        Ok(())
    }

    /// Cuts all connections and refuses new ones.
    pub async fn shut(&mut self) {
        if let Some(mut open) = self.open.take() {
            open.shutdown().await;
        }
    }

    /// Keeps connections and takes new ones, but passes nothing on, as a server that hangs. `false` ends that.
    pub fn silence(&self, silent: bool) {
        self.silent.send_replace(silent);
    }
}

/// Passes on what comes until either side ends.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut silent: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return };
        if silent.wait_for(|silent| !silent).await.is_err() || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
