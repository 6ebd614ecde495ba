//! The pets, and what the service says about them. Pure but for the ids, which are random, so that two stores never give the same one to different pets.

use crate::{
    limits,
    proto::{
        AddPetsRequest, AddPetsResponse, DeletePetsRequest, DeletePetsResponse, Pet, PetType, SearchPetsRequest,
        SearchPetsResponse, UpdatePetsRequest, UpdatePetsResponse, pet_store_server::PetStore,
    },
};
use prost_types::Timestamp;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tonic::{Request, Response, Status};

/// A store of pets. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Store {
    pets: Arc<Mutex<Pets>>,
}

#[derive(Debug, Default)]
struct Pets {
    by_id: BTreeMap<String, Pet>,
    /// From external reference to id.
    by_reference: HashMap<String, String>,
}

impl Store {
    /// All pets, in the order of their ids.
    pub fn pets(&self) -> Vec<Pet> {
        self.lock().by_id.values().cloned().collect()
    }

    /// Adds pets as `AddPets` does.
    pub fn add(&self, wanted: Vec<Pet>) -> Result<Vec<Pet>, Status> {
        check_batch(wanted.len())?;
        wanted.iter().try_for_each(check)?;
        let mut pets = self.lock();
        if pets.by_id.len() + wanted.len() > limits::PETS {
            return Err(Status::resource_exhausted(format!("the store holds at most {} pets", limits::PETS)));
        }
        Ok(wanted.into_iter().map(|pet| pets.add(pet)).collect())
    }

    /// Replaces pets as `UpdatePets` does.
    pub fn update(&self, wanted: Vec<Pet>) -> Result<Vec<Pet>, Status> {
        check_batch(wanted.len())?;
        wanted.iter().try_for_each(check)?;
        let mut pets = self.lock();
        let mut updated = Vec::with_capacity(wanted.len());
        for mut pet in wanted {
            let Some(old) = pets.by_id.get(&pet.id) else {
                return Err(Status::not_found(format!("there is no pet {:?}", pet.id)));
            };
            if !pet.external_ref.is_empty() && pet.external_ref != old.external_ref {
                return Err(Status::invalid_argument(format!("the external_ref of pet {:?} cannot change", pet.id)));
            }
            pet.external_ref.clone_from(&old.external_ref);
            updated.push(pet);
        }
        for pet in &updated {
            pets.by_id.insert(pet.id.clone(), pet.clone());
        }
        Ok(updated)
    }

    /// Deletes pets as `DeletePets` does.
    pub fn delete(&self, ids: Vec<String>) -> Result<Vec<String>, Status> {
        check_batch(ids.len())?;
        let mut pets = self.lock();
        Ok(ids.into_iter().filter(|id| pets.delete(id)).collect())
    }

    /// Searches as `SearchPets` does.
    pub fn search(&self, filter: &SearchPetsRequest) -> Result<Vec<Pet>, Status> {
        for count in [filter.ids.len(), filter.names.len(), filter.types.len(), filter.external_refs.len()] {
            check_batch(count)?;
        }
        let pets = self.lock();
        // Those that an index finds, else all.
        let candidates: Vec<&Pet> = if !filter.ids.is_empty() {
            filter.ids.iter().filter_map(|id| pets.by_id.get(id)).collect()
        } else if !filter.external_refs.is_empty() {
            let ids = filter.external_refs.iter().filter_map(|reference| pets.by_reference.get(reference));
            ids.filter_map(|id| pets.by_id.get(id)).collect()
        } else {
            pets.by_id.values().collect()
        };
        let found: BTreeMap<_, _> =
            candidates.into_iter().filter(|pet| fits(pet, filter)).map(|pet| (&pet.id, pet)).collect();
        Ok(found.into_values().cloned().collect())
    }

    fn lock(&self) -> MutexGuard<'_, Pets> {
        // No code that holds the lock can leave the pets half changed.
        self.pets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pets {
    fn add(&mut self, mut pet: Pet) -> Pet {
        if let Some(there) = self.by_reference.get(&pet.external_ref).and_then(|id| self.by_id.get(id)) {
            return there.clone();
        }
        pet.id = loop {
            let id = format!("{:016x}", rand::random::<u64>());
            if !self.by_id.contains_key(&id) {
                break id;
            }
        };
        if !pet.external_ref.is_empty() {
            self.by_reference.insert(pet.external_ref.clone(), pet.id.clone());
        }
        self.by_id.insert(pet.id.clone(), pet.clone());
        pet
    }

    fn delete(&mut self, id: &str) -> bool {
        let Some(pet) = self.by_id.remove(id) else { return false };
        self.by_reference.remove(&pet.external_ref);
        true
    }
}

fn check_batch(count: usize) -> Result<(), Status> {
    if count > limits::BATCH {
        return Err(Status::invalid_argument(format!("{count} in one request; at most {} are taken", limits::BATCH)));
    }
    Ok(())
}

fn check(pet: &Pet) -> Result<(), Status> {
    let wrong = |what: &str| Err(Status::invalid_argument(format!("pet {:?}: {what}", pet.name)));
    if pet.name.is_empty() {
        return wrong("the name is missing");
    }
    if pet.name.len() > limits::TEXT || pet.external_ref.len() > limits::TEXT {
        return wrong(&format!("name and external_ref take at most {} bytes", limits::TEXT));
    }
    if pet.r#type() == PetType::Unspecified {
        return wrong("the type is missing");
    }
    match pet.birthday {
        None => wrong("the birthday is missing"),
        Some(birthday) if !(0..1_000_000_000).contains(&birthday.nanos) => wrong("the birthday is no valid timestamp"),
        Some(_) => Ok(()),
    }
}

fn fits(pet: &Pet, filter: &SearchPetsRequest) -> bool {
    let instant = |time: Timestamp| (time.seconds, time.nanos);
    let birthday = pet.birthday.map(instant);
    (filter.names.is_empty() || filter.names.contains(&pet.name))
        && (filter.types.is_empty() || filter.types.contains(&pet.r#type))
        && (filter.external_refs.is_empty() || filter.external_refs.contains(&pet.external_ref))
        && filter.born_from.map(instant).is_none_or(|from| birthday >= Some(from))
        && filter.born_before.map(instant).is_none_or(|before| birthday < Some(before))
}

#[tonic::async_trait]
impl PetStore for Store {
    async fn add_pets(&self, request: Request<AddPetsRequest>) -> Result<Response<AddPetsResponse>, Status> {
        let pets = self.add(request.into_inner().pets)?;
        Ok(Response::new(AddPetsResponse { pets }))
    }

    async fn update_pets(&self, request: Request<UpdatePetsRequest>) -> Result<Response<UpdatePetsResponse>, Status> {
        let pets = self.update(request.into_inner().pets)?;
        Ok(Response::new(UpdatePetsResponse { pets }))
    }

    async fn delete_pets(&self, request: Request<DeletePetsRequest>) -> Result<Response<DeletePetsResponse>, Status> {
        let ids = self.delete(request.into_inner().ids)?;
        Ok(Response::new(DeletePetsResponse { ids }))
    }

    type SearchPetsStream =
        tokio_stream::Iter<std::iter::Map<std::vec::IntoIter<Pet>, fn(Pet) -> Result<SearchPetsResponse, Status>>>;

    async fn search_pets(
        &self,
        request: Request<SearchPetsRequest>,
    ) -> Result<Response<Self::SearchPetsStream>, Status> {
        let found = self.search(&request.into_inner())?;
        let answer: fn(Pet) -> _ = |pet| Ok(SearchPetsResponse { pet: Some(pet) });
        Ok(Response::new(tokio_stream::iter(found.into_iter().map(answer))))
    }
}
