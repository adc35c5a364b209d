//! Limits all pods together, through the cgroup above them.

use limpet_model::pod::compute_resources::{CgroupLimits, cpu_shares};
use limpet_model::pod::qos::QosClass;

use super::limits::GroupLimits;
use super::{CgroupError, Cgroups, blocking};

/// The limits of all pods together: kubelet's node allocatable, plus what eviction keeps free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllPodsLimits {
    /// Thousandths of a processor; a weight relative to the node's other processes.
    pub millicores: i64,
    /// Bytes of memory; `None`: no limit.
    pub memory: Option<u64>,
    /// Process ids; `None`: no limit.
    pub pids: Option<u64>,
}

impl Cgroups {
    /// Limits all pods together. Idempotent.
    ///
    /// # Errors
    ///
    /// The pods use more memory, so the kernel of cgroup v2 would kill processes immediately; or a limit cannot be
    /// set.
    pub async fn limit_all_pods(&self, limits: AllPodsLimits) -> Result<(), CgroupError> {
        let level = self.shared.layout.level(QosClass::Guaranteed);
        let shares = cpu_shares(limits.millicores);
        let pids = limits.pids.map(|pids| i64::try_from(pids).unwrap_or(i64::MAX));
        let cgroups = self.clone();
        let in_use = blocking(move || Ok(cgroups.memory_of_all_pods())).await?;
        if let (Some(limit), Some(in_use)) = (limits.memory, in_use)
            && in_use > limit
        {
            // Processors and process ids can be limited anyway.
            self.apply(vec![(level.clone(), GroupLimits::weighing(shares).with_pids(pids))]).await?;
            let group = self.shared.layout.directory(&level);
            return Err(CgroupError::MemoryInUse { group, limit, in_use });
        }
        let memory = limits.memory.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        let limits = CgroupLimits { cpu_shares: shares, cpu_quota: None, memory };
        self.apply(vec![(level, GroupLimits::of_pod(&limits, pids))]).await
    }
}
