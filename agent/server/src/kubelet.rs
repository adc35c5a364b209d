//! kubelet's routes, which a network listener may serve besides the local socket.

use axum::Json;
use axum::extract::State;
use serde_json::Value;

use super::diagnostics::{self, DiagnosticsState};
use super::exec::{self, AttachState, ExecState};
use super::logs::{self, LogState};
use super::node_logs::{self, NodeLogState};
use super::permission::Permission::Nodes;
use super::permission::Subresource::{Configz, Healthz, Log, Metrics, Pods, Proxy, Stats};
use super::port_forward::{self, PortForwardState};
use super::routes::Routes;
use super::{ServerState, health, pods, run, stats};
use crate::settings::DebugHandlers;

/// kubelet's routes. Only [`routes`] creates this type, so it never contains limpet's own routes.
#[derive(Clone)]
pub struct KubeletRoutes(pub(super) Routes);

/// What kubelet's routes need besides [`ServerState`].
#[derive(Clone)]
pub struct StreamStates {
    /// `/containerLogs`.
    pub logs: LogState,
    /// `/exec` and `/run`.
    pub exec: ExecState,
    pub attach: AttachState,
    /// `/portForward`.
    pub ports: PortForwardState,
    pub diagnostics: DiagnosticsState,
}

/// All of kubelet's routes that limpet supports, as far as `handlers` enables them.
pub fn routes(state: ServerState, streams: StreamStates, handlers: &DebugHandlers) -> KubeletRoutes {
    KubeletRoutes(if handlers.enabled {
        read_only().with_state(state.clone()).merge(debugging(state, streams, handlers))
    } else {
        always().with_state(state).merge(without_debugging())
    })
}

/// The routes that `enableDebuggingHandlers` and the keys beside it enable.
fn debugging(state: ServerState, streams: StreamStates, handlers: &DebugHandlers) -> Routes {
    let routes = diagnostics::checkpoints().get("/configz", Nodes(Configz), configz).with_state(state);
    let StreamStates { logs, exec, attach, ports, diagnostics } = streams;
    let streams = logs::routes(logs)
        .merge(exec::routes(exec.clone()))
        .merge(run::routes(exec))
        .merge(exec::attach_routes(attach))
        .merge(port_forward::routes(ports));
    let off = |path: &str, permission, why| diagnostics::disabled(Routes::default(), path, permission, why);
    let node_logs = match handlers.system_logs {
        true => node_logs::routes(NodeLogState::new(LOG_DIRECTORY.into(), handlers.system_log_query)),
        false => off("/logs/", Nodes(Log), "logs endpoint is disabled."),
    };
    let profiles = match handlers.profiling {
        true => diagnostics::profiles(),
        false => off("/debug/pprof/", Nodes(Proxy), "profiling endpoint is disabled."),
    };
    let flags = match handlers.flags {
        true => diagnostics::flags(diagnostics.clone()),
        false => Routes::default().any("/debug/flags/v", Nodes(Proxy), diagnostics::flags_disabled),
    };
    routes.merge(streams).merge(node_logs).merge(profiles).merge(flags).merge(diagnostics::pages(diagnostics))
}

/// kubelet's response where `enableDebuggingHandlers` is false.
fn without_debugging() -> Routes {
    const WHY: &str = "Debug endpoints are disabled.";
    let proxied = ["/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/", "/debug/pprof/"];
    let routes =
        proxied.iter().fold(Routes::default(), |routes, path| diagnostics::disabled(routes, path, Nodes(Proxy), WHY));
    let routes = diagnostics::disabled(routes, "/runningpods/", Nodes(Pods), WHY);
    diagnostics::disabled(routes, "/logs/", Nodes(Log), WHY)
}

/// The directory of the node's logs.
const LOG_DIRECTORY: &str = "/var/log";

/// The routes of `readOnlyPort`.
pub(super) fn read_only() -> Routes<ServerState> {
    always().get("/runningpods/", Nodes(Pods), pods::running_pods)
}

/// The routes that no key disables.
fn always() -> Routes<ServerState> {
    figures().merge(observability()).get("/pods", Nodes(Pods), pods::pod_list).get(
        "/pods/",
        Nodes(Pods),
        pods::pod_list,
    )
}

/// Statistics of the node and its pods.
fn figures() -> Routes<ServerState> {
    Routes::default()
        .get("/stats/summary", Nodes(Stats), stats::summary)
        .post("/stats/summary", Nodes(Stats), stats::summary_of_form)
        .get("/metrics/slis", Nodes(Metrics), stats::slis)
        .get("/metrics/resource", Nodes(Metrics), stats::resource)
        .get("/metrics/cadvisor", Nodes(Metrics), stats::cadvisor)
        .get("/metrics/probes", Nodes(Metrics), stats::probes)
}

/// Health and metrics, which any user of the machine may read on `metricsAddress`.
pub(super) fn observability() -> Routes<ServerState> {
    health().get("/metrics", Nodes(Metrics), pods::metrics)
}

/// The routes of `healthzPort`.
pub(super) fn health() -> Routes<ServerState> {
    Routes::default()
        .get("/healthz", Nodes(Healthz), health::healthz)
        .get("/healthz/ping", Nodes(Healthz), health::ping)
        .get("/healthz/log", Nodes(Healthz), health::ping)
        .get("/healthz/syncloop", Nodes(Healthz), health::sync_loop)
        .get("/livez", Nodes(Healthz), health::healthz)
        .get("/readyz", Nodes(Healthz), health::readyz)
}

async fn configz(State(state): State<ServerState>) -> Json<Value> {
    Json((state.configz)())
}
