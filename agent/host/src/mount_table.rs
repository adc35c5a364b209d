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
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The fifth field of each line is the mount point, with `\ooo` for white space and backslashes.
fn parse(mountinfo: &[u8]) -> Vec<PathBuf> {
    let mount_point = |line: &[u8]| line.split(|&byte| byte == b' ').nth(4).map(unescape);
    mountinfo.split(|&byte| byte == b'\n').filter_map(mount_point).collect()
}

/// A path as the kernel writes it there.
pub fn unescape(field: &[u8]) -> PathBuf {
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
            23 27 0:22 / /a\\040b\\134c rw shared:1 - sysfs sysfs rw\n\n";
        assert_eq!(parse(text), [PathBuf::from("/proc"), PathBuf::from("/a b\\c")]);
    }

    #[test]
    fn proc_is_a_mount_point() {
        assert!(is_mount_point(Path::new("/proc")).unwrap());
        assert!(!is_mount_point(tempfile::tempdir().unwrap().path()).unwrap());
    }
}
