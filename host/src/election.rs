//! The flags of leader election, as every manager of controller-runtime has them, and what a host tells while it waits for its turn.

use std::{sync::Arc, time::Duration};

use kube::Client;
use operetta_cluster::lease::{Candidate, Lost, Standing, Term, Timing};
use operetta_core::name::{Namespace, ObjectName};

use crate::{
    cli::parse_duration,
    exit::Failed,
    telemetry::{Health, Metrics},
};

/// Whether, and by which lease, one host of several is chosen.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
#[expect(clippy::struct_field_names, reason = "flags are called as their fields")]
pub(crate) struct ElectionArgs {
    /// Work only while this host holds a lease, so that of several hosts one works
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(crate) leader_elect: bool,
    /// The name of the Lease
    #[arg(long, value_name = "NAME", default_value = "host.operetta.dev")]
    leader_election_id: ObjectName,
    /// The namespace of the Lease; the pod's own, or that of the kubeconfig's context, unless told
    #[arg(long, value_name = "NAMESPACE")]
    leader_election_namespace: Option<Namespace>,
    /// How long the others wait for a leader that is silent
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    leader_election_lease_duration: Duration,
    /// How long a leader tries to renew its lease before it stops
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    leader_election_renew_deadline: Duration,
    /// Between two attempts to get or to renew the lease
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    leader_election_retry_period: Duration,
}

impl ElectionArgs {
    /// The times, if they can work together.
    pub(crate) fn timing(&self) -> anyhow::Result<Timing> {
        let timing = Timing {
            lease_duration: self.leader_election_lease_duration,
            renew_deadline: self.leader_election_renew_deadline,
            retry_period: self.leader_election_retry_period,
        };
        timing.check().map_err(|why| {
            Failed::usage(format!(
                "--leader-election-lease-duration, --leader-election-renew-deadline and --leader-election-retry-period do not fit: {why}"
            ))
        })?;
        Ok(timing)
    }
}

/// The right to work: a term as leader, or none needed.
pub(crate) struct Leadership {
    term: Option<Term>,
    tell: Box<dyn Fn(bool) + Send + Sync>,
}

impl Leadership {
    /// Waits until this host may work: at once without `--leader-elect`.
    ///
    /// # Errors
    /// The flags do not fit.
    pub(crate) async fn gain(
        args: &ElectionArgs,
        client: &Client,
        health: &Health,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        if !args.leader_elect {
            return Ok(Self { term: None, tell: Box::new(|_| {}) });
        }
        let timing = args.timing()?;
        let name = args.leader_election_id.clone();
        let tell = {
            let (metrics, name) = (Arc::clone(metrics), name.clone());
            move |leads| metrics.leads(name.as_str(), leads)
        };
        tell(false);
        let namespace = match &args.leader_election_namespace {
            Some(namespace) => namespace.clone(),
            None => Namespace::parse(client.default_namespace())?,
        };
        let identity = identity();
        tracing::info!(lease = %name, %namespace, identity, "waiting for the leader's lease");
        let candidate = Candidate::new(client.clone(), &namespace, name.as_str(), &identity, timing);
        let term = candidate
            .lead(|standing| match standing {
                Standing::Follows(leader) => {
                    tracing::info!(leader, "another host leads; this one stands by");
                    health.stand_by(leader);
                }
                Standing::Unknown(error) => {
                    tracing::warn!(error, "the leader's lease cannot be had");
                    health.set_ready(false);
                }
            })
            .await;
        // Ready again when it is known how its plugins fare.
        health.set_ready(false);
        tell(true);
        tracing::info!(lease = %name, identity, "this host leads");
        Ok(Self { term: Some(term), tell: Box::new(tell) })
    }

    /// Returns when this host may work no longer.
    pub(crate) async fn lost(&mut self) -> Lost {
        match &mut self.term {
            Some(term) => {
                let lost = term.keep().await;
                (self.tell)(false);
                lost
            }
            None => std::future::pending().await,
        }
    }

    /// Gives the right to the next one. To be called when nothing runs any more.
    pub(crate) async fn give_back(self) {
        if let Some(term) = self.term {
            term.end().await;
            (self.tell)(false);
        }
    }
}

/// Tells this process from every other, and a person where it runs: in a pod the host's name is the pod's.
fn identity() -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let machine = match machine.trim() {
        "" => "operetta",
        name => name,
    };
    format!("{machine}_{:016x}", rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_on_one_machine_differ() {
        assert_ne!(identity(), identity());
    }
}
