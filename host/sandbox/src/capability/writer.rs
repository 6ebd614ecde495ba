//! The interface `writer`.

use operetta_core::port::{ApiError, DeleteOptions, Patch, Propagation};
use wasmtime::component::Accessor;

use super::convert::{self, Answer, Size as _};
use crate::{
    bindings::operetta::operator::{
        types,
        writer::{self, Host, HostWithStore},
    },
    state::{Caps, State, begin},
};

/// Bytes of the `uid` that a deletion names; the API server's have 36.
const UID: usize = 128;
/// Bytes of the `resource-version` that it names; the API server's are numbers of 64 bits.
const VERSION: usize = 64;

impl Host for State {}

impl HostWithStore<State> for Caps {
    async fn create(
        accessor: &Accessor<State, Self>,
        resource: types::Resource,
        namespace: Option<String>,
        object: String,
        options: types::Options,
    ) -> Answer<String> {
        let call = begin(accessor, resource.size() + namespace.size() + object.len() + options.size())?;
        let answer = async {
            let call = call?;
            convert::options(options, &[], |_, _| Ok(()))?;
            let (resource, namespace) = (convert::resource(&resource)?, convert::namespace(namespace.as_deref())?);
            let object = call.on_main(call.effects.create(&resource, namespace.as_ref(), object)).await?;
            Ok::<_, ApiError>(String::from(&*object))
        };
        Ok(answer.await.map_err(types::ApiError::from))
    }

    async fn patch(
        accessor: &Accessor<State, Self>,
        resource: types::Resource,
        key: types::ObjectKey,
        subresource: Option<String>,
        patch: writer::Change,
        options: types::Options,
    ) -> Answer<String> {
        let (patch, bytes) = match patch {
            writer::Change::Apply(body) => (Ok(Patch::Apply as fn(String) -> Patch), body),
            writer::Change::Merge(body) => (Ok(Patch::Merge as _), body),
            writer::Change::Json(body) => (Ok(Patch::Json as _), body),
            writer::Change::Other(detail) => (Err(unknown_patch(&detail.code)), String::new()),
        };
        let held = resource.size() + key.size() + subresource.size() + bytes.len() + options.size();
        let call = begin(accessor, held)?;
        let answer = async {
            let call = call?;
            let patch = patch?(bytes);
            convert::options(options, &[], |_, _| Ok(()))?;
            let (resource, key, subresource) = convert::target(&resource, &key, subresource.as_deref())?;
            let object = call.on_main(call.effects.patch(&resource, &key, subresource.as_ref(), patch)).await?;
            Ok::<_, ApiError>(String::from(&*object))
        };
        Ok(answer.await.map_err(types::ApiError::from))
    }

    async fn replace(
        accessor: &Accessor<State, Self>,
        resource: types::Resource,
        key: types::ObjectKey,
        subresource: Option<String>,
        object: String,
        options: types::Options,
    ) -> Answer<String> {
        let held = resource.size() + key.size() + subresource.size() + object.len() + options.size();
        let call = begin(accessor, held)?;
        let answer = async {
            let call = call?;
            convert::options(options, &[], |_, _| Ok(()))?;
            let (resource, key, subresource) = convert::target(&resource, &key, subresource.as_deref())?;
            let object = call.on_main(call.effects.replace(&resource, &key, subresource.as_ref(), object)).await?;
            Ok::<_, ApiError>(String::from(&*object))
        };
        Ok(answer.await.map_err(types::ApiError::from))
    }

    async fn delete(
        accessor: &Accessor<State, Self>,
        resource: types::Resource,
        key: types::ObjectKey,
        options: types::Options,
    ) -> Answer<()> {
        let call = begin(accessor, resource.size() + key.size() + options.size())?;
        let answer = async {
            let call = call?;
            let (resource, key, options) =
                (convert::resource(&resource)?, convert::key(&key)?, delete_options(options)?);
            call.on_main(call.effects.delete(&resource, &key, &options)).await
        };
        Ok(answer.await.map_err(types::ApiError::from))
    }
}

fn unknown_patch(code: &str) -> ApiError {
    let code: String = code.chars().take(80).collect();
    convert::invalid(format!("this host knows no patch {code:?}; it knows apply, merge and json"))
}

fn delete_options(options: types::Options) -> Result<DeleteOptions, ApiError> {
    let mut delete = DeleteOptions::default();
    convert::options(options, &["uid", "resource-version", "propagation", "grace-period-seconds"], |name, value| {
        match name {
            "uid" => delete.uid = Some(precondition(name, value, UID)?),
            "resource-version" => delete.resource_version = Some(precondition(name, value, VERSION)?),
            "propagation" => {
                delete.propagation = match value.as_str() {
                    "background" => Propagation::Background,
                    "foreground" => Propagation::Foreground,
                    "orphan" => Propagation::Orphan,
                    _ => return Err(convert::invalid("the option propagation is background, foreground or orphan")),
                }
            }
            _ => delete.grace_period_seconds = Some(convert::number(name, &value, 0..=u32::MAX)?),
        }
        Ok(())
    })?;
    Ok(delete)
}

/// What the object must be: copied from its metadata, and held for as long as the call waits.
fn precondition(name: &str, value: String, most: usize) -> Result<String, ApiError> {
    if (1..=most).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(value);
    }
    let shown: String = value.chars().take(80).collect();
    Err(convert::invalid(format!(
        "the option {name} is 1 to {most} letters, digits and signs as the object's metadata has them, not {shown:?}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_deletion_must_find_has_a_form_and_a_length() {
        for (name, most) in [("uid", UID), ("resource-version", VERSION)] {
            let read = |value: &str| delete_options(vec![(name.into(), value.into())]);
            for value in ["1", "~", &"a".repeat(most)] {
                let options = read(value).unwrap();
                assert_eq!(options.uid.or(options.resource_version).as_deref(), Some(value));
            }
            for value in ["", "a b", "a\n", "\u{7f}", "\u{fc}", &"a".repeat(most + 1), &"a".repeat(1 << 20)] {
                let Err(ApiError::Invalid(why)) = read(value) else { panic!("{name}: {} bytes", value.len()) };
                assert!(why.starts_with(&format!("the option {name} is 1 to {most} ")) && why.len() < 250, "{why}");
            }
        }
    }

    #[test]
    fn a_deletion_says_what_becomes_of_what_the_object_owns() {
        let read = |value: &str| delete_options(vec![("propagation".into(), value.into())]).map(|o| o.propagation);
        assert_eq!(delete_options(vec![]).map(|o| o.propagation), Ok(Propagation::Background));
        assert_eq!(read("background"), Ok(Propagation::Background));
        assert_eq!(read("foreground"), Ok(Propagation::Foreground));
        assert_eq!(read("orphan"), Ok(Propagation::Orphan));
        assert!(matches!(read("sideways"), Err(ApiError::Invalid(_))));
    }
}
