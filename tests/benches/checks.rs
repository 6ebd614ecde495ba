//! What the checks cost a host call: the same call of a port, once through the one way out with 1, 10 and 100 rules granted, and once directly. `cargo bench --bench checks` prints a
//! table and says where the target is missed. Each figure is the best of many rounds, in each of which all have a turn, since a machine that does other things for some seconds doubles
//! whatever is measured then.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ports;

use std::{collections::BTreeMap, future::Future, hint::black_box, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::executor::block_on;
use operetta_core::{
    bounds::Bounds,
    cache::Scope,
    effect::{Effects, Policy},
    grant::Rule,
    name::{AccountName, ControllerName, Namespace, PluginName, ServiceAccount},
    port::{Caller, Channels as _, GrpcCall, Kubernetes as _, Patch},
    resource::{ObjectKey, Resource},
};
use ports::{Nothing, effects};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

const CALLS: u32 = 20_000;
const ROUNDS: usize = 40;
/// What the checks may cost one host call.
const CHECKS: Duration = Duration::from_micros(1);

/// So many rules, each of which names a kind, verbs, two namespaces and two objects, and of which only the last allows the calls.
fn granted(rules: usize) -> Arc<ArcSwap<Policy>> {
    let mut policy = Policy::default();
    policy.grants.rules = (1..rules)
        .map(|number| Rule {
            api_groups: vec![String::new(), "apps".into()],
            resources: vec![format!("things{number}"), format!("things{number}/status"), "configmaps/status".into()],
            verbs: ["get", "list", "watch", "create", "patch"].map(String::from).to_vec(),
            resource_names: vec!["one".into(), "other".into()],
            namespaces: vec![Namespace::parse("default").unwrap(), Namespace::parse("shop").unwrap()],
        })
        .chain([Rule {
            api_groups: vec![String::new()],
            resources: vec!["configmaps".into()],
            verbs: ["get", "create", "patch", "update"].map(String::from).to_vec(),
            ..Rule::default()
        }])
        .collect::<Vec<_>>()
        .into();
    policy.grants.channels = [operetta_core::name::ChannelName::parse("shop").unwrap()].into();
    let name = |text| (PluginName::parse(text).unwrap(), Namespace::parse("operetta-plugins").unwrap());
    let ((plugin, namespace), account) = (name("bench"), AccountName::parse("bench").unwrap());
    policy.bounds = Bounds::of(&plugin, &[], &ServiceAccount { namespace, name: account }, &Scope::All);
    policy.limits.host_calls = u64::MAX;
    policy.limits.traffic = u64::MAX;
    policy.limits.write_rate = u64::MAX;
    Arc::new(ArcSwap::from_pointee(policy))
}

/// CPU time of this thread, in nanoseconds: what else the machine does is not counted.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap()).as_secs_f64() * 1e9
}

/// What one of many calls takes.
fn each<F: Future<Output = ()>>(call: impl Fn() -> F) -> f64 {
    let began = cpu();
    for _ in 0..CALLS {
        block_on(call());
    }
    (cpu() - began) / f64::from(CALLS)
}

/// A call that is measured: its names, and what one takes directly and checked.
struct Row<'a> {
    what: String,
    round: Box<dyn Fn() -> (f64, f64) + 'a>,
    best: (f64, f64),
}

impl<'a> Row<'a> {
    fn of<A, B>(what: &str, rules: usize, direct: impl Fn() -> A + 'a, checked: impl Fn() -> B + 'a) -> Self
    where
        A: Future<Output = ()>,
        B: Future<Output = ()>,
    {
        let round = Box::new(move || (each(&direct), each(&checked)));
        Self { what: format!("{what}, {rules} rules granted"), round, best: (f64::MAX, f64::MAX) }
    }

    fn turn(&mut self) {
        let (direct, checked) = (self.round)();
        self.best = (self.best.0.min(direct), self.best.1.min(checked));
    }

    fn print(&self) {
        let (Self { what, .. }, (direct, checked)) = (self, self.best);
        let more = checked - direct;
        let verdict = if more <= CHECKS.as_secs_f64() * 1e9 { "reached" } else { "MISSED" };
        println!("{what:<44} {direct:>7.0} ns {checked:>7.0} ns {more:>7.0} ns  (at most {CHECKS:?}: {verdict})");
    }
}

fn main() {
    // `cargo test` runs benches too, to see that they still run; that is what their building shows.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let caller =
        Caller { plugin: PluginName::parse("bench").unwrap(), controller: ControllerName::parse("tick").unwrap() };
    let (resource, key) =
        (Resource::parse("", "v1", "configmaps").unwrap(), ObjectKey::parse(Some("default"), "thing").unwrap());
    let body = || "{}".to_owned();
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u", "controller": true});
    let data: BTreeMap<_, _> = (0..50).map(|n| (format!("key-{n}"), "some thirty bytes of a value")).collect();
    let metadata =
        json!({"name": "thing", "resourceVersion": "7", "ownerReferences": [owner], "labels": {"app": "bench"}});
    let owned = json!({"metadata": metadata, "data": data}).to_string();
    let owned = || owned.clone();
    let (port, caller, resource, key) = (&Nothing, &caller, &resource, &key);
    let all = [1, 10, 100].map(|rules| (rules, effects(&granted(rules))));
    let channel = &operetta_core::name::ChannelName::parse("shop").unwrap();
    let mut rows = Vec::new();
    for (rules, effects) in &all {
        let (rules, effects): (_, &Effects) = (*rules, effects);
        let direct = move || async move { drop(black_box(port.get(caller, resource, key, false).await)) };
        let checked = move || async move { assert!(black_box(effects.get(resource, key, false).await).is_ok()) };
        rows.push(Row::of("get", rules, direct, checked));
        // Two grants are needed for an apply: patch and create.
        let sent = move |body| async move { drop(black_box(port.patch(caller, resource, key, None, body).await)) };
        let asked =
            move |body| async move { assert!(black_box(effects.patch(resource, key, None, body).await).is_ok()) };
        let (direct, checked) = (move || sent(Patch::Apply(body())), move || asked(Patch::Apply(body())));
        rows.push(Row::of("apply", rules, direct, checked));
        // What most operators write: it says whose it is, which what lies there must say as well.
        let (direct, checked) = (move || sent(Patch::Apply(owned())), move || asked(Patch::Apply(owned())));
        rows.push(Row::of("apply of 2 kB with an owner", rules, direct, checked));
        // It may take nothing away that people said to the host.
        let direct = move || async move { drop(black_box(port.replace(caller, resource, key, None, owned()).await)) };
        let checked =
            move || async move { assert!(black_box(effects.replace(resource, key, None, owned()).await).is_ok()) };
        rows.push(Row::of("replace of 2 kB with an owner", rules, direct, checked));
    }
    let [.., (_, effects)] = &all;
    let call = || GrpcCall {
        path: "/shop.v1.Shop/Buy".into(),
        metadata: vec![("x-colour".into(), b"red".to_vec())],
        deadline: None,
    };
    let direct = move || async move { drop(black_box(port.unary(channel, call(), vec![0; 64]).await)) };
    let checked = move || async move { drop(black_box(effects.unary("shop", call(), vec![0; 64]).await)) };
    rows.push(Row::of("unary", 100, direct, checked));
    for _ in 0..ROUNDS {
        rows.iter_mut().for_each(Row::turn);
    }
    println!(
        "{:<44} {:>10} {:>10} {:>10}",
        "one host call on ports that answer at once", "directly", "checked", "more"
    );
    rows.iter().for_each(Row::print);
}
