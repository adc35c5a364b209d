//! The kernel's iSCSI sessions and their disks, from sysfs, which also has sessions of other programs.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::disk::Disk;

/// A session with a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Session {
    pub number: u32,
    /// The number of its SCSI host.
    pub host: u32,
    /// The target's name.
    pub target: String,
    /// The initiator's interface.
    pub interface: String,
    /// Its portals: the requested ones, and those to which the target has redirected.
    pub portals: Vec<SocketAddr>,
    /// Its directory in sysfs.
    directory: PathBuf,
}

/// The session of the disk at `portal`.
pub(super) fn find(sys: &Path, disk: &Disk, portal: SocketAddr) -> io::Result<Option<Session>> {
    let is_it = |session: &Session| {
        session.target == disk.iqn && session.interface == disk.interface && session.portals.contains(&portal)
    };
    Ok(list(sys)?.into_iter().find(is_it))
}

/// Every session that is not being torn down.
fn list(sys: &Path) -> io::Result<Vec<Session>> {
    let names = names(&sys.join("class/iscsi_session"))?;
    Ok(names.iter().filter_map(|name| session(sys, name)).collect())
}

fn session(sys: &Path, name: &str) -> Option<Session> {
    let number = name.strip_prefix("session")?.parse().ok()?;
    let class = sys.join("class/iscsi_session").join(name);
    let directory = class.join("device").canonicalize().ok()?;
    let host = directory.parent()?.file_name()?.to_str()?.strip_prefix("host")?.parse().ok()?;
    let target = text(&class, "targetname")?;
    let interface = text(&class, "ifacename").filter(|name| name != "<NULL>").unwrap_or_else(|| "default".to_owned());
    let mut portals = Vec::new();
    for name in names(&directory).ok()?.iter().filter(|name| name.starts_with("connection")) {
        let connection = directory.join(name).join("iscsi_connection").join(name);
        let portal = |address: &str, port: &str| {
            let address: IpAddr = text(&connection, address)?.parse().ok()?;
            Some(SocketAddr::new(address, text(&connection, port)?.parse().ok()?))
        };
        portals.extend(portal("persistent_address", "persistent_port"));
        portals.extend(portal("address", "port"));
    }
    Some(Session { number, host, target, interface, portals, directory })
}

impl Session {
    /// The kernel's name of its disk with this LUN: `sda`.
    pub(super) fn disk(&self, lun: u32) -> Option<String> {
        self.disks().into_iter().find(|(number, _)| *number == lun).map(|(_, name)| name)
    }

    /// Its disks: LUNs and the kernel's names.
    pub(super) fn disks(&self) -> Vec<(u32, String)> {
        let list = |directory: &Path| names(directory).unwrap_or_default();
        let mut disks = Vec::new();
        for target in list(&self.directory).iter().filter(|name| name.starts_with("target")) {
            let target = self.directory.join(target);
            for unit in list(&target) {
                let lun = unit.rsplit_once(':').and_then(|(_, lun)| lun.parse().ok());
                let name = list(&target.join(&unit).join("block")).into_iter().next();
                disks.extend(lun.zip(name));
            }
        }
        disks
    }

    /// Has the kernel scan for the disk with this LUN only.
    pub(super) fn scan(&self, sys: &Path, lun: u32) -> io::Result<()> {
        fs::write(sys.join(format!("class/scsi_host/host{}/scan", self.host)), format!("0 0 {lun}"))
    }
}

/// The multipath device that contains `disk`: `dm-0`.
pub(super) fn multipath(sys: &Path, disk: &str) -> Option<String> {
    let holders = names(&sys.join("block").join(disk).join("holders")).ok()?;
    let is_multipath = |name: &&String| {
        text(&sys.join("block").join(name.as_str()).join("dm"), "uuid").is_some_and(|uuid| uuid.starts_with("mpath-"))
    };
    holders.iter().find(is_multipath).cloned()
}

/// Deletes a disk from the kernel, which writes its cache back first.
pub(super) fn delete(sys: &Path, disk: &str) -> io::Result<()> {
    match fs::write(sys.join("block").join(disk).join("device/delete"), "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    }
}

/// The names in a directory; empty if it does not exist.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

fn text(directory: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(directory.join(name)).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::super::disk::tests::volume;
    use super::*;

    /// Adds a session with disks to a simulated sysfs.
    pub(in super::super) fn put(sys: &Path, number: u32, interface: &str, portal: SocketAddr, disks: &[(u32, &str)]) {
        let host = number + 2;
        let (class, name) = (sys.join("class/iscsi_session"), format!("session{number}"));
        let directory = sys.join(format!("devices/platform/host{host}/{name}"));
        let connection = directory.join(format!("connection{number}:0/iscsi_connection/connection{number}:0"));
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(class.join(&name).join("targetname"), "iqn.2001-04.test:a\n");
        write(class.join(&name).join("ifacename"), &format!("{interface}\n"));
        for prefix in ["", "persistent_"] {
            write(connection.join(format!("{prefix}address")), &format!("{}\n", portal.ip()));
            write(connection.join(format!("{prefix}port")), &format!("{}\n", portal.port()));
        }
        symlink(&directory, class.join(&name).join("device")).unwrap();
        write(sys.join(format!("class/scsi_host/host{host}/scan")), "");
        for (lun, disk) in disks {
            let unit = directory.join(format!("target{host}:0:0/{host}:0:0:{lun}"));
            fs::create_dir_all(unit.join("block").join(disk)).unwrap();
            fs::write(unit.join("delete"), "").unwrap();
            fs::create_dir_all(sys.join("block").join(disk)).unwrap();
            symlink(&unit, sys.join("block").join(disk).join("device")).unwrap();
        }
    }

    #[test]
    fn a_session_is_found_by_target_interface_and_portal() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path();
        let disk = Disk::new(&volume(json!({"portals": ["[2001:db8::1]:3261"]}))).unwrap();
        assert_eq!(find(sys, &disk, disk.portals[0]).unwrap(), None);
        put(sys, 1, "default", disk.portals[0], &[(0, "sda"), (2, "sdc")]);
        put(sys, 2, "san", disk.portals[1], &[]);
        let session = find(sys, &disk, disk.portals[0]).unwrap().unwrap();
        assert_eq!((session.number, session.host), (1, 3));
        assert_eq!(
            [session.disk(0), session.disk(1), session.disk(2)],
            [Some("sda".to_owned()), None, Some("sdc".to_owned())]
        );
        assert_eq!(find(sys, &disk, disk.portals[1]).unwrap(), None);
        let other = Disk { interface: "san".to_owned(), ..disk.clone() };
        assert_eq!(find(sys, &other, disk.portals[1]).unwrap().unwrap().number, 2);
        assert_eq!(find(sys, &Disk { iqn: "iqn.b".to_owned(), ..disk.clone() }, disk.portals[0]).unwrap(), None);

        session.scan(sys, 2).unwrap();
        assert_eq!(fs::read_to_string(sys.join("class/scsi_host/host3/scan")).unwrap(), "0 0 2");
        delete(sys, "sda").unwrap();
        delete(sys, "sdx").unwrap();
        assert_eq!(fs::read_to_string(sys.join("block/sda/device/delete")).unwrap(), "1");
    }

    #[test]
    fn a_multipath_device_holds_its_paths() {
        let dir = tempfile::tempdir().unwrap();
        let holder = |disk: &str, holder: &str, uuid: &str| {
            fs::create_dir_all(dir.path().join("block").join(disk).join("holders").join(holder)).unwrap();
            let dm = dir.path().join("block").join(holder).join("dm");
            fs::create_dir_all(&dm).unwrap();
            fs::write(dm.join("uuid"), uuid).unwrap();
        };
        holder("sda", "dm-0", "LVM-x\n");
        holder("sdb", "dm-1", "mpath-3600\n");
        assert_eq!(multipath(dir.path(), "sda"), None);
        assert_eq!(multipath(dir.path(), "sdb"), Some("dm-1".to_owned()));
        assert_eq!(multipath(dir.path(), "sdc"), None);
    }
}
