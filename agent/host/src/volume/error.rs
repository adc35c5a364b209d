//! Why volumes cannot be prepared, with kubelet's messages where it has one.

use std::io;
use std::path::PathBuf;

use limpet_model::object::ObjectKind;

/// Why a volume or file could not be prepared. The worker retries with back-off, because a path may appear or disk
/// space may be freed. A permanent failure ([`Self::is_final`]) needs another manifest or configuration.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A hostPath is not of its type; kubelet's message.
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
        /// What is not supported, and what is.
        reason: String,
    },
    /// A volume's object does not exist; kubelet's message.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {} {name:?} not found", kind.resource())]
    NoObject {
        /// The volume's name.
        volume: String,
        /// ConfigMap or Secret.
        kind: ObjectKind,
        /// The object's name.
        name: String,
    },
    /// A volume's object does not have that key; kubelet's message.
    #[error(
        "MountVolume.SetUp failed for volume {volume:?} : {}: {key}",
        match kind {
            ObjectKind::ConfigMap => "configmap references non-existent config key",
            _ => "references non-existent secret key",
        }
    )]
    NoKey {
        /// The volume's name.
        volume: String,
        /// ConfigMap or Secret.
        kind: ObjectKind,
        key: String,
    },
    /// The volume of a claim is not available; kubelet's message.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {reason}")]
    Claim {
        /// The volume's name.
        volume: String,
        reason: String,
    },
    /// The driver of a volume does not unmount it.
    #[error("UnmountVolume.TearDown failed for volume {volume:?} : unmount {driver}: {reason}")]
    TearDown {
        /// The volume's name.
        volume: String,
        /// `vendor/driver`.
        driver: String,
        reason: String,
    },
    /// An export of a server, a disk of a target, or the volume of a driver cannot be mounted.
    #[error("MountVolume.SetUp failed for volume {volume:?} : mount {export}: {reason}")]
    Mount {
        /// The volume's name.
        volume: String,
        /// `server:/path`, `portal-target-lun-0`, `vendor/driver`.
        export: String,
        /// The cause, and the remedy.
        reason: String,
    },
    /// A disk of a target that no pod uses any more cannot be detached.
    #[error("UnmountDevice failed for iSCSI disk {disk}: {reason}")]
    Unmount {
        /// `portal-target-lun-0`.
        disk: String,
        /// The cause, and the remedy.
        reason: String,
    },
    /// A volume or file cannot be labelled; containerd's message.
    #[error("relabel {} with {label:?} failed: {source}", path.display())]
    Label {
        /// The path on the node.
        path: PathBuf,
        label: String,
        source: io::Error,
    },
    /// A container mounts a volume the pod does not have.
    #[error("container {container:?} mounts volume {volume:?}, which the pod does not have")]
    NoSuchVolume {
        /// The container's name.
        container: String,
        /// The volume's name.
        volume: String,
    },
    /// A device's path in a container is relative; kubelet's message.
    #[error("container {container:?}: error DevicePath `{path}` must be an absolute path")]
    DevicePath {
        /// The container's name.
        container: String,
        /// The path as written.
        path: String,
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
    /// An image volume does not have that path.
    #[error("container {container:?}: the image of volume {volume:?} has no {sub_path:?}")]
    NoImagePath {
        /// The container's name.
        container: String,
        /// The volume's name.
        volume: String,
        /// The path as written.
        sub_path: String,
    },
    /// The full name is too long for the kernel's hostname; kubelet's message.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long (64 is the max, \
         {length} characters requested)"
    )]
    Hostname {
        /// The full name.
        fqdn: String,
        length: usize,
    },
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}{}", path.display(), remedy(source))]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
    /// A file system does not answer, or the call panicked.
    #[error(transparent)]
    Blocking(io::Error),
    /// A mount below a pod's directory could not be unmounted, so nothing below it was removed.
    #[error("refusing to remove {}: something is mounted on it; unmount it", .0.display())]
    Mounted(PathBuf),
}

impl VolumeError {
    /// Whether the failure is permanent unless manifest or configuration change.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Unsupported { .. } | Self::NoSuchVolume { .. } | Self::Hostname { .. } | Self::DevicePath { .. }
        )
    }

    pub(super) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }
}

/// The remedy for an error that a full or read-only disk causes.
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
