//! Pod states for the tests of all modules that use [`super::state`].
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use oci_spec::image::ImageConfiguration;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::time::Instant;

use super::node_state::{NodeNetwork, NodePressure, NodeState};
use super::state::{ContainerSlot, ImageState, Instance, Life, Now, PodSandbox, PodState, SandboxState};
use crate::probe::ProbeGrid;
use crate::status::observed::ObservedPod;
use limpet_model::container::{ContainerId, Exit};
use limpet_model::image::LocalImage;
use limpet_model::node::NodeAddresses;
use limpet_model::pod::compute_resources::pod_limits;
use limpet_model::pod::qos::qos_class;
use limpet_model::pod::requests::{Requests, Resource};
use limpet_model::pod::{Fingerprint, PodKey, PodRecord, PodUid, ephemeral, quantity};
use limpet_model::process::{ProcessHandle, Processes};
use limpet_model::sandbox::{PodAddresses, Sandbox};
use limpet_model::source::SourceKind;

/// The node is ready and has an address.
pub const READY: NodeState = NodeState {
    runtime_ready: true,
    network_ready: true,
    network: NodeNetwork { addresses: NodeAddresses::single(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))), changes: 0 },
    probe_grid: ProbeGrid { origin: None, slack_percent: 0 },
    pressure: NodePressure::UNKNOWN,
    shutting_down: false,
};

/// The same node with these addresses.
pub fn on_network(addresses: &[&str]) -> NodeState {
    let addresses = addresses.iter().map(|ip| ip.parse::<IpAddr>().unwrap()).collect();
    NodeState { network: NodeNetwork { addresses, changes: 0 }, ..READY }
}

/// The Unix epoch on the wall clock, and the present on the monotonic clock.
pub fn now() -> Now {
    Now { mono: Instant::now(), wall: Timestamp::UNIX_EPOCH }
}

fn container(name: &str) -> Container {
    Container { name: name.into(), image: Some("app:1".into()), ..Container::default() }
}

/// The pod `name` of that source, with that spec.
pub fn record_of(name: &str, source: SourceKind, spec: Value) -> Arc<PodRecord> {
    let record = limpet_model::fixtures::record(serde_json::json!({ "metadata": { "name": name }, "spec": spec }));
    Arc::new(PodRecord { source, ..(*record).clone() })
}

/// An amount of processors, memory and disk.
pub fn amounts(cpu: &str, memory: &str, disk: &str) -> Requests {
    let mut amounts = Requests::default();
    for (resource, text) in Resource::BASIC.into_iter().zip([cpu, memory, disk]) {
        amounts[resource] = quantity::parse(text).unwrap();
    }
    amounts
}

/// A pod with these containers, all of one image.
pub fn record(policy: &str, inits: &[&str], mains: &[&str]) -> Arc<PodRecord> {
    let spec = PodSpec {
        restart_policy: Some(policy.into()),
        init_containers: (!inits.is_empty()).then(|| inits.iter().map(|name| container(name)).collect()),
        containers: mains.iter().map(|name| container(name)).collect(),
        ..PodSpec::default()
    };
    version(Pod { spec: Some(spec), ..Pod::default() })
}

/// A record whose manifest is `pod`, serialized.
pub fn version(pod: Pod) -> Arc<PodRecord> {
    let manifest = serde_json::to_vec(&pod).unwrap();
    let mut fingerprint = [0; 16];
    fingerprint.copy_from_slice(&Sha256::digest(&manifest)[..16]);
    Arc::new(PodRecord {
        key: PodKey::new("default", "web-node"),
        uid: PodUid::new("0123"),
        fingerprint: Fingerprint(fingerprint),
        immutable_fingerprint: Fingerprint([1; 16]),
        source: SourceKind::File,
        origin: Arc::from("web.yaml"),
        manifest: Arc::from(manifest),
        ephemeral: ephemeral::containers(&pod),
        qos_class: qos_class(pod.spec.as_ref().unwrap()),
        cgroup_limits: pod_limits(pod.spec.as_ref().unwrap()),
        pod,
    })
}

/// A pod of which nothing runs.
pub fn pod(policy: &str, inits: &[&str], mains: &[&str]) -> PodState {
    PodState::new(record(policy, inits, mains), Timestamp::UNIX_EPOCH)
}

/// A sandbox with these addresses.
pub fn sandbox(ips: &[&str]) -> Arc<PodSandbox> {
    let addresses = PodAddresses { ips: ips.iter().map(|ip| ip.parse().unwrap()).collect() };
    Arc::new(PodSandbox { sandbox: Sandbox::default(), addresses })
}

/// A present image, for the first attempt.
pub fn image() -> ImageState {
    let image = LocalImage {
        name: Arc::from("app:1"),
        digest: Arc::from("sha256:1"),
        chain_id: Arc::from("sha256:2"),
        config: ImageConfiguration::default(),
        size: 1,
    };
    ImageState::Ready { image: Arc::new(image), attempt: 0 }
}

/// The pod with its sandbox ready and its images present.
pub fn ready(mut pod: PodState) -> PodState {
    pod.sandbox = SandboxState::Ready(sandbox(&[]));
    pod.cgroup.set = Some(pod.record.cgroup_limits);
    pod.containers.iter_mut().for_each(|slot| slot.image = image());
    pod
}

/// A running instance of the container in its desired version.
pub fn instance(slot: &ContainerSlot, attempt: u32) -> Instance {
    let id = ContainerId::derive(&PodUid::new("0123"), &slot.name, attempt, 0);
    Instance {
        image: "app:1".into(),
        image_digest: "sha256:1".into(),
        started_at: Some(Timestamp::UNIX_EPOCH),
        life: Life::Running { pid: 1, process: None, stopping: None },
        ..Instance::new(id, attempt, slot.fingerprint.clone())
    }
}

/// An exit with that code.
pub fn exit(code: i32) -> Exit {
    Exit { code, reason: "Error".into(), message: String::new(), finished_at: Timestamp::UNIX_EPOCH }
}

/// The pod of a manifest, observed with the manifest's own status.
pub fn observed(manifest: Value) -> Arc<ObservedPod> {
    let record = limpet_model::fixtures::record(manifest);
    Arc::new(ObservedPod {
        status: record.pod.status.clone().unwrap_or_default(),
        record,
        allocated: None,
        static_cpus: false,
        note: None,
        terminating_since: None,
        containers: BTreeMap::new(),
    })
}

/// A kernel without process handles, where no process is in a container's cgroup.
#[derive(Debug)]
pub struct NoProcesses;

impl Processes for NoProcesses {
    fn open(&self, _: u32) -> Option<Arc<dyn ProcessHandle>> {
        None
    }

    fn in_container(&self, _: &PodUid, _: &ContainerId) -> Option<u32> {
        None
    }

    fn is_in_container(&self, _: u32, _: &ContainerId) -> bool {
        false
    }
}
