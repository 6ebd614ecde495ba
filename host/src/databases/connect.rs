//! How a connection is made: from the environment, with TLS where the document asks for it.
//!
//! **What it says of a variable is its name, never its value.**

use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use operetta_api::Database as DatabaseSpec;
use rustls_native_certs::{load_certs_from_paths, load_native_certs};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Config,
    config::SslMode,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName},
};

/// A server that does not even accept a connection in this time is down.
const CONNECT: Duration = Duration::from_secs(5);
/// PostgreSQL's own.
const PORT: u16 = 5432;

/// Reads where the database is and who the host is there.
pub(super) fn config(
    spec: &DatabaseSpec,
    deadline: Duration,
    variable: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Config> {
    let read = |what: &str| {
        let name = format!("{}_{what}", spec.env);
        let value = variable(&name).filter(|value| !value.is_empty());
        (name, value)
    };
    let need = |what: &str| {
        let (name, value) = read(what);
        value.with_context(|| {
            format!("database {} needs the environment variable {name} in the host, and it is not set", spec.name)
        })
    };
    let mut config = Config::new();
    config.host(need("HOST")?).dbname(need("DBNAME")?).user(need("USER")?);
    // A socket's peer may need none.
    if let (_, Some(password)) = read("PASSWORD") {
        config.password(password);
    }
    let port = match read("PORT") {
        (name, Some(port)) => port.trim().parse().ok().filter(|port| *port > 0).with_context(|| {
            format!("the environment variable {name} of database {} is no port from 1 to 65535", spec.name)
        })?,
        (_, None) => PORT,
    };
    // The second net under our own deadline: what a plugin sets itself is reset to these.
    let limit = deadline.as_millis();
    config
        .port(port)
        .connect_timeout(CONNECT)
        .application_name("operetta")
        .options(format!("-c statement_timeout={limit} -c idle_in_transaction_session_timeout={limit}"))
        .ssl_mode(if spec.tls { SslMode::Require } else { SslMode::Disable });
    Ok(config)
}

/// Makes TLS connections, or none at all.
#[derive(Clone)]
pub(super) struct Connector {
    tls: Option<Arc<Tls>>,
}

struct Tls {
    /// Of the certificates to trust; those of the system where there is none.
    roots: Option<PathBuf>,
    connector: OnceLock<Result<TlsConnector, String>>,
}

impl Connector {
    /// As the document says, trusting what the environment says.
    pub fn new(spec: &DatabaseSpec, variable: impl Fn(&str) -> Option<String>) -> Self {
        let roots = variable(&format!("{}_SSLROOTCERT", spec.env)).filter(|path| !path.is_empty()).map(PathBuf::from);
        Self { tls: spec.tls.then(|| Arc::new(Tls { roots, connector: OnceLock::new() })) }
    }

    /// Reads the roots when they are first needed.
    fn connector(&self) -> Result<TlsConnector, io::Error> {
        let Some(tls) = &self.tls else { return Err(io::Error::other("TLS is not asked for")) };
        let connector =
            tls.connector.get_or_init(|| rustls(tls.roots.as_deref()).map_err(|error| format!("{error:#}")));
        connector.clone().map_err(io::Error::other)
    }
}

fn rustls(roots: Option<&Path>) -> anyhow::Result<TlsConnector> {
    let certificates = match roots {
        Some(path) => load_certs_from_paths(Some(path), None).certs,
        None => load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    if roots.add_parsable_certificates(certificates).0 == 0 {
        anyhow::bail!("no certificate to trust is found, neither in SSLROOTCERT nor in the system");
    }
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("choose versions of TLS")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Connector {
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Handshake, io::Error> {
        // Asked for even where the connection will not be encrypted.
        let Some(_) = &self.tls else { return Ok(Handshake(None)) };
        let name = ServerName::try_from(domain.to_owned()).map_err(io::Error::other)?;
        Ok(Handshake(Some((self.connector()?, name))))
    }
}

/// A handshake to come.
pub(super) struct Handshake(Option<(TlsConnector, ServerName<'static>)>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Encrypted<S>, io::Error>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let (connector, name) = self.0.ok_or_else(|| io::Error::other("TLS is not asked for"))?;
            Ok(Encrypted(Box::new(connector.connect(name, stream).await?)))
        })
    }
}

/// An encrypted connection.
pub(super) struct Encrypted<S>(Box<tokio_rustls::client::TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
