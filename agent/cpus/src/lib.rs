//! The processors on which containers run with `cpuManagerPolicy: static`: exclusive ones, and those that the others
//! share.
//!
//! [`limpet_core::cpu_allocation`] decides. This crate reads the machine, keeps the file across restarts, and moves
//! running containers when the shared processors have changed, with the runtime's update and without a restart.
//! Without the policy it does nothing.

mod sharing;
mod topology;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limpet_containerd::spec::ContainerCpus;
use limpet_core::cpu_allocation::checkpoint::{self, CheckpointError};
use limpet_core::cpu_allocation::{
    AllocationError, CpuAssignments, CpuPolicyOptions, NONE, PolicyError, ReservedCpus, STATIC, StaticPolicy,
};
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::private_file;
use limpet_model::cpu_set::CpuSet;
use limpet_model::pod::{PodRecord, PodUid};
use tokio::sync::watch;

use sharing::Applied;

/// The settings of processors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuPolicySettings {
    /// `cpuManagerPolicy: static` and its options; `None`: containers share all processors.
    pub policy: Option<CpuPolicyOptions>,
    /// `cpuManagerReconcilePeriod`.
    pub reconcile_period: Duration,
    /// `reservedSystemCPUs`.
    pub reserved: Option<CpuSet>,
}

impl Default for CpuPolicySettings {
    fn default() -> Self {
        Self { policy: None, reconcile_period: Duration::from_secs(10), reserved: None }
    }
}

/// The inputs of the policy.
#[derive(Debug, Clone)]
pub struct CpuSettings {
    /// `cpuManagerPolicy: static` and its options; `None`: `none`.
    pub policy: Option<CpuPolicyOptions>,
    /// `cpuManagerReconcilePeriod`: the interval after which a container that could not be moved is retried.
    pub retry_period: Duration,
    pub reserved: ReservedCpus,
    /// The directory of the file.
    pub root_dir: PathBuf,
}

/// Why the policy cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    #[error("the processors of this machine cannot be read: {0}")]
    Topology(#[source] io::Error),
    #[error("cpuManagerPolicy static: {0}")]
    Policy(#[source] PolicyError),
    #[error(
        "{path}: {why}; end this node's pods and delete the file before limpet is started again",
        path = path.display()
    )]
    Misfit { path: PathBuf, why: PolicyError },
    #[error(
        "could not restore state from checkpoint: {why}, please drain this node and delete the CPU manager checkpoint file \
         {path:?} before restarting limpet"
    )]
    Restore { path: PathBuf, why: CheckpointError },
    #[error("cannot read {path}", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The processors of all containers.
#[derive(Debug)]
pub struct ExclusiveCpus {
    policy: StaticPolicy,
    retry_period: Duration,
    file: PathBuf,
    assignments: Mutex<CpuAssignments>,
    /// The file's content; `None` if it does not exist, or its content is unknown. Locked during a write, so that
    /// writes are serialized.
    written: Mutex<Option<CpuAssignments>>,
    /// The processors of running containers.
    applied: Mutex<Applied>,
    /// Counts changes after which running containers have to be compared.
    changes: watch::Sender<u64>,
}

impl ExclusiveCpus {
    /// Adopts the assignments of an earlier agent, or of a kubelet; `None`: the policy is `none`.
    ///
    /// # Errors
    ///
    /// The file is damaged, has another policy, does not fit the machine, or cannot be read.
    pub async fn open(settings: CpuSettings) -> Result<Option<Self>, CpuError> {
        let file = settings.root_dir.join(checkpoint::FILE);
        let opened = blocking::run(file.clone(), DEADLINE, move |_| Self::open_blocking(settings));
        opened.await.unwrap_or_else(|source| Err(CpuError::Read { path: file, source }))
    }

    fn open_blocking(settings: CpuSettings) -> Result<Option<Self>, CpuError> {
        let file = settings.root_dir.join(checkpoint::FILE);
        let name = if settings.policy.is_some() { STATIC } else { NONE };
        let kept = read(&file, name)?;
        let Some(options) = settings.policy else {
            return reserved_are_online(&settings.reserved).map(|()| None);
        };
        let topology = topology::read(Path::new("/sys/devices/system")).map_err(CpuError::Topology)?;
        let policy = StaticPolicy::new(topology, &settings.reserved, options).map_err(CpuError::Policy)?;
        let restored = policy.restore(kept.clone());
        let assignments = restored.map_err(|why| CpuError::Misfit { path: file.clone(), why })?;
        tracing::info!(reserved = %policy.reserved(), shared = %assignments.shared, "containers have exclusive processors");
        let cpus = Self {
            policy,
            retry_period: settings.retry_period,
            file,
            assignments: Mutex::new(assignments),
            written: Mutex::new(kept),
            applied: Mutex::default(),
            changes: watch::Sender::new(0),
        };
        cpus.log_unwritten(cpus.write());
        Ok(Some(cpus))
    }

    /// Assigns exclusive processors to the pod's containers. Existing assignments are kept.
    ///
    /// # Errors
    ///
    /// There are too few, or not whole cores.
    pub async fn allocate(self: &Arc<Self>, pod: &PodRecord) -> Result<(), AllocationError> {
        let is_new = {
            let mut assignments = self.assignments();
            let next = self.policy.allocate(&assignments, pod.uid.as_str(), pod.spec())?;
            let is_new = *assignments != next;
            *assignments = next;
            is_new
        };
        if is_new {
            self.save().await;
        }
        Ok(())
    }

    /// Releases the pod's processors.
    pub async fn release(self: &Arc<Self>, uid: &PodUid) {
        let had = self.assignments().release(uid.as_str());
        if had {
            self.save().await;
        }
    }

    /// The pods that have exclusive processors.
    pub fn pods(&self) -> BTreeSet<PodUid> {
        self.assignments().exclusive.keys().filter_map(|uid| PodUid::parse(uid.as_str()).ok()).collect()
    }

    /// The processors that can be exclusive.
    pub fn allocatable(&self) -> CpuSet {
        self.policy.allocatable()
    }

    /// Whether a container of the pod has exclusive processors.
    pub fn has_exclusive(&self, uid: &PodUid) -> bool {
        self.assignments().exclusive.contains_key(uid.as_str())
    }

    /// The processors of a container.
    pub fn container_cpus(&self, uid: &PodUid, container: &str) -> ContainerCpus {
        let assignments = self.assignments();
        ContainerCpus {
            cpus: assignments.cpus(uid.as_str(), container).clone(),
            exclusive: assignments.exclusive(uid.as_str(), container).is_some(),
        }
    }

    fn assignments(&self) -> MutexGuard<'_, CpuAssignments> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes changed assignments, and has running containers moved. As in kubelet, a file that cannot be written
    /// prevents no pod's start.
    async fn save(self: &Arc<Self>) {
        self.changes.send_modify(|changes| *changes += 1);
        let cpus = Arc::clone(self);
        let saved = blocking::run(self.file.clone(), DEADLINE, move |_| cpus.write());
        self.log_unwritten(saved.await.and_then(|saved| saved));
    }

    fn log_unwritten(&self, written: io::Result<()>) {
        if let Err(error) = written {
            tracing::error!(%error, path = %self.file.display(), "which processors are whose could not be saved");
        }
    }

    /// Writes the newest assignments, unless the file has them.
    fn write(&self) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = self.assignments().clone();
        if written.as_ref() == Some(&newest) {
            return Ok(());
        }
        let text = checkpoint::write(STATIC, &newest);
        private_file::write(&self.file, &String::from_utf8_lossy(&text))?;
        *written = Some(newest);
        Ok(())
    }
}

/// kubelet refuses to start if reserved processors do not exist, whatever the policy.
fn reserved_are_online(reserved: &ReservedCpus) -> Result<(), CpuError> {
    let ReservedCpus::These(cpus) = reserved else { return Ok(()) };
    let online = topology::read(Path::new("/sys/devices/system")).map_err(CpuError::Topology)?.all();
    match cpus.is_subset(&online) {
        true => Ok(()),
        false => Err(CpuError::Policy(PolicyError::NotOnline { reserved: cpus.clone(), online })),
    }
}

fn read(path: &Path, policy: &str) -> Result<Option<CpuAssignments>, CpuError> {
    let failed = |source| CpuError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(checkpoint::MAX_SIZE).read_to_end(&mut bytes).map_err(failed)?;
    checkpoint::read(&bytes, policy).map(Some).map_err(|why| CpuError::Restore { path: path.to_owned(), why })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
