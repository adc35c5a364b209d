//! A disk of an iSCSI target: validated, with kubelet's names.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use limpet_model::object::iscsi::IscsiVolume;
use serde::{Deserialize, Serialize};

/// The port of a portal that names none.
const DEFAULT_PORT: u16 = 3260;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Disk {
    /// The portals of its target, each once; never empty.
    pub portals: Vec<SocketAddr>,
    /// The target's name.
    pub iqn: String,
    /// The disk's number at the target.
    pub lun: u32,
    /// The initiator's interface that its sessions use.
    pub interface: String,
    /// Set if the interface belongs to this volume only.
    #[serde(rename = "own")]
    pub own_interface: Option<OwnInterface>,
}

/// An interface for one volume, with its own initiator name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwnInterface {
    /// The interface whose settings it copies.
    pub model: String,
    /// The initiator's name.
    pub initiator: String,
}

impl Disk {
    /// The volume's disk.
    ///
    /// # Errors
    ///
    /// A field of the volume is unsafe as an argument or path: its name, and the remedy.
    pub(super) fn new(volume: &IscsiVolume) -> Result<Self, String> {
        let mut portals = Vec::new();
        for text in &volume.portals {
            let portal = portal(text).ok_or_else(|| {
                format!("iscsi portal {text:?} is no IP address; write one, with or without a port: 192.0.2.1:3260")
            })?;
            if !portals.contains(&portal) {
                portals.push(portal);
            }
        }
        let first = portals.first().ok_or("iscsi.targetPortal is missing")?;
        let lun = u32::try_from(volume.lun).map_err(|_| format!("iscsi.lun {} is negative", volume.lun))?;
        let names = [("iqn", &volume.iqn), ("iscsiInterface", &volume.interface)];
        let initiator = volume.initiator.iter().map(|name| ("initiatorName", name));
        for (field, name) in names.into_iter().chain(initiator) {
            if !is_name(name) {
                return Err(format!("iscsi.{field} {name:?} is no name; use letters, digits, '.', ':', '-' and '_'"));
            }
        }
        if !is_file_system(&volume.fs_type) {
            return Err(format!(
                "iscsi.fsType {:?} is no file system of a disk; use one such as ext4 or xfs: ASCII letters, digits, '-' and \
                 '_', and none of FUSE, whose mount runs the program that it names",
                volume.fs_type
            ));
        }
        let interface = match volume.initiator {
            Some(_) => format!("{first}:{}", volume.name),
            None => volume.interface.clone(),
        };
        let own_interface =
            |initiator: &String| OwnInterface { model: volume.interface.clone(), initiator: initiator.clone() };
        let own_interface = volume.initiator.as_ref().map(own_interface);
        Ok(Self { iqn: volume.iqn.clone(), lun, interface, own_interface, portals })
    }

    /// The disk's name in messages, and of its directory.
    pub(super) fn name(&self) -> String {
        let first = self.portals.first().map(ToString::to_string).unwrap_or_default();
        format!("{first}-{}-lun-{}", self.iqn, self.lun)
    }

    /// The disk's directory below that of all disks.
    pub(super) fn directory(&self, disks: &Path) -> PathBuf {
        disks.join(format!("iface-{}", self.interface)).join(self.name())
    }

    /// Whether both use the same session at `portal`.
    pub(super) fn shares_session(&self, other: &Self, portal: SocketAddr) -> bool {
        self.iqn == other.iqn && self.interface == other.interface && other.portals.contains(&portal)
    }
}

/// `192.0.2.1`, `192.0.2.1:3260`, `[2001:db8::1]:3260`.
fn portal(text: &str) -> Option<SocketAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let with_port = || bare.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, DEFAULT_PORT));
    text.parse().ok().or_else(with_port)
}

/// Whether it is a single word, and neither a tool's option nor a path that leads out of a directory.
fn is_name(text: &str) -> bool {
    let known = |c: char| c.is_alphanumeric() || matches!(c, '.' | ':' | '-' | '_');
    !text.is_empty() && !text.starts_with(['-', '.']) && text.chars().all(known)
}

/// Whether `mount -t` takes it only as a file system: for `fuse.sh` it would run `sh` as root.
fn is_file_system(text: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !text.is_empty() && !text.starts_with('-') && !text.starts_with("fuse") && text.chars().all(known)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The volume `data` with these fields beside a target's.
    pub(in super::super) fn volume(fields: Value) -> IscsiVolume {
        let mut source = json!({"targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.test:a", "lun": 0});
        source.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        IscsiVolume::inline("data", &serde_json::from_value(source).unwrap())
    }

    #[test]
    fn a_disk_has_kubelets_names() {
        let disk =
            Disk::new(&volume(json!({"portals": ["192.0.2.1:3260", "[2001:db8::1]:3261", "2001:db8::2"]}))).unwrap();
        let portals: Vec<String> = disk.portals.iter().map(ToString::to_string).collect();
        assert_eq!(portals, ["192.0.2.1:3260", "[2001:db8::1]:3261", "[2001:db8::2]:3260"]);
        let directory = disk.directory(Path::new("/d"));
        assert_eq!(directory, Path::new("/d/iface-default/192.0.2.1:3260-iqn.2001-04.test:a-lun-0"));
        let disk = Disk::new(&volume(json!({"initiatorName": "iqn.2001-04.test:node"}))).unwrap();
        assert_eq!(disk.interface, "192.0.2.1:3260:data");
        assert_eq!(disk.own_interface.unwrap().model, "default");
    }

    #[test]
    fn what_is_no_name_reaches_no_tool() {
        for (fields, field) in [
            (json!({"targetPortal": "nas"}), "portal \"nas\""),
            (json!({"portals": ["-v"]}), "portal \"-v\""),
            (json!({"iqn": "iqn/../../etc"}), "iscsi.iqn"),
            (json!({"iscsiInterface": "../x"}), "iscsi.iscsiInterface"),
            (json!({"iscsiInterface": "a b"}), "iscsi.iscsiInterface"),
            (json!({"initiatorName": "-o"}), "iscsi.initiatorName"),
            (json!({"fsType": "../../bin/sh"}), "iscsi.fsType"),
            (json!({"fsType": "fuse.bash"}), "iscsi.fsType"),
            (json!({"fsType": "fuse"}), "iscsi.fsType"),
            (json!({"fsType": "ext4.sh"}), "iscsi.fsType"),
            (json!({"fsType": "ext4,xfs"}), "iscsi.fsType"),
            (json!({"fsType": "-ext4"}), "iscsi.fsType"),
            (json!({"lun": -1}), "iscsi.lun"),
        ] {
            let error = Disk::new(&volume(fields)).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
    }
}
