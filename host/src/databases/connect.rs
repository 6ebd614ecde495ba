//! How a connection is made: from the document and Secrets or from the environment, with TLS where the document asks for it.
//!
//! **What it says of a variable or a Secret is its name, never its value.** A password or a certificate that is refused is read again, and tried again if it has changed.

use std::{
    error::Error as StdError,
    future::Future,
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use arc_swap::ArcSwap;
use deadpool_postgres::Connect;
use operetta_api::{Address, Database as DatabaseSpec, Reference};
use rustls_native_certs::{load_certs_from_paths, load_native_certs};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::JoinHandle,
};
use tokio_postgres::{
    Client, Config, Error,
    config::SslMode,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use crate::credentials::{Credentials, Unready, Values, Vault};

/// A server that does not even accept a connection in this time is down.
const CONNECT: Duration = Duration::from_secs(5);
/// PostgreSQL's own.
const PORT: u16 = 5432;

/// Logs in to one database.
pub(super) struct Login {
    whose: String,
    password: Option<Reference>,
    ca: Option<Reference>,
    credentials: Credentials,
    link: ArcSwap<Link>,
}

/// What a connection is made with, of the credentials as they were read last.
struct Link {
    values: Arc<Values>,
    connector: Connector,
}

impl Login {
    /// Reads what the document refers to.
    ///
    /// # Errors
    /// The document says too much or too little, or what it refers to is missing.
    pub async fn read(
        spec: &DatabaseSpec,
        variable: impl Fn(&str) -> Option<String> + Send,
        vault: &Arc<dyn Vault>,
    ) -> Result<Self, Unready> {
        let whose = format!("database {}", spec.name);
        let password = spec.password_from.as_ref().map(operetta_api::FromSecret::reference);
        let ca = spec.ca_from.as_ref().and_then(operetta_api::FromKey::reference);
        let credentials = Credentials::read(whose.clone(), vault, spec.references()).await?;
        let roots = match (&ca, &spec.env) {
            (Some(ca), _) => Roots::Given(ca.clone()),
            (None, Some(env)) => {
                let path = variable(&format!("{env}_SSLROOTCERT")).filter(|path| !path.is_empty());
                path.map_or(Roots::OfTheSystem, |path| Roots::File(PathBuf::from(path)))
            }
            (None, None) => Roots::OfTheSystem,
        };
        let values = credentials.current();
        let connector = Connector::new(spec.tls.then_some(roots), &values);
        if let (Some(ca), Err(why)) = (&ca, connector.check()) {
            return Err(Unready::Missing(format!("{whose}: {ca} cannot be used: {why}")));
        }
        Ok(Self { whose, password, ca, credentials, link: ArcSwap::from_pointee(Link { values, connector }) })
    }

    /// How the connections of now are encrypted.
    pub fn connector(&self) -> Connector {
        self.link.load().connector.clone()
    }

    async fn attempt(&self, config: &Config, link: &Link) -> Result<(Client, JoinHandle<()>), Error> {
        let mut config = config.clone();
        if let Some(password) = self.password.as_ref().and_then(|reference| link.values.get(reference)) {
            // As `psql` reads a file: a newline at its end is none of the password's.
            config.password(password.strip_suffix(b"\n").unwrap_or(password));
        }
        let (client, connection) = config.connect(link.connector.clone()).await?;
        let whose = self.whose.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(whose, %error, "a connection ended");
            }
        });
        Ok((client, task))
    }

    async fn log_in(&self, config: &Config) -> Result<(Client, JoinHandle<()>), Error> {
        let link = self.link.load_full();
        let error = match self.attempt(config, &link).await {
            Err(error) if is_refusal(&error) => error,
            other => return other,
        };
        if !self.credentials.renew(&link.values).await {
            return Err(error);
        }
        let values = self.credentials.current();
        let connector = link.connector.with(&values);
        if let (Some(ca), Err(why)) = (&self.ca, connector.check()) {
            tracing::warn!(whose = self.whose, from = %ca, error = why, "the new certificates cannot be used");
            return Err(error);
        }
        let link = Arc::new(Link { values, connector });
        self.link.store(Arc::clone(&link));
        self.attempt(config, &link).await
    }
}

/// The way of a pool to its login.
pub(super) struct By(pub Arc<Login>);

impl Connect for By {
    fn connect(
        &self,
        config: &Config,
    ) -> Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), Error>> + Send + '_>> {
        let config = config.clone();
        Box::pin(async move { self.0.log_in(&config).await })
    }
}

/// Whether the server does not know who this is (SQLSTATE class 28), or one of both sides does not trust the other's certificate.
fn is_refusal(error: &Error) -> bool {
    if let Some(said) = error.as_db_error() {
        return said.code().code().starts_with("28");
    }
    let mut source: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(cause) = source {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if cause.is::<rustls::Error>() || inner.is_some_and(<dyn StdError + Send + Sync>::is::<rustls::Error>) {
            return true;
        }
        source = cause.source();
    }
    false
}

/// Where the database is and who the host is there, but for a password that comes from a Secret.
pub(super) fn config(
    spec: &DatabaseSpec,
    deadline: Duration,
    variable: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Config> {
    let mut config = match spec.address().map_err(anyhow::Error::msg)? {
        Address::Here { host, dbname, user } => {
            let mut config = Config::new();
            config.host(host).dbname(dbname).user(user).port(spec.port.unwrap_or(PORT));
            config
        }
        Address::Env(env) => of_environment(spec, env, variable)?,
    };
    // The second net under our own deadline: what a plugin sets itself is reset to these.
    let limit = deadline.as_millis();
    config
        .connect_timeout(CONNECT)
        .application_name("operetta")
        .options(format!("-c statement_timeout={limit} -c idle_in_transaction_session_timeout={limit}"))
        .ssl_mode(if spec.tls { SslMode::Require } else { SslMode::Disable });
    Ok(config)
}

fn of_environment(spec: &DatabaseSpec, env: &str, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Config> {
    let read = |what: &str| {
        let name = format!("{env}_{what}");
        let value = variable(&name).filter(|value| !value.is_empty());
        (name, value)
    };
    let need = |what: &str| {
        let (name, value) = read(what);
        value.with_context(|| {
            format!(
                "database {} needs the environment variable {name} in the host, and it is not set; or write host, dbname, user and passwordFrom instead of env",
                spec.name
            )
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
    config.port(port);
    Ok(config)
}

/// Which certificates to trust.
#[derive(Debug, Clone)]
enum Roots {
    OfTheSystem,
    /// A PEM file of the host.
    File(PathBuf),
    /// A value of the host's namespace.
    Given(Reference),
}

/// Makes TLS connections, or none at all.
#[derive(Clone)]
pub(super) struct Connector {
    tls: Option<Arc<Tls>>,
}

struct Tls {
    roots: Roots,
    values: Arc<Values>,
    connector: OnceLock<Result<TlsConnector, String>>,
}

impl Connector {
    fn new(roots: Option<Roots>, values: &Arc<Values>) -> Self {
        let tls = |roots| Arc::new(Tls { roots, values: Arc::clone(values), connector: OnceLock::new() });
        Self { tls: roots.map(tls) }
    }

    /// The same with other values.
    fn with(&self, values: &Arc<Values>) -> Self {
        Self::new(self.tls.as_ref().map(|tls| tls.roots.clone()), values)
    }

    /// Whether it can be used.
    fn check(&self) -> Result<(), String> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.connector().map(drop))
    }

    fn connector(&self) -> Result<TlsConnector, io::Error> {
        let Some(tls) = &self.tls else { return Err(io::Error::other("TLS is not asked for")) };
        tls.connector().map_err(io::Error::other)
    }
}

impl Tls {
    /// Reads the roots when they are first needed.
    fn connector(&self) -> Result<TlsConnector, String> {
        self.connector.get_or_init(|| self.make().map_err(|error| format!("{error:#}"))).clone()
    }

    fn make(&self) -> anyhow::Result<TlsConnector> {
        let certificates = match &self.roots {
            Roots::OfTheSystem => load_native_certs().certs,
            Roots::File(path) => load_certs_from_paths(Some(Path::new(path)), None).certs,
            Roots::Given(reference) => {
                let pem = self.values.get(reference).unwrap_or_default();
                CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect()
            }
        };
        let mut roots = RootCertStore::empty();
        if roots.add_parsable_certificates(certificates).0 == 0 {
            match &self.roots {
                Roots::Given(_) => anyhow::bail!("there is no PEM certificate in it"),
                _ => anyhow::bail!("no certificate to trust is found, neither in SSLROOTCERT nor in the system"),
            }
        }
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("choose versions of TLS")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(config)))
    }
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
