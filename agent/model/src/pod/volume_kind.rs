//! The kinds of volumes that the node supports, and the plugins that handle them.
//!
//! Each part of the agent that handles volumes has a `match` without a wildcard, so that a new kind does not compile
//! until every part knows it. A part that does not have the pod's manifest any more matches the plugin.

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

    /// The plugin that handles it. A claim's volume has a plugin of its own, too.
    pub fn plugin(self) -> VolumePlugin {
        match self {
            Self::EmptyDir(_) => VolumePlugin::EmptyDir,
            Self::HostPath(_) => VolumePlugin::HostPath,
            Self::Nfs(_) => VolumePlugin::Nfs,
            Self::Iscsi(_) => VolumePlugin::Iscsi,
            Self::Csi(_) => VolumePlugin::Csi,
            Self::FlexVolume(_) => VolumePlugin::FlexVolume,
            Self::Image(_) => VolumePlugin::Image,
            Self::ConfigMap(_) => VolumePlugin::ConfigMap,
            Self::Secret(_) => VolumePlugin::Secret,
            Self::Projected(_) => VolumePlugin::Projected,
            Self::DownwardApi(_) => VolumePlugin::DownwardApi,
            Self::PersistentVolumeClaim(_) | Self::Ephemeral(_) => VolumePlugin::Claim,
        }
    }

    /// Whether the agent writes its files, and writes them again when the objects that they come from change.
    pub fn is_written(self) -> bool {
        match self {
            Self::ConfigMap(_) | Self::Secret(_) | Self::Projected(_) | Self::DownwardApi(_) => true,
            Self::EmptyDir(_) | Self::HostPath(_) | Self::Nfs(_) | Self::Iscsi(_) | Self::Csi(_) => false,
            Self::FlexVolume(_) | Self::Image(_) | Self::PersistentVolumeClaim(_) | Self::Ephemeral(_) => false,
        }
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

/// What handles volumes of one or several kinds, by kubelet's division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumePlugin {
    EmptyDir,
    HostPath,
    Nfs,
    Iscsi,
    Csi,
    FlexVolume,
    Image,
    ConfigMap,
    Secret,
    Projected,
    DownwardApi,
    Claim,
}

impl VolumePlugin {
    /// Every plugin, for what is done or shown per plugin.
    pub const ALL: [Self; 12] = [
        Self::EmptyDir,
        Self::HostPath,
        Self::Nfs,
        Self::Iscsi,
        Self::Csi,
        Self::FlexVolume,
        Self::Image,
        Self::ConfigMap,
        Self::Secret,
        Self::Projected,
        Self::DownwardApi,
        Self::Claim,
    ];

    /// kubelet's name without `kubernetes.io/`. For kubelet each driver of flexVolumes is a plugin with a name of its
    /// own, which its directory has, too.
    pub fn name(self) -> &'static str {
        match self {
            Self::EmptyDir => "empty-dir",
            Self::HostPath => "host-path",
            Self::Nfs => "nfs",
            Self::Iscsi => "iscsi",
            Self::Csi => "csi",
            Self::FlexVolume => "flexvolume",
            Self::Image => "image",
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
            Self::Projected => "projected",
            Self::DownwardApi => "downward-api",
            Self::Claim => "persistent-claim",
        }
    }

    /// The name of its directory among the volumes of a pod.
    pub fn directory(self) -> String {
        format!("kubernetes.io~{}", self.name())
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
            let kind = VolumeKind::find(&volume).unwrap();
            assert_eq!(kind.key(), key);
            assert!(VolumePlugin::ALL.contains(&kind.plugin()), "{key}: what walks all plugins finds its own");
        }
        assert_eq!(VolumeKind::find(&Volume::default()), None);
    }
}
