//! Pods and objects over the socket, with a push source behind it.

#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use http_body_util::BodyExt as _;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use limpet_core::source::push;
use limpet_model::manifest;
use limpet_server::fixtures::{self, serve_all};
use limpet_server::{ServerState, SourceView, bind};
use limpet_wire::pods::{OUTCOME, SourceDocument};
use limpet_wire::socket_client::{ClientError, SocketClient};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A server with a push source of its own.
struct Bench {
    client: SocketClient,
    state: ServerState,
    dir: TempDir,
    stop: CancellationToken,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Bench {
    fn new() -> Self {
        let decoder = Decoder::new(manifest::read, manifest::restore_last_good);
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&dir.path().join("limpet.db")).unwrap().0);
        let (pusher, inbox) = push::channel("edge1", decoder);
        let published: Arc<Mutex<Arc<SourceSnapshot>>> = Arc::default();
        let (shown, publish) = (Arc::clone(&published), published);
        let context = PushContext { slots: Arc::default(), observed: Observed::default() };
        let source = PushSource::new("edge1", store, decoder, context);
        let stop = CancellationToken::new();
        let halt = stop.clone();
        let pushing = tokio::spawn(async move {
            source.run(inbox, |snapshot| *publish.lock().unwrap() = snapshot, halt).await;
        });
        let sources = move || {
            vec![SourceView {
                kind: SourceKind::Push,
                place: "socket".into(),
                backend: "".into(),
                last_good: None,
                next_retry: None,
                persist_error: None,
                snapshot: Arc::clone(&shown.lock().unwrap()),
            }]
        };
        let (state, _) = fixtures::state(Arc::new(sources), pusher, fixtures::idle_meter());
        let path = dir.path().join("limpet.sock");
        let server = serve_all(bind(&path).unwrap(), state.clone(), stop.clone());
        let tasks = vec![pushing, tokio::spawn(server)];
        Self { client: SocketClient::new(&path), state, dir, stop, tasks }
    }

    async fn put(&self, path: &str, body: &Value) -> (u16, String) {
        match self.client.put(path, body.to_string().into_bytes()).await {
            Ok(answer) => (answer.status().as_u16(), answer.headers()[OUTCOME].to_str().unwrap().to_owned()),
            Err(error) => status_of(error),
        }
    }

    async fn end(self) {
        self.stop.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

fn status_of(error: ClientError) -> (u16, String) {
    match error {
        ClientError::Refused { status, message } => (status, message),
        other => panic!("{other}"),
    }
}

fn web_of(image: &str) -> Value {
    let spec = json!({"containers": [{"name": "a", "image": image}],
        "volumes": [{"name": "v", "secret": {"secretName": "token"}}]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})
}

#[tokio::test]
async fn pods_are_put_read_and_deleted_as_at_an_apiserver() {
    let bench = Bench::new();
    let client = &bench.client;
    let web = "/api/v1/namespaces/lab/pods/web";
    for (image, status, outcome) in [("x:1", 201, "created"), ("x:1", 200, "unchanged"), ("x:2", 200, "configured")] {
        assert_eq!(bench.put(web, &web_of(image)).await, (status, outcome.to_owned()));
    }
    let pod: Pod = client.get_json(web).await.unwrap();
    assert_eq!(pod.metadata.name.as_deref(), Some("web-edge1"));
    for (path, expected) in
        [("/api/v1/pods", 1), ("/api/v1/namespaces/lab/pods", 1), ("/api/v1/namespaces/default/pods", 0)]
    {
        let list: List<Pod> = client.get_json(path).await.unwrap();
        assert_eq!(list.items.len(), expected, "{path}");
    }
    let (status, message) = bench.put(web, &web_of("")).await;
    assert!(status == 422 && message.starts_with("Pod \"web\" is invalid: "), "{status} {message}");
    let large = status_of(client.put(web, vec![b' '; 11 << 20]).await.unwrap_err());
    assert_eq!(large, (413, "the body is larger than 10 MiB".to_owned()));
    client.delete(&format!("{web}?gracePeriodSeconds=5")).await.unwrap();
    assert_eq!(status_of(client.delete(web).await.unwrap_err()), (404, "pods \"web\" not found".to_owned()));
    assert_eq!(status_of(client.get_text(web).await.unwrap_err()).0, 404);
    bench.end().await;
}

#[tokio::test]
async fn objects_are_put_read_and_deleted_and_secret_values_are_never_shown() {
    let bench = Bench::new();
    let client = &bench.client;
    let object = |kind: &str, name: &str, field: &str, data: Value| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, field: data});
    let (map, secret) = ("/api/v1/namespaces/lab/configmaps/settings", "/api/v1/namespaces/lab/secrets/token");
    let values = object("ConfigMap", "settings", "data", json!({"a": "1"}));
    assert_eq!(bench.put(map, &values).await, (201, "created".to_owned()));
    assert_eq!(bench.put(map, &values).await, (200, "unchanged".to_owned()));
    let token = object("Secret", "token", "stringData", json!({"password": "hunter2", "user": "hunter2"}));
    let answer = client.put(secret, token.to_string().into_bytes()).await.unwrap();
    assert_eq!(answer.status(), 201);
    let answer = answer.into_body().collect().await.unwrap().to_bytes();
    let mut shown = vec![String::from_utf8(answer.to_vec()).unwrap()];

    let read: Value = client.get_json(map).await.unwrap();
    assert_eq!((&read["kind"], &read["data"]), (&json!("ConfigMap"), &json!({"a": "1"})));
    let read: Value = client.get_json(secret).await.unwrap();
    assert_eq!(read["metadata"]["annotations"], json!({"limpet.dev/keys": "password,user"}));
    let (status, message) = bench.put(secret, &read).await;
    assert!(
        status == 422 && message.starts_with("Secret \"token\" is invalid: "),
        "the redacted document cannot be put back"
    );
    for (path, kind, expected) in [
        ("/api/v1/secrets", "SecretList", 1),
        ("/api/v1/namespaces/lab/secrets", "SecretList", 1),
        ("/api/v1/namespaces/lab/configmaps", "ConfigMapList", 1),
        ("/api/v1/namespaces/default/configmaps", "ConfigMapList", 0),
    ] {
        let list: Value = client.get_json(path).await.unwrap();
        assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&json!(kind), Some(expected)), "{path}");
        shown.push(list.to_string());
    }
    shown.extend([read.to_string(), client.get_text("/limpet/v1/sources").await.unwrap()]);
    for text in &shown {
        assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{text}");
    }
    let sources: Vec<SourceDocument> = client.get_json("/limpet/v1/sources").await.unwrap();
    assert_eq!((sources[0].pods, sources[0].objects), (0, 2));

    bench.put("/api/v1/namespaces/lab/pods/web", &web_of("x:1")).await;
    let answer = client.delete(secret).await.unwrap();
    let warning = answer.headers()["warning"].to_str().unwrap().to_owned();
    assert_eq!(warning, "299 - \"Secret lab/token is still referred to by pod lab/web-edge1\"");
    assert!(client.delete(map).await.unwrap().headers().get("warning").is_none());
    assert_eq!(status_of(client.delete(map).await.unwrap_err()), (404, "configmaps \"settings\" not found".to_owned()));
    assert_eq!(status_of(client.get_text(secret).await.unwrap_err()), (404, "secrets \"token\" not found".to_owned()));
    bench.end().await;
}

#[tokio::test]
async fn a_rejected_push_is_recorded_as_event_and_metric() {
    let bench = Bench::new();
    let web = "/api/v1/namespaces/default/pods/web";
    let invalid =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}, "data": {"a": "hunter2"}});
    for body in [web_of("x:1"), web_of(""), web_of("")] {
        bench.put(web, &body).await;
    }
    assert_eq!(bench.put("/api/v1/namespaces/default/secrets/token", &invalid).await.0, 422);
    assert_eq!(bench.put("/api/v1/namespaces/default/pods/db", &web_of("x:1")).await.0, 400);
    assert_eq!(status_of(bench.client.put(web, vec![b' '; 11 << 20]).await.unwrap_err()).0, 413);
    // A DELETE of a pod that does not exist is no rejected manifest.
    bench.client.delete("/api/v1/namespaces/default/pods/db").await.unwrap_err();

    let events: Vec<(Option<String>, String, u32)> = (bench.state.events.snapshot().into_iter())
        .map(|event| (event.pod().map(|(key, _)| key.to_string()), event.message, event.count))
        .collect();
    let expected = [
        (Some("default/web-edge1"), "manifest rejected, the last good version runs on: Pod \"web\" is invalid: ", 2),
        (None, "Secret \"token\" is invalid: apply:1:", 1),
        (None, "the Pod's name is web, the request's is db", 1),
        (Some("default/web-edge1"), "manifest rejected, the last good version runs on: the body is larger than ", 1),
    ];
    assert_eq!(events.len(), expected.len(), "{events:?}");
    for ((pod, message, count), (about, beginning, times)) in events.iter().zip(expected) {
        assert!(pod.as_deref() == about && message.starts_with(beginning) && *count == times, "{events:?}");
        assert!(!message.contains("hunter2"), "{message}");
    }
    let page = bench.client.get_text("/metrics").await.unwrap();
    for (reason, count) in [("invalid", 3), ("unreadable", 2)] {
        let line = format!("limpet_manifest_rejected_total{{source=\"push\",reason=\"{reason}\"}} {count}\n");
        assert!(page.contains(&line), "{line}{page}");
    }
    assert!(bench.dir.path().exists());
    bench.end().await;
}
