//! Credentials of channels against a server that asks for them: TLS with roots of one's own, certificates of the caller, tokens, and what happens when they change.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use operetta_api::{FromKey, FromSecret, FromTlsSecret, KeyRef};
use operetta_core::name::{ConfigKey, ConfigName};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    service::interceptor::InterceptedService,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

use super::{
    tests::{Echo, call, channel, soon, spec},
    *,
};
use crate::testing::{Drawer, ear};

/// A server over TLS that admits who shows this token.
struct Guarded {
    port: u16,
    token: Arc<Mutex<&'static str>>,
    /// Calls that it decided about.
    asked: Arc<AtomicUsize>,
    _server: AbortOnDropHandle<()>,
}

fn certified() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

fn identity(of: &CertifiedKey<KeyPair>) -> Identity {
    Identity::from_pem(of.cert.pem(), of.signing_key.serialize_pem())
}

async fn guarded(own: &CertifiedKey<KeyPair>, client: Option<&CertifiedKey<KeyPair>>) -> Guarded {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let token = Arc::new(Mutex::new(""));
    let (wanted, asked) = (token.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = asked.clone();
    let check = move |request: Request<()>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let wanted = *wanted.lock().unwrap();
        let shown: Vec<_> =
            request.metadata().get_all("authorization").iter().map(|value| value.to_str().unwrap()).collect();
        let admitted = if wanted.is_empty() { shown.is_empty() } else { shown == [format!("Bearer {wanted}")] };
        if admitted { Ok(request) } else { Err(Status::unauthenticated("who are you?")) }
    };
    let mut tls = ServerTlsConfig::new().identity(identity(own));
    if let Some(client) = client {
        tls = tls.client_ca_root(Certificate::from_pem(client.cert.pem()));
    }
    let echo = Echo { waiting: tokio::sync::watch::channel(0).0 };
    let server = Server::builder().tls_config(tls).unwrap().add_service(InterceptedService::new(echo, check));
    let serve = async { server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap() };
    Guarded { port, token, asked, _server: AbortOnDropHandle::new(tokio::spawn(serve)) }
}

fn key(name: &str, key: &str) -> KeyRef {
    KeyRef { name: ConfigName::parse(name).unwrap(), key: ConfigKey::parse(key).unwrap() }
}

/// Over TLS with the roots of Secret `ca`.
fn over_tls(server: &Guarded) -> ChannelSpec {
    ChannelSpec {
        ca_from: Some(FromKey { secret_key_ref: Some(key("ca", "ca.crt")), ..FromKey::default() }),
        ..spec(&format!("https://localhost:{}", server.port))
    }
}

async fn open(spec: ChannelSpec, drawer: &Arc<Drawer>) -> Result<GrpcChannels, Unready> {
    overheard(spec, drawer, &ear().0).await
}

async fn overheard(spec: ChannelSpec, drawer: &Arc<Drawer>, aside: &Aside) -> Result<GrpcChannels, Unready> {
    let vault: Arc<dyn Vault> = drawer.clone();
    GrpcChannels::open(&[spec], 1_000, &vault, aside).await
}

async fn echo(channels: &GrpcChannels) -> Result<(), GrpcStatus> {
    let reply = soon(channels.unary(&channel(), call("Echo"), b"hello".to_vec())).await?;
    assert_eq!(reply.message, b"hello");
    Ok(())
}

/// Tries until it succeeds, as a plugin does.
async fn in_the_end(channels: &GrpcChannels) {
    let tries = async {
        while echo(channels).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(tries).await;
}

#[tokio::test]
async fn roots_come_from_a_secret_and_new_ones_are_read_when_the_old_do_not_hold() {
    let (own, other) = (certified(), certified());
    let server = guarded(&own, None).await;
    let drawer = Drawer::new(&[("ca", "ca.crt", &other.cert.pem())]);
    let (aside, heard) = ear();
    let channels = overheard(over_tls(&server), &drawer, &aside).await.unwrap();
    let status = echo(&channels).await.unwrap_err();
    // A certificate has names and addresses in it.
    assert!(status.code == 14 && !status.message.contains("certificate"), "{status:?}");
    assert!(heard.lock().unwrap()[0].contains("certificate"), "{heard:?}");
    drawer.put("ca", "ca.crt", &own.cert.pem());
    in_the_end(&channels).await;
    // The system does not know this certificate.
    let strange = open(ChannelSpec { ca_from: None, ..over_tls(&server) }, &drawer).await.unwrap();
    assert_eq!(echo(&strange).await.unwrap_err().code, 14);
}

#[tokio::test]
async fn a_token_goes_with_each_call_and_a_new_one_is_tried_at_once_when_the_old_is_refused() {
    let own = certified();
    let server = guarded(&own, None).await;
    let drawer = Drawer::new(&[("ca", "ca.crt", &own.cert.pem()), ("shop", "token", "first\n")]);
    let spec =
        ChannelSpec { token_from: Some(FromSecret { secret_key_ref: key("shop", "token") }), ..over_tls(&server) };
    let channels = open(spec, &drawer).await.unwrap();
    *server.token.lock().unwrap() = "first";
    echo(&channels).await.unwrap();
    let exchange = soon(channels.open(&channel(), call("Chat"))).await.unwrap();
    exchange.send(b"x".to_vec()).await.unwrap();
    assert_eq!(soon(exchange.receive(1)).await.unwrap(), [b"re: x"]);

    *server.token.lock().unwrap() = "second";
    drawer.put("shop", "token", "second");
    echo(&channels).await.unwrap();
    // What was given up stays refused, and is not read again for each call.
    *server.token.lock().unwrap() = "third";
    let (reads, asked) = (drawer.reads(), server.asked.load(Ordering::Relaxed));
    for _ in 0..20 {
        let status = echo(&channels).await.unwrap_err();
        assert!(status.code == 16 && !status.message.contains("second"), "{status:?}");
    }
    assert!(drawer.reads() - reads <= 4, "{}", drawer.reads() - reads);
    assert_eq!(server.asked.load(Ordering::Relaxed) - asked, 20, "nor is anything called twice for it");
    drawer.put("shop", "token", "third");
    // A stream that is refused has the next call read it.
    let until_renewed = async {
        loop {
            let exchange = channels.open(&channel(), call("Chat")).await.unwrap();
            if exchange.headers().await.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(until_renewed).await;
}

#[tokio::test]
async fn the_host_shows_its_certificate_where_there_is_one() {
    let (own, client) = (certified(), certified());
    let server = guarded(&own, Some(&client)).await;
    let drawer = Drawer::new(&[
        ("ca", "ca.crt", &own.cert.pem()),
        ("me", "tls.crt", &client.cert.pem()),
        ("me", "tls.key", &client.signing_key.serialize_pem()),
    ]);
    let certificate_from = Some(FromTlsSecret { secret_name: ConfigName::parse("me").unwrap() });
    let channels = open(ChannelSpec { certificate_from, ..over_tls(&server) }, &drawer).await.unwrap();
    echo(&channels).await.unwrap();
    let nameless = open(over_tls(&server), &drawer).await.unwrap();
    assert!(echo(&nameless).await.is_err());
}

#[tokio::test]
async fn values_that_cannot_be_used_are_named_and_not_shown() {
    let own = certified();
    let server = guarded(&own, None).await;
    let drawer = Drawer::new(&[("ca", "ca.crt", "hush"), ("shop", "token", "two\nlines hush")]);
    let error = open(over_tls(&server), &drawer).await.err().unwrap();
    let token_from = Some(FromSecret { secret_key_ref: key("shop", "token") });
    drawer.put("ca", "ca.crt", &own.cert.pem());
    let second = open(ChannelSpec { token_from, ..over_tls(&server) }, &drawer).await.err().unwrap();
    for (error, words) in [
        (error, "there is no PEM certificate in key ca.crt of Secret ca"),
        (second, "key token of Secret shop holds no token"),
    ] {
        let Unready::Missing(text) = error else { panic!("{error}") };
        assert!(text.starts_with("channel echo: ") && text.contains(words) && !text.contains("hush"), "{text}");
    }
}
