//! Keys, certificates and tokens of one control plane. They live as long as its run directory and are used nowhere else.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// The names and addresses under which the API server is reached; the last address is the first of the service range.
const SERVER_NAMES: [&str; 6] =
    ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1", "10.0.0.1"];

/// Tokens of the three users that act before there are service accounts.
#[derive(Debug)]
pub struct Tokens {
    /// User `admin` in the group `system:masters`.
    pub admin: String,
    /// User `system:kube-controller-manager`.
    pub controller_manager: String,
    /// User `system:kube-scheduler`.
    pub scheduler: String,
}

impl Tokens {
    fn random() -> Self {
        let token = || hex::encode(rand::random::<[u8; 16]>());
        Self { admin: token(), controller_manager: token(), scheduler: token() }
    }

    /// The API server's token file: token, user, uid, groups.
    fn file(&self) -> String {
        format!(
            "{},admin,admin,\"system:masters\"\n{},system:kube-controller-manager,kcm\n{},system:kube-scheduler,scheduler\n",
            self.admin, self.controller_manager, self.scheduler
        )
    }
}

/// Writes everything that the control plane's flags name into `directory` and returns the tokens.
pub fn write(directory: &Path) -> Result<Tokens> {
    let save = |name: &str, text: String| {
        fs::write(directory.join(name), text).with_context(|| format!("write {}", directory.join(name).display()))
    };
    let authority = authority("operetta-test-ca")?;
    save("ca.crt", authority.pem())?;
    save("ca.key", authority.key().serialize_pem())?;
    let front = self::authority("operetta-test-front-proxy-ca")?;
    save("front.crt", front.pem())?;

    let server = leaf("kube-apiserver", &SERVER_NAMES, ExtendedKeyUsagePurpose::ServerAuth, &authority)?;
    save("apiserver.crt", server.0)?;
    save("apiserver.key", server.1)?;
    let proxy = leaf("front-proxy-client", &[], ExtendedKeyUsagePurpose::ClientAuth, &front)?;
    save("front-client.crt", proxy.0)?;
    save("front-client.key", proxy.1)?;

    // Service account tokens are signed with it; the API server reads the public half from the same kind of file.
    let accounts = KeyPair::generate().context("make the key of the service account tokens")?;
    save("sa.pub", accounts.public_key_pem())?;
    save("sa.key", accounts.serialize_pem())?;

    let tokens = Tokens::random();
    save("tokens.csv", tokens.file())?;
    Ok(tokens)
}

fn named(common_name: &str, names: &[&str]) -> Result<CertificateParams> {
    let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut params = CertificateParams::new(names).with_context(|| format!("name the certificate {common_name}"))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

fn authority(common_name: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = named(common_name, &[])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate().with_context(|| format!("make the key of {common_name}"))?;
    CertifiedIssuer::self_signed(params, key).with_context(|| format!("sign the authority {common_name}"))
}

/// A certificate and its key, both PEM.
fn leaf(
    common_name: &str,
    names: &[&str],
    usage: ExtendedKeyUsagePurpose,
    issuer: &CertifiedIssuer<'static, KeyPair>,
) -> Result<(String, String)> {
    let mut params = named(common_name, names)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    let key = KeyPair::generate().with_context(|| format!("make the key of {common_name}"))?;
    let certificate = params.signed_by(&key, issuer).with_context(|| format!("sign the certificate {common_name}"))?;
    Ok((certificate.pem(), key.serialize_pem()))
}
