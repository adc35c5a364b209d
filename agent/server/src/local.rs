//! limpet's own routes, for the command line and for pushes. They are served on the local socket and never on a
//! network.

use std::sync::Arc;

use super::agent_restart::{self, AgentRestart};
use super::bundle::{self, BundlesState};
use super::cluster::{self, ClusterState};
use super::debug_container;
use super::diff::{self, DiffState};
use super::generations::{self, GenerationsState};
use super::images::{self, ImagesState};
use super::permission::Permission::Read;
use super::pod_orders::PodOrdersState;
use super::revisions::{self, Controllers};
use super::routes::Routes;
use super::services::{self, ServicesState};
use super::shutdown::{self, ShutdownState};
use super::{ServerState, api, events, objects, pods, restart, status, usage};
use limpet_model::POD_API;

pub struct LocalRoutes(pub(super) Routes);

/// What the routes need of the agent's parts. Clones share everything.
#[derive(Clone)]
pub struct LocalStates {
    /// Previews of changes.
    pub diff: DiffState,
    /// The node's images.
    pub images: ImagesState,
    /// What users ask of pods.
    pub orders: PodOrdersState,
    /// The connection to the cluster.
    pub cluster: ClusterState,
    /// The end of the pods before that of the machine.
    pub shutdown: ShutdownState,
    /// A new start of the agent.
    pub agent: AgentRestart,
    /// Signed bundles.
    pub bundles: BundlesState,
    /// The generations of sources; `None` if no source has any.
    pub generations: Option<GenerationsState>,
    /// What the controllers of workloads remember.
    pub controllers: Arc<dyn Controllers>,
    /// The Services of the node's own sources.
    pub services: ServicesState,
}

pub fn routes(state: ServerState, states: LocalStates) -> LocalRoutes {
    let LocalStates { diff, images, orders, cluster, shutdown, agent, bundles, generations, controllers, services } =
        states;
    let routes = api::routes()
        .get("/limpet/v1/pods", Read, pods::entries)
        .get("/limpet/v1/names", Read, pods::names)
        .get("/limpet/v1/pods/{namespace}/{name}/describe", Read, pods::describe)
        .get("/limpet/v1/pods/{namespace}/{name}/history", Read, pods::history)
        .get("/limpet/v1/events", Read, events::events)
        .get("/limpet/v1/usage", Read, usage::usage)
        .get("/limpet/v1/sources", Read, pods::sources)
        .get("/limpet/v1/status", Read, status::status)
        .get("/limpet/v1/version", Read, version);
    LocalRoutes(
        routes
            .with_state(state.clone())
            .merge(objects::routes(state, Arc::clone(&controllers)))
            .merge(diff::routes(diff))
            .merge(images::routes(images))
            .merge(debug_container::routes(orders.clone()))
            .merge(restart::routes(orders))
            .merge(cluster::routes(cluster))
            .merge(shutdown::routes(shutdown))
            .merge(agent_restart::routes(agent))
            .merge(bundle::routes(bundles))
            .merge(generations::routes(generations))
            .merge(revisions::routes(controllers))
            .merge(services::routes(services)),
    )
}

async fn version() -> axum::Json<serde_json::Value> {
    axum::Json(serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "podApi": POD_API }))
}
