//! Volumes, and the files that the agent provides to containers (`/etc/hosts`, `/etc/resolv.conf` and others).
//!
//! All files of a pod are below `<root-dir>/pods/<uid>`, in kubelet's layout:
//!
//! | path | what |
//! |---|---|
//! | `volumes/kubernetes.io~empty-dir/<volume>` | an emptyDir; with `medium: Memory` a tmpfs is mounted on it |
//! | `volumes/kubernetes.io~configmap/<volume>` | a configMap's files, on disk |
//! | `volumes/kubernetes.io~{secret,projected,downward-api}/<volume>` | the same for those kinds, on a tmpfs |
//! | `volumes/kubernetes.io~image/<volume>` | an image's files, mounted read-only |
//! | `volumes/kubernetes.io~nfs/<volume>` | an export of a server, mounted on it |
//! | `volumes/kubernetes.io~iscsi/<volume>` | a disk of an iSCSI target, bound from where it is mounted for the node |
//! | `volumes/kubernetes.io~csi/<volume>/mount` | a volume of a CSI driver, which has mounted it |
//! | `volumes/<vendor>~<driver>/<volume>` | a flexVolume, which its driver has mounted |
//! | `volumeDevices/kubernetes.io~iscsi/<volume>` | a link to the device of such a disk |
//! | `volume-subpaths/<volume>/<container>/<n>` | the bind mount of a `subPath`, or of a mount with `recursiveReadOnly` |
//! | `containers/<container>/<container id>` | a container's termination message |
//! | `containers/<container>/<container id>-volumes/<n>` | a volume that its image declares |
//! | `etc-hosts`, `etc-hostname`, `etc-resolv.conf` | mounted into every container that does not mount its own |
//!
//! [`Volumes::prepare`] creates them and can be repeated at any time: files that a container has written are not changed.
//! `etc-hosts` and `etc-resolv.conf` are rewritten in place when their content changes, since containers have these
//! files mounted. Disk emptyDirs survive a reboot, memory ones do not; both are removed with the pod.
//!
//! [`Volumes::update`] replaces the files of configMap, secret, projected and downwardAPI volumes when their content
//! changes, atomically and without touching a container; a `subPath` of one keeps the file it was bound to.
//!
//! Volumes of other kinds are rejected with an error that names the kind.

mod block_device;
mod claim;
mod csi;
mod declared;
mod dns;
mod empty_dir;
mod env_file;
mod error;
mod files;
mod flex;
mod host_path;
mod hostname;
mod hosts;
mod image;
mod in_place;
mod in_use;
mod iscsi;
mod local;
mod measured;
mod mounted;
mod mounts;
mod nfs;
mod node_tools;
mod payload;
mod plugin_directory;
mod preparation;
mod propagation;
mod read_only;
mod removal;
mod resolver;
mod secret_values;
mod source;
mod sub_path;
mod termination;
mod tmpfs;
mod undoing;
mod written;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use tokio::sync::Notify;

pub use self::block_device::BlockDevice;
pub use self::dns::{ClusterDns, LocalDns, Resolver};
pub use self::env_file::read_env_file;
pub use self::error::VolumeError;
pub use self::hostname::{PodHostname, pod_hostname};
pub use self::in_use::{InUse, VolumesInUse};
pub use self::measured::MeasuredVolume;
pub use self::mounts::absolute;
pub use self::termination::MAX_TERMINATION_MESSAGE;
use crate::blocking::{self, DEADLINE, Progress};
use crate::claim_directories::ClaimDirectories;
use crate::keyed_lock::KeyedLock;
use limpet_model::object::PodObjects;
use limpet_model::pod::downward::NodeLimits;
use limpet_model::pod::volume_kind::VolumePlugin;
use limpet_model::pod::{PodRecord, PodUid};
use limpet_model::sandbox::PodAddresses;

/// A large emptyDir on an SD card takes minutes to remove. An attempt after the deadline waits for the previous one.
const REMOVAL_DEADLINE: Duration = Duration::from_secs(120);

/// How mounts on one side of a bind mount propagate to the other (`mountPropagation`).
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
    pub propagation: Propagation,
}

/// A problem for the pod's author, reported as a Warning event of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// kubelet's reason.
    pub reason: &'static str,
    /// The event's message.
    pub message: String,
}

/// The volumes of this node's pods. Clones share the settings.
#[derive(Debug, Clone)]
pub struct Volumes {
    settings: Arc<Settings>,
    disks: Arc<iscsi::IscsiDisks>,
    /// By the path of a driver's or the node's volume.
    locks: Arc<KeyedLock<PathBuf>>,
    /// Notified if a pod's resolv.conf could not be written.
    resolver_behind: Arc<Notify>,
}

/// The settings of pods' volumes and of the files they are provided with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSettings {
    /// `volumePluginDir`: the drivers of flexVolumes, each as `<vendor>~<driver>/<driver>`.
    pub plugin_dir: PathBuf,
    /// `resolvConf`: the node's `resolv.conf`; `None`: pods get an empty one.
    pub resolv_conf: Option<PathBuf>,
    /// `persistentVolumesDirectory`: the files of claims; `None`: below the agent's persistent directory.
    pub claims_dir: Option<PathBuf>,
    /// `clusterDNS`, `clusterDomain`.
    pub cluster: ClusterDns,
    /// `volumeStatsAggPeriod`: how often a pod with a limit on its use of the disk is measured.
    pub stats_period: Duration,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        Self {
            plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec".into(),
            resolv_conf: Some("/etc/resolv.conf".into()),
            claims_dir: None,
            cluster: ClusterDns::default(),
            stats_period: Duration::from_secs(60),
        }
    }
}

/// The settings, and the node's resources that volumes need.
#[derive(Debug)]
pub struct Settings {
    pub configured: VolumeSettings,
    /// The agent's persistent directory; volumes are in `pods/<uid>` below it.
    pub root_dir: PathBuf,
    /// The node's own `/etc/hosts`.
    pub hosts_file: PathBuf,
    /// The node's resources, used for containers without limits in downwardAPI volumes.
    pub limits: NodeLimits,
    /// The name servers of the node's own Services.
    pub local_dns: LocalDns,
}

impl VolumeSettings {
    /// The directory with the files of claims, for an agent with that persistent directory.
    pub fn claims_dir(&self, root_dir: &Path) -> PathBuf {
        claim::base(self.claims_dir.as_deref(), root_dir)
    }
}

impl Settings {
    fn claim_directories(&self) -> ClaimDirectories {
        ClaimDirectories::new(&self.configured.claims_dir(&self.root_dir), &self.root_dir)
    }

    /// The name servers that pods have beside the node's.
    fn cluster_dns(&self) -> ClusterDns {
        self.local_dns.or_configured(&self.configured.cluster)
    }

    fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.pods_dir().join(uid.as_str())
    }

    fn pods_dir(&self) -> PathBuf {
        self.root_dir.join("pods")
    }
}

impl Volumes {
    /// Volumes with these settings. Disks of targets are in `in_use` while they are attached. Does not access the
    /// disk.
    pub fn new(settings: Settings, in_use: VolumesInUse) -> Self {
        let disks = iscsi::IscsiDisks::new(&settings.root_dir, in_use);
        Self {
            settings: Arc::new(settings),
            disks: Arc::new(disks),
            locks: Arc::default(),
            resolver_behind: Arc::default(),
        }
    }

    /// Where the name servers of the node's own Services are set.
    pub fn local_dns(&self) -> LocalDns {
        self.settings.local_dns.clone()
    }

    /// Marks disks of targets in use that earlier agents have attached.
    pub async fn find_disks_in_use(&self) {
        if let Err(error) = self.disks.find_in_use().await {
            tracing::warn!(%error, "iSCSI disks that were attached earlier cannot be found");
        }
    }

    /// Prepares every volume and file of the pod, from the objects to which it refers. `hostname` is the content of
    /// the pod's `/etc/hostname`: its own name ([`PodHostname::kernel`]), or the host's with `hostNetwork`.
    /// Idempotent: neither changes files that are up to date nor deletes any.
    pub async fn prepare(
        &self,
        pod: &PodRecord,
        objects: &PodObjects,
        addresses: &PodAddresses,
        hostname: &str,
    ) -> Result<Vec<Warning>, VolumeError> {
        let work = preparation::Preparation::new(pod, objects, addresses, hostname, &self.settings)?;
        self.mount_exports(pod, objects).await?;
        let settings = self.settings.clone();
        let path = settings.pod_dir(&pod.uid);
        let mut warnings = blocking(path.clone(), DEADLINE, move |progress| work.run(&settings, progress)).await?;
        for volume in local::LocalVolume::all(pod, objects, &path)? {
            warnings.extend(volume.set_up(&self.settings.pods_dir(), &pod.uid, &self.locks).await?);
        }
        Ok(warnings)
    }

    /// Mounts the pod's exports of servers, disks of targets and volumes of drivers that are not mounted. Each has
    /// its own deadline, and those of one pod are mounted concurrently.
    ///
    /// # Errors
    ///
    /// One cannot be mounted; the error names it.
    pub async fn mount_exports(&self, pod: &PodRecord, objects: &PodObjects) -> Result<(), VolumeError> {
        let pod_dir = self.settings.pod_dir(&pod.uid);
        let (mut exports, mut disks, mut of_drivers) = (Vec::new(), Vec::new(), Vec::new());
        for volume in pod.spec().volumes.iter().flatten() {
            match source::VolumeSource::find(volume, pod, objects, &pod_dir)? {
                Some((source::VolumeSource::Server(export), _)) => exports.push(export),
                Some((source::VolumeSource::Disk(disk), _)) => disks.push(disk),
                Some((source::VolumeSource::Flex(mount), _)) => of_drivers.push(mount),
                // A path of the node is there, and a CSI driver is asked elsewhere.
                Some((
                    source::VolumeSource::Node(_) | source::VolumeSource::Claim(_) | source::VolumeSource::Driver(_),
                    _,
                ))
                | None => {}
            }
        }
        let exports = futures_util::future::join_all(exports.iter().map(nfs::NfsMount::set_up));
        let disks = futures_util::future::join_all(disks.iter().map(|disk| self.disks.set_up(disk, &pod.uid)));
        let of_drivers = of_drivers.iter().map(|mount| mount.set_up(&self.settings.configured.plugin_dir, &self.locks));
        let (exports, disks, of_drivers) = tokio::join!(exports, disks, futures_util::future::join_all(of_drivers));
        let mounted = exports.into_iter().chain(disks).chain(of_drivers).collect::<Result<(), VolumeError>>();
        mounted.map_err(|error| match error {
            // A tool may quote its arguments.
            VolumeError::Mount { volume, export, reason } => {
                VolumeError::Mount { volume, export, reason: objects.redact(reason) }
            }
            error => error,
        })
    }

    /// Rewrites a prepared pod's configMap, secret, projected and downwardAPI volumes, each atomically, and gives its
    /// claims their sizes. Returns the names of the volumes whose content changed. A volume that cannot be written keeps
    /// its old content, and the others are still written.
    pub async fn update(&self, pod: &PodRecord, objects: &PodObjects) -> Result<Vec<String>, VolumeError> {
        let path = self.settings.pod_dir(&pod.uid);
        let sources = payload::Sources { pod, objects, node: self.settings.limits };
        let written = preparation::written_volumes(sources, &path);
        let claims = claim::ClaimDirectory::all(pod, objects);
        if written.is_empty() && claims.is_empty() {
            return Ok(Vec::new());
        }
        let settings = self.settings.clone();
        let resize = move || claims.iter().try_for_each(|claim| claim.resize(&settings));
        blocking(path, DEADLINE, move |_| preparation::update(written).and_then(|changed| resize().map(|()| changed)))
            .await
    }

    /// The mounts of one container, parents before children: its `volumeMounts`, then `/etc/hosts`, `/etc/hostname`
    /// and `/etc/resolv.conf` unless it mounts them itself, and the termination message's file, which is created
    /// here, as is a missing hostPath, by its type. The `/etc/hosts` of a pod with `hostNetwork` is the node's
    /// current one. With a SELinux `label`, everything that only the pod uses gets it: its volumes on disk and in
    /// memory, disks, volumes of drivers, and the agent's files; not a path of the node, export or image.
    /// [`Self::prepare`] must have succeeded. Blocks; `progress` gets the path that is accessed.
    pub fn mounts(
        &self,
        pod: &PodRecord,
        objects: &PodObjects,
        container: &Container,
        container_id: &str,
        label: Option<&str>,
        progress: &Progress,
    ) -> Result<Vec<Mount>, VolumeError> {
        let pod_dir = &self.settings.pod_dir(&pod.uid);
        if pod.host_network() {
            let aliases = pod.spec().host_aliases.as_deref().unwrap_or_default();
            hosts::write_host_network(pod_dir, &self.settings.hosts_file, aliases)?;
        }
        mounts::container_mounts(mounts::Sources { pod, objects, pod_dir, label }, container, container_id, progress)
    }

    /// The host's block devices for one container's `volumeDevices`. [`Self::prepare`] must have succeeded. Blocks;
    /// `progress` gets the path that is accessed.
    ///
    /// # Errors
    ///
    /// A device is missing, is not a block device, or its claim is for another mode.
    pub fn block_devices(
        &self,
        pod: &PodRecord,
        objects: &PodObjects,
        container: &Container,
        progress: &Progress,
    ) -> Result<Vec<BlockDevice>, VolumeError> {
        block_device::container_devices(pod, objects, container, &self.settings.pod_dir(&pod.uid), progress)
    }

    /// The mount point of an image volume; [`Self::prepare`] creates the directory.
    pub fn image_volume(&self, uid: &PodUid, volume: &str) -> PathBuf {
        plugin_directory::volume(&self.settings.pod_dir(uid), VolumePlugin::Image, volume)
    }

    /// Detaches all mounts of a pod with image volumes, and returns their names. [`Self::unmount`] must have
    /// succeeded.
    pub async fn detach_images(&self, uid: &PodUid) -> Result<Vec<String>, VolumeError> {
        let path = self.settings.pod_dir(uid);
        blocking(path.clone(), DEADLINE, move |_| image::detach(&path)).await
    }

    /// The directory of an emptyDir.
    pub fn empty_dir(&self, uid: &PodUid, volume: &str) -> PathBuf {
        empty_dir::EmptyDir::path(&self.settings.pod_dir(uid), volume)
    }

    /// The pod's volumes that are measured.
    pub fn measured<'a>(&self, pod: &'a PodRecord) -> impl Iterator<Item = MeasuredVolume> + use<'a> {
        let pod_dir = self.settings.pod_dir(&pod.uid);
        pod.spec().volumes.iter().flatten().filter_map(move |volume| measured::measured(volume, &pod_dir))
    }

    /// The directory of a pod's files, the subject of blocking calls on them.
    pub fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.settings.pod_dir(uid)
    }

    /// The host's file for a container's termination message, as [`Self::mounts`] creates it.
    pub fn termination_log(&self, uid: &PodUid, container: &str, container_id: &str) -> PathBuf {
        termination::path(&self.settings.pod_dir(uid), container, container_id)
    }

    /// An exited container's termination message: its last [`MAX_TERMINATION_MESSAGE`] bytes; only these are kept.
    pub async fn termination_message(
        &self,
        uid: &PodUid,
        container: &str,
        container_id: &str,
    ) -> Result<String, VolumeError> {
        let path = self.termination_log(uid, container, container_id);
        let read = move |_: &Progress| termination::read(&path, MAX_TERMINATION_MESSAGE);
        blocking(self.pod_dir(uid), DEADLINE, read).await
    }

    /// Removes all files of a pod after [`Self::unmount`]: detaches other mounts below its directory, busy or not,
    /// and deletes the directory without following a symlink or crossing into another mount. A missing directory
    /// counts as success.
    pub async fn remove(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let (pods, name) = (self.settings.pods_dir(), uid.clone());
        blocking(self.settings.pod_dir(uid), REMOVAL_DEADLINE, move |_| removal::remove(&pods, name.as_str())).await
    }

    /// The pods that have a directory, for the clean-up of orphans.
    pub async fn list(&self) -> Vec<PodUid> {
        let dir = self.settings.pods_dir();
        let listed = blocking(dir.clone(), DEADLINE, move |_| files::directories(&dir)).await;
        let names = listed.unwrap_or_else(|error| {
            tracing::warn!(%error, "listing the directories of pods failed");
            Vec::new()
        });
        names.into_iter().filter_map(|name| PodUid::parse(name).ok()).collect()
    }
}

/// Runs `work` on a blocking thread, one call at a time for each `path`.
async fn blocking<T: Send + 'static>(
    path: PathBuf,
    deadline: Duration,
    work: impl FnOnce(&Progress) -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    blocking::run(path, deadline, work).await.map_err(VolumeError::Blocking)?
}

#[cfg(test)]
mod tests;
