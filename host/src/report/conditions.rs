//! The status of a Plugin, composed of what is seen. Pure, but for the time that is given.
//!
//! Each condition says of which generation it speaks, so that `kubectl wait` never takes the old truth for the new one, and keeps its `lastTransitionTime` while its
//! status stays.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use operetta_api::{DeletionPolicy, PluginStatus};
use operetta_core::{cache::Scope, grant::Remedy, name::Digest};

use super::Seen;
use crate::plugin::{Problem, explain};

/// The API server takes messages of at most this many bytes.
const LONGEST: usize = 32 << 10;

/// What a condition says.
struct Says {
    status: &'static str,
    reason: &'static str,
    message: String,
}

fn says(status: &'static str, reason: &'static str, message: impl Into<String>) -> Says {
    Says { status, reason, message: message.into() }
}

/// The status as it is to be written; `before` is the one that is there.
pub(super) fn compose(seen: &Seen, before: &PluginStatus, now: Timestamp) -> PluginStatus {
    let status = &seen.status;
    let generation = status.object.as_ref().map(|object| object.generation);
    let conditions = [
        ("Loaded", loaded(seen)),
        ("Granted", granted(seen)),
        ("Ready", ready(seen)),
        ("Degraded", degraded(seen)),
        ("FinalizersHeld", held(seen)),
    ];
    let conditions = conditions.map(|(type_, says)| {
        let same = before.conditions.iter().find(|c| c.type_ == type_ && c.status == says.status);
        Condition {
            type_: type_.to_owned(),
            status: says.status.to_owned(),
            reason: says.reason.to_owned(),
            message: cut(says.message),
            observed_generation: generation,
            last_transition_time: same.map_or_else(|| Time(seconds(now)), |c| c.last_transition_time.clone()),
        }
    });
    let switched = status.switched.as_ref();
    let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    PluginStatus {
        digest: switched.map(|s| s.digest.to_string()),
        short_digest: switched.map(|s| s.digest.short()),
        version: switched.map(|s| s.version.clone()),
        observed_generation: generation,
        namespaces: switched.map(|s| namespaces(&s.scope)).unwrap_or_default(),
        objects: switched.map(|_| whole(seen.census.objects as u64)),
        reconciles: Some(whole(seen.reconciles)),
        errors: Some(whole(seen.errors)),
        conditions: conditions.to_vec(),
    }
}

/// As the API server keeps times.
fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn cut(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST - 4).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
        text.truncate(end);
        text.push('…');
    }
    text
}

fn namespaces(scope: &Scope) -> Vec<String> {
    match scope {
        Scope::All => vec!["*".to_owned()],
        Scope::Namespaces(some) => some.iter().map(ToString::to_string).collect(),
    }
}

fn shown((version, digest): (&String, &Digest)) -> String {
    format!("version {version} ({})", digest.short())
}

fn told(problem: &Problem, seen: &Seen) -> String {
    let message = &problem.message;
    match &seen.status.switched {
        None => format!("{message}; nothing runs"),
        Some(switched) => {
            format!("{message}; {} {}", shown((&switched.version, &switched.digest)), switched.meanwhile)
        }
    }
}

fn loaded(seen: &Seen) -> Says {
    let status = &seen.status;
    if status.suspended.is_some() {
        return says("Unknown", "Suspended", "the component is not looked at while the Plugin is suspended");
    }
    if let Some(problem) = status.problem.as_ref().filter(|problem| problem.is_of_loading()) {
        return says("False", problem.word(), told(problem, seen));
    }
    let Some((version, digest)) = &status.candidate else {
        return says("Unknown", "Loading", "the component is being fetched, verified and compiled");
    };
    let mut message = format!("version {version}, {digest}");
    if status.object.as_ref().is_some_and(|object| object.shadows) {
        message.push_str(
            "; the plugin directory has a document of the same name, which is not used while this Plugin exists",
        );
    }
    says("True", "Loaded", message)
}

fn granted(seen: &Seen) -> Says {
    let status = &seen.status;
    if status.suspended.is_some() {
        return says("Unknown", "Suspended", "what it needs is not looked at while the Plugin is suspended");
    }
    if let Some(problem) = status.problem.as_ref().filter(|problem| problem.is_of_grants()) {
        return says("False", problem.word(), told(problem, seen));
    }
    if !seen.denied.is_empty() {
        let mut message = String::from("it was denied what it is not granted; to allow it:");
        for denial in &seen.denied {
            message.push_str(&match &denial.remedy {
                Remedy::Grant { place, yaml } => format!("\n# {}, below {}:\n{yaml}", denial.what, place.field()),
                Remedy::None(_) | Remedy::Closed(_) => format!("\n# {denial}"),
            });
        }
        return says("False", "Denied", message);
    }
    if status.switched.is_some() || status.problem.as_ref().is_some_and(|problem| !problem.is_of_loading()) {
        return says("True", "Granted", "all that its controllers need is granted, and nothing was denied since");
    }
    says("Unknown", "Loading", "what it needs is known when its component is loaded")
}

fn ready(seen: &Seen) -> Says {
    let status = &seen.status;
    if status.suspended.is_some() {
        return says("False", "Suspended", "spec.suspend is true");
    }
    if let Some(problem) = &status.problem {
        return says("False", problem.word(), told(problem, seen));
    }
    let Some(switched) = &status.switched else { return says("False", "Starting", "nothing runs yet") };
    let version = shown((&switched.version, &switched.digest));
    match status.leaving.as_ref().map(|leaving| leaving.policy) {
        Some(DeletionPolicy::Drain) => return says("False", "Draining", held_text(seen, DeletionPolicy::Drain)),
        Some(DeletionPolicy::Release) => return says("False", "Releasing", held_text(seen, DeletionPolicy::Release)),
        Some(DeletionPolicy::Refuse) if seen.census.held > 0 => {
            return says("True", "DeletionRefused", held_text(seen, DeletionPolicy::Refuse));
        }
        _ => {}
    }
    if !status.is_ready() {
        return says("False", "Starting", format!("{version} fills its caches"));
    }
    if let Some(why) = &seen.parked {
        return says("False", "Parked", format!("{why}; Degraded says what to do"));
    }
    says("True", "Running", format!("{version} runs as {} in {}", switched.account, places(&switched.scope)))
}

fn places(scope: &Scope) -> String {
    match scope {
        Scope::All => "all namespaces".to_owned(),
        Scope::Namespaces(_) => namespaces(scope).join(", "),
    }
}

/// What a person can do about a controller that is parked.
const WAY_OUT: &str = "one object is tried every few minutes at the latest, and all of them as soon as that goes well; correct the plugin, or raise the limit that is named, in spec.limits, \
     and all are looked at anew; `operetta reconcile KIND/NAME` tries that object at once";

fn degraded(seen: &Seen) -> Says {
    if let Some(why) = &seen.parked {
        return says("True", "Parked", format!("{why}; {WAY_OUT}"));
    }
    if let Some(what) = &seen.looping {
        let message = format!(
            "{what}: the plugin's own writes wake it again and again, or somebody else undoes them, so that it is slowed for that object; correct the plugin, or let one of the two own the field"
        );
        return says("True", "Looping", message);
    }
    match &seen.trapping {
        Some(why) => says(
            "True",
            "Trapping",
            format!("{why}; the log has the backtrace: correct the plugin, or pause the object"),
        ),
        None => says("False", "AsExpected", "no object makes it trap again and again, and none loops"),
    }
}

fn held_text(seen: &Seen, policy: DeletionPolicy) -> String {
    if seen.census.held == 0 {
        return "no object holds a finalizer of the plugin; it goes".to_owned();
    }
    explain(policy, &seen.census, false)
}

fn held(seen: &Seen) -> Says {
    let status = &seen.status;
    if let Some(held) = &status.suspended {
        let held = if held.is_empty() { "nothing was held" } else { held };
        return says("Unknown", "Suspended", format!("when the Plugin was suspended: {held}"));
    }
    let Some(switched) = &status.switched else {
        if status.leaving.is_some() {
            return says(
                "Unknown",
                "NotRunning",
                "the Plugin is to go, and nobody knows what is held while its component does not run: correct what Ready says, or, where nothing is held or nobody minds, \
                 take the finalizer operetta.dev/plugin off the Plugin",
            );
        }
        return says("Unknown", "NotRunning", "known when the plugin runs");
    };
    if seen.census.held == 0 {
        let message =
            if switched.arriving { "none that is known yet" } else { "no object holds a finalizer of the plugin" };
        return says(if switched.arriving { "Unknown" } else { "False" }, "NoneHeld", message);
    }
    match status.leaving.as_ref().map(|leaving| leaving.policy) {
        None => says("True", "InUse", format!("{}; deleting this Plugin would wait for them", seen.census)),
        Some(policy @ DeletionPolicy::Refuse) => says("True", "DeletionRefused", held_text(seen, policy)),
        Some(policy @ DeletionPolicy::Drain) => says("True", "Draining", held_text(seen, policy)),
        Some(policy @ DeletionPolicy::Release) => says("True", "Releasing", held_text(seen, policy)),
    }
}
