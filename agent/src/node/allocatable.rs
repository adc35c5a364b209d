//! Node allocatable: limits the cgroup of all pods to what of the node is not reserved, as kubelet's
//! `enforceNodeAllocatable`, so that the node's own processes have their share whatever pods do.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::status::event::{EventType, Events};
use limpet_host::cgroup::{AllPodsLimits, Cgroups};

/// kubelet's pause between two tries. Eviction ends pods meanwhile, where they have more memory in use.
const AGAIN: Duration = Duration::from_secs(60);

/// Sets the limits, and reports it in kubelet's words. Ends once they are set, or with the agent.
pub async fn enforce(cgroups: Cgroups, limits: AllPodsLimits, events: Events, stop: CancellationToken) {
    loop {
        match cgroups.limit_all_pods(limits).await {
            Ok(()) => {
                tracing::debug!(?limits, "all pods together are limited");
                let message = "Updated Node Allocatable limit across pods".to_owned();
                events.emit(None, None, EventType::Normal, "NodeAllocatableEnforced", message);
                return;
            }
            Err(error) => {
                tracing::warn!(%error, ?limits, "all pods together are not limited");
                let message = format!("Failed to update Node Allocatable Limits: {error}");
                events.emit(None, None, EventType::Warning, "FailedNodeAllocatableEnforcement", message);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}
