//! The agent in a cluster: registers its Node, renews its lease, shows the pods of its own sources as mirror pods,
//! and receives the pods that the apiserver has for the node.
//!
//! This runs only with `--kubeconfig`. It is one task beside the others, started last, and no pod depends on it: it
//! compares what the apiserver has with what the agent observes, so an outage only adds one comparison. Decisions are
//! in `limpet_core`: `mirror`, `node_object`, `connectivity`.
//!
//! - `link` is the connection and sends all requests; `certificates` requests and renews the node's certificates.
//! - `follow` lists and watches this node's Node and the Pods bound to it; `split` separates mirrors from the
//!   apiserver's own pods.
//! - `node`, `lease` and `csi_node` report the node, with what `images` and `runtime` read of it.
//! - `reported_pod` is the loop that reports pods: `mirrors` decides what is due for pods of the agent's own sources,
//!   `api_pods` for the apiserver's own, which go to a source like the others; `outbox` counts what is unsent.
//! - `references` and `claims` fetch what the apiserver's pods refer to; `service_accounts` requests tokens.
//! - `events` and `unsent_events` post the node's events; `reviews` authenticates and authorizes callers.

mod api_pods;
pub mod certificate_files;
pub mod certificates;
mod claims;
mod csi_node;
mod event_schedule;
mod events;
#[cfg(test)]
mod fake;
mod follow;
mod followed;
mod images;
mod lease;
mod link;
mod mirrors;
mod node;
mod outbox;
mod own_change;
mod references;
mod reported_pod;
mod reviews;
mod runtime;
mod seen_node;
mod service_accounts;
pub mod settings;
mod split;
mod tokens;
mod unsent_events;

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::settings::ClusterSettings;
use certificates::CertificateSettings;
use follow::{Leader, WatchTarget, follow};
use lease::Lease;
use limpet_apiserver_client::{Resource, Selector};
use limpet_core::admission::Selectable;
use limpet_core::merge::Desired;
use limpet_core::merge::slot::Slots;
use limpet_core::node_object::NodeDescription;
use limpet_core::node_state::NodeState;
use limpet_core::source::cluster_update;
use limpet_core::status::observed::Observed;
use limpet_host::network::NetworkStatus;
use limpet_model::source::SourceKind;
use limpet_plugins::csi::{CsiDrivers, CsiVolumes, VolumesInUse};
use limpet_plugins::device_plugins::DevicePlugins;
use limpet_telemetry::event::Events;
pub use link::{ClientSource, ClusterView, Link, LinkParts};
use node::NodeReporter;
pub use outbox::Unsent;
use own_change::OwnChanges;
use references::pod_certificates::CertificateContext;
pub use reviews::{Access, ReviewError, Reviews, User};
pub use runtime::{HollowRuntime, NodeRuntime, RuntimeError};
use seen_node::NodeFromApiserver;
use unsent_events::UnsentEvents;

/// The source of the pods that the apiserver has for the node.
pub(crate) const SOURCE: SourceKind = SourceKind::Api;

/// The most updates of a watch that wait for their receiver; beyond it the watch waits.
const UPDATE_QUEUE_LEN: usize = 16;

/// What the tasks need of the agent.
#[derive(Debug)]
pub struct Inputs {
    /// `--kubeconfig` and the related settings.
    pub settings: ClusterSettings,
    /// Where the node's certificates are stored, and which of them are requested.
    pub certificates: CertificateSettings,
    pub observed: Observed,
    pub desired: Desired,
    pub sources: Vec<SourceKind>,
    pub events: Events,
    /// Receives the labels and taints of the Node object when they change.
    pub selectable: watch::Sender<Selectable>,
    pub node_state: watch::Receiver<NodeState>,
    /// Whether pods can have a pod network.
    pub network: watch::Receiver<NetworkStatus>,
    /// The container runtime.
    pub runtime: Arc<dyn NodeRuntime>,
    pub device_plugins: Arc<DevicePlugins>,
    pub csi: Arc<CsiDrivers>,
    /// The volumes that CSI drivers have mounted.
    pub csi_volumes: Arc<CsiVolumes>,
    /// The volumes that a controller must not detach.
    pub volumes_in_use: VolumesInUse,
    /// The snapshots of all sources.
    pub slots: Arc<Slots>,
    pub source: mpsc::Sender<cluster_update::Update>,
    /// The file for events that are unsent when the agent stops; `None`: they are lost.
    pub unsent_events: Option<PathBuf>,
}

/// Takes part in the cluster of `link` until `stop`. `description` is the node's.
pub async fn run(
    link: Link,
    inputs: Inputs,
    description: impl Future<Output = NodeDescription>,
    stop: CancellationToken,
) {
    // It reads files and disks, so it is made once, before the first request.
    let description = description.await;
    let (events, file) = (inputs.events.clone(), inputs.unsent_events.clone());
    let unsent = UnsentEvents::new(link.clone(), description.name.clone(), events, file);
    unsent.load().await;
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = work(link, inputs, description, &unsent) => {}
    }
    unsent.save().await;
}

/// Runs all tasks of the node in the cluster.
async fn work(link: Link, inputs: Inputs, description: NodeDescription, unsent: &UnsentEvents) {
    let name = description.name.clone();
    let (of_node, node_updates) = mpsc::channel(UPDATE_QUEUE_LEN);
    let (of_pods, all_pods) = mpsc::channel(UPDATE_QUEUE_LEN);
    let (of_mirrors, mirror_updates) = mpsc::channel(UPDATE_QUEUE_LEN);
    let (of_own, own_updates) = mpsc::channel(UPDATE_QUEUE_LEN);
    let (seen, seen_by_others) = watch::channel(NodeFromApiserver::Unknown);
    let lease = Arc::new(Lease {
        link: link.clone(),
        name: name.clone(),
        duration: inputs.settings.lease_duration,
        source: inputs.source.clone(),
        unanswered: Mutex::default(),
        version: AtomicU64::default(),
    });
    let (own_changes, own_changes_seen) = own_change::own_changes();
    let leads = Some(Leader { lease: Arc::clone(&lease), own_changes: own_changes_seen });
    let follow_node = WatchTarget { resource: Resource::Nodes, selector: Selector::of_name(&name), leads };
    let of_node_name = Selector::of_fields(format!("spec.nodeName={name}"));
    let follow_pods = WatchTarget { resource: Resource::AllPods, selector: of_node_name, leads: None };
    let receivers = split::Receivers { mirrors: of_mirrors, pods: of_own, source: inputs.source.clone() };
    let pods = api_pods::ApiPods::new(link.clone(), inputs.observed.clone(), Arc::clone(&inputs.slots));
    let references = fetch_references(&link, &inputs, &name, &seen_by_others);
    let mirrors = mirrors::Mirrors::new(
        link.clone(),
        &name,
        (inputs.observed.clone(), inputs.desired.clone(), inputs.sources.clone()),
        inputs.events.clone(),
        seen_by_others.clone(),
    );
    let csi_node = csi_node::run(link.clone(), name.clone(), Arc::clone(&inputs.csi), seen_by_others.clone());
    let events = inputs.events.clone();
    let settings = (inputs.settings.clone(), inputs.certificates.clone());
    let certificates =
        certificates::run(link.clone(), settings, name.clone(), link.node_network(), seen_by_others.clone());
    let reporter = node_reporter(&link, inputs, description, (seen, own_changes));
    // Boxed, because the combined future would otherwise be moved with the state of all of them.
    tokio::join!(
        Box::pin(follow(link.clone(), follow_node, of_node)),
        Box::pin(follow(link.clone(), follow_pods, of_pods)),
        Box::pin(reporter.run(node_updates)),
        Box::pin(lease.renew(seen_by_others)),
        Box::pin(split::split(link.clone(), all_pods, receivers)),
        Box::pin(reported_pod::report(mirrors, link.clone(), mirror_updates)),
        Box::pin(reported_pod::report(pods, link.clone(), own_updates)),
        Box::pin(references),
        Box::pin(csi_node),
        Box::pin(events::post(link.clone(), name.clone(), events, unsent)),
        Box::pin(unsent.save_regularly()),
        Box::pin(certificates),
    );
}

/// Fetches what the apiserver's pods refer to.
fn fetch_references(
    link: &Link,
    inputs: &Inputs,
    node_name: &str,
    seen: &watch::Receiver<NodeFromApiserver>,
) -> impl Future<Output = ()> + use<> {
    let attachments = claims::Attachments {
        seen: seen.clone(),
        in_use: inputs.volumes_in_use.clone(),
        volumes: Arc::clone(&inputs.csi_volumes),
        events: inputs.events.clone(),
    };
    let context =
        CertificateContext { node_name: node_name.to_owned(), node: seen.clone(), events: inputs.events.clone() };
    references::fetch(link.clone(), inputs.desired.clone(), inputs.source.clone(), attachments, context)
}

fn node_reporter(
    link: &Link,
    inputs: Inputs,
    description: NodeDescription,
    (seen, own_changes): (watch::Sender<NodeFromApiserver>, OwnChanges),
) -> NodeReporter {
    NodeReporter {
        link: link.clone(),
        register: inputs.settings.register,
        every: inputs.settings.frequencies,
        description,
        seen,
        own_changes,
        version: AtomicU64::default(),
        selectable: inputs.selectable,
        node_state: inputs.node_state,
        network: inputs.network,
        images: images::NodeImages::new(Arc::clone(&inputs.runtime), inputs.settings.max_images),
        runtime: inputs.runtime,
        device_plugins: inputs.device_plugins,
        volumes_in_use: inputs.volumes_in_use,
        events: inputs.events,
    }
}
