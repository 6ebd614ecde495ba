//! The service through a real connection.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that goes wrong panics"
)]

use petstore_service::{
    Store, limits,
    proto::{
        AddPetsRequest, DeletePetsRequest, Pet, PetType, SearchPetsRequest, UpdatePetsRequest,
        pet_store_client::PetStoreClient,
    },
    serve,
};
use prost_types::Timestamp;
use std::time::Duration;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle, time::timeout};
use tokio_stream::StreamExt;
use tonic::{Code, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

struct Service {
    channel: Channel,
    stop: oneshot::Sender<()>,
    served: JoinHandle<anyhow::Result<()>>,
}

async fn start() -> Service {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let served = tokio::spawn(serve(listener, Store::default(), async {
        stopped.await.ok();
    }));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    Service { channel, stop, served }
}

fn pet(name: &str, kind: PetType, born: i64, external_ref: &str) -> Pet {
    Pet {
        id: String::new(),
        name: name.to_owned(),
        r#type: kind.into(),
        birthday: Some(Timestamp { seconds: born, nanos: 0 }),
        external_ref: external_ref.to_owned(),
    }
}

async fn names(client: &mut PetStoreClient<Channel>, filter: SearchPetsRequest) -> Vec<String> {
    let stream = client.search_pets(filter).await.unwrap().into_inner();
    let mut names: Vec<String> = stream.map(|found| found.unwrap().pet.unwrap().name).collect().await;
    names.sort();
    names
}

#[tokio::test]
async fn pets_are_added_found_changed_and_deleted() {
    let service = start().await;
    let mut client = PetStoreClient::new(service.channel.clone());
    let pets = vec![
        pet("Thor", PetType::Dog, 100, "a"),
        pet("Tron", PetType::Cat, 200, "b"),
        pet("Polly", PetType::Bird, 300, ""),
    ];
    let added = client.add_pets(AddPetsRequest { pets }).await.unwrap().into_inner().pets;
    let ids: Vec<String> = added.iter().map(|pet| pet.id.clone()).collect();
    assert!(ids.iter().all(|id| id.len() == 16));

    let all = SearchPetsRequest::default;
    let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
    assert_eq!(names(&mut client, all()).await, ["Polly", "Thor", "Tron"]);
    assert_eq!(names(&mut client, SearchPetsRequest { ids: ids[1..].to_vec(), ..all() }).await, ["Polly", "Tron"]);
    assert_eq!(names(&mut client, SearchPetsRequest { names: vec!["Thor".into()], ..all() }).await, ["Thor"]);
    let birds = SearchPetsRequest { types: vec![PetType::Bird.into()], ..all() };
    assert_eq!(names(&mut client, birds).await, ["Polly"]);
    let middle = SearchPetsRequest { born_from: at(200), born_before: at(300), ..all() };
    assert_eq!(names(&mut client, middle).await, ["Tron"]);
    let referenced = SearchPetsRequest { external_refs: vec!["a".into(), "nobody".into()], ..all() };
    assert_eq!(names(&mut client, referenced).await, ["Thor"]);
    let both = SearchPetsRequest { external_refs: vec!["a".into()], ids: vec![ids[1].clone()], ..all() };
    assert_eq!(names(&mut client, both).await, [""; 0]);

    let renamed = Pet { id: ids[0].clone(), ..pet("Thorbert", PetType::Dog, 100, "") };
    let updated = client.update_pets(UpdatePetsRequest { pets: vec![renamed] }).await.unwrap().into_inner().pets;
    assert_eq!((updated[0].name.as_str(), updated[0].external_ref.as_str()), ("Thorbert", "a"));

    let request = DeletePetsRequest { ids: vec![ids[0].clone(), "nobody".into()] };
    assert_eq!(client.delete_pets(request).await.unwrap().into_inner().ids, [ids[0].clone()]);
    assert_eq!(names(&mut client, all()).await, ["Polly", "Tron"]);
}

#[tokio::test]
async fn an_external_reference_is_added_once() {
    let service = start().await;
    let mut client = PetStoreClient::new(service.channel.clone());
    let mut add = async |pets| client.add_pets(AddPetsRequest { pets }).await.unwrap().into_inner().pets;
    let first = add(vec![pet("Thor", PetType::Dog, 1, "a"), pet("Double", PetType::Cat, 2, "a")]).await;
    assert_eq!(first[0], first[1]);
    let again = add(vec![pet("Other", PetType::Cat, 3, "a")]).await;
    assert_eq!(again[0], first[0]);
    // Without a reference every pet is a new one.
    let free = add(vec![pet("Rex", PetType::Dog, 1, ""), pet("Rex", PetType::Dog, 1, "")]).await;
    assert_ne!(free[0].id, free[1].id);
    // A reference is free again once its pet is gone.
    client.delete_pets(DeletePetsRequest { ids: vec![first[0].id.clone()] }).await.unwrap();
    let mut add = async |pets| client.add_pets(AddPetsRequest { pets }).await.unwrap().into_inner().pets;
    assert_ne!(add(vec![pet("Thor", PetType::Dog, 1, "a")]).await[0].id, first[0].id);
}

#[tokio::test]
async fn what_is_wrong_is_refused_as_a_whole() {
    let service = start().await;
    let mut client = PetStoreClient::new(service.channel.clone());
    let good = pet("Thor", PetType::Dog, 1, "a");
    let bad = [
        pet("", PetType::Dog, 1, ""),
        pet("x", PetType::Unspecified, 1, ""),
        Pet { birthday: None, ..good.clone() },
        pet(&"x".repeat(limits::TEXT + 1), PetType::Dog, 1, ""),
    ];
    for wrong in bad {
        let request = AddPetsRequest { pets: vec![good.clone(), wrong] };
        assert_eq!(client.add_pets(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let request = AddPetsRequest { pets: vec![good.clone(); limits::BATCH + 1] };
    assert_eq!(client.add_pets(request).await.unwrap_err().code(), Code::InvalidArgument);
    let request = UpdatePetsRequest { pets: vec![Pet { id: "nobody".into(), ..good.clone() }] };
    assert_eq!(client.update_pets(request).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(names(&mut client, SearchPetsRequest::default()).await, [""; 0]);

    let added = client.add_pets(AddPetsRequest { pets: vec![good] }).await.unwrap().into_inner().pets;
    let moved = Pet { external_ref: "b".into(), ..added[0].clone() };
    let refused = client.update_pets(UpdatePetsRequest { pets: vec![moved] }).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn health_and_reflection_answer() {
    let service = start().await;
    let request = HealthCheckRequest { service: "petstore.v1.PetStore".into() };
    let health = HealthClient::new(service.channel.clone()).check(request).await.unwrap().into_inner();
    assert_eq!(health.status(), ServingStatus::Serving);

    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = ServerReflectionClient::new(service.channel.clone())
        .server_reflection_info(tokio_stream::iter([request]))
        .await
        .unwrap()
        .into_inner();
    let answer = answers.next().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
    let services: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(services.contains(&"petstore.v1.PetStore"), "{services:?}");
}

#[tokio::test]
async fn it_stops_although_a_client_stays_connected() {
    let service = start().await;
    let mut client = PetStoreClient::new(service.channel.clone());
    assert_eq!(names(&mut client, SearchPetsRequest::default()).await, [""; 0]);
    service.stop.send(()).unwrap();
    timeout(Duration::from_secs(10), service.served).await.expect("stops in time").unwrap().unwrap();
    assert!(client.search_pets(SearchPetsRequest::default()).await.is_err());
}
