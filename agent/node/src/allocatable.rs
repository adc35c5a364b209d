//! Node allocatable, as kubelet's `enforceNodeAllocatable`: limits the cgroup of all pods to what is not reserved, so
//! that the node's own processes have their share whatever pods do, and limits cgroups of these processes to what is
//! reserved.

use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::capacity::{Capacity, reserved_limits};
use crate::settings::{Reservation, Reserved, ReservedCgroup};
use limpet_host::cgroup::{AllPodsLimits, Cgroups, ReservedLimits};
use limpet_telemetry::event::{EventType, Events};

/// kubelet's pause between two attempts. Meanwhile eviction ends pods, if they use more memory.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Sets limits, and reports it in kubelet's words.
#[derive(Debug, Clone)]
pub struct Enforcement {
    pub cgroups: Cgroups,
    pub events: Events,
    pub stop: CancellationToken,
}

#[derive(Debug)]
enum Target {
    AllPods(AllPodsLimits),
    Group(PathBuf, ReservedLimits),
}

impl Enforcement {
    /// Limits all pods together. Ends once they are limited, or with the agent.
    pub async fn limit_all_pods(self, capacity: Capacity) {
        let (target, failed) = (Target::AllPods(capacity.all_pods()), "Failed to update Node Allocatable Limits");
        if !self.retried(failed, target).await {
            return;
        }
        if let Some(what) = capacity.reserved_whole() {
            // Another attempt would change nothing, and with a limit of zero no pod could run.
            let remedy = format!("kubeReserved and systemReserved leave no {what} for pods: reserve less");
            return self.report_failure(failed, &remedy);
        }
        self.report("Updated Node Allocatable limit across pods".to_owned());
    }

    /// Limits the cgroups of the node's own processes that should be limited. Ends once they are, or with the agent.
    pub async fn limit_reserved(self, reserved: Reserved) {
        let Reserved { kube, system, kube_cgroup, system_cgroup } = &reserved;
        tokio::join!(self.limit(system_cgroup, system, "system"), self.limit(kube_cgroup, kube, "kube"));
    }

    async fn limit(&self, cgroup: &Option<ReservedCgroup>, reservation: &Reservation, whose: &str) {
        let Some(ReservedCgroup { group, compressible_only }) = cgroup else { return };
        let target = Target::Group(group.clone(), reserved_limits(reservation, *compressible_only));
        let failed = format!("Failed to enforce {whose}-reserved limits on {}", group.display());
        if self.retried(&failed, target).await {
            self.report(format!("Updated limits on {whose} reserved cgroup {}", group.display()));
        }
    }

    /// Retries until the limits are set; returns false if the agent stops before.
    async fn retried(&self, failed: &str, target: Target) -> bool {
        loop {
            let outcome = match &target {
                Target::AllPods(limits) => self.cgroups.limit_all_pods(*limits).await,
                Target::Group(group, limits) => self.cgroups.limit_reserved(group, *limits).await,
            };
            let Err(failure) = outcome else { return true };
            self.report_failure(failed, &failure.to_string());
            tokio::select! {
                () = self.stop.cancelled() => return false,
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
            }
        }
    }

    fn report(&self, message: String) {
        tracing::debug!("{message}");
        self.events.emit(None, None, EventType::Normal, "NodeAllocatableEnforced", message);
    }

    fn report_failure(&self, failed: &str, reason: &str) {
        tracing::warn!(reason, "{failed}");
        let message = format!("{failed}: {reason}");
        self.events.emit(None, None, EventType::Warning, "FailedNodeAllocatableEnforcement", message);
    }
}
