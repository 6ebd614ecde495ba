//! Between the contract's words and those of `operetta-core`.

use std::time::Duration;

use operetta_core::{
    name::{Namespace, Subresource},
    port::ApiError,
    resource::{ObjectKey, Resource},
};

use crate::{bindings::operetta::operator::types, state::State};

impl types::Host for State {}

/// What a host function of reader, writer and events answers.
pub(crate) type Answer<T> = wasmtime::Result<Result<T, types::ApiError>>;

/// How many bytes an argument takes while its call waits. Items of a list count though they be empty: a call may carry a hundred thousand.
pub(crate) trait Size {
    /// Bytes.
    fn size(&self) -> usize;
}

impl Size for String {
    fn size(&self) -> usize {
        self.len()
    }
}

impl<T: Size> Size for Option<T> {
    fn size(&self) -> usize {
        self.as_ref().map_or(0, T::size)
    }
}

impl<T: Size> Size for Vec<T> {
    fn size(&self) -> usize {
        self.iter().map(|item| size_of::<T>() + item.size()).sum()
    }
}

impl Size for (String, String) {
    fn size(&self) -> usize {
        self.0.len() + self.1.len()
    }
}

impl Size for (String, Vec<u8>) {
    fn size(&self) -> usize {
        self.0.len() + self.1.len()
    }
}

impl Size for types::Resource {
    fn size(&self) -> usize {
        self.group.len() + self.version.len() + self.resource.len()
    }
}

impl Size for types::ObjectKey {
    fn size(&self) -> usize {
        self.namespace.size() + self.name.len()
    }
}

/// A malformed argument.
pub(crate) fn invalid(why: impl Into<String>) -> ApiError {
    ApiError::Invalid(why.into())
}

/// Parses a kind.
pub(crate) fn resource(resource: &types::Resource) -> Result<Resource, ApiError> {
    Resource::parse(&resource.group, &resource.version, &resource.resource).map_err(|error| invalid(error.to_string()))
}

/// Parses a key.
pub(crate) fn key(key: &types::ObjectKey) -> Result<ObjectKey, ApiError> {
    ObjectKey::parse(key.namespace.as_deref(), &key.name).map_err(|error| invalid(error.to_string()))
}

/// Parses a namespace.
pub(crate) fn namespace(name: Option<&str>) -> Result<Option<Namespace>, ApiError> {
    name.map(Namespace::parse).transpose().map_err(|error| invalid(error.to_string()))
}

/// Parses what a write changes: kind, object, and the part of it.
pub(crate) fn target(
    of: &types::Resource,
    object: &types::ObjectKey,
    part: Option<&str>,
) -> Result<(Resource, ObjectKey, Option<Subresource>), ApiError> {
    let part = part.map(Subresource::parse).transpose().map_err(|error| invalid(error.to_string()))?;
    Ok((resource(of)?, key(object)?, part))
}

/// Reads options one by one: those that `take` does not know and those given twice are refused.
pub(crate) fn options(
    options: types::Options,
    known: &[&str],
    mut take: impl FnMut(&str, String) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let mut seen = Vec::with_capacity(options.len());
    for (name, value) in options {
        let Some(name) = known.iter().find(|known| **known == name) else {
            let name: String = name.chars().take(80).collect();
            return Err(invalid(if known.is_empty() {
                format!("there is no option {name:?}; this function knows none")
            } else {
                format!("there is no option {name:?}; this function knows {}", known.join(", "))
            }));
        };
        if seen.contains(name) {
            return Err(invalid(format!("the option {name} is given twice")));
        }
        seen.push(*name);
        take(name, value)?;
    }
    Ok(())
}

/// An option that is a number.
pub(crate) fn number(name: &str, value: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, ApiError> {
    value.parse().ok().filter(|n| range.contains(n)).ok_or_else(|| {
        invalid(format!(
            "the option {name} is a number from {} to {}, not {:?}",
            range.start(),
            range.end(),
            value.chars().take(40).collect::<String>()
        ))
    })
}

/// The option `freshness`, which has one value.
pub(crate) fn live(value: &str) -> Result<bool, ApiError> {
    if value == "live" { Ok(true) } else { Err(invalid("the option freshness has the value live or is left out")) }
}

impl From<ApiError> for types::ApiError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::NotFound(why) => Self::NotFound(why),
            ApiError::AlreadyExists(why) => Self::AlreadyExists(why),
            ApiError::Conflict(why) => Self::Conflict(why),
            ApiError::Invalid(why) => Self::Invalid(why),
            ApiError::Forbidden(why) => Self::Forbidden(why),
            ApiError::Denied(why) => Self::Denied(why),
            ApiError::Gone(why) => Self::Gone(why),
            ApiError::TooManyRequests(after) => Self::TooManyRequests(after.map(millis)),
            ApiError::Unavailable(why) | ApiError::Unreachable(why) => Self::Unavailable(why),
            ApiError::Timeout(why) => Self::Timeout(why),
            ApiError::TooLarge(why) | ApiError::AnswerTooLarge(why) => Self::TooLarge(why),
        }
    }
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_takes_what_its_texts_and_the_places_of_its_lists_take() {
        let resource = types::Resource { group: "apps".into(), version: "v1".into(), resource: "deployments".into() };
        let key = types::ObjectKey { namespace: Some("ab".into()), name: "abc".into() };
        assert_eq!((resource.size(), key.size()), (4 + 2 + 11, 2 + 3));
        assert_eq!(types::ObjectKey { namespace: None, ..key }.size(), 3);
        let options: types::Options = vec![("uid".into(), "1234".into()), (String::new(), String::new())];
        assert_eq!(options.size(), 3 + 4 + 2 * size_of::<(String, String)>());
    }
}
