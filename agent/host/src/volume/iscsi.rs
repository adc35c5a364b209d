//! iscsi: a disk of an iSCSI target, attached and mounted once for the node, and bound into each of its pods.
//!
//! The sequence is kubelet's (`pkg/volume/iscsi`): the node's own `iscsiadm` logs in, the kernel scans for the disk,
//! a blank disk gets a file system, and all of it is undone after the last pod. Sessions are read from sysfs, and
//! limpet's actions are recorded ([`record`]), so a restarted agent continues where the previous one ended. Tools are
//! child processes with a deadline, and only pods of the same target wait for each other.

mod attach;
mod commands;
mod detach;
mod disk;
mod file_system;
mod record;
mod sessions;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limpet_model::object::ObjectKind;
use limpet_model::object::iscsi::IscsiVolume;
use limpet_model::pod::volume_kind::VolumePlugin;
use limpet_model::pod::{PodRecord, PodUid};
use tokio::process::Command;

use self::commands::Chap;
use self::disk::Disk;
use self::record::Record;
use super::host_path::{HostPath, HostPathType};
use super::in_use::{InUse, VolumesInUse};
use super::node_tools::tool_dirs;
use super::secret_values::SecretValues;
use super::{VolumeError, blocking, files, mounted, plugin_directory};
use crate::blocking::DEADLINE;
use crate::keyed_lock::KeyedLock;
use crate::{fs_group, program};

/// The tool that logs in and out, and the packages that have it.
const ISCSIADM: &str = "iscsiadm";
const PACKAGES: &str = "install open-iscsi (Debian, Ubuntu, Alpine) or iscsi-initiator-utils (Fedora)";

/// A disk as a volume of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IscsiMount {
    /// The volume's name.
    pub volume: String,
    /// Its path in the pod: a directory, or a link to a device.
    pub path: PathBuf,
    /// Whether containers get it as a device.
    pub block: bool,
    disk: Disk,
    fs_type: String,
    options: Vec<String>,
    read_only: bool,
    chap: Chap,
    /// The name of its Secret, if that does not exist.
    missing_secret: Option<String>,
    /// Its name in the Node's status.
    unique_name: String,
    /// The group of its files, and whether it is set only if the root has another one.
    group: Option<(u32, bool)>,
}

impl IscsiMount {
    /// The disk as `volume` of the pod, with the values of its Secret.
    pub(super) fn new(
        pod: &PodRecord,
        pod_dir: &Path,
        volume: &str,
        claimed: &IscsiVolume,
        secret: SecretValues,
        read_only: bool,
    ) -> Result<Self, VolumeError> {
        let disk =
            Disk::new(claimed).map_err(|reason| VolumeError::Unsupported { volume: volume.to_owned(), reason })?;
        let context = pod.spec().security_context.as_ref();
        let group = context.and_then(|context| u32::try_from(context.fs_group?).ok());
        let policy = context.and_then(|context| context.fs_group_change_policy.as_deref());
        let path = match claimed.block {
            true => plugin_directory::devices(pod_dir, VolumePlugin::Iscsi).join(volume),
            false => plugin_directory::volume(pod_dir, VolumePlugin::Iscsi, volume),
        };
        Ok(Self {
            volume: volume.to_owned(),
            path,
            block: claimed.block,
            disk,
            fs_type: claimed.fs_type.clone(),
            options: claimed.options.clone(),
            read_only,
            unique_name: claimed.unique_name(),
            missing_secret: secret.as_ref().err().cloned(),
            chap: Chap {
                discovery: claimed.chap_discovery,
                session: claimed.chap_session,
                values: secret.unwrap_or_default(),
            },
            group: group.filter(|_| !read_only).map(|group| (group, policy == Some("OnRootMismatch"))),
        })
    }

    /// Refuses a disk that is not mounted, which would be an empty directory on the node's disk.
    pub(super) fn check_mounted(&self) -> Result<(), VolumeError> {
        if mounted::is_mounted(&self.path)? {
            return Ok(());
        }
        Err(self.failed("it is not mounted any more".to_owned()))
    }

    /// The device that containers get.
    pub(super) fn device(self) -> HostPath {
        HostPath { volume: self.volume, path: self.path, kind: HostPathType::BlockDevice, owned: false }
    }

    fn failed(&self, reason: String) -> VolumeError {
        VolumeError::Mount { volume: self.volume.clone(), export: self.disk.name(), reason }
    }
}

/// The disks of this node's pods.
#[derive(Debug)]
pub(super) struct IscsiDisks {
    /// Where they are recorded and mounted.
    directory: PathBuf,
    node: Node,
    /// By target.
    locks: KeyedLock<String>,
    in_use: VolumesInUse,
    /// Recorded disks by their directories: a controller must not give them to another node.
    held: Mutex<HashMap<PathBuf, Vec<InUse>>>,
}

/// The kernel's directories, and where tools are.
#[derive(Debug, Clone)]
struct Node {
    sys: PathBuf,
    dev: PathBuf,
    tools: Vec<PathBuf>,
}

impl IscsiDisks {
    /// The disks below the agent's directory.
    pub(super) fn new(root_dir: &Path, in_use: VolumesInUse) -> Self {
        Self::on(root_dir, Node { sys: "/sys".into(), dev: "/dev".into(), tools: tool_dirs() }, in_use)
    }

    fn on(root_dir: &Path, node: Node, in_use: VolumesInUse) -> Self {
        let directory = root_dir.join("plugins/kubernetes.io/iscsi");
        Self { directory, node, locks: KeyedLock::default(), in_use, held: Mutex::default() }
    }

    /// Marks recorded disks as in use.
    pub(super) async fn find_in_use(&self) -> Result<(), VolumeError> {
        let records = on_files(&self.directory, record::all).await?;
        records.iter().for_each(|record| self.mark_in_use(record));
        Ok(())
    }

    /// Marks the disk as in use until [`Self::release`].
    fn mark_in_use(&self, record: &Record) {
        let uses = record.unique_names.iter().map(|name| self.in_use.begin(name.clone())).collect();
        // The replacement is already in use.
        let replaced = self.held().insert(record.disk.directory(&self.directory), uses);
        drop(replaced);
    }

    /// Ends the use of a disk that is detached.
    fn release(&self, directory: &Path) {
        let ended = self.held().remove(directory);
        drop(ended);
    }

    fn held(&self) -> MutexGuard<'_, HashMap<PathBuf, Vec<InUse>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches and mounts the volume for the pod, unless that is done.
    pub(super) async fn set_up(&self, mount: &IscsiMount, uid: &PodUid) -> Result<(), VolumeError> {
        let path = mount.path.clone();
        // The device is looked up each time, because its name may later belong to another disk.
        if !mount.block && on_files(&path, mounted::is_mounted).await? {
            return Ok(());
        }
        if let Some(name) = mount.missing_secret.clone() {
            return Err(VolumeError::NoObject { volume: mount.volume.clone(), kind: ObjectKind::Secret, name });
        }
        let _guard = self.locks.lock(mount.disk.iqn.clone()).await;
        // Recorded first, so that this pod is cleaned up.
        let wanted = if mount.block { mount.path.parent().unwrap_or(&path).to_owned() } else { path.clone() };
        on_files(&wanted, |path| files::make_dirs(path, 0o750)).await?;
        self.provide(mount, uid).await.map_err(|reason| mount.failed(reason))
    }

    async fn provide(&self, mount: &IscsiMount, uid: &PodUid) -> Result<(), String> {
        let (disk, name, uid) = (mount.disk.clone(), mount.unique_name.clone(), uid.clone());
        let begin = move |disks: &Path| record::begin(disks, &disk, name, &uid);
        let mut record = on_files(&self.directory, begin).await.map_err(text)?;
        self.mark_in_use(&record);
        if mount.block {
            let device = self.attach(mount, &mut record).await?;
            return on_files(&mount.path, move |path| link(&device, path)).await.map_err(text);
        }
        let shared = record::mount_point(&mount.disk.directory(&self.directory));
        if !on_files(&shared, mounted::is_mounted).await.map_err(text)? {
            on_files(&shared, |path| files::make_dirs(path, 0o750)).await.map_err(text)?;
            let device = self.attach(mount, &mut record).await?;
            self.mount(&device, &shared, mount).await?;
        }
        self.bind(&shared, mount).await
    }

    /// Binds the mounted disk into the pod.
    async fn bind(&self, shared: &Path, mount: &IscsiMount) -> Result<(), String> {
        let wants_write = !mount.read_only;
        on_files(shared, move |path| file_system::check_access(path, wants_write)).await.map_err(text)??;
        if let Some((group, on_root_mismatch)) = mount.group {
            let path = shared.to_owned();
            let set = move |_: &_| fs_group::set(&path, group, on_root_mismatch);
            let set = crate::blocking::run(shared.to_owned(), fs_group::DEADLINE, set).await.and_then(|set| set);
            set.map_err(|error| format!("set the group of its files: {error}"))?;
        }
        let target = mount.path.clone();
        let bind = move |shared: &Path| {
            rustix::mount::mount_bind(shared, &target)
                .map_err(|errno| VolumeError::io("mount a disk on", target)(errno.into()))
        };
        on_files(shared, bind).await.map_err(text)
    }
}

impl Node {
    /// Runs a tool of the node; `remedy` is for a node without it. A failing exit code is not an error.
    async fn run(
        &self,
        tool: &str,
        remedy: &str,
        arguments: &[impl AsRef<std::ffi::OsStr>],
        deadline: Duration,
    ) -> Result<program::Output, RunError> {
        let program = program::find(tool, &self.tools).await.map_err(|error| RunError::Failed(error.to_string()))?;
        let program = program.ok_or_else(|| RunError::Missing(format!("{tool} is not on this node: {remedy}")))?;
        let mut command = Command::new(&program);
        command.args(arguments);
        let output = program::run(command, b"", deadline).await;
        output.map_err(|error| {
            RunError::Failed(match error.kind() {
                io::ErrorKind::TimedOut => format!("{tool} has not ended for {} s", deadline.as_secs()),
                _ => format!("{}: {error}", program.display()),
            })
        })
    }
}

impl IscsiDisks {
    /// Runs `work` on the kernel's directories of a target, serialized per target, because a target may not respond.
    async fn on_kernel<T: Send + 'static>(
        &self,
        target: &str,
        deadline: Duration,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let sys = self.node.sys.clone();
        let subject = sys.join("class/iscsi_session").join(target);
        crate::blocking::run(subject, deadline, move |_| work(&sys)).await.and_then(|done| done).map_err(text)
    }
}

/// Why a tool did not run to its end.
#[derive(Debug, PartialEq, Eq)]
enum RunError {
    /// The tool is not installed; with the remedy.
    Missing(String),
    /// The tool took too long, or could not be started.
    Failed(String),
}

impl From<RunError> for String {
    fn from(error: RunError) -> Self {
        let (RunError::Missing(reason) | RunError::Failed(reason)) = error;
        reason
    }
}

/// Points a volume's link to `device`. Blocks.
fn link(device: &Path, path: &Path) -> Result<(), VolumeError> {
    if std::fs::read_link(path).is_ok_and(|target| target == device) {
        return Ok(());
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(VolumeError::io("replace", path)(error));
        }
        _ => {}
    }
    std::os::unix::fs::symlink(device, path).map_err(VolumeError::io("make link", path))
}

/// Runs `work` on files at `path` on a blocking thread.
async fn on_files<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce(&Path) -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    let subject = path.to_owned();
    blocking(subject.clone(), DEADLINE, move |_| work(&subject)).await
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
