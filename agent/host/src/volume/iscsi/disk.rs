//! A disk of an iSCSI target: checked, and with kubelet's names.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use limpet_model::object::iscsi::IscsiVolume;
use serde::{Deserialize, Serialize};

/// The port of a portal that names none.
const DEFAULT_PORT: u16 = 3260;

/// What identifies a disk on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Disk {
    /// Where its target is reached, each once; never empty.
    pub portals: Vec<SocketAddr>,
    /// The target's name.
    pub iqn: String,
    /// The disk's number at the target.
    pub lun: u32,
    /// The initiator's interface that its sessions use.
    pub interface: String,
    /// Where that interface is the volume's own.
    pub own: Option<OwnInterface>,
}

/// An interface for one volume, with its own initiator name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwnInterface {
    /// The interface whose settings it has.
    pub model: String,
    /// The initiator's name.
    pub initiator: String,
}

impl Disk {
    /// The volume's disk.
    ///
    /// # Errors
    /// A field of the volume cannot be what a tool or a path is given: its name, and the remedy.
    pub(super) fn of(volume: &IscsiVolume) -> Result<Self, String> {
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
        let own = |initiator: &String| OwnInterface { model: volume.interface.clone(), initiator: initiator.clone() };
        let own = volume.initiator.as_ref().map(own);
        Ok(Self { iqn: volume.iqn.clone(), lun, interface, own, portals })
    }

    /// The disk in a message, and the name of its directory.
    pub(super) fn name(&self) -> String {
        let first = self.portals.first().map(ToString::to_string).unwrap_or_default();
        format!("{first}-{}-lun-{}", self.iqn, self.lun)
    }

    /// The directory of the disk below that of all disks.
    pub(super) fn directory(&self, disks: &Path) -> PathBuf {
        disks.join(format!("iface-{}", self.interface)).join(self.name())
    }

    /// Whether both have the same session at `portal`.
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

/// Whether it is one word that is neither an option of a tool nor a way out of a directory.
fn is_name(text: &str) -> bool {
    let known = |c: char| c.is_alphanumeric() || matches!(c, '.' | ':' | '-' | '_');
    !text.is_empty() && !text.starts_with(['-', '.']) && text.chars().all(known)
}

/// Whether `mount -t` takes it for a file system alone: of `fuse.sh` it runs `sh`, as root.
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
            Disk::of(&volume(json!({"portals": ["192.0.2.1:3260", "[2001:db8::1]:3261", "2001:db8::2"]}))).unwrap();
        let portals: Vec<String> = disk.portals.iter().map(ToString::to_string).collect();
        assert_eq!(portals, ["192.0.2.1:3260", "[2001:db8::1]:3261", "[2001:db8::2]:3260"]);
        let directory = disk.directory(Path::new("/d"));
        assert_eq!(directory, Path::new("/d/iface-default/192.0.2.1:3260-iqn.2001-04.test:a-lun-0"));
        let own = Disk::of(&volume(json!({"initiatorName": "iqn.2001-04.test:node"}))).unwrap();
        assert_eq!(own.interface, "192.0.2.1:3260:data");
        assert_eq!(own.own.unwrap().model, "default");
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
            let error = Disk::of(&volume(fields)).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
    }
}
