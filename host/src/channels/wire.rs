//! What a channel is made with: endpoint, TLS, and the credentials of the host. **A guest sees none of it.**

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use operetta_api::{Channel as ChannelSpec, Reference};
use operetta_core::{
    aside::{Aside, ELSEWHERE},
    limit::{Exceeded, Limit},
    port::GrpcStatus,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tonic::{
    Code, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use super::{load::Load, metadata};
use crate::credentials::{Credentials, Unready, Values, Vault};

/// gRPC's status of one who is not known.
pub(super) const UNAUTHENTICATED: u32 = 16;
/// gRPC's status of a service that cannot be reached, and of one with which no TLS comes about.
const UNAVAILABLE: u32 = 14;
/// A service that does not even accept a connection in this time is down.
const CONNECT: Duration = Duration::from_secs(5);
/// How often a connection is checked while a call waits on it, so that a dead peer is found within the usual deadline of a reconcile. Not more often, and never without a call: services take
/// that for abuse.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// One channel.
pub(super) struct Wire {
    spec: ChannelSpec,
    parts: Parts,
    credentials: Credentials,
    link: ArcSwap<Link>,
    /// Of all calls, over whatever connection.
    pub load: Arc<Load>,
    /// Told what is not the plugin's to know.
    aside: Aside,
}

/// What the document refers to.
struct Parts {
    ca: Option<Reference>,
    token: Option<Reference>,
    certificate: Option<[Reference; 2]>,
}

/// A channel with the credentials as they were read last.
pub(super) struct Link {
    pub channel: Channel,
    /// `Bearer TOKEN`.
    pub token: Option<MetadataValue<Ascii>>,
    values: Arc<Values>,
}

impl Wire {
    /// Reads the credentials; connects to nothing yet. A message has at most `limit` bytes.
    pub async fn read(spec: &ChannelSpec, limit: usize, vault: &Arc<dyn Vault>, aside: Aside) -> Result<Self, Unready> {
        let parts = Parts {
            ca: spec.ca_from.as_ref().and_then(operetta_api::FromKey::reference),
            token: spec.token_from.as_ref().map(operetta_api::FromSecret::reference),
            certificate: spec.certificate_from.as_ref().and_then(operetta_api::FromTlsSecret::references),
        };
        let whose = format!("channel {}", spec.name);
        let credentials = Credentials::read(whose, vault, spec.references()).await?;
        let link = parts.link(spec, credentials.current())?;
        let (link, load) = (ArcSwap::from_pointee(link), Load::new(&spec.name, limit));
        Ok(Self { spec: spec.clone(), parts, credentials, link, load, aside })
    }

    /// As it is now.
    pub fn link(&self) -> Arc<Link> {
        self.link.load_full()
    }

    /// How a call ended, as the plugin is told. What the service says is the plugin's; how the host gets there is the administrator's.
    pub fn tell(&self, status: &Status) -> GrpcStatus {
        let name = &self.spec.name;
        let mut message = status.message().to_owned();
        if status.code() == Code::OutOfRange && message.contains("decoded message length too large") {
            // That is tonic itself, held by us to the limit.
            return Exceeded { limit: Limit::GrpcMessage, what: message }.into();
        }
        // What tonic makes of a failure of its own has a cause; what came over the wire has none.
        if std::error::Error::source(status).is_some() {
            let mut source = std::error::Error::source(status);
            if let Some(exceeded) = source.and_then(<dyn std::error::Error>::downcast_ref::<Exceeded>) {
                return exceeded.clone().into();
            }
            while let Some(error) = source {
                message = format!("{message}: {error}");
                source = error.source();
            }
            let less = if status.code() == Code::Unavailable { "cannot be reached" } else { "broke off" };
            self.aside.say(&format!("channel {name} {less}: {message}"));
            message = format!("channel {name} {less}; {ELSEWHERE}");
        }
        GrpcStatus {
            code: u32::try_from(i32::from(status.code())).unwrap_or(2),
            message,
            details: status.details().to_vec(),
            metadata: metadata(status.metadata()),
            objection: None,
        }
    }

    /// After a call over `link` ended so: whether there are other credentials now.
    pub async fn refused(&self, link: &Link, status: &GrpcStatus) -> bool {
        let tls = self.parts.ca.is_some() || self.parts.certificate.is_some();
        let heed = status.code == UNAUTHENTICATED || status.code == UNAVAILABLE && tls;
        if !heed || status.objection.is_some() || !self.credentials.renew(&link.values).await {
            return false;
        }
        let values = self.credentials.current();
        if Arc::ptr_eq(&self.link.load().values, &values) {
            return true;
        }
        match self.parts.link(&self.spec, values) {
            Ok(link) => {
                self.link.store(Arc::new(link));
                true
            }
            Err(error) => {
                tracing::warn!(channel = %self.spec.name, %error, "the new credentials cannot be used");
                false
            }
        }
    }
}

impl Parts {
    fn link(&self, spec: &ChannelSpec, values: Arc<Values>) -> Result<Link, Unready> {
        let name = &spec.name;
        let mut endpoint = endpoint(spec)?
            .connect_timeout(CONNECT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(CONNECT)
            .tcp_nodelay(true);
        let value = |reference: &Reference| values.get(reference).unwrap_or_default();
        if spec.endpoint.starts_with("https://") {
            let mut tls = ClientTlsConfig::new();
            tls = match &self.ca {
                Some(ca) if !is_pem(value(ca)) => {
                    return Err(Unready::Missing(format!("channel {name}: there is no PEM certificate in {ca}")));
                }
                Some(ca) => tls.ca_certificate(Certificate::from_pem(value(ca))),
                None => tls.with_native_roots(),
            };
            if let Some([certificate, key]) = &self.certificate {
                tls = tls.identity(Identity::from_pem(value(certificate), value(key)));
            }
            endpoint = endpoint.tls_config(tls).map_err(|error| match (&self.ca, &self.certificate) {
                (None, None) => unusable(spec, &error),
                // What is wrong with a value could quote it.
                (ca, certificate) => {
                    let from: Vec<_> = ca.iter().chain(certificate.iter().flatten()).map(ToString::to_string).collect();
                    Unready::Missing(format!("channel {name}: no PEM that TLS can use is in {}", from.join(" or ")))
                }
            })?;
        }
        let token = self.token.as_ref().map(|reference| {
            let text = std::str::from_utf8(value(reference)).unwrap_or_default().trim();
            let header = (!text.is_empty()).then(|| MetadataValue::try_from(format!("Bearer {text}")).ok()).flatten();
            let mut header = header.ok_or_else(|| {
                Unready::Missing(format!("channel {name}: {reference} holds no token: one line of ASCII"))
            })?;
            header.set_sensitive(true);
            Ok(header)
        });
        Ok(Link { channel: endpoint.connect_lazy(), token: token.transpose()?, values })
    }
}

/// Where the service is.
///
/// # Errors
/// That is no URL.
pub(super) fn endpoint(spec: &ChannelSpec) -> Result<Endpoint, Unready> {
    Endpoint::from_shared(spec.endpoint.clone()).map_err(|error| unusable(spec, &error))
}

fn unusable(spec: &ChannelSpec, error: &tonic::transport::Error) -> Unready {
    Unready::Wrong(format!(
        "the endpoint {:?} of channel {} cannot be used: {error:?}; write http://HOST:PORT or https://HOST:PORT",
        spec.endpoint, spec.name
    ))
}

/// Whether there is a certificate in it, without which TLS would trust nobody and say nothing.
fn is_pem(value: &[u8]) -> bool {
    CertificateDer::pem_slice_iter(value).any(|certificate| certificate.is_ok())
}
