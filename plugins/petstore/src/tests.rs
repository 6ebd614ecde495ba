//! The plugin against the real service, in process.

use crate::{CHANNEL, FINALIZER, Pet, PetSpec, PetType, plugin};
use expect_test::expect_file;
use operetta_sdk::{
    Failure, Outcome,
    testing::{Cut, Ended, FakeHost, every_cut},
};
use petstore_service::{Store, proto::pet_store_server::PetStoreServer};
use serde_json::json;
use std::time::Duration;
use tonic::Status;

const SETTLED: Outcome = Outcome::RequeueAfter(Duration::from_mins(5));

fn pet(name: &str) -> Pet {
    let birthday = serde_json::from_value(json!("2018-01-01T00:00:00Z")).unwrap();
    Pet::new(&name.to_lowercase(), PetSpec { name: name.to_owned(), kind: PetType::Dog, birthday })
}

fn serve(fake: &FakeHost) -> Store {
    let store = Store::default();
    fake.serve(CHANNEL, PetStoreServer::new(store.clone()));
    store
}

/// Status, reason and identifier.
fn ready(fake: &FakeHost, name: &str) -> (String, String, Option<String>) {
    let status = fake.object::<Pet>(name).unwrap().status.unwrap();
    let condition = status.conditions.first().unwrap();
    assert_eq!(condition.type_, "Ready");
    (condition.status.clone(), condition.reason.clone(), status.id)
}

/// The store holds exactly the pets of the objects, each once, as described, and each object knows its own.
fn assert_mirrored(fake: &FakeHost, store: &Store) {
    let objects = fake.objects::<Pet>();
    let pets = store.pets();
    assert_eq!(pets.len(), objects.len(), "{pets:?}");
    for object in objects {
        let uid = object.metadata.uid.as_ref().unwrap();
        let found: Vec<_> = pets.iter().filter(|pet| pet.external_ref == *uid).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, object.spec.name);
        assert_eq!(found[0].birthday.unwrap().seconds, 1_514_764_800);
        assert_eq!(Some(&found[0].id), object.status.unwrap().id.as_ref());
    }
}

#[tokio::test]
async fn thor_and_tron_live_in_the_store_as_long_as_their_objects() {
    let fake = FakeHost::new(plugin);
    let store = serve(&fake);
    for name in ["Thor", "Tron"] {
        fake.put(&pet(name));
        assert_eq!(fake.reconcile::<Pet>(&name.to_lowercase()).await, Ended::Well(SETTLED));
    }
    assert_mirrored(&fake, &store);
    assert_eq!(
        fake.take_writes(),
        [
            "json pets default/thor",
            "apply pets/status default/thor",
            "json pets default/tron",
            "apply pets/status default/tron"
        ]
    );

    fake.edit::<Pet>("thor", |thor| thor["spec"]["name"] = json!("Thorbert"));
    assert_eq!(fake.settle::<Pet>("thor").await, Ok(SETTLED));
    assert_mirrored(&fake, &store);
    // The condition now speaks of the new generation.
    assert_eq!(fake.take_writes(), ["apply pets/status default/thor"]);

    for name in ["thor", "tron"] {
        fake.remove::<Pet>(name);
        fake.settle::<Pet>(name).await.unwrap();
        assert_eq!(fake.take_writes(), [format!("json pets default/{name}")]);
    }
    assert_eq!((fake.objects::<Pet>().len(), store.pets().len()), (0, 0));
    assert_eq!(fake.take_events(), []);
}

#[tokio::test]
async fn a_pet_as_desired_is_not_written_and_one_that_left_comes_back() {
    let fake = FakeHost::new(plugin);
    let store = serve(&fake);
    fake.put(&pet("Thor"));
    fake.settle::<Pet>("thor").await.unwrap();
    fake.take_writes();
    fake.advance(Duration::from_hours(1));
    assert_eq!(fake.settle::<Pet>("thor").await, Ok(SETTLED));
    assert_eq!(fake.take_writes(), [""; 0]);

    store.delete(vec![store.pets()[0].id.clone()]).unwrap();
    fake.settle::<Pet>("thor").await.unwrap();
    assert_mirrored(&fake, &store);
}

#[tokio::test]
async fn whatever_is_cut_the_store_holds_one_pet_for_each_object() {
    let cuts = every_cut(async |cut: Cut| {
        let fake = FakeHost::new(plugin);
        let store = serve(&fake);
        fake.cut(cut);
        fake.put(&pet("Thor"));
        fake.settle::<Pet>("thor").await.unwrap();
        assert_mirrored(&fake, &store);
        fake.edit::<Pet>("thor", |thor| thor["spec"]["name"] = json!("Thorbert"));
        fake.settle::<Pet>("thor").await.unwrap();
        assert_mirrored(&fake, &store);
        fake.remove::<Pet>("thor");
        fake.settle::<Pet>("thor").await.unwrap();
        assert_mirrored(&fake, &store);
        fake
    })
    .await;
    assert!(cuts > 100, "{cuts}");
}

#[tokio::test]
async fn a_store_that_is_down_is_told_once_and_the_object_can_still_go() {
    let fake = FakeHost::new(plugin);
    fake.put(&pet("Thor"));
    for _ in 0..3 {
        fake.take_down(CHANNEL, Status::unavailable("connection refused"));
        let Ended::Badly(Failure::Retryable(message)) = fake.reconcile::<Pet>("thor").await else { panic!() };
        assert_eq!(message, "the pet store failed: Unavailable: connection refused");
        assert_eq!(ready(&fake, "thor"), ("False".into(), "Unavailable".into(), None));
    }
    assert_eq!(fake.take_writes(), ["json pets default/thor", "apply pets/status default/thor"]);
    let events = fake.take_events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].reason, "Unavailable");

    let store = serve(&fake);
    fake.settle::<Pet>("thor").await.unwrap();
    assert_eq!(ready(&fake, "thor").1, "Synced");

    fake.silence(CHANNEL);
    fake.remove::<Pet>("thor");
    assert!(matches!(fake.reconcile::<Pet>("thor").await, Ended::Badly(Failure::Retryable(_))));
    let (status, reason, id) = ready(&fake, "thor");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "DeadlineExceeded"), "every call has a deadline");
    assert_eq!(id, Some(store.pets()[0].id.clone()), "the identifier stays known");
    assert_eq!(fake.object::<Pet>("thor").unwrap().metadata.finalizers.unwrap(), [FINALIZER]);

    fake.serve(CHANNEL, PetStoreServer::new(store.clone()));
    fake.settle::<Pet>("thor").await.unwrap();
    assert_mirrored(&fake, &store);
}

#[tokio::test]
async fn a_pet_of_the_same_name_that_is_somebody_elses_is_left_alone() {
    let fake = FakeHost::new(plugin);
    let store = serve(&fake);
    let theirs = petstore_service::proto::Pet {
        name: "Thor".into(),
        r#type: 2,
        birthday: Some(prost_types::Timestamp::default()),
        ..Default::default()
    };
    store.add(vec![theirs]).unwrap();
    fake.put(&pet("Thor"));
    fake.settle::<Pet>("thor").await.unwrap();
    assert_eq!(store.pets().len(), 2);
    fake.remove::<Pet>("thor");
    fake.settle::<Pet>("thor").await.unwrap();
    assert_eq!(store.pets().len(), 1);
    assert_eq!(store.pets()[0].external_ref, "");
}

#[tokio::test]
async fn the_resync_is_a_setting_and_a_bad_one_is_named() {
    let fake = FakeHost::new(plugin);
    serve(&fake);
    fake.put(&pet("Thor"));
    fake.set("resync", "30s");
    assert_eq!(fake.settle::<Pet>("thor").await, Ok(Outcome::RequeueAfter(Duration::from_secs(30))));
    fake.set("resync", "soon");
    let Err(Failure::Terminal(message)) = fake.settle::<Pet>("thor").await else { panic!() };
    assert!(message.contains("\"resync\" is \"soon\""), "{message}");
}

#[test]
fn the_manifest_is_what_is_committed() {
    let manifest = serde_json::to_string_pretty(&plugin().manifest()).unwrap();
    expect_file!["../manifest.json"].assert_eq(&manifest);
}
