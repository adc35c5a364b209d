//! Which pod has what only one can have of the node: ports, and devices that are exclusive. A pod whose claim another one has
//! waits and starts once that is free, where kubelet refuses it for good. A pod that was found running has its claims without
//! being asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::PodSpec;
use limpet_core::plan::is_finished;
use limpet_core::state::{ContainerSlot, PodState, SandboxState};
use limpet_model::pod::PodKey;
use limpet_model::pod::device::pod_devices;
use limpet_model::pod::host_port::{HostPort, NODE_PORTS, host_ports};
use limpet_model::verdict::PodVerdict;
use tokio::sync::Notify;

/// kubelet's reason for a pod that needs more of a resource than is left begins so; the resource's name follows.
const OUT_OF: &str = "OutOf";

/// What only one pod can have.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Claimed {
    Port(HostPort),
    /// An exclusive device, by its resource's name.
    Device(String),
}

impl Claimed {
    fn conflicts_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Port(one), Self::Port(other)) => one.conflicts_with(other),
            (Self::Device(one), Self::Device(other)) => one == other,
            _ => false,
        }
    }

    /// The pod waits, because `owner` has it.
    fn taken(&self, owner: &PodKey) -> PodVerdict {
        match self {
            Self::Port(port) => {
                let message = format!(
                    "Predicate {NODE_PORTS} failed: node(s) didn't have free ports for the requested pod ports: {port} is \
                     taken by pod {owner}; it starts when that is free"
                );
                PodVerdict::waiting(NODE_PORTS, message)
            }
            Self::Device(name) => {
                let message = format!(
                    "Node didn't have enough resource: {name}, requested: 1, used: 1, capacity: 1; pod {owner} has it, and \
                     this one starts when it is free"
                );
                PodVerdict { reason: format!("{OUT_OF}{name}").into(), ..PodVerdict::waiting(OUT_OF, message) }
            }
        }
    }
}

/// What pods have of the node now.
#[derive(Debug, Default)]
pub struct NodeClaims {
    claims: Mutex<BTreeMap<PodKey, Vec<Claimed>>>,
    /// The devices that one pod at a time can have.
    exclusive: BTreeSet<String>,
    /// Those that wait until something becomes free. A map: they are woken in the order of their keys.
    waiting: Mutex<BTreeMap<PodKey, Arc<Notify>>>,
}

impl NodeClaims {
    /// Nothing is claimed yet; `exclusive`: the devices that one pod at a time can have.
    pub fn new(exclusive: BTreeSet<String>) -> Self {
        Self { exclusive, ..Self::default() }
    }

    fn claims(&self) -> MutexGuard<'_, BTreeMap<PodKey, Vec<Claimed>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self, spec: &PodSpec) -> Vec<Claimed> {
        let devices = pod_devices(spec).into_keys().filter(|name| self.exclusive.contains(*name));
        let ports = host_ports(spec).into_iter().map(Claimed::Port);
        ports.chain(devices.map(|name| Claimed::Device(name.to_owned()))).collect()
    }

    /// Gives `wanted` to the pod, instead of what it has, unless another one has it. `had`: it uses it, whoever else does.
    fn give(&self, key: &PodKey, wanted: Vec<Claimed>, had: bool) -> Result<(), PodVerdict> {
        let mut claims = self.claims();
        let owner = |one: &Claimed| {
            let others = claims.iter().filter(|(other, _)| *other != key);
            others.into_iter().find(|(_, theirs)| theirs.iter().any(|taken| taken.conflicts_with(one)))
        };
        let taken = wanted.iter().find_map(|one| owner(one).map(|(owner, _)| one.taken(owner)));
        if let Some(verdict) = taken.filter(|_| !had) {
            return Err(verdict);
        }
        if claims.insert(key.clone(), wanted).is_some() {
            self.wake_waiting();
        }
        Ok(())
    }

    /// What wakes the pod when something becomes free from now on.
    fn wait(&self, key: &PodKey) -> Arc<Notify> {
        let freed = Arc::new(Notify::new());
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), Arc::clone(&freed));
        freed
    }

    fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.values().for_each(|freed| freed.notify_one());
    }
}

/// What a pod has until this is dropped.
#[derive(Debug)]
struct Claim {
    of: Arc<NodeClaims>,
    key: PodKey,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.of.claims().remove(&self.key);
        self.of.wake_waiting();
    }
}

/// What one pod has of the node.
#[derive(Debug, Default)]
pub struct Hold {
    claim: Option<Claim>,
    /// Set while it waits for something.
    waits: Option<Arc<Notify>>,
}

impl Hold {
    /// Of a pod that was found: what its incarnations use now.
    pub fn of_found<'a>(node: &Arc<NodeClaims>, key: &PodKey, found: impl Iterator<Item = &'a PodState>) -> Self {
        let used: Vec<Claimed> =
            found.filter(|pod| uses_node(pod)).flat_map(|pod| node.wanted(pod.record.spec())).collect();
        if used.is_empty() || node.give(key, used, true).is_err() {
            return Self::default();
        }
        Self { claim: Some(Claim { of: Arc::clone(node), key: key.clone() }), waits: None }
    }

    /// Brings the claim in line with what the pod needs. A verdict: it begins to wait, or waits for another reason.
    pub fn settle(&mut self, node: &Arc<NodeClaims>, key: &PodKey, pod: &mut PodState) -> Option<PodVerdict> {
        let ends = pod.ending.is_some() || pod.is_failed() || is_finished(pod);
        if ends && !uses_node(pod) {
            self.give_back();
        }
        if ends {
            return None;
        }
        let wanted = node.wanted(pod.record.spec());
        let has = self.claim.is_some().then(|| node.claims().get(key).cloned()).flatten().unwrap_or_default();
        if has == wanted {
            self.settled(pod);
            return None;
        }
        // Before the look: what becomes free after it is not missed.
        let waits = node.wait(key);
        // One that was found without a claim uses what it names; one that is edited gets more where that is free.
        let grows = wanted.iter().any(|one| !has.contains(one));
        match node.give(key, wanted, !grows || (self.claim.is_none() && uses_node(pod))) {
            Ok(()) => {
                self.claim.get_or_insert_with(|| Claim { of: Arc::clone(node), key: key.clone() });
                self.settled(pod);
                None
            }
            Err(verdict) => {
                self.waits = Some(waits);
                let known = pod.verdict.as_ref() == Some(&verdict);
                pod.verdict = Some(verdict.clone());
                (!known).then_some(verdict)
            }
        }
    }

    fn settled(&mut self, pod: &mut PodState) {
        self.waits = None;
        pod.verdict.take_if(|verdict| is_claim(&verdict.reason));
    }

    /// All of it is free for others.
    pub fn give_back(&mut self) {
        *self = Self::default();
    }

    /// Resolves when something becomes free that the pod may be waiting for.
    pub async fn freed(&self) {
        match &self.waits {
            Some(waits) => waits.notified().await,
            None => std::future::pending().await,
        }
    }
}

/// Whether a pod waits for this reason because of a claim.
fn is_claim(reason: &str) -> bool {
    reason == NODE_PORTS || reason.strip_prefix(OUT_OF).is_some_and(|name| name.contains('/'))
}

/// Whether something of the pod may be bound to its ports, or have its devices open.
fn uses_node(pod: &PodState) -> bool {
    let has_sandbox = match pod.sandbox {
        SandboxState::Absent { .. } | SandboxState::Gone => false,
        SandboxState::Preparing | SandboxState::Ready(_) | SandboxState::Releasing => true,
    };
    has_sandbox || pod.containers.iter().any(ContainerSlot::is_running)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn spec(devices: &[&str]) -> PodSpec {
        let limits: BTreeMap<&str, u32> = devices.iter().map(|name| (*name, 1)).collect();
        let container = serde_json::json!({ "name": "a", "resources": { "limits": limits } });
        serde_json::from_value(serde_json::json!({ "containers": [container] })).unwrap()
    }

    #[test]
    fn an_exclusive_device_is_of_one_pod_and_a_claim_that_shrinks_frees_it() {
        let node = NodeClaims::new(["x.io/modem".to_owned()].into());
        let (one, other) = (PodKey::new("default", "one"), PodKey::new("default", "other"));
        let wanted = node.wanted(&spec(&["x.io/modem", "x.io/shared"]));
        assert_eq!(wanted, [Claimed::Device("x.io/modem".to_owned())]);
        node.give(&one, wanted.clone(), false).unwrap();
        let waits = node.give(&other, wanted.clone(), false).unwrap_err();
        assert_eq!((waits.reason.as_ref(), waits.is_final()), ("OutOfx.io/modem", false));
        assert!(is_claim(&waits.reason) && !is_claim("OutOfpods"));
        let freed = node.wait(&other);
        assert!(freed.notified().now_or_never().is_none());
        node.give(&one, Vec::new(), true).unwrap();
        assert!(freed.notified().now_or_never().is_some(), "who waits is told");
        node.give(&other, wanted.clone(), false).unwrap();
        node.give(&one, wanted, true).unwrap();
    }
}
