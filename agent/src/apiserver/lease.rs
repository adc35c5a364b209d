//! The node's lease: the sign of life by which a cluster knows the node, and by which the node knows the cluster again.
//!
//! Nobody else renews it. A lease that is older than the last renewal, or that has gone back to an older version, is one of a
//! cluster that was restored from a backup: watches would wait there for versions that it has not come to, so everything is
//! listed anew.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::link::Link;
use super::node::Seen;
use crate::source::api::Update;
use limpet_apiserver::request::PatchType;
use limpet_apiserver::{Request, RequestError, Resource};
use limpet_core::cluster_history::{self, HistoryBreak, LostWrites, Renewal};
use limpet_core::node_lease::{self, LEASE_NAMESPACE};

/// How many renewals without an answer are remembered: each may have arrived.
const MAX_UNANSWERED: usize = 16;

/// The renewal that a lease shows.
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
    /// Keeps the last renewal over restarts of the agent.
    pub(super) source: mpsc::Sender<Update>,
    /// The times of the renewals that were sent and not answered.
    pub(super) unanswered: Mutex<VecDeque<String>>,
}

impl Lease {
    /// Renews it for as long as there is a Node.
    pub(super) async fn renew(self: Arc<Self>, mut seen: watch::Receiver<Seen>) {
        let (mut failures, mut version, mut tracked, mut lost_writes) = (0, 0, false, LostWrites::default());
        loop {
            self.link.online().await;
            let uid = match seen.wait_for(|seen| seen.node().is_some()).await {
                Ok(seen) => seen.node().map(|node| node.uid.clone()).unwrap_or_default(),
                Err(_) => return,
            };
            let (received_count, pods_version) = (self.link.received_count(), self.link.pods_version());
            match self.renew_once(&uid, tracked).await {
                Ok(lease) => {
                    failures = 0;
                    tracked = !lease["metadata"]["managedFields"].is_null();
                    let now = cluster_history::version_of(&lease);
                    self.compare_versions(&mut version, now).await;
                    if lost_writes.is_found(pods_version, now) {
                        tracing::warn!(
                            now,
                            before = pods_version,
                            "the apiserver has lost its last writes; everything is listed again"
                        );
                        self.link.begin_anew();
                    }
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(node_lease::renew_after(self.duration, fastrand::u64(..))) => {}
                        // An address that changed may have cost the connection, which is known only once it is used.
                        () = self.link.network_changed() => {}
                    }
                }
                Err(error) => {
                    failures += 1;
                    if failures == 1 {
                        tracing::warn!(%error, "the node's lease is not renewed");
                    }
                    // A link that swallows packets: a watch does not notice. One that is slow has brought something else.
                    if matches!(error, RequestError::Deadline(_)) && self.link.received_count() == received_count {
                        self.link.leader_failed(&error);
                    }
                    self.link.pause(failures, error.retry_after()).await;
                }
            }
        }
    }

    /// Looks at the lease after a time without a connection, before anything else that the apiserver says is believed.
    /// Returns whether there is one.
    ///
    /// # Errors
    /// The apiserver did not answer. One that refuses says nothing about the lease.
    pub(super) async fn check(&self) -> Result<bool, RequestError> {
        let found = match self.link.send(Request::get(self.resource())).await {
            Ok(lease) => renewal_of(&lease),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(RequestError::Refused { .. }) => None,
            Err(error) => return Err(error),
        };
        let Some(found) = found else { return Ok(true) };
        if self.unanswered().contains(&found.time) {
            let _ = self.source.send(Update::Renewed(found)).await;
            return Ok(true);
        }
        let (answer, answered) = oneshot::channel();
        let _ = self.source.send(Update::LeaseFound(found, answer)).await;
        if answered.await == Ok(true) {
            self.link.begin_anew();
        }
        Ok(true)
    }

    async fn renew_once(&self, uid: &str, tracked: bool) -> Result<Value, RequestError> {
        let now = Timestamp::now();
        let renewal = node_lease::renewal(&self.name, self.duration, now, tracked);
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

    /// Whether the cluster has gone back follows from the versions of two renewals, too: of a connection that never ended.
    async fn compare_versions(&self, before: &mut u64, now: u64) {
        if now != 0 && now < *before {
            let _ = self.source.send(Update::WentBack(HistoryBreak::Restored { before: *before, now })).await;
            self.link.begin_anew();
        }
        *before = now;
    }

    fn resource(&self) -> Resource {
        Resource::Lease(LEASE_NAMESPACE.to_owned(), self.name.clone())
    }

    fn unanswered(&self) -> std::sync::MutexGuard<'_, VecDeque<String>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
