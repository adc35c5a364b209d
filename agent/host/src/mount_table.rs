//! The mount table of the agent's mount namespace.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};

/// Whether something is mounted exactly on `path`, which exists and is not a symlink.
pub fn is_mount_point(path: &Path) -> io::Result<bool> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
    if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // Kernels before 5.8 do not report it.
    let real = path.canonicalize()?;
    Ok(mount_points()?.contains(&real))
}

/// Every mount point of the agent's mount namespace, in the order they were mounted.
pub fn mount_points() -> io::Result<Vec<PathBuf>> {
    Ok(mounts()?.into_iter().map(|mount| mount.point).collect())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The device's numbers, the same for every mount of one file system: `0:27`.
    pub device: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// What this mount alone is: `ro`, `nosuid`.
    pub flags: Vec<String>,
    /// How mounts below it propagate: `shared:1`, `master:2`; empty if they do not.
    pub propagation: Vec<String>,
    /// The file system's type: `ext4`, `fuse.sshfs`.
    pub file_system: String,
    /// The options of the file system; for a cgroup v1 hierarchy, also its controllers.
    pub options: Vec<String>,
}

/// Every mount of the agent's mount namespace, in the order they were mounted.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Parses `mountinfo`; unreadable lines are left out.
pub fn parse(mountinfo: &[u8]) -> Vec<Mount> {
    mountinfo.split(|&byte| byte == b'\n').filter_map(mount).collect()
}

/// proc_pid_mountinfo(5): five fields, options, optional fields, a dash, type, source, super options.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let (device, point) = (text(fields.nth(2)?), unescape(fields.nth(1)?));
    let list = |field: &[u8]| text(field).split(',').map(str::to_owned).collect();
    let flags = list(fields.next()?);
    let mut propagation = Vec::new();
    loop {
        match fields.next()? {
            b"-" => break,
            field => propagation.push(text(field)),
        }
    }
    let file_system = text(fields.next()?);
    let options = list(fields.nth(1).unwrap_or_default());
    Some(Mount { device, point, flags, propagation, file_system, options })
}

/// The mount that contains `path`, which has no symlinks. Of several mounts at one point, the last one counts.
pub fn holding<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    above.max_by_key(|mount| mount.point.components().count())
}

/// A path as the kernel writes it there, with `\ooo` for white space and backslashes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\').then(|| after.get(..3)).flatten();
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_parsed() {
        let text = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            23 27 0:22 / /a\\040b\\134c rw shared:1 master:2 - cgroup cgroup rw,cpu,cpuacct\n\
            nonsense\n1 2 3 - cgroup\n24 27 0:23 / /cut rw -\n\n";
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let proc = Mount {
            device: "0:21".to_owned(),
            point: "/proc".into(),
            flags: list(&["rw", "relatime"]),
            propagation: Vec::new(),
            file_system: "proc".to_owned(),
            options: list(&["rw"]),
        };
        let cgroup = Mount {
            device: "0:22".to_owned(),
            point: "/a b\\c".into(),
            flags: list(&["rw"]),
            propagation: list(&["shared:1", "master:2"]),
            file_system: "cgroup".to_owned(),
            options: list(&["rw", "cpu", "cpuacct"]),
        };
        assert_eq!(parse(text), [proc, cgroup]);
    }

    #[test]
    fn a_path_is_on_the_deepest_mount_above_it_and_there_on_the_last() {
        let text = b"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /a rw - ext4 b rw\n3 1 0:3 / /a/b rw - ext4 c rw\n4 3 0:4 / /a/b rw - ext4 d rw\n";
        let mounts = parse(text);
        let device = |path: &str| holding(&mounts, Path::new(path)).map(|mount| mount.device.as_str());
        let devices = ["/x", "/a", "/ab", "/a/b/c", "/a/c"].map(device);
        assert_eq!(devices, [Some("0:1"), Some("0:2"), Some("0:1"), Some("0:4"), Some("0:2")]);
    }

    #[test]
    fn proc_is_a_mount_point() {
        assert!(is_mount_point(Path::new("/proc")).unwrap());
        assert!(!is_mount_point(tempfile::tempdir().unwrap().path()).unwrap());
    }
}
