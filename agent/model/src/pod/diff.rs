//! The differences between two versions of a pod, part by part. They borrow from both versions; nothing is copied.
//!
//! Image and resources are compared as authored, because they decide whether a container is restarted, and an agent
//! with other defaults must restart nothing. Everything else is compared with its defaults.

use std::fmt;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::pod::PodRecord;
use crate::pod::authored::{Authored, AuthoredContainer};
use crate::pod::identity::{HASH_ANNOTATION, SOURCE_ANNOTATION};
use crate::pod::resize::resizes_in_place;

/// One part of a pod that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// `metadata.labels`.
    Labels,
    /// `metadata.annotations`, except those the node sets.
    Annotations,
    /// Another field of `metadata`, by its name.
    Metadata(&'static str),
    /// The image of the container of that name.
    Image(&'a str),
    /// The resources of the container of that name.
    Resources(&'a str),
    /// Anything else of the container of that name.
    Container(&'a str),
    /// A container that was added.
    ContainerAdded(&'a str),
    /// A container that was removed.
    ContainerRemoved(&'a str),
    /// The containers or init containers are in another order.
    ContainerOrder,
    /// The volume of that name: added, removed or changed.
    Volume(&'a str),
    /// A field that the pod's sandbox depends on, by its name.
    Sandbox(&'static str),
    /// `terminationGracePeriodSeconds`.
    GracePeriod,
    /// `activeDeadlineSeconds`.
    ActiveDeadline,
    Tolerations,
    /// Any other field of the spec, by its name.
    Spec(&'static str),
    /// Its source requests its deletion, or changed that request.
    Deletion,
    /// The status at its source.
    Status,
    /// Its origin: a renamed file, another URL.
    Origin,
    /// Only its text differs and not its meaning, as with an explicit default.
    Form,
}

/// The differences between two versions of one pod.
#[derive(Debug, Clone)]
pub struct PodDiff<'a> {
    old: &'a PodRecord,
    new: &'a PodRecord,
    parts: Vec<Part<'a>>,
}

impl<'a> PodDiff<'a> {
    /// Collects every part of `new` that differs from `old`.
    pub fn between(old: &'a PodRecord, new: &'a PodRecord) -> Self {
        let mut parts = Vec::new();
        if old.fingerprint != new.fingerprint {
            let authored = (Authored::parse(&old.manifest), Authored::parse(&new.manifest));
            metadata(&old.pod.metadata, &new.pod.metadata, &mut parts);
            if !authored.0.same_uid(&authored.1) {
                parts.push(Part::Metadata("uid"));
            }
            containers(old.spec(), new.spec(), (&authored.0, &authored.1), &mut parts);
            let added = new.ephemeral.iter().filter(|container| old.container(&container.name).is_none());
            parts.extend(added.map(|container| Part::ContainerAdded(&container.name)));
            volumes(old.spec(), new.spec(), &mut parts);
            spec(old.spec(), new.spec(), &mut parts);
            if parts.is_empty() {
                parts.push(Part::Form);
            }
        }
        if old.deletion() != new.deletion() {
            parts.retain(|part| *part != Part::Form);
            parts.push(Part::Deletion);
        }
        if old.pod.status != new.pod.status {
            parts.push(Part::Status);
        }
        if old.source != new.source || old.origin != new.origin {
            parts.push(Part::Origin);
        }
        Self { old, new, parts }
    }

    /// The parts that differ, each once.
    pub fn parts(&self) -> &[Part<'a>] {
        &self.parts
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether only metadata differs, which affects neither containers nor the sandbox: labels, annotations, origin.
    #[cfg(test)]
    pub fn is_metadata_only(&self) -> bool {
        let metadata = |part: &Part<'_>| {
            matches!(part, Part::Labels | Part::Annotations | Part::Metadata(_) | Part::Origin | Part::Form)
        };
        self.parts.iter().all(metadata)
    }

    /// Whether the new version cannot be reached in place, so that the old pod is terminated before the new one
    /// starts.
    pub fn needs_new_pod(&self) -> bool {
        !self.old.is_same_incarnation(self.new)
    }

    /// The containers that an update in place restarts, each once.
    pub fn restarts(&self) -> impl Iterator<Item = &'a str> {
        self.touched().filter(|name| !resizes_in_place(self.old, self.new, name))
    }

    /// The containers that an update in place resizes while they run, each once.
    pub fn resizes(&self) -> impl Iterator<Item = &'a str> {
        self.touched().filter(|name| resizes_in_place(self.old, self.new, name))
    }

    /// The containers whose image or resources differ, each once.
    pub fn touched(&self) -> impl Iterator<Item = &'a str> {
        let named = |part: &Part<'a>| match part {
            Part::Image(name) | Part::Resources(name) => Some(*name),
            _ => None,
        };
        // Image and resources of one container are adjacent.
        let mut last = None;
        self.parts.iter().filter_map(named).filter(move |name| last.replace(*name) != Some(*name))
    }
}

/// Compares two structs field by field and pushes the part of each field that differs.
///
/// It is exhaustive: a new field of the Pod API does not compile until it is listed.
macro_rules! compare {
    ($type:ident: $old:expr, $new:expr => $parts:expr;
     elsewhere: $($other:ident),*; $($part:expr => $($field:ident),+;)*) => {{
        let $type { $($($field: _,)+)* $($other: _,)* } = $new;
        $(if false $(|| $old.$field != $new.$field)+ { $parts.push($part); })*
    }};
}

fn metadata<'a>(old: &ObjectMeta, new: &ObjectMeta, parts: &mut Vec<Part<'a>>) {
    compare! { ObjectMeta: old, new => parts;
        // The apiserver's own bookkeeping is not desired state; the other fields are compared elsewhere.
        elsewhere: annotations, creation_timestamp, deletion_grace_period_seconds, deletion_timestamp, generation,
            managed_fields, name, namespace, resource_version, self_link, uid;
        Part::Labels => labels;
        Part::Metadata("finalizers") => finalizers;
        Part::Metadata("generateName") => generate_name;
        Part::Metadata("ownerReferences") => owner_references;
    }
    let authored = |metadata: &'_ ObjectMeta| {
        let all = metadata.annotations.iter().flatten();
        all.filter(|(key, _)| *key != HASH_ANNOTATION && *key != SOURCE_ANNOTATION).count()
    };
    let has = |metadata: &ObjectMeta, key: &String, value: &String| {
        key == HASH_ANNOTATION
            || key == SOURCE_ANNOTATION
            || metadata.annotations.as_ref().is_some_and(|annotations| annotations.get(key) == Some(value))
    };
    let kept = new.annotations.iter().flatten().all(|(key, value)| has(old, key, value));
    if !kept || authored(old) != authored(new) {
        parts.push(Part::Annotations);
    }
}

fn containers<'a>(
    old: &'a PodSpec,
    new: &'a PodSpec,
    authored: (&Authored<'a>, &Authored<'a>),
    parts: &mut Vec<Part<'a>>,
) {
    let lists = [(old.init_containers.as_deref(), new.init_containers.as_deref()), {
        (Some(&old.containers[..]), Some(&new.containers[..]))
    }];
    for (old, new) in lists {
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        for container in new {
            let name = container.name.as_str();
            match old.iter().find(|before| before.name == name) {
                Some(before) => {
                    let authored = (authored.0.container(name), authored.1.container(name));
                    one_container(before, container, authored, parts);
                }
                None => parts.push(Part::ContainerAdded(name)),
            }
        }
        let gone = old.iter().map(|before| before.name.as_str()).filter(|name| new.iter().all(|now| now.name != *name));
        parts.extend(gone.map(Part::ContainerRemoved));
        let stays = |list: &'a [Container], other: &'a [Container]| {
            list.iter().map(|entry| &entry.name).filter(|name| other.iter().any(|two| two.name == **name))
        };
        if !stays(old, new).eq(stays(new, old)) {
            parts.push(Part::ContainerOrder);
        }
    }
}

fn one_container<'a>(
    old: &Container,
    new: &'a Container,
    authored: (Option<&AuthoredContainer<'_>>, Option<&AuthoredContainer<'_>>),
    parts: &mut Vec<Part<'a>>,
) {
    let name = new.name.as_str();
    let (image, resources, policy) = match authored {
        (Some(a), Some(b)) => (!a.same_image(b), !a.same_resources(b), !a.same_pull_policy(b)),
        // Without a manifest the defaulted values decide.
        _ => (old.image != new.image, old.resources != new.resources, old.image_pull_policy != new.image_pull_policy),
    };
    if image {
        parts.push(Part::Image(name));
    }
    if resources {
        parts.push(Part::Resources(name));
    }
    if policy {
        parts.push(Part::Container(name));
        return;
    }
    compare! { Container: old, new => parts;
        elsewhere: name, image, image_pull_policy, resources;
        Part::Container(name) => args, command, env, env_from, lifecycle, liveness_probe, ports, readiness_probe,
            resize_policy, restart_policy, restart_policy_rules, security_context, startup_probe, stdin, stdin_once,
            termination_message_path, termination_message_policy, tty, volume_devices, volume_mounts, working_dir;
    }
}

fn volumes<'a>(old: &'a PodSpec, new: &'a PodSpec, parts: &mut Vec<Part<'a>>) {
    let (old, new) = (old.volumes.as_deref().unwrap_or_default(), new.volumes.as_deref().unwrap_or_default());
    parts.extend(new.iter().filter(|volume| !old.contains(volume)).map(|volume| Part::Volume(&volume.name)));
    let gone = old.iter().filter(|before| new.iter().all(|volume| volume.name != before.name));
    parts.extend(gone.map(|volume| Part::Volume(&volume.name)));
}

fn spec<'a>(old: &PodSpec, new: &PodSpec, parts: &mut Vec<Part<'a>>) {
    compare! { PodSpec: old, new => parts;
        elsewhere: containers, ephemeral_containers, init_containers, volumes;
        Part::GracePeriod => termination_grace_period_seconds;
        Part::ActiveDeadline => active_deadline_seconds;
        Part::Tolerations => tolerations;
        Part::Sandbox("dnsConfig") => dns_config;
        Part::Sandbox("dnsPolicy") => dns_policy;
        Part::Sandbox("hostAliases") => host_aliases;
        Part::Sandbox("hostIPC") => host_ipc;
        Part::Sandbox("hostNetwork") => host_network;
        Part::Sandbox("hostPID") => host_pid;
        Part::Sandbox("hostUsers") => host_users;
        Part::Sandbox("hostname") => hostname;
        Part::Sandbox("hostnameOverride") => hostname_override;
        Part::Sandbox("overhead") => overhead;
        Part::Sandbox("resources") => resources;
        Part::Sandbox("runtimeClassName") => runtime_class_name;
        Part::Sandbox("securityContext") => security_context;
        Part::Sandbox("setHostnameAsFQDN") => set_hostname_as_fqdn;
        Part::Sandbox("shareProcessNamespace") => share_process_namespace;
        Part::Sandbox("subdomain") => subdomain;
        Part::Spec("affinity") => affinity;
        Part::Spec("automountServiceAccountToken") => automount_service_account_token;
        Part::Spec("enableServiceLinks") => enable_service_links;
        Part::Spec("evictionResponders") => eviction_responders;
        Part::Spec("imagePullSecrets") => image_pull_secrets;
        Part::Spec("nodeName") => node_name;
        Part::Spec("nodeSelector") => node_selector;
        Part::Spec("os") => os;
        Part::Spec("preemptionPolicy") => preemption_policy;
        Part::Spec("priority") => priority;
        Part::Spec("priorityClassName") => priority_class_name;
        Part::Spec("readinessGates") => readiness_gates;
        Part::Spec("resourceClaims") => resource_claims;
        Part::Spec("restartPolicy") => restart_policy;
        Part::Spec("schedulerName") => scheduler_name;
        Part::Spec("schedulingGates") => scheduling_gates;
        Part::Spec("schedulingGroup") => scheduling_group;
        Part::Spec("serviceAccountName") => service_account, service_account_name;
        Part::Spec("topologySpreadConstraints") => topology_spread_constraints;
    }
}

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Labels => f.write_str("labels"),
            Self::Annotations => f.write_str("annotations"),
            Self::Metadata(field) | Self::Sandbox(field) | Self::Spec(field) => f.write_str(field),
            Self::Image(container) => write!(f, "image of container {container}"),
            Self::Resources(container) => write!(f, "resources of container {container}"),
            Self::Container(container) => write!(f, "container {container}"),
            Self::ContainerAdded(container) => write!(f, "container {container} (new)"),
            Self::ContainerRemoved(container) => write!(f, "container {container} (removed)"),
            Self::ContainerOrder => f.write_str("order of containers"),
            Self::Volume(volume) => write!(f, "volume {volume}"),
            Self::GracePeriod => f.write_str("terminationGracePeriodSeconds"),
            Self::ActiveDeadline => f.write_str("activeDeadlineSeconds"),
            Self::Tolerations => f.write_str("tolerations"),
            Self::Deletion => f.write_str("deletion"),
            Self::Status => f.write_str("status"),
            Self::Origin => f.write_str("origin"),
            Self::Form => f.write_str("formatting"),
        }
    }
}

/// The parts, separated by commas: `image of container web, labels`.
impl fmt::Display for PodDiff<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{part}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
