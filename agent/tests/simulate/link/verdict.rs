//! What must hold of a node and its cluster once the line between them is good.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::Node;
use crate::agent::NODE;

/// What of a pod's status is compared.
const STATUS_FIELDS: [&str; 7] = [
    "/phase",
    "/startTime",
    "/hostIP",
    "/containerStatuses/0/containerID",
    "/containerStatuses/0/restartCount",
    "/containerStatuses/0/ready",
    "/containerStatuses/0/state",
];

impl Node {
    /// The pods that run: how many containers each has that do.
    fn running(&self) -> BTreeMap<String, usize> {
        let mut count = BTreeMap::new();
        for (uid, ..) in self.world.lock().unwrap().what_runs() {
            *count.entry(uid).or_default() += 1;
        }
        count
    }

    /// What a restored cluster does not have runs on until it is accepted.
    pub(super) fn check_held(&mut self) {
        let desired = self.agent.as_ref().unwrap().desired.load();
        let running = self.running();
        for record in desired.pods.values() {
            let deleted = record.pod.metadata.deletion_timestamp.is_some();
            if !deleted && running.get(record.uid.as_str()) != Some(&1) {
                self.violations.push(format!("{} does not run before the cluster is accepted", record.key));
            }
        }
    }

    pub(super) fn check(&mut self) {
        let agent = self.agent.as_ref().unwrap();
        let (desired, observed) = (agent.desired.load(), agent.observed.load());
        let mut violations = std::mem::take(&mut self.violations);
        let theirs = self.server.pods();
        let names: BTreeSet<String> = observed.pods.keys().map(|key| key.name().to_owned()).collect();
        let wanted: BTreeSet<String> =
            self.files.keys().map(|name| format!("{name}-{NODE}")).chain(self.bound()).collect();
        if names != wanted {
            violations.push(format!("the node has {names:?}, it should have {wanted:?}"));
        }
        if !theirs.keys().eq(&names) {
            violations.push(format!("the node has {names:?}, the cluster has {:?}", theirs.keys()));
        }
        let running = self.running();
        for (key, pod) in &observed.pods {
            let (uid, shown) = (pod.record.uid.to_string(), theirs.get(key.name()).cloned().unwrap_or_default());
            let mirror = &shown["metadata"]["annotations"]["kubernetes.io/config.mirror"];
            let known = if mirror.is_null() { &shown["metadata"]["uid"] } else { mirror };
            if *known != *uid {
                violations.push(format!("{key} is {uid}, the cluster has {known}"));
            }
            let on_node = json!(pod.status);
            for field in STATUS_FIELDS {
                let value_of = |status: &Value| status.pointer(field).cloned();
                if value_of(&on_node) != value_of(&shown["status"]) {
                    violations.push(format!(
                        "{key}: {field} is {:?} on the node, {:?} in the cluster",
                        value_of(&on_node),
                        value_of(&shown["status"])
                    ));
                }
            }
            for condition in on_node["conditions"].as_array().into_iter().flatten() {
                let theirs = shown["status"]["conditions"].as_array().into_iter().flatten();
                let theirs = theirs.filter(|other| other["type"] == condition["type"]).map(|other| &other["status"]);
                let theirs: Vec<_> = theirs.collect();
                if theirs != [&condition["status"]] {
                    let (name, status) = (&condition["type"], &condition["status"]);
                    violations.push(format!("{key}: {name} is {status} on the node, {theirs:?} in the cluster"));
                }
            }
            if on_node["containerStatuses"][0]["restartCount"] != 0 || running.get(&uid) != Some(&1) {
                violations.push(format!("{key} was restarted or does not run once: {}", on_node["containerStatuses"]));
            }
        }
        let known: BTreeSet<String> = desired.pods.values().map(|record| record.uid.to_string()).collect();
        let mut world = self.world.lock().unwrap();
        for uid in world.pods().difference(&known) {
            violations.push(format!("something of {uid} is left"));
        }
        violations.append(&mut world.violations);
        drop(world);
        violations.extend(agent.unreported());
        let node = self.server.get(&format!("/api/v1/nodes/{NODE}"));
        if node.is_none() {
            violations.push("there is no Node object".to_owned());
        }
        self.violations = violations;
    }
}
