//! `--impersonation`: which rights the host gets to act as plugins' accounts, wherever a command writes or prints them.

use operetta_cluster::{install::Way, request::Fault};
use operetta_core::name::{AccountName, NameError, Namespace, ServiceAccount};

use crate::deploy::{NAME, NAMESPACE};

/// How the host becomes a plugin's account, as a person says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Choice {
    /// It may do for a plugin what the plugin's own rules say; Kubernetes 1.36 and later
    Constrained,
    /// It may do whatever the plugins' accounts may
    Classic,
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct ImpersonationArgs {
    /// How the host becomes a plugin's account; the narrowest way that the API server knows unless told
    #[arg(long, value_name = "WAY", value_enum)]
    impersonation: Option<Choice>,
}

impl ImpersonationArgs {
    /// As it was said, or as this API server knows it.
    pub(crate) async fn known_to(self, client: &kube::Client) -> Result<Way, Fault> {
        match self.impersonation {
            Some(choice) => Ok(choice.into()),
            None => Way::of(client).await,
        }
    }

    /// As it was said, or the narrow way.
    pub(crate) fn or_constrained(self) -> Way {
        self.impersonation.map_or(Way::Constrained, Into::into)
    }
}

impl From<Choice> for Way {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::Constrained => Self::Constrained,
            Choice::Classic => Self::Classic,
        }
    }
}

/// The host that will run a plugin.
#[derive(Debug, Clone)]
pub(crate) struct HostSide {
    /// Its own account.
    pub(crate) account: ServiceAccount,
    /// How it becomes others.
    pub(crate) way: Way,
}

impl HostSide {
    /// As `operetta deploy` makes it in this namespace.
    pub(crate) fn of(namespace: &Namespace, way: Way) -> Result<Self, NameError> {
        Ok(Self { account: ServiceAccount { namespace: namespace.clone(), name: AccountName::parse(NAME)? }, way })
    }
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct HostArgs {
    /// Where the host runs: its account is given what it takes to act as the plugin's, and there it looks for ConfigMaps
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    pub(crate) host_namespace: Namespace,
    #[command(flatten)]
    pub(crate) impersonation: ImpersonationArgs,
}

impl HostArgs {
    /// The host, with the narrow way where nobody says another.
    pub(crate) fn host(&self) -> Result<HostSide, NameError> {
        HostSide::of(&self.host_namespace, self.impersonation.or_constrained())
    }
}
