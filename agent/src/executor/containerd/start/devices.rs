//! What device plugins give a container that is about to start.

use super::ContainerdExecutor;
use limpet_core::outcome::Failure;
use limpet_core::state::{ContainerSlot, PodState};
use limpet_model::device_allocation::DeviceAllocation;
use limpet_plugins::device_plugins::AllocateError;

impl ContainerdExecutor {
    /// Has device plugins give the container what it still lacks and prepare what it has. This happens before a permit
    /// is taken, so that a hanging plugin delays no other pod.
    pub(super) async fn devices(&self, pod: &PodState, slot: &ContainerSlot) -> Result<Vec<DeviceAllocation>, Failure> {
        let prepared = async {
            self.device_plugins.complete(&pod.record, &slot.name).await?;
            let given = self.device_plugins.given(&pod.record, &slot.name);
            self.device_plugins.pre_start(&given).await?;
            Ok::<_, AllocateError>(given)
        };
        prepared.await.map_err(|error| {
            let (reason, message) = ("CreateContainerConfigError", error.to_string());
            self.reporter.report_start_failure(pod, slot, reason, &message);
            Failure { reason, message, transient: true }
        })
    }
}

/// Creates missing sources of a plugin's mounts, like containerd's CRI plugin, because what existed when the plugin
/// answered may be gone after a restart of the node. Blocks.
pub(super) fn make_sources(given: &[DeviceAllocation]) -> Result<(), String> {
    for mount in given.iter().flat_map(|device| &device.mounts).filter(|mount| !mount.host_path.exists()) {
        let made = std::fs::create_dir_all(&mount.host_path);
        made.map_err(|error| format!("create {}: {error}", mount.host_path.display()))?;
    }
    Ok(())
}
