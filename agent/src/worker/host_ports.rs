//! Which pod has which ports of the node. A pod whose ports another one has waits and starts once they are free, where
//! kubelet refuses it for good. A pod that was found running has its ports without being asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use limpet_core::plan::is_finished;
use limpet_core::state::{ContainerSlot, PodState, SandboxState};
use limpet_model::pod::PodKey;
use limpet_model::pod::host_port::{HostPort, NODE_PORTS, host_ports};
use limpet_model::verdict::PodVerdict;
use tokio::sync::watch;

/// The ports that pods have now.
#[derive(Debug, Default)]
pub struct HostPorts {
    claims: Mutex<BTreeMap<PodKey, Vec<HostPort>>>,
    /// Changes when ports become free.
    freed: watch::Sender<()>,
}

impl HostPorts {
    fn claims(&self) -> MutexGuard<'_, BTreeMap<PodKey, Vec<HostPort>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the ports to the pod, unless another one has them. `had`: it uses them, whoever else does.
    fn claim(self: &Arc<Self>, key: &PodKey, ports: Vec<HostPort>, had: bool) -> Result<Claim, PodVerdict> {
        let mut claims = self.claims();
        let owner = |port: &HostPort| {
            let others = claims.iter().filter(|(other, _)| *other != key);
            others.into_iter().find(|(_, theirs)| theirs.iter().any(|taken| taken.conflicts_with(port)))
        };
        let taken = ports.iter().find_map(|port| owner(port).map(|(owner, _)| taken(port, owner)));
        if let Some(verdict) = taken.filter(|_| !had) {
            return Err(verdict);
        }
        claims.insert(key.clone(), ports);
        Ok(Claim { of: Arc::clone(self), key: key.clone() })
    }
}

fn taken(port: &HostPort, owner: &PodKey) -> PodVerdict {
    let message = format!(
        "Predicate {NODE_PORTS} failed: node(s) didn't have free ports for the requested pod ports: {port} is taken by pod \
         {owner}; it starts when that is free"
    );
    PodVerdict::waiting(NODE_PORTS, message)
}

/// Ports that a pod has until this is dropped.
#[derive(Debug)]
struct Claim {
    of: Arc<HostPorts>,
    key: PodKey,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.of.claims().remove(&self.key);
        self.of.freed.send_replace(());
    }
}

/// What one pod has of the node's ports.
#[derive(Debug, Default)]
pub struct PortHold {
    claim: Option<Claim>,
    /// Set while it waits for a port.
    waits: Option<watch::Receiver<()>>,
}

impl PortHold {
    /// Of a pod that was found: what its incarnations use now.
    pub fn of_found<'a>(ports: &Arc<HostPorts>, key: &PodKey, found: impl Iterator<Item = &'a PodState>) -> Self {
        let used: Vec<HostPort> =
            found.filter(|pod| uses_ports(pod)).flat_map(|pod| host_ports(pod.record.spec())).collect();
        if used.is_empty() {
            return Self::default();
        }
        Self { claim: ports.claim(key, used, true).ok(), waits: None }
    }

    /// Brings the claim in line with what the pod needs. A verdict: it begins to wait, or waits for another reason.
    pub fn settle(&mut self, ports: &Arc<HostPorts>, key: &PodKey, pod: &mut PodState) -> Option<PodVerdict> {
        let ends = pod.ending.is_some() || pod.is_failed() || is_finished(pod);
        if ends && !uses_ports(pod) {
            self.give_back();
        }
        if ends || self.claim.is_some() {
            return None;
        }
        let wanted = host_ports(pod.record.spec());
        if wanted.is_empty() {
            return None;
        }
        // Before the look: a port that becomes free after it is not missed.
        let waits = ports.freed.subscribe();
        match ports.claim(key, wanted, uses_ports(pod)) {
            Ok(claim) => {
                *self = Self { claim: Some(claim), waits: None };
                pod.verdict.take_if(|verdict| verdict.reason == NODE_PORTS);
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

    /// The ports are free for others.
    pub fn give_back(&mut self) {
        *self = Self::default();
    }

    /// Resolves when a port becomes free that the pod may be waiting for.
    pub async fn freed(&mut self) {
        match &mut self.waits {
            Some(waits) => drop(waits.changed().await),
            None => std::future::pending().await,
        }
    }
}

/// Whether something of the pod may be bound to its ports, or forwarded from them.
fn uses_ports(pod: &PodState) -> bool {
    let has_sandbox = match pod.sandbox {
        SandboxState::Absent { .. } | SandboxState::Gone => false,
        SandboxState::Preparing | SandboxState::Ready(_) | SandboxState::Releasing => true,
    };
    has_sandbox || pod.containers.iter().any(ContainerSlot::is_running)
}
