//! The resource usage of the node, its pods and their containers, read from the kernel only on request.
//!
//! Nothing is sampled. Kept between requests are each group's last reading ([`rates`]), because CPU usage is the
//! difference of two, and the last measurement of each pod's disk ([`disks`]), because measuring it is expensive.

pub mod claims;
pub mod disks;
pub mod rates;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use claims::{ClaimMeter, ClaimName};
use disks::{DiskMeter, Disks, VolumeDisk};
use limpet_core::status::observed::{ObservedContainer, ObservedPod, ObservedPods};
use limpet_host::blocking::{self, DEADLINE, Progress};
use limpet_host::cgroup::Cgroups;
use limpet_host::cgroup::usage::{Depth, Group, GroupUsage};
use limpet_host::file_system::{self, Space};
use limpet_host::machine::Machine;
use limpet_host::proc_files::{Interface, MemoryInfo, ProcessIds, boot_time, interfaces_of, own_interfaces};
use limpet_model::container::ContainerId;
use limpet_model::pod::PodRecord;
use limpet_model::pod::qos::QosClass;
use rates::{NanoCores, Rates};

/// The usage of the node and its running pods.
#[derive(Debug, Clone, Default)]
pub struct NodeUsage {
    /// When the node booted.
    pub booted: Option<Timestamp>,
    /// The memory reserved as huge pages, in bytes.
    pub huge_pages: u64,
    pub group: GroupUsage,
    pub all_pods: Option<GroupUsage>,
    /// The groups above burstable and best-effort pods; only in a whole reading.
    pub levels: Vec<GroupUsage>,
    /// The node's network; only in a whole reading.
    pub interfaces: Option<Vec<Interface>>,
    /// The file system of the agent's root directory; only in a whole reading.
    pub disk: Option<Space>,
    /// The machine; only in a whole reading.
    pub machine: Option<Machine>,
    /// Process ids; only in a whole reading.
    pub process_ids: Option<ProcessIds>,
    /// The pods with a running container.
    pub pods: Vec<PodUsage>,
}

#[derive(Debug, Clone)]
pub struct PodUsage {
    pub record: Arc<PodRecord>,
    pub started: Option<Timestamp>,
    /// Its cgroup, with all its containers.
    pub group: Option<GroupUsage>,
    /// Its network, unless that is the node's; only in a whole reading.
    pub interfaces: Option<Vec<Interface>>,
    pub containers: Vec<ContainerUsage>,
}

#[derive(Debug, Clone)]
pub struct ContainerUsage {
    pub name: String,
    pub id: String,
    /// The image, as in its status.
    pub image: String,
    pub started: Option<Timestamp>,
    pub group: GroupUsage,
}

impl NodeUsage {
    /// Every group that was read.
    pub fn groups(&self) -> impl Iterator<Item = &GroupUsage> {
        let pods = self
            .pods
            .iter()
            .flat_map(|pod| pod.group.iter().chain(pod.containers.iter().map(|container| &container.group)));
        [&self.group].into_iter().chain(&self.all_pods).chain(&self.levels).chain(pods)
    }
}

pub trait ReadUsage: fmt::Debug + Send + Sync {
    /// Reads the usage of the node and of these pods.
    fn read(&self, pods: Arc<ObservedPods>, depth: Depth) -> BoxFuture<'_, io::Result<NodeUsage>>;
}

/// Measures usage on request. Clones share the last readings.
#[derive(Debug, Clone)]
pub struct Meter {
    reader: Arc<dyn ReadUsage>,
    disks: DiskMeter,
    claims: ClaimMeter,
    rates: Arc<Mutex<Rates>>,
}

impl Meter {
    /// A meter without readings.
    pub fn new(reader: Arc<dyn ReadUsage>, disks: DiskMeter, claims: ClaimMeter) -> Self {
        Self { reader, disks, claims, rates: Arc::default() }
    }

    /// What drivers report about the claims of these pods; some of it may be older.
    pub async fn claims(&self, pods: &ObservedPods) -> BTreeMap<ClaimName, VolumeDisk> {
        self.claims.volumes(pods).await
    }

    /// The disk usage of images and of these pods; some of it may be older.
    pub async fn disks(&self, pods: &ObservedPods) -> Disks {
        self.disks.disks(pods).await
    }

    /// The counters now.
    ///
    /// # Errors
    ///
    /// The kernel's files cannot be read.
    pub async fn usage(&self, pods: Arc<ObservedPods>, depth: Depth) -> io::Result<NodeUsage> {
        self.reader.read(pods, depth).await
    }

    /// The same with CPU usage since the last call.
    ///
    /// # Errors
    ///
    /// The kernel's files cannot be read.
    pub async fn usage_and_rates(&self, pods: Arc<ObservedPods>, depth: Depth) -> io::Result<(NodeUsage, NanoCores)> {
        let usage = self.reader.read(pods, depth).await?;
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let nano_cores = rates.advance(&usage);
        Ok((usage, nano_cores))
    }
}

#[derive(Debug)]
pub struct NodeReader {
    pub cgroups: Cgroups,
    /// The agent's root directory: kubelet's nodefs.
    pub root: PathBuf,
}

impl ReadUsage for NodeReader {
    fn read(&self, pods: Arc<ObservedPods>, depth: Depth) -> BoxFuture<'_, io::Result<NodeUsage>> {
        Box::pin(async move {
            let cgroups = self.cgroups.clone();
            // One reading at a time, on one thread. Eviction uses another subject, so it never waits for this.
            let mut usage = blocking::run(PathBuf::from("/sys/fs"), DEADLINE, move |progress| {
                node(&cgroups, &pods, depth, progress)
            })
            .await?;
            if depth == Depth::Whole {
                usage.disk = file_system::space_of(self.root.clone()).await.ok();
            }
            Ok(usage)
        })
    }
}

fn node(cgroups: &Cgroups, pods: &ObservedPods, depth: Depth, progress: &Progress) -> NodeUsage {
    let whole = depth == Depth::Whole;
    let level = |class| cgroups.usage(Group::Level(class), depth);
    let each = |pod: &Arc<ObservedPod>| {
        // A slow machine may need long for many pods.
        progress.at(Path::new("/sys/fs"));
        of_pod(cgroups, pod, depth)
    };
    let levels = [QosClass::Burstable, QosClass::BestEffort].into_iter().filter(|_| whole).filter_map(level);
    NodeUsage {
        booted: boot_time(),
        huge_pages: MemoryInfo::read().unwrap_or_default().huge_pages,
        group: cgroups.usage(Group::Node, depth).unwrap_or_default(),
        all_pods: level(QosClass::Guaranteed),
        levels: levels.collect(),
        interfaces: whole.then(own_interfaces).flatten(),
        disk: None,
        machine: whole.then(Machine::read).flatten(),
        process_ids: whole.then(ProcessIds::read).flatten(),
        pods: pods.pods.values().filter_map(each).collect(),
    }
}

fn of_pod(cgroups: &Cgroups, pod: &ObservedPod, depth: Depth) -> Option<PodUsage> {
    let uid = &pod.record.uid;
    let running = || pod.containers.iter().filter_map(|(name, container)| Some((name, container, container.pid?)));
    let container = |(name, container, _): (&String, &ObservedContainer, u32)| {
        let status = status_of(&pod.status, name);
        Some(ContainerUsage {
            name: name.clone(),
            id: container.id.clone(),
            image: status.map(|status| status.image.clone()).unwrap_or_default(),
            started: status.and_then(started),
            group: cgroups.usage(Group::Container(uid, &container.id), depth)?,
        })
    };
    let containers: Vec<ContainerUsage> = running().filter_map(container).collect();
    if containers.is_empty() {
        return None;
    }
    let own_network = depth == Depth::Whole && pod.record.spec().host_network != Some(true);
    let mut processes = running().filter(|_| own_network);
    Some(PodUsage {
        started: pod.status.start_time.as_ref().map(|time| time.0),
        group: cgroups.usage(Group::Pod(uid), depth),
        interfaces: processes
            .find_map(|(_, container, pid)| interfaces_of(pid, &ContainerId::new(container.id.as_str()))),
        record: Arc::clone(&pod.record),
        containers,
    })
}

fn status_of<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses);
    all.chain(&status.ephemeral_container_statuses).flatten().find(|status| status.name == name)
}

fn started(status: &ContainerStatus) -> Option<Timestamp> {
    Some(status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
}
