//! Renews the node's lease: the sign of life by which a cluster knows the node.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use super::link::Link;
use super::node::Seen;
use limpet_apiserver::request::PatchType;
use limpet_apiserver::{Request, RequestError, Resource};
use limpet_core::node_object::{self, LEASE_NAMESPACE};

/// Renews the lease for as long as there is a Node.
pub(super) async fn renew(link: Link, name: String, duration: Duration, mut seen: watch::Receiver<Seen>) {
    let mut failures = 0;
    loop {
        link.online().await;
        let uid = match seen.wait_for(|seen| seen.node().is_some()).await {
            Ok(seen) => seen.node().map(|node| node.uid.clone()).unwrap_or_default(),
            Err(_) => return,
        };
        match renewed(&link, &name, &uid, duration).await {
            Ok(_) => {
                failures = 0;
                tokio::select! {
                    () = tokio::time::sleep(node_object::renew_after(duration, fastrand::u64(..))) => {}
                    // An address that changed may have cost the connection, which is known only once it is used.
                    () = link.network_changed() => {}
                }
            }
            Err(error) => {
                failures += 1;
                if failures == 1 {
                    tracing::warn!(%error, "the node's lease is not renewed");
                }
                // A link that swallows packets: a watch does not notice.
                if matches!(error, RequestError::Deadline(_)) {
                    link.leader_failed(&error);
                }
                link.pause(failures, error.retry_after()).await;
            }
        }
    }
}

async fn renewed(link: &Link, name: &str, uid: &str, duration: Duration) -> Result<Value, RequestError> {
    let lease = Resource::Lease(LEASE_NAMESPACE.to_owned(), name.to_owned());
    let renewal = node_object::renewal(name, duration, Timestamp::now());
    match link.send(Request::patch(lease, PatchType::Merge, renewal)).await {
        Err(error) if error.is_not_found() => {
            let new = node_object::lease(name, uid, duration, Timestamp::now());
            link.send(Request::create(Resource::Leases(LEASE_NAMESPACE.to_owned()), new)).await
        }
        result => result,
    }
}
