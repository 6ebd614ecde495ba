//! What follows from an object and the claim that bears its name. Pure.

use crate::api::DemoVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use operetta_sdk::{controller_reference, controls};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// One GiB in bytes.
const GIB: u128 = 1 << 30;

/// What matters of a PersistentVolumeClaim.
#[derive(Deserialize)]
pub(crate) struct ClaimView {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    spec: ClaimSpecView,
    #[serde(default)]
    status: ClaimStatusView,
}

#[derive(Default, Deserialize)]
struct ClaimSpecView {
    #[serde(default)]
    resources: ResourcesView,
}

#[derive(Default, Deserialize)]
struct ResourcesView {
    #[serde(default)]
    requests: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct ClaimStatusView {
    #[serde(default)]
    phase: String,
    #[serde(default)]
    capacity: BTreeMap<String, String>,
    /// While it grows: why it has not grown yet.
    #[serde(default)]
    conditions: Vec<ConditionView>,
}

/// A claim's conditions lack fields that those of newer kinds must have.
#[derive(Deserialize)]
struct ConditionView {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    message: Option<String>,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The claim is somebody else's: leave it alone.
    NameTaken,
    /// There is no claim: make it.
    Create,
    /// The claim is about to go: wait for that.
    Wait,
    /// It asks for less than the object: ask for more.
    Grow,
    /// It asks for more than the object, this much: storage never shrinks.
    TooLarge(String),
    /// It asks for what the object says.
    Keep(Progress),
}

/// How far a claim has come that asks for what it should.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// A volume of this size belongs to it.
    Bound,
    /// No volume yet, or no longer: its phase.
    Unbound(String),
    /// Its volume does not have the size yet, and what the storage says of that.
    Growing(String),
}

/// What to do.
pub(crate) fn plan(object: &DemoVolume, claim: Option<&ClaimView>) -> Step {
    let Some(claim) = claim else { return Step::Create };
    if !controls(object, &claim.metadata) {
        return Step::NameTaken;
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Step::Wait;
    }
    let wanted = u128::try_from(object.spec.size).unwrap_or_default() * GIB;
    let requested = storage(&claim.spec.resources.requests);
    // What nobody can read counts as nothing: the API server says what it thinks of a change.
    let bytes = bytes(requested).unwrap_or_default();
    if bytes < wanted {
        return Step::Grow;
    }
    if bytes > wanted {
        return Step::TooLarge(requested.to_owned());
    }
    Step::Keep(progress(&claim.status, wanted))
}

fn progress(status: &ClaimStatusView, wanted: u128) -> Progress {
    if status.phase != "Bound" {
        let phase = if status.phase.is_empty() { "Pending" } else { &status.phase };
        return Progress::Unbound(phase.to_owned());
    }
    // A volume may be larger than what was asked for.
    if bytes(storage(&status.capacity)).is_some_and(|capacity| capacity < wanted) {
        let said = status.conditions.iter().filter(|condition| condition.status == "True");
        let said = said.map(|condition| match condition.message.as_deref() {
            Some(message) if !message.is_empty() => format!("{}: {message}", condition.kind),
            _ => condition.kind.clone(),
        });
        return Progress::Growing(said.collect::<Vec<_>>().join("; "));
    }
    Progress::Bound
}

/// The claim of an object.
pub(crate) fn claim(object: &DemoVolume) -> Value {
    json!({
        "metadata": {"name": object.metadata.name, "ownerReferences": [controller_reference(object)]},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": quantity(object)}},
        },
    })
}

/// The object's size as Kubernetes writes it.
pub(crate) fn quantity(object: &DemoVolume) -> String {
    format!("{}Gi", object.spec.size)
}

fn storage(quantities: &BTreeMap<String, String>) -> &str {
    quantities.get("storage").map(String::as_str).unwrap_or_default()
}

/// The bytes of a quantity in the forms that the API server writes: a whole number and a suffix, or an exponent.
fn bytes(quantity: &str) -> Option<u128> {
    let end = quantity.find(|c: char| !c.is_ascii_digit()).unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at(end);
    let number: u128 = number.parse().ok()?;
    let decimal = |exponent: u32| 10_u128.checked_pow(exponent);
    let factor = match suffix {
        "" => 1,
        "k" => decimal(3)?,
        "M" => decimal(6)?,
        "G" => decimal(9)?,
        "T" => decimal(12)?,
        "P" => decimal(15)?,
        "E" => decimal(18)?,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => GIB,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        "Ei" => 1 << 60,
        // Thousandths of a byte are rounded up, as the API server does.
        "m" => return Some(number.div_ceil(1_000)),
        _ => decimal(suffix.strip_prefix(['e', 'E'])?.parse().ok()?)?,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn quantities_are_read_as_the_api_server_writes_them() {
        for (quantity, expected) in [
            ("0", Some(0)),
            ("5Gi", Some(5 << 30)),
            ("1536Mi", Some(1536 << 20)),
            ("5368709120", Some(5 << 30)),
            ("5G", Some(5_000_000_000)),
            ("12e6", Some(12_000_000)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("1500m", Some(2)),
            ("7Ei", Some(7 << 60)),
            ("", None),
            ("Gi", None),
            ("5 Gi", None),
            ("1e99", None),
        ] {
            assert_eq!(bytes(quantity), expected, "{quantity:?}");
        }
    }
}
