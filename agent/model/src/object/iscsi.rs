//! iSCSI disks as pods use them, defined by the pod itself or by a PersistentVolume.

use k8s_openapi::api::core::v1::{ISCSIPersistentVolumeSource, ISCSIVolumeSource, PersistentVolumeSpec};
use serde::{Deserialize, Serialize};

use crate::object::csi::BLOCK;

/// The file system of a disk whose volume specifies none.
const FILE_SYSTEM: &str = "ext4";
/// The interface of a volume that specifies none: TCP with the node's own initiator name.
const INTERFACE: &str = "default";

/// A disk of an iSCSI target, as its volume describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IscsiVolume {
    /// The PersistentVolume's name, or the volume's own.
    pub name: String,
    /// `targetPortal`, then `portals`, as written.
    pub portals: Vec<String>,
    pub iqn: String,
    /// The disk's number at the target.
    pub lun: i32,
    pub interface: String,
    /// The initiator's name, if it is not the node's own.
    pub initiator: Option<String>,
    /// The type of its file system.
    pub fs_type: String,
    /// Its `mountOptions`.
    pub options: Vec<String>,
    pub read_only: bool,
    /// Whether discovery requires CHAP.
    pub chap_discovery: bool,
    /// Whether the session requires CHAP.
    pub chap_session: bool,
    /// Whether containers get it as a block device.
    pub block: bool,
}

impl IscsiVolume {
    /// The disk of the volume `name` that the pod itself defines.
    pub fn inline(name: &str, source: &ISCSIVolumeSource) -> Self {
        Self {
            name: name.to_owned(),
            portals: portals(&source.target_portal, source.portals.as_deref()),
            iqn: source.iqn.clone(),
            lun: source.lun,
            interface: or(source.iscsi_interface.as_deref(), INTERFACE),
            initiator: source.initiator_name.clone().filter(|name| !name.is_empty()),
            fs_type: or(source.fs_type.as_deref(), FILE_SYSTEM),
            options: Vec::new(),
            read_only: source.read_only == Some(true),
            chap_discovery: source.chap_auth_discovery == Some(true),
            chap_session: source.chap_auth_session == Some(true),
            block: false,
        }
    }

    /// The disk of the PersistentVolume `name`.
    pub fn persistent(name: &str, source: &ISCSIPersistentVolumeSource, spec: &PersistentVolumeSpec) -> Self {
        Self {
            name: name.to_owned(),
            portals: portals(&source.target_portal, source.portals.as_deref()),
            iqn: source.iqn.clone(),
            lun: source.lun,
            interface: or(source.iscsi_interface.as_deref(), INTERFACE),
            initiator: source.initiator_name.clone().filter(|name| !name.is_empty()),
            fs_type: or(source.fs_type.as_deref(), FILE_SYSTEM),
            options: spec.mount_options.clone().unwrap_or_default(),
            read_only: source.read_only == Some(true),
            chap_discovery: source.chap_auth_discovery == Some(true),
            chap_session: source.chap_auth_session == Some(true),
            block: spec.volume_mode.as_deref() == Some(BLOCK),
        }
    }

    /// Its name in the Node's status (`volumesInUse`, `volumesAttached`): kubelet's, with the portal as written.
    pub fn unique_name(&self) -> String {
        let portal = self.portals.first().map(String::as_str).unwrap_or_default();
        format!("kubernetes.io/iscsi/{portal}:{}:{}", self.iqn, self.lun)
    }

    /// Whether it needs the values of a Secret.
    pub fn has_chap(&self) -> bool {
        self.chap_discovery || self.chap_session
    }
}

fn portals(first: &str, further: Option<&[String]>) -> Vec<String> {
    let further = further.unwrap_or_default().iter().map(String::as_str);
    std::iter::once(first).chain(further).map(str::to_owned).collect()
}

fn or(text: Option<&str>, default: &str) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or(default).to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_kinds_of_volume_are_one_disk() {
        let source = json!({"targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.test:a", "lun": 3});
        let inline = IscsiVolume::inline("data", &serde_json::from_value(source.clone()).unwrap());
        assert_eq!((inline.fs_type.as_str(), inline.interface.as_str(), inline.lun), ("ext4", "default", 3));
        assert_eq!((inline.portals.clone(), inline.initiator.clone()), (vec!["192.0.2.1".to_owned()], None));
        assert_eq!(inline.unique_name(), "kubernetes.io/iscsi/192.0.2.1:iqn.2001-04.test:a:3");
        assert!(!inline.has_chap() && !inline.read_only && !inline.block);

        let spec = serde_json::from_value(json!({"iscsi": source})).unwrap();
        let persistent =
            |spec: &PersistentVolumeSpec| IscsiVolume::persistent("data", spec.iscsi.as_ref().unwrap(), spec);
        assert_eq!(persistent(&spec), inline);
        let spec = json!({"volumeMode": "Block", "mountOptions": ["noatime"], "iscsi": {"targetPortal": "192.0.2.1",
            "portals": ["192.0.2.2:3261"], "iqn": "iqn.2001-04.test:a", "lun": 0, "fsType": "xfs", "readOnly": true,
            "iscsiInterface": "san", "initiatorName": "iqn.2001-04.test:node", "chapAuthSession": true}});
        let full = persistent(&serde_json::from_value(spec).unwrap());
        assert_eq!(full.portals, ["192.0.2.1", "192.0.2.2:3261"]);
        assert_eq!((full.options, full.fs_type.as_str()), (vec!["noatime".to_owned()], "xfs"));
        assert_eq!(full.initiator.as_deref(), Some("iqn.2001-04.test:node"));
        assert!(full.chap_session && !full.chap_discovery && full.block && full.read_only);
    }
}
