//! Which configurations are taken, and what the others are told.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};

use super::*;
use crate::{
    answer::MOST,
    testing::{FakeApi, status, until},
};

fn kubeconfig(user: &str, cluster: &str) -> (tempfile::TempDir, Target) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
         clusters: [{{name: c, cluster: {{server: \"http://127.0.0.1:1\"{cluster}}}}}]\n\
         users: [{{name: u, user: {{token: t{user}}}}}]\n\
         contexts: [{{name: a, context: {{cluster: c, user: u}}}}, {{name: b, context: {{cluster: c, user: u, namespace: n}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    (dir, Target { kubeconfig: Some(path), ..Target::default() })
}

#[tokio::test]
async fn a_context_can_be_chosen() {
    let (_dir, mut target) = kubeconfig("", "");
    assert_eq!(configuration(&target).await.unwrap().default_namespace, "default");
    target.context = Some("b".to_owned());
    assert_eq!(connect(&target).await.unwrap().default_namespace(), "n");
    target.context = Some("c".to_owned());
    let error = configuration(&target).await.unwrap_err().to_string();
    assert!(error.contains("config") && error.contains("kubectl --kubeconfig"), "{error}");
}

#[tokio::test]
async fn a_kubeconfig_that_impersonates_is_refused() {
    for (user, named) in [
        (", as: jane", "jane"),
        (", as-groups: [x]", "groups"),
        (", as-uid: \"1\"", "groups"),
        (", as-user-extra: {a: [b]}", "groups"),
    ] {
        let (_dir, target) = kubeconfig(user, "");
        let error = connect(&target).await.err().unwrap();
        assert!(matches!(&error, ConnectError::Impersonates { user, .. } if user.contains(named)), "{error}");
    }
}

#[tokio::test]
async fn a_proxy_is_refused_rather_than_ignored() {
    let (_dir, target) = kubeconfig("", ", proxy-url: \"http://proxy:1\"");
    assert!(matches!(connect(&target).await.err().unwrap(), ConnectError::Proxy(_)));
}

#[tokio::test]
async fn a_kubeconfig_that_is_not_there_is_named() {
    let target = Target { kubeconfig: Some("/nowhere/config".into()), ..Target::default() };
    let error = connect(&target).await.err().unwrap().to_string();
    assert!(error.contains("/nowhere/config"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_wait_says_why_and_ends_when_the_server_is_ready() {
    let asked = AtomicUsize::new(0);
    let api = FakeApi::new(move |_| {
        Some(match asked.fetch_add(1, Ordering::Relaxed) {
            0 => (0, "connection refused".into()),
            1 => status(500, "", "etcd is not ready", &serde_json::json!({})),
            _ => (200, "ok".into()),
        })
    });
    let mut told = Vec::new();
    wait_until_ready(&api.client(), |why| told.push(why.to_owned())).await.unwrap();
    assert_eq!(told.len(), 2);
    assert!(told[0].contains("connection refused") && told[1].contains("etcd is not ready"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn credentials_that_are_refused_are_no_reason_to_wait() {
    let api = FakeApi::new(|_| Some(status(401, "Unauthorized", "who are you", &serde_json::json!({}))));
    let error = wait_until_ready(&api.client(), |_| {}).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unauthorized(_)));
}

#[tokio::test]
async fn a_command_gives_up_where_nobody_answers_and_says_who_did_not() {
    // Nobody listens on port 1.
    let (_dir, target) = kubeconfig("", "");
    let error = connect_within(&target, Duration::from_millis(300)).await.err().unwrap();
    let ConnectError::Unreachable { url, why, .. } = &error else { panic!("{error}") };
    assert!(url.contains("127.0.0.1:1") && why.contains("refused"), "{error}");

    // This one takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let path = target.kubeconfig.clone().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("127.0.0.1:1", &silent.local_addr().unwrap().to_string())).unwrap();
    let error = connect_within(&target, Duration::from_millis(300)).await.err().unwrap();
    assert!(matches!(&error, ConnectError::Unreachable { why, .. } if why.contains("says nothing")), "{error}");
}

type AnyBody = BoxBody<Bytes, std::io::Error>;

/// A client whose every request is counted by its path, and answered with a body that a test chooses.
fn counting(body: impl Fn() -> AnyBody + Send + Sync + 'static) -> (Client, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (seen, body) = (Arc::clone(&asked), Arc::new(body));
    let inner = tower::service_fn(move |request: Request<Body>| {
        let (seen, body) = (Arc::clone(&seen), Arc::clone(&body));
        async move {
            seen.lock().unwrap().push(request.uri().path().to_owned());
            Ok::<_, BoxError>(Response::new(body()))
        }
    });
    let runtime = Handle::current();
    let service = OnRuntime { inner, runtime, observer: None, host: "".into(), answers: Arc::default() };
    (Client::new(service, "default"), asked)
}

fn get(path: &str, acting: Option<&str>) -> Request<Vec<u8>> {
    let mut request = Request::get(path).body(Vec::new()).unwrap();
    if let Some(plugin) = acting {
        request.extensions_mut().insert(Acting(PluginName::parse(plugin).unwrap()));
    }
    request
}

#[tokio::test]
async fn a_plugin_that_asks_a_thousand_times_at_once_holds_up_itself_alone() {
    let (client, asked) = counting(|| StreamBody::new(futures::stream::pending()).boxed());
    let ask = |path: &'static str, acting| {
        let client = client.clone();
        tokio::spawn(async move { send(&client, get(path, acting)).await })
    };
    let greedy: Vec<_> = (0..1_000).map(|_| ask("/greedy", Some("greedy"))).collect();
    let count = |path: &str| asked.lock().unwrap().iter().filter(|asked| *asked == path).count();
    until("it has all its places", || count("/greedy") == 32).await;
    let mut list = get("/cache", Some("greedy"));
    list.extensions_mut().insert(Purpose::Cache);
    let of_cache = client.clone();
    let others = [
        ask("/neighbour", Some("neighbour")),
        ask("/host", None),
        ask("/stream?watch=true", Some("greedy")),
        tokio::spawn(async move { send(&of_cache, list).await }),
    ];
    until("the others are asked", || ["/neighbour", "/host", "/stream", "/cache"].iter().all(|path| count(path) == 1))
        .await;
    assert_eq!(count("/greedy"), 32);
    greedy.into_iter().chain(others).for_each(|task| task.abort());
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off_and_named() {
    let (client, _) = counting(|| Full::new(vec![b' '; MOST + 1].into()).map_err(std::io::Error::other).boxed());
    assert!(matches!(send(&client, get("/", None)).await, Err(Fault::TooLarge)));
}
