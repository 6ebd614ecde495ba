//! What a kubelet gives a pod of the host: a directory with a token of its service account, the CA certificate and the namespace, and a new token in time.
//!
//! Each token is bound to a Secret of its own, so that it can be made worthless at once: real ones expire after ten minutes at the least.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Secret, ServiceAccount},
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
    config::Kubeconfig,
};
use serde_json::json;

use crate::components::replace;

/// The shortest life that the API server gives a token.
const TOKEN_SECONDS: u32 = 600;

/// The credentials of a pod.
pub struct Pod {
    mount: PathBuf,
    api_server: SocketAddr,
    client: Client,
    namespace: String,
    account: String,
}

/// A token that was in the pod's directory.
#[derive(Debug)]
pub struct Token {
    /// The identifier by which the audit log knows it.
    pub credential: String,
    secret: String,
}

impl Pod {
    /// Of this account, in an empty directory, for the cluster of a kubeconfig that is our own control plane's.
    pub async fn mount_at(mount: &Path, kubeconfig: &Path, account: (&str, &str)) -> Result<(Self, Token)> {
        let client = crate::control_plane::client(kubeconfig).await?;
        let config = Kubeconfig::read_from(kubeconfig).context("read the kubeconfig")?;
        let cluster = config.clusters.first().and_then(|cluster| cluster.cluster.as_ref()).context("a cluster")?;
        let server = cluster.server.as_deref().context("a server")?;
        let api_server = server.trim_start_matches("https://").parse().context("the server's address")?;
        let ca = cluster.certificate_authority.as_deref().context("a CA certificate")?;
        fs::create_dir_all(mount).context("create the pod's directory")?;
        fs::copy(ca, mount.join("ca.crt")).context("copy the CA certificate")?;
        let (namespace, account) = (account.0.to_owned(), account.1.to_owned());
        fs::write(mount.join("namespace"), &namespace).context("write the pod's namespace")?;
        let pod = Self { mount: mount.to_owned(), api_server, client, namespace, account };
        let token = pod.exchange().await?;
        Ok((pod, token))
    }

    /// The directory.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// Where the API server is.
    pub fn api_server(&self) -> SocketAddr {
        self.api_server
    }

    /// Puts a new token in place, in one step, as a kubelet does. The one before is still good.
    pub async fn exchange(&self) -> Result<Token> {
        let name = format!("token-{}", hex::encode(rand::random::<[u8; 6]>()));
        let secret = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = secrets.create(&PostParams::default(), &secret).await.context("make a Secret")?;
        let request: TokenRequest = serde_json::from_value(json!({"spec": {
            "audiences": [], "expirationSeconds": TOKEN_SECONDS,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": secret.metadata.uid},
        }}))?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let answer = accounts.create_token_request(&self.account, &PostParams::default(), &request).await;
        let token = answer.context("ask for a token")?.status.and_then(|status| status.token).context("a token")?;
        replace(&self.mount.join("token"), token.as_bytes())?;
        Ok(Token { credential: identifier(&token)?, secret: name })
    }

    /// Makes a token worthless.
    pub async fn revoke(&self, token: &Token) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        secrets.delete(&token.secret, &DeleteParams::default()).await.context("delete the token's Secret").map(drop)
    }
}

/// As the API server writes it into its audit log.
fn identifier(token: &str) -> Result<String> {
    let claims = token.split('.').nth(1).context("a token has claims")?;
    let claims: serde_json::Value = serde_json::from_slice(&from_base64url(claims)).context("read a token's claims")?;
    let id = claims.get("jti").and_then(serde_json::Value::as_str).context("a token has an identifier")?;
    Ok(format!("JTI={id}"))
}

/// Without padding, as tokens have it; what is no digit counts as nothing.
fn from_base64url(text: &str) -> Vec<u8> {
    let digits = text.bytes().filter_map(|byte| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    });
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0_u32);
    for digit in digits {
        held = held << 6 | u32::from(digit);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).unwrap_or_default());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_its_identifier() {
        // {"jti":"a-b"}
        assert_eq!(identifier("e30.eyJqdGkiOiJhLWIifQ.x").unwrap(), "JTI=a-b");
        assert!(identifier("nonsense").is_err());
    }
}
