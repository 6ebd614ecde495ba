//! What the API server itself refuses, whoever asks: ValidatingAdmissionPolicies (Kubernetes 1.30 and later). Pure.
//!
//! A Plugin has the host do what its account may, so writing one is acting as that account: **only who may impersonate the account may have a plugin act as it.** That is the verb
//! `impersonate`, and never the constrained `impersonate:serviceaccount`, which says nothing about what may be done. Writes that leave the spec alone, such as the host's own, pass.

use operetta_api::DEFAULT_ACCOUNT_NAMESPACE;
use operetta_core::{
    bounds::{GROUP, WORKLOADS},
    name::Namespace,
};
use serde_json::{Value, json};

/// Who may write a Plugin. What is called so, with the domain of [`GROUP`], no plugin writes.
const PLUGINS: &str = "plugins.operetta.dev";
/// What plugins may do beside the host.
const BESIDE_THE_HOST: &str = "pods-beside-the-host.operetta.dev";

/// The policies and what puts them in force, for a host in this namespace.
pub fn admission(host: &Namespace, labels: &Value) -> Vec<Value> {
    [plugins(host, labels), beside_the_host(host, labels)].concat()
}

fn plugins(host: &Namespace, labels: &Value) -> Vec<Value> {
    let variable = |name: &str, expression: String| json!({"name": name, "expression": expression});
    let given = |field: &str| format!("has({field}) && {field} != null");
    let (account, namespace) = ("object.spec.serviceAccount", "object.spec.serviceAccount.namespace");
    let may = "authorizer.group('').resource('serviceaccounts').namespace(variables.accountNamespace).name(variables.accountName).check('impersonate').allowed()";
    let may_not = "'you may not let a plugin act as service account ' + variables.accountNamespace + '/' + variables.accountName + ', since you may not act as it yourself; \
        have somebody apply this Plugin who may, or ask for a Role in namespace ' + variables.accountNamespace + \
        ' with the rule {apiGroups: [\"\"], resources: [serviceaccounts], resourceNames: [' + variables.accountName + '], verbs: [impersonate]}'";
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": matching(&json!({}), &json!([rule(GROUP, &["plugins"], &["CREATE", "UPDATE"])])),
        // Finalizers, labels and annotations run nothing.
        "matchConditions": [{"name": "spec-changes", "expression": "oldObject == null || object.spec != oldObject.spec"}],
        "variables": [
            variable("named", given(account)),
            variable("accountName", format!("variables.named ? {account}.name : object.metadata.name")),
            variable("accountNamespace", format!("variables.named && {} ? {namespace} : '{DEFAULT_ACCOUNT_NAMESPACE}'", given(namespace))),
        ],
        "validations": [
            {
                "expression": format!("variables.accountNamespace != '{host}'"), "reason": "Forbidden",
                "message": format!("plugins do not act as accounts of the namespace {host}, where the host itself runs; leave spec.serviceAccount.namespace out, or name another"),
            },
            {"expression": may, "reason": "Forbidden", "messageExpression": may_not},
        ],
    });
    in_force(PLUGINS, labels, &spec)
}

/// Whoever makes pods beside the host can take the host's account. A plugin that may make pods in all namespaces is no reason to refuse it everywhere, and RBAC knows no exceptions.
fn beside_the_host(host: &Namespace, labels: &Value) -> Vec<Value> {
    let (write, connect): (&[&str], &[&str]) = (&["CREATE", "UPDATE"], &["CONNECT"]);
    let workloads = |group: &str, more: &[&'static str]| {
        let own = WORKLOADS.iter().filter(|(of, _)| *of == group).map(|(_, resource)| *resource);
        rule(group, &own.chain(more.iter().copied()).collect::<Vec<_>>(), write)
    };
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": matching(
            &json!({"matchLabels": {"kubernetes.io/metadata.name": host.as_str()}}),
            &json!([
                workloads("", &["serviceaccounts/token"]),
                rule("", &["pods/exec", "pods/attach"], connect),
                workloads("apps", &[]),
                workloads("batch", &[]),
            ]),
        ),
        "validations": [{
            "expression": format!("!('system:serviceaccounts:{DEFAULT_ACCOUNT_NAMESPACE}' in request.userInfo.groups)"), "reason": "Forbidden",
            "message": format!("plugins make no pods in the namespace {host}, where the host itself runs: who does can take its account; use another namespace"),
        }],
    });
    in_force(BESIDE_THE_HOST, labels, &spec)
}

fn rule(group: &str, resources: &[&str], operations: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["*"], "resources": resources, "operations": operations, "scope": "*"})
}

/// With all that the API server would fill in: to server-side apply this is one value, and whoever applies another one is in conflict.
fn matching(namespaces: &Value, rules: &Value) -> Value {
    json!({"matchPolicy": "Equivalent", "namespaceSelector": namespaces, "objectSelector": {}, "resourceRules": rules})
}

fn in_force(name: &str, labels: &Value, spec: &Value) -> Vec<Value> {
    let object = |kind: &str, spec: &Value| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec,
        })
    };
    vec![
        object("ValidatingAdmissionPolicy", spec),
        object("ValidatingAdmissionPolicyBinding", &json!({"policyName": name, "validationActions": ["Deny"]})),
    ]
}
