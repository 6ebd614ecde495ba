//! Conflicts, and who is in the way.

use operetta_core::name::PluginName;
use serde_json::json;

use super::*;

#[test]
fn managers_are_read_out_of_causes_as_the_api_server_writes_them() {
    let status: Status = serde_json::from_value(json!({"details": {"causes": [
        {"reason": "FieldManagerConflict", "message": "conflict with \"kubectl-client-side-apply\" using apps/v1", "field": ".spec.replicas"},
        {"reason": "FieldManagerConflict", "message": "conflict with \"operetta:q/c\" with subresource \"status\" using v1 at 2026-01-01T00:00:00Z", "field": ".status"},
        {"reason": "FieldManagerConflict", "message": "conflict with \"operetta:r/c\"", "field": ".spec"},
        {"reason": "FieldManagerConflict", "message": "conflict with \"operetta:r/c\" with subresource \"status\"", "field": ".status.x"},
        {"reason": "FieldValueInvalid", "message": "no \"operetta:z/z\"", "field": ".x"},
    ]}}))
    .unwrap();
    let found = conflicts(&status);
    let conflict =
        |manager: &str, field: &str, is_update| Conflict { manager: manager.into(), field: field.into(), is_update };
    assert_eq!(
        found,
        [
            conflict("kubectl-client-side-apply", ".spec.replicas", true),
            conflict("operetta:q/c", ".status", true),
            conflict("operetta:r/c", ".spec", false),
            conflict("operetta:r/c", ".status.x", false),
        ]
    );
    let own = |plugin: &str| FieldManager::of(&PluginName::parse(plugin).unwrap(), &"c".parse().unwrap());
    let first = |plugin: &str, is_update: bool| {
        let own = own(plugin);
        first_of(found.iter().filter(|c| c.is_of_another(&own) && c.is_update == is_update))
    };
    assert_eq!(first("p", true), Some(("operetta:q/c".into(), ".status".into())));
    assert_eq!(first("q", true), None);
    assert_eq!(first("q", false), Some(("operetta:r/c".into(), ".spec, .status.x".into())));
}

#[test]
fn more_fields_than_are_remembered_make_all_be_forgotten() {
    let target = |name: &str| Target {
        controller: "c".parse().unwrap(),
        resource: Resource::parse("", "v1", "pods").unwrap(),
        key: ObjectKey::parse(Some("n"), name).unwrap(),
        subresource: None,
    };
    let applied =
        |fields: usize| Applied { body: 0, uid: String::new(), version: String::new(), fields: vec![0; fields].into() };
    let mut memory = Memory::default();
    for _ in 0..3 {
        memory.keep(target("a"), applied(MOST_FIELDS / 2));
    }
    memory.keep(target("b"), applied(MOST_FIELDS / 2));
    assert_eq!((memory.targets.len(), memory.fields), (2, MOST_FIELDS));
    memory.keep(target("c"), applied(1));
    assert_eq!((memory.targets.len(), memory.fields), (1, 1));
}
