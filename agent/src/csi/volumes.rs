//! The node's side of volumes: staged once for the node, published for each pod, and both undone at the end.
//!
//! What is to be undone is on disk before a driver is asked to do anything, so nothing else has to be remembered: a pod's end
//! finds its volumes there, whichever agent has made them. One volume's calls come one after the other; those of different
//! volumes do not wait for each other. Drivers are idempotent, so a call whose answer was lost is made again.

mod leftovers;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::CsiDrivers;
use super::driver::{CallError, Driver, Mounting};
use super::files::{self, VolumeData};
use super::in_use::{InUse, VolumesInUse};
use limpet_containerd::client::calling;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::{fs_group, mount_table};
use limpet_model::object::csi::{CsiVolume, staging_directory};
use limpet_model::pod::{PodRecord, PodUid};

/// The directory that a driver mounts a pod's volume on.
const MOUNT: &str = "mount";
/// The directory that a driver stages a volume on.
const GLOBAL_MOUNT: &str = "globalmount";
/// What is written down of a volume, beside what kubelet writes, once all is done that a pod needs.
const PUBLISHED: &str = "limpet.dev/published";
/// How long the files of a volume may take to be given to a group.
const FS_GROUP_DEADLINE: Duration = Duration::from_secs(600);

/// Why a volume is not there, or not gone.
#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    /// The driver is not registered; with the remedy.
    #[error("{0}")]
    NoDriver(String),
    /// The driver has refused, or not answered.
    #[error("CSI driver {driver}, volume {handle}: {call}")]
    Call {
        /// The driver.
        driver: String,
        /// The volume.
        handle: String,
        /// The call, and what came of it.
        call: CallError,
    },
    /// A file of the node cannot be had.
    #[error("volume {handle} of CSI driver {driver}: cannot {operation} {path}: {source}", path = path.display())]
    File {
        /// The driver.
        driver: String,
        /// The volume.
        handle: String,
        /// What cannot be done.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A volume for a pod.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The volume.
    pub volume: &'a CsiVolume,
    /// The values of the Secret for `NodeStageVolume`.
    pub stage_secret: BTreeMap<String, String>,
    /// The values of the Secret for `NodePublishVolume`.
    pub publish_secret: BTreeMap<String, String>,
    /// The pod only reads it.
    pub read_only: bool,
}

/// One volume: its driver and its handle.
type VolumeKey = (String, String);

/// The volumes of CSI drivers on this node.
#[derive(Debug)]
pub struct CsiVolumes {
    drivers: Arc<CsiDrivers>,
    in_use: VolumesInUse,
    node: String,
    /// The directory of all pods.
    pods: PathBuf,
    /// The directory of staged volumes, by driver.
    staged: PathBuf,
    /// Those that are called about.
    gates: Mutex<HashMap<VolumeKey, Arc<Semaphore>>>,
    /// The pods that are gone and have volumes, with the directory of these.
    later: Mutex<BTreeMap<PodUid, PathBuf>>,
    /// Those that are named in the Node's status since they are staged or published.
    held: Mutex<HashMap<VolumeKey, InUse>>,
}

impl CsiVolumes {
    /// Those of the node of that name, with pods below `root_dir` and staged volumes below `plugin_dir`.
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
            pods: root_dir.join("pods"),
            staged: plugin_dir.unwrap_or(root_dir).join("plugins/kubernetes.io/csi"),
            gates: Mutex::default(),
            later: Mutex::default(),
            held: Mutex::default(),
        }
    }

    /// The drivers.
    pub fn drivers(&self) -> &CsiDrivers {
        &self.drivers
    }

    /// Stages and publishes a volume for the pod, unless that is done. `directory` is the volume's own, in the pod's.
    ///
    /// # Errors
    /// The driver is not there, refuses, or does not answer.
    pub async fn set_up(&self, pod: &PodRecord, wanted: &Wanted<'_>, directory: PathBuf) -> Result<(), CsiError> {
        let volume = wanted.volume;
        let data = self.data(volume);
        let _turn = self.turn(&data).await;
        let target = directory.join(MOUNT);
        if self.is_published(&data, &directory).await? {
            self.hold(volume, &data);
            return Ok(());
        }
        let driver = self.drivers.get(&volume.driver).map_err(CsiError::NoDriver)?;
        self.write(&data, "write", directory.clone(), {
            let (directory, data) = (directory.clone(), data.clone());
            move || files::write(&directory, &data)
        })
        .await?;
        self.hold(volume, &data);
        let group = pod.spec().security_context.as_ref().and_then(|context| context.fs_group);
        let group = group.and_then(|group| u32::try_from(group).ok());
        let mut mounting = Mounting {
            volume,
            attributes: volume.attributes.clone(),
            secrets: &wanted.stage_secret,
            group: group.filter(|_| driver.capabilities().mount_group),
            staging: None,
            read_only: wanted.read_only,
        };
        if driver.capabilities().stage && !volume.ephemeral {
            let staging = self.stage(&driver, &mounting, &data).await?;
            mounting.staging = Some(staging);
        }
        mounting.secrets = &wanted.publish_secret;
        mounting.attributes = volume.attributes_for(pod);
        calling("NodePublishVolume of its CSI driver");
        driver.publish(&mounting, &target).await.map_err(call(&data))?;
        tracing::info!(pod = %pod.key, driver = volume.driver, volume = volume.name, "volume published");
        let owned = group.filter(|_| !driver.capabilities().mount_group && volume.takes_fs_group(wanted.read_only));
        if let Some(group) = owned {
            self.give(&data, pod, target, group).await?;
        }
        let mut published = data.clone();
        published.more.insert(PUBLISHED.to_owned(), true.to_string());
        self.write(&data, "write", directory.clone(), move || files::write(&directory, &published)).await
    }

    /// Whether all is done of the volume in `directory`, by this agent or one before it.
    async fn is_published(&self, data: &VolumeData, directory: &Path) -> Result<bool, CsiError> {
        let read = {
            let directory = directory.to_owned();
            blocking::run(directory.clone(), DEADLINE, move |_| files::read(&directory)).await
        };
        let known = read.and_then(|read| read).map_err(file(data, "read", directory))?;
        let done = known.is_some_and(|known| known.is(data) && known.more.contains_key(PUBLISHED));
        Ok(done && self.is_mounted(data, &directory.join(MOUNT)).await?)
    }

    /// Stages a volume, unless it is; the directory that it is staged on.
    async fn stage(&self, driver: &Driver, mounting: &Mounting<'_>, data: &VolumeData) -> Result<PathBuf, CsiError> {
        let directory = self.staging(data);
        let staging = directory.join(GLOBAL_MOUNT);
        if self.is_mounted(data, &staging).await? {
            return Ok(staging);
        }
        self.write(data, "make", staging.clone(), {
            let (directory, staging) = (directory.clone(), staging.clone());
            let data = VolumeData { more: BTreeMap::new(), ..data.clone() };
            move || files::write(&directory, &data).and_then(|()| files::make(&staging))
        })
        .await?;
        calling("NodeStageVolume of its CSI driver");
        driver.stage(mounting, &staging).await.map_err(call(data))?;
        tracing::info!(driver = driver.name(), volume = mounting.volume.name, "volume staged");
        Ok(staging)
    }

    /// Gives the volume's files to the pod's group.
    async fn give(&self, data: &VolumeData, pod: &PodRecord, path: PathBuf, group: u32) -> Result<(), CsiError> {
        let context = pod.spec().security_context.as_ref();
        let policy = context.and_then(|context| context.fs_group_change_policy.as_deref());
        let on_root_mismatch = policy == Some("OnRootMismatch");
        calling("setting the group of a volume's files");
        let subject = path.clone();
        let given =
            blocking::run(subject.clone(), FS_GROUP_DEADLINE, move |_| fs_group::set(&path, group, on_root_mismatch));
        given.await.and_then(|given| given).map_err(file(data, "set the group of", subject))
    }

    /// Unpublishes all volumes of the pod, whose directories are in `directory`, and unstages those that no other pod has.
    ///
    /// # Errors
    /// A driver is not there, refuses, or does not answer: the pod keeps that volume, and the others are gone.
    pub async fn tear_down(&self, uid: &PodUid, directory: PathBuf) -> Result<(), CsiError> {
        let listed = {
            let directory = directory.clone();
            blocking::run(directory.clone(), DEADLINE, move |_| volumes_in(&directory)).await
        };
        let none = || VolumeData { driver: String::new(), handle: uid.to_string(), more: BTreeMap::new() };
        let found = listed.and_then(|listed| listed).map_err(|source| file(&none(), "read", directory)(source))?;
        let torn_down = found.iter().map(|(path, data)| self.tear_down_one(uid, path, data));
        futures_util::future::join_all(torn_down).await.into_iter().collect()
    }

    async fn tear_down_one(&self, uid: &PodUid, directory: &Path, data: &VolumeData) -> Result<(), CsiError> {
        let _turn = self.turn(data).await;
        let driver = self.drivers.get(&data.driver).map_err(CsiError::NoDriver)?;
        let target = directory.join(MOUNT);
        calling("NodeUnpublishVolume of its CSI driver");
        let unpublished = driver.unpublish(&data.handle, &target).await;
        self.undone(data, &target, unpublished).await?;
        self.write(data, "remove", directory.to_owned(), {
            let directory = directory.to_owned();
            move || files::remove(&directory, MOUNT)
        })
        .await?;
        tracing::info!(%uid, driver = data.driver, volume = data.handle, "volume unpublished");
        self.unstage(&driver, data).await
    }

    /// Unstages a volume that no pod has any more.
    async fn unstage(&self, driver: &Driver, data: &VolumeData) -> Result<(), CsiError> {
        let (pods, volume) = (self.pods.clone(), data.clone());
        let used = blocking::run(pods.clone(), DEADLINE, move |_| files::is_used(&pods, &volume)).await;
        if used.and_then(|used| used).map_err(file(data, "read", self.pods.clone()))? {
            return Ok(());
        }
        let directory = self.staging(data);
        let staging = directory.join(GLOBAL_MOUNT);
        let written = {
            let directory = directory.clone();
            blocking::run(directory.clone(), DEADLINE, move |_| files::read(&directory)).await
        };
        let written = written.and_then(|written| written).map_err(file(data, "read", directory.clone()))?;
        if !data.is_ephemeral() && written.is_some() {
            calling("NodeUnstageVolume of its CSI driver");
            let unstaged = driver.unstage(&data.handle, &staging).await;
            self.undone(data, &staging, unstaged).await?;
            self.write(data, "remove", directory.clone(), move || files::remove(&directory, GLOBAL_MOUNT)).await?;
            tracing::info!(driver = data.driver, volume = data.handle, "volume unstaged");
        }
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&key(data));
        Ok(())
    }

    /// Takes the answer to the undoing of a mount: a driver that does not know the volume any more has nothing to undo, if
    /// nothing is mounted.
    async fn undone(&self, data: &VolumeData, path: &Path, answer: Result<(), CallError>) -> Result<(), CsiError> {
        match answer {
            Err(error) if error.is_not_found() && !self.is_mounted(data, path).await? => Ok(()),
            answer => answer.map_err(call(data)),
        }
    }

    /// What is written down of a pod's volume, in kubelet's words.
    fn data(&self, volume: &CsiVolume) -> VolumeData {
        let mode = if volume.ephemeral { "Ephemeral" } else { "Persistent" };
        let more = [
            ("specVolID", volume.name.clone()),
            ("nodeName", self.node.clone()),
            ("volumeLifecycleMode", mode.to_owned()),
            ("attachmentID", volume.attachment(&self.node)),
        ];
        let more = more.map(|(name, value)| (name.to_owned(), value)).into();
        VolumeData { driver: volume.driver.clone(), handle: volume.handle.clone(), more }
    }

    /// The directory of a staged volume.
    fn staging(&self, data: &VolumeData) -> PathBuf {
        self.staged.join(&data.driver).join(staging_directory(&data.handle))
    }

    /// Waits until nobody else has a driver called about the volume.
    async fn turn(&self, data: &VolumeData) -> Turn<'_> {
        let gate = {
            let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(gates.entry(key(data)).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // It is never closed.
        let permit = gate.acquire_owned().await.ok();
        Turn { of: self, key: key(data), permit }
    }

    /// Names an attached volume in the Node's status until it is unstaged.
    fn hold(&self, volume: &CsiVolume, data: &VolumeData) {
        if volume.settings.attach {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.entry(key(data)).or_insert_with(|| self.in_use.begin(volume.unique_name()));
        }
    }

    /// Whether something is mounted on `path`, by the mount table alone.
    async fn is_mounted(&self, data: &VolumeData, path: &Path) -> Result<bool, CsiError> {
        let subject = path.parent().unwrap_or(path).to_owned();
        let (parent, name) = (subject.clone(), path.file_name().unwrap_or_default().to_owned());
        let looked = blocking::run(subject, DEADLINE, move |_| {
            let real = match parent.canonicalize() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                real => real?.join(name),
            };
            Ok(mount_table::mount_points()?.contains(&real))
        });
        looked.await.and_then(|looked| looked).map_err(file(data, "look for a mount at", path))
    }

    /// Changes files of the node.
    async fn write(
        &self,
        data: &VolumeData,
        operation: &'static str,
        path: PathBuf,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), CsiError> {
        let done = blocking::run(path.clone(), DEADLINE, move |_| work()).await;
        done.and_then(|done| done).map_err(file(data, operation, path))
    }
}

/// The right to have a driver called about a volume.
struct Turn<'a> {
    of: &'a CsiVolumes,
    key: VolumeKey,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut gates = self.of.gates.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waits has the gate as well.
        if gates.get(&self.key).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            gates.remove(&self.key);
        }
    }
}

fn key(data: &VolumeData) -> VolumeKey {
    (data.driver.clone(), data.handle.clone())
}

/// The volumes that are written down in the directories in `directory`. Blocks.
fn volumes_in(directory: &Path) -> io::Result<Vec<(PathBuf, VolumeData)>> {
    let mut found = Vec::new();
    for path in files::directories(directory)? {
        if let Some(data) = files::read(&path)? {
            found.push((path, data));
        }
    }
    Ok(found)
}

fn call(data: &VolumeData) -> impl FnOnce(CallError) -> CsiError {
    let (driver, handle) = key(data);
    move |call| CsiError::Call { driver, handle, call }
}

fn file(data: &VolumeData, operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> CsiError {
    let ((driver, handle), path) = (key(data), path.into());
    move |source| CsiError::File { driver, handle, operation, path, source }
}
