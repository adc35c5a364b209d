//! The processors of containers, if some are exclusive ([`limpet_cpus`]).

use limpet_containerd::spec::ContainerCpus;
use limpet_core::admission::HostLack;
use limpet_core::state::{ContainerSlot, PodState};
use limpet_model::container::ContainerId;
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::pod::{PodRecord, PodUid};

use super::ContainerdExecutor;

impl ContainerdExecutor {
    /// The processors of a container; `None` for all.
    pub(super) fn cpus_of(&self, uid: &PodUid, container: &str) -> Option<ContainerCpus> {
        self.cpus.as_ref().map(|cpus| cpus.container_cpus(uid, container))
    }

    /// Gives the pod's containers their exclusive ones.
    ///
    /// # Errors
    /// There are too few.
    pub(super) async fn allocate_cpus(&self, record: &PodRecord) -> Result<(), HostLack> {
        let Some(cpus) = &self.cpus else { return Ok(()) };
        cpus.allocate(record).await.map_err(|why| match why.is_alignment() {
            true => HostLack::WholeCores(why.to_string()),
            false => HostLack::Processors(why.to_string()),
        })
    }

    /// Records that a container was started with these processors; `None` if they are not known.
    pub(super) fn started_on_cpus(
        &self,
        id: &ContainerId,
        pod: &PodState,
        slot: &ContainerSlot,
        with: Option<&ContainerCpus>,
    ) {
        if let Some(cpus) = &self.cpus {
            cpus.started(id, &pod.record.uid, &slot.name, with);
        }
    }

    /// The limits of a pod's cgroup, without a quota for exclusive processors.
    pub(super) fn limits_with_cpus(&self, uid: &PodUid, limits: CgroupLimits) -> CgroupLimits {
        let has_exclusive = self.cpus.as_ref().is_some_and(|cpus| cpus.has_exclusive(uid));
        CgroupLimits { cpu_quota: limits.cpu_quota.filter(|_| !has_exclusive), ..limits }
    }
}
