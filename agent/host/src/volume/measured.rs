//! The volumes whose bytes and inodes kubelet counts, and how each is measured.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Volume;

use super::plugin_directory;
use limpet_model::pod::volume_kind::VolumeKind;

/// A volume to be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredVolume {
    /// Its name in the pod.
    pub name: String,
    /// Its directory on the node.
    pub path: PathBuf,
    /// Whether it is a separate file system with its own counters; otherwise its files are counted.
    pub own_file_system: bool,
    /// Whether it is on the node's disk and removed with the pod, so that kubelet counts it as the pod's ephemeral
    /// storage.
    pub ephemeral: bool,
}

/// The volume; `None` if its kind is shared, such as `hostPath` and `image`, or its driver measures it.
pub(super) fn measured(volume: &Volume, pod_dir: &Path) -> Option<MeasuredVolume> {
    let kind = VolumeKind::find(volume)?;
    let measured = |own_file_system, ephemeral| MeasuredVolume {
        name: volume.name.clone(),
        path: plugin_directory::volume(pod_dir, kind.plugin(), &volume.name),
        own_file_system,
        ephemeral,
    };
    match kind {
        VolumeKind::EmptyDir(source) => {
            let medium = source.medium.as_deref().unwrap_or_default();
            // A hugetlbfs does not report its usage.
            Some(measured(medium == "Memory", medium.is_empty()))
        }
        VolumeKind::Nfs(_) => Some(measured(true, false)),
        VolumeKind::Iscsi(_) => Some(measured(true, false)),
        VolumeKind::ConfigMap(_) => Some(measured(false, true)),
        VolumeKind::Secret(_) | VolumeKind::Projected(_) | VolumeKind::DownwardApi(_) => Some(measured(false, false)),
        VolumeKind::HostPath(_)
        | VolumeKind::Csi(_)
        | VolumeKind::FlexVolume(_)
        | VolumeKind::Image(_)
        | VolumeKind::PersistentVolumeClaim(_)
        | VolumeKind::Ephemeral(_) => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_are_counted_as_in_kubelet() {
        for (source, expected) in [
            (json!({ "emptyDir": {} }), Some(("kubernetes.io~empty-dir/v", false, true))),
            (json!({ "emptyDir": { "medium": "Memory" } }), Some(("kubernetes.io~empty-dir/v", true, false))),
            (json!({ "emptyDir": { "medium": "HugePages-2Mi" } }), Some(("kubernetes.io~empty-dir/v", false, false))),
            (json!({ "configMap": { "name": "c" } }), Some(("kubernetes.io~configmap/v", false, true))),
            (json!({ "secret": { "secretName": "s" } }), Some(("kubernetes.io~secret/v", false, false))),
            (json!({ "projected": { "sources": [] } }), Some(("kubernetes.io~projected/v", false, false))),
            (json!({ "downwardAPI": { "items": [] } }), Some(("kubernetes.io~downward-api/v", false, false))),
            (json!({ "nfs": { "server": "nas", "path": "/srv" } }), Some(("kubernetes.io~nfs/v", true, false))),
            (
                json!({ "iscsi": { "targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.test:a", "lun": 0 } }),
                Some(("kubernetes.io~iscsi/v", true, false)),
            ),
            (json!({ "csi": { "driver": "d" } }), None),
            (json!({ "hostPath": { "path": "/data" } }), None),
            (json!({ "image": { "reference": "web:1" } }), None),
        ] {
            let mut volume = source.clone();
            volume["name"] = json!("v");
            let volume: Volume = serde_json::from_value(volume).unwrap();
            let actual = measured(&volume, Path::new("/pod"));
            let expected = expected.map(|(path, own_file_system, ephemeral)| MeasuredVolume {
                name: "v".to_owned(),
                path: Path::new("/pod/volumes").join(path),
                own_file_system,
                ephemeral,
            });
            assert_eq!(actual, expected, "{source}");
        }
    }
}
