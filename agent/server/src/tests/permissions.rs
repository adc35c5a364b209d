//! Every route of each listener with its permission. Add each new route here.

use super::super::caller::tests::{pod, root};
use super::super::caller::{Caller, Origin};
use super::super::permission::Permission::{self, Nodes, Read, Write};
use super::super::permission::Subresource::{
    self, Checkpoint, Configz, Flagz, Healthz, Log, Metrics, Pods, Proxy, Stats, Statusz,
};
use super::super::routes::Routes;
use super::*;

use std::ffi::OsStr;

use axum::body::Body;
use axum::http::Request;
use limpet_model::actor::{Actor, ActorPod};
use limpet_model::attribution::Backend;
use tower::ServiceExt as _;

use limpet_wire::socket_client::ClientError;

const OBSERVABILITY: &[(&str, &str, Permission)] = &[
    ("GET", "/healthz", Nodes(Healthz)),
    ("GET", "/healthz/ping", Nodes(Healthz)),
    ("GET", "/healthz/log", Nodes(Healthz)),
    ("GET", "/healthz/syncloop", Nodes(Healthz)),
    ("GET", "/livez", Nodes(Healthz)),
    ("GET", "/readyz", Nodes(Healthz)),
    ("GET", "/metrics", Nodes(Metrics)),
];

const PODS: &[(&str, &str, Permission)] =
    &[("GET", "/pods", Nodes(Pods)), ("GET", "/pods/", Nodes(Pods)), ("GET", "/runningpods/", Nodes(Pods))];

const FIGURES: &[(&str, &str, Permission)] = &[
    ("GET", "/stats/summary", Nodes(Stats)),
    ("POST", "/stats/summary", Nodes(Stats)),
    ("GET", "/metrics/slis", Nodes(Metrics)),
    ("GET", "/metrics/resource", Nodes(Metrics)),
    ("GET", "/metrics/cadvisor", Nodes(Metrics)),
    ("GET", "/metrics/probes", Nodes(Metrics)),
];

const KUBELET: &[(&str, &str, Permission)] = &[
    ("GET", "/configz", Nodes(Configz)),
    ("GET", "/containerLogs/{namespace}/{pod}/{container}", Nodes(Proxy)),
    ("GET", "/exec/{namespace}/{pod}/{container}", Nodes(Proxy)),
    ("POST", "/exec/{namespace}/{pod}/{container}", Nodes(Proxy)),
    ("GET", "/attach/{namespace}/{pod}/{container}", Nodes(Proxy)),
    ("POST", "/attach/{namespace}/{pod}/{container}", Nodes(Proxy)),
    ("GET", "/portForward/{namespace}/{pod}", Nodes(Proxy)),
    ("POST", "/portForward/{namespace}/{pod}", Nodes(Proxy)),
    ("GET", "/portForward/{namespace}/{pod}/{uid}", Nodes(Proxy)),
    ("POST", "/portForward/{namespace}/{pod}/{uid}", Nodes(Proxy)),
    ("GET", "/exec/{namespace}/{pod}/{uid}/{container}", Nodes(Proxy)),
    ("POST", "/exec/{namespace}/{pod}/{uid}/{container}", Nodes(Proxy)),
    ("GET", "/attach/{namespace}/{pod}/{uid}/{container}", Nodes(Proxy)),
    ("POST", "/attach/{namespace}/{pod}/{uid}/{container}", Nodes(Proxy)),
    ("POST", "/run/{namespace}/{pod}/{container}", Nodes(Proxy)),
    ("POST", "/run/{namespace}/{pod}/{uid}/{container}", Nodes(Proxy)),
    ("POST", "/checkpoint/{namespace}/{pod}/{container}", Nodes(Checkpoint)),
    ("GET", "/logs", Nodes(Log)),
    ("GET", "/logs/", Nodes(Log)),
    ("GET", "/logs/{*path}", Nodes(Log)),
    ("GET", "/statusz", Nodes(Statusz)),
    ("GET", "/flagz", Nodes(Flagz)),
    ("GET", "/debug/flags/v", Nodes(Proxy)),
    ("POST", "/debug/flags/v", Nodes(Proxy)),
    ("PUT", "/debug/flags/v", Nodes(Proxy)),
    ("GET", "/debug/pprof", Nodes(Proxy)),
    ("GET", "/debug/pprof/", Nodes(Proxy)),
    ("GET", "/debug/pprof/{*name}", Nodes(Proxy)),
];

const LOCAL: &[(&str, &str, Permission)] = &[
    ("GET", "/api/v1/pods", Read),
    ("GET", "/api/v1/namespaces/{namespace}/pods", Read),
    ("GET", "/api/v1/namespaces/{namespace}/pods/{name}", Read),
    ("PUT", "/api/v1/namespaces/{namespace}/pods/{name}", Write),
    ("DELETE", "/api/v1/namespaces/{namespace}/pods/{name}", Write),
    ("GET", "/api/v1/configmaps", Read),
    ("GET", "/api/v1/namespaces/{namespace}/configmaps", Read),
    ("GET", "/api/v1/namespaces/{namespace}/configmaps/{name}", Read),
    ("PUT", "/api/v1/namespaces/{namespace}/configmaps/{name}", Write),
    ("DELETE", "/api/v1/namespaces/{namespace}/configmaps/{name}", Write),
    ("GET", "/api/v1/secrets", Read),
    ("GET", "/api/v1/namespaces/{namespace}/secrets", Read),
    ("GET", "/api/v1/namespaces/{namespace}/secrets/{name}", Read),
    ("PUT", "/api/v1/namespaces/{namespace}/secrets/{name}", Write),
    ("DELETE", "/api/v1/namespaces/{namespace}/secrets/{name}", Write),
    ("GET", "/api/v1/persistentvolumeclaims", Read),
    ("GET", "/api/v1/namespaces/{namespace}/persistentvolumeclaims", Read),
    ("GET", "/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}", Read),
    ("PUT", "/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}", Write),
    ("DELETE", "/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}", Write),
    ("GET", "/api/v1/services", Read),
    ("GET", "/api/v1/namespaces/{namespace}/services", Read),
    ("GET", "/api/v1/namespaces/{namespace}/services/{name}", Read),
    ("PUT", "/api/v1/namespaces/{namespace}/services/{name}", Write),
    ("DELETE", "/api/v1/namespaces/{namespace}/services/{name}", Write),
    ("GET", "/apis/apps/v1/deployments", Read),
    ("GET", "/apis/apps/v1/namespaces/{namespace}/deployments", Read),
    ("GET", "/apis/apps/v1/namespaces/{namespace}/deployments/{name}", Read),
    ("PUT", "/apis/apps/v1/namespaces/{namespace}/deployments/{name}", Write),
    ("DELETE", "/apis/apps/v1/namespaces/{namespace}/deployments/{name}", Write),
    ("GET", "/apis/apps/v1/replicasets", Read),
    ("GET", "/apis/apps/v1/namespaces/{namespace}/replicasets", Read),
    ("GET", "/apis/apps/v1/namespaces/{namespace}/replicasets/{name}", Read),
    ("PUT", "/apis/apps/v1/namespaces/{namespace}/replicasets/{name}", Write),
    ("DELETE", "/apis/apps/v1/namespaces/{namespace}/replicasets/{name}", Write),
    ("GET", "/apis/apps/v1/daemonsets", Read),
    ("GET", "/apis/apps/v1/namespaces/{namespace}/daemonsets", Read),
    ("GET", "/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}", Read),
    ("PUT", "/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}", Write),
    ("DELETE", "/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}", Write),
    ("GET", "/apis/apps/v1/statefulsets", Read),
    ("GET", "/apis/apps/v1/namespaces/{namespace}/statefulsets", Read),
    ("GET", "/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}", Read),
    ("PUT", "/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}", Write),
    ("DELETE", "/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}", Write),
    ("GET", "/apis/batch/v1/jobs", Read),
    ("GET", "/apis/batch/v1/namespaces/{namespace}/jobs", Read),
    ("GET", "/apis/batch/v1/namespaces/{namespace}/jobs/{name}", Read),
    ("PUT", "/apis/batch/v1/namespaces/{namespace}/jobs/{name}", Write),
    ("DELETE", "/apis/batch/v1/namespaces/{namespace}/jobs/{name}", Write),
    ("GET", "/apis/batch/v1/cronjobs", Read),
    ("GET", "/apis/batch/v1/namespaces/{namespace}/cronjobs", Read),
    ("GET", "/apis/batch/v1/namespaces/{namespace}/cronjobs/{name}", Read),
    ("PUT", "/apis/batch/v1/namespaces/{namespace}/cronjobs/{name}", Write),
    ("DELETE", "/apis/batch/v1/namespaces/{namespace}/cronjobs/{name}", Write),
    ("GET", "/limpet/v1/pods", Read),
    ("GET", "/limpet/v1/names", Read),
    ("GET", "/limpet/v1/pods/{namespace}/{name}/describe", Read),
    ("GET", "/limpet/v1/pods/{namespace}/{name}/history", Read),
    ("GET", "/limpet/v1/events", Read),
    ("GET", "/limpet/v1/usage", Read),
    ("GET", "/limpet/v1/sources", Read),
    ("GET", "/limpet/v1/status", Read),
    ("GET", "/limpet/v1/version", Read),
    ("POST", "/limpet/v1/cluster/accept", Write),
    ("GET", "/limpet/v1/diff", Read),
    ("POST", "/limpet/v1/diff", Read),
    ("GET", "/limpet/v1/images", Read),
    ("GET", "/limpet/v1/images/disk", Read),
    ("POST", "/limpet/v1/images/pull", Write),
    ("POST", "/limpet/v1/images/import", Write),
    ("POST", "/limpet/v1/images/pin", Write),
    ("POST", "/limpet/v1/images/prune", Write),
    ("POST", "/limpet/v1/images/verify", Write),
    ("POST", "/limpet/v1/pods/{namespace}/{name}/debug", Write),
    ("POST", "/limpet/v1/pods/{namespace}/{name}/restart", Write),
    ("POST", "/limpet/v1/shutdown", Write),
    ("POST", "/limpet/v1/shutdown/cancel", Write),
    ("POST", "/limpet/v1/agent/restart", Write),
    ("GET", "/limpet/v1/generations", Read),
    ("GET", "/limpet/v1/objects/{kind}/{namespace}/{name}", Read),
    ("GET", "/limpet/v1/revisions/{kind}/{namespace}/{name}", Read),
    ("GET", "/limpet/v1/services", Read),
    ("POST", "/limpet/v1/rollback", Write),
    ("POST", "/limpet/v1/bundle/apply", Write),
    ("GET", "/limpet/v1/bundle/node-key", Read),
    ("POST", "/limpet/v1/bundle/reset-serial", Write),
];

type Route<'a> = (&'a str, &'a str, Permission);

fn sorted<'a>(mut routes: Vec<Route<'a>>) -> Vec<Route<'a>> {
    routes.sort_by_key(|(method, path, _)| (*path, *method));
    routes
}

fn declared<S>(routes: &Routes<S>) -> Vec<Route<'_>> {
    sorted(routes.declared.iter().map(|(method, path, permission)| (*method, &**path, *permission)).collect())
}

#[tokio::test]
async fn every_route_has_the_permission_of_this_table() {
    let fixture = fixture("permissions");
    let (kubelet, local) = all_routes(&fixture.state);
    assert_eq!(declared(&kubelet::observability()), sorted(OBSERVABILITY.to_vec()));
    assert_eq!(declared(&kubelet::health()), sorted(OBSERVABILITY[..6].to_vec()));
    assert_eq!(declared(&kubelet::read_only()), sorted([OBSERVABILITY, PODS, FIGURES].concat()));
    assert_eq!(declared(&kubelet.0), sorted([OBSERVABILITY, PODS, FIGURES, KUBELET].concat()));
    assert_eq!(declared(&local.0), sorted(LOCAL.to_vec()));
    // Checks kubelet's subresource of each path, except the two that kubelet does not have.
    for (_, path, permission) in
        kubelet.0.declared.iter().filter(|(_, path, _)| !["/livez", "/readyz"].contains(&&**path))
    {
        assert_eq!(*permission, Nodes(Subresource::of_path(path)), "{path}");
    }
    let is_local = |path: &str| ["/limpet/", "/api/", "/apis/"].iter().any(|prefix| path.starts_with(prefix));
    assert!(kubelet.0.declared.iter().all(|(_, path, permission)| !is_local(path) && matches!(permission, Nodes(_))));
    assert!(local.0.declared.iter().all(|(_, path, permission)| is_local(path) && matches!(permission, Read | Write)));
}

#[tokio::test]
async fn without_debugging_handlers_what_reads_stays_and_the_rest_says_that_it_is_off() {
    let fixture = fixture("no-debugging");
    let off = |change: fn(&mut DebugHandlers)| {
        let mut handlers = DebugHandlers::ALL;
        change(&mut handlers);
        kubelet::routes(fixture.state.clone(), stream_states(&fixture.state), &handlers).0.into_router()
    };
    let status = async |app: &axum::Router, path: &str| {
        let mut request = Request::builder().uri(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(root(Origin::Host));
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    let none = off(|handlers| handlers.enabled = false);
    for (path, expected) in [
        ("/pods", 200),
        ("/healthz/log", 200),
        ("/metrics", 200),
        ("/exec/default/web/main", 405),
        ("/run/default/web/main", 405),
        ("/containerLogs/default/web/main", 405),
        ("/logs/", 405),
        ("/logs/syslog", 405),
        ("/debug/pprof/", 405),
        ("/debug/flags/v", 404),
        ("/configz", 404),
        ("/statusz", 404),
        ("/checkpoint/default/web/main", 404),
    ] {
        assert_eq!(status(&none, path).await, expected, "{path}");
    }
    let some = off(|handlers| (handlers.system_logs, handlers.profiling, handlers.flags) = (false, false, false));
    for (path, expected) in [
        ("/logs/", 405),
        ("/debug/pprof/cmdline", 405),
        ("/debug/flags/v", 405),
        ("/configz", 200),
        ("/statusz", 200),
        ("/flagz", 200),
    ] {
        assert_eq!(status(&some, path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn a_pods_process_is_refused_on_every_route_and_the_loopback_listener_serves_health_and_metrics() {
    let fixture = fixture("refused");
    let (kubelet, local) = all_routes(&fixture.state);
    let app = kubelet.0.merge(local.0).into_router();
    let routes = [OBSERVABILITY, PODS, FIGURES, KUBELET, LOCAL].concat();
    let status = async |caller: Caller, method: &str, path: &str| {
        let path = path.replace(['{', '}', '*'], "");
        let mut request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(caller);
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    for (method, path, permission) in routes {
        let refused = status(root(Origin::Pod(pod("default/web"))), method, path).await;
        assert_eq!(refused, 403, "{method} {path}");
        let anonymous = status(Caller::Anonymous, method, path).await;
        assert_eq!(anonymous != 403, matches!(permission, Nodes(Healthz | Metrics)), "{method} {path}: {anonymous}");
    }
}

/// Every process is in a pod's cgroup.
struct EverythingInPod;

impl WatchObserver for EverythingInPod {
    fn resident(&self, _: &str) -> Option<ActorPod> {
        Some(pod("default/web-edge1"))
    }

    fn pod_wrote(&self, _: &OsStr, _: &Actor) {}

    fn watching(&self, _: Backend, _: Option<Backend>) {}
}

#[tokio::test]
async fn a_pods_process_on_the_socket_has_a_status_and_the_pod_one_event() {
    let fixture = fixture("pod-peer");
    let path = fixture._dir.0.join("pods.sock");
    let state = ServerState { observer: Arc::new(EverythingInPod), ..fixture.state.clone() };
    let server = tokio::spawn(serve_all(bind(&path).unwrap(), state, fixture.stop.clone()));
    let client = SocketClient::new(&path);
    for path in ["/pods", "/healthz", "/limpet/v1/version", "/none"] {
        let error = client.get_json::<Value>(path).await.unwrap_err().to_string();
        assert!(error.contains("processes of pods may not use limpet's socket"), "{path}: {error}");
    }
    let web = "/api/v1/namespaces/default/pods/web";
    let ClientError::Refused { status, .. } = client.put(web, b"{}".to_vec()).await.unwrap_err() else {
        panic!("not sent")
    };
    assert_eq!(status, 403);
    let events = fixture.state.events.snapshot();
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&*event.reason, event.count), ("LocalSocketRefused", 1));
    fixture.stop.cancel();
    server.await.unwrap();
}
