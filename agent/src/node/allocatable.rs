//! Node allocatable: limits the cgroup of all pods to what of the node is not reserved, as kubelet's
//! `enforceNodeAllocatable`, so that the node's own processes have their share whatever pods do.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::capacity::Capacity;
use crate::status::event::{EventType, Events};
use limpet_host::cgroup::Cgroups;

/// kubelet's pause between two tries. Eviction ends pods meanwhile, where they have more memory in use.
const AGAIN: Duration = Duration::from_secs(60);

/// Sets the limits, and reports it in kubelet's words. Ends once they are set, or with the agent.
pub async fn enforce(cgroups: Cgroups, capacity: Capacity, events: Events, stop: CancellationToken) {
    let limits = capacity.all_pods();
    loop {
        let failure = match cgroups.limit_all_pods(limits).await {
            Ok(()) => {
                if let Some(what) = capacity.reserved_whole() {
                    // Another try would change nothing, and with a limit of nothing no pod could run.
                    let remedy = format!("kubeReserved and systemReserved name all {what} of the node: reserve less");
                    return report_failure(&events, &remedy);
                }
                tracing::debug!(?limits, "all pods together are limited");
                let message = "Updated Node Allocatable limit across pods".to_owned();
                events.emit(None, None, EventType::Normal, "NodeAllocatableEnforced", message);
                return;
            }
            Err(failure) => failure,
        };
        report_failure(&events, &failure.to_string());
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

fn report_failure(events: &Events, reason: &str) {
    tracing::warn!(reason, "all pods together are not limited");
    let message = format!("Failed to update Node Allocatable Limits: {reason}");
    events.emit(None, None, EventType::Warning, "FailedNodeAllocatableEnforcement", message);
}
