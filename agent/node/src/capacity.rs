//! The node's resources, and the part for pods: all except what `kubeReserved` and `systemReserved` name, what hard
//! eviction keeps free and, of memory, what is reserved as huge pages. A Node object shows it, and admission adds up
//! requests against it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::settings::{NodeSettings, Reservation};
use limpet_core::eviction::{EvictionPolicy, Signal};
use limpet_host::cgroup::{AllPodsLimits, ReservedLimits};
use limpet_host::proc_files::{self, ProcessIds};
use limpet_host::{blocking, file_system};
use limpet_model::node::NodeFacts;
use limpet_model::pod::downward::NodeLimits;
use limpet_model::pod::quantity::Amount;
use limpet_model::pod::requests::{Requests, Resource};

/// The settings that divide the node's resources between pods and its own processes.
#[derive(Debug, Clone, Copy)]
pub struct CapacitySettings<'a> {
    pub node: &'a NodeSettings,
    pub eviction: &'a EvictionPolicy,
}

/// The node's processors, memory, disk and huge pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    pub all: Requests,
    /// The part for pods.
    pub allocatable: Requests,
    /// What all pods may have together in their cgroup: everything that is not reserved, if `enforceNodeAllocatable`
    /// has `pods`.
    pub limit: Requests,
    /// The most process ids of all pods together, if some are reserved.
    pub pids: Option<u64>,
}

impl Capacity {
    /// Measures the disk of the root directory; a disk that cannot be measured counts as zero.
    pub async fn measure(root_dir: &Path, settings: CapacitySettings<'_>, facts: &NodeFacts) -> Self {
        let root = root_dir.to_owned();
        let look = blocking::run(root.clone(), blocking::DEADLINE, move |_| file_system::space(&root).ok());
        let disk = look.await.ok().flatten().map_or(0, |space| space.capacity);
        let pids = ProcessIds::read().and_then(|ids| unreserved_pids(settings.node, ids.limit));
        Self { pids, ..Self::divide(settings, facts.memory_capacity, disk, &facts.huge_pages) }
    }

    /// Divides a node with this memory and disk in bytes, and these huge pages by size.
    pub fn divide(settings: CapacitySettings<'_>, memory: u64, disk: u64, huge_pages: &BTreeMap<u64, u64>) -> Self {
        let CapacitySettings { node, eviction } = settings;
        let cpus = u64::from(proc_files::online_cpus());
        let mut all = Requests::default();
        all[Resource::Cpu] = Amount::from_units(cpus);
        all[Resource::Memory] = Amount::from_units(memory);
        all[Resource::EphemeralStorage] = Amount::from_units(disk);
        let mut set_aside = Requests::default();
        for (size, pages) in huge_pages {
            let bytes = Amount::from_units(size.saturating_mul(*pages));
            all[Resource::HugePages(*size)] = bytes;
            // Their memory belongs to no pod unless it requests them.
            set_aside[Resource::Memory] = set_aside[Resource::Memory] + bytes;
        }
        let reserved = &node.reserved;
        let unreserved = all.clone().without(&reserved.kube.resources).without(&reserved.system.resources);
        let allocatable = unreserved.clone().without(&kept_free(eviction, memory, disk)).without(&set_aside);
        let limit = if node.limit_all_pods { unreserved } else { all.clone() };
        Self { all, allocatable, limit, pids: None }
    }

    /// What a container without limits may use.
    pub fn limits(&self) -> NodeLimits {
        NodeLimits {
            cpu: self.allocatable[Resource::Cpu],
            memory: self.allocatable[Resource::Memory],
            ephemeral_storage: self.allocatable[Resource::EphemeralStorage],
        }
    }

    /// The resource of which `kubeReserved` and `systemReserved` leave nothing to pods. kubelet does not start
    /// without memory, and leaves pods at least one process id.
    pub fn reserved_whole(&self) -> Option<&'static str> {
        let no_memory = !self.all[Resource::Memory].is_zero() && self.limit[Resource::Memory].is_zero();
        let no_pids = self.pids == Some(0);
        no_memory.then_some("memory").or(no_pids.then_some("process ids"))
    }

    /// The limits of the cgroup of all pods; none if the node's amount is unknown, or all of it is reserved.
    pub fn all_pods(&self) -> AllPodsLimits {
        let memory = u64::try_from(self.limit[Resource::Memory].units()).ok().filter(|bytes| *bytes > 0);
        let pids = self.pids.filter(|pids| *pids > 0);
        AllPodsLimits { millicores: self.limit[Resource::Cpu].milli(), memory, pids }
    }

    /// What pods may request together; any amount of disk if it could not be measured.
    pub fn offer(&self) -> Requests {
        let mut offer = self.allocatable.clone();
        if self.all[Resource::EphemeralStorage].is_zero() {
            offer[Resource::EphemeralStorage] = Amount::from_units(u64::MAX);
        }
        offer
    }
}

/// The limits of the cgroup of processes with this reservation; with `compressible_only` only a share of the
/// processors.
pub fn reserved_limits(reservation: &Reservation, compressible_only: bool) -> ReservedLimits {
    let requests = &reservation.resources;
    let cpu = requests[Resource::Cpu].milli();
    let memory = u64::try_from(requests[Resource::Memory].units()).ok().filter(|bytes| *bytes > 0);
    let weight = ReservedLimits { millicores: (cpu > 0).then_some(cpu), ..ReservedLimits::default() };
    let pids = (reservation.pids > 0).then_some(reservation.pids);
    if compressible_only { weight } else { ReservedLimits { memory, pids, ..weight } }
}

/// The process ids that remain for pods; `None` without a reservation, because the kernel has its own limit.
fn unreserved_pids(node: &NodeSettings, limit: u64) -> Option<u64> {
    let reserved = node.reserved.kube.pids.saturating_add(node.reserved.system.pids);
    (node.limit_all_pods && reserved > 0).then(|| limit.saturating_sub(reserved))
}

/// What hard eviction keeps free.
fn kept_free(eviction: &EvictionPolicy, memory: u64, disk: u64) -> Requests {
    let kept = |signal: Signal, capacity: u64| {
        let hard = eviction.thresholds.iter().find(|threshold| threshold.signal == signal && threshold.is_hard());
        Amount::from_units(hard.map_or(0, |threshold| threshold.value.resolve(capacity)))
    };
    let mut free = Requests::default();
    free[Resource::Memory] = kept(Signal::MemoryAvailable, memory);
    free[Resource::EphemeralStorage] = kept(Signal::NodefsAvailable, disk);
    free
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpet_model::pod::quantity;

    #[test]
    fn process_ids_that_are_reserved_are_not_for_pods() {
        let mut node = NodeSettings::default();
        assert_eq!(unreserved_pids(&node, 1_000), None);
        node.reserved.kube = Reservation { pids: 100, ..Reservation::default() };
        node.reserved.system = Reservation { pids: 150, ..Reservation::default() };
        assert_eq!(unreserved_pids(&node, 1_000), Some(750));
        assert_eq!(unreserved_pids(&node, 200), Some(0));
        let eviction = EvictionPolicy::default();
        let settings = CapacitySettings { node: &node, eviction: &eviction };
        let of_memory = Capacity::divide(settings, 1 << 30, 0, &BTreeMap::new());
        let whole = Capacity { pids: Some(0), ..of_memory.clone() };
        assert_eq!((of_memory.reserved_whole(), whole.reserved_whole()), (None, Some("process ids")));
        assert_eq!(whole.all_pods().pids, None, "with a limit of none no pod could start");
        node.limit_all_pods = false;
        assert_eq!(unreserved_pids(&node, 1_000), None);
    }

    #[test]
    fn processes_of_the_node_have_what_is_reserved_for_them() {
        let mut resources = Requests::default();
        resources[Resource::Cpu] = quantity::parse("250m").unwrap_or_default();
        let reservation = Reservation { resources, pids: 100 };
        let expected = ReservedLimits { millicores: Some(250), memory: None, pids: Some(100) };
        assert_eq!(reserved_limits(&reservation, false), expected, "nothing is reserved of memory");
        assert_eq!(reserved_limits(&reservation, true), ReservedLimits { pids: None, ..expected });
    }
}
