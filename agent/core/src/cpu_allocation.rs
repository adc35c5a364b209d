//! Which processors a container has exclusively: kubelet's CPU manager with the policy `static`
//! (`pkg/kubelet/cm/cpumanager/policy_static.go`). Pure.
//!
//! A container of a guaranteed pod that requests whole processors gets them exclusively. All others share the rest.
//! The reserved ones are part of the rest and never exclusive. [`take`] chooses the processors of the machine, and
//! [`checkpoint`] is kubelet's format of the assignments on disk.

pub mod checkpoint;
mod take;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec};
use limpet_model::cpu_set::{CpuSet, Processor};
use limpet_model::pod::qos::{CPU, QosClass, names_any, qos_class, request};
use limpet_model::pod::quantity::Amount;
use limpet_model::pod::totals::is_sidecar;

pub use take::NotEnough;

/// The policy's name in the configuration and on disk.
pub const STATIC: &str = "static";
/// The policy of a node that gives no container exclusive processors.
pub const NONE: &str = "none";
/// kubelet's reason for a pod that cannot have whole cores.
pub const SMT_ALIGNMENT: &str = "SMTAlignmentError";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuTopology {
    processors: BTreeMap<u32, Processor>,
}

impl CpuTopology {
    pub fn new(processors: BTreeMap<u32, Processor>) -> Self {
        Self { processors }
    }

    pub fn all(&self) -> CpuSet {
        self.processors.keys().copied().collect()
    }

    fn count_of<T: Ord>(&self, key: impl Fn(&Processor) -> T) -> usize {
        self.processors.values().map(key).collect::<BTreeSet<_>>().len()
    }

    /// Threads of a core, with kubelet's rounding if cores differ.
    fn per_core(&self) -> usize {
        self.processors.len() / self.count_of(|processor| processor.core).max(1)
    }

    /// The processors, and all others of the same cores.
    fn with_siblings(&self, cpus: &CpuSet) -> CpuSet {
        let cores: BTreeSet<u32> = cpus.iter().filter_map(|cpu| Some(self.processors.get(&cpu)?.core)).collect();
        let siblings = self.processors.iter().filter(|(_, processor)| cores.contains(&processor.core));
        siblings.map(|(cpu, _)| *cpu).collect()
    }
}

/// `cpuManagerPolicyOptions`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuPolicyOptions {
    /// `full-pcpus-only`: a container gets whole cores, or its pod is refused.
    pub full_cores_only: bool,
    /// `strict-cpu-reservation`: no container runs on the reserved processors.
    pub strict_reservation: bool,
}

impl CpuPolicyOptions {
    /// Sets the option `name`.
    ///
    /// # Errors
    ///
    /// There is no such option, or it has no such value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let option = match name {
            "full-pcpus-only" => &mut self.full_cores_only,
            "strict-cpu-reservation" => &mut self.strict_reservation,
            "distribute-cpus-across-numa"
            | "align-by-socket"
            | "distribute-cpus-across-cores"
            | "prefer-align-cpus-by-uncorecache" => {
                return Err("limpet does not support it; remove it".to_owned());
            }
            _ => return Err(format!("unknown CPU Manager Policy option: {name:?}")),
        };
        // The values are those of Go's ParseBool.
        *option = match value {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => return Err(format!("{value:?} is neither true nor false")),
        };
        Ok(())
    }

    /// The names of the options that are set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [("full-pcpus-only", self.full_cores_only), ("strict-cpu-reservation", self.strict_reservation)];
        all.into_iter().filter_map(|(name, is_set)| is_set.then_some(name))
    }
}

/// Why the policy cannot be used, in kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error(
        "the static policy requires systemReserved.cpu + kubeReserved.cpu to be greater than zero; or name processors in \
         reservedSystemCPUs"
    )]
    NothingReserved,
    #[error("unable to reserve the required amount of CPUs (size of {reserved} did not equal {wanted})")]
    TooManyReserved { reserved: CpuSet, wanted: usize },
    #[error("reservedSystemCPUs: {reserved} is not a subset of online-cpus: {online}")]
    NotOnline { reserved: CpuSet, online: CpuSet },
    #[error("default cpuset cannot be empty")]
    NothingShared,
    #[error("not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{shared}\"")]
    ReservedNotShared { reserved: CpuSet, shared: CpuSet },
    #[error("some of strictly reserved cpus: \"{both}\" are present in defaultCpuSet: \"{shared}\"")]
    ReservedShared { both: CpuSet, shared: CpuSet },
    #[error("pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{shared}\"")]
    Overlap { pod: String, container: String, cpus: CpuSet, shared: CpuSet },
    #[error("current set of available CPUs \"{online}\" doesn't match with CPUs in state \"{known}\"")]
    OtherMachine { online: CpuSet, known: CpuSet },
}

/// Why a pod cannot have its processors, in kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    #[error(transparent)]
    NotEnough(#[from] NotEnough),
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    PartOfCore { requested: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = \
         {requested}, CPUs per core = {per_core}"
    )]
    NoFreeCores { available: usize, requested: usize, per_core: usize },
}

impl AllocationError {
    /// Whether whole cores were required.
    pub fn is_alignment(&self) -> bool {
        !matches!(self, Self::NotEnough(_))
    }
}

/// Which processors belong to whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuAssignments {
    /// The processors of all containers without exclusive ones.
    pub shared: CpuSet,
    /// The exclusive processors, by pod UID and container.
    pub exclusive: BTreeMap<String, BTreeMap<String, CpuSet>>,
}

impl CpuAssignments {
    /// The container's exclusive processors.
    pub fn exclusive(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.exclusive.get(uid)?.get(container)
    }

    /// The processors that the container may run on.
    pub fn cpus(&self, uid: &str, container: &str) -> &CpuSet {
        self.exclusive(uid, container).unwrap_or(&self.shared)
    }

    /// Frees what the pod has. Returns whether it had something.
    pub fn release(&mut self, uid: &str) -> bool {
        let Some(containers) = self.exclusive.remove(uid) else { return false };
        self.shared = containers.values().fold(self.shared.clone(), |shared, cpus| shared.union(cpus));
        true
    }
}

/// How many processors are reserved, or which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReservedCpus {
    /// `reservedSystemCPUs`.
    These(CpuSet),
    /// The sum of `systemReserved` and `kubeReserved`.
    Amount(Amount),
}

/// The policy on one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticPolicy {
    topology: CpuTopology,
    reserved: CpuSet,
    options: CpuPolicyOptions,
}

impl StaticPolicy {
    /// # Errors
    ///
    /// The reservation does not fit the machine.
    pub fn new(topology: CpuTopology, reserved: &ReservedCpus, options: CpuPolicyOptions) -> Result<Self, PolicyError> {
        let online = topology.all();
        let reserved = match reserved {
            ReservedCpus::These(cpus) if cpus.is_empty() => return Err(PolicyError::NothingReserved),
            ReservedCpus::These(cpus) if !cpus.is_subset(&online) => {
                return Err(PolicyError::NotOnline { reserved: cpus.clone(), online });
            }
            ReservedCpus::These(cpus) => cpus.clone(),
            ReservedCpus::Amount(amount) => {
                // A processor of which a part is reserved must not be exclusive.
                let wanted = usize::try_from(amount.milli()).unwrap_or(0).div_ceil(1_000);
                if wanted == 0 {
                    return Err(PolicyError::NothingReserved);
                }
                take::take(&topology, &online, wanted)
                    .map_err(|_| PolicyError::TooManyReserved { reserved: CpuSet::default(), wanted })?
            }
        };
        Ok(Self { topology, reserved, options })
    }

    pub fn reserved(&self) -> &CpuSet {
        &self.reserved
    }

    /// The processors that can be exclusive.
    pub fn allocatable(&self) -> CpuSet {
        self.topology.all().difference(&self.reserved)
    }

    /// The processors that containers may have, shared or not.
    fn usable(&self) -> CpuSet {
        let online = self.topology.all();
        if self.options.strict_reservation { online.difference(&self.reserved) } else { online }
    }

    /// Checks that the stored assignments fit this policy and machine. Without any, all processors are shared.
    ///
    /// # Errors
    ///
    /// They do not fit, because processors are gone, or other ones are reserved.
    pub fn restore(&self, kept: Option<CpuAssignments>) -> Result<CpuAssignments, PolicyError> {
        let kept = kept.unwrap_or_default();
        let (usable, shared) = (self.usable(), &kept.shared);
        if shared.is_empty() {
            let is_new = kept.exclusive.is_empty();
            return if is_new {
                Ok(CpuAssignments { shared: usable, ..kept })
            } else {
                Err(PolicyError::NothingShared)
            };
        }
        let both = self.reserved.intersection(shared);
        if self.options.strict_reservation && !both.is_empty() {
            return Err(PolicyError::ReservedShared { both, shared: shared.clone() });
        }
        if !self.options.strict_reservation && both != self.reserved {
            return Err(PolicyError::ReservedNotShared { reserved: self.reserved.clone(), shared: shared.clone() });
        }
        let mut known = shared.clone();
        for (pod, containers) in &kept.exclusive {
            for (container, cpus) in containers {
                if !shared.intersection(cpus).is_empty() {
                    let (pod, container) = (pod.clone(), container.clone());
                    return Err(PolicyError::Overlap { pod, container, cpus: cpus.clone(), shared: shared.clone() });
                }
                known = known.union(cpus);
            }
        }
        if known != usable {
            return Err(PolicyError::OtherMachine { online: usable, known });
        }
        Ok(kept)
    }

    /// Gives the pod's containers the processors that they need, in the order in which they start. Those of an init
    /// container are passed on to the containers after it. A container keeps what it already has.
    ///
    /// # Errors
    ///
    /// There are too few, and nothing was given.
    pub fn allocate(
        &self,
        assignments: &CpuAssignments,
        uid: &str,
        spec: &PodSpec,
    ) -> Result<CpuAssignments, AllocationError> {
        let mut next = assignments.clone();
        let mut reusable = CpuSet::default();
        let inits = spec.init_containers.iter().flatten().map(|container| (container, !is_sidecar(container)));
        for (container, passes_on) in inits.chain(spec.containers.iter().map(|container| (container, false))) {
            let count = exclusive_count(spec, container);
            if count == 0 {
                continue;
            }
            let cpus = match next.exclusive(uid, &container.name) {
                Some(cpus) => cpus.clone(),
                None => self.allocate_container(&next, count, &reusable)?,
            };
            next.shared = next.shared.difference(&cpus);
            reusable = if passes_on { reusable.union(&cpus) } else { reusable.difference(&cpus) };
            next.exclusive.entry(uid.to_owned()).or_default().insert(container.name.clone(), cpus);
        }
        Ok(next)
    }

    fn allocate_container(
        &self,
        assignments: &CpuAssignments,
        count: usize,
        reusable: &CpuSet,
    ) -> Result<CpuSet, AllocationError> {
        let per_core = self.topology.per_core();
        if self.options.full_cores_only {
            if !count.is_multiple_of(per_core) {
                return Err(AllocationError::PartOfCore { requested: count, per_core });
            }
            // A core with a reserved thread cannot be given as a whole.
            let available = assignments.shared.difference(&self.topology.with_siblings(&self.reserved)).len();
            if count > available {
                return Err(AllocationError::NoFreeCores { available, requested: count, per_core });
            }
        }
        let available = assignments.shared.difference(&self.reserved).union(reusable);
        Ok(take::take(&self.topology, &available, count)?)
    }
}

/// How many exclusive processors the container gets: as many as it requests, if that is a whole number and its pod is
/// guaranteed. As in kubelet, a pod with resources of its own gets none.
pub fn exclusive_count(spec: &PodSpec, container: &Container) -> usize {
    let has_own = spec.resources.as_ref().is_some_and(names_any);
    if has_own || qos_class(spec) != QosClass::Guaranteed {
        return 0;
    }
    let requested = container.resources.as_ref().map(|resources| request(resources, CPU)).unwrap_or_default();
    match (requested.milli() % 1_000, usize::try_from(requested.milli() / 1_000)) {
        (0, Ok(count)) => count,
        _ => 0,
    }
}

/// Whether another number of processors is exclusive in `new`: a running container keeps those that it has.
pub fn changes_exclusive(old: &PodSpec, new: &PodSpec) -> bool {
    resizable(new).any(|container| {
        let before = resizable(old).find(|before| before.name == container.name);
        before.is_some_and(|before| exclusive_count(old, before) != exclusive_count(new, container))
    })
}

/// Why a pod of the apiserver that runs as `old` never gets the resources of `new`, in kubelet's words: kubelet changes no
/// cpu of a guaranteed pod, exclusive or not (`guaranteedPodResourceResizeRequired`).
pub fn infeasible(old: &PodSpec, new: &PodSpec) -> Option<&'static str> {
    let requested = |container: &Container| {
        container.resources.as_ref().map(|resources| request(resources, CPU)).unwrap_or_default()
    };
    let changes = |container: &Container| {
        let before = resizable(old).find(|before| before.name == container.name);
        before.is_some_and(|before| requested(before) != requested(container))
    };
    (qos_class(new) == QosClass::Guaranteed && resizable(new).any(changes))
        .then_some("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"")
}

/// The containers whose resources may change while they run.
fn resizable(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let sidecars = spec.init_containers.iter().flatten().filter(|container| is_sidecar(container));
    sidecars.chain(&spec.containers)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
