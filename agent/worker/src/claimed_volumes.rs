//! Drives the claims of the node's own sources within the merge loop: gives them what has changed, and has their files
//! removed beside it.
//!
//! Without a claim that waits for the end of pods it waits for nothing.

use std::fmt::Debug;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use limpet_claims::{ClaimId, Claims, Order};
use limpet_core::source::Snapshots;
use limpet_core::status::observed::ObservedPods;
use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;

/// The claims whose files have been removed, or could not be (false).
pub type Removed = Vec<(ClaimId, bool)>;

/// Where the files of claims are.
pub trait ClaimDisk: Debug + Send + Sync {
    /// Does what is ordered. Resolves with the results of the removals among the orders.
    fn perform(self: Arc<Self>, orders: Vec<Order>) -> BoxFuture<'static, Removed>;
}

/// The claims, and what is being done for them.
pub struct ClaimedVolumes {
    claims: Claims,
    disk: Arc<dyn ClaimDisk>,
    /// At most one removal of each claim.
    jobs: FuturesUnordered<BoxFuture<'static, Removed>>,
}

impl ClaimedVolumes {
    /// Drives `claims`.
    pub fn new(claims: Claims, disk: Arc<dyn ClaimDisk>) -> Self {
        Self { claims, disk, jobs: FuturesUnordered::new() }
    }

    /// The pods that ran when the agent started.
    pub(crate) fn adopt(&mut self, adopted: &[Arc<PodRecord>]) {
        self.claims.adopt(adopted);
    }

    /// Whether what is observed of pods matters.
    pub(crate) fn is_waiting(&self) -> bool {
        self.claims.is_waiting()
    }

    /// Resolves when something is done for a claim. Cancel safe.
    pub(crate) async fn done(&mut self) {
        match self.jobs.next().await {
            Some(removed) => removed.iter().for_each(|(id, is_removed)| self.claims.done(id, *is_removed)),
            None => std::future::pending().await,
        }
    }

    /// The snapshots with the directories of claims. Those of the sources in `kept` keep their files.
    pub(crate) fn expand(&mut self, snapshots: Snapshots, observed: &ObservedPods, kept: &[SourceKind]) -> Snapshots {
        let orders = self.claims.turn(&snapshots, observed, kept);
        if !orders.is_empty() {
            self.jobs.push(Arc::clone(&self.disk).perform(orders));
        }
        self.claims.expand(snapshots)
    }
}
