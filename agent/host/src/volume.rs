//! What a container finds in its file system besides its image: volumes, and the files the agent provides.
//!
//! Everything of a pod lies below `<root-dir>/pods/<uid>`, laid out as kubelet does it:
//!
//! | path | what |
//! |---|---|
//! | `volumes/kubernetes.io~empty-dir/<volume>` | an emptyDir; with `medium: Memory` a tmpfs is mounted on it |
//! | `volumes/kubernetes.io~configmap/<volume>` | a configMap's files, on disk |
//! | `volumes/kubernetes.io~{secret,projected,downward-api}/<volume>` | the same for those kinds, on a tmpfs |
//! | `volume-subpaths/<volume>/<container>/<n>` | the bind mount of a `subPath` |
//! | `containers/<container>/<container id>` | a container's termination message |
//! | `etc-hosts`, `etc-hostname`, `etc-resolv.conf` | mounted into every container that does not mount its own |
//!
//! [`Volumes::prepare`] puts it in place and can be repeated at any time: what a container has written stays.
//! `etc-hosts` and `etc-resolv.conf` are rewritten in place when they should say something else, since containers have
//! the very files mounted. Disk emptyDirs outlive a reboot, memory ones do not; both end with the pod.
//!
//! [`Volumes::update`] replaces the files of configMap, secret, projected and downwardAPI volumes when they should say
//! something else, all at once and without touching a container; a `subPath` of one keeps what it was bound to.
//!
//! Volumes of other kinds are refused by name.

mod dns;
mod empty_dir;
mod files;
mod host_path;
mod hostname;
mod hosts;
mod mounts;
mod payload;
mod preparation;
mod removal;
mod resolver;
mod sub_path;
mod termination;
mod tmpfs;
mod written;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Container;

pub use self::dns::ClusterDns;
pub use self::hostname::{PodHostname, pod_hostname};
pub use self::termination::{MAX_TERMINATION_MESSAGE, read_termination_message};
use limpet_model::object::{ObjectKind, PodObjects};
use limpet_model::pod::downward::NodeLimits;
use limpet_model::pod::{PodRecord, PodUid};
use limpet_model::sandbox::PodAddresses;

/// How mounts made on one side of a bind mount show on the other (`mountPropagation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Propagation {
    /// `None`: private.
    #[default]
    Private,
    /// `HostToContainer`: rslave.
    HostToContainer,
    /// `Bidirectional`: rshared.
    Bidirectional,
}

/// One bind mount into a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Path on the host; exists.
    pub host_path: PathBuf,
    /// Path in the container, absolute.
    pub container_path: PathBuf,
    /// Mounted read-only.
    pub read_only: bool,
    /// Propagation.
    pub propagation: Propagation,
}

/// Something the pod's author should know, to be made a Warning event of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// kubelet's reason.
    pub reason: &'static str,
    /// The sentence people read.
    pub message: String,
}

/// Why a volume or file is not in place. The worker tries again with back-off: a path may appear, a disk may be
/// freed; what cannot pass ([`Self::is_final`]) needs another manifest or configuration.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A hostPath is not what its type says; kubelet's words.
    #[error("volume {volume:?}: hostPath type check failed: {} is not {wanted}", path.display())]
    HostPathType {
        /// The volume's name.
        volume: String,
        /// The hostPath.
        path: PathBuf,
        /// `a directory`, `a file`, ...
        wanted: &'static str,
    },
    /// The volume's kind, or a setting of it, is not supported.
    #[error("volume {volume:?}: {reason}")]
    Unsupported {
        /// The volume's name.
        volume: String,
        /// Which, and what is supported.
        reason: String,
    },
    /// A volume's object is not here; kubelet's words.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {} {name:?} not found", kind.resource())]
    NoObject {
        /// The volume's name.
        volume: String,
        /// ConfigMap or Secret.
        kind: ObjectKind,
        /// The object's name.
        name: String,
    },
    /// A volume's object does not have that key; kubelet's words.
    #[error(
        "MountVolume.SetUp failed for volume {volume:?} : {}: {key}",
        match kind {
            ObjectKind::ConfigMap => "configmap references non-existent config key",
            ObjectKind::Secret => "references non-existent secret key",
        }
    )]
    NoKey {
        /// The volume's name.
        volume: String,
        /// ConfigMap or Secret.
        kind: ObjectKind,
        /// The key.
        key: String,
    },
    /// A container mounts a volume the pod does not have.
    #[error("container {container:?} mounts volume {volume:?}, which the pod does not have")]
    NoSuchVolume {
        /// The container's name.
        container: String,
        /// The volume's name.
        volume: String,
    },
    /// A `subPath` leads out of its volume.
    #[error("container {container:?}: subPath {sub_path:?} leads out of volume {volume:?}")]
    SubPathEscapes {
        /// The container's name.
        container: String,
        /// The volume's name.
        volume: String,
        /// The path as written.
        sub_path: String,
    },
    /// The full name does not fit into the kernel's hostname; kubelet's words.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long (64 is the max, \
         {length} characters requested)"
    )]
    Hostname {
        /// The full name.
        fqdn: String,
        /// Its length.
        length: usize,
    },
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}{}", path.display(), remedy(source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A mount below a pod's directory could not be taken off, so nothing below it is removed.
    #[error("refusing to remove {}: something is mounted on it; unmount it", .0.display())]
    Mounted(PathBuf),
}

impl VolumeError {
    /// Whether trying again is in vain while manifest and configuration stay as they are.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Unsupported { .. } | Self::NoSuchVolume { .. } | Self::Hostname { .. })
    }

    fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }
}

/// What to do about an error that a full or broken disk causes.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "; free space or inodes on its file system (df -h, df -i) or move --root-dir",
        io::ErrorKind::QuotaExceeded => "; raise the quota of its file system or move --root-dir",
        io::ErrorKind::ReadOnlyFilesystem => {
            "; its file system is read-only: the kernel's log says whether an error made it so; mount it writable or \
             move --root-dir"
        }
        _ => "",
    }
}

/// The volumes of this node's pods. Clones share the settings.
#[derive(Debug, Clone)]
pub struct Volumes {
    settings: Arc<Settings>,
}

/// Where volumes lie and how names are resolved.
#[derive(Debug)]
pub struct Settings {
    /// What survives a reboot; volumes lie in `pods/<uid>` below it.
    pub root_dir: PathBuf,
    /// The node's `resolv.conf`; `None`: pods get an empty one.
    pub resolv_conf: Option<PathBuf>,
    /// The node's own `/etc/hosts`.
    pub hosts_file: PathBuf,
    /// The cluster's name servers and domain.
    pub cluster: ClusterDns,
    /// What an unlimited container may use, for downwardAPI volumes.
    pub limits: NodeLimits,
}

impl Settings {
    fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.pods_dir().join(uid.as_str())
    }

    fn pods_dir(&self) -> PathBuf {
        self.root_dir.join("pods")
    }
}

impl Volumes {
    /// Volumes as `settings` say. Touches nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings) }
    }

    /// Puts every volume and file of the pod in place, from the objects it refers to. `hostname` is what the pod's `/etc/hostname` says: its own
    /// name ([`PodHostname::kernel`]), or the node's with `hostNetwork`. Doing it again changes nothing that is right
    /// already and wipes nothing.
    pub async fn prepare(
        &self,
        pod: &PodRecord,
        objects: &PodObjects,
        addresses: &PodAddresses,
        hostname: &str,
    ) -> Result<Vec<Warning>, VolumeError> {
        let work = preparation::Preparation::of(pod, objects, addresses, hostname, &self.settings)?;
        let settings = self.settings.clone();
        let path = settings.pod_dir(&pod.uid);
        blocking(path, move || work.run(&settings)).await
    }

    /// Writes anew what of a prepared pod's volumes comes from its objects or its own metadata, each volume at once.
    /// Returns the names of the volumes that say something else now. Where one cannot be written it says what it did
    /// before, and the others are written all the same.
    pub async fn update(&self, pod: &PodRecord, objects: &PodObjects) -> Result<Vec<String>, VolumeError> {
        let path = self.settings.pod_dir(&pod.uid);
        let sources = payload::Sources { pod, objects, node: self.settings.limits };
        let written = preparation::written_volumes(sources, &path);
        if written.is_empty() {
            return Ok(Vec::new());
        }
        blocking(path, move || preparation::update(written)).await
    }

    /// The mounts of one container, parents before children: its `volumeMounts`, then `/etc/hosts`, `/etc/hostname`,
    /// `/etc/resolv.conf` unless it mounts them itself, and the termination message's file, which is made here.
    /// [`Self::prepare`] must have succeeded. Touches few files, so it does not block for long.
    pub fn mounts(
        &self,
        pod: &PodRecord,
        container: &Container,
        container_id: &str,
    ) -> Result<Vec<Mount>, VolumeError> {
        mounts::of(pod, container, container_id, &self.settings.pod_dir(&pod.uid))
    }

    /// The host's file for a container's termination message, as [`Self::mounts`] makes it.
    pub fn termination_log(&self, uid: &PodUid, container: &str, container_id: &str) -> PathBuf {
        termination::path(&self.settings.pod_dir(uid), container, container_id)
    }

    /// Removes a dead container's termination message, when its record is given up too.
    pub fn remove_termination_log(&self, uid: &PodUid, container: &str, container_id: &str) -> Result<(), VolumeError> {
        let path = self.termination_log(uid, container, container_id);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(VolumeError::io("remove", path)(error)),
            _ => Ok(()),
        }
    }

    /// Removes everything of a pod: mounts below its directory are detached, busy or not, and the directory is
    /// deleted without following a symlink or crossing into another mount. One that is not there is success.
    pub async fn remove(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let (pods, name) = (self.settings.pods_dir(), uid.clone());
        blocking(self.settings.pod_dir(uid), move || removal::remove(&pods, name.as_str())).await
    }

    /// The pods that have a directory, for the clean-up of orphans.
    pub async fn list(&self) -> Vec<PodUid> {
        let dir = self.settings.pods_dir();
        let listed = blocking(dir.clone(), move || files::directories(&dir)).await;
        listed.unwrap_or_else(|error| {
            tracing::warn!(%error, "pods' directories cannot be listed");
            Vec::new()
        })
    }
}

/// Runs `work` on tokio's threads for blocking calls.
async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(VolumeError::io("finish the work on", path)(error.into())),
    }
}

#[cfg(test)]
mod tests;
