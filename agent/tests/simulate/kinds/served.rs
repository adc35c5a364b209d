//! The Services of a life, and what the kernel's rules for them must and must never be.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use limpet_core::status::observed::{ObservedPod, ObservedPods};
use limpet_model::pod::is_terminal_phase;
use limpet_services::fake::FakeBackend;
use limpet_services::rules::Ruleset;
use serde_json::json;
use tokio::time::Instant;

use super::label;

/// How long the task pauses before it tries again what the kernel has refused, and a moment.
const RETRY: Duration = Duration::from_secs(31);

/// The Services, by the workload whose pods they select, and the kernel that serves them.
#[derive(Default)]
pub(super) struct Served {
    pub(super) backend: FakeBackend,
    pub(super) names: BTreeSet<String>,
    /// The rules that the agent before has left, while the next one may not know the pods.
    left: Option<Ruleset>,
    /// Until then the kernel may have refused the last change.
    refused_until: Option<Instant>,
}

impl Served {
    /// The manifest of the Service for the workload of that name.
    pub(super) fn text(name: &str) -> Vec<u8> {
        let spec = json!({ "selector": { "app": name }, "ports": [{ "port": 80, "targetPort": 8080 }] });
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": spec }).to_string().into()
    }

    /// The kernel refuses the next changes.
    pub(super) fn refuse(&mut self, changes: u32) {
        self.backend.kernel().refusals = changes;
        self.refused_until = Some(Instant::now() + RETRY);
    }

    /// The agent has ended: its rules stay.
    pub(super) fn agent_ended(&mut self) {
        self.left = self.backend.kernel().rules.clone();
    }

    /// What is wrong with the rules while no agent runs.
    pub(super) fn look_alone(&mut self) -> Option<String> {
        self.expect_refusals();
        let differs = self.backend.kernel().rules != self.left;
        differs.then(|| "the rules of Services have changed without an agent".to_owned())
    }

    /// What is wrong with the rules beside what the agent observes. `knows_pods`: it has observed all pods that it wants to run.
    pub(super) fn look(&mut self, observed: &ObservedPods, knows_pods: bool) -> Vec<String> {
        self.expect_refusals();
        if let Some(left) = self.left.take_if(|_| !knows_pods && !self.names.is_empty()) {
            let differs = self.backend.kernel().rules.as_ref() != Some(&left);
            self.left = Some(left);
            return Vec::from_iter(differs.then(|| "rules were replaced before the pods were known".to_owned()));
        }
        self.left = None;
        let (rules, expected) = (self.endpoints(), self.expected(observed));
        let mut wrong = Vec::new();
        for (name, addresses) in &rules {
            let strangers: Vec<&IpAddr> =
                addresses.iter().filter(|address| !is_address(observed, name, address)).collect();
            if !strangers.is_empty() && !self.may_be_late() {
                wrong.push(format!("{name} leads to {strangers:?}, which none of its pods has"));
            }
        }
        if !self.may_be_late() && rules != expected {
            wrong.push(format!("connections lead to {rules:?}, and the ready pods are at {expected:?}"));
        }
        let has_rules = self.backend.kernel().rules.is_some();
        if !self.may_be_late() && has_rules == self.names.is_empty() {
            wrong.push(format!("rules: {has_rules}, with the Services {:?}", self.names));
        }
        wrong
    }

    /// The next change may be refused, and has to be tried again.
    fn expect_refusals(&mut self) {
        if self.backend.kernel().refusals > 0 {
            self.refused_until = Some(Instant::now() + RETRY);
        }
    }

    /// Whether the rules do not change before something else does.
    pub(super) fn is_settled(&self) -> bool {
        self.backend.kernel().refusals == 0 && !self.may_be_late() && self.left.is_none()
    }

    fn may_be_late(&self) -> bool {
        self.refused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Where the rules lead to, by the names of the Services. Those without an endpoint are left out.
    pub(super) fn endpoints(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let kernel = self.backend.kernel();
        let names: BTreeMap<IpAddr, &String> =
            kernel.book.assigned.iter().filter_map(|((_, name), had)| Some((*had.addresses.first()?, name))).collect();
        let mut endpoints: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
        for forward in kernel.rules.iter().flat_map(|rules| &rules.forwards) {
            let name = forward.service.and_then(|(address, _)| names.get(&address)).map(|name| (*name).clone());
            let of_service = endpoints.entry(name.unwrap_or_else(|| "a Service that has gone".to_owned())).or_default();
            of_service.extend(forward.choice.places().iter().map(|place| place.address));
        }
        endpoints
    }

    /// Where they have to lead to.
    fn expected(&self, observed: &ObservedPods) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let of_name = |name: &String| {
            let pods = || {
                observed.pods.values().filter(|pod| label(&pod.record, "app") == Some(name.as_str()) && is_ready(pod))
            };
            let staying: BTreeSet<IpAddr> = pods().filter(|pod| !ends(pod)).filter_map(|pod| address(pod)).collect();
            let all = || pods().filter_map(|pod| address(pod)).collect();
            (name.clone(), if staying.is_empty() { all() } else { staying })
        };
        self.names.iter().map(of_name).filter(|(_, addresses)| !addresses.is_empty()).collect()
    }
}

fn is_ready(pod: &ObservedPod) -> bool {
    let mut conditions = pod.status.conditions.iter().flatten();
    let has_ended = pod.status.phase.as_deref().is_some_and(is_terminal_phase);
    !has_ended && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn ends(pod: &ObservedPod) -> bool {
    pod.terminating_since.is_some() || pod.record.is_deleting()
}

fn address(pod: &ObservedPod) -> Option<IpAddr> {
    pod.status.pod_ips.iter().flatten().find_map(|ip| ip.ip.parse().ok())
}

/// Whether a pod of the workload has this address, and no pod of another one.
fn is_address(observed: &ObservedPods, name: &str, asked: &IpAddr) -> bool {
    let mut owners = observed.pods.values().filter(|pod| address(pod) == Some(*asked)).peekable();
    owners.peek().is_some() && owners.all(|pod| label(&pod.record, "app") == Some(name))
}
