//! `petstore-service`: parses its arguments and serves.

use anyhow::Context;
use clap::Parser;
use petstore_service::{Store, serve};
use std::net::SocketAddr;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

/// A pet store with a gRPC interface (petstore.v1), health and reflection. Keeps its pets in memory.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where to listen; port 0 lets the system choose.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6742")]
    listen: SocketAddr,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let listener = TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}; choose another address with --listen", arguments.listen))?;
    let mut terminate = signal(SignalKind::terminate())?;
    // On stdout and alone on its line: scripts read it.
    println!("listening on {}", listener.local_addr()?);
    serve(listener, Store::default(), async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("stopping");
    })
    .await
}
