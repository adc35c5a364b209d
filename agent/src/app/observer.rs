//! Tells the watch which pod owns a cgroup, and reports processes that change manifests.

use std::ffi::OsStr;
use std::sync::Arc;

use super::SharedParts;
use limpet_core::status::observed::Observed;
use limpet_host::cgroup::{CgroupOwner, Cgroups};
use limpet_model::actor::{Actor, ActorPod};
use limpet_model::attribution::{Backend, WatchObserver};
use limpet_telemetry::event::{EventType, Events};
use limpet_telemetry::metrics::Metrics;

/// Attributes changes of manifests to processes and pods.
pub(super) fn node_observer(shared: &SharedParts, cgroups: &Cgroups) -> Arc<dyn WatchObserver> {
    Arc::new(NodeObserver {
        cgroups: cgroups.clone(),
        observed: shared.observed.clone(),
        events: shared.events.clone(),
        metrics: shared.metrics.clone(),
    })
}

/// Knows this node's pods.
struct NodeObserver {
    cgroups: Cgroups,
    observed: Observed,
    events: Events,
    metrics: Metrics,
}

impl NodeObserver {
    /// The names of pod and container, as far as they are still known.
    fn named(&self, owner: CgroupOwner) -> ActorPod {
        let observed = self.observed.load();
        let pod = observed.pods.values().find(|pod| pod.record.uid == owner.pod);
        let container = pod.zip(owner.container).and_then(|(pod, id)| {
            pod.containers.iter().find(|(_, container)| container.id == id).map(|(name, _)| name.clone())
        });
        ActorPod { uid: owner.pod.to_string(), pod: pod.map(|pod| pod.record.key.to_string()), container }
    }
}

impl WatchObserver for NodeObserver {
    fn resident(&self, cgroup: &str) -> Option<ActorPod> {
        self.cgroups.owner(cgroup).map(|owner| self.named(owner))
    }

    fn pod_wrote(&self, name: &OsStr, actor: &Actor) {
        let Some(resident) = &actor.resident else { return };
        let pod = resident.pod_identity();
        // The message contains nothing that a process chooses, so that repetitions are one event and displace no
        // other.
        let message = format!("{resident} changes files where manifests are read");
        let count = self.events.emit(pod, None, EventType::Warning, "PodChangesManifests", message);
        if count.is_power_of_two() {
            tracing::warn!(file = %name.display(), by = %actor, count, "a pod changes files where manifests are read");
        }
        self.metrics.manifest_written_by_pod(resident.pod.as_deref(), resident.container.as_deref());
    }

    fn watching(&self, backend: Backend, lost: Option<Backend>) {
        self.metrics.manifest_watch(backend.as_str(), lost.map(Backend::as_str));
    }
}
