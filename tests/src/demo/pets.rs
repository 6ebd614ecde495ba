//! The part of the story about pets.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use serde_json::json;

use super::{
    stage::{SOON, Stage},
    tell::Teller,
};
use crate::{
    eventually,
    kinds::{pets, text},
};

/// Thor and Tron.
const SAMPLES: &str = "config/samples/petstore_v1alpha1_pet.yaml";

/// Two pets are applied, the store gives them ids, and the ids stand in the status.
pub async fn move_in(stage: &mut Stage, tell: &Teller) -> Result<()> {
    let samples = stage.read(SAMPLES)?;
    tell.types(&stage.kubectl(&format!("apply -f {SAMPLES}")));
    let pets = pets(&stage.client, stage.namespace());
    let start = Instant::now();
    for sample in &samples {
        let name = sample.pointer("/metadata/name").and_then(|name| name.as_str()).context("a sample has a name")?;
        pets.apply(name, sample.get("spec").context("a sample has a spec")?).await?;
    }
    let mut ids = Vec::new();
    for name in ["thor", "tron"] {
        let pet = eventually(&format!("{name} has an id"), SOON, async || {
            let pet = pets.get(name).await?;
            ensure!(!text(&pet, "/status/id").is_empty(), "it has none");
            Ok(pet)
        })
        .await?;
        ids.push((pet.uid().unwrap_or_default(), text(&pet, "/status/id").to_owned()));
    }
    tell.took("both have an id in their status", start.elapsed());
    tell.types(&stage.kubectl("get pets"));
    for (name, (_, id)) in ["thor", "tron"].iter().zip(&ids) {
        tell.says(&format!("{name}   {id}"));
    }
    tell.types(&format!("grpcurl -plaintext {} petstore.v1.PetStore/SearchPets", stage.store.address()));
    let stored = stage.store.pets().await?;
    for pet in &stored {
        tell.says(&format!(
            "{}  {:<9} {}",
            pet.id,
            pet.name,
            pet.r#type().as_str_name().trim_start_matches("PET_TYPE_").to_lowercase()
        ));
    }
    let known = |(uid, id): &(String, String)| stored.iter().any(|pet| pet.external_ref == *uid && pet.id == *id);
    ensure!(stored.len() == 2 && ids.iter().all(known), "the store holds {stored:?}");
    Ok(())
}

/// A pet is renamed, and the store follows.
pub async fn rename(stage: &mut Stage, tell: &Teller) -> Result<()> {
    let patch = json!({"spec": {"name": "Thorbert"}});
    tell.types(&stage.kubectl(&format!("patch pet thor --type=merge --patch='{patch}'")));
    let start = Instant::now();
    pets(&stage.client, stage.namespace()).merge("thor", &patch).await?;
    let names = eventually("the store says Thorbert", SOON, async || {
        let names = stage.store.names().await?;
        ensure!(names == ["Thorbert", "Tron"], "it says {names:?}");
        Ok(names)
    })
    .await?;
    tell.took(&format!("the store says {}", names.join(" and ")), start.elapsed());
    Ok(())
}

/// Both pets are deleted, and the store is empty before their objects go.
pub async fn move_out(stage: &mut Stage, tell: &Teller) -> Result<()> {
    tell.types(&stage.kubectl("delete pet thor tron"));
    let pets = pets(&stage.client, stage.namespace());
    let start = Instant::now();
    for name in ["thor", "tron"] {
        pets.remove(name).await?;
    }
    eventually("both objects are gone", SOON, async || {
        for name in ["thor", "tron"] {
            ensure!(pets.get_opt(name).await?.is_none(), "{name} is still there");
        }
        Ok(())
    })
    .await?;
    let left = stage.store.pets().await?;
    ensure!(left.is_empty(), "the store still holds {left:?}");
    tell.took("both are gone, and the store is empty", start.elapsed());
    Ok(())
}
