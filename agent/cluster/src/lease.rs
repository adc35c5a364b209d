//! The node's lease, by which the cluster knows that the node is alive, and by which the node recognizes the cluster.
//!
//! No other client renews it. A lease that is older than the last renewal, or at an older version, belongs to a
//! cluster that was restored from a backup. Watches there would wait for versions that the cluster has not reached,
//! so everything is listed again. A renewal requires the version of the previous renewal, so it cannot overwrite such
//! a lease unnoticed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::link::{BUSY, Link};
use super::seen_node::NodeFromApiserver;
use limpet_apiserver_client::request::PatchType;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_core::cluster_history::{self, HistoryBreak, LostWrites, Renewal, lease_break};
use limpet_core::node_lease::{self, KnownLease, LEASE_NAMESPACE};
use limpet_core::source::cluster_update::Update;

/// How many unanswered renewals are remembered: each may have arrived.
const MAX_UNANSWERED: usize = 16;

/// The renewal in a lease.
fn renewal_of(lease: &Value) -> Option<Renewal> {
    let time = lease["spec"]["renewTime"].as_str()?.to_owned();
    Some(Renewal { time, version: cluster_history::version_of(lease) })
}

/// The lease of this node.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) link: Link,
    pub(super) name: String,
    pub(super) duration: Duration,
    /// The source that keeps the last renewal across restarts of the agent.
    pub(super) source: mpsc::Sender<Update>,
    /// The times of renewals that were sent and not answered.
    pub(super) unanswered: Mutex<VecDeque<String>>,
    /// The lease's last known version; 0 if none is known.
    pub(super) version: AtomicU64,
}

impl Lease {
    /// Renews the lease while there is a Node.
    pub(super) async fn renew(self: Arc<Self>, mut seen: watch::Receiver<NodeFromApiserver>) {
        let (mut failures, mut conflicts) = (0, 0);
        // The version after the last renewal, and whether the source keeps track of it.
        let (mut own_version, mut is_tracked) = (0, false);
        let mut lost_writes = LostWrites::default();
        loop {
            self.link.online().await;
            let uid = match seen.wait_for(|seen| seen.node().is_some()).await {
                Ok(seen) => seen.node().map(|node| node.uid.clone()).unwrap_or_default(),
                Err(_) => return,
            };
            let (received_count, pods_version) = (self.link.received_count(), self.link.pods_version());
            let before = self.version.load(Ordering::Relaxed);
            let known = KnownLease { version: before, is_own: before == own_version, is_tracked };
            match self.renew_once(&uid, known).await {
                Ok(lease) => {
                    (failures, conflicts) = (0, 0);
                    is_tracked = !lease["metadata"]["managedFields"].is_null();
                    let now = cluster_history::version_of(&lease);
                    own_version = now;
                    self.version.store(now, Ordering::Relaxed);
                    self.compare_versions(before, now).await;
                    if lost_writes.is_found(pods_version, now) {
                        tracing::warn!(
                            now,
                            before = pods_version,
                            "the apiserver has lost its last writes; all resources are listed again"
                        );
                        self.link.list_again();
                    }
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(node_lease::renew_after(self.duration, fastrand::u64(..))) => {}
                        // A changed address may have cost the connection, which only a request detects.
                        () = self.link.network_changed() => {}
                    }
                }
                // Another client has changed the lease, an unanswered renewal did arrive, or the cluster was
                // restored.
                Err(error) if error.is_conflict() && conflicts == 0 && self.check().await.is_ok() => conflicts = 1,
                Err(error) => {
                    if error.is_conflict() {
                        // The lease cannot be read, so the next renewal requires no version.
                        self.version.store(0, Ordering::Relaxed);
                    }
                    conflicts = 0;
                    failures += 1;
                    if failures == 1 {
                        tracing::warn!(%error, "renewing the node's lease failed");
                    }
                    // The link swallows packets, which a watch does not notice. A link that is only slow has
                    // delivered something else.
                    if matches!(error, RequestError::Deadline(_)) && self.link.received_count() == received_count {
                        self.link.leader_failed(&error);
                    }
                    self.link.pause(failures, error.retry_after()).await;
                }
            }
        }
    }

    /// Checks the lease after a connection loss, before the agent relies on anything else from the apiserver. Returns
    /// whether the lease exists.
    ///
    /// # Errors
    ///
    /// The apiserver did not answer, or is busy. Any other refusal says nothing about the lease.
    pub(super) async fn check(&self) -> Result<bool, RequestError> {
        // The state before the request: a renewal may be confirmed before the answer arrives, which would then be
        // older.
        let (answer, known) = oneshot::channel();
        let _ = self.source.send(Update::LastRenewal(answer)).await;
        let known = known.await.unwrap_or_default();
        let stored = match self.link.send(Request::get(self.resource())).await {
            Ok(lease) => renewal_of(&lease),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(RequestError::Refused { code, .. }) if code != BUSY => None,
            Err(error) => return Err(error),
        };
        let Some(stored) = stored else { return Ok(true) };
        if let Some(broken) = lease_break(&known, &stored) {
            self.version.store(stored.version, Ordering::Relaxed);
            let _ = self.source.send(Update::WentBack(broken)).await;
            self.link.list_again();
            return Ok(true);
        }
        self.version.fetch_max(stored.version, Ordering::Relaxed);
        if self.unanswered().contains(&stored.time) {
            let _ = self.source.send(Update::Renewed(stored)).await;
        }
        Ok(true)
    }

    async fn renew_once(&self, uid: &str, known: KnownLease) -> Result<Value, RequestError> {
        let now = Timestamp::now();
        let renewal = node_lease::renewal(&self.name, self.duration, now, known);
        let time = renewal["spec"]["renewTime"].as_str().unwrap_or_default().to_owned();
        {
            let mut unanswered = self.unanswered();
            unanswered.truncate(MAX_UNANSWERED - 1);
            unanswered.push_front(time.clone());
        }
        let renewal = Request::patch(self.resource(), PatchType::Merge, renewal).metadata_only();
        let renewed = match self.link.send(renewal).await {
            Err(error) if error.is_not_found() => {
                let new = node_lease::lease(&self.name, uid, self.duration, now);
                self.link.send(Request::create(Resource::Leases(LEASE_NAMESPACE.to_owned()), new)).await
            }
            result => result,
        }?;
        self.unanswered().clear();
        let version = cluster_history::version_of(&renewed);
        let _ = self.source.send(Update::Renewed(Renewal { time, version })).await;
        Ok(renewed)
    }

    /// Compares the version that a renewal required with the newer one: a lower version means that the cluster was
    /// restored, even if the lease was recreated.
    async fn compare_versions(&self, before: u64, now: u64) {
        if now != 0 && now < before {
            let _ = self.source.send(Update::WentBack(HistoryBreak::Restored { before, now })).await;
            self.link.list_again();
        }
    }

    fn resource(&self) -> Resource {
        Resource::Lease(LEASE_NAMESPACE.to_owned(), self.name.clone())
    }

    fn unanswered(&self) -> std::sync::MutexGuard<'_, VecDeque<String>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
