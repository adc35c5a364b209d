//! What all pods have together: the limits and the memory of the cgroup above them.

use limpet_model::pod::compute_resources::{CgroupLimits, cpu_shares};
use limpet_model::pod::qos::QosClass;

use super::limits::GroupLimits;
use super::{CgroupError, Cgroups, blocking};

/// What all pods may have together: kubelet's node allocatable, with what eviction keeps free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllPodsLimits {
    /// Thousandths of a processor; a weight beside the node's other processes.
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
    /// When they have more memory in use: the kernel of cgroup v2 would end processes for it at once. When a limit cannot
    /// be set.
    pub async fn limit_all_pods(&self, limits: AllPodsLimits) -> Result<(), CgroupError> {
        let level = self.shared.layout.level(QosClass::Guaranteed);
        let shares = cpu_shares(limits.millicores);
        let pids = limits.pids.map(|pids| i64::try_from(pids).unwrap_or(i64::MAX));
        let cgroups = self.clone();
        let in_use = blocking(move || Ok(cgroups.memory_of_all_pods())).await?;
        if let (Some(limit), Some(in_use)) = (limits.memory, in_use)
            && in_use > limit
        {
            // Processors and process ids can be limited all the same.
            self.apply(vec![(level.clone(), GroupLimits::weighing(shares).with_pids(pids))]).await?;
            let group = self.shared.layout.directory(&level);
            return Err(CgroupError::MemoryInUse { group, limit, in_use });
        }
        let memory = limits.memory.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        let own = CgroupLimits { cpu_shares: shares, cpu_quota: None, memory };
        self.apply(vec![(level, GroupLimits::of_pod(&own, pids))]).await
    }
}
