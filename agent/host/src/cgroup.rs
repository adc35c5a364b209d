//! The pods' cgroups, laid out as kubelet lays them out: a node level, a level for burstable and one for best-effort
//! pods, a group for each pod; the containers' own are made by the OCI runtime.
//!
//! Both versions and both drivers: with `cgroupfs` the groups are directories written here, in every v1 hierarchy or
//! in the v2 one; with `systemd` they are slices that systemd makes, read here as directories all the same.

mod files;
mod hierarchy;
mod layout;
mod limits;
mod oom;
mod systemd;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use self::hierarchy::Hierarchies;
use self::layout::{CLASSES, GroupName, Layout};
use self::limits::{GroupLimits, REQUIRED_CONTROLLERS};
use limpet_model::pod::compute_resources::{cpu_shares, pod_cpu_request, pod_limits};
use limpet_model::pod::qos::{QosClass, qos_class};
use limpet_model::pod::{PodRecord, PodUid};

/// How cgroups are made (kubelet's `cgroupDriver`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CgroupDriver {
    /// Directories below the cgroup file system.
    #[default]
    Cgroupfs,
    /// Slices and scopes, made by systemd over D-Bus.
    Systemd,
}

/// Why a cgroup could not be made, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroup file system is mounted.
    #[error("no cgroup file system is mounted below /sys/fs/cgroup")]
    NotMounted,
    /// The kernel does not offer what a limit needs.
    #[error("set {file} of cgroup {group} to {value}: the kernel offers no {controller} controller here{}", remedy(.controller))]
    NoController {
        /// The cgroup, from the root of the hierarchy.
        group: PathBuf,
        /// The controller.
        controller: &'static str,
        /// The file that is missing.
        file: &'static str,
        /// What it was to be set to.
        value: String,
    },
    /// A file or directory of a cgroup refuses.
    #[error("{operation} {path}: {source}")]
    File {
        /// What was done to it.
        operation: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Processes still run in a group that is to go.
    #[error("remove cgroup {0}: processes still run in it")]
    Busy(PathBuf),
    /// systemd refuses or does not answer.
    #[error("{operation} {unit} with systemd: {reason}")]
    Systemd {
        /// `start`, `change`, `stop`, `reach`.
        operation: &'static str,
        /// The slice.
        unit: String,
        /// What it said.
        reason: String,
    },
    /// The agent is stopping.
    #[error("the agent stopped while a cgroup was worked on")]
    Stopped,
}

impl CgroupError {
    /// Whether the same call may succeed a moment later.
    pub fn may_pass(&self) -> bool {
        !matches!(self, Self::NotMounted | Self::NoController { .. })
    }

    fn file(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { operation, path: path.to_owned(), source }
    }
}

fn remedy(controller: &str) -> &'static str {
    // Several boards are shipped with it switched off.
    if controller == "memory" { "; boot with cgroup_enable=memory" } else { "" }
}

/// Who a cgroup was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// The pod.
    pub pod: PodUid,
    /// The container's id in containerd, for a group of one or below.
    pub container: Option<String>,
}

/// The pods' cgroups. Clones share what is known.
#[derive(Debug, Clone)]
pub struct Cgroups {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hierarchies: Hierarchies,
    layout: Layout,
    pod_pids_limit: Option<i64>,
    systemd: Option<systemd::Manager>,
    /// Millicores requested by each burstable pod: what their level weighs against the others.
    burstable: Mutex<BTreeMap<PodUid, i64>>,
    /// Of each pod: what the kernel killed for want of memory in containers that have ended, as far as it is known.
    kills_of_the_ended: Mutex<BTreeMap<PodUid, u64>>,
}

impl Cgroups {
    /// Finds out how cgroups are mounted and makes the levels above the pods below `root` (kubelet's `cgroupRoot`).
    ///
    /// # Errors
    /// When there are no cgroups, or the levels cannot be made.
    pub async fn open(driver: CgroupDriver, root: &Path, pod_pids_limit: Option<i64>) -> Result<Self, CgroupError> {
        let hierarchies = blocking(Hierarchies::find).await?;
        let systemd = match driver {
            CgroupDriver::Cgroupfs => None,
            CgroupDriver::Systemd => Some(systemd::Manager::connect().await?),
        };
        let layout = Layout::new(driver, root);
        let cgroups = Self {
            shared: Arc::new(Shared {
                hierarchies,
                layout,
                pod_pids_limit,
                systemd,
                burstable: Mutex::default(),
                kills_of_the_ended: Mutex::default(),
            }),
        };
        let shared = &cgroups.shared;
        let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as i64);
        let best_effort = shared.layout.level(QosClass::BestEffort);
        // The burstable level keeps its weight until its pods are known: a restart is not to starve what runs.
        let burstable = shared.layout.level(QosClass::Burstable);
        cgroups
            .apply(vec![
                (shared.layout.level(QosClass::Guaranteed), GroupLimits::weighing(cpu_shares(cpus * 1_000))),
                (best_effort, GroupLimits::weighing(cpu_shares(0))),
                (burstable, GroupLimits::default()),
            ])
            .await?;
        for controller in cgroups.missing_controllers() {
            tracing::warn!(controller, "the kernel offers no such cgroup controller; limits that need it will fail");
        }
        Ok(cgroups)
    }

    /// The directory above the pods' cgroups; `None` where v1 hierarchies have a part.
    pub fn pods_directory(&self) -> Option<PathBuf> {
        let level = self.shared.layout.directory(&self.shared.layout.level(QosClass::Guaranteed));
        self.is_v2().then(|| self.shared.hierarchies.all_paths(&level).into_iter().next())?
    }

    /// Whether the unified hierarchy (v2) alone is mounted.
    pub fn is_v2(&self) -> bool {
        self.shared.hierarchies.is_v2()
    }

    /// Controllers that pods may need and the kernel does not offer.
    pub fn missing_controllers(&self) -> Vec<&'static str> {
        let there = self.shared.hierarchies.controllers();
        REQUIRED_CONTROLLERS.into_iter().filter(|controller| !there.contains(*controller)).collect()
    }

    /// Makes the pod's cgroup and the levels above it, and sets their limits. Idempotent.
    ///
    /// # Errors
    /// When a group cannot be made, or a limit cannot be set.
    pub async fn ensure_pod(&self, pod: &PodRecord) -> Result<(), CgroupError> {
        let spec = pod.spec();
        let class = qos_class(spec);
        let (request, layout) = (pod_cpu_request(spec), &self.shared.layout);
        let level = match class {
            QosClass::Burstable => {
                GroupLimits::weighing(self.burstable_shares(|pods| _ = pods.insert(pod.uid.clone(), request)))
            }
            QosClass::BestEffort => GroupLimits::weighing(cpu_shares(0)),
            QosClass::Guaranteed => GroupLimits::default(),
        };
        let own = GroupLimits::of_pod(&pod_limits(spec), self.shared.pod_pids_limit);
        self.apply(vec![(layout.level(class), level), (layout.pod(class, &pod.uid), own)]).await?;
        self.begin_oom_account(&pod.uid);
        Ok(())
    }

    /// `linux.cgroupsPath` of a container in the driver's form.
    pub fn container_path(&self, pod: &PodRecord, container_id: &str) -> String {
        self.shared.layout.container_path(qos_class(pod.spec()), &pod.uid, container_id)
    }

    /// Removes the pod's cgroups, whatever class it had and in whatever hierarchy they are. Idempotent.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] when processes still run in one of them; the others are gone then.
    pub async fn remove_pod(&self, uid: &PodUid) -> Result<(), CgroupError> {
        let groups = CLASSES.map(|class| self.shared.layout.pod(class, uid));
        let shared = self.shared.clone();
        if let Some(systemd) = &shared.systemd {
            for group in &groups {
                // systemd would kill what runs in a slice it stops; that is not for here to decide.
                if self.exists_idle(group).await? {
                    systemd.stop(&group.slice()).await?;
                }
            }
        }
        blocking(move || {
            let mut outcome = Ok(());
            for group in &groups {
                for path in shared.hierarchies.all_paths(&shared.layout.directory(group)) {
                    outcome = outcome.and(files::remove(&path));
                }
            }
            outcome
        })
        .await?;
        self.end_oom_account(uid);
        let mut was_burstable = false;
        let shares = self.burstable_shares(|pods| was_burstable = pods.remove(uid).is_some());
        if was_burstable {
            let level = self.shared.layout.level(QosClass::Burstable);
            self.apply(vec![(level, GroupLimits::weighing(shares))]).await?;
        }
        Ok(())
    }

    /// Removes a container's cgroups, and ends what is in them: for one whose OCI runtime was killed at its work, after
    /// which nobody else does.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] while what was killed is still there.
    pub async fn clear_container(&self, uid: &PodUid, container_id: &str) -> Result<(), CgroupError> {
        let layout = &self.shared.layout;
        let groups = CLASSES.map(|class| layout.container_directory(class, uid, container_id));
        let shared = self.shared.clone();
        blocking(move || {
            let mut outcome = Ok(());
            for path in groups.iter().flat_map(|group| shared.hierarchies.all_paths(group)) {
                outcome = outcome.and(files::kill(&path).and_then(|()| files::remove(&path)));
            }
            outcome
        })
        .await
    }

    /// The pods that have a cgroup, in any hierarchy: what an earlier run left behind is among them.
    ///
    /// # Errors
    /// When a directory is there and cannot be read.
    pub async fn pods(&self) -> Result<Vec<PodUid>, CgroupError> {
        let shared = self.shared.clone();
        let found = blocking(move || {
            let mut found = BTreeSet::new();
            for class in CLASSES {
                let level = shared.layout.level(class);
                for path in shared.hierarchies.all_paths(&shared.layout.directory(&level)) {
                    let names = files::subdirectories(&path)?;
                    found.extend(names.iter().filter_map(|name| shared.layout.pod_named(class, name)));
                }
            }
            Ok(found)
        });
        Ok(found.await?.into_iter().collect())
    }

    /// The pod, and the container, whose group has or contains `path`, from the root of a hierarchy.
    pub fn tenant(&self, path: &str) -> Option<Tenant> {
        self.shared.layout.tenant(path)
    }

    /// Changes the known burstable pods and gives their level's shares.
    fn burstable_shares(&self, change: impl FnOnce(&mut BTreeMap<PodUid, i64>)) -> u64 {
        let mut pods = self.shared.burstable.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut pods);
        cpu_shares(pods.values().fold(0, |sum: i64, request| sum.saturating_add(*request)))
    }

    /// Makes groups, each after its parent, and sets their limits.
    async fn apply(&self, groups: Vec<(GroupName, GroupLimits)>) -> Result<(), CgroupError> {
        if let Some(systemd) = &self.shared.systemd {
            for (group, limits) in &groups {
                let exists = self.exists(group).await?;
                systemd.ensure(&group.slice(), exists, &limits.unit_properties(self.is_v2())).await?;
            }
            return Ok(());
        }
        let shared = self.shared.clone();
        blocking(move || {
            for (group, limits) in &groups {
                let directory = shared.layout.directory(group);
                files::create(&shared.hierarchies, &directory)?;
                files::set(&shared.hierarchies, &directory, &limits.settings(shared.hierarchies.is_v2()))?;
            }
            Ok(())
        })
        .await
    }

    /// Whether a group is there, with no process in it or below.
    async fn exists_idle(&self, group: &GroupName) -> Result<bool, CgroupError> {
        let (shared, directory) = (self.shared.clone(), self.shared.layout.directory(group));
        blocking(move || {
            let mut exists = false;
            for path in shared.hierarchies.all_paths(&directory) {
                files::refuse_busy(&path)?;
                exists |= path.exists();
            }
            Ok(exists)
        })
        .await
    }

    async fn exists(&self, group: &GroupName) -> Result<bool, CgroupError> {
        let (shared, directory) = (self.shared.clone(), self.shared.layout.directory(group));
        blocking(move || Ok(shared.hierarchies.all_paths(&directory).iter().any(|path| path.exists()))).await
    }
}

/// Runs file work where it may wait.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CgroupError> + Send + 'static,
) -> Result<T, CgroupError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(CgroupError::Stopped),
    }
}

#[cfg(test)]
mod tests;
