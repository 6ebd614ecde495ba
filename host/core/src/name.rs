//! Names as types, parsed once where text enters the host. Whoever holds one need not check it again; none of them can hold a slash, a
//! control character or anything else that would mean something in a URL, a log line or a header.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A text that is not the name it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {what}: {rule}")]
pub struct NameError {
    text: String,
    what: &'static str,
    rule: &'static str,
}

impl NameError {
    pub(crate) fn new(text: &str, what: &'static str, rule: &'static str) -> Self {
        Self { text: text.chars().take(80).collect(), what, rule }
    }
}

const LABEL: &str =
    "use at most 63 lower-case letters, digits and '-', beginning and ending with a letter or digit (RFC 1123)";
const SUBDOMAIN: &str = "use at most 253 lower-case letters, digits, '-' and '.', each part beginning and ending with a letter or digit (RFC 1123)";
const PATH_SEGMENT: &str =
    "use 1 to 253 printable ASCII characters that are not '/', '\\', '%', '?', '#' or white space, and not '.' or '..'";

const SELECTOR: &str =
    "use at most 4,096 characters as `kubectl -l` and `--field-selector` take them, such as app=web,tier!=db";
/// Bytes of a selector.
const SELECTOR_BYTES: usize = 4 << 10;
const TOKEN: &str = "give back what the page before said";
const KEY: &str = "use 1 to 253 letters, digits, '-', '_' and '.', and not '.' or '..'";

fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| inner(b) || b == b'-')
        && text.bytes().next().is_some_and(inner)
        && text.bytes().last().is_some_and(inner)
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// What the API server's own names may hold (`IsValidPathSegmentName`), narrowed to printable ASCII without what URLs give a meaning.
fn is_path_segment(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && text != "."
        && text != ".."
        && text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b'\\' | b'%' | b'?' | b'#'))
}

/// As the API server checks the keys of Secrets and ConfigMaps (`IsConfigMapKey`).
fn is_config_key(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && !text.starts_with("..")
        && text != "."
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// What a selector of labels is made of: keys, values, operators and lists in parentheses.
fn is_label_selector(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b" -_./=!,()<>".contains(&b);
    text.len() <= SELECTOR_BYTES && text.bytes().all(fine)
}

/// Values of fields may hold anything, so this only keeps to one line of ASCII.
fn is_field_selector(text: &str) -> bool {
    text.len() <= SELECTOR_BYTES && text.bytes().all(|b| matches!(b, 0x20..=0x7e))
}

/// The API server's are base64, and nobody else's affair.
fn is_continue_token(text: &str) -> bool {
    (1..=8 << 10).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:expr, $rule:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Parses it.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                if $check(text) { Ok(Self(text.into())) } else { Err(NameError::new(text, $what, $rule)) }
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                Self::parse(&text)
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::parse(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// A plugin: the name of its file without `.wasm`, and of its Plugin document.
    PluginName,
    "plugin name",
    is_label,
    LABEL
);
name!(
    /// A controller, unique within its plugin.
    ControllerName,
    "controller name",
    is_label,
    LABEL
);
name!(
    /// A gRPC channel, as the grants name it.
    ChannelName,
    "channel name",
    is_label,
    LABEL
);
name!(
    /// A database, as the grants name it.
    DatabaseName,
    "database name",
    is_label,
    LABEL
);
name!(
    /// A part of a kind: an API version or a resource.
    Label,
    "DNS label",
    is_label,
    LABEL
);
name!(
    /// A Kubernetes namespace.
    Namespace,
    "namespace",
    is_label,
    LABEL
);
name!(
    /// An object's name. Looser than RFC 1123, since RBAC objects may be called `system:node`.
    ObjectName,
    "name of an object",
    is_path_segment,
    PATH_SEGMENT
);
name!(
    /// A subresource, such as `status`.
    Subresource,
    "subresource",
    is_label,
    LABEL
);
name!(
    /// An API group with a domain, such as `apps` or `cache.example.com`; the core group is not a name but its absence.
    GroupName,
    "API group",
    is_subdomain,
    SUBDOMAIN
);
name!(
    /// A service account's name.
    AccountName,
    "service account name",
    is_subdomain,
    SUBDOMAIN
);

name!(
    /// Which labels objects must have, as `kubectl -l` takes it.
    LabelSelector,
    "label selector",
    is_label_selector,
    SELECTOR
);
name!(
    /// Which fields objects must have, as `kubectl --field-selector` takes it.
    FieldSelector,
    "field selector",
    is_field_selector,
    SELECTOR
);
name!(
    /// Where the next page of a list begins.
    ContinueToken,
    "continue token",
    is_continue_token,
    TOKEN
);
name!(
    /// A Secret or a ConfigMap.
    ConfigName,
    "name of a Secret or ConfigMap",
    is_subdomain,
    SUBDOMAIN
);
name!(
    /// A key of a Secret or a ConfigMap.
    ConfigKey,
    "key of a Secret or ConfigMap",
    is_config_key,
    KEY
);

impl FieldSelector {
    /// The one that leaves the object of this name.
    pub fn naming(name: &ObjectName) -> Self {
        // Names may have what selectors are made of.
        let escaped = name.as_str().replace(',', "\\,").replace('=', "\\=");
        Self(format!("metadata.name={escaped}").into())
    }

    /// The one object that it leaves, where it names one, as the API server's authorization sees it: by `metadata.name=NAME`.
    pub fn object(&self) -> Option<ObjectName> {
        // A backslash would escape what follows.
        let text = self.as_str();
        let name =
            text.split(',').find_map(|term| term.strip_prefix("metadata.name=")).filter(|_| !text.contains('\\'))?;
        ObjectName::parse(name.strip_prefix('=').unwrap_or(name)).ok()
    }
}

/// A service account, whose rights a plugin acts with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceAccount {
    /// Where it lives.
    pub namespace: Namespace,
    /// What it is called.
    pub name: AccountName,
}

impl ServiceAccount {
    /// As the API server names the user: `system:serviceaccount:NAMESPACE:NAME`.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A plugin as the cluster sees it: the account that it acts as, and which plugin acts, since an account says which plugins may.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Actor {
    /// Who acts.
    pub plugin: PluginName,
    /// As whom.
    pub account: ServiceAccount,
}

/// Under which name a plugin's controller owns fields: `operetta:PLUGIN/CONTROLLER`, chosen by the host, at most 128 bytes as the API server demands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldManager(String);

impl FieldManager {
    /// Begins the name of each manager that is a plugin.
    pub const PREFIX: &str = "operetta:";

    /// The manager of one controller. A name over 128 bytes (both parts are at most 63, so 9 + 63 + 1 + 63 = 136) keeps its beginning and ends in a hash.
    pub fn of(plugin: &PluginName, controller: &ControllerName) -> Self {
        let full = format!("{}{plugin}/{controller}", Self::PREFIX);
        if full.len() <= 128 {
            return Self(full);
        }
        let hash = hex::encode(Sha256::digest(full.as_bytes()));
        let kept: String = full.chars().take(128 - 17).collect();
        Self(format!("{kept}-{}", hash.chars().take(16).collect::<String>()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a field manager of this name is a plugin.
    pub fn is_plugin(manager: &str) -> bool {
        manager.starts_with(Self::PREFIX)
    }
}

impl fmt::Display for FieldManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// SHA-256 of a component's bytes; shown as `sha256:` and 64 hexadecimal digits, as OCI does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The 64 hexadecimal digits alone.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }

    /// Enough of it to tell two apart in a log line or a column: 12 digits.
    pub fn short(&self) -> String {
        self.hex().chars().take(12).collect()
    }

    /// Parses `sha256:` and 64 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let wrong = || NameError::new(text, "digest", "write sha256: and 64 hexadecimal digits");
        let mut bytes = [0; 32];
        hex::decode_to_slice(text.strip_prefix("sha256:").ok_or_else(wrong)?, &mut bytes).map_err(|_| wrong())?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_would_mean_something_in_a_url_are_refused() {
        for text in
            ["", ".", "..", "a/b", "a%2fb", "a?b", "a#b", "a b", "a\nb", "a\0b", "ä", "\u{202e}a", &"a".repeat(254)]
        {
            assert!(ObjectName::parse(text).is_err(), "{text:?}");
            assert!(Namespace::parse(text).is_err(), "{text:?}");
        }
        for text in ["system:node", "a.b", "A_b", &"a".repeat(253)] {
            assert!(ObjectName::parse(text).is_ok(), "{text:?}");
        }
        for text in ["-a", "a-", "A", "a.b", &"a".repeat(64)] {
            assert!(PluginName::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn each_kind_of_name_takes_just_what_it_is_made_of_and_no_more_than_its_length() {
        type Takes = fn(&str) -> bool;
        let a = |count| "a".repeat(count);
        let long_domain = [a(63), a(63), a(63), a(61)].join(".");
        let cases: [(&str, Takes, &[&str], &[&str]); 7] = [
            (
                "label",
                |text| Namespace::parse(text).is_ok(),
                &["a", "0", "a-0", &a(63)],
                &["", "-a", "a-", "A", "a_b", "a.b", &a(64)],
            ),
            (
                "domain",
                |text| GroupName::parse(text).is_ok(),
                &["a", "a.b-c.0", &long_domain],
                &["", ".a", "a.", "a..b", "a.-b", "A.b", &a(64), &format!("{long_domain}a")],
            ),
            (
                "object",
                |text| ObjectName::parse(text).is_ok(),
                &["system:node", "A_b", "...", "!~", &a(253)],
                &["", ".", "..", "a/b", "a\\b", "a%b", "a?b", "a#b", "a b", "\u{7f}", "ä", &a(254)],
            ),
            (
                "key",
                |text| ConfigKey::parse(text).is_ok(),
                &["a", "A_b.c-0", ".a", "a..b", &a(253)],
                &["", ".", "..", "..a", "a/b", "a:b", "a b", "ä", &a(254)],
            ),
            (
                "labels",
                |text| LabelSelector::parse(text).is_ok(),
                &["", "app=web,tier!=db", "a in (b, c),!x.example.com/d", "a>1,b<2", &a(4096)],
                &["a;b", "a'b", "a\nb", "ä", &a(4097)],
            ),
            (
                "fields",
                |text| FieldSelector::parse(text).is_ok(),
                &["", " ", "~", "metadata.name=a;b", &a(4096)],
                &["\n", "\u{1f}", "\u{7f}", "ä", &a(4097)],
            ),
            (
                "token",
                |text| ContinueToken::parse(text).is_ok(),
                &["a", "!~", &a(8192)],
                &["", "a b", "\u{7f}", "ä", &a(8193)],
            ),
        ];
        for (kind, takes, fine, refused) in cases {
            for text in fine {
                assert!(takes(text), "{kind}: {text:?}");
            }
            for text in refused {
                assert!(!takes(text), "{kind}: {text:?}");
            }
        }
    }

    #[test]
    fn an_error_about_a_name_is_short_however_long_the_name_is() {
        let error = ObjectName::parse(&"x".repeat(1 << 20)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{:?} is no name of an object: use 1 to 253", "x".repeat(80))), "{error}");
    }

    #[test]
    fn an_account_is_named_as_the_api_server_names_it() {
        let (namespace, name) = (Namespace::parse("n").unwrap(), AccountName::parse("a.b").unwrap());
        let account = ServiceAccount { namespace, name };
        assert_eq!((account.user().as_str(), account.to_string().as_str()), ("system:serviceaccount:n:a.b", "n/a.b"));
    }

    /// What an attacker would write into a name.
    fn trick() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("../".to_owned()),
            Just("..".to_owned()),
            Just("%2f".to_owned()),
            Just("%2e%2e".to_owned()),
            Just("?".to_owned()),
            Just("#".to_owned()),
            Just("\r\n".to_owned()),
            Just("\0".to_owned()),
            Just("\\".to_owned()),
            Just("//".to_owned()),
            // Look-alikes of a solidus, a full stop and an a, and what turns the writing round.
            Just("\u{2215}".to_owned()),
            Just("\u{ff0e}".to_owned()),
            Just("\u{430}".to_owned()),
            Just("\u{202e}".to_owned()),
            "[a-z0-9.:-]{1,8}",
            any::<char>().prop_map(String::from),
        ];
        prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
    }

    fn is_harmless(text: &str) -> bool {
        text.bytes().all(|b| b.is_ascii_graphic() && !b"/%?#\\".contains(&b)) && !matches!(text, "" | "." | "..")
    }

    proptest! {
        #[test]
        fn no_name_holds_what_means_something_in_a_url_a_header_or_a_line(text in trick()) {
            let taken = [
                PluginName::parse(&text).is_ok(),
                ControllerName::parse(&text).is_ok(),
                ChannelName::parse(&text).is_ok(),
                DatabaseName::parse(&text).is_ok(),
                Label::parse(&text).is_ok(),
                Namespace::parse(&text).is_ok(),
                ObjectName::parse(&text).is_ok(),
                Subresource::parse(&text).is_ok(),
                GroupName::parse(&text).is_ok(),
                AccountName::parse(&text).is_ok(),
                ConfigName::parse(&text).is_ok(),
                ConfigKey::parse(&text).is_ok(),
            ];
            prop_assert!(is_harmless(&text) || !taken.contains(&true), "{:?}: {:?}", text, taken);
        }

        #[test]
        fn selectors_and_tokens_are_one_line_of_ascii(text in trick()) {
            let taken = [
                LabelSelector::parse(&text).is_ok(),
                FieldSelector::parse(&text).is_ok(),
                ContinueToken::parse(&text).is_ok(),
            ];
            prop_assert!(text.bytes().all(|b| matches!(b, 0x20..=0x7e)) || !taken.contains(&true), "{:?}", text);
        }

        #[test]
        fn an_error_about_a_name_is_one_line(text in trick()) {
            if let Err(error) = ObjectName::parse(&text) {
                prop_assert!(!error.to_string().contains(['\r', '\n', '\0', '\u{202e}']), "{:?}", error.to_string());
            }
        }
    }

    #[test]
    fn a_field_selector_names_an_object_or_none() {
        let named = |text: &str| FieldSelector::parse(text).unwrap().object().map(|name| name.to_string());
        for text in
            ["metadata.name=a", "metadata.name==a", "spec.x=y,metadata.name=a", "metadata.name=a,metadata.name=b"]
        {
            assert_eq!(named(text).as_deref(), Some("a"), "{text}");
        }
        for name in ["a", "a.b", "system:node"] {
            let name = ObjectName::parse(name).unwrap();
            assert_eq!(FieldSelector::naming(&name).object(), Some(name));
        }
        let strange = ObjectName::parse("a,metadata.namespace=b").unwrap();
        assert_eq!(FieldSelector::naming(&strange).as_str(), r"metadata.name=a\,metadata.namespace\=b");
        for text in [
            "metadata.name!=a",
            "metadata.namespace=a",
            "xmetadata.name=a",
            "metadata.name=",
            r"a\,metadata.name=a",
            "metadata.name=a/b",
        ] {
            assert_eq!(named(text), None, "{text}");
        }
    }

    #[test]
    fn a_field_manager_stays_within_what_the_api_server_takes_and_stays_distinct() {
        let plugin = PluginName::parse(&"p".repeat(63)).unwrap();
        let of = |c: &str| FieldManager::of(&plugin, &ControllerName::parse(c).unwrap());
        let (a, b) = (of(&format!("{}a", "c".repeat(62))), of(&format!("{}b", "c".repeat(62))));
        for long in [&a, &b] {
            assert_eq!(long.as_str().len(), 128);
            assert!(long.as_str().starts_with(&format!("operetta:{plugin}/c")), "{long}");
        }
        assert_ne!(a, b);
        for whole in ["x", &"c".repeat(55)] {
            assert_eq!(of(whole).to_string(), format!("operetta:{plugin}/{whole}"));
        }
        assert!(FieldManager::is_plugin(a.as_str()) && !FieldManager::is_plugin("kubectl"));
    }

    #[test]
    fn a_digest_reads_what_it_writes() {
        let digest = Digest::of(b"abc");
        assert_eq!(Digest::parse(&digest.to_string()).unwrap(), digest);
        assert_eq!(digest.to_string(), format!("sha256:{}", digest.hex()));
        assert_eq!([String::from(digest), format!("{digest:?}")], [digest.to_string(), digest.to_string()]);
        assert_eq!((digest.hex().len(), digest.short().as_str()), (64, "ba7816bf8f01"));
        assert!(Digest::parse("sha256:abc").is_err());
        assert!(Digest::parse(&digest.hex()).is_err());
    }
}
