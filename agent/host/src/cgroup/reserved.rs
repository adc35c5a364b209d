//! The cgroups of the node's own processes. Others create them, and this module sets the limits that are reserved for
//! them (kubelet's `systemReservedCgroup`, `kubeReservedCgroup`).

use std::path::Path;

use super::limits::{GroupLimits, REQUIRED_CONTROLLERS};
use super::memory::in_use;
use super::{CgroupError, Cgroups, blocking, files};
use limpet_model::pod::compute_resources::cpu_shares;

/// The limits of such a cgroup. Absent limits are not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReservedLimits {
    /// Thousandths of a processor; a weight relative to others.
    pub millicores: Option<i64>,
    /// The most memory in bytes.
    pub memory: Option<u64>,
    /// The most process ids.
    pub pids: Option<u64>,
}

impl Cgroups {
    /// Limits an existing cgroup: a path from the root of the hierarchy, or a slice where systemd creates cgroups.
    /// Idempotent.
    ///
    /// # Errors
    ///
    /// The cgroup does not exist, uses more memory, for which cgroup v2 would kill processes, or a limit cannot be
    /// set.
    pub async fn limit_reserved(&self, group: &Path, limits: ReservedLimits) -> Result<(), CgroupError> {
        let group = self.shared.layout.existing(group);
        let wanted = GroupLimits::of_reserved(limits.millicores.map(cpu_shares), limits.memory, limits.pids);
        let settings = wanted.settings(self.is_v2());
        let (shared, directory) = (self.shared.clone(), self.shared.layout.directory(&group));
        let written_by_systemd = self.shared.systemd.is_some();
        blocking(move || {
            let hierarchies = &shared.hierarchies;
            let of_controllers =
                REQUIRED_CONTROLLERS.iter().filter_map(|controller| hierarchies.path(controller, &directory));
            if let Some(path) = of_controllers.into_iter().find(|path| !path.is_dir()) {
                return Err(CgroupError::Missing(path));
            }
            let used = hierarchies.path("memory", &directory).and_then(|path| in_use(&path, hierarchies.is_v2()));
            if let (Some(limit), Some(used)) = (limits.memory, used)
                && used > limit
            {
                return Err(CgroupError::MemoryInUse { group: directory, limit, in_use: used });
            }
            if written_by_systemd { Ok(()) } else { files::set(hierarchies, &directory, &settings) }
        })
        .await?;
        match &self.shared.systemd {
            Some(systemd) => systemd.ensure(&group.slice(), true, &wanted.unit_properties(self.is_v2())).await,
            None => Ok(()),
        }
    }
}
