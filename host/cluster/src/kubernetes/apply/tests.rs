//! Conflicts, and who is in the way.

use operetta_core::name::PluginName;
use serde_json::json;

use super::*;

#[test]
fn managers_are_read_out_of_causes_as_the_api_server_writes_them() {
    let status: Status = serde_json::from_value(json!({"details": {"causes": [
        {"reason": "FieldManagerConflict", "message": "conflict with \"kubectl-client-side-apply\" using apps/v1", "field": ".spec.replicas"},
        {"reason": "FieldManagerConflict", "message": "conflict with \"operetta:q/c\" with subresource \"status\" using v1 at 2026-01-01T00:00:00Z", "field": ".status"},
        {"reason": "FieldValueInvalid", "message": "no \"operetta:z/z\"", "field": ".x"},
    ]}}))
    .unwrap();
    let found = conflicts(&status);
    assert_eq!(
        found,
        [("kubectl-client-side-apply".into(), ".spec.replicas".into()), ("operetta:q/c".into(), ".status".into())]
    );
    let own = |plugin: &str| FieldManager::of(&PluginName::parse(plugin).unwrap(), &"c".parse().unwrap());
    assert_eq!(other_plugin(&found, &own("p")), Some(("operetta:q/c".into(), ".status".into())));
    assert_eq!(other_plugin(&found, &own("q")), None);
}
