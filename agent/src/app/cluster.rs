//! Takes part in a cluster if a kubeconfig is given.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;

use super::SharedParts;
use super::description;
use super::node_runtime::Containerd;
use limpet_cluster::Link;
use limpet_cluster::certificates::CertificateSettings;
use limpet_containerd::image::Images;
use limpet_core::admission::Selectable;
use limpet_core::node_state::NodeState;
use limpet_core::source::cluster_update;
use limpet_model::node::NodeFacts;
use limpet_model::source::SourceKind;
use limpet_worker::allocator::Allocator;

/// Starts the connection to the cluster of the kubeconfig, if there is one. Nothing waits for it.
pub(super) fn join_cluster(
    shared: &SharedParts,
    facts: NodeFacts,
    sources: Vec<SourceKind>,
    node_state: watch::Receiver<NodeState>,
    source: Option<mpsc::Sender<cluster_update::Update>>,
    images: Images,
) -> Option<Link> {
    let link = shared.link.clone()?;
    let inputs = limpet_cluster::Inputs {
        settings: shared.config.cluster.clone(),
        certificates: CertificateSettings {
            directory: shared.config.pki_dir(),
            serving: shared.config.server.certificate_by_request,
        },
        observed: shared.observed.clone(),
        desired: shared.desired.clone(),
        sources,
        events: shared.events.clone(),
        selectable: follow_selectable(&shared.allocator, &shared.tasks),
        node_state,
        network: shared.backends.network.subscribe(),
        runtime: Arc::new(Containerd { client: shared.backends.client.clone(), images }),
        device_plugins: Arc::clone(&shared.device_plugins),
        csi: Arc::clone(&shared.csi_drivers),
        csi_volumes: Arc::clone(&shared.csi),
        volumes_in_use: shared.volumes_in_use.clone(),
        slots: Arc::clone(&shared.slots),
        source: source?,
        unsent_events: Some(shared.config.root_dir.join("unsent-events.json")),
    };
    let (config, capacity) = (Arc::clone(&shared.config), shared.capacity.clone());
    let description = async move { description::describe(&config, &facts, &capacity).await };
    shared.tasks.spawn(limpet_cluster::run(link.clone(), inputs, description, shared.stop.clone()));
    Some(link)
}

/// The channel for the labels and taints of the Node object, for which pods wait.
pub fn follow_selectable(allocator: &Arc<Allocator>, tasks: &TaskTracker) -> watch::Sender<Selectable> {
    let (selectable, mut changes) = watch::channel(Selectable::default());
    let allocator = Arc::clone(allocator);
    tasks.spawn(async move {
        while changes.changed().await.is_ok() {
            let now = changes.borrow_and_update().clone();
            allocator.set_selectable(now);
        }
    });
    selectable
}
