//! What is published, what is counted, and what is refused.

use operetta_core::port::Severity;

use super::*;

#[tokio::test(start_paused = true)]
async fn events_are_about_the_cached_object_and_repetitions_count() {
    let api = FakeApi::new(|sent| sent.path.contains("/events").then(|| (201, json!({}))));
    api.set_things(vec![thing("a", 1)]);
    let cluster = api.cluster();
    let kubernetes = cluster.kubernetes(actor("p"), Scope::All);
    let _subscription = subscribed(&cluster).await;
    let event = |message: &str| Event {
        resource: things(),
        key: key("a"),
        severity: Severity::Warning,
        reason: "Deleting".into(),
        action: "Delete".into(),
        message: message.into(),
    };
    for message in ["one", "one", "one", "two"] {
        kubernetes.publish(&caller("p"), event(message)).await.unwrap();
    }
    let sent: Vec<Sent> = api.sent().into_iter().filter(|s| s.path.contains("/events")).collect();
    let methods: Vec<_> = sent.iter().map(|s| s.method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "PATCH", "POST"]);
    let first: Value = serde_json::from_str(&sent[0].body).unwrap();
    assert_eq!(first["regarding"]["uid"], "uid-a");
    assert_eq!(first["regarding"]["kind"], "Thing");
    assert_eq!(
        (&first["type"], &first["note"], &first["reportingController"]),
        (&json!("Warning"), &json!("one"), &json!("operetta.dev/p"))
    );
    let third: Value = serde_json::from_str(&sent[2].body).unwrap();
    assert_eq!(third["series"]["count"], 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_said_again_and_again_leaves_room_for_what_is_new() {
    let api = FakeApi::new(|sent| sent.path.contains("/events").then(|| (201, json!({}))));
    let kubernetes = api.cluster().kubernetes(actor("p"), Scope::All);
    let publish = async |message: &str| {
        let event = Event {
            resource: things(),
            key: key("a"),
            severity: Severity::Normal,
            reason: "Scaled".into(),
            action: "Scale".into(),
            message: message.into(),
        };
        kubernetes.publish(&caller("p"), event).await.unwrap();
        api.sent().iter().filter(|sent| sent.method == "POST" && sent.path.contains("/events")).count()
    };
    for _ in 0..100 {
        assert_eq!(publish("again").await, 1);
    }
    assert_eq!(publish("new").await, 2);
}

#[tokio::test(start_paused = true)]
async fn what_differs_each_time_about_one_object_is_refused_and_nothing_else_is_lost() {
    let api = FakeApi::new(|sent| sent.path.contains("/events").then(|| (201, json!({}))));
    let cluster = api.cluster();
    let (kubernetes, said) = overheard(&cluster);
    let publish = async |name: &str, reason: &str, message: &str| {
        let event = Event {
            resource: things(),
            key: key(name),
            severity: Severity::Normal,
            reason: reason.into(),
            action: "Scale".into(),
            message: message.into(),
        };
        kubernetes.publish(&caller("p"), event).await
    };
    // Each of many objects has something to say.
    for number in 0..500 {
        publish(&format!("a{number}"), "Scaled", "to 3").await.unwrap();
    }
    assert_eq!(api.sent().iter().filter(|sent| sent.path.contains("/events")).count(), 500);
    for number in 0..20 {
        publish("b", "Scaled", &format!("at {number} o'clock")).await.unwrap();
    }
    let refused = publish("b", "Scaled", "at midnight").await;
    assert!(matches!(refused, Err(ApiError::TooManyRequests(Some(_)))), "{refused:?}");
    let said = said.lock().unwrap().clone();
    assert!(said[0].contains("more than 20 different events about the object within 6 minutes"), "{said:?}");
    publish("b", "Looping", "news").await.unwrap();
    publish("b", "Scaled", "at 0 o'clock").await.unwrap();
    publish("c", "Scaled", "to 3").await.unwrap();
    tokio::time::advance(std::time::Duration::from_mins(6)).await;
    publish("b", "Scaled", "at midnight").await.unwrap();
}
