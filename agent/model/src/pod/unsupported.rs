//! The table of unsupported fields. A Pod that uses one is rejected with the field's name, and never run without it.
//! So is one that needs an apiserver, unless the Pod comes from one. Fields that have no effect on a node without an
//! apiserver are accepted with a warning.

use serde_json::Value;

use crate::pod::bandwidth::{ANNOTATIONS, rate};
use crate::pod::device::is_device;
use crate::pod::huge_pages::HUGE_PAGES;
use crate::pod::restart_on_change::{RESTART_ANNOTATION, RestartOnChange};
use crate::pod::{Fault, Reason, quantity};
use crate::source::SourceKind;
use crate::taint::MEMORY_PRESSURE;

/// The condition under which a field counts as used. `null`, an empty text or list never counts.
#[derive(Debug, Clone, Copy)]
pub(super) enum UsedIf {
    /// With any value.
    Always,
    /// Unless it is an empty map, which has no effect.
    Filled,
    /// Unless it is one of these; `<size>` at the end means a quantity.
    Unless(&'static [&'static str]),
}

/// The end of a text in [`UsedIf::Unless`] that means a quantity.
const SIZE_PLACEHOLDER: &str = "<size>";

use UsedIf::{Always, Filled, Unless};

const WITHOUT_EFFECT: &str = "has no effect on a node without an apiserver";
const ALPHA: &str = "it is alpha in Kubernetes 1.37";
const MIGRATED: &str = "Kubernetes serves it by a CSI driver; use csi or a claim";
const NO_FIBRE_CHANNEL: &str =
    "limpet does not scan for disks of Fibre Channel; mount the disk on the node and use hostPath, or use csi";
const NO_CLAIMS: &str = "limpet has no drivers of ResourceClaims; use a device plugin or the table of devices";
const REMOVED: &str = "Kubernetes has removed it";

/// Fields that limpet does not implement, and why. `C` means every container and init container.
pub(super) const REFUSED: &[(&str, UsedIf, &str)] = &[
    // Life cycle
    ("spec.C.livenessProbe.httpGet.protocol", Unless(&["HTTP1"]), ALPHA),
    ("spec.C.readinessProbe.httpGet.protocol", Unless(&["HTTP1"]), ALPHA),
    ("spec.C.startupProbe.httpGet.protocol", Unless(&["HTTP1"]), ALPHA),
    ("spec.C.livenessProbe.grpc.mode", Unless(&["Plaintext"]), ALPHA),
    ("spec.C.readinessProbe.grpc.mode", Unless(&["Plaintext"]), ALPHA),
    ("spec.C.startupProbe.grpc.mode", Unless(&["Plaintext"]), ALPHA),
    ("spec.C.lifecycle.postStart.httpGet.protocol", Unless(&["HTTP1"]), ALPHA),
    ("spec.C.lifecycle.preStop.httpGet.protocol", Unless(&["HTTP1"]), ALPHA),
    ("spec.schedulingGates", Always, "only a scheduler removes gates"),
    ("spec.evictionResponders", Always, ALPHA),
    // Volumes; every kind but emptyDir, hostPath, nfs, iscsi, csi, flexVolume, image, configMap, secret, downwardAPI and projections of the
    // last three
    ("spec.volumes[].awsElasticBlockStore", Always, MIGRATED),
    ("spec.volumes[].azureDisk", Always, MIGRATED),
    ("spec.volumes[].azureFile", Always, MIGRATED),
    ("spec.volumes[].cephfs", Always, REMOVED),
    ("spec.volumes[].cinder", Always, MIGRATED),
    ("spec.volumes[].fc", Always, NO_FIBRE_CHANNEL),
    ("spec.volumes[].flocker", Always, REMOVED),
    ("spec.volumes[].gcePersistentDisk", Always, MIGRATED),
    ("spec.volumes[].gitRepo", Always, "Kubernetes has disabled it for security; clone in an init container"),
    ("spec.volumes[].glusterfs", Always, REMOVED),
    ("spec.volumes[].photonPersistentDisk", Always, REMOVED),
    ("spec.volumes[].portworxVolume", Always, MIGRATED),
    ("spec.volumes[].quobyte", Always, REMOVED),
    ("spec.volumes[].rbd", Always, REMOVED),
    ("spec.volumes[].scaleIO", Always, REMOVED),
    ("spec.volumes[].storageos", Always, REMOVED),
    ("spec.volumes[].vsphereVolume", Always, MIGRATED),
    (
        "spec.volumes[].emptyDir.medium",
        Unless(&["Memory", "HugePages", "HugePages-<size>"]),
        "there is no other medium",
    ),
    (
        "spec.volumes[].projected.sources[].podCertificate.keyType",
        Unless(&["ECDSAP256", "ECDSAP384", "ED25519"]),
        "limpet supports ECDSAP256, ECDSAP384 and ED25519",
    ),
    ("spec.C.volumeMounts[].bindMountOptions", Always, ALPHA),
    // Devices
    ("spec.resourceClaims", Always, NO_CLAIMS),
    ("spec.C.resources.claims", Always, NO_CLAIMS),
];

/// Fields that only an apiserver can serve, and what they need.
pub(super) const NEEDS_APISERVER: &[(&str, &str)] = &[
    ("spec.serviceAccountName", "a service account's token"),
    ("spec.serviceAccount", "a service account's token"),
    ("spec.volumes[].ephemeral", "a claim on a PersistentVolume"),
    ("spec.volumes[].csi", "a CSIDriver object"),
    ("spec.volumes[].projected.sources[].serviceAccountToken", "a service account's token"),
    ("spec.volumes[].projected.sources[].clusterTrustBundle", "a bundle of the cluster's certificates"),
    ("spec.volumes[].projected.sources[].podCertificate", "a certificate of a signer"),
];

/// Fields that have no effect on a node without an apiserver or a scheduler, except with the named values.
pub(super) const NO_EFFECT: &[(&str, UsedIf)] = &[
    ("metadata.finalizers", Always),
    ("metadata.generateName", Always),
    ("metadata.ownerReferences", Always),
    ("spec.affinity.podAffinity", Always),
    ("spec.affinity.podAntiAffinity", Always),
    ("spec.automountServiceAccountToken", Always),
    ("spec.preemptionPolicy", Always),
    // `limpet_core::priority` has the values of these two.
    ("spec.priorityClassName", Unless(&["system-node-critical", "system-cluster-critical"])),
    ("spec.schedulerName", Always),
    ("spec.schedulingGroup", Always),
    (TOLERATIONS, Always),
    ("spec.topologySpreadConstraints", Always),
];

/// A pushed pod that tolerates [`MEMORY_PRESSURE`] starts under memory pressure. Other taints stop none of the node's
/// own pods.
pub(super) const TOLERATIONS: &str = "spec.tolerations";

/// Fields without effect on Linux, as with kubelet.
pub(super) const NOT_ON_LINUX: &[&str] =
    &["spec.securityContext.windowsOptions", "spec.C.securityContext.windowsOptions"];

/// Every field of `manifest` that is rejected or has no effect for a pod of `source`.
pub(crate) fn check(manifest: &Value, source: SourceKind) -> Vec<Fault> {
    let traits = source.traits();
    let local = !traits.has_cluster;
    let host_network = manifest.pointer("/spec/hostNetwork") == Some(&Value::Bool(true));
    let used = |pattern: &'static str, used: UsedIf| {
        select(manifest, pattern).into_iter().filter(move |(_, value)| is_used(value, used)).map(|(path, _)| path)
    };
    let lacking = NEEDS_APISERVER.iter().filter(|_| local);
    let lacking = lacking.flat_map(|(pattern, what)| used(pattern, Always).map(|path| needs_apiserver(path, what)));
    let refused = REFUSED.iter().flat_map(|(pattern, when, why)| used(pattern, *when).map(|path| refuse(path, why)));
    let gates =
        select(manifest, "spec.readinessGates").into_iter().filter(|(_, gates)| local && is_used(gates, Always));
    let rates = select(manifest, "metadata.annotations")
        .into_iter()
        .flat_map(|annotations| bandwidth(annotations, host_network));
    let restarts = select(manifest, "metadata.annotations").into_iter().filter_map(restart_on_change);
    let unknown = select(manifest, "spec.C.resources.limits").into_iter().flat_map(unknown_resources);
    let tolerates = local && !traits.is_static && tolerates_memory_pressure(manifest);
    let silent = NO_EFFECT.iter().filter(|(pattern, _)| local && !(tolerates && *pattern == TOLERATIONS));
    let silent = silent.flat_map(|(pattern, when)| used(pattern, *when).map(|path| no_effect(path, *when)));
    let elsewhere = NOT_ON_LINUX.iter().flat_map(|pattern| used(pattern, Filled).map(not_on_linux));
    let mut faults: Vec<Fault> = lacking
        .chain(refused)
        .chain(gates.map(|(path, _)| never_ready(path)))
        .chain(rates)
        .chain(restarts)
        .chain(unknown)
        .chain(silent)
        .chain(elsewhere)
        .collect();
    faults.dedup_by(|a, b| a.path == b.path);
    faults
}

fn no_effect(path: String, when: UsedIf) -> Fault {
    let message = match when {
        Unless(known) => format!("{WITHOUT_EFFECT}; only {} have one", known.join(" and ")),
        // `limpet validate` cannot know whether the pod will be pushed.
        Always | Filled if path == TOLERATIONS => {
            format!("{WITHOUT_EFFECT}; only {MEMORY_PRESSURE} of a pushed pod has one")
        }
        Always | Filled => WITHOUT_EFFECT.to_owned(),
    };
    Fault::warning(path, message).because(Reason::NoEffect)
}

/// Whether some toleration may match the taint of memory pressure. One without a key matches every taint.
fn tolerates_memory_pressure(manifest: &Value) -> bool {
    select(manifest, "spec.tolerations[]").into_iter().any(|(_, toleration)| match toleration.get("key") {
        Some(Value::String(key)) => key.is_empty() || key == MEMORY_PRESSURE,
        _ => true,
    })
}

/// As in kubelet, the conditions of such a pod cannot be set, because those of its mirror do not count.
fn never_ready(path: String) -> Fault {
    Fault::warning(path, "name conditions that others set at an apiserver: this pod runs and is never ready")
        .with_remedy("remove the field, or create this Pod through an apiserver")
        .because(Reason::NeedsApiserver)
}

fn not_on_linux(path: String) -> Fault {
    Fault::warning(path, "has no effect on Linux").because(Reason::NoEffect)
}

fn needs_apiserver(path: String, what: &str) -> Fault {
    Fault::error(path, format!("needs {what}, which only an apiserver provides; this Pod is not from an apiserver"))
        .with_remedy("remove the field, or create this Pod through an apiserver")
        .because(Reason::NeedsApiserver)
}

fn refuse(path: String, why: &str) -> Fault {
    Fault::error(path, format!("is not supported: {why}"))
        .with_remedy("remove the field, or keep this Pod on a node that supports it")
        .because(Reason::Unsupported)
}

/// Faults of bandwidth annotations that are not rates, or that have no effect because the pod shares the node's
/// network.
fn bandwidth((path, annotations): (String, &Value), host_network: bool) -> Vec<Fault> {
    let annotated = ANNOTATIONS.iter().filter_map(|key| Some((super::yaml::join(&path, key), annotations.get(key)?)));
    let fault = |(path, value): (String, &Value)| {
        if value.as_str().and_then(rate).is_none() {
            return Some(
                Fault::error(path, "is not a rate in bits per second between 1k and 1P")
                    .with_remedy("write a quantity such as 10M")
                    .because(Reason::Invalid),
            );
        }
        let unlimited = Fault::warning(path, "has no effect on a pod with hostNetwork").because(Reason::NoEffect);
        host_network.then_some(unlimited)
    };
    annotated.filter_map(fault).collect()
}

/// The fault of an annotation that does not say which objects' changes restart containers.
fn restart_on_change((path, annotations): (String, &Value)) -> Option<Fault> {
    let value = annotations.get(RESTART_ANNOTATION)?;
    value.as_str().and_then(RestartOnChange::parse).is_none().then(|| {
        Fault::error(super::yaml::join(&path, RESTART_ANNOTATION), "names other objects than configmaps and secrets")
            .with_remedy("write configmaps, secrets, or configmaps,secrets")
            .because(Reason::Invalid)
    })
}

/// Faults of limits of resources that Kubernetes may know and limpet does not. Only the node knows its devices.
fn unknown_resources((path, limits): (String, &Value)) -> Vec<Fault> {
    let known = ["cpu", "memory", "ephemeral-storage"];
    let names = limits.as_object().into_iter().flatten().map(|(name, _)| name);
    names
        .filter(|name| !known.contains(&name.as_str()) && !is_device(name) && !name.starts_with(HUGE_PAGES))
        .map(|name| refuse(super::yaml::join(&path, name), "limpet does not support this resource"))
        .collect()
}

fn is_used(value: &Value, used: UsedIf) -> bool {
    let empty = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) | Value::Bool(_) | Value::Number(_) => false,
    };
    !empty
        && match used {
            Always => true,
            Filled => !value.as_object().is_some_and(|fields| fields.values().all(Value::is_null)),
            Unless(texts) => !value.as_str().is_some_and(|text| texts.iter().any(|known| is_text(known, text))),
        }
}

fn is_text(known: &str, text: &str) -> bool {
    match known.strip_suffix(SIZE_PLACEHOLDER) {
        Some(begin) => text.strip_prefix(begin).is_some_and(|size| quantity::parse(size).is_ok()),
        None => known == text,
    }
}

/// Every value that matches `pattern`, with its path. A pattern without a match, the usual case, allocates nothing.
fn select<'a>(value: &'a Value, pattern: &str) -> Vec<(String, &'a Value)> {
    let mut matches = Vec::new();
    follow(value, pattern, None, &mut matches);
    matches
}

/// The path to a value: its last step, and those before it.
#[derive(Clone, Copy)]
struct FieldPath<'w> {
    before: Option<&'w FieldPath<'w>>,
    name: &'w str,
    item: Option<usize>,
}

impl FieldPath<'_> {
    fn path(self) -> String {
        let before = self.before.map(|before| before.path()).unwrap_or_default();
        let path = super::yaml::join(&before, self.name);
        match self.item {
            Some(item) => format!("{path}[{item}]"),
            None => path,
        }
    }
}

fn follow<'a>(
    value: &'a Value,
    pattern: &str,
    before: Option<&FieldPath<'_>>,
    selected: &mut Vec<(String, &'a Value)>,
) {
    let (part, rest) = pattern.split_once('.').map_or((pattern, None), |(part, rest)| (part, Some(rest)));
    if part == "C" {
        for name in ["containers", "initContainers"] {
            each_item(value, name, rest, before, selected);
        }
    } else if let Some(name) = part.strip_suffix("[]") {
        each_item(value, name, rest, before, selected);
    } else if let Some(inner) = value.get(part) {
        go_on(inner, rest, FieldPath { before, name: part, item: None }, selected);
    }
}

fn each_item<'a>(
    value: &'a Value,
    name: &str,
    rest: Option<&str>,
    before: Option<&FieldPath<'_>>,
    selected: &mut Vec<(String, &'a Value)>,
) {
    let items = value.get(name).and_then(Value::as_array);
    for (index, item) in items.into_iter().flatten().enumerate() {
        go_on(item, rest, FieldPath { before, name, item: Some(index) }, selected);
    }
}

fn go_on<'a>(value: &'a Value, rest: Option<&str>, way: FieldPath<'_>, selected: &mut Vec<(String, &'a Value)>) {
    match rest {
        Some(rest) => follow(value, rest, Some(&way), selected),
        None => selected.push((way.path(), value)),
    }
}

#[cfg(test)]
mod tests;
