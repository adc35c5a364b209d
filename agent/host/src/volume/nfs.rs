//! nfs: an export of a server, mounted for one pod by the node's own tools.
//!
//! A server may be gone, so nothing here touches a mounted export: whether it is mounted is read from the mount table, and the
//! tools are child processes with a deadline. A mount outlives the agent; its successor finds it mounted.

use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::NFSVolumeSource;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use tokio::process::Command;

use super::{VolumeError, blocking, files};
use crate::blocking::{self as blocking_calls, DEADLINE};
use crate::{mount_table, program};

/// The tool that mounts an export, and the packages that it is in.
const MOUNT: &str = "mount.nfs";
const PACKAGES: &str = "install nfs-common (Debian, Ubuntu) or nfs-utils (Fedora, Arch, Alpine)";
/// The tool that unmounts one.
const UNMOUNT: &str = "umount";

/// How long a server may take to let an export be mounted. `mount.nfs` alone would try for two minutes.
const MOUNT_DEADLINE: Duration = Duration::from_secs(30);
/// How long it may take to write what is left and unmount.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(20);

/// Where tools of the system are beside `PATH`: a service's has no `sbin` everywhere.
const SYSTEM_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// How much of what a tool says is shown, in bytes.
const MAX_SAID: usize = 1_024;

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

/// Where the pod's exports are mounted.
fn directory(pod_dir: &Path) -> PathBuf {
    pod_dir.join("volumes/kubernetes.io~nfs")
}

/// Where the export of that volume is mounted.
pub(super) fn path(pod_dir: &Path, volume: &str) -> PathBuf {
    directory(pod_dir).join(volume)
}

impl NfsMount {
    /// The mount of `export` with the PersistentVolume's options.
    pub(super) fn of(
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
        // The tool takes what begins with a dash for an option.
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
            path: path(pod_dir, volume),
            source: format!("{server}:{}", export.path),
            options: options.join(","),
        })
    }

    /// Mounts it, unless it is.
    pub(super) async fn set_up(&self) -> Result<(), VolumeError> {
        let path = self.path.clone();
        let subject = path.parent().unwrap_or(&path).to_owned();
        let mounted = blocking(subject, DEADLINE, move |_| {
            if is_mounted(&path)? {
                return Ok(true);
            }
            files::make_dirs(&path, 0o750)?;
            Ok(false)
        });
        if mounted.await? {
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
            Ok(output) => Err(failed(said(&output))),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(failed(format!("no answer from the server for {} s", MOUNT_DEADLINE.as_secs())))
            }
            Err(error) => Err(failed(format!("{}: {error}", tool.display()))),
        }
    }

    /// Refuses an export that is not mounted, which would be an empty directory of the node's disk.
    pub(super) fn check_mounted(&self) -> Result<(), VolumeError> {
        if is_mounted(&self.path)? {
            return Ok(());
        }
        let reason = "it is not mounted any more".to_owned();
        Err(VolumeError::Mount { volume: self.volume.clone(), export: self.source.clone(), reason })
    }
}

/// Unmounts every export of the pod; one whose server does not answer is taken away from whoever still waits for it.
pub(super) async fn unmount_all(pod_dir: &Path) -> Result<(), VolumeError> {
    let directory = directory(pod_dir);
    let find = {
        let directory = directory.clone();
        move |_: &_| mounted_below(&directory)
    };
    let mounted = blocking(directory, DEADLINE, find).await?;
    if mounted.is_empty() {
        return Ok(());
    }
    let tool = program::find(UNMOUNT, &tool_dirs()).await.unwrap_or_default();
    // Without the tool, or where it fails, the mount is detached with the pod's other ones.
    let Some(tool) = tool else { return Ok(()) };
    for path in mounted {
        let mut command = Command::new(&tool);
        command.arg(&path);
        match program::run(command, b"", UNMOUNT_DEADLINE).await {
            Ok(output) if output.success => {}
            Ok(output) => tracing::debug!(path = %path.display(), said = said(&output), "export is detached"),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the server of an export does not answer, it is taken away");
                take_away(path).await?;
            }
        }
    }
    Ok(())
}

/// Detaches a mount and has what waits for its server fail.
async fn take_away(path: PathBuf) -> Result<(), VolumeError> {
    let unmount = blocking_calls::run(path.clone(), DEADLINE, {
        let path = path.clone();
        move |_| rustix::mount::unmount(&path, UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
    });
    match unmount.await.map_err(VolumeError::Blocking)? {
        // Unmounted after all, by the tool.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(errno) => Err(VolumeError::io("unmount", path)(errno.into())),
    }
}

/// Whether something is mounted on `path`, by the mount table alone.
pub(super) fn is_mounted(path: &Path) -> Result<bool, VolumeError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    Ok(mounted_below(parent)?.contains(&real(parent)?.join(name)))
}

/// What is mounted directly in `directory`; nothing where it does not exist.
fn mounted_below(directory: &Path) -> Result<Vec<PathBuf>, VolumeError> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let real = real(directory)?;
    let mounts = mount_table::mount_points().map_err(VolumeError::io("read", "/proc/self/mountinfo"))?;
    Ok(mounts.into_iter().filter(|mounted| mounted.parent() == Some(&real)).collect())
}

fn real(directory: &Path) -> Result<PathBuf, VolumeError> {
    match directory.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(directory.to_owned()),
        real => real.map_err(VolumeError::io("stat", directory)),
    }
}

/// The directories of `PATH`, then those of the system's tools.
fn tool_dirs() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(SYSTEM_DIRS.map(PathBuf::from)).collect()
}

/// What a tool that failed has said, in one line.
fn said(output: &program::Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut line = if lines.is_empty() { "it failed and said nothing".to_owned() } else { lines.join("; ") };
    while line.len() > MAX_SAID {
        line.pop();
    }
    line
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(export: Value, options: &[&str], read_only: bool) -> Result<NfsMount, VolumeError> {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        NfsMount::of(Path::new("/pod"), "data", &serde_json::from_value(export).unwrap(), &options, read_only)
    }

    #[test]
    fn an_export_is_a_source_and_options() {
        let mount = of(json!({"server": "nas", "path": "/srv"}), &["nfsvers=4.1", "hard"], true).unwrap();
        assert_eq!((mount.source.as_str(), mount.options.as_str()), ("nas:/srv", "nfsvers=4.1,hard,ro"));
        assert_eq!(mount.path, Path::new("/pod/volumes/kubernetes.io~nfs/data"));
        let mount = of(json!({"server": "fd00::1", "path": "/srv"}), &[], false).unwrap();
        assert_eq!((mount.source.as_str(), mount.options.as_str()), ("[fd00::1]:/srv", ""));
        for server in ["", "-osuid", "a b", "a\n"] {
            let error = of(json!({"server": server, "path": "/srv"}), &[], false).unwrap_err();
            assert!(error.is_final(), "{error}");
        }
    }

    #[test]
    fn what_is_mounted_is_read_from_the_mount_table() {
        assert!(is_mounted(Path::new("/proc")).unwrap());
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_mounted(dir.path()).unwrap());
        assert!(!is_mounted(&dir.path().join("none/data")).unwrap());
        assert_eq!(mounted_below(&dir.path().join("none")).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn what_a_tool_says_is_one_bounded_line() {
        let of = |text: &str| {
            said(&program::Output { success: false, stdout: Vec::new(), stderr: text.as_bytes().to_vec() })
        };
        assert_eq!(of("mount.nfs: a\n\n  b\n"), "mount.nfs: a; b");
        assert_eq!(of(" \n"), "it failed and said nothing");
        assert!(of(&"\u{e4}".repeat(MAX_SAID)).len() <= MAX_SAID);
    }
}
