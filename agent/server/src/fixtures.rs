//! A server without containerd and pods, for tests of this crate and, with the feature `fixtures`, of the agent.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::shutdown::ShutdownState;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use limpet_containerd::client::Client;
use limpet_containerd::image::{ImageError, Images, ImagesConfig};
use limpet_containerd::settings::ImageSettings;
use limpet_core::image_gc::DiskSpace;
use limpet_core::known_pods::KnownPods;
use limpet_core::merge::Desired;
use limpet_core::node_shutdown::ShutdownProgress;
use limpet_core::node_state::NodePressure;
use limpet_core::source::Decoder;
use limpet_core::source::push::{self, Pusher};
use limpet_core::status::observed::{Observed, ObservedPod, ObservedPods};
use limpet_host::cgroup::CgroupDriver;
use limpet_host::cgroup::usage::Depth;
use limpet_host::sandbox::Sandboxes;
use limpet_model::actor::Actor;
use limpet_model::manifest;
use limpet_model::object::ObjectKey;
use limpet_model::source::SourceKind;
use limpet_telemetry::event::Events;
use limpet_telemetry::health::{Health, Heartbeat};
use limpet_telemetry::metrics::Metrics;
use limpet_telemetry::usage::claims::ClaimMeter;
use limpet_telemetry::usage::disks::{DiskMeter, ImageDisk, MeasureDisks, PodDisk, VolumeDisk};
use limpet_telemetry::usage::{Meter, NodeUsage, ReadUsage};
use limpet_wire::revisions::RevisionDocument;
use limpet_wire::services::ServicesDocument;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent_restart::AgentRestart;
use crate::cluster::ClusterState;
use crate::diagnostics::DiagnosticsState;
use crate::diff::DiffState;
use crate::exec::{AttachState, ExecState};
use crate::images::{ImageCollection, ImagesState};
use crate::kubelet::{self, KubeletRoutes, StreamStates};
use crate::local::{self, LocalRoutes, LocalStates};
use crate::logs::LogState;
use crate::pod_orders::PodOrdersState;
use crate::port_forward::PortForwardState;
use crate::revisions::Controllers;
use crate::settings::{DebugHandlers, ServedNode, ServerSettings};
use crate::{ServerState, Sources, serve};

/// The default settings of a node.
pub fn settings() -> ServedNode {
    ServedNode {
        server: ServerSettings::default(),
        pki_dir: "/nonexistent".into(),
        socket_allowed_pods: Vec::new(),
        devices: std::collections::BTreeMap::new(),
        cgroup_driver: CgroupDriver::default(),
        runtime_endpoint: "/run/containerd/containerd.sock".into(),
        root_dir: "/var/lib/limpet".into(),
        snapshotter: "overlayfs".to_owned(),
        cni_conf_dir: "/etc/cni/net.d".into(),
        runtime_classes: Vec::new(),
    }
}

/// The state of the node `edge1`, and the sync loop's side of its health.
pub fn state(sources: Arc<dyn Sources>, pusher: Pusher, meter: Meter) -> (ServerState, Heartbeat) {
    let (health, heartbeat) = Health::new();
    let state = ServerState {
        cluster: None,
        started: Timestamp::UNIX_EPOCH,
        node_name: "edge1".into(),
        settings: Arc::new(settings()),
        configz: Arc::new(|| json!({ "kubeletconfig": { "maxPods": 110 } })),
        actor_of_process: |pid, _, _| Actor { pid: Some(pid), ..Actor::default() },
        desired: Desired::default(),
        observed: Observed::default(),
        sources,
        events: Events::default(),
        metrics: Metrics::new("edge1"),
        observer: Arc::new(()),
        meter,
        pressure: tokio::sync::watch::channel(NodePressure::UNKNOWN).1,
        shutting_down: tokio::sync::watch::channel(false).1,
        upgrade: tokio::sync::watch::channel(None).1,
        held_updates: Arc::new(Vec::new),
        report: tokio::sync::watch::channel(None).1,
        pusher,
        health,
        device_plugins: Arc::default(),
        cpus: None,
    };
    (state, heartbeat)
}

#[derive(Debug)]
struct Idle;

impl ReadUsage for Idle {
    fn read(&self, _: Arc<ObservedPods>, _: Depth) -> BoxFuture<'_, io::Result<NodeUsage>> {
        Box::pin(async { Ok(NodeUsage::default()) })
    }
}

impl MeasureDisks for Idle {
    fn pod<'a>(&'a self, _: &'a ObservedPod) -> BoxFuture<'a, PodDisk> {
        Box::pin(async { PodDisk::default() })
    }

    fn claims<'a>(&'a self, _: &'a ObservedPod) -> BoxFuture<'a, Vec<VolumeDisk>> {
        Box::pin(async { Vec::new() })
    }

    fn images(&self, _: HashSet<String>) -> BoxFuture<'_, Option<ImageDisk>> {
        Box::pin(async { None })
    }
}

/// A meter of a node that uses nothing.
pub fn idle_meter() -> Meter {
    let (reader, minute) = (Arc::new(Idle), Duration::from_secs(60));
    let disks = Arc::clone(&reader) as Arc<dyn MeasureDisks>;
    let claims = ClaimMeter::new(Arc::clone(&disks), minute);
    Meter::new(reader, DiskMeter::new(disks, minute, TaskTracker::new(), CancellationToken::new()), claims)
}

/// A pusher to a source that does not exist.
pub fn no_push_source() -> Pusher {
    push::channel("edge1", Decoder::new(manifest::read, manifest::restore_last_good)).0
}

#[derive(Debug)]
struct NothingToCollect;

/// No workload is known.
#[derive(Debug)]
struct NoWorkloads;

impl Controllers for NoWorkloads {
    fn revisions(&self, _: &ObjectKey) -> Option<Vec<RevisionDocument>> {
        None
    }

    fn status(&self, _: SourceKind, _: &ObjectKey) -> Option<Value> {
        None
    }
}

impl ImageCollection for NothingToCollect {
    fn prune(&self) -> BoxFuture<'_, Result<Option<Vec<String>>, ImageError>> {
        Box::pin(async { Ok(None) })
    }

    fn space(&self, _: PathBuf) -> BoxFuture<'_, Result<DiskSpace, String>> {
        Box::pin(async { Err("no images".to_owned()) })
    }
}

fn no_images() -> ImagesConfig {
    let none = || PathBuf::from("/nonexistent");
    ImagesConfig {
        snapshotter: "overlayfs".to_owned(),
        settings: ImageSettings { registry_config_dir: none(), ..ImageSettings::default() },
        auth_files: Vec::new(),
        archives_dir: none(),
        verifiers: None,
        throttle: limpet_host::throttle::Throttle::default(),
    }
}

/// Forwards no ports, because there are no sandboxes.
fn no_networks(state: &ServerState) -> PortForwardState {
    PortForwardState::new(
        state.observed.clone(),
        Sandboxes::below(Path::new("/nonexistent")),
        None,
        CancellationToken::new(),
    )
}

/// The states of kubelet's streaming routes, with a containerd that does not exist.
pub fn stream_states(state: &ServerState) -> StreamStates {
    let client = Client::with_deadline(Path::new("/nonexistent"), Duration::from_secs(1));
    let (observed, stop) = (state.observed.clone(), CancellationToken::new());
    StreamStates {
        logs: LogState::observed(observed.clone()),
        exec: ExecState::observed(client.clone(), "/nonexistent".into(), observed.clone(), None, stop.clone()),
        attach: AttachState { client, attach_dir: "/nonexistent".into(), observed, idle: None, stop },
        ports: no_networks(state),
        diagnostics: DiagnosticsState {
            started: Timestamp::UNIX_EPOCH,
            flags: Arc::new(json!({ "port": 10_250, "kubeconfig": null })),
            set_verbosity: Arc::new(|level| if level == 9 { Err("no".to_owned()) } else { Ok(()) }),
        },
    }
}

/// kubelet's routes and limpet's own, with a containerd that does not exist.
pub fn all_routes(state: &ServerState) -> (KubeletRoutes, LocalRoutes) {
    let diff = DiffState {
        node_name: Arc::clone(&state.node_name),
        manifest_path: None,
        decoder: Decoder::new(manifest::read, manifest::restore_last_good),
        sources: Arc::clone(&state.sources),
        observed: state.observed.clone(),
        generations: None,
        read_directory: Arc::new(|| Ok(Vec::new())),
        has_image: Arc::new(|_| Box::pin(async { None })),
    };
    let kubelet = kubelet::routes(state.clone(), stream_states(state), &DebugHandlers::ALL);
    let images = ImagesState {
        images: Images::new(Client::new(Path::new("/nonexistent")), no_images()),
        pods: Arc::new(KnownPods {
            desired: state.desired.clone(),
            slots: Arc::default(),
            observed: state.observed.clone(),
            sources: Vec::new(),
            kept: Default::default(),
        }),
        collection: Arc::new(NothingToCollect),
    };
    let orders = PodOrdersState { orders: limpet_core::pod_order::channel().0 };
    let shutdown = ShutdownState {
        requests: limpet_core::node_shutdown::channel().0,
        progress: tokio::sync::watch::channel(ShutdownProgress::default()).1,
    };
    (
        kubelet,
        local::routes(
            state.clone(),
            LocalStates {
                diff,
                images,
                orders,
                cluster: ClusterState { source: None },
                shutdown,
                agent: AgentRestart::new(CancellationToken::new()),
                bundles: None,
                generations: None,
                controllers: Arc::new(NoWorkloads),
                services: watch::channel(ServicesDocument::default()).1,
            },
        ),
    )
}

/// Serves all routes on `listener` until `stop`.
pub async fn serve_all(listener: UnixListener, state: ServerState, stop: CancellationToken) {
    let served = state.clone();
    serve(listener, state, move || all_routes(&served), stop).await;
}
