//! Finds the path of a cgroup by its id, which is all that the kernel reports of a process that may have exited.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::libc;
use rustix::fs::{Mode, OFlags, fstatfs};

/// Where cgroup v2 is mounted, alone or beside the hierarchies of v1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// `CGROUP2_SUPER_MAGIC`, statfs(2).
const CGROUP2: u64 = 0x6367_7270;
/// `FILEID_KERNFS` of `linux/exportfs.h`: the handle is a node's id.
const FILEID_KERNFS: i32 = 0xfe;

/// `struct file_handle` with a node's id (open_by_handle_at(2)).
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    id: u64,
}

/// The path of the v2 cgroup with this id, from the root of the hierarchy. `None` if it was removed, or without
/// `CAP_DAC_READ_SEARCH`.
pub fn path_of(id: u64) -> Option<String> {
    MOUNTS.iter().find_map(|mount| path_below(Path::new(mount), id))
}

fn path_below(mount: &Path, id: u64) -> Option<String> {
    let root = rustix::fs::open(mount, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    if u64::try_from(fstatfs(&root).ok()?.f_type) != Ok(CGROUP2) {
        return None;
    }
    let mut handle = Handle { bytes: 8, kind: FILEID_KERNFS, id };
    // SAFETY: `handle` is a file_handle whose `handle_bytes` is the size of what follows its head, and it outlives
    // the call. The returned descriptor has no other owner.
    #[allow(unsafe_code)]
    let group = unsafe {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        let fd = libc::open_by_handle_at(root.as_raw_fd(), (&raw mut handle).cast(), flags);
        File::from(OwnedFd::from_raw_fd(Some(fd).filter(|fd| *fd >= 0)?))
    };
    let path = std::fs::read_link(format!("/proc/self/fd/{}", group.as_raw_fd())).ok()?;
    Some(format!("/{}", path.strip_prefix(mount).ok()?.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_cgroup_is_found_by_its_id_and_an_unknown_id_is_not() {
        let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned);
        let at = |cgroup: &String| {
            MOUNTS.iter().map(|mount| format!("{mount}{cgroup}")).find(|path| Path::new(path).is_dir())
        };
        let Some((cgroup, path)) = cgroup.as_ref().and_then(|cgroup| Some((cgroup, at(cgroup)?))) else {
            println!("skipped: no cgroup of version 2 here");
            return;
        };
        let id = Path::new(&path).metadata().unwrap().ino();
        match path_of(id) {
            Some(read) => assert_eq!(read, *cgroup),
            None => println!("skipped: open_by_handle_at is refused here"),
        }
        assert_eq!(path_of(u64::MAX), None);
    }
}
