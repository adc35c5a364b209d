//! Validation of volume mounts and block devices of a container.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, HostPathVolumeSource, Volume, VolumeMount};

use crate::pod::validate::context::Pod;
use crate::pod::validate::field::{At, Faults, items, text};
use crate::pod::validate::name::has_backsteps;

/// Validates `volumeMounts`.
pub(super) fn mounts(pod: &Pod<'_>, at: &At<'_>, container: &Container, faults: &mut Faults) {
    let mut mount_paths = BTreeSet::new();
    let devices: BTreeSet<&str> = items(&container.volume_devices).map(|(_, device)| device.name.as_str()).collect();
    let device_paths: BTreeSet<&str> =
        items(&container.volume_devices).map(|(_, device)| device.device_path.as_str()).collect();
    for (index, mount) in items(&container.volume_mounts) {
        let item = at.index(index);
        volume_of(pod, &item.field("name"), &mount.name, faults);
        faults.not_empty(&item.field("mountPath"), &mount.mount_path);
        if !mount_paths.insert(mount.mount_path.as_str()) {
            faults.invalid(&item.field("mountPath"), &mount.mount_path, "must be unique");
        }
        if devices.contains(mount.name.as_str()) {
            faults.invalid(&item.field("name"), &mount.name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(mount.mount_path.as_str()) {
            let detail = "must not already exist as a path in volumeDevices";
            faults.invalid(&item.field("mountPath"), &mount.mount_path, detail);
        }
        sub_paths(&item, mount, faults);
        propagation(&item, container, mount, faults);
        bind_options(&item.field("bindMountOptions"), mount, pod.volumes.get(mount.name.as_str()).copied(), faults);
    }
}

/// The volume must be one of the pod's.
fn volume_of(pod: &Pod<'_>, at: &At<'_>, name: &str, faults: &mut Faults) {
    if name.is_empty() {
        return faults.required(at, "");
    }
    if !pod.volumes.contains_key(name) {
        let known: Vec<&str> = pod.volumes.keys().copied().collect();
        let remedy = match known.is_empty() {
            true => "add it to spec.volumes".to_owned(),
            false => format!("spec.volumes has: {}", known.join(", ")),
        };
        faults.not_found(at, name, &remedy);
    }
}

fn sub_paths(at: &At<'_>, mount: &VolumeMount, faults: &mut Faults) {
    let (path, expression) = (text(&mount.sub_path), text(&mount.sub_path_expr));
    faults.descending_path(&at.field("subPath"), path);
    faults.descending_path(&at.field("subPathExpr"), expression);
    if !path.is_empty() && !expression.is_empty() {
        faults.invalid(&at.field("subPathExpr"), expression, "subPathExpr and subPath are mutually exclusive");
    }
}

fn propagation(at: &At<'_>, container: &Container, mount: &VolumeMount, faults: &mut Faults) {
    let propagation = mount.mount_propagation.as_deref();
    let propagations = ["Bidirectional", "HostToContainer", "None"];
    faults.if_set_one_of(&at.field("mountPropagation"), propagation, &propagations);
    let privileged = container.security_context.as_ref().and_then(|context| context.privileged) == Some(true);
    if propagation == Some("Bidirectional") && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        faults.forbidden(&at.field("mountPropagation"), detail);
    }
    let at = at.field("recursiveReadOnly");
    let recursive = mount.recursive_read_only.as_deref();
    faults.if_set_one_of(&at, recursive, &["Disabled", "Enabled", "IfPossible"]);
    if matches!(recursive, Some("Enabled" | "IfPossible")) {
        if mount.read_only != Some(true) {
            faults.forbidden(&at, "may only be specified when readOnly is true");
        }
        if !matches!(propagation, None | Some("None")) {
            faults.forbidden(&at, "may only be specified when mountPropagation is None or not specified");
        }
    }
}

fn bind_options(at: &At<'_>, mount: &VolumeMount, volume: Option<&Volume>, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, option) in items(&mount.bind_mount_options) {
        let item = at.index(index);
        faults.if_set_one_of(&item, Some(option), &["nodev", "noexec", "nosuid"]);
        if !seen.insert(option) {
            faults.duplicate(&item, option);
        }
    }
    if !seen.is_empty() && volume.is_some_and(|volume| volume.image.is_some()) {
        faults.invalid(at, &seen, "bindMountOptions may not be used with image volumes");
    }
}

/// The types of a hostPath that can be a container's device. They are checked when the container starts: the first by
/// kubelet's check of types, the second by the device itself.
const DEVICE_TYPES: [&str; 2] = ["BlockDevice", ""];

/// Validates `volumeDevices`. Unlike in Kubernetes, not only a claim but also a hostPath can be the device, because
/// there are no claims without an apiserver.
pub(super) fn devices(pod: &Pod<'_>, at: &At<'_>, container: &Container, faults: &mut Faults) {
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    let mounts: BTreeSet<&str> = items(&container.volume_mounts).map(|(_, mount)| mount.name.as_str()).collect();
    let mount_paths: BTreeSet<&str> =
        items(&container.volume_mounts).map(|(_, mount)| mount.mount_path.as_str()).collect();
    for (index, device) in items(&container.volume_devices) {
        let item = at.index(index);
        let (name, path) = (device.name.as_str(), device.device_path.as_str());
        let (at_name, at_path) = (item.field("name"), item.field("devicePath"));
        volume_of(pod, &at_name, name, faults);
        let volume = pod.volumes.get(name);
        if volume.is_some_and(|volume| !may_be_device(volume)) {
            let detail = "can only use volume source type of PersistentVolumeClaim, Ephemeral or hostPath of type \
                BlockDevice for block mode";
            faults.invalid(&at_name, name, detail);
        }
        if !name.is_empty() && !names.insert(name) {
            faults.invalid(&at_name, name, "must be unique");
        }
        faults.not_empty(&at_path, path);
        if has_backsteps(path) {
            faults.invalid(&at_path, path, "can not contain backsteps ('..')");
        } else if !paths.insert(path) {
            faults.invalid(&at_path, path, "must be unique");
        }
        if mounts.contains(name) {
            faults.invalid(&at_name, name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(path) {
            faults.invalid(&at_path, path, "must not already exist as a path in volumeMounts");
        }
    }
}

fn may_be_device(volume: &Volume) -> bool {
    let is_device = |path: &HostPathVolumeSource| DEVICE_TYPES.contains(&text(&path.type_));
    volume.persistent_volume_claim.is_some()
        || volume.ephemeral.is_some()
        || volume.host_path.as_ref().is_some_and(is_device)
}
