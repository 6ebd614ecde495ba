//! The interface `grpc`.

use std::{sync::Arc, time::Duration};

use operetta_core::{
    limit::{Exceeded, Limit},
    port::{Exchange, GrpcCall, GrpcStatus},
};
use wasmtime::component::{Accessor, Resource};

use super::convert::Size;
use crate::{
    bindings::operetta::operator::grpc::{self, Host, HostExchange, HostExchangeWithStore, HostWithStore, Metadata},
    state::{Call, Caps, State, begin},
};

/// gRPC's INVALID_ARGUMENT.
const INVALID_ARGUMENT: u32 = 3;
/// Messages that one call of `receive-many` takes.
const BATCH: u32 = 1_024;

/// What a handle of the resource `exchange` stands for.
pub struct Stream(Arc<dyn Exchange>);

type Answer<T> = wasmtime::Result<Result<T, grpc::Status>>;

impl Host for State {}

impl HostWithStore<State> for Caps {
    async fn unary(accessor: &Accessor<State, Self>, call: grpc::Call, message: Vec<u8>) -> Answer<grpc::Reply> {
        let under_way = begin(accessor, call.size() + message.len())?;
        let answer = async {
            let (under_way, channel, call) = ready(under_way, call)?;
            let reply = under_way.on_main(under_way.effects.unary(&channel, call, message)).await?;
            Ok(grpc::Reply { headers: reply.headers, message: reply.message, trailers: reply.trailers })
        };
        Ok(answer.await.map_err(status))
    }
}

impl HostExchangeWithStore<State> for Caps {
    async fn open(accessor: &Accessor<State, Self>, call: grpc::Call) -> Answer<Resource<Stream>> {
        let under_way = begin(accessor, call.size())?;
        let answer = async {
            let (under_way, channel, call) = ready(under_way, call)?;
            let stream = under_way.on_main(under_way.effects.open(&channel, call)).await?;
            let pushed = accessor.with(|mut store| store.get().table.push(Stream(Arc::from(stream))));
            pushed.map_err(|_| under_way.effects.exceed(Limit::Handles, "the reconcile holds too many handles").into())
        };
        Ok(answer.await.map_err(status))
    }

    async fn send(accessor: &Accessor<State, Self>, this: Resource<Stream>, message: Vec<u8>) -> Answer<()> {
        let (stream, under_way) = (stream(accessor, &this)?, begin(accessor, message.len())?);
        let answer = async { under_way?.on_main(stream.send(message)).await };
        Ok(answer.await.map_err(status))
    }

    async fn headers(accessor: &Accessor<State, Self>, this: Resource<Stream>) -> Answer<Metadata> {
        let (stream, under_way) = (stream(accessor, &this)?, begin(accessor, 0)?);
        let answer = async { under_way?.on_main(stream.headers()).await };
        Ok(answer.await.map_err(status))
    }

    async fn receive(accessor: &Accessor<State, Self>, this: Resource<Stream>) -> Answer<Option<Vec<u8>>> {
        let (stream, under_way) = (stream(accessor, &this)?, begin(accessor, 0)?);
        Ok(receive(under_way, &*stream, 1).await.map(|messages| messages.into_iter().next()).map_err(status))
    }

    async fn receive_many(
        accessor: &Accessor<State, Self>,
        this: Resource<Stream>,
        limit: u32,
    ) -> Answer<Vec<Vec<u8>>> {
        let (stream, under_way) = (stream(accessor, &this)?, begin(accessor, 0)?);
        Ok(receive(under_way, &*stream, limit).await.map_err(status))
    }
}

/// None of these may wait: the guest's other calls on the same exchange go on meanwhile.
impl HostExchange for State {
    fn half_close(&mut self, this: Resource<Stream>) -> wasmtime::Result<()> {
        self.table.get(&this)?.0.half_close();
        Ok(())
    }

    fn trailers(&mut self, this: Resource<Stream>) -> wasmtime::Result<Metadata> {
        Ok(self.table.get(&this)?.0.trailers())
    }

    fn drop(&mut self, this: Resource<Stream>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

/// Out of the table, which must not be held while waiting.
fn stream(accessor: &Accessor<State, Caps>, this: &Resource<Stream>) -> wasmtime::Result<Arc<dyn Exchange>> {
    Ok(accessor.with(|mut store| store.get().table.get(this).map(|stream| Arc::clone(&stream.0)))?)
}

async fn receive(
    under_way: Result<Call, Exceeded>,
    stream: &dyn Exchange,
    limit: u32,
) -> Result<Vec<Vec<u8>>, GrpcStatus> {
    let under_way = under_way?;
    if limit == 0 {
        return Err(GrpcStatus::of(INVALID_ARGUMENT, "receive-many takes a limit of at least 1"));
    }
    let limit = usize::try_from(limit.min(BATCH)).unwrap_or(1);
    under_way.on_main(stream.receive(limit)).await
}

impl Size for grpc::Call {
    fn size(&self) -> usize {
        self.channel.len() + self.path.len() + self.metadata.size() + self.options.size()
    }
}

/// A call that has the form of one: it may have to wait for its turn, and what it carries is held meanwhile.
fn ready(under_way: Result<Call, Exceeded>, call: grpc::Call) -> Result<(Call, String, GrpcCall), GrpcStatus> {
    let under_way = under_way?;
    super::convert::options(call.options, &[], |_, _| Ok(()))
        .map_err(|error| GrpcStatus::of(INVALID_ARGUMENT, error.to_string()))?;
    let deadline = call.deadline.map(Duration::from_millis);
    let (channel, call) = (call.channel, GrpcCall { path: call.path, metadata: call.metadata, deadline });
    call.check_form()?;
    Ok((under_way, channel, call))
}

fn status(status: GrpcStatus) -> grpc::Status {
    grpc::Status { code: status.code, message: status.message, details: status.details, metadata: status.metadata }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;

    struct Nothing;

    #[async_trait]
    impl Exchange for Nothing {
        async fn send(&self, _: Vec<u8>) -> Result<(), GrpcStatus> {
            Ok(())
        }

        fn half_close(&self) {}

        async fn headers(&self) -> Result<Metadata, GrpcStatus> {
            Ok(Metadata::new())
        }

        async fn receive(&self, _: usize) -> Result<Vec<Vec<u8>>, GrpcStatus> {
            Ok(Vec::new())
        }

        fn trailers(&self) -> Metadata {
            Metadata::new()
        }
    }

    #[test]
    fn a_call_holds_all_that_it_names_and_sends() {
        let metadata = vec![("x-colour".to_owned(), vec![0; 100]), (String::new(), vec![])];
        let options = vec![("a".to_owned(), "b".to_owned())];
        let call = grpc::Call { channel: "demo".into(), path: "/a.B/C".into(), metadata, deadline: None, options };
        let places = 2 * size_of::<(String, Vec<u8>)>() + size_of::<(String, String)>();
        assert_eq!(call.size(), 4 + 6 + 108 + 2 + places);
    }

    #[test]
    fn an_exchange_whose_handle_goes_goes_at_once() {
        let mut state = crate::state::testing::described();
        let exchange: Arc<dyn Exchange> = Arc::new(Nothing);
        let handle = state.table.push(Stream(Arc::clone(&exchange))).unwrap();
        HostExchange::drop(&mut state, handle).unwrap();
        assert_eq!(Arc::strong_count(&exchange), 1);
    }
}
