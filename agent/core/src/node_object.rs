//! The Node object: its contents, and when its status is sent. Pure: time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::device_plugins::DeviceCount;
use crate::jitter;
use crate::node_images::NodeImage;
use crate::node_state::NodeState;
use limpet_model::node::{NodeAddresses, Pressure};
use limpet_model::pod::huge_pages;
use limpet_model::pod::requests::{Requests, Resource};

mod runtime_absence;
mod seen;

pub use self::runtime_absence::RuntimeAbsence;
pub use self::seen::{LabelCorrection, SeenNode};

/// The feature by which the node declares WebSocket for `exec`. Without it, an apiserver uses SPDY.
const WEBSOCKETS: &str = "ExtendWebSocketsToKubelet";

/// Features that an apiserver 1.37 requires of a node before it allows the changes of pods that they stand for, or
/// binds such a pod.
const FEATURES: [&str; 3] = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// The taint of a newly registered node that a cloud controller has to complete.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The annotation by which such a node reports the address that it was given.
const PROVIDED_ADDRESS: &str = "alpha.kubernetes.io/provided-node-ip";

/// `--cloud-provider=external`: a cloud controller of the cluster decides the node's addresses and its provider id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalCloud {
    /// `--node-ip`: the node's addresses until the controller has decided, and those that it should choose.
    pub given_addresses: NodeAddresses,
}

/// A taint with which the node is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTaint {
    pub key: String,
    /// Its value; may be empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

impl NodeTaint {
    /// The effects there are.
    pub const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
}

/// The facts of the node that do not change while the agent runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeDescription {
    /// The node's name.
    pub name: String,
    /// The labels with which it is registered, besides those of every node.
    pub labels: BTreeMap<String, String>,
    /// The id of the machine at its provider.
    pub provider_id: Option<String>,
    /// The taints with which it is registered.
    pub taints: Vec<NodeTaint>,
    /// What is left to a cloud controller; `None` for nothing.
    pub external_cloud: Option<ExternalCloud>,
    /// Go's name of the architecture: `amd64`, `arm64`, `arm`, `riscv64`.
    pub architecture: &'static str,
    /// Its processors, memory and disk.
    pub capacity: Requests,
    /// What of it is available to pods.
    pub allocatable: Requests,
    /// How many pods it may have.
    pub max_pods: u32,
    /// The port of kubelet's API; `None` if it is not served.
    pub api_port: Option<u16>,
    /// The runtimes by the names that a RuntimeClass may use; the empty one is for pods without a class.
    pub runtime_handlers: Vec<String>,
    /// The runtimes whose pods can have user namespaces; the empty name is for pods without a class.
    pub user_namespaces: BTreeSet<String>,
    /// Its swap space, in bytes.
    pub swap: u64,
    /// `nodeInfo` without the fields that `node_info` sets: `machineID`, `kernelVersion`, …
    pub info: BTreeMap<&'static str, String>,
}

/// The facts of the node that change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// containerd, the network, the addresses, and what it is short of.
    pub state: NodeState,
    /// Why pods cannot be attached to a network, if they cannot.
    pub network_problem: Option<String>,
    /// Name and version of the runtime, `containerd://2.1.9`, once it has answered.
    pub runtime_version: String,
    /// The devices of plugins, by resource.
    pub devices: BTreeMap<String, DeviceCount>,
    /// The images to list.
    pub images: Vec<NodeImage>,
    /// The volumes that a controller must not detach, by their names in the status.
    pub volumes_in_use: BTreeSet<String>,
}

impl NodeDescription {
    /// The address that it reports to a cloud controller.
    fn provided_address(&self) -> Option<String> {
        let given = self.external_cloud.as_ref()?.given_addresses;
        (!given.is_empty()).then(|| given.to_string())
    }
}

/// The labels that every node has. As in kubelet, `given` ones of the same names take precedence over limpet's own
/// values.
fn own_labels(name: &str, architecture: &str, given: &BTreeMap<String, String>) -> BTreeMap<&'static str, String> {
    let mut labels = BTreeMap::from([
        ("beta.kubernetes.io/arch", architecture.to_owned()),
        ("beta.kubernetes.io/os", "linux".to_owned()),
        ("kubernetes.io/arch", architecture.to_owned()),
        ("kubernetes.io/hostname", name.to_owned()),
        ("kubernetes.io/os", "linux".to_owned()),
    ]);
    for (name, value) in &mut labels {
        if let Some(given) = given.get(*name) {
            value.clone_from(given);
        }
    }
    labels
}

/// The labels of a node whose Node object is not known: those with which it is registered, and those of every node.
pub fn initial_labels(name: &str, architecture: &str, given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let of_every_node =
        own_labels(name, architecture, given).into_iter().map(|(label, value)| (label.to_owned(), value));
    given.clone().into_iter().chain(of_every_node).collect()
}

/// The Node to create.
pub fn document(node: &NodeDescription, report: &NodeReport, now: Timestamp) -> Value {
    let labels = initial_labels(&node.name, node.architecture, &node.labels);
    let taint = |taint: &NodeTaint| json!({ "key": taint.key, "value": taint.value, "effect": taint.effect });
    let mut taints: Vec<Value> = node.taints.iter().map(taint).collect();
    if node.external_cloud.is_some() {
        taints.push(json!({ "key": UNINITIALIZED, "value": "true", "effect": "NoSchedule" }));
    }
    let mut document = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": node.name, "labels": labels },
        "spec": { "providerID": node.provider_id, "taints": taints },
        "status": status(node, report, &SeenNode::default(), now),
    });
    if let Some(provided) = node.provided_address() {
        document["metadata"]["annotations"] = json!({ PROVIDED_ADDRESS: provided });
    }
    document
}

/// A heartbeat, which an idle node sends: a patch that has only the times of its conditions. `None` if the Node does
/// not have all that was `sent`, or there is something new.
pub fn heartbeat_patch(
    node: &NodeDescription,
    report: &NodeReport,
    seen: &SeenNode,
    sent: Option<&SentReport>,
    now: Timestamp,
) -> Option<Value> {
    sent.filter(|sent| sent.uid == seen.uid && says_the_same(&sent.report, report))?;
    let status = status(node, report, seen, now);
    if !seen.has_all(&status) {
        return None;
    }
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let time =
        |condition: &Value| json!({ "type": condition["type"], "lastHeartbeatTime": condition["lastHeartbeatTime"] });
    Some(json!({ "status": { "conditions": conditions.map(time).collect::<Vec<_>>() } }))
}

/// The strategic merge patch that brings the Node's status up to date. Conditions and addresses of other clients
/// stay.
pub fn status_patch(node: &NodeDescription, report: &NodeReport, seen: &SeenNode, now: Timestamp) -> Value {
    let mut status = status(node, report, seen, now);
    if seen.has_images(&status)
        && let Some(status) = status.as_object_mut()
    {
        status.remove("images");
    }
    // A page size that the kernel had before its last boot.
    for name in seen.sizes_of_huge_pages().filter(|name| status["capacity"].get(name).is_none()).collect::<Vec<_>>() {
        (status["capacity"][name], status["allocatable"][name]) = (Value::Null, Value::Null);
    }
    if let Some(addresses) = status.get_mut("addresses").and_then(Value::as_array_mut) {
        // Otherwise they are merged by type, of which a node with two families has two addresses.
        addresses.insert(0, json!({ "$patch": "replace" }));
    }
    json!({ "status": status })
}

fn status(node: &NodeDescription, report: &NodeReport, seen: &SeenNode, now: Timestamp) -> Value {
    let quantities = |amounts: &Requests, devices: fn(&DeviceCount) -> usize| {
        let mut all = json!({
            "cpu": match amounts[Resource::Cpu].milli() {
                milli if milli % 1_000 == 0 => (milli / 1_000).to_string(),
                milli => format!("{milli}m"),
            },
            "memory": format!("{}Ki", amounts[Resource::Memory].units() >> 10),
            "ephemeral-storage": amounts[Resource::EphemeralStorage].units().to_string(),
            "pods": node.max_pods.to_string(),
        });
        for resource in amounts.resources() {
            if let Resource::HugePages(_) = resource {
                let bytes = u64::try_from(amounts[resource].units()).unwrap_or_default();
                all[&*resource.name()] = json!(huge_pages::binary(bytes));
            }
        }
        for (name, count) in &report.devices {
            all[name] = json!(devices(count).to_string());
        }
        all
    };
    let mut info = json!(node.info);
    info["architecture"] = json!(node.architecture);
    info["operatingSystem"] = json!("linux");
    info["containerRuntimeVersion"] = json!(report.runtime_version);
    if node.swap != 0 {
        info["swap"] = json!({ "capacity": node.swap });
    }
    let image = |image: &NodeImage| json!({ "names": image.names, "sizeBytes": image.size });
    // To an apiserver, port 0 means none.
    let endpoint = json!({ "kubeletEndpoint": { "Port": node.api_port.unwrap_or(0) } });
    // limpet makes these mounts itself, whatever the runtime and the kernel.
    let features =
        |name: &str| json!({ "recursiveReadOnlyMounts": true, "userNamespaces": node.user_namespaces.contains(name) });
    let handler = |name: &str| json!({ "name": name, "features": features(name) });
    let handlers: Vec<Value> = node.runtime_handlers.iter().map(|name| handler(name)).collect();
    let mut status = json!({
        "runtimeHandlers": handlers,
        "features": { "supplementalGroupsPolicy": true },
        "daemonEndpoints": endpoint,
        "declaredFeatures": node.api_port.map(|_| WEBSOCKETS).into_iter().chain(FEATURES).collect::<Vec<_>>(),
        "capacity": quantities(&node.capacity, |count| count.capacity),
        "allocatable": quantities(&node.allocatable, |count| count.allocatable),
        "conditions": conditions(report, seen, now),
        "images": report.images.iter().map(image).collect::<Vec<_>>(),
        "nodeInfo": info,
    });
    // The list has no keys, so it replaces the one before.
    if !report.volumes_in_use.is_empty() || !seen.volumes_in_use.is_empty() {
        status["volumesInUse"] = json!(report.volumes_in_use);
    }
    if let Some(addresses) = addresses(node, report, seen) {
        status["addresses"] = json!(addresses);
    }
    status
}

/// The node's addresses; `None` if a cloud controller has decided them.
fn addresses(node: &NodeDescription, report: &NodeReport, seen: &SeenNode) -> Option<Vec<Value>> {
    let addresses: Vec<IpAddr> = match &node.external_cloud {
        Some(_) if !seen.addresses.is_empty() => return None,
        Some(cloud) => cloud.given_addresses.iter().collect(),
        None => report.state.network.addresses.iter().collect(),
    };
    let internal = addresses.iter().map(|address| json!({ "type": "InternalIP", "address": address.to_string() }));
    Some(internal.chain([json!({ "type": "Hostname", "address": node.name })]).collect())
}

/// kubelet's four conditions, with kubelet's reasons and messages.
fn conditions(report: &NodeReport, seen: &SeenNode, now: Timestamp) -> Vec<Value> {
    let pressure = |pressure: Pressure| match (pressure, report.state.pressure.is_under(pressure)) {
        (Pressure::Memory, true) => (true, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        (Pressure::Memory, false) => (false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        (Pressure::Disk, true) => (true, "KubeletHasDiskPressure", "kubelet has disk pressure"),
        (Pressure::Disk, false) => (false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        (Pressure::Pid, true) => (true, "KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
        (Pressure::Pid, false) => (false, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    };
    let pressures = Pressure::ALL.map(|kind| {
        let (holds, reason, message) = pressure(kind);
        (kind.as_str(), holds, reason, message.to_owned())
    });
    let problem = not_ready(report);
    let reason = if problem.is_some() { "KubeletNotReady" } else { "KubeletReady" };
    let message = problem.clone().unwrap_or_else(|| "kubelet is posting ready status".to_owned());
    let ready = ("Ready", problem.is_none(), reason, message);
    let condition = |(name, holds, reason, message): (&str, bool, &str, String)| {
        let status = if holds { "True" } else { "False" };
        let since = seen.conditions.get(name).filter(|(known, _)| known == status).and_then(|(_, since)| *since);
        json!({
            "type": name,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": whole_seconds(now),
            "lastTransitionTime": whole_seconds(since.unwrap_or(now)),
        })
    };
    pressures.into_iter().chain([ready]).map(condition).collect()
}

/// Why the node is not ready, in kubelet's words.
fn not_ready(report: &NodeReport) -> Option<String> {
    let NodeState { runtime_ready, network_ready, shutting_down, .. } = report.state;
    let of_network = |reason: &String| {
        format!("container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:{reason}")
    };
    let of_runtime = match runtime_ready {
        false => Some("container runtime is down".to_owned()),
        true => report.network_problem.as_ref().filter(|_| !network_ready).map(of_network),
    };
    let of_shutdown = shutting_down.then(|| "node is shutting down".to_owned());
    match (of_runtime, of_shutdown) {
        // This is how Go shows a list of errors.
        (Some(runtime), Some(shutdown)) => Some(format!("[{runtime}, {shutdown}]")),
        (newer, other) => newer.or(other),
    }
}

/// An event about the node that its status causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEvent {
    /// kubelet's reason.
    pub reason: &'static str,
    /// kubelet's message.
    pub message: String,
    /// Whether it needs attention.
    pub is_warning: bool,
}

/// kubelet's events when it reports its status: the node was booted since it was last seen, or its condition `Ready`
/// changed. `sent` is what this agent sent before; without it, the Node's state is as it was `seen`.
pub fn events(
    node: &NodeDescription,
    sent: Option<&SentReport>,
    seen: Option<&SeenNode>,
    report: &NodeReport,
) -> Vec<NodeEvent> {
    let NodeDescription { name, info, .. } = node;
    let mut events = Vec::new();
    let boot = info.get("bootID").filter(|boot| !boot.is_empty());
    let seen_boot = seen.map(|seen| seen.boot_id.as_str()).filter(|boot| !boot.is_empty());
    if let (None, Some(boot), Some(before)) = (sent, boot, seen_boot)
        && boot != before
    {
        let message = format!("Node {name} has been rebooted, boot id: {boot}");
        events.push(NodeEvent { reason: "Rebooted", message, is_warning: true });
    }
    let is_ready = not_ready(report).is_none();
    let was_ready = match sent {
        Some(sent) => Some(not_ready(&sent.report).is_none()),
        None => seen.and_then(|seen| Some(seen.conditions.get("Ready")?.0 == "True")),
    };
    if was_ready != Some(is_ready) {
        let reason = if is_ready { "NodeReady" } else { "NodeNotReady" };
        let message = format!("Node {name} status is now: {reason}");
        events.push(NodeEvent { reason, message, is_warning: false });
    }
    events
}

/// The API's times have no fractions.
fn whole_seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// Whether pods may be scheduled to the node, after that has changed: kubelet's event for `kubectl cordon` and
/// `uncordon`.
pub fn cordon_event(name: &str, unschedulable: bool) -> NodeEvent {
    let reason = if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" };
    NodeEvent { reason, message: format!("Node {name} status is now: {reason}"), is_warning: false }
}

/// The report that was last sent.
#[derive(Debug, Clone, PartialEq)]
pub struct SentReport {
    /// The UID of the Node it was sent for.
    pub uid: String,
    /// Its contents.
    pub report: NodeReport,
    /// When it was sent.
    pub at: Instant,
    /// After this time it is sent again if nothing has changed.
    pub interval: Duration,
}

/// How often the status is sent while it has not changed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frequencies {
    /// `nodeStatusReportFrequency`, for an unchanged status.
    pub report: Duration,
    /// `nodeStatusUpdateFrequency`, after a change by another client. Otherwise two agents with one name would answer
    /// each other without a pause.
    pub correction: Duration,
}

/// When the status is sent: at once (`None`) if it differs or the Node is another one, and soon if another client has
/// changed it, for example a cluster that has lost the node's lease or was restored.
pub fn report_due(
    node: &NodeDescription,
    sent: Option<&SentReport>,
    seen: &SeenNode,
    report: &NodeReport,
    every: Frequencies,
) -> Option<Instant> {
    let sent = sent.filter(|sent| sent.uid == seen.uid && says_the_same(&sent.report, report))?;
    let as_sent = seen.matches(&status(node, report, seen, Timestamp::UNIX_EPOCH));
    Some(sent.at + if as_sent { sent.interval } else { sent.interval.min(every.correction) })
}

/// After what time a report is sent again if nothing changes. `late` is how long after it was due this one was sent;
/// `None` if it was sent for a change, or is the first. A report that is late may have a cause that many nodes share,
/// such as the return of their apiserver. The next one is therefore spread, once, over half of
/// `nodeStatusReportFrequency` before and after its time (kubelet's `calculateDelay`).
pub fn report_interval(every: Frequencies, late: Option<Duration>, dice: u64) -> Duration {
    if late.is_some_and(|late| late <= every.correction) {
        return every.report;
    }
    jitter::around(every.report, 500, dice)
}

/// Whether both make the same status. A link that came and went does not show.
fn says_the_same(before: &NodeReport, now: &NodeReport) -> bool {
    let shown = |report: &NodeReport| {
        let NodeState { runtime_ready, network_ready, network, pressure, shutting_down, .. } = report.state;
        let pressures: Vec<Pressure> = pressure.iter().collect();
        (runtime_ready, network_ready, network.addresses, pressures, shutting_down)
    };
    shown(before) == shown(now)
        && before.network_problem == now.network_problem
        && before.runtime_version == now.runtime_version
        && before.devices == now.devices
        && before.images == now.images
        && before.volumes_in_use == now.volumes_in_use
}

#[cfg(test)]
mod tests;
