//! The real pet store as a child process, and a client to look into it.

use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use petstore_service::proto::{DeletePetsRequest, Pet, SearchPetsRequest, pet_store_client::PetStoreClient};
use tonic::transport::{Channel, Endpoint};

use crate::{child::Child, components::Built, control_plane::run_dir::RunDir, eventually};

/// It listens in milliseconds; under load it may wait for its turn.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);
/// What it prints before its address.
const LISTENING: &str = "listening on ";

/// Counts the stores of this process, for their names.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// A pet store at work. It ends with this value, and its pets with it.
#[derive(Debug)]
pub struct PetStore {
    child: Child,
    address: String,
}

impl PetStore {
    /// Starts an empty store at a free port.
    pub async fn start(run: &RunDir, built: &Built) -> Result<Self> {
        Self::start_at(run, built, "127.0.0.1:0").await
    }

    /// Starts an empty store at an address, such as one that another had before.
    pub async fn start_at(run: &RunDir, built: &Built, address: &str) -> Result<Self> {
        let name = format!("petstore-service-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let output = run.path().join(format!("{name}.log"));
        let mut command = Command::new(built.program("petstore-service"));
        let mut child = Child::start(run, &name, &output, command.args(["--listen", address]))?;
        let address = eventually("the pet store listens", LISTENS_WITHIN, async || match listening(&output)? {
            Some(address) => Ok(Ok(address)),
            // One that has ended will not listen however long one waits.
            None => match child.ensure_runs() {
                Ok(()) => anyhow::bail!("it says nothing"),
                Err(ended) => Ok(Err(ended)),
            },
        })
        .await??;
        Ok(Self { child, address })
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The endpoint for a Plugin document.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All pets in it, asked for over gRPC.
    pub async fn pets(&self) -> Result<Vec<Pet>> {
        let mut found = self.client().await?.search_pets(SearchPetsRequest::default()).await?.into_inner();
        let mut pets = Vec::new();
        while let Some(answer) = found.message().await.context("read a pet")? {
            pets.extend(answer.pet);
        }
        Ok(pets)
    }

    /// The names of all pets in it, in order.
    pub async fn names(&self) -> Result<Vec<String>> {
        let mut names: Vec<_> = self.pets().await?.into_iter().map(|pet| pet.name).collect();
        names.sort();
        Ok(names)
    }

    /// Takes a pet out behind everybody's back.
    pub async fn delete(&self, id: &str) -> Result<()> {
        let ids = vec![id.to_owned()];
        self.client().await?.delete_pets(DeletePetsRequest { ids }).await.context("delete a pet").map(drop)
    }

    /// Stops it; its pets are gone.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()
    }

    /// A client of it, for the runtime that asks.
    pub async fn client(&self) -> Result<PetStoreClient<Channel>> {
        let endpoint = Endpoint::from_shared(self.endpoint()).context("read the store's address")?;
        let channel =
            endpoint.connect().await.with_context(|| format!("connect to the pet store at {}", self.address))?;
        Ok(PetStoreClient::new(channel))
    }
}

/// The address, once the store has printed it.
fn listening(output: &Path) -> Result<Option<String>> {
    let text = std::fs::read_to_string(output).context("read what the pet store prints")?;
    Ok(text.lines().find_map(|line| line.strip_prefix(LISTENING)).map(str::to_owned))
}
