//! The OCI runtime spec of one container, a pure function of its inputs.
//!
//! [`assemble`] is that function; it combines the results of kubelet and containerd's CRI plugin. [`build`] first
//! reads the few facts of the host that some containers need. The submodules have the rules, one subject each.

mod apparmor;
mod capabilities;
mod cdi;
mod env_file;
mod environment;
mod expansion;
mod host;
mod mounts;
mod process;
mod resources;
mod scope;
mod seccomp;
mod shim_group;
mod sub_paths;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Container;
use oci_spec::runtime::{
    Linux, LinuxDevice, LinuxDeviceCgroup, LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespace, LinuxNamespaceType,
    LinuxResources, LinuxSeccomp, Root, Spec,
};

pub use self::expansion::expand_probe_command;
pub use self::host::HostInput;
pub use self::resources::{ContainerCpus, resized, with_resources};
pub use self::shim_group::ShimGroup;
pub use self::sub_paths::expand_sub_paths;

use limpet_host::volume::{BlockDevice, Mount};
use limpet_model::device_allocation::DeviceAllocation;
use limpet_model::image::LocalImage;
use limpet_model::node::{NodeAddresses, NodeFacts};
use limpet_model::object::{ObjectKey, ObjectKind, PodObjects};
use limpet_model::pod::PodRecord;
use limpet_model::sandbox::{PodAddresses, Sandbox};
use limpet_model::selinux::ContainerLabels;

/// The user and groups of the container's init process, as numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessUser {
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups, the image's and the Pod's.
    pub additional_gids: Vec<u32>,
    /// The user's home directory, for `HOME`; empty when `/etc/passwd` does not contain the user.
    pub home: String,
}

/// The inputs of one container's spec.
#[derive(Debug, Clone, Copy)]
pub struct SpecInput<'a> {
    pub pod: &'a PodRecord,
    /// The container, init or not.
    pub container: &'a Container,
    pub image: &'a LocalImage,
    /// Its user, resolved inside the image.
    pub user: &'a ProcessUser,
    /// The pod's namespaces, shm and hostname.
    pub sandbox: &'a Sandbox,
    /// The pod's addresses, for `fieldRef: status.podIP`; the node's with `hostNetwork`.
    pub addresses: &'a PodAddresses,
    /// The node's addresses, for `fieldRef: status.hostIP`.
    pub node_addresses: NodeAddresses,
    /// Volumes and the files the agent provides (`/etc/hosts`, `/etc/resolv.conf`, termination log), in order.
    pub mounts: &'a [Mount],
    /// `linux.cgroupsPath` in the driver's form.
    pub cgroups_path: &'a str,
    pub node: &'a NodeFacts,
    /// The directory of the pod's own volumes, with the files of `fileKeyRef`.
    pub pod_dir: &'a Path,
    /// The current ConfigMaps and Secrets to which the pod refers.
    pub objects: &'a PodObjects,
    /// The CDI devices of its pod's runtime class, by qualified name.
    pub class_devices: &'a [String],
    /// The devices that device plugins have assigned to it.
    pub given: &'a [DeviceAllocation],
    /// `None` if it may run on all processors.
    pub cpus: Option<&'a ContainerCpus>,
    /// The block devices of its volumes.
    pub block_devices: &'a [BlockDevice],
    /// Its SELinux labels; `None` if nothing is labelled.
    pub labels: Option<&'a ContainerLabels>,
    /// Which containers share a shim.
    pub shim_group: ShimGroup,
}

/// The annotation by which containers share containerd's shim.
const SHIM_GROUP: &str = "io.containerd.runc.v2.group";

/// The version of the OCI runtime spec the document follows.
const OCI_VERSION: &str = "1.0.2";

/// Paths of `/proc` and `/sys` that are hidden from containers (Kubernetes' `procMount: Default`).
const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Paths of `/proc` that are read-only for containers.
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Why a container's spec cannot be built. The caller names the container.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// Neither the Pod nor the image has a command.
    #[error("no command specified")]
    NoCommand,
    /// A `fieldRef` or `resourceFieldRef` names an unknown field.
    #[error("env {variable:?}: unsupported field path {path:?}")]
    Field {
        variable: String,
        /// The path as written.
        path: String,
    },
    /// A variable refers to an address that does not exist yet.
    #[error("env {variable:?}: {field} is not known yet")]
    NoAddress { variable: String, field: String },
    /// A variable comes from an object that does not exist; kubelet's message.
    #[error("{} {name:?} not found", kind.resource())]
    NoObject {
        /// ConfigMap or Secret.
        kind: ObjectKind,
        name: String,
    },
    /// A variable comes from a key the object does not have; kubelet's message.
    #[error("couldn't find key {key} in {object}")]
    NoKey { object: ObjectKey, key: String },
    /// A value is not text, so a variable cannot hold it.
    #[error("the value of key {key} in {object} is not text; mount it as a file instead")]
    NoText { object: ObjectKey, key: String },
    /// A variable comes from a file of a volume that cannot be read.
    #[error("env {variable:?}: cannot read file {path:?} of volume {volume:?}: {source}")]
    EnvFile { variable: String, volume: String, path: String, source: io::Error },
    /// A variable comes from a file of a volume that is not a list of variables.
    #[error("env {variable:?}: file {path:?} of volume {volume:?}: line {line}: {reason}")]
    EnvFileLine {
        variable: String,
        volume: String,
        path: String,
        /// The line, from 1.
        line: usize,
        reason: &'static str,
    },
    /// A variable comes from a file of a volume that does not have its key.
    #[error("env {variable:?}: file {path:?} of volume {volume:?} has no key {key:?}")]
    NoEnvFileKey { variable: String, volume: String, path: String, key: String },
    /// A `subPathExpr` refers to variables without a value; kubelet's message.
    #[error("failed to expand subPathExpr {expression:?} of mount {mount_path}: missing value for {variables}")]
    SubPathVariables {
        expression: String,
        /// Where it is mounted.
        mount_path: String,
        variables: String,
    },
    /// A `subPathExpr` is an absolute path, or leads upward.
    #[error(
        "subPathExpr {expression:?} of mount {mount_path} expands to {path:?}, which must be a relative path without \"..\""
    )]
    SubPath {
        expression: String,
        /// Where it is mounted.
        mount_path: String,
        path: String,
    },
    /// A capability to add does not exist.
    #[error("unknown capability {0:?}")]
    Capability(String),
    /// A seccomp profile is outside the node's directory of profiles.
    #[error("seccomp profile {0:?} must be a relative path without \"..\"")]
    ProfileName(String),
    /// A seccomp profile is not an OCI JSON document.
    #[error("parse seccomp profile {path}: {source}")]
    Profile { path: PathBuf, source: serde_json::Error },
    /// A file of the host cannot be read.
    #[error("read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    /// The container's AppArmor profile does not exist.
    #[error("{0}")]
    AppArmor(String),
    /// A CDI device that a device plugin names is unavailable.
    #[error("failed to inject CDI devices: {0}")]
    Cdi(String),
    /// A part of the document cannot be built.
    #[error("build the OCI runtime spec: {0}")]
    Document(String),
}

impl SpecError {
    fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }

    /// Whether a retry may succeed after a change on the node, without an edit of the manifest.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Read { .. } | Self::Profile { .. } | Self::AppArmor(_) | Self::EnvFile { .. } | Self::Cdi(_)
        )
    }
}

/// Builds the spec of a container on this host.
///
/// Reads a few small files below `/proc` and `/sys`, `/dev` only for a privileged container, and a seccomp profile
/// only for a container that names one.
///
/// # Errors
///
/// The manifest requires something impossible, or the host cannot be read.
pub fn build(input: &SpecInput<'_>) -> Result<Spec, SpecError> {
    assemble(input, &HostInput::read(input)?)
}

/// Builds the spec of a container from its inputs only: the same inputs always give the same spec.
///
/// The hostname is not set, because it belongs to the UTS namespace that the container joins.
///
/// # Errors
///
/// The manifest requires something impossible.
pub fn assemble(input: &SpecInput<'_>, host: &HostInput) -> Result<Spec, SpecError> {
    let context = input.container.security_context.as_ref();
    let granted = capabilities::granted(context, &host.capabilities)?;
    let seccomp = seccomp(input, host, &granted)?;
    let id_mappings = id_mappings(input)?;
    let mut linux = linux(input, host, seccomp);
    linux.set_uid_mappings(id_mappings.clone()).set_gid_mappings(id_mappings);
    let mut root = Root::default();
    root.set_path("rootfs".into())
        .set_readonly(Some(context.and_then(|context| context.read_only_root_filesystem) == Some(true)));
    let mut spec = Spec::default();
    spec.set_version(OCI_VERSION.to_owned())
        .set_root(Some(root))
        .set_mounts(Some(mounts::mounts(input, is_privileged(input.container))))
        .set_process(Some(process::process(input, host, granted)?))
        .set_hostname(None)
        .set_annotations(Some(annotations(input)))
        .set_linux(Some(linux));
    cdi::apply(&mut spec, &host.cdi);
    Ok(spec)
}

fn annotations(input: &SpecInput<'_>) -> HashMap<String, String> {
    let group = (SHIM_GROUP.to_owned(), input.shim_group.name(&input.pod.uid));
    cdi::annotations(input.given).into_iter().chain(scope::annotations(input)).chain([group]).collect()
}

fn linux(input: &SpecInput<'_>, host: &HostInput, seccomp: Option<LinuxSeccomp>) -> Linux {
    let privileged = is_privileged(input.container);
    let proc_mount = input.container.security_context.as_ref().and_then(|context| context.proc_mount.as_deref());
    let (masked, readonly) = if privileged || proc_mount == Some("Unmasked") {
        (Vec::new(), Vec::new())
    } else {
        let masked = MASKED_PATHS.into_iter().map(str::to_owned).chain(host.thermal_paths.iter().cloned());
        (masked.collect(), READONLY_PATHS.into_iter().map(str::to_owned).collect())
    };
    let mut linux = Linux::default();
    linux
        .set_resources(Some(cgroup_resources(input, host)))
        .set_cgroups_path(Some(input.cgroups_path.into()))
        .set_namespaces(Some(namespaces(input)))
        .set_devices(devices(host, privileged))
        .set_seccomp(seccomp)
        .set_rootfs_propagation(mounts::rootfs_propagation(input.mounts))
        .set_masked_paths(Some(masked))
        .set_readonly_paths(Some(readonly))
        .set_mount_label(input.labels.map(|labels| labels.file.clone()));
    linux
}

/// The ids of the pod's user namespace, which already exists: the runtime and the shim need the host's id for root.
fn id_mappings(input: &SpecInput<'_>) -> Result<Option<Vec<LinuxIdMapping>>, SpecError> {
    let Some(ids) = input.sandbox.ids else { return Ok(None) };
    let mapping = LinuxIdMappingBuilder::default().container_id(0_u32).host_id(ids.first).size(ids.length).build();
    Ok(Some(vec![mapping.map_err(|error| SpecError::Document(error.to_string()))?]))
}

/// The host's devices for a privileged container, and those that it requests, which take precedence.
fn devices(host: &HostInput, privileged: bool) -> Option<Vec<LinuxDevice>> {
    let mut devices = host.devices.clone();
    for (device, _) in &host.granted {
        match devices.iter_mut().find(|other| other.path() == device.path()) {
            Some(other) => *other = device.clone(),
            None => devices.push(device.clone()),
        }
    }
    (privileged || !devices.is_empty()).then_some(devices)
}

/// The container's cgroup. It allows the devices that every runtime creates and those that the container requests, or
/// all devices for a privileged container.
fn cgroup_resources(input: &SpecInput<'_>, host: &HostInput) -> LinuxResources {
    let mut resources =
        resources::container_resources(input.pod.spec(), input.container, input.node, host.swap_limit, input.cpus);
    let mut devices = LinuxDeviceCgroup::default();
    devices.set_allow(is_privileged(input.container)).set_access(Some("rwm".to_owned()));
    let granted = host.granted.iter().map(|(device, permissions)| {
        let mut rule = LinuxDeviceCgroup::default();
        rule.set_allow(true).set_typ(Some(device.typ())).set_access(Some(permissions.clone()));
        rule.set_major(Some(device.major())).set_minor(Some(device.minor()));
        rule
    });
    resources.set_hugepage_limits(resources::huge_page_limits(input.pod.spec(), input.container, input.node));
    resources.set_devices(Some(std::iter::once(devices).chain(granted).collect()));
    resources
}

/// The container's own namespaces (PID unless the pod shares one, mount, cgroup on v2) and the pod's, joined by path.
/// For a missing namespace, the host's applies.
fn namespaces(input: &SpecInput<'_>) -> Vec<LinuxNamespace> {
    let new = |kind: LinuxNamespaceType, wanted: bool| wanted.then_some((kind, None));
    let joined = |kind: LinuxNamespaceType, path: &Option<PathBuf>| path.clone().map(|path| (kind, Some(path)));
    let pod = &input.sandbox.namespaces;
    [
        new(LinuxNamespaceType::Mount, true),
        new(LinuxNamespaceType::Pid, pod.pid.is_none() && input.pod.spec().host_pid != Some(true)),
        // Hides the host's cgroups, which a privileged container may see.
        new(LinuxNamespaceType::Cgroup, input.node.cgroup_v2 && !is_privileged(input.container)),
        joined(LinuxNamespaceType::Pid, &pod.pid),
        joined(LinuxNamespaceType::Network, &pod.network),
        joined(LinuxNamespaceType::Ipc, &pod.ipc),
        joined(LinuxNamespaceType::Uts, &pod.uts),
        joined(LinuxNamespaceType::User, &pod.user),
    ]
    .into_iter()
    .flatten()
    .map(|(kind, path)| {
        let mut namespace = LinuxNamespace::default();
        namespace.set_typ(kind).set_path(path);
        namespace
    })
    .collect()
}

fn seccomp(
    input: &SpecInput<'_>,
    host: &HostInput,
    granted: &oci_spec::runtime::Capabilities,
) -> Result<Option<LinuxSeccomp>, SpecError> {
    match seccomp::profile_of(input) {
        seccomp::Profile::Unconfined => Ok(None),
        seccomp::Profile::RuntimeDefault => seccomp::runtime_default(granted, std::env::consts::ARCH).map(Some),
        seccomp::Profile::Localhost(name) => {
            let unread = || SpecError::Document(format!("seccomp profile {name:?} was not read"));
            host.seccomp.clone().map(Some).ok_or_else(unread)
        }
    }
}

fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|context| context.privileged) == Some(true)
}

#[cfg(test)]
pub(crate) mod tests;
