//! What runs on the node and what is recorded of it, for the agent's readings and for the checks after a run.

use std::collections::{BTreeMap, BTreeSet};

use limpet_core::state::PodState;
use limpet_model::container::{FoundContainer, Task};
use limpet_model::pod::PodUid;

use super::{Container, World};

impl World {
    pub(in crate::fake) fn listing(&self) -> Vec<FoundContainer> {
        let containers = self.containers.iter().map(|(id, container)| FoundContainer {
            id: id.clone(),
            recorded: container.recorded.clone(),
            task: container.last_task(),
            has_snapshot: container.has_snapshot,
        });
        containers.collect()
    }

    /// The running containers: pod UID, container, fingerprint.
    pub fn what_runs(&self) -> Vec<(String, String, String)> {
        let running = self.containers.values().filter(|container| is_running(container));
        let what = running.map(|container| {
            let identity = &container.recorded.identity;
            (identity.uid.clone(), identity.container.clone(), identity.fingerprint.clone())
        });
        what.collect()
    }

    /// The namespaced names under which containers of several pods run.
    pub fn names_that_run_twice(&self) -> Vec<String> {
        let mut uids: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for container in self.containers.values().filter(|container| is_running(container)) {
            let identity = &container.recorded.identity;
            uids.entry(format!("{}/{}", identity.namespace, identity.pod)).or_default().insert(&identity.uid);
        }
        uids.retain(|_, uids| uids.len() > 1);
        uids.into_keys().collect()
    }

    /// Remembers what had ended in an evicted pod that is torn down. If the agent stops meanwhile, the next one may
    /// still find it finished, and finished containers do not run again.
    pub(super) fn remember_evicted(&mut self, pod: &PodState) {
        let uid = pod.record.uid.as_str();
        self.evicted.retain(|(evicted_uid, _), _| evicted_uid != uid);
        if pod.is_under_eviction() {
            let newest = self.newest(&pod.record.uid);
            self.evicted.extend(newest.into_iter().map(|(name, ended)| ((uid.to_owned(), name), ended)));
        }
    }

    /// The newest instance of each container of the pod: its version, and its exit code.
    pub fn newest(&self, uid: &PodUid) -> BTreeMap<String, (String, Option<i32>)> {
        let evicted = self.evicted.iter().filter(|((evicted_uid, _), _)| evicted_uid == uid.as_str());
        let evicted = evicted.map(|((_, name), ended)| (name.clone(), ended.clone()));
        let of_pod = self.containers.values().filter(|container| container.recorded.identity.uid == uid.as_str());
        let mut of_pod: Vec<&Container> = of_pod.collect();
        of_pod.sort_by_key(|container| container.recorded.identity.attempt);
        let newest = of_pod.into_iter().map(|container| {
            let identity = &container.recorded.identity;
            (identity.container.clone(), (identity.fingerprint.clone(), container.exit_code()))
        });
        evicted.chain(newest).collect()
    }

    /// Whether a verdict is recorded on a container of the pod.
    pub fn has_failed(&self, uid: &PodUid) -> bool {
        let mut of_pod = self.containers.values().filter(|container| container.recorded.identity.uid == uid.as_str());
        of_pod.any(|container| container.recorded.state.verdict.is_some())
    }

    /// The UIDs of pods that have anything on the node.
    pub fn pods(&self) -> BTreeSet<String> {
        let containers = self.containers.values().map(|container| container.recorded.identity.uid.clone());
        containers.chain(self.traces().iter().map(PodUid::to_string)).collect()
    }
}

impl Container {
    /// The task; where the runtime has forgotten it, the exit that the shim has recorded.
    pub(super) fn last_task(&self) -> Option<Task> {
        self.task.or_else(|| self.recorded_exit.map(|(code, at)| Task::Stopped { code, at }))
    }

    pub(super) fn exit_code(&self) -> Option<i32> {
        match self.last_task() {
            Some(Task::Stopped { code, .. }) => Some(code),
            _ => self.recorded.state.exit.as_ref().map(|exit| exit.code),
        }
    }
}

pub(super) fn is_running(container: &Container) -> bool {
    matches!(container.task, Some(Task::Running { .. }))
}
