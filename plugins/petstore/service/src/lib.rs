//! A pet store with a gRPC interface: `petstore.v1.PetStore`, health and reflection on one port.
//!
//! Keeps everything in memory, within the [limits](limits) below, and forgets it when it stops.

pub mod store;

use proto::pet_store_server::PetStoreServer;
use std::{future::Future, time::Duration};
pub use store::Store;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

/// What the proto compiles to.
#[allow(missing_docs, clippy::pedantic, reason = "generated code; the proto is its documentation")]
pub mod proto {
    tonic::include_proto!("petstore.v1");

    /// The encoded descriptors of `petstore.v1`.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/petstore.bin"));
}

/// What bounds the store's memory; a request over a limit is refused as a whole. Together: some 100 MB at the worst.
pub mod limits {
    /// Pets in the store: RESOURCE_EXHAUSTED above.
    pub const PETS: usize = 100_000;
    /// Pets, ids or filter values in one request: INVALID_ARGUMENT above.
    pub const BATCH: usize = 1_000;
    /// Bytes of a name or an external reference: INVALID_ARGUMENT above.
    pub const TEXT: usize = 256;
    /// Calls at a time on one connection; more wait.
    pub const CALLS: usize = 256;
}

/// How long calls in flight may take once the service was told to stop.
pub const GRACE: Duration = Duration::from_secs(5);

/// Serves until `shutdown` resolves; then takes no more calls, lets those in flight end, and gives up on them after [`GRACE`].
pub async fn serve(
    listener: TcpListener,
    store: Store,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<PetStoreServer<Store>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tonic::transport::Server::builder()
        .concurrency_limit_per_connection(limits::CALLS)
        .add_service(health_service)
        .add_service(reflection)
        .add_service(PetStoreServer::new(store))
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async move {
            shutdown.await;
            health.set_not_serving::<PetStoreServer<Store>>().await;
            // Nobody listens where the server ended by itself.
            let _ = stopping.send(());
        });
    tokio::select! {
        served = serving => Ok(served?),
        // A call that never ends, such as a watch of the health service, must not hold the process.
        () = async { match stopped.await { Ok(()) => tokio::time::sleep(GRACE).await, Err(_) => std::future::pending().await } } => Ok(()),
    }
}
