//! Mounts tmpfs and hugetlbfs file systems for volumes in memory.

use std::ffi::CString;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::MountFlags;

use k8s_openapi::api::core::v1::PodSpec;

use super::VolumeError;
use crate::mount_table;
use limpet_model::pod::compute_resources::pod_limits;
use limpet_model::pod::downward::NodeLimits;

/// The default permissions of a tmpfs.
pub(super) const MODE: u32 = 0o1777;

/// The size of a volume in memory, in bytes (kubelet's `calculateEmptyDirMemorySize`): the limit of the pod, or of
/// the node's pods together, and at most the volume's own.
pub(super) fn size(limit: Option<u64>, spec: &PodSpec, node: NodeLimits) -> u64 {
    let of_pod = pod_limits(spec).memory;
    let sizes = [of_pod, Some(node.memory.units())].into_iter().flatten();
    let sizes = sizes.filter_map(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
    // A tmpfs of size 0 would have no limit.
    sizes.chain(limit).min().unwrap_or(0)
}

/// Mounts a tmpfs of `size` bytes on `path`, which is created, unless something is mounted there. It is not swapped
/// out if the kernel supports that (Linux 6.4).
pub(super) fn mount(path: &Path, size: u64, mode: u32, group: Option<u32>) -> Result<(), VolumeError> {
    mount_with(path, &options(size, mode, group), MountFlags::empty())
}

/// The same for secrets.
pub(super) fn mount_private(path: &Path, size: u64, mode: u32, group: Option<u32>) -> Result<(), VolumeError> {
    mount_with(path, &options(size, mode, group), MountFlags::NODEV | MountFlags::NOSUID)
}

fn options(size: u64, mode: u32, group: Option<u32>) -> String {
    let mode = if mode == MODE { String::new() } else { format!(",mode={mode:o}") };
    let group = group.map(|group| format!(",gid={group}")).unwrap_or_default();
    format!("size={size}{mode}{group}")
}

fn mount_with(path: &Path, data: &str, flags: MountFlags) -> Result<(), VolumeError> {
    if prepare(path)? {
        return Ok(());
    }
    let mounted = match try_mount(path, &format!("{data},noswap"), flags) {
        Err(Errno::INVAL) => try_mount(path, data, flags),
        other => other,
    };
    mounted.map_err(|errno| VolumeError::io("mount a tmpfs on", path)(errno.into()))
}

/// Mounts a hugetlbfs on `path`, which is created. Returns false if something is already mounted there.
pub(super) fn mount_huge_pages(path: &Path, data: &str) -> Result<bool, VolumeError> {
    if prepare(path)? {
        return Ok(false);
    }
    let mounted = try_mount_of("hugetlbfs", path, data, MountFlags::empty());
    mounted.map(|()| true).map_err(|errno| VolumeError::io("mount a hugetlbfs on", path)(errno.into()))
}

/// Creates the mount point. Returns true if something is already mounted there.
fn prepare(path: &Path) -> Result<bool, VolumeError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(VolumeError::io("make directory", path))?;
    mount_table::is_mount_point(path).map_err(VolumeError::io("stat", path))
}

fn try_mount(path: &Path, data: &str, flags: MountFlags) -> Result<(), Errno> {
    try_mount_of("tmpfs", path, data, flags)
}

fn try_mount_of(file_system: &str, path: &Path, data: &str, flags: MountFlags) -> Result<(), Errno> {
    // The options consist of digits, letters and punctuation, so they contain no zero byte.
    let data = CString::new(data).unwrap_or_default();
    rustix::mount::mount(file_system, path, file_system, flags, data.as_c_str())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_model::pod::quantity::Amount;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_in_memory_is_not_larger_than_what_its_pod_may_use() {
        let node = NodeLimits {
            cpu: Amount::from_units(1),
            memory: Amount::from_units(1 << 30),
            ephemeral_storage: Amount::from_units(1 << 33),
        };
        let limited = json!({"name": "a", "resources": {"limits": {"memory": "64Mi"}}});
        let cases = [
            (json!([limited]), None, 64 << 20),
            (json!([limited]), Some(1 << 20), 1 << 20),
            (json!([limited]), Some(1 << 40), 64 << 20),
            (json!([limited, {"name": "b"}]), None, 1 << 30),
        ];
        for (containers, limit, wanted) in cases {
            let spec = serde_json::from_value(json!({ "containers": containers })).unwrap();
            assert_eq!(size(limit, &spec, node), wanted, "{containers} {limit:?}");
        }
    }
}
