//! The kinds of volumes that the node supports.
//!
//! Each part of the agent that handles volumes has a `match` without a wildcard, so that a new kind does not compile
//! until every part knows it.

use k8s_openapi::api::core::v1::{
    CSIVolumeSource, ConfigMapVolumeSource, DownwardAPIVolumeSource, EmptyDirVolumeSource, EphemeralVolumeSource,
    FlexVolumeSource, HostPathVolumeSource, ISCSIVolumeSource, ImageVolumeSource, NFSVolumeSource,
    PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, SecretVolumeSource, Volume,
};

/// A volume's kind, with what its manifest says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum VolumeKind<'a> {
    EmptyDir(&'a EmptyDirVolumeSource),
    HostPath(&'a HostPathVolumeSource),
    Nfs(&'a NFSVolumeSource),
    Iscsi(&'a ISCSIVolumeSource),
    Csi(&'a CSIVolumeSource),
    FlexVolume(&'a FlexVolumeSource),
    Image(&'a ImageVolumeSource),
    ConfigMap(&'a ConfigMapVolumeSource),
    Secret(&'a SecretVolumeSource),
    Projected(&'a ProjectedVolumeSource),
    DownwardApi(&'a DownwardAPIVolumeSource),
    PersistentVolumeClaim(&'a PersistentVolumeClaimVolumeSource),
    Ephemeral(&'a EphemeralVolumeSource),
}

impl<'a> VolumeKind<'a> {
    /// The keys of a manifest that name a kind.
    pub const KEYS: [&'static str; 13] = [
        "emptyDir",
        "hostPath",
        "nfs",
        "iscsi",
        "csi",
        "flexVolume",
        "image",
        "configMap",
        "secret",
        "projected",
        "downwardAPI",
        "persistentVolumeClaim",
        "ephemeral",
    ];

    /// The kind of a volume; `None` if that is not supported.
    pub fn find(volume: &'a Volume) -> Option<Self> {
        // Validation has made sure that there is only one.
        let empty_dir = volume.empty_dir.as_ref().map(Self::EmptyDir);
        empty_dir
            .or(volume.host_path.as_ref().map(Self::HostPath))
            .or(volume.nfs.as_ref().map(Self::Nfs))
            .or(volume.iscsi.as_ref().map(Self::Iscsi))
            .or(volume.csi.as_ref().map(Self::Csi))
            .or(volume.flex_volume.as_ref().map(Self::FlexVolume))
            .or(volume.image.as_ref().map(Self::Image))
            .or(volume.config_map.as_ref().map(Self::ConfigMap))
            .or(volume.secret.as_ref().map(Self::Secret))
            .or(volume.projected.as_ref().map(Self::Projected))
            .or(volume.downward_api.as_ref().map(Self::DownwardApi))
            .or(volume.persistent_volume_claim.as_ref().map(Self::PersistentVolumeClaim))
            .or(volume.ephemeral.as_ref().map(Self::Ephemeral))
    }

    /// The key that names it in a manifest.
    pub fn key(self) -> &'static str {
        match self {
            Self::EmptyDir(_) => "emptyDir",
            Self::HostPath(_) => "hostPath",
            Self::Nfs(_) => "nfs",
            Self::Iscsi(_) => "iscsi",
            Self::Csi(_) => "csi",
            Self::FlexVolume(_) => "flexVolume",
            Self::Image(_) => "image",
            Self::ConfigMap(_) => "configMap",
            Self::Secret(_) => "secret",
            Self::Projected(_) => "projected",
            Self::DownwardApi(_) => "downwardAPI",
            Self::PersistentVolumeClaim(_) => "persistentVolumeClaim",
            Self::Ephemeral(_) => "ephemeral",
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_key_names_its_kind() {
        let given = |key: &str| match key {
            "nfs" => json!({ "server": "nas", "path": "/srv" }),
            "iscsi" => json!({ "targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.test:a", "lun": 0 }),
            "hostPath" => json!({ "path": "/data" }),
            "csi" | "flexVolume" => json!({ "driver": "d" }),
            "configMap" => json!({ "name": "c" }),
            "persistentVolumeClaim" => json!({ "claimName": "c" }),
            _ => json!({}),
        };
        for key in VolumeKind::KEYS {
            let volume: Volume = serde_json::from_value(json!({ "name": "v", key: given(key) })).unwrap();
            assert_eq!(VolumeKind::find(&volume).map(VolumeKind::key), Some(key));
        }
        assert_eq!(VolumeKind::find(&Volume::default()), None);
    }
}
