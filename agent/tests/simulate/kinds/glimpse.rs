//! What a look at the node depends on, compared without looking.

use std::sync::Arc;

use limpet_core::merge::DesiredPods;
use limpet_core::status::observed::ObservedPods;

use crate::agent::Agent;

pub(super) struct Glimpse {
    /// What the agent wants and observes, and whether it knows the runtime; `None` without an agent.
    agent: Option<(Arc<DesiredPods>, Arc<ObservedPods>, bool)>,
    /// How often the node and the kernel's rules have changed.
    changes: (u64, u64),
    is_lenient: bool,
}

impl Glimpse {
    pub(super) fn new(agent: Option<&Agent>, changes: (u64, u64), is_lenient: bool) -> Self {
        let known = |agent: &Agent| (agent.desired.load(), agent.observed.load(), agent.node.borrow().runtime_ready);
        Self { agent: agent.map(known), changes, is_lenient }
    }
}

impl PartialEq for Glimpse {
    fn eq(&self, other: &Self) -> bool {
        let is_same = match (&self.agent, &other.agent) {
            (Some((desired, observed, ready)), Some((wanted, seen, was_ready))) => {
                Arc::ptr_eq(desired, wanted) && Arc::ptr_eq(observed, seen) && ready == was_ready
            }
            (before, now) => before.is_none() && now.is_none(),
        };
        is_same && self.changes == other.changes && self.is_lenient == other.is_lenient
    }
}
