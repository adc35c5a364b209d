//! `/containerLogs`: the query's parsing, the choice of the file, and the response.

use std::fs;
use std::task::Poll;

use axum::http::Request;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use super::super::caller::tests::for_host;
use super::*;
use limpet_core::fixtures::observed;
use limpet_core::status::observed::ObservedContainer;

fn query(text: &str) -> Vec<(String, String)> {
    form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

#[tokio::test]
async fn the_end_of_a_log_is_not_sent_with_its_last_data() {
    let mut log = std::pin::pin!(ended_apart(stream::iter(["a", "b"])));
    let mut polled = Vec::new();
    for _ in 0..4 {
        polled.push(futures_util::poll!(log.next()));
    }
    let data = |text| Poll::Ready(Some(text));
    assert_eq!(polled, [data("a"), data("b"), Poll::Pending, Poll::Ready(None)]);
}

#[test]
fn kubelets_query_parameters_are_parsed() {
    let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
    let all = ReadOptions::default();
    for (text, options, previous) in [
        ("", all.clone(), false),
        ("follow=false&tailLines=", all.clone(), false),
        ("previous=true", all.clone(), true),
        ("follow=1&timestamps=true", ReadOptions { follow: true, timestamps: true, ..all.clone() }, false),
        ("tailLines=0", ReadOptions { tail_lines: Some(0), ..all.clone() }, false),
        ("tail=7&tailLines=1", ReadOptions { tail_lines: Some(7), ..all.clone() }, false),
        ("tail=all&tailLines=1", all.clone(), false),
        ("limitBytes=10", ReadOptions { limit_bytes: Some(10), ..all.clone() }, false),
        ("stream=Stderr", ReadOptions { stream: Some(LogStream::Stderr), ..all.clone() }, false),
        ("stream=All", all.clone(), false),
        ("sinceSeconds=60", ReadOptions { since: "2026-01-01T23:59:00Z".parse().ok(), ..all.clone() }, false),
        (&format!("sinceSeconds={}", i64::MAX), ReadOptions { since: Some(Timestamp::MIN), ..all.clone() }, false),
        (
            "sinceTime=2026-01-01T02:00:00%2B02:00",
            ReadOptions { since: "2026-01-01T00:00:00Z".parse().ok(), ..all },
            false,
        ),
    ] {
        assert_eq!(parse(&query(text), now), Ok((options, previous)), "{text}");
    }
    for (text, is_invalid) in [
        ("follow=perhaps", false),
        ("tailLines=-1", true),
        ("tail=-1", true),
        ("limitBytes=0", true),
        ("sinceSeconds=0", true),
        ("sinceSeconds=x", false),
        ("sinceTime=noon", false),
        ("stream=stdin", true),
        ("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", true),
    ] {
        let error = parse(&query(text), now).unwrap_err();
        assert_eq!(error == QueryError::Invalid, is_invalid, "{text}: {error}");
    }
}

/// A pod whose container `app` runs for the third time; `waits` and `pulls` have not started.
struct Node {
    logs: tempfile::TempDir,
    observed: Observed,
}

impl Node {
    fn new() -> Self {
        let node = Self { logs: tempfile::tempdir().unwrap(), observed: Observed::default() };
        let line = |text: &str| format!("2026-01-01T00:00:00Z stdout F {text}\n");
        fs::write(node.logs.path().join("1.log"), line("before")).unwrap();
        fs::write(node.logs.path().join("2.log"), line("now") + &line("and on")).unwrap();
        node.publish(Some(42));
        node
    }

    fn publish(&self, pid: Option<u32>) {
        let mut pod = (*observed(serde_json::json!({
            "metadata": {"name": "web-edge1", "namespace": "default"},
            "spec": {"containers": [{"name": "app"}, {"name": "once"}, {"name": "pulls"}, {"name": "unknown"}]},
            "status": {"containerStatuses": [{
                "name": "pulls", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ImagePullBackOff"}},
            }]},
        })))
        .clone();
        let container = |name: &str, restart_count| {
            let log_path = self.logs.path().join(name);
            (name.to_owned(), ObservedContainer { id: name.to_owned(), pid, log_path, restart_count })
        };
        pod.containers = [container("app", 2), container("once", 0)].into();
        pod.containers.get_mut("app").unwrap().log_path = self.logs.path().to_owned();
        self.observed.publish(&pod.record.key.clone(), Some(Arc::new(pod)));
    }

    async fn get(&self, path: &str) -> Response {
        let request = Request::get(path).body(Body::empty()).unwrap();
        for_host(routes(LogState::observed(self.observed.clone())).into_router()).oneshot(request).await.unwrap()
    }

    async fn text(&self, path: &str) -> (u16, String) {
        let response = self.get(path).await;
        let status = response.status().as_u16();
        let text = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(text.to_vec()).unwrap())
    }
}

#[tokio::test]
async fn responds_with_the_log_or_kubelets_message() {
    let node = Node::new();
    for (path, status, text) in [
        ("default/web-edge1/app", 200, "now\nand on\n"),
        ("default/web-edge1/app?tailLines=1", 200, "and on\n"),
        ("default/web-edge1/app?previous=true", 200, "before\n"),
        ("default/web-edge1/app?follow=x", 400, "follow: x is neither true nor false\n"),
        ("default/other/app", 404, "pod \"other\" does not exist\n"),
        ("default/web-edge1/none", 404, "container \"none\" not found in pod \"web-edge1\"\n"),
        ("default/web-edge1/once", 404, "container \"once\" in pod \"web-edge1\" has no log\n"),
        (
            "default/web-edge1/once?previous=true",
            400,
            "previous terminated container \"once\" in pod \"web-edge1\" not found\n",
        ),
        (
            "default/web-edge1/pulls",
            400,
            "container \"pulls\" in pod \"web-edge1\" is waiting to start: trying and failing to pull image\n",
        ),
        (
            "default/web-edge1/unknown",
            400,
            "container \"unknown\" in pod \"web-edge1\" is waiting to start: no logs yet\n",
        ),
    ] {
        assert_eq!(node.text(&format!("/containerLogs/{path}")).await, (status, text.to_owned()), "{path}");
    }
}

#[tokio::test]
async fn following_stops_when_the_container_exits() {
    let node = Node::new();
    let response = node.get("/containerLogs/default/web-edge1/app?follow=true&tailLines=1").await;
    let mut body = response.into_body();
    let mut next = async || body.frame().await.map(|frame| frame.unwrap().into_data().unwrap());
    assert_eq!(next().await.unwrap(), "and on\n");
    let mut file = fs::File::options().append(true).open(node.logs.path().join("2.log")).unwrap();
    std::io::Write::write_all(&mut file, b"2026-01-01T00:00:01Z stderr F more\n").unwrap();
    assert_eq!(next().await.unwrap(), "more\n");
    node.publish(None);
    assert!(next().await.is_none());
}
