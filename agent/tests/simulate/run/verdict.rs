//! What must hold of a node once it has come to rest.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Container;
use limpet_core::status::observed::ObservedPod;
use limpet_model::pod::authored::{Authored, AuthoredContainer};
use limpet_model::pod::compute_resources::pod_limits;

use super::Node;
use crate::{expected, places};

impl Node {
    /// How often workers have looked, and how many probes have run.
    pub(super) fn effort(&self) -> (u64, u64) {
        let world = self.world();
        (world.looks, world.probe_runs)
    }

    /// When nothing happens workers look for their probes alone: when one is due, once it runs, and at its result.
    pub(super) fn check_effort(&self, before: (u64, u64)) {
        let now = self.effort();
        let (looks, probes) = (now.0 - before.0, now.1 - before.1);
        if looks > 5 * probes {
            self.world().violations.push(format!("workers have looked {looks} times for {probes} probes"));
        }
    }

    pub(super) fn check(&mut self) {
        let agent = self.agent.as_ref().unwrap();
        let (desired, observed) = (agent.desired.load(), agent.observed.load());
        let mut world = self.world.lock().unwrap();
        let mut violations = Vec::new();
        let wanted: BTreeSet<String> = desired.pods.values().map(|record| record.uid.to_string()).collect();
        if desired.pods.len() != self.files.len() {
            violations.push(format!("{} pods desired of {} files", desired.pods.len(), self.files.len()));
        }
        for uid in world.pods().difference(&wanted) {
            violations.push(format!("orphan: something of {uid} is left"));
        }
        if !observed.pods.keys().eq(desired.pods.keys()) {
            violations.push(format!("{} pods have a status, {} are desired", observed.pods.len(), desired.pods.len()));
        }
        world.check_unstopped();
        let mut ready = BTreeMap::new();
        for (key, pod) in &observed.pods {
            for container in pod.status.container_statuses.iter().flatten() {
                ready.insert(
                    (desired.pods.get(key).map(|pod| pod.uid.to_string()), container.name.clone()),
                    container.ready,
                );
            }
        }
        violations.extend(observed.pods.values().flat_map(|pod| waiting_ephemeral(pod)));
        for (uid, name, last) in world.last_readiness() {
            let shown = ready.get(&(Some(uid.clone()), name.clone())).copied();
            if shown != Some(last) {
                violations.push(format!("{name} of {uid} is shown as ready: {shown:?}, its probe says {last}"));
            }
        }
        violations.extend(places::contradictions(world.max_pods, observed.pods.values()));
        // What waits for a place runs once another pod is gone.
        let waiting = places::waiting(observed.pods.values());
        let admitted = || desired.pods.values().filter(|record| !waiting.contains(&record.uid));
        violations.extend(
            waiting.iter().filter(|uid| world.runs(uid)).map(|uid| format!("{uid} waits for a place and runs")),
        );
        let running = world.what_runs();
        for record in admitted().filter(|record| record.spec().restart_policy.as_deref() == Some("Always")) {
            // Every deadline has passed by now.
            let runs = record.spec().active_deadline_seconds.is_none() && !world.has_failed(&record.uid);
            let lasts =
                |container: &&Container| container.restart_policy.as_deref().is_none_or(|policy| policy == "Always");
            let lasting: Vec<&Container> = record.spec().containers.iter().filter(lasts).collect();
            for container in &lasting {
                let instances =
                    running.iter().filter(|(uid, name, _)| *uid == record.uid.as_str() && *name == container.name);
                let count = instances.clone().count();
                let authored = Authored::parse(&record.manifest);
                let version = authored.container(&container.name).map(AuthoredContainer::fingerprint);
                for (_, name, fingerprint) in
                    instances.filter(|(.., fingerprint)| Some(fingerprint) != version.as_ref())
                {
                    violations.push(format!("{}/{name} runs version {fingerprint}, not {version:?}", record.key));
                }
                let wanted = usize::from(runs);
                if count != wanted {
                    violations.push(format!("{}/{} runs {count} times", record.key, container.name));
                }
            }
            world.check_post_starts(record);
            let limits = world.cgroup(&record.uid);
            if runs && !lasting.is_empty() && limits != Some(pod_limits(record.spec())) {
                violations.push(format!("{} has a cgroup of {limits:?}", record.key));
            }
        }
        for record in admitted() {
            violations.extend(expected::contradictions(
                record,
                &world.newest(&record.uid),
                world.has_failed(&record.uid),
            ));
        }
        if world.under_way > 0 {
            violations.push(format!("{} calls are under way although nothing happens", world.under_way));
        }
        for what in violations {
            world.note(|| format!("VIOLATION {what}"));
            world.violations.push(what);
        }
    }
}

/// The ephemeral containers that wait although their pod runs, and nothing keeps them from starting.
fn waiting_ephemeral(pod: &ObservedPod) -> Vec<String> {
    let waits = |name: &str| {
        let mut statuses = pod.status.ephemeral_container_statuses.iter().flatten();
        let status = statuses.find(|status| status.name == name);
        status.and_then(|status| status.state.as_ref()).is_some_and(|state| state.waiting.is_some())
    };
    let free = pod.record.ephemeral.iter().filter(|container| pod.record.target_of(&container.name).is_none());
    let waiting = free.filter(|container| pod.status.phase.as_deref() == Some("Running") && waits(&container.name));
    waiting.map(|container| format!("{} of {} waits and could run", container.name, pod.record.key)).collect()
}
