//! kubelet's routes: what a network listener may serve, besides the local socket.

use super::authorization::Permission::Nodes;
use super::authorization::Subresource::{Configz, Healthz, Metrics, Pods, Stats};
use super::exec::{self, AttachState, ExecState};
use super::logs::{self, LogState};
use super::port_forward::{self, PortForwardState};
use super::routes::Routes;
use super::{ServerState, configz, health, pods, stats};

/// kubelet's routes. Only [`routes`] makes them, so limpet's own routes are not among them.
#[derive(Clone)]
pub struct KubeletRoutes(pub(super) Routes);

/// What the routes need that connect a client with a container.
#[derive(Clone)]
pub struct StreamStates {
    /// `/containerLogs`.
    pub logs: LogState,
    /// `/exec`.
    pub exec: ExecState,
    /// `/attach`.
    pub attach: AttachState,
    /// `/portForward`.
    pub ports: PortForwardState,
}

/// All of kubelet's routes that limpet has.
pub fn routes(state: ServerState, streams: StreamStates) -> KubeletRoutes {
    let own = read_only().get("/configz", Nodes(Configz), configz::configz);
    let StreamStates { logs, exec, attach, ports } = streams;
    let streams = logs::routes(logs)
        .merge(exec::routes(exec))
        .merge(exec::attach_routes(attach))
        .merge(port_forward::routes(ports));
    KubeletRoutes(own.with_state(state).merge(streams))
}

/// What `readOnlyPort` serves.
pub(super) fn read_only() -> Routes<ServerState> {
    figures()
        .merge(observability())
        .get("/pods", Nodes(Pods), pods::pod_list)
        .get("/pods/", Nodes(Pods), pods::pod_list)
        .get("/runningpods/", Nodes(Pods), pods::running_pods)
}

/// What the node and its pods use.
fn figures() -> Routes<ServerState> {
    Routes::default()
        .get("/stats/summary", Nodes(Stats), stats::summary)
        .get("/metrics/resource", Nodes(Metrics), stats::resource)
        .get("/metrics/cadvisor", Nodes(Metrics), stats::cadvisor)
        .get("/metrics/probes", Nodes(Metrics), stats::probes)
}

/// Health and metrics, which any user of the machine may read on `metricsAddress`.
pub(super) fn observability() -> Routes<ServerState> {
    health().get("/metrics", Nodes(Metrics), pods::metrics)
}

/// What `healthzPort` serves.
pub(super) fn health() -> Routes<ServerState> {
    Routes::default()
        .get("/healthz", Nodes(Healthz), health::healthz)
        .get("/healthz/ping", Nodes(Healthz), health::ping)
        .get("/healthz/syncloop", Nodes(Healthz), health::sync_loop)
        .get("/livez", Nodes(Healthz), health::healthz)
        .get("/readyz", Nodes(Healthz), health::readyz)
}
