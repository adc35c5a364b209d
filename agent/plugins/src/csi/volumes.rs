//! Volumes on the node's side: staged once for the node, published for each pod, and both undone at the end.
//!
//! What has to be undone is on disk before the first call to a driver, so nothing else has to be remembered: a pod's
//! end finds its volumes there, whichever agent has mounted them. Calls about one volume are serialized; those about
//! different volumes are independent. Drivers are idempotent, so a call whose answer was lost is repeated.

mod expand;
mod leftovers;
mod stats;
mod volume_request;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::driver::{CallError, Driver, Mounting};
use super::files::VolumeData;
use super::layout::{self, Layout};
use super::{CsiDrivers, InUse, VolumesInUse};
pub use expand::ExpandError;
use leftovers::Leftovers;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::call_watch::calling;
use limpet_host::fs_group;
use limpet_host::keyed_lock::KeyedLock;
use limpet_model::object::csi::CsiVolume;
use limpet_model::pod::{PodRecord, PodUid};
pub use volume_request::VolumeRequest;
use volume_request::fs_group_of;

/// Why a volume is not mounted, or not unmounted.
#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    /// The driver is not registered; with the remedy.
    #[error("{0}")]
    NoDriver(String),
    /// The driver has refused, or has not answered.
    #[error("CSI driver {driver}, volume {handle}: {call}")]
    Call {
        driver: String,
        handle: String,
        /// The call and its result.
        call: CallError,
    },
    /// The volumes of a pod cannot be read.
    #[error("cannot look for volumes of CSI drivers in {path}: {source}", path = path.display())]
    Pod {
        /// The pod's directory.
        path: PathBuf,
        source: io::Error,
    },
    /// A file of the node cannot be accessed.
    #[error("volume {handle} of CSI driver {driver}: cannot {operation} {path}: {source}", path = path.display())]
    File { driver: String, handle: String, operation: &'static str, path: PathBuf, source: io::Error },
}

/// A volume's driver and handle.
type VolumeKey = (String, String);

/// The volumes of CSI drivers on this node.
#[derive(Debug)]
pub struct CsiVolumes {
    drivers: Arc<CsiDrivers>,
    in_use: VolumesInUse,
    node: String,
    layout: Layout,
    /// Volumes with a call in progress.
    locks: KeyedLock<VolumeKey>,
    /// Volumes that no pod uses any more.
    leftovers: Mutex<Leftovers>,
    /// Notified when there are more of them.
    more: Notify,
    /// The volumes in the Node's status, because they are staged or published.
    held: Mutex<HashMap<VolumeKey, InUse>>,
}

impl CsiVolumes {
    /// Volumes on the node with this name, with pods below `root_dir` and staged volumes below `plugin_dir`.
    pub fn new(
        drivers: Arc<CsiDrivers>,
        in_use: VolumesInUse,
        node: &str,
        root_dir: &Path,
        plugin_dir: Option<&Path>,
    ) -> Self {
        Self {
            drivers,
            in_use,
            node: node.to_owned(),
            layout: Layout::new(root_dir, plugin_dir),
            locks: KeyedLock::default(),
            leftovers: Mutex::default(),
            more: Notify::default(),
            held: Mutex::default(),
        }
    }

    pub fn drivers(&self) -> &CsiDrivers {
        &self.drivers
    }

    /// Stages and publishes a volume for the pod, unless that is done.
    ///
    /// # Errors
    ///
    /// The driver is missing, refuses, or does not answer.
    pub async fn set_up(&self, pod: &PodRecord, wanted: &VolumeRequest<'_>) -> Result<(), CsiError> {
        let volume = wanted.volume;
        let mut data = self.data(volume);
        data.set_pod_volume(wanted.name);
        let _guard = self.locks.lock(key(&data)).await;
        if self.is_published(&data, &pod.uid).await? {
            self.hold(volume, &data);
            return Ok(());
        }
        let driver = self.drivers.get(&volume.driver).map_err(CsiError::NoDriver)?;
        self.on_files(&data, "write down", of_pod(&pod.uid, Layout::begin)).await?;
        self.hold(volume, &data);
        if driver.capabilities().stage && !volume.ephemeral {
            self.stage(&driver, &wanted.for_stage(pod, &driver), &data).await?;
        }
        self.publish(pod, wanted, &driver, &data).await?;
        tracing::info!(pod = %pod.key, driver = volume.driver, volume = volume.name, "volume published");
        self.on_files(&data, "write down", of_pod(&pod.uid, Layout::published)).await
    }

    /// Publishes a volume of a running pod again, because its driver may have something new for it.
    ///
    /// # Errors
    ///
    /// The driver is missing, refuses, or does not answer; what was published stays.
    pub async fn republish(&self, pod: &PodRecord, wanted: &VolumeRequest<'_>) -> Result<(), CsiError> {
        let data = self.data(wanted.volume);
        let _guard = self.locks.lock(key(&data)).await;
        if !self.is_published(&data, &pod.uid).await? {
            // The pod has ended, or its volume was unmounted, so the next container mounts it.
            return Ok(());
        }
        let driver = self.drivers.get(&data.driver).map_err(CsiError::NoDriver)?;
        self.publish(pod, wanted, &driver, &data).await
    }

    /// `NodePublishVolume`, and the node's part after it.
    async fn publish(
        &self,
        pod: &PodRecord,
        wanted: &VolumeRequest<'_>,
        driver: &Driver,
        data: &VolumeData,
    ) -> Result<(), CsiError> {
        let staged = driver.capabilities().stage && !wanted.volume.ephemeral;
        let staging = staged.then(|| self.layout.staging(data));
        let target = self.layout.target(data, &pod.uid);
        calling("NodePublishVolume of its CSI driver");
        driver.publish(&wanted.for_publish(pod, driver, staging), &target).await.map_err(call(data))?;
        let is_given = !driver.capabilities().mount_group && wanted.volume.takes_fs_group(wanted.read_only);
        match fs_group_of(pod).filter(|_| is_given) {
            Some(group) => self.set_group(data, pod, target, group).await,
            None => Ok(()),
        }
    }

    /// Whether everything about the volume is done for the pod.
    async fn is_published(&self, data: &VolumeData, uid: &PodUid) -> Result<bool, CsiError> {
        self.on_files(data, "look for", of_pod(uid, Layout::is_published)).await
    }

    /// Stages a volume unless it is staged.
    async fn stage(&self, driver: &Driver, mounting: &Mounting<'_>, data: &VolumeData) -> Result<(), CsiError> {
        let staging = self.layout.staging(data);
        // For a device this is unknown, so the driver may be called again.
        if !data.block && self.is_mounted(data, staging.clone()).await? {
            return Ok(());
        }
        self.on_files(data, "write down", Layout::begin_stage).await?;
        calling("NodeStageVolume of its CSI driver");
        driver.stage(mounting, &staging).await.map_err(call(data))?;
        tracing::info!(driver = driver.name(), volume = mounting.volume.name, "volume staged");
        Ok(())
    }

    /// Gives the volume's files to the pod's group.
    async fn set_group(&self, data: &VolumeData, pod: &PodRecord, path: PathBuf, group: u32) -> Result<(), CsiError> {
        let context = pod.spec().security_context.as_ref();
        let policy = context.and_then(|context| context.fs_group_change_policy.as_deref());
        let on_root_mismatch = policy == Some("OnRootMismatch");
        calling("setting the group of a volume's files");
        let subject = path.clone();
        let given =
            blocking::run(subject.clone(), fs_group::DEADLINE, move |_| fs_group::set(&path, group, on_root_mismatch));
        given.await.and_then(|given| given).map_err(file(data, "set the group of", subject))
    }

    /// Unpublishes all volumes of the pod, and unstages those that no other pod uses.
    ///
    /// # Errors
    ///
    /// A driver is missing, refuses, or does not answer: the pod keeps that volume, and the others are gone.
    pub async fn tear_down(&self, uid: &PodUid) -> Result<(), CsiError> {
        let (layout, owner, pod) = (self.layout.clone(), uid.clone(), self.layout.pods.join(uid.as_str()));
        let volumes =
            blocking::run(pod.clone(), DEADLINE, move |_| layout.volumes_of(&owner)).await.and_then(|volumes| volumes);
        let volumes = volumes.map_err(|source| CsiError::Pod { path: pod, source })?;
        let torn_down = volumes.iter().map(|data| self.tear_down_one(uid, data));
        futures_util::future::join_all(torn_down).await.into_iter().collect()
    }

    async fn tear_down_one(&self, uid: &PodUid, data: &VolumeData) -> Result<(), CsiError> {
        let _guard = self.locks.lock(key(data)).await;
        let driver = self.drivers.get(&data.driver).map_err(CsiError::NoDriver)?;
        let target = self.layout.target(data, uid);
        calling("NodeUnpublishVolume of its CSI driver");
        let unpublished = driver.unpublish(&data.handle, &target).await;
        self.undone(data, target, unpublished).await?;
        self.on_files(data, "remove", of_pod(uid, Layout::end)).await?;
        tracing::info!(%uid, driver = data.driver, volume = data.handle, "volume unpublished");
        // The pod has released it; unstaging concerns only the node and the driver.
        if let Err(error) = self.unstage(&driver, data).await {
            tracing::warn!(%error, "unstaging an unused volume failed; retried later");
            self.unstage_later(data);
        }
        Ok(())
    }

    /// Unstages a volume that no pod uses any more.
    async fn unstage(&self, driver: &Driver, data: &VolumeData) -> Result<(), CsiError> {
        if self.on_files(data, "look for", Layout::is_used).await? {
            return Ok(());
        }
        if self.on_files(data, "look for", Layout::is_staged).await? {
            let staging = self.layout.staging(data);
            calling("NodeUnstageVolume of its CSI driver");
            let unstaged = driver.unstage(&data.handle, &staging).await;
            self.undone(data, staging, unstaged).await?;
            tracing::info!(driver = data.driver, volume = data.handle, "volume unstaged");
        }
        self.on_files(data, "remove", Layout::end_stage).await?;
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&key(data));
        Ok(())
    }

    /// Interprets the answer to undoing a mount: if the driver no longer knows the volume, that counts as success,
    /// unless something is still mounted.
    async fn undone(&self, data: &VolumeData, path: PathBuf, answer: Result<(), CallError>) -> Result<(), CsiError> {
        match answer {
            Err(error) if error.is_not_found() && !self.is_mounted(data, path).await? => Ok(()),
            answer => answer.map_err(call(data)),
        }
    }

    /// The record of a pod's volume, with kubelet's keys.
    fn data(&self, volume: &CsiVolume) -> VolumeData {
        let mode = if volume.ephemeral { "Ephemeral" } else { "Persistent" };
        let more = [
            ("specVolID", volume.name.clone()),
            ("nodeName", self.node.clone()),
            ("volumeLifecycleMode", mode.to_owned()),
            ("attachmentID", volume.attachment(&self.node)),
        ];
        let more = more.map(|(name, value)| (name.to_owned(), value)).into();
        VolumeData { driver: volume.driver.clone(), handle: volume.handle.clone(), more, block: volume.block }
    }

    /// Lists an attached volume in the Node's status until it is unstaged.
    fn hold(&self, volume: &CsiVolume, data: &VolumeData) {
        if volume.settings.attach {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.entry(key(data)).or_insert_with(|| self.in_use.begin(volume.unique_name()));
        }
    }

    /// Whether something is mounted on `path`, by the mount table alone.
    async fn is_mounted(&self, data: &VolumeData, path: PathBuf) -> Result<bool, CsiError> {
        self.on_files(data, "look for", move |_, _| layout::is_mounted(&path)).await
    }

    /// Runs `work` on files of the node.
    async fn on_files<T: Send + 'static>(
        &self,
        data: &VolumeData,
        operation: &'static str,
        work: impl FnOnce(&Layout, &VolumeData) -> io::Result<T> + Send + 'static,
    ) -> Result<T, CsiError> {
        let (layout, volume) = (self.layout.clone(), data.clone());
        let path = self.layout.staging(data);
        let done = blocking::run(path.clone(), DEADLINE, move |_| work(&layout, &volume)).await;
        done.and_then(|done| done).map_err(file(data, operation, path))
    }
}

/// What is done of a volume for the pod.
fn of_pod<T: 'static>(
    uid: &PodUid,
    work: fn(&Layout, &VolumeData, &PodUid) -> io::Result<T>,
) -> impl FnOnce(&Layout, &VolumeData) -> io::Result<T> + Send + 'static + use<T> {
    let uid = uid.clone();
    move |layout, data| work(layout, data, &uid)
}

fn key(data: &VolumeData) -> VolumeKey {
    (data.driver.clone(), data.handle.clone())
}

fn call(data: &VolumeData) -> impl FnOnce(CallError) -> CsiError {
    let (driver, handle) = key(data);
    move |call| CsiError::Call { driver, handle, call }
}

fn file(data: &VolumeData, operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> CsiError {
    let ((driver, handle), path) = (key(data), path.into());
    move |source| CsiError::File { driver, handle, operation, path, source }
}
