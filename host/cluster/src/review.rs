//! What the cluster lets whoever asks do, or, with the right to ask about others, a service account. Changes nothing and impersonates nobody.

use http::Request;
use kube::Client;
use operetta_core::{
    grant::Access,
    name::{ObjectName, ServiceAccount, Subresource},
};
use serde_json::{Value, json};

use crate::{
    answer::Purpose,
    request::{Fault, send_json},
};

/// A request as RBAC sees it. Group and resource may be `*`, for all of them; what is empty is not named.
#[derive(Debug, Clone, Copy, Default)]
pub struct Question<'a> {
    /// What to do.
    pub verb: &'a str,
    /// The group of the kind.
    pub group: &'a str,
    /// The kind's plural.
    pub resource: &'a str,
    /// A part of it.
    pub subresource: &'a str,
    /// Where; empty is everywhere.
    pub namespace: &'a str,
    /// To which object; empty is none, or all.
    pub name: &'a str,
}

impl<'a> Question<'a> {
    /// The question whether this access is allowed.
    pub fn of(access: &'a Access<'_>) -> Self {
        Self {
            verb: access.verb.as_str(),
            group: access.resource.group(),
            resource: access.resource.resource(),
            subresource: access.subresource.map_or("", Subresource::as_str),
            namespace: access.place().unwrap_or_default(),
            name: access.name.map_or("", ObjectName::as_str),
        }
    }

    /// Whether the account may, or whoever asks where none is named, as RBAC and whatever else authorizes there has it.
    ///
    /// # Errors
    /// The cluster cannot be asked, or whoever asks may not ask about others.
    pub async fn ask(&self, client: &Client, account: Option<&ServiceAccount>) -> Result<bool, Fault> {
        let Self { verb, group, resource, subresource, namespace, name } = self;
        let attributes = json!({
            "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace, "name": name,
        });
        let (kind, spec) = match account {
            None => ("SelfSubjectAccessReview", json!({"resourceAttributes": attributes})),
            Some(account) => {
                // Into these the API server puts whoever is a service account.
                let groups = [
                    "system:serviceaccounts",
                    &format!("system:serviceaccounts:{}", account.namespace),
                    "system:authenticated",
                ];
                let spec = json!({"user": account.user(), "groups": groups, "resourceAttributes": attributes});
                ("SubjectAccessReview", spec)
            }
        };
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
        let mut request = Request::post(format!("/apis/authorization.k8s.io/v1/{}s", kind.to_ascii_lowercase()))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes())?;
        request.extensions_mut().insert(Purpose::Rights);
        let answer = send_json(client, request).await?;
        Ok(answer.pointer("/status/allowed").and_then(Value::as_bool) == Some(true))
    }
}

#[cfg(test)]
mod tests {
    use operetta_core::{grant::Verb, name::Namespace, resource::Resource};

    use super::*;
    use crate::testing::{FakeApi, actor};

    #[tokio::test]
    async fn all_of_an_access_is_asked_for_whoever_asks_or_for_an_account_as_the_api_server_sees_it() {
        let api = FakeApi::new(|sent| {
            let allowed = sent.path.contains("/self");
            sent.path.ends_with("accessreviews").then(|| (201, json!({"status": {"allowed": allowed}})))
        });
        let resource = Resource::parse("x.example.com", "v1", "things").unwrap();
        let (part, namespace) = (Subresource::parse("status").unwrap(), Namespace::parse("n").unwrap());
        let name = ObjectName::parse("a").unwrap();
        let access = Access {
            verb: Verb::Patch,
            resource: &resource,
            subresource: Some(&part),
            namespace: Some(&namespace),
            name: Some(&name),
        };
        let account = actor("p").account;
        assert!(Question::of(&access).ask(&api.client(), None).await.unwrap());
        assert!(!Question::of(&access).ask(&api.client(), Some(&account)).await.unwrap());
        let sent = api.sent();
        let specs: Vec<Value> =
            sent.iter().map(|sent| serde_json::from_str::<Value>(&sent.body).unwrap()["spec"].take()).collect();
        let attributes = json!({
            "verb": "patch", "group": "x.example.com", "resource": "things", "subresource": "status", "namespace": "n", "name": "a",
        });
        let groups =
            json!(["system:serviceaccounts", "system:serviceaccounts:operetta-plugins", "system:authenticated"]);
        assert_eq!(
            specs,
            [
                json!({"resourceAttributes": attributes}),
                json!({"resourceAttributes": attributes, "groups": groups, "user": "system:serviceaccount:operetta-plugins:p"}),
            ]
        );
        let paths: Vec<_> = sent.iter().map(|sent| sent.path.rsplit('/').next().unwrap()).collect();
        assert_eq!(paths, ["selfsubjectaccessreviews", "subjectaccessreviews"]);
    }
}
