//! Volumes and their mounts.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};

use super::name::{self, is_dns_label};
use super::{one_of, unique};
use crate::pod::{Fault, quantity};

const HOST_PATH_TYPES: [&str; 8] =
    ["", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"];

/// Judges the volumes and returns their names.
pub(super) fn volumes(spec: &PodSpec, faults: &mut Vec<Fault>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = format!("spec.volumes[{index}]");
        if !is_dns_label(&volume.name) {
            let message = format!("{:?} is no volume name", volume.name);
            faults.push(Fault::error(format!("{path}.name"), message).with_remedy(name::LABEL_RULE));
        }
        unique(&format!("{path}.name"), &volume.name, &mut names, faults);
        source(&path, volume, faults);
    }
    names
}

fn source(path: &str, volume: &Volume, faults: &mut Vec<Fault>) {
    if volume.empty_dir.is_some() && volume.host_path.is_some() {
        faults.push(Fault::error(path, "has two sources; a volume has one"));
    }
    if let Some(host_path) = &volume.host_path {
        let at = format!("{path}.hostPath.path");
        if !host_path.path.starts_with('/') {
            faults.push(Fault::error(&at, format!("{:?} is not absolute", host_path.path)));
        }
        if leads_up(&host_path.path) {
            faults.push(Fault::error(&at, "must not contain .."));
        }
        one_of(&format!("{path}.hostPath.type"), host_path.type_.as_deref(), &HOST_PATH_TYPES, faults);
    }
    let limit = volume.empty_dir.as_ref().and_then(|empty_dir| empty_dir.size_limit.as_ref());
    if let Some(limit) = limit
        && let Err(error) = quantity::parse(&limit.0)
    {
        let message = format!("{:?}: {error}", limit.0);
        faults.push(Fault::error(format!("{path}.emptyDir.sizeLimit"), message).with_remedy("as in 64Mi or 1Gi"));
    }
}

/// Judges a container's mounts.
pub(super) fn mounts(path: &str, container: &Container, volumes: &BTreeSet<String>, faults: &mut Vec<Fault>) {
    let mut places = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = format!("{path}.volumeMounts[{index}]");
        if !volumes.contains(&mount.name) {
            let message = format!("the pod has no volume {:?}", mount.name);
            let remedy = match volumes.is_empty() {
                true => "add it to spec.volumes".to_owned(),
                false => format!("it has: {}", volumes.iter().map(String::as_str).collect::<Vec<_>>().join(", ")),
            };
            faults.push(Fault::error(format!("{path}.name"), message).with_remedy(remedy));
        }
        let at = format!("{path}.mountPath");
        match mount.mount_path.as_str() {
            "" => faults.push(Fault::error(&at, "required")),
            place if place.contains(':') => faults.push(Fault::error(&at, "must not contain :")),
            place if !place.starts_with('/') => faults.push(Fault::error(&at, format!("{place:?} is not absolute"))),
            place => unique(&at, place, &mut places, faults),
        }
        let sub_path = mount.sub_path.as_deref().unwrap_or_default();
        if sub_path.starts_with('/') || leads_up(sub_path) {
            faults.push(Fault::error(format!("{path}.subPath"), "must be relative and must not contain .."));
        }
        let propagations = ["None", "HostToContainer", "Bidirectional"];
        let propagation = mount.mount_propagation.as_deref();
        one_of(&format!("{path}.mountPropagation"), propagation, &propagations, faults);
        let security = container.security_context.as_ref();
        if propagation == Some("Bidirectional") && security.and_then(|security| security.privileged) != Some(true) {
            faults.push(Fault::error(
                format!("{path}.mountPropagation"),
                "Bidirectional is for privileged containers only",
            ));
        }
    }
}

fn leads_up(path: &str) -> bool {
    Path::new(path).components().any(|component| component == Component::ParentDir)
}
