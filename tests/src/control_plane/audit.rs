//! Reads the API server's audit log: who asked for what, how often. It tells what was asked, never what an object held.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde::Deserialize;

use crate::eventually;

/// Verbs that change something.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// The audit log of one API server.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
}

/// A place in the log, to ask only for what came after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(u64);

/// What RBAC grants: a verb on a resource, somewhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// The namespace; empty for what is done in none, or in all at once.
    pub namespace: String,
    /// The API group.
    pub group: String,
    /// The resource, with its subresource after a slash.
    pub resource: String,
    /// The verb.
    pub verb: String,
}

/// One request, as the API server's `audit.k8s.io/v1` event describes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    #[serde(rename = "auditID")]
    id: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// The path with its query.
    #[serde(rename = "requestURI")]
    pub uri: String,
    user: User,
    impersonated_user: Option<User>,
    authentication_metadata: Option<Authentication>,
    user_agent: Option<String>,
    object_ref: Option<Object>,
    response_status: Option<Response>,
}

#[derive(Debug, Clone, Deserialize)]
struct User {
    username: String,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Authentication {
    impersonation_constraint: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Object {
    api_group: String,
    resource: String,
    namespace: String,
    name: String,
    subresource: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Response {
    code: Option<u16>,
}

impl Request {
    /// Who was authenticated: the host, where it impersonates.
    pub fn user(&self) -> &str {
        &self.user.username
    }

    /// Whose rights counted: the impersonated user, or the authenticated one.
    pub fn acting_user(&self) -> &str {
        self.impersonated_user.as_ref().map_or(&self.user.username, |user| &user.username)
    }

    /// Whether the authenticated user acted as another one.
    pub fn impersonates(&self) -> bool {
        self.impersonated_user.is_some()
    }

    /// The verb by which impersonation was constrained; none where it was not.
    pub fn constraint(&self) -> Option<&str> {
        self.authentication_metadata.as_ref()?.impersonation_constraint.as_deref()
    }

    /// Which token the authenticated user showed: the identifier that is in it.
    pub fn credential(&self) -> Option<&str> {
        self.user.extra.get("authentication.kubernetes.io/credential-id")?.first().map(String::as_str)
    }

    /// What RBAC must have granted; none for paths that are no resources.
    pub fn need(&self) -> Option<Need> {
        let object = self.object_ref.as_ref()?;
        let slash = if object.subresource.is_empty() { "" } else { "/" };
        Some(Need {
            namespace: object.namespace.clone(),
            group: object.api_group.clone(),
            resource: format!("{}{slash}{}", object.resource, object.subresource),
            verb: self.verb.clone(),
        })
    }

    /// The HTTP status of the answer; none while a watch still runs.
    pub fn status(&self) -> Option<u16> {
        self.response_status.as_ref()?.code
    }

    /// Whether the request asks for a change.
    pub fn is_write(&self) -> bool {
        WRITES.contains(&self.verb.as_str())
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status().map_or_else(|| "-".to_owned(), |status| status.to_string());
        write!(f, "{} {} {status} by {}", self.verb, self.uri, self.acting_user())
    }
}

/// Which requests to count; what is not set matches everything.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    verbs: Vec<String>,
    writes: bool,
    resource: Option<String>,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    user: Option<String>,
    impersonated: Option<String>,
    agent: Option<String>,
    after: Option<Position>,
}

impl Filter {
    /// Everything.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only these verbs; asking again adds.
    pub fn verb(mut self, verb: &str) -> Self {
        self.verbs.push(verb.to_owned());
        self
    }

    /// Only requests that ask for a change.
    pub fn writes(mut self) -> Self {
        self.writes = true;
        self
    }

    /// Only this resource, in the plural: `deployments`.
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// Only this subresource; the empty one means the object itself.
    pub fn subresource(mut self, subresource: &str) -> Self {
        self.subresource = Some(subresource.to_owned());
        self
    }

    /// Only this namespace.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Only the object of this name.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Only requests authenticated as this user.
    pub fn user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    /// Only requests that impersonated this user.
    pub fn impersonated(mut self, user: &str) -> Self {
        self.impersonated = Some(user.to_owned());
        self
    }

    /// Only requests of clients whose user agent begins so.
    pub fn agent(mut self, prefix: &str) -> Self {
        self.agent = Some(prefix.to_owned());
        self
    }

    /// Only what was logged after this position.
    pub fn after(mut self, position: Position) -> Self {
        self.after = Some(position);
        self
    }

    fn admits(&self, request: &Request) -> bool {
        let none = Object::default();
        let object = request.object_ref.as_ref().unwrap_or(&none);
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let impersonated = request.impersonated_user.as_ref().map(|user| user.username.as_str());
        let agent = request.user_agent.as_deref().unwrap_or_default();
        (self.verbs.is_empty() || self.verbs.contains(&request.verb))
            && (!self.writes || request.is_write())
            && is(&self.resource, &object.resource)
            && is(&self.subresource, &object.subresource)
            && is(&self.namespace, &object.namespace)
            && is(&self.name, &object.name)
            && is(&self.user, &request.user.username)
            && (self.impersonated.is_none() || self.impersonated.as_deref() == impersonated)
            && self.agent.as_deref().is_none_or(|prefix| agent.starts_with(prefix))
    }
}

impl AuditLog {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The log's present end. Requests that were answered just now may still follow: [`AuditLog::settle`] first where that matters.
    pub fn position(&self) -> Result<Position> {
        let meta = std::fs::metadata(&self.path).with_context(|| format!("look at {}", self.path.display()))?;
        Ok(Position(meta.len()))
    }

    /// The requests that the filter admits, in the order in which the server answered, each once: a watch, which is logged when it
    /// begins and again when it ends, too.
    pub fn requests(&self, filter: &Filter) -> Result<Vec<Request>> {
        let read = || -> std::io::Result<String> {
            let mut file = BufReader::new(File::open(&self.path)?);
            if let Some(before) = filter.after.and_then(|position| position.0.checked_sub(1)) {
                // The end may have been one in the middle of a line.
                file.seek(SeekFrom::Start(before))?;
                file.skip_until(b'\n')?;
            }
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = read().with_context(|| format!("read {}", self.path.display()))?;
        let mut requests: Vec<Request> = Vec::new();
        let mut seen = BTreeMap::new();
        // What follows the last line break is a line still being written.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let request: Request =
                serde_json::from_str(line).with_context(|| format!("read the audit event {line}"))?;
            if !filter.admits(&request) {
                continue;
            }
            if let Some(earlier) = seen.get(&request.id).and_then(|at: &usize| requests.get_mut(*at)) {
                *earlier = request;
            } else {
                seen.insert(request.id.clone(), requests.len());
                requests.push(request);
            }
        }
        Ok(requests)
    }

    /// Returns when every request that was answered before the call is in the log: the server logs one a moment after its answer, so
    /// a request of our own is sent and waited for.
    pub async fn settle(&self, client: &kube::Client) -> Result<Position> {
        let start = self.position()?;
        let name = format!("audit-{}", hex::encode(rand::random::<[u8; 8]>()));
        let absent = Api::<ConfigMap>::namespaced(client.clone(), "default").get_opt(&name).await;
        ensure!(absent.context("ask for something that does not exist")?.is_none(), "{name} exists");
        let mark = Filter::all().name(&name).after(start);
        eventually("the audit log shows our request", Duration::from_secs(10), async || {
            ensure!(!self.requests(&mark)?.is_empty(), "{name} is not in {}", self.path.display());
            Ok(())
        })
        .await?;
        self.position()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_being_written_at_a_position_is_not_after_it_and_the_next_one_is() {
        let directory = tempfile::tempdir().unwrap();
        let log = AuditLog::new(&directory.path().join("audit.log"));
        std::fs::write(&log.path, "one\ntwo\n").unwrap();
        let after = |position| log.requests(&Filter::all().after(Position(position)));
        for within_or_behind_two in [5, 7, 8] {
            assert!(after(within_or_behind_two).unwrap().is_empty());
        }
        for before_two in [1, 4] {
            assert!(format!("{:#}", after(before_two).unwrap_err()).contains("event two"));
        }
    }
}
