//! What the node has, and what of it is for pods: all but what `kubeReserved` and `systemReserved` name and what hard
//! eviction keeps free, and, of memory, what is set aside as huge pages. A Node object shows it, and admission adds up requests against it.

use std::collections::BTreeMap;

use crate::config::Config;
use limpet_core::eviction::Signal;
use limpet_host::cgroup::AllPodsLimits;
use limpet_host::{blocking, file_system};
use limpet_model::node::NodeFacts;
use limpet_model::pod::downward::NodeLimits;
use limpet_model::pod::quantity::Amount;
use limpet_model::pod::requests::{Requests, Resource};

/// The node's processors, memory, disk and huge pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    /// All of it.
    pub all: Requests,
    /// What is for pods.
    pub allocatable: Requests,
    /// What all pods may have together in their cgroup: all but what is reserved, where `enforceNodeAllocatable` has `pods`.
    pub limit: Requests,
}

impl Capacity {
    /// Measures the disk of `--root-dir`; one that cannot be measured counts as none.
    pub async fn measure(config: &Config, facts: &NodeFacts) -> Self {
        let root = config.root_dir.clone();
        let look = blocking::run(root.clone(), blocking::DEADLINE, move |_| file_system::space(&root).ok());
        let disk = look.await.ok().flatten().map_or(0, |space| space.capacity);
        Self::of(config, facts.memory_capacity, disk, &facts.huge_pages)
    }

    /// Of a node of that many bytes of memory, of disk and, by their size, pages.
    pub fn of(config: &Config, memory: u64, disk: u64, huge_pages: &BTreeMap<u64, u64>) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let mut all = Requests::default();
        all[Resource::Cpu] = Amount::from_units(cpus);
        all[Resource::Memory] = Amount::from_units(memory);
        all[Resource::EphemeralStorage] = Amount::from_units(disk);
        let mut set_aside = Requests::default();
        for (size, pages) in huge_pages {
            let bytes = Amount::from_units(size.saturating_mul(*pages));
            all[Resource::HugePages(*size)] = bytes;
            // Their memory is no pod's unless it asks for them.
            set_aside[Resource::Memory] = set_aside[Resource::Memory] + bytes;
        }
        let unreserved = all.clone().without(&config.reserved.kube).without(&config.reserved.system);
        let allocatable = unreserved.clone().without(&kept_free(config, memory, disk)).without(&set_aside);
        let limit = if config.limit_all_pods { unreserved } else { all.clone() };
        Self { all, allocatable, limit }
    }

    /// What a container without limits may use.
    pub fn limits(&self) -> NodeLimits {
        NodeLimits { cpu: self.allocatable[Resource::Cpu], memory: self.allocatable[Resource::Memory] }
    }

    /// Whether `kubeReserved` and `systemReserved` leave pods no memory. kubelet does not start then.
    pub fn reserves_all_memory(&self) -> bool {
        !self.all[Resource::Memory].is_zero() && self.limit[Resource::Memory].is_zero()
    }

    /// The limits of the cgroup of all pods; of memory none where the node's is not known, or all of it is reserved.
    pub fn all_pods(&self) -> AllPodsLimits {
        let memory = u64::try_from(self.limit[Resource::Memory].units()).ok().filter(|bytes| *bytes > 0);
        AllPodsLimits { millicores: self.limit[Resource::Cpu].milli(), memory }
    }

    /// What pods may request together; any amount of disk where it could not be measured.
    pub fn offer(&self) -> Requests {
        let mut offer = self.allocatable.clone();
        if self.all[Resource::EphemeralStorage].is_zero() {
            offer[Resource::EphemeralStorage] = Amount::from_units(u64::MAX);
        }
        offer
    }
}

/// What hard eviction keeps free.
fn kept_free(config: &Config, memory: u64, disk: u64) -> Requests {
    let kept = |signal: Signal, capacity: u64| {
        let hard = config.eviction.thresholds.iter().find(|one| one.signal == signal && one.is_hard());
        Amount::from_units(hard.map_or(0, |threshold| threshold.value.of(capacity)))
    };
    let mut free = Requests::default();
    free[Resource::Memory] = kept(Signal::MemoryAvailable, memory);
    free[Resource::EphemeralStorage] = kept(Signal::NodefsAvailable, disk);
    free
}
