//! PetStore on a real API server with a real store: what its users were promised, and what stays true under trouble.

use anyhow::ensure;
use k8s_openapi::api::core::v1::Event;
use kube::{ResourceExt as _, api::ListParams};
use operetta_tests::{
    eventually,
    host::{Host, Launch},
    kinds::{Objects, pet, pets, state, text},
    petstore::PetStore,
};
use serde_json::json;

use crate::shared::{
    SOON, TestNamespace, built, launch, namespace, plug, position, reconciled, reconciles, run, settled, writes_since,
};

const PLUGIN: &str = "petstore";

struct Scene {
    namespace: TestNamespace,
    store: PetStore,
    host: Host,
    pets: Objects,
}

/// A namespace, an empty store, and a host that runs the plugin against both. Each pet is looked at again every `resync`.
async fn scene(launch: Launch, resync: &str) -> Scene {
    let namespace = namespace().await;
    let host = launch.namespace(namespace.name()).start(run()).await.unwrap();
    let store = PetStore::start(run(), built()).await.unwrap();
    plug(&host, PLUGIN, |document| document.endpoint(PLUGIN, &store.endpoint()).setting("resync", resync)).await;
    let pets = pets(&namespace.client(), namespace.name());
    Scene { namespace, store, host, pets }
}

impl Scene {
    /// The identifier in the status, once there is one and the store knows it under this name.
    async fn id(&self, object: &str, name: &str) -> String {
        eventually(&format!("the store and the status agree about {object}"), SOON, async || {
            let object = self.pets.get(object).await?;
            let id = text(&object, "/status/id");
            let stored = self.store.pets().await?;
            let found = stored.iter().find(|pet| pet.id == id && pet.external_ref == object.uid().unwrap_or_default());
            let found = found.map_or("nobody", |pet| pet.name.as_str());
            ensure!(found == name, "the store has {found} under the id {id:?}");
            ensure!(state(&object, "Ready") == "True/Synced", "Ready is {}", state(&object, "Ready"));
            Ok(id.to_owned())
        })
        .await
        .unwrap()
    }

    async fn gone(&self, object: &str) {
        eventually(&format!("{object} is gone"), SOON, async || {
            let left = self.pets.get_opt(object).await?;
            ensure!(left.is_none(), "it is still there: {:?}", left.map(|object| object.data));
            Ok(())
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn pets_are_mirrored_renamed_and_deleted_with_as_few_writes_as_can_be() {
    story(launch()).await;
}

/// What its users were promised, whatever rights the host has.
pub async fn story(launch: Launch) {
    let scene = scene(launch, "1h").await;
    let before = position(&scene.namespace).await;
    scene.pets.apply("thor", &pet("Thor", "dog")).await.unwrap();
    scene.pets.apply("tron", &pet("Tron", "cat")).await.unwrap();
    let thor = scene.id("thor", "Thor").await;
    let tron = scene.id("tron", "Tron").await;
    assert_ne!(thor, tron);
    assert_eq!(scene.store.names().await.unwrap(), ["Thor", "Tron"]);
    settled(&scene.host, PLUGIN).await;
    let writes = writes_since(before, PLUGIN, &scene.namespace).await;
    if before.is_some() {
        assert_eq!(writes.len(), 4, "a finalizer and a status for each: {writes:#?}");
    }

    scene.pets.merge("thor", &json!({"spec": {"name": "Thorbert"}})).await.unwrap();
    eventually("the store says Thorbert", SOON, async || {
        let names = scene.store.names().await?;
        ensure!(names == ["Thorbert", "Tron"], "it says {names:?}");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(scene.id("thor", "Thorbert").await, thor, "a renamed pet is the same pet");

    for object in ["thor", "tron"] {
        scene.pets.remove(object).await.unwrap();
        scene.gone(object).await;
    }
    assert!(scene.store.pets().await.unwrap().is_empty());
    let metrics = scene.host.metrics().await.unwrap();
    assert!(metrics.failures(PLUGIN) < 0.5, "a reconcile failed");
}

/// Waits for so many more looks at the store, which come by themselves.
async fn more(scene: &Scene, looks: f64) {
    let seen = reconciles(&scene.host, PLUGIN).await;
    reconciled(&scene.host, PLUGIN, seen, looks).await;
}

#[tokio::test]
async fn a_pet_that_is_as_desired_is_looked_at_and_never_written() {
    let scene = scene(launch(), "1s").await;
    scene.pets.apply("still", &pet("Still", "reptile")).await.unwrap();
    scene.id("still", "Still").await;
    // The event of its own last write may still be on its way.
    more(&scene, 1.0).await;
    let before = position(&scene.namespace).await;
    more(&scene, 4.0).await;
    assert!(writes_since(before, PLUGIN, &scene.namespace).await.is_empty());

    // Something that is not the plugin's business changes.
    scene.pets.merge("still", &json!({"metadata": {"labels": {"touched": "yes"}}})).await.unwrap();
    more(&scene, 2.0).await;
    assert!(writes_since(before, PLUGIN, &scene.namespace).await.is_empty());
}

#[tokio::test]
async fn a_pet_taken_out_of_the_store_comes_back() {
    let scene = scene(launch(), "1s").await;
    scene.pets.apply("lost", &pet("Lost", "bird")).await.unwrap();
    let first = scene.id("lost", "Lost").await;
    scene.store.delete(&first).await.unwrap();
    eventually("the pet is back", SOON, async || {
        let names = scene.store.names().await?;
        ensure!(names == ["Lost"], "the store has {names:?}");
        Ok(())
    })
    .await
    .unwrap();
    assert_ne!(scene.id("lost", "Lost").await, first, "the store gives every pet a new id, and the status follows");
}

#[tokio::test]
async fn while_the_store_is_down_a_pet_says_so_and_is_deletable_when_it_is_back() {
    let scene = scene(launch(), "1s").await;
    scene.pets.apply("patient", &pet("Patient", "dog")).await.unwrap();
    scene.id("patient", "Patient").await;
    let Scene { namespace, store, host, pets } = scene;
    let address = store.address().to_owned();
    store.kill().unwrap();
    eventually("the condition names the code", SOON, async || {
        let ready = state(&pets.get("patient").await?, "Ready");
        ensure!(ready == "False/Unavailable", "Ready is {ready}");
        Ok(())
    })
    .await
    .unwrap();
    eventually("an event warns", SOON, async || {
        let events = namespace.api::<Event>().list(&ListParams::default()).await?;
        let warning = |event: &Event| {
            event.type_.as_deref() == Some("Warning")
                && event.involved_object.name.as_deref() == Some("patient")
                && event.reason.as_deref() == Some("Unavailable")
        };
        ensure!(events.iter().any(warning), "{} events, none of them a warning", events.items.len());
        Ok(())
    })
    .await
    .unwrap();
    pets.remove("patient").await.unwrap();
    let held = pets.get("patient").await.unwrap();
    assert!(held.metadata.deletion_timestamp.is_some() && !held.finalizers().is_empty(), "the store was never asked");

    let store = PetStore::start_at(run(), built(), &address).await.unwrap();
    let scene = Scene { namespace, store, host, pets };
    scene.gone("patient").await;
    assert!(scene.store.pets().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_host_killed_among_many_creations_leaves_one_pet_for_each_object() {
    const PETS: usize = 60;
    let mut scene = scene(launch(), "1h").await;
    let spec = pet("Many", "cat");
    let names: Vec<_> = (0..PETS).map(|number| format!("many-{number}")).collect();
    let creations = names.iter().map(|name| scene.pets.apply(name, &spec));
    let objects = futures::future::try_join_all(creations);
    let killed = eventually("some pets are in the store", SOON, async || {
        let stored = scene.store.pets().await?.len();
        ensure!(stored >= PETS / 6, "{stored} are");
        Ok(stored)
    });
    let (objects, killed) = futures::future::join(objects, killed).await;
    scene.host.kill().unwrap();
    let (objects, killed) = (objects.unwrap(), killed.unwrap());
    let stored = scene.store.pets().await.unwrap().len();
    eprintln!("killed with {stored} of {PETS} pets in the store ({killed} seen)");

    scene.host.begin(run()).await.unwrap();
    eventually("all pets have ids", SOON, async || {
        let pets = scene.pets.list(&ListParams::default()).await?;
        let with = pets.iter().filter(|pet| !text(pet, "/status/id").is_empty()).count();
        ensure!(with == PETS, "{with} of {PETS} have");
        Ok(())
    })
    .await
    .unwrap();
    let stored = scene.store.pets().await.unwrap();
    let mut references: Vec<_> = stored.iter().map(|pet| pet.external_ref.as_str()).collect();
    let mut uids: Vec<_> = objects.iter().filter_map(|object| object.metadata.uid.as_deref()).collect();
    references.sort_unstable();
    uids.sort_unstable();
    assert_eq!(references, uids, "one pet for each object, nothing more, nothing less");
    for object in scene.pets.list(&ListParams::default()).await.unwrap() {
        let stored = stored.iter().find(|pet| pet.external_ref == object.uid().unwrap_or_default()).unwrap();
        assert_eq!(text(&object, "/status/id"), stored.id);
    }
}
