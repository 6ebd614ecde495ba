//! What an event looks like when it arrives.

use super::*;

#[test]
fn an_event_has_a_name_that_the_api_server_takes() {
    let now = Timestamp::from_nanosecond(255).unwrap();
    let name = |object: &str| event_name(&ObjectKey::parse(None, object).unwrap(), now);
    assert_eq!(name("web"), "web.ff");
    assert_eq!(name("System:Node_1"), "system-node-1.ff");
    assert_eq!(name(&"a".repeat(253)).len(), 203);
    assert_eq!(micro(now), "1970-01-01T00:00:00.000000Z");
}
