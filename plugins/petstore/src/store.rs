//! The pet store as this plugin sees it: one pet by its external reference. Refuses to know Kubernetes' API.

use crate::api::{PetSpec, PetType};
use operetta_sdk::Channel;
use proto::{
    AddPetsRequest, DeletePetsRequest, Pet, SearchPetsRequest, UpdatePetsRequest, pet_store_client::PetStoreClient,
};
use std::{fmt, time::Duration};
use tonic::{Code, Request, Status};

/// What the proto compiles to.
#[allow(missing_docs, clippy::pedantic, reason = "generated code; the proto is its documentation")]
mod proto {
    tonic::include_proto!("petstore.v1");
}

/// What is wrong with the store.
#[derive(Debug)]
pub(crate) enum StoreError {
    /// A call failed.
    Status(Status),
    /// It answers nonsense.
    Broken(String),
}

impl StoreError {
    /// A word for a condition's reason: gRPC's own name of the code.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Broken(_) => "UnexpectedAnswer",
            Self::Status(status) => match status.code() {
                Code::Ok => "Ok",
                Code::Cancelled => "Cancelled",
                Code::Unknown => "Unknown",
                Code::InvalidArgument => "InvalidArgument",
                Code::DeadlineExceeded => "DeadlineExceeded",
                Code::NotFound => "NotFound",
                Code::AlreadyExists => "AlreadyExists",
                Code::PermissionDenied => "PermissionDenied",
                Code::ResourceExhausted => "ResourceExhausted",
                Code::FailedPrecondition => "FailedPrecondition",
                Code::Aborted => "Aborted",
                Code::OutOfRange => "OutOfRange",
                Code::Unimplemented => "Unimplemented",
                Code::Internal => "Internal",
                Code::Unavailable => "Unavailable",
                Code::DataLoss => "DataLoss",
                Code::Unauthenticated => "Unauthenticated",
            },
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(what) => f.write_str(what),
            Self::Status(status) => write!(f, "{}: {}", self.reason(), status.message()),
        }
    }
}

impl From<Status> for StoreError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// A client of the store.
pub(crate) struct PetStore {
    channel: Channel,
    deadline: Duration,
}

impl PetStore {
    /// A client whose every call ends after `deadline`.
    pub(crate) fn new(channel: Channel, deadline: Duration) -> Self {
        Self { channel, deadline }
    }

    /// The pet of this external reference.
    pub(crate) async fn find(&self, external_ref: &str) -> Result<Option<Pet>, StoreError> {
        let filter = SearchPetsRequest { external_refs: vec![external_ref.to_owned()], ..SearchPetsRequest::default() };
        let mut found = self.client().search_pets(self.request(filter)).await?.into_inner();
        let first = found.message().await?.and_then(|answer| answer.pet);
        Ok(first)
    }

    /// Adds a pet, unless its external reference is there; answers with the pet that is there then.
    pub(crate) async fn add(&self, pet: Pet) -> Result<Option<Pet>, StoreError> {
        let answer = self.client().add_pets(self.request(AddPetsRequest { pets: vec![pet] })).await?;
        Ok(answer.into_inner().pets.into_iter().next())
    }

    /// Replaces a pet.
    pub(crate) async fn update(&self, pet: Pet) -> Result<(), StoreError> {
        self.client().update_pets(self.request(UpdatePetsRequest { pets: vec![pet] })).await?;
        Ok(())
    }

    /// Deletes a pet that may be gone.
    pub(crate) async fn delete(&self, id: String) -> Result<(), StoreError> {
        self.client().delete_pets(self.request(DeletePetsRequest { ids: vec![id] })).await?;
        Ok(())
    }

    fn client(&self) -> PetStoreClient<Channel> {
        PetStoreClient::new(self.channel.clone())
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.set_timeout(self.deadline);
        request
    }
}

/// The pet that an object describes.
pub(crate) fn desired(spec: &PetSpec, external_ref: &str) -> Pet {
    let kind = match spec.kind {
        PetType::Dog => proto::PetType::Dog,
        PetType::Cat => proto::PetType::Cat,
        PetType::Bird => proto::PetType::Bird,
        PetType::Reptile => proto::PetType::Reptile,
    };
    let born = spec.birthday.0.as_nanosecond();
    let birthday = prost_types::Timestamp {
        seconds: i64::try_from(born.div_euclid(1_000_000_000)).unwrap_or_default(),
        nanos: i32::try_from(born.rem_euclid(1_000_000_000)).unwrap_or_default(),
    };
    Pet {
        id: String::new(),
        name: spec.name.clone(),
        r#type: kind.into(),
        birthday: Some(birthday),
        external_ref: external_ref.to_owned(),
    }
}

/// The update that makes the observed pet the desired one; none where it is.
pub(crate) fn difference(observed: &Pet, desired: Pet) -> Option<Pet> {
    let update = Pet { id: observed.id.clone(), ..desired };
    (update != *observed).then_some(update)
}
