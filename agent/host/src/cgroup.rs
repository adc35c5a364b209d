//! The pods' cgroups in kubelet's layout: a node level, levels for burstable and best-effort pods, and a cgroup for
//! each pod. The OCI runtime creates those of containers.
//!
//! Supports both cgroup versions and both drivers. With `cgroupfs`, this module creates directories, in every v1
//! hierarchy or in the v2 one; with `systemd`, it asks systemd for slices and reads them as directories.

mod all_pods;
mod error;
mod files;
mod hierarchy;
mod layout;
mod limits;
mod memory;
mod memory_alarm;
mod oom;
mod reserved;
mod systemd;
pub mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use self::all_pods::AllPodsLimits;
pub use self::error::CgroupError;
use self::hierarchy::Hierarchies;
use self::layout::{CLASSES, GroupName, Layout};
use self::limits::{GroupLimits, HUGE_PAGES_CONTROLLER, REQUIRED_CONTROLLERS};
pub use self::memory_alarm::MemoryAlarm;
pub use self::reserved::ReservedLimits;
use crate::{huge_pages, proc_files, process};
use limpet_model::pod::compute_resources::{CgroupLimits, CpuQuotas, cpu_shares, pod_cpu_request};
use limpet_model::pod::huge_pages::requests;
use limpet_model::pod::memory_qos::{MemoryFiles, MemoryQos, RequestedMemory, pod_memory_request};
use limpet_model::pod::qos::QosClass;
use limpet_model::pod::{PodRecord, PodUid};

/// How cgroups are created (kubelet's `cgroupDriver`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CgroupDriver {
    /// Directories below the cgroup file system.
    #[default]
    Cgroupfs,
    /// Slices and scopes, created by systemd over D-Bus.
    Systemd,
}

/// How pods' cgroups are created, and their common settings.
#[derive(Debug, Clone, PartialEq)]
pub struct CgroupSettings {
    pub driver: CgroupDriver,
    /// `cgroupRoot`: the parent of `kubepods`, absolute.
    pub root: PathBuf,
    /// `podPidsLimit`; `None`: no limit.
    pub pod_pids_limit: Option<i64>,
    /// `cpuCFSQuota`, `cpuCFSQuotaPeriod`.
    pub cpu_quotas: CpuQuotas,
    /// `memoryReservationPolicy`, `memoryThrottlingFactor`.
    pub memory_qos: MemoryQos,
}

impl Default for CgroupSettings {
    fn default() -> Self {
        Self {
            driver: CgroupDriver::default(),
            root: "/".into(),
            pod_pids_limit: None,
            cpu_quotas: CpuQuotas::default(),
            memory_qos: MemoryQos::default(),
        }
    }
}

/// Whether cgroups can limit huge pages here. Reads files of the kernel.
pub fn limits_huge_pages() -> bool {
    Hierarchies::find().is_ok_and(|hierarchies| hierarchies.controllers().contains(HUGE_PAGES_CONTROLLER))
}

/// Which pod or container a cgroup belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupOwner {
    pub pod: PodUid,
    /// The container's id in containerd, for a container's cgroup or one below it.
    pub container: Option<String>,
}

/// The owner of the cgroup that is or contains `path`, from the root of a hierarchy. `root` is `cgroupRoot`.
pub fn owner(root: &Path, path: &str) -> Option<CgroupOwner> {
    Layout::new(CgroupDriver::default(), root).owner(path)
}

/// A pod's contribution to the levels above it.
#[derive(Debug, Clone, Copy, Default)]
struct Requested {
    /// Millicores of a burstable pod.
    burstable_cpu: i64,
    memory: RequestedMemory,
}

impl Requested {
    fn from_pod(pod: &PodRecord) -> Self {
        let burstable_cpu = match pod.qos_class {
            QosClass::Burstable => pod_cpu_request(pod.spec()),
            QosClass::Guaranteed | QosClass::BestEffort => 0,
        };
        Self { burstable_cpu, memory: pod_memory_request(pod.spec()) }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            burstable_cpu: self.burstable_cpu.saturating_add(other.burstable_cpu),
            memory: RequestedMemory {
                guaranteed: self.memory.guaranteed.saturating_add(other.memory.guaranteed),
                burstable: self.memory.burstable.saturating_add(other.memory.burstable),
            },
        }
    }
}

/// The pods' cgroups. Clones share the state.
#[derive(Debug, Clone)]
pub struct Cgroups {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hierarchies: Hierarchies,
    layout: Layout,
    pod_pids_limit: Option<i64>,
    cpu_quotas: CpuQuotas,
    memory_qos: MemoryQos,
    /// The huge page sizes that can be limited; empty if the kernel cannot limit them.
    huge_page_sizes: Vec<u64>,
    systemd: Option<systemd::Manager>,
    /// Each pod's requests, whose sum the levels get.
    requested: Mutex<BTreeMap<PodUid, (QosClass, Requested)>>,
    /// The known OOM kills in exited containers of each pod.
    exited_oom_kills: Mutex<BTreeMap<PodUid, u64>>,
}

impl Cgroups {
    /// Detects how cgroups are mounted, and creates the levels above the pods below `root` (kubelet's `cgroupRoot`).
    ///
    /// # Errors
    ///
    /// No cgroups are mounted, or the levels cannot be created.
    pub async fn open(settings: &CgroupSettings) -> Result<Self, CgroupError> {
        let &CgroupSettings { driver, ref root, pod_pids_limit, cpu_quotas, memory_qos } = settings;
        let hierarchies = blocking(Hierarchies::find).await?;
        let systemd = match driver {
            CgroupDriver::Cgroupfs => None,
            CgroupDriver::Systemd => Some(systemd::Manager::connect().await?),
        };
        let layout = Layout::new(driver, root);
        let limited = hierarchies.controllers().contains(HUGE_PAGES_CONTROLLER);
        let huge_page_sizes = if limited { blocking(|| Ok(huge_pages::sizes())).await? } else { Vec::new() };
        let cgroups = Self {
            shared: Arc::new(Shared {
                hierarchies,
                layout,
                pod_pids_limit,
                cpu_quotas,
                memory_qos,
                huge_page_sizes,
                systemd,
                requested: Mutex::default(),
                exited_oom_kills: Mutex::default(),
            }),
        };
        let shared = &cgroups.shared;
        let cpus = i64::from(proc_files::online_cpus());
        let best_effort = shared.layout.level(QosClass::BestEffort);
        // The burstable level keeps its weight until its pods are known, because a restart must not starve running
        // pods.
        let burstable = shared.layout.level(QosClass::Burstable);
        cgroups
            .apply(vec![
                (shared.layout.level(QosClass::Guaranteed), GroupLimits::weighing(cpu_shares(cpus * 1_000))),
                (best_effort, GroupLimits::weighing(cpu_shares(0))),
                (burstable, GroupLimits::default()),
            ])
            .await?;
        cgroups.keep_nothing_that_is_not_configured().await?;
        if shared.memory_qos.is_set() && !cgroups.is_v2() {
            tracing::warn!("memoryReservationPolicy and memoryThrottlingFactor have no effect: they need cgroup v2");
        }
        for controller in cgroups.missing_controllers() {
            tracing::warn!(
                controller,
                "the kernel does not provide this cgroup controller; limits that need it cannot be set"
            );
        }
        Ok(cgroups)
    }

    /// The directory above the pods' cgroups; `None` where v1 hierarchies are in use.
    pub fn pods_directory(&self) -> Option<PathBuf> {
        let level = self.shared.layout.directory(&self.shared.layout.level(QosClass::Guaranteed));
        self.is_v2().then(|| self.shared.hierarchies.all_paths(&level).into_iter().next())?
    }

    /// Whether only the unified hierarchy (v2) is mounted.
    pub fn is_v2(&self) -> bool {
        self.shared.hierarchies.is_v2()
    }

    /// Controllers that pods may need and the kernel lacks.
    pub fn missing_controllers(&self) -> Vec<&'static str> {
        let there = self.shared.hierarchies.controllers();
        REQUIRED_CONTROLLERS.into_iter().filter(|controller| !there.contains(*controller)).collect()
    }

    /// Creates the pod's cgroup and the levels above it, and sets their limits. Idempotent.
    ///
    /// # Errors
    ///
    /// A cgroup cannot be created, or a limit cannot be set.
    pub async fn ensure_pod(&self, pod: &PodRecord) -> Result<(), CgroupError> {
        self.update_pod(pod, &pod.cgroup_limits).await
    }

    /// The same with these limits instead of the pod's own. Processes in the cgroup keep running. The kernel refuses
    /// a CPU quota below that of a child cgroup (v1).
    ///
    /// # Errors
    ///
    /// A cgroup cannot be created, or a limit cannot be set.
    pub async fn update_pod(&self, pod: &PodRecord, limits: &CgroupLimits) -> Result<(), CgroupError> {
        let spec = pod.spec();
        let class = pod.qos_class;
        let layout = &self.shared.layout;
        let of_all = self.requested(|pods| _ = pods.insert(pod.uid.clone(), (class, Requested::from_pod(pod))));
        let mut groups = self.levels(class, of_all);
        let requested = requests(spec);
        // As in kubelet, a pod gets no huge pages of sizes that it does not request.
        let huge_pages = self.shared.huge_page_sizes.iter().map(|size| {
            let bytes = requested.get(size).map_or(0, |amount| u64::try_from(amount.units()).unwrap_or(0));
            (*size, bytes)
        });
        let pod_limits = GroupLimits::of_pod(limits, self.shared.pod_pids_limit)
            .with_cpu_quotas(self.shared.cpu_quotas)
            .with_memory_qos(self.shared.memory_qos.of_pod(spec, rustix::param::page_size() as u64))
            .with_huge_pages(huge_pages.collect());
        groups.push((layout.pod(class, &pod.uid), pod_limits));
        self.apply(groups).await?;
        self.begin_oom_account(&pod.uid);
        Ok(())
    }

    /// Registers a pod that was already running: counts its OOM kills from now on, and its part of its level's
    /// weight. The level keeps its current weight until a pod's limits are set.
    pub fn adopt_pod(&self, pod: &PodRecord) {
        let class = pod.qos_class;
        self.requested(|pods| _ = pods.insert(pod.uid.clone(), (class, Requested::from_pod(pod))));
        self.begin_oom_account(&pod.uid);
    }

    /// The pod's cgroup from the root of the hierarchy, as kubelet passes it to a runtime (`cgroup_parent`).
    pub fn pod_path(&self, pod: &PodRecord) -> String {
        let group = self.shared.layout.pod(pod.qos_class, &pod.uid);
        format!("/{}", self.shared.layout.directory(&group).display())
    }

    /// `linux.cgroupsPath` of a container in the driver's format.
    pub fn container_path(&self, pod: &PodRecord, container_id: &str) -> String {
        self.shared.layout.container_path(pod.qos_class, &pod.uid, container_id)
    }

    /// Moves the init of the pod's shared PID namespace into its own cgroup within the pod's, which has to exist.
    ///
    /// # Errors
    ///
    /// The cgroup cannot be created, or the process has ended.
    pub async fn place_init(&self, pod: &PodRecord, pid: u32) -> Result<(), CgroupError> {
        let class = pod.qos_class;
        let (unit, directory) = self.shared.layout.init(class, &pod.uid);
        if let Some(systemd) = &self.shared.systemd {
            return systemd.scope(&unit, &self.shared.layout.pod(class, &pod.uid).slice(), pid).await;
        }
        let shared = self.shared.clone();
        blocking(move || {
            files::create(&shared.hierarchies, &directory)?;
            shared.hierarchies.all_paths(&directory).iter().try_for_each(|path| files::place(path, pid))
        })
        .await
    }

    /// Removes the pod's cgroups, for every QoS class and in every hierarchy. Idempotent.
    ///
    /// # Errors
    ///
    /// [`CgroupError::Busy`] if processes still run in one of them; the others are removed.
    pub async fn remove_pod(&self, uid: &PodUid) -> Result<(), CgroupError> {
        let groups = CLASSES.map(|class| self.shared.layout.pod(class, uid));
        let shared = self.shared.clone();
        if let Some(systemd) = &shared.systemd {
            for group in &groups {
                // systemd would kill the processes in a slice that it stops, which is the caller's decision.
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
        let mut had = None;
        let requested = self.requested(|pods| had = pods.remove(uid));
        match had {
            Some((class, _)) if class == QosClass::Burstable || self.keeps_memory() => {
                self.apply(self.levels(class, requested)).await
            }
            _ => Ok(()),
        }
    }

    /// Kills the processes in a container's cgroups and removes the cgroups, for a container whose OCI runtime was
    /// killed before it could do so.
    ///
    /// # Errors
    ///
    /// [`CgroupError::Busy`] while killed processes still exist.
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

    /// The first process of a container, or else another one in its cgroups; `None` if there is none. Reads small
    /// files.
    pub fn process_of(&self, uid: &PodUid, container_id: &str) -> Option<u32> {
        let groups = CLASSES.map(|class| self.shared.layout.container_directory(class, uid, container_id));
        let paths = groups.iter().flat_map(|group| self.shared.hierarchies.all_paths(group));
        let pids_of_group =
            paths.filter_map(|path| files::processes(&path).ok()).find(|pids_of_group| !pids_of_group.is_empty())?;
        let pids = || pids_of_group.iter().filter_map(|pid| u32::try_from(*pid).ok());
        pids().find(|pid| process::is_init(*pid)).or_else(|| pids().min())
    }

    /// The pods that have a cgroup in any hierarchy, including orphans of an earlier run.
    ///
    /// # Errors
    ///
    /// A directory exists and cannot be read.
    pub async fn pods(&self) -> Result<Vec<PodUid>, CgroupError> {
        let shared = self.shared.clone();
        let uids = blocking(move || {
            let mut uids = BTreeSet::new();
            for class in CLASSES {
                let level = shared.layout.level(class);
                for path in shared.hierarchies.all_paths(&shared.layout.directory(&level)) {
                    let names = files::subdirectories(&path)?;
                    uids.extend(names.iter().filter_map(|name| shared.layout.pod_named(class, name)));
                }
            }
            Ok(uids)
        });
        Ok(uids.await?.into_iter().collect())
    }

    /// The pod, and the container, whose cgroup is or contains `path`, from the root of a hierarchy.
    pub fn owner(&self, path: &str) -> Option<CgroupOwner> {
        self.shared.layout.owner(path)
    }

    /// Changes the known pods' requests and returns their sum.
    fn requested(&self, change: impl FnOnce(&mut BTreeMap<PodUid, (QosClass, Requested)>)) -> Requested {
        let mut pods = self.shared.requested.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut pods);
        pods.values().fold(Requested::default(), |sum, (_, pod)| sum.plus(*pod))
    }

    fn keeps_memory(&self) -> bool {
        self.shared.memory_qos.keeps_requests && self.is_v2()
    }

    /// The settings of the levels above a pod of this class, given the sum of all requests.
    fn levels(&self, class: QosClass, requested: Requested) -> Vec<(GroupName, GroupLimits)> {
        let kept = |files: MemoryFiles| if self.keeps_memory() { files } else { MemoryFiles::default() };
        let all = GroupLimits::default().with_memory_qos(kept(requested.memory.of_all_pods()));
        let level = match class {
            QosClass::Guaranteed => None,
            QosClass::Burstable => {
                let shares = cpu_shares(requested.burstable_cpu);
                Some(GroupLimits::weighing(shares).with_memory_qos(kept(requested.memory.of_burstable())))
            }
            QosClass::BestEffort => Some(GroupLimits::weighing(cpu_shares(0))),
        };
        let layout = &self.shared.layout;
        let all = (self.keeps_memory() || level.is_none()).then(|| (layout.level(QosClass::Guaranteed), all));
        all.into_iter().chain(level.map(|level| (layout.level(class), level))).collect()
    }

    /// Removes memory protection from levels that an agent with another configuration has set. Writes nothing if
    /// there is none.
    async fn keep_nothing_that_is_not_configured(&self) -> Result<(), CgroupError> {
        if self.shared.memory_qos.keeps_requests || !self.is_v2() {
            return Ok(());
        }
        let nothing = RequestedMemory::default();
        let layout = &self.shared.layout;
        for (class, files) in
            [(QosClass::Guaranteed, nothing.of_all_pods()), (QosClass::Burstable, nothing.of_burstable())]
        {
            let level = layout.level(class);
            let (shared, directory) = (self.shared.clone(), layout.directory(&level));
            let keeps = blocking(move || {
                let path = shared.hierarchies.path("memory", &directory).unwrap_or_default();
                Ok(files
                    .named()
                    .any(|(file, _)| std::fs::read_to_string(path.join(file)).is_ok_and(|bytes| bytes.trim() != "0")))
            });
            if keeps.await? {
                self.apply(vec![(level, GroupLimits::default().with_memory_qos(files))]).await?;
            }
        }
        Ok(())
    }

    /// Creates groups after their parents, and sets their limits.
    async fn apply(&self, groups: Vec<(GroupName, GroupLimits)>) -> Result<(), CgroupError> {
        if let Some(systemd) = &self.shared.systemd {
            for (group, limits) in &groups {
                let exists = self.exists(group).await?;
                systemd.ensure(&group.slice(), exists, &limits.unit_properties(self.is_v2())).await?;
            }
            return self.limit_huge_pages(groups).await;
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

    /// Limits huge pages of slices by writing their files: systemd neither supports the controller nor enables it for
    /// children.
    async fn limit_huge_pages(&self, groups: Vec<(GroupName, GroupLimits)>) -> Result<(), CgroupError> {
        let shared = self.shared.clone();
        let v2 = self.is_v2();
        let limited: Vec<_> =
            groups.into_iter().map(|(group, limits)| (group, limits.huge_page_settings(v2))).collect();
        if limited.iter().all(|(_, settings)| settings.is_empty()) {
            return Ok(());
        }
        blocking(move || {
            for (group, settings) in limited.iter().filter(|(_, settings)| !settings.is_empty()) {
                let directory = shared.layout.directory(group);
                files::create(&shared.hierarchies, &directory)?;
                files::set(&shared.hierarchies, &directory, settings)?;
            }
            Ok(())
        })
        .await
    }

    /// Whether a group exists without any process in it or below.
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

/// Runs blocking file operations on tokio's blocking threads, without a deadline because the cgroup file system waits
/// for no device.
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
