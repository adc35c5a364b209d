//! emptyDir: a directory, or a tmpfs, that lives as long as its pod.
//!
//! As in kubelet, it has mode 0777, a tmpfs 01777, unless `mode` is set. With `fsGroup` the directory belongs to that
//! group, which may read and write, and files created in it inherit the group by the set-group-id bit. Only the
//! directory itself is changed, when it is created and empty; an existing one is not touched, so a container's
//! changes to it persist. `sizeLimit` limits a tmpfs and a hugetlbfs; on disk, a pod that exceeds it is ended after
//! its usage is measured.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, PodSpec};

use super::{VolumeError, files, plugin_directory, tmpfs};
use crate::project_quota;
use limpet_model::pod::downward::NodeLimits;
use limpet_model::pod::huge_pages::{MEDIUM, MEDIUM_OF_SIZE, volume_page_size};
use limpet_model::pod::quantity::parse;
use limpet_model::pod::volume_kind::VolumePlugin;

/// kubelet's permissions without a `mode`.
const DEFAULT_MODE: u32 = 0o777;

/// Permissions added by `fsGroup`: the group may read, write and search, and is inherited.
const GROUP_MODE: u32 = 0o2770;

/// An emptyDir to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EmptyDir {
    pub path: PathBuf,
    pub medium: Medium,
    pub mode: u32,
    pub group: Option<u32>,
    /// Whether its file system should count its usage, if it can.
    pub counted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    Disk,
    /// A tmpfs with a size limit in bytes.
    Memory(u64),
    /// A hugetlbfs with a page size and an optional limit, both in bytes.
    HugePages(u64, Option<u64>),
}

impl EmptyDir {
    /// The path of the pod's emptyDir with that name.
    pub(super) fn path(pod_dir: &Path, volume: &str) -> PathBuf {
        plugin_directory::volume(pod_dir, VolumePlugin::EmptyDir, volume)
    }

    pub(super) fn new(
        pod_dir: &Path,
        volume: &str,
        source: &EmptyDirVolumeSource,
        spec: &PodSpec,
        node: NodeLimits,
    ) -> Result<Self, VolumeError> {
        let unsupported = |reason: String| VolumeError::Unsupported { volume: volume.to_owned(), reason };
        let limit = || match source.size_limit.as_ref().map(|limit| limit.0.as_str()) {
            None => Ok(None),
            Some(limit) => parse(limit)
                .map(|limit| u64::try_from(limit.units()).ok().filter(|bytes| *bytes > 0))
                .map_err(|error| unsupported(format!("sizeLimit: {error}"))),
        };
        let medium = match source.medium.as_deref().unwrap_or_default() {
            "" => Medium::Disk,
            "Memory" => Medium::Memory(tmpfs::size(limit()?, spec, node)),
            medium if medium == MEDIUM || medium.starts_with(MEDIUM_OF_SIZE) => {
                Medium::HugePages(volume_page_size(spec, medium).map_err(unsupported)?, limit()?)
            }
            other => {
                let reason = format!("medium {other:?} is not supported; use \"\", \"Memory\" or \"HugePages\"");
                return Err(unsupported(reason));
            }
        };
        let fs_group = spec.security_context.as_ref().and_then(|context| context.fs_group);
        let group = fs_group.map(u32::try_from).transpose();
        let group = group.map_err(|_| unsupported("fsGroup is not a group id".to_owned()))?;
        let default_mode = if let Medium::Memory(_) = medium { tmpfs::MODE } else { DEFAULT_MODE };
        let mode = source.mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(default_mode) & 0o1777;
        let mode = if group.is_some() { mode | GROUP_MODE } else { mode };
        // Otherwise a container could evade the count.
        let counted = spec.host_users == Some(false) && source.size_limit.is_some();
        Ok(Self { path: Self::path(pod_dir, volume), medium, mode, group, counted })
    }

    /// Creates it if it does not exist.
    pub(super) fn set_up(&self) -> Result<(), VolumeError> {
        if let Some(parent) = self.path.parent() {
            files::make_dirs(parent, 0o750)?;
        }
        match self.medium {
            Medium::Disk => self.set_up_directory(),
            Medium::Memory(size) => self.set_up_tmpfs(size),
            Medium::HugePages(page_size, limit) => self.set_up_huge_pages(page_size, limit),
        }
    }

    /// Created under a temporary name and renamed, so that a crash leaves none with wrong permissions. A volume's
    /// name never begins with a dot.
    fn set_up_directory(&self) -> Result<(), VolumeError> {
        if self.path.is_dir() {
            return Ok(());
        }
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let beside = self.path.with_file_name(format!(".new-{name}"));
        files::make_dirs(&beside, 0o700)?;
        if let Some(group) = self.group {
            std::os::unix::fs::chown(&beside, None, Some(group))
                .map_err(VolumeError::io("set the group of", &beside))?;
        }
        // Set after the group, because changing the group clears the set-group-id bit.
        files::set_mode(&beside, self.mode)?;
        if self.counted
            && let Err(error) = project_quota::count(&beside)
        {
            tracing::warn!(path = %self.path.display(), %error, "project quota is not available; the size of the volume is measured by walking its files");
        }
        std::fs::rename(&beside, &self.path).map_err(VolumeError::io("make directory", &self.path))
    }

    fn set_up_tmpfs(&self, size: u64) -> Result<(), VolumeError> {
        tmpfs::mount(&self.path, size, self.mode, self.group)
    }

    fn set_up_huge_pages(&self, page_size: u64, limit: Option<u64>) -> Result<(), VolumeError> {
        let mounted = tmpfs::mount_huge_pages(&self.path, &huge_page_options(page_size, limit, self.mode, self.group))?;
        // The mount option does not accept the set-group-id bit.
        if mounted && self.group.is_some() { files::set_mode(&self.path, self.mode) } else { Ok(()) }
    }
}

/// The options of a hugetlbfs. The kernel rounds its size down to whole pages, and treats less than one as no limit.
fn huge_page_options(page_size: u64, limit: Option<u64>, mode: u32, group: Option<u32>) -> String {
    let mut data = format!("pagesize={page_size},mode={mode:o}");
    let whole = limit.map(|bytes| bytes.div_ceil(page_size).saturating_mul(page_size));
    data.extend(whole.map(|bytes| format!(",size={bytes}")));
    data.extend(group.map(|group| format!(",gid={group}")));
    data
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_model::pod::quantity::Amount;
    use serde_json::json;

    use super::*;

    #[test]
    fn medium_limit_and_group_are_parsed() {
        let node = NodeLimits {
            cpu: Amount::from_units(1),
            memory: Amount::from_units(1 << 30),
            ephemeral_storage: Amount::from_units(1 << 33),
        };
        let table = [
            (json!({}), None, Ok((Medium::Disk, 0o777))),
            (json!({}), Some(2000), Ok((Medium::Disk, 0o2777))),
            (json!({"mode": 0o700}), None, Ok((Medium::Disk, 0o700))),
            (json!({"mode": 0o1750}), Some(1), Ok((Medium::Disk, 0o3770))),
            (json!({"medium": "Memory"}), None, Ok((Medium::Memory(1 << 30), 0o1777))),
            (json!({"medium": "Memory", "sizeLimit": "1Mi"}), None, Ok((Medium::Memory(1 << 20), 0o1777))),
            (json!({"medium": "Memory", "sizeLimit": "0"}), None, Ok((Medium::Memory(1 << 30), 0o1777))),
            (json!({"medium": "Memory", "sizeLimit": "9Gi"}), None, Ok((Medium::Memory(1 << 30), 0o1777))),
            (json!({"medium": "Memory", "mode": 0o750}), Some(1), Ok((Medium::Memory(1 << 30), 0o2770))),
            (json!({"sizeLimit": "1Mi"}), None, Ok((Medium::Disk, 0o777))),
            (json!({"medium": "HugePages"}), None, Ok((Medium::HugePages(2 << 20, None), 0o777))),
            (
                json!({"medium": "HugePages-2Mi", "sizeLimit": "3Mi"}),
                Some(1),
                Ok((Medium::HugePages(2 << 20, Some(3 << 20)), 0o2777)),
            ),
            (
                json!({"medium": "HugePages-1Gi"}),
                None,
                Err(
                    "volume \"v\": medium HugePages-1Gi: hugePages storage requested, but there is no resource request \
                     for huge pages",
                ),
            ),
            (
                json!({"medium": "Disk"}),
                None,
                Err("volume \"v\": medium \"Disk\" is not supported; use \"\", \"Memory\" or \"HugePages\""),
            ),
        ];
        for (source, group, wanted) in table {
            let source: EmptyDirVolumeSource = serde_json::from_value(source).unwrap();
            let limits = json!({"limits": {"hugepages-2Mi": "4Mi"}});
            let spec =
                json!({"containers": [{"name": "c", "resources": limits}], "securityContext": {"fsGroup": group}});
            let volume = EmptyDir::new(Path::new("/p"), "v", &source, &serde_json::from_value(spec).unwrap(), node);
            match wanted {
                Ok((medium, mode)) => {
                    let volume = volume.unwrap();
                    assert_eq!((volume.medium, volume.mode), (medium, mode), "{source:?}");
                }
                Err(message) => assert_eq!(volume.unwrap_err().to_string(), message),
            }
        }
    }

    #[test]
    fn the_size_of_a_hugetlbfs_is_whole_pages() {
        assert_eq!(huge_page_options(2 << 20, None, 0o777, None), "pagesize=2097152,mode=777");
        assert_eq!(
            huge_page_options(2 << 20, Some(3 << 20), 0o2777, Some(7)),
            "pagesize=2097152,mode=2777,size=4194304,gid=7"
        );
    }
}
