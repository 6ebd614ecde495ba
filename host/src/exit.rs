//! How the program ends: one exit code for each kind of failure, so that scripts can tell them apart. The kind is read from the typed errors of the layers
//! below, never from their texts.

use std::process::ExitCode;

use operetta_api::DocumentError;
use operetta_cluster::{
    adopt::AdoptError, client::ConnectError, install::InstallError, kinds::KindError, request::Fault,
};
use operetta_core::{manifest::ManifestError, port::ApiError};
use operetta_sandbox::LoadError;

/// What `operetta --help` and the README say of exit codes; a test holds both to [`Exit`].
pub const TABLE: &str = "\
Exit codes:
  0  done
  1  anything else went wrong
  2  bad usage: an option or argument that is none, a file or folder that is not there
  3  bad plugin: a component, manifest or Plugin document that cannot be used
  4  unreachable: no cluster is configured, or none answers in time
  5  refused: the cluster answered, and said no
  6  no: what `can-i` was asked for, the plugin may not do";

/// How a command ended that failed. The numbers are part of the command line: they never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Anything without a code of its own.
    Other = 1,
    /// What was typed cannot be done; also what clap ends with.
    Usage = 2,
    /// A component, manifest or Plugin document.
    Plugin = 3,
    /// No API server.
    Unreachable = 4,
    /// The API server, or what it knows, says no.
    Refused = 5,
    /// The answer is no, which is no failure; kubectl's 1 would say that something went wrong.
    No = 6,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A failure that only the command itself can tell the kind of.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failed {
    exit: Exit,
    message: String,
}

impl Failed {
    /// What was typed cannot be done.
    pub fn usage(message: impl Into<String>) -> anyhow::Error {
        Self { exit: Exit::Usage, message: message.into() }.into()
    }

    /// A plugin cannot be used.
    pub fn plugin(message: impl Into<String>) -> anyhow::Error {
        Self { exit: Exit::Plugin, message: message.into() }.into()
    }

    /// The answer to a question is no.
    pub fn no(message: impl Into<String>) -> anyhow::Error {
        Self { exit: Exit::No, message: message.into() }.into()
    }

    /// The cluster, or what it knows, says no.
    pub fn refused(message: impl Into<String>) -> anyhow::Error {
        Self { exit: Exit::Refused, message: message.into() }.into()
    }
}

/// The exit code of a failure: what the outermost error says whose kind is known.
pub fn of(error: &anyhow::Error) -> Exit {
    error.chain().find_map(known).unwrap_or(Exit::Other)
}

fn known(error: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(failed) = error.downcast_ref::<Failed>() {
        return Some(failed.exit);
    }
    if let Some(error) = error.downcast_ref::<LoadError>() {
        return Some(if matches!(error, LoadError::Host { .. }) { Exit::Other } else { Exit::Plugin });
    }
    if error.is::<DocumentError>() || error.is::<ManifestError>() {
        return Some(Exit::Plugin);
    }
    if let Some(error) = error.downcast_ref::<ConnectError>() {
        return Some(if matches!(error, ConnectError::Unauthorized(_)) { Exit::Refused } else { Exit::Unreachable });
    }
    if let Some(error) = error.downcast_ref::<InstallError>() {
        return Some(match error {
            InstallError::NoCrd(_)
            | InstallError::ReservedGroup(_)
            | InstallError::Webhook(_)
            | InstallError::Verb(_)
            | InstallError::Name(_) => Exit::Plugin,
            InstallError::Refused { fault, .. }
            | InstallError::Kept { fault, .. }
            | InstallError::Unreadable { fault, .. } => of_fault(fault),
            InstallError::Taken { .. }
            | InstallError::StoredVersion { .. }
            | InstallError::Lacks(_)
            | InstallError::Conflict { .. }
            | InstallError::NotEstablished(_)
            | InstallError::NotGone(_) => Exit::Refused,
        });
    }
    match error.downcast_ref::<KindError>() {
        Some(KindError::Ambiguous { .. }) => return Some(Exit::Usage),
        Some(KindError::Unknown(_) | KindError::TooOld) => return Some(Exit::Refused),
        // Of the others the cause says it.
        Some(KindError::Fault(_) | KindError::Name(_)) | None => {}
    }
    if let Some(AdoptError::Version { .. } | AdoptError::Busy(_)) = error.downcast_ref() {
        return Some(Exit::Refused);
    }
    if let Some(fault) = error.downcast_ref::<Fault>() {
        return Some(of_fault(fault));
    }
    if let Some(error) = error.downcast_ref::<ApiError>() {
        return Some(match error {
            ApiError::Unavailable(_) | ApiError::Unreachable(_) | ApiError::Timeout(_) => Exit::Unreachable,
            _ => Exit::Refused,
        });
    }
    match error.downcast_ref::<kube::Error>()? {
        kube::Error::Api(status) => Some(of_status(status.code)),
        kube::Error::Service(_) | kube::Error::HyperError(_) => Some(Exit::Unreachable),
        _ => None,
    }
}

fn of_fault(fault: &Fault) -> Exit {
    match fault {
        Fault::Answer { code, .. } => of_status(*code),
        Fault::Lost(_) | Fault::Unreachable(_) | Fault::Timeout => Exit::Unreachable,
        Fault::TooLarge | Fault::Busy(_) | Fault::Unsendable(_) | Fault::NoClient(_) | Fault::Garbled(_) => Exit::Other,
    }
}

/// An API server that fails by itself, or whose proxy does, is as good as none.
fn of_status(code: u16) -> Exit {
    if code >= 500 { Exit::Unreachable } else { Exit::Refused }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use operetta_core::name::PluginName;
    use operetta_sandbox::verify::VerifyError;

    use super::*;

    #[test]
    fn each_kind_of_failure_has_a_code_of_its_own_however_deep_it_lies() {
        let answer = |code| Fault::Answer {
            code,
            reason: String::new(),
            message: String::new(),
            status: Box::default(),
            retry_after: None,
        };
        let install = |fault| InstallError::Refused { what: "x".into(), fault };
        let name = PluginName::parse("demo").unwrap();
        let cases: [(anyhow::Error, Exit); 17] = [
            (anyhow::anyhow!("whatever"), Exit::Other),
            (Failed::usage("x"), Exit::Usage),
            (Failed::plugin("x"), Exit::Plugin),
            (Failed::refused("x"), Exit::Refused),
            (LoadError::Verify(VerifyError::Empty).into(), Exit::Plugin),
            (LoadError::Host { phase: "compile", why: "disk full".into() }.into(), Exit::Other),
            (operetta_api::parse(&name, "kind: Pod").unwrap_err().into(), Exit::Plugin),
            (ConnectError::Nowhere { tried: "x".into() }.into(), Exit::Unreachable),
            (ConnectError::Unauthorized("x".into()).into(), Exit::Refused),
            (InstallError::Webhook("x".into()).into(), Exit::Plugin),
            (install(answer(403)).into(), Exit::Refused),
            (install(answer(503)).into(), Exit::Unreachable),
            (Fault::Timeout.into(), Exit::Unreachable),
            (KindError::Unknown("cats".into()).into(), Exit::Refused),
            (KindError::Fault(answer(403)).into(), Exit::Refused),
            (AdoptError::Refused { what: "x".into(), fault: Fault::Timeout }.into(), Exit::Unreachable),
            (ApiError::Conflict("x".into()).into(), Exit::Refused),
        ];
        for (error, exit) in cases {
            let said = format!("{error:?}");
            assert_eq!(of(&error), exit, "{said}");
            let deeper = Err::<(), _>(error).context("plugin x").context("more").unwrap_err();
            assert_eq!(of(&deeper), exit, "{said}, with context");
        }
    }

    #[test]
    fn the_table_names_each_code_in_the_help_and_in_the_readme() {
        use clap::CommandFactory as _;
        let codes = [Exit::Other, Exit::Usage, Exit::Plugin, Exit::Unreachable, Exit::Refused, Exit::No];
        let readme = include_str!("../../README.md");
        for (code, name) in codes.iter().zip(["", "usage", "plugin", "unreachable", "refused", "no: "]) {
            let code = *code as u8;
            assert!(
                TABLE.lines().any(|line| line.starts_with(&format!("  {code}  ")) && line.contains(name)),
                "{code}"
            );
            assert!(
                readme.lines().any(|line| line.starts_with(&format!("| {code} |")) && line.contains(name)),
                "{code}"
            );
        }
        assert!(crate::cli::Cli::command().render_long_help().to_string().contains(TABLE));
    }
}
