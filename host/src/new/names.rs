//! What can be the name of a package, an API group, a version, a kind: each parsed once, with the rule in the error. Stricter than an API server where what it would
//! admit does not compile or misleads people.

use std::str::FromStr;

use operetta_core::name::{GroupName, PluginName};

/// Words of Rust 2024 that cannot be a crate's name.
const KEYWORDS: [&str; 52] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn", "else",
    "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod",
    "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static", "struct", "super", "trait", "true",
    "try", "type", "typeof", "union", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// Crates that a project uses, or that are always there: a package of the same name would be meant instead of them.
const CRATES: [&str; 13] = [
    "alloc",
    "core",
    "k8s-openapi",
    "kube",
    "operetta-sdk",
    "proc-macro",
    "schemars",
    "serde",
    "serde-json",
    "serde-saphyr",
    "std",
    "test",
    "tokio",
];

/// What the sources of a project mean by these words is not the kind.
const TYPES: [&str; 46] = [
    "Api",
    "Child",
    "Client",
    "Command",
    "Condition",
    "Conditions",
    "ConfigMap",
    "Context",
    "Controller",
    "CustomResource",
    "Default",
    "DeleteParams",
    "Deserialize",
    "Drop",
    "Duration",
    "Error",
    "Event",
    "Failure",
    "FakeHost",
    "From",
    "Instant",
    "Into",
    "Iterator",
    "JsonSchema",
    "Mapping",
    "Operator",
    "Option",
    "Outcome",
    "Patch",
    "PatchParams",
    "Plugin",
    "Predicate",
    "ResourceExt",
    "Result",
    "Rule",
    "Self",
    "Send",
    "Serialize",
    "State",
    "String",
    "Sync",
    "ToString",
    "Vec",
    "Verb",
    "Write",
    "Box",
];

/// Declares a name that is text which passed a check.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $check:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) struct $name(String);

        impl $name {
            pub(crate) fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                $check(text).map(|()| Self(text.to_owned()))
            }
        }
    };
}

name!(
    /// Of a plugin and of the package that it is built from.
    PackageName,
    package
);
name!(
    /// Of a kind.
    ApiGroup,
    group
);
name!(
    /// Of a kind.
    ApiVersion,
    version
);
name!(
    /// In CamelCase.
    Kind,
    kind
);

impl Kind {
    /// As people type it to kubectl.
    pub(crate) fn lower(&self) -> String {
        self.0.to_ascii_lowercase()
    }
}

/// An error unless it is so.
fn must(so: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if so { Ok(()) } else { Err(otherwise()) }
}

fn package(text: &str) -> Result<(), String> {
    PluginName::parse(text).map_err(|error| match text.to_ascii_lowercase().replace(['_', ' ', '.'], "-") {
        better if PluginName::parse(&better).is_ok() => format!("{error}; for example {better}"),
        _ => error.to_string(),
    })?;
    must(text.starts_with(|c: char| c.is_ascii_lowercase()), || {
        format!("a Rust crate's name begins with a letter; for example operator-{text}")
    })?;
    must(!KEYWORDS.contains(&text), || format!("`{text}` is a keyword of Rust; for example {text}-operator"))?;
    must(!CRATES.contains(&text) && text != "tracing", || {
        format!("a crate that the plugin uses is called {text}, too; for example {text}-operator")
    })
}

fn group(text: &str) -> Result<(), String> {
    GroupName::parse(text).map_err(|error| error.to_string())?;
    must(text.contains('.'), || format!("the group of a custom resource is a domain; for example {text}.example.com"))?;
    let reserved = ["k8s.io", "kubernetes.io"]
        .into_iter()
        .find(|owner| text.strip_suffix(owner).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
    must(reserved.is_none(), || {
        "groups below k8s.io and kubernetes.io belong to Kubernetes; take a domain of your own".to_owned()
    })
}

fn version(text: &str) -> Result<(), String> {
    // v1, v2beta3: what Kubernetes orders by age and maturity.
    let number = |text: &str| {
        !text.is_empty() && text.len() < 9 && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit())
    };
    let is_it = text.strip_prefix('v').is_some_and(|rest| {
        let stage = ["alpha", "beta"].into_iter().find_map(|stage| rest.split_once(stage));
        stage.map_or_else(|| number(rest), |(major, minor)| number(major) && number(minor))
    });
    must(is_it, || "write v1, v1beta1 or v1alpha1, with other numbers as need be".to_owned())
}

fn kind(text: &str) -> Result<(), String> {
    let is_camel = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_uppercase())
            && text.bytes().all(|b| b.is_ascii_alphanumeric())
            && text.len() <= 50
    };
    must(is_camel(text), || {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let camel: String = words.map(|word| word.split_at(1)).map(|(c, rest)| c.to_ascii_uppercase() + rest).collect();
        let better = if is_camel(&camel) { &camel } else { "CronTab" };
        format!(
            "a kind is 1 to 50 letters and digits in CamelCase, beginning with a capital letter; for example {better}"
        )
    })?;
    must(!text.ends_with("List"), || {
        format!("{text} would be taken for a list of {}; give it another ending", text.trim_end_matches("List"))
    })?;
    must(!TYPES.contains(&text), || {
        format!("`{text}` means something else in a plugin's sources; for example My{text}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each text is refused with words that contain the hint.
    fn refused<T: FromStr<Err = String> + std::fmt::Debug>(cases: &[(&str, &str)]) {
        for (text, hint) in cases {
            let error = text.parse::<T>().unwrap_err();
            assert!(error.contains(hint), "{text:?}: {error:?} says nothing of {hint:?}");
        }
    }

    #[test]
    fn a_package_can_be_a_crate_a_plugin_and_a_file() {
        for name in ["a", "greeter", "my-greeter", "x509", "selfish"] {
            name.parse::<PackageName>().unwrap();
        }
        refused::<PackageName>(&[
            ("Greeter", "for example greeter"),
            ("my_greeter", "for example my-greeter"),
            ("2fast", "for example operator-2fast"),
            ("match", "a keyword of Rust; for example match-operator"),
            ("kube", "for example kube-operator"),
            ("tracing", "for example tracing-operator"),
            ("../up", "lower-case letters"),
            ("größe", "lower-case letters"),
            ("-x", "beginning and ending with a letter or digit"),
            ("", "lower-case letters"),
            (&"x".repeat(64), "at most 63"),
        ]);
    }

    #[test]
    fn a_group_is_a_domain_of_ones_own() {
        for name in ["example.com", "cache.example.com", "notk8s.io"] {
            name.parse::<ApiGroup>().unwrap();
        }
        refused::<ApiGroup>(&[
            ("apps", "for example apps.example.com"),
            ("Example.com", "lower-case letters"),
            ("example..com", "each part"),
            ("example.com/v1", "lower-case letters"),
            ("policy.k8s.io", "take a domain of your own"),
            ("kubernetes.io", "take a domain of your own"),
            ("", "lower-case letters"),
        ]);
    }

    #[test]
    fn a_version_is_one_that_kubernetes_can_order() {
        for name in ["v1", "v12", "v1alpha1", "v2beta10"] {
            name.parse::<ApiVersion>().unwrap();
        }
        let bad = ["1", "v", "v0", "V1", "v1.2", "v1alpha", "alpha1", "v1gamma1", "v1alpha1beta1", "v01", "", "v1 "];
        refused::<ApiVersion>(&bad.map(|version| (version, "write v1, v1beta1 or v1alpha1")));
    }

    #[test]
    fn a_kind_is_camel_case_and_means_nothing_else() {
        for name in ["Pet", "CronTab", "HTTPRoute", "X509", "Type", "Match"] {
            name.parse::<Kind>().unwrap();
        }
        refused::<Kind>(&[
            ("greeting", "for example Greeting"),
            ("cron-tab", "for example CronTab"),
            ("my kind", "for example MyKind"),
            ("9lives", "for example CronTab"),
            ("Größe", "CamelCase"),
            ("", "for example CronTab"),
            ("PetList", "a list of Pet"),
            ("Context", "for example MyContext"),
            ("Self", "for example MySelf"),
        ]);
    }
}
