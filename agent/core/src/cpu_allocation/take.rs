//! Which processors are taken for a container: kubelet's `takeByTopologyNUMAPacked` (`cpu_assignment.go`).
//!
//! Whole sockets and NUMA nodes come first, then whole cores, then single threads. Of each, those with the fewest
//! free processors come first, so that what is left stays together.

use std::collections::BTreeMap;

use limpet_model::cpu_set::{CpuSet, Processor};

use super::CpuTopology;

/// kubelet's message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
pub struct NotEnough {
    pub requested: usize,
    pub available: usize,
}

/// A level of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    NumaNode,
    Socket,
    Core,
}

impl Level {
    fn id(self, processor: &Processor) -> i64 {
        match self {
            Self::NumaNode => i64::from(processor.numa_node),
            Self::Socket => processor.socket,
            Self::Core => i64::from(processor.core),
        }
    }
}

/// Chooses `count` of the available processors.
///
/// # Errors
///
/// There are fewer.
pub(super) fn take(topology: &CpuTopology, available: &CpuSet, count: usize) -> Result<CpuSet, NotEnough> {
    let free: CpuSet = available.intersection(&topology.all());
    if count > free.len() {
        return Err(NotEnough { requested: count, available: free.len() });
    }
    let mut selection = Selection { topology, free, missing: count, taken: CpuSet::default() };
    for level in selection.upper_levels().into_iter().chain([Level::Core]) {
        selection.take_whole(level);
    }
    selection.take_single();
    Ok(selection.taken)
}

struct Selection<'a> {
    topology: &'a CpuTopology,
    free: CpuSet,
    missing: usize,
    taken: CpuSet,
}

impl Selection<'_> {
    /// NUMA nodes and sockets, the larger level first.
    fn upper_levels(&self) -> [Level; 2] {
        let sockets = self.topology.count_of(|processor| processor.socket);
        let nodes = self.topology.count_of(|processor| processor.numa_node);
        if sockets >= nodes { [Level::NumaNode, Level::Socket] } else { [Level::Socket, Level::NumaNode] }
    }

    /// How many processors an element of the level has, either all or only the free ones.
    fn size(&self, level: Level, id: i64, free_only: bool) -> usize {
        let of_it = self.topology.processors.iter().filter(|(_, processor)| level.id(processor) == id);
        of_it.filter(|(cpu, _)| !free_only || self.free.contains(**cpu)).count()
    }

    /// The elements with free processors, the fewest first; with `within`, only those of one element of a higher
    /// level.
    fn sorted(&self, level: Level, within: Option<(Level, i64)>) -> Vec<i64> {
        let mut free: BTreeMap<i64, usize> = BTreeMap::new();
        for cpu in self.free.iter() {
            let Some(processor) = self.topology.processors.get(&cpu) else { continue };
            if within.is_none_or(|(level, id)| level.id(processor) == id) {
                *free.entry(level.id(processor)).or_default() += 1;
            }
        }
        // kubelet counts all that are free in an element, even if only a part of it is within the higher level.
        let mut ids: Vec<i64> = free.into_keys().collect();
        ids.sort_by_key(|id| (self.size(level, *id, true), *id));
        ids
    }

    /// All elements of a level, in the order of those above them.
    fn in_order(&self, level: Level) -> Vec<i64> {
        let [first, second] = self.upper_levels();
        let firsts = self.sorted(first, None);
        if level == first {
            return firsts;
        }
        let seconds: Vec<i64> = firsts.into_iter().flat_map(|id| self.sorted(second, Some((first, id)))).collect();
        if level == second {
            return seconds;
        }
        seconds.into_iter().flat_map(|id| self.sorted(level, Some((second, id)))).collect()
    }

    /// Takes unused elements of a level, as long as all of one is needed.
    fn take_whole(&mut self, level: Level) {
        let mut whole = self.in_order(level);
        whole.retain(|id| self.size(level, *id, true) == self.whole_size(level, *id));
        for id in whole {
            let size = self.size(level, id, false);
            if self.missing >= size && size > 0 {
                let of_it = self.topology.processors.iter().filter(|(_, processor)| level.id(processor) == id);
                self.take(of_it.map(|(cpu, _)| *cpu).collect());
            }
        }
    }

    /// As in kubelet, sockets and cores all have the average size.
    fn whole_size(&self, level: Level, id: i64) -> usize {
        let average = |count: usize| self.topology.processors.len() / count.max(1);
        match level {
            Level::NumaNode => self.size(level, id, false),
            Level::Socket => average(self.topology.count_of(|processor| processor.socket)),
            Level::Core => self.topology.per_core(),
        }
    }

    /// Takes single threads, from partly used cores first.
    fn take_single(&mut self) {
        let cores = self.in_order(Level::Core);
        let threads = cores.into_iter().flat_map(|core| {
            let of_core = |cpu: &u32| {
                self.topology.processors.get(cpu).is_some_and(|processor| Level::Core.id(processor) == core)
            };
            self.free.iter().filter(of_core).collect::<Vec<_>>()
        });
        let taken: CpuSet = threads.take(self.missing).collect();
        self.take(taken);
    }

    fn take(&mut self, cpus: CpuSet) {
        self.free = self.free.difference(&cpus);
        self.missing = self.missing.saturating_sub(cpus.len());
        self.taken = self.taken.union(&cpus);
    }
}
