//! The interface `reader`.

use operetta_core::{
    name::{ContinueToken, FieldSelector, LabelSelector, NameError},
    port::{ApiError, ListOptions},
};
use wasmtime::component::Accessor;

use super::convert::{self, Answer, Size as _};
use crate::{
    bindings::operetta::operator::{
        reader::{Host, HostWithStore, Page},
        types,
    },
    state::{Caps, State, begin},
};

impl Host for State {}

impl HostWithStore<State> for Caps {
    async fn get(
        accessor: &Accessor<State, Self>,
        resource: types::Resource,
        key: types::ObjectKey,
        options: types::Options,
    ) -> Answer<String> {
        let call = begin(accessor, resource.size() + key.size() + options.size())?;
        let answer = async {
            let call = call?;
            let (resource, key) = (convert::resource(&resource)?, convert::key(&key)?);
            let mut live = false;
            convert::options(options, &["freshness"], |_, value| convert::live(&value).map(|value| live = value))?;
            let object = call.on_main(call.effects.get(&resource, &key, live)).await?;
            Ok::<_, ApiError>(String::from(&*object))
        };
        Ok(answer.await.map_err(types::ApiError::from))
    }

    async fn list(
        accessor: &Accessor<State, Self>,
        resource: types::Resource,
        options: types::Options,
    ) -> Answer<Page> {
        let call = begin(accessor, resource.size() + options.size())?;
        let answer = async {
            let call = call?;
            let (resource, options) = (convert::resource(&resource)?, list_options(options)?);
            let page = call.on_main(call.effects.list(&resource, &options)).await?;
            Ok::<_, ApiError>(Page {
                items: page.items.iter().map(|item| String::from(&**item)).collect(),
                continue_: page.continue_token.map(String::from),
                resource_version: page.resource_version,
            })
        };
        Ok(answer.await.map_err(types::ApiError::from))
    }
}

fn list_options(options: types::Options) -> Result<ListOptions, ApiError> {
    const KNOWN: [&str; 6] = ["namespace", "label-selector", "field-selector", "limit", "continue", "freshness"];
    let wrong = |error: NameError| convert::invalid(error.to_string());
    let mut list = ListOptions::default();
    convert::options(options, &KNOWN, |name, value| {
        match name {
            "namespace" => list.namespace = convert::namespace(Some(&value))?,
            "label-selector" => list.label_selector = Some(LabelSelector::parse(&value).map_err(wrong)?),
            "field-selector" => list.field_selector = Some(FieldSelector::parse(&value).map_err(wrong)?),
            "limit" => list.limit = Some(convert::number(name, &value, 1..=1_000)?),
            "continue" => list.continue_token = Some(ContinueToken::parse(&value).map_err(wrong)?),
            _ => list.live = convert::live(&value)?,
        }
        Ok(())
    })?;
    Ok(list)
}
