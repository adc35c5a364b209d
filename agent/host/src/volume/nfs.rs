//! nfs: an export of a server, which the node's own tools mount for one pod.
//!
//! A server may be gone, so nothing here touches a mounted export: the mount table tells whether it is mounted, and
//! the tools are child processes with a deadline. A mount outlives the agent, and the next agent finds it.

use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::NFSVolumeSource;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use tokio::process::Command;

use super::node_tools::{output_text, tool_dirs};
use super::{VolumeError, blocking, files, mounted, plugin_directory};
use crate::blocking::{self as blocking_calls, DEADLINE};
use crate::program;
use limpet_model::pod::volume_kind::VolumePlugin;

/// The tool that mounts an export, and the packages that have it.
const MOUNT: &str = "mount.nfs";
const PACKAGES: &str = "install nfs-common (Debian, Ubuntu) or nfs-utils (Fedora, Arch, Alpine)";
const UNMOUNT: &str = "umount";

/// The deadline of a mount. `mount.nfs` itself would retry for two minutes.
const MOUNT_DEADLINE: Duration = Duration::from_secs(30);
/// The deadline for flushing writes and unmounting.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(20);

/// An export to be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NfsMount {
    /// The volume's name.
    pub volume: String,
    /// Where it is mounted.
    pub path: PathBuf,
    /// `server:/path`.
    source: String,
    /// `ro,nfsvers=4.1`; may be empty.
    options: String,
}

impl NfsMount {
    /// The mount of `export` with the PersistentVolume's options.
    pub(super) fn new(
        pod_dir: &Path,
        volume: &str,
        export: &NFSVolumeSource,
        options: &[String],
        read_only: bool,
    ) -> Result<Self, VolumeError> {
        let server = match export.server.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]"),
            Err(_) => export.server.clone(),
        };
        // The tool would take a leading dash for an option.
        if server.is_empty()
            || server.starts_with('-')
            || server.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            let reason = format!("nfs.server {server:?} is no host; name one by its name or address");
            return Err(VolumeError::Unsupported { volume: volume.to_owned(), reason });
        }
        let read_only = read_only.then_some("ro");
        let options: Vec<&str> = options.iter().map(String::as_str).chain(read_only).collect();
        Ok(Self {
            volume: volume.to_owned(),
            path: plugin_directory::volume(pod_dir, VolumePlugin::Nfs, volume),
            source: format!("{server}:{}", export.path),
            options: options.join(","),
        })
    }

    /// Mounts it unless it is mounted.
    pub(super) async fn set_up(&self) -> Result<(), VolumeError> {
        let path = self.path.clone();
        let subject = path.parent().unwrap_or(&path).to_owned();
        let is_mounted = blocking(subject, DEADLINE, move |_| {
            if mounted::is_mounted(&path)? {
                return Ok(true);
            }
            files::make_dirs(&path, 0o750)?;
            Ok(false)
        });
        if is_mounted.await? {
            return Ok(());
        }
        let failed =
            |reason: String| VolumeError::Mount { volume: self.volume.clone(), export: self.source.clone(), reason };
        let tool = program::find(MOUNT, &tool_dirs()).await.map_err(|error| failed(error.to_string()))?;
        let tool = tool.ok_or_else(|| failed(format!("{MOUNT} is not on this node: {PACKAGES}")))?;
        let mut command = Command::new(&tool);
        command.arg(&self.source).arg(&self.path);
        if !self.options.is_empty() {
            command.args(["-o", &self.options]);
        }
        match program::run(command, b"", MOUNT_DEADLINE).await {
            Ok(output) if output.success => Ok(()),
            Ok(output) => Err(failed(output_text(&output))),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(failed(format!("no answer from the server for {} s", MOUNT_DEADLINE.as_secs())))
            }
            Err(error) => Err(failed(format!("{}: {error}", tool.display()))),
        }
    }

    /// Refuses an export that is not mounted, which would be an empty directory on the node's disk.
    pub(super) fn check_mounted(&self) -> Result<(), VolumeError> {
        if mounted::is_mounted(&self.path)? {
            return Ok(());
        }
        let reason = "it is not mounted any more".to_owned();
        Err(VolumeError::Mount { volume: self.volume.clone(), export: self.source.clone(), reason })
    }
}

/// Unmounts every export of the pod; one whose server does not respond is unmounted by force.
pub(super) async fn unmount_all(pod_dir: &Path) -> Result<(), VolumeError> {
    let directory = plugin_directory::path(pod_dir, VolumePlugin::Nfs);
    let find = {
        let directory = directory.clone();
        move |_: &_| mounted::below(&directory)
    };
    let exports = blocking(directory, DEADLINE, find).await?;
    if exports.is_empty() {
        return Ok(());
    }
    let tool = program::find(UNMOUNT, &tool_dirs()).await.unwrap_or_default();
    // Without the tool, or if it fails, the mount is detached with the pod's other mounts.
    let Some(tool) = tool else { return Ok(()) };
    for path in exports {
        let mut command = Command::new(&tool);
        command.arg(&path);
        match program::run(command, b"", UNMOUNT_DEADLINE).await {
            Ok(output) if output.success => {}
            Ok(output) => {
                tracing::debug!(path = %path.display(), output = output_text(&output), "unmounting an NFS export failed; it is detached")
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the NFS server does not respond; the export is unmounted by force");
                take_away(path).await?;
            }
        }
    }
    Ok(())
}

/// Detaches a mount; calls that wait for its server fail.
async fn take_away(path: PathBuf) -> Result<(), VolumeError> {
    let unmount = blocking_calls::run(path.clone(), DEADLINE, {
        let path = path.clone();
        move |_| rustix::mount::unmount(&path, UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
    });
    match unmount.await.map_err(VolumeError::Blocking)? {
        // The tool has unmounted it after all.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(errno) => Err(VolumeError::io("unmount", path)(errno.into())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn export_mount(export: Value, options: &[&str], read_only: bool) -> Result<NfsMount, VolumeError> {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        NfsMount::new(Path::new("/pod"), "data", &serde_json::from_value(export).unwrap(), &options, read_only)
    }

    #[test]
    fn an_export_is_a_source_and_options() {
        let mount = export_mount(json!({"server": "nas", "path": "/srv"}), &["nfsvers=4.1", "hard"], true).unwrap();
        assert_eq!((mount.source.as_str(), mount.options.as_str()), ("nas:/srv", "nfsvers=4.1,hard,ro"));
        assert_eq!(mount.path, Path::new("/pod/volumes/kubernetes.io~nfs/data"));
        let mount = export_mount(json!({"server": "fd00::1", "path": "/srv"}), &[], false).unwrap();
        assert_eq!((mount.source.as_str(), mount.options.as_str()), ("[fd00::1]:/srv", ""));
        for server in ["", "-osuid", "a b", "a\n"] {
            let error = export_mount(json!({"server": server, "path": "/srv"}), &[], false).unwrap_err();
            assert!(error.is_final(), "{error}");
        }
    }
}
