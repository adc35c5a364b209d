//! CDI devices, which vendors describe in files on the host, and their edits of a container's spec.
//!
//! containerd's CRI plugin applies them for kubelet. limpet uses containerd's native API, so it applies them itself,
//! by the Container Device Interface specification, 0.3 to 1.1. A device has edits of its own and, once per file,
//! those of its file.

mod files;

use std::collections::HashMap;
use std::path::PathBuf;

use oci_spec::runtime::{Hook, Hooks, LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType, Mount, Spec};
use serde::Deserialize;

pub(super) use self::files::{read, resolve};

/// A file of CDI devices.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    cdi_version: String,
    kind: String,
    #[serde(default, rename = "annotations")]
    _annotations: serde_json::Value,
    devices: Vec<NamedDevice>,
    #[serde(default)]
    container_edits: ContainerEdits,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NamedDevice {
    name: String,
    #[serde(default, rename = "annotations")]
    _annotations: serde_json::Value,
    container_edits: ContainerEdits,
}

/// The changes of a container's spec.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerEdits {
    /// Environment variables, as `NAME=value`.
    #[serde(default)]
    env: Vec<String>,
    #[serde(default)]
    device_nodes: Vec<DeviceNode>,
    #[serde(default)]
    mounts: Vec<CdiMount>,
    #[serde(default)]
    hooks: Vec<CdiHook>,
    #[serde(default)]
    additional_gids: Vec<u32>,
    /// Refused, because limpet sets up no cache partitions.
    #[serde(default)]
    intel_rdt: Option<serde_json::Value>,
    /// CDI 1.1; refused, because it needs an OCI runtime of version 1.3.
    #[serde(default)]
    net_devices: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeviceNode {
    path: PathBuf,
    #[serde(default)]
    host_path: PathBuf,
    /// `b`, `c`, `u` or `p`; empty for the type of the host's node.
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    major: i64,
    #[serde(default)]
    minor: i64,
    #[serde(default)]
    file_mode: Option<u32>,
    #[serde(default)]
    permissions: String,
    #[serde(default)]
    uid: Option<u32>,
    #[serde(default)]
    gid: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CdiMount {
    host_path: PathBuf,
    container_path: PathBuf,
    #[serde(default)]
    options: Vec<String>,
    #[serde(default, rename = "type")]
    kind: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CdiHook {
    hook_name: HookName,
    path: PathBuf,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<String>,
    #[serde(default)]
    timeout: Option<i64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum HookName {
    #[default]
    Prestart,
    CreateRuntime,
    CreateContainer,
    StartContainer,
    Poststart,
    Poststop,
}

/// Applies edits to `spec`. [`resolve`] has completed the device nodes from the host.
pub(super) fn apply(spec: &mut Spec, edits: &[ContainerEdits]) {
    for edit in edits {
        set_env(spec, &edit.env);
        edit.device_nodes.iter().for_each(|node| add_device(spec, node));
        add_mounts(spec, &edit.mounts);
        edit.hooks.iter().for_each(|hook| add_hook(spec, hook));
        add_groups(spec, &edit.additional_gids);
    }
}

/// Sets variables; an existing one gets the new value in its place.
fn set_env(spec: &mut Spec, variables: &[String]) {
    let Some(process) = spec.process_mut().as_mut().filter(|_| !variables.is_empty()) else { return };
    let mut all = process.env().clone().unwrap_or_default();
    let name = |variable: &str| variable.split('=').next().map(str::to_owned);
    for variable in variables {
        match all.iter_mut().find(|known| name(known) == name(variable)) {
            Some(known) => known.clone_from(variable),
            None => all.push(variable.clone()),
        }
    }
    process.set_env(Some(all));
}

fn add_device(spec: &mut Spec, node: &DeviceNode) {
    let user = spec.process().as_ref().map(|process| (process.user().uid(), process.user().gid()));
    let (uid, gid) = user.unwrap_or_default();
    let kind = match node.kind.as_str() {
        "b" => LinuxDeviceType::B,
        "p" => LinuxDeviceType::P,
        "u" => LinuxDeviceType::U,
        _ => LinuxDeviceType::C,
    };
    let mut device = LinuxDevice::default();
    device.set_path(node.path.clone()).set_typ(kind).set_major(node.major).set_minor(node.minor);
    device.set_file_mode(node.file_mode);
    device.set_uid(node.uid.or(Some(uid).filter(|uid| *uid > 0)));
    device.set_gid(node.gid.or(Some(gid).filter(|gid| *gid > 0)));
    let Some(linux) = spec.linux_mut() else { return };
    let mut devices = linux.devices().clone().unwrap_or_default();
    devices.retain(|known| *known.path() != node.path);
    devices.push(device);
    linux.set_devices(Some(devices));
    if !matches!(kind, LinuxDeviceType::B | LinuxDeviceType::C) {
        return;
    }
    let access = if node.permissions.is_empty() { "rwm" } else { &node.permissions };
    let mut rule = LinuxDeviceCgroup::default();
    rule.set_allow(true).set_typ(Some(kind)).set_access(Some(access.to_owned()));
    rule.set_major(Some(node.major)).set_minor(Some(node.minor));
    let mut resources = linux.resources().clone().unwrap_or_default();
    let rules = resources.devices().iter().flatten().cloned().chain([rule]).collect();
    resources.set_devices(Some(rules));
    linux.set_resources(Some(resources));
}

/// Adds mounts; each replaces an existing mount at its path, and parents come first.
fn add_mounts(spec: &mut Spec, mounts: &[CdiMount]) {
    if mounts.is_empty() {
        return;
    }
    let mut all = spec.mounts().clone().unwrap_or_default();
    for mount in mounts {
        all.retain(|known| *known.destination() != mount.container_path);
        let mut new = Mount::default();
        new.set_source(Some(mount.host_path.clone())).set_destination(mount.container_path.clone());
        let given = Some(mount.options.clone()).filter(|options| !options.is_empty());
        // A mount without type and options is a bind mount of a file or directory.
        let bind = || vec!["rbind".to_owned(), "rprivate".to_owned()];
        new.set_options(Some(given.unwrap_or_else(bind)));
        new.set_typ(Some(if mount.kind.is_empty() { "bind".to_owned() } else { mount.kind.clone() }));
        all.push(new);
    }
    all.sort_by_key(|mount| mount.destination().components().count());
    spec.set_mounts(Some(all));
}

/// Replaces the hooks of one kind.
type SetHooks = fn(&mut Hooks, Option<Vec<Hook>>) -> &mut Hooks;

fn add_hook(spec: &mut Spec, hook: &CdiHook) {
    let mut new = Hook::default();
    let some = |list: &Vec<String>| Some(list.clone()).filter(|list| !list.is_empty());
    new.set_path(hook.path.clone()).set_args(some(&hook.args)).set_env(some(&hook.env)).set_timeout(hook.timeout);
    let mut hooks = spec.hooks().clone().unwrap_or_default();
    #[allow(deprecated, reason = "vendors' files still name prestart hooks")]
    let (known, set): (_, SetHooks) = match hook.hook_name {
        HookName::Prestart => (hooks.prestart().clone(), Hooks::set_prestart),
        HookName::CreateRuntime => (hooks.create_runtime().clone(), Hooks::set_create_runtime),
        HookName::CreateContainer => (hooks.create_container().clone(), Hooks::set_create_container),
        HookName::StartContainer => (hooks.start_container().clone(), Hooks::set_start_container),
        HookName::Poststart => (hooks.poststart().clone(), Hooks::set_poststart),
        HookName::Poststop => (hooks.poststop().clone(), Hooks::set_poststop),
    };
    set(&mut hooks, Some(known.into_iter().flatten().chain([new]).collect()));
    spec.set_hooks(Some(hooks));
}

fn add_groups(spec: &mut Spec, groups: &[u32]) {
    let Some(process) = spec.process_mut().as_mut().filter(|_| !groups.is_empty()) else { return };
    let mut user = process.user().clone();
    let mut all = user.additional_gids().clone().unwrap_or_default();
    for group in groups.iter().filter(|group| **group != 0) {
        if !all.contains(group) {
            all.push(*group);
        }
    }
    user.set_additional_gids(Some(all));
    process.set_user(user);
}

/// A plugin's annotations for the OCI runtime's hooks.
pub(super) fn annotations(given: &[limpet_model::device_allocation::DeviceAllocation]) -> HashMap<String, String> {
    let all = given.iter().flat_map(|device| &device.annotations);
    all.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
