//! The node's Lease: the object, its renewals and when they are due (kubelet's `pkg/kubelet/nodelease`).
//!
//! An idle node sends nothing else, so each byte of a renewal counts 360 times an hour.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::jitter;

/// The namespace of the nodes' Leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// kubelet's `nodeLeaseRenewIntervalFraction`, 0.25.
const RENEWALS_PER_DURATION: u32 = 4;

/// The lease to create.
pub fn lease(name: &str, node_uid: &str, duration: Duration, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": LEASE_NAMESPACE,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid }],
        },
        "spec": spec(name, duration, now),
    })
}

fn spec(name: &str, duration: Duration, now: Timestamp) -> Value {
    json!({ "holderIdentity": name, "leaseDurationSeconds": duration.as_secs(), "renewTime": renew_time(now) })
}

/// A MicroTime, which has exactly six digits.
fn renew_time(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// What is known about the lease for a renewal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownLease {
    /// The version that is required; 0 for any.
    pub version: u64,
    /// Whether this version is the result of a renewal, so that the lease has everything but the new time.
    pub is_own: bool,
    /// Whether the apiserver keeps a list of who set which field. It is longer than the rest and comes back with
    /// every answer; once emptied, it stays empty.
    pub is_tracked: bool,
}

/// The merge patch that renews it.
pub fn renewal(name: &str, duration: Duration, now: Timestamp, known: KnownLease) -> Value {
    let mut renewal = match known.version != 0 && known.is_own {
        true => json!({ "spec": { "renewTime": renew_time(now) } }),
        false => json!({ "spec": spec(name, duration, now) }),
    };
    if known.version != 0 {
        renewal["metadata"]["resourceVersion"] = json!(known.version.to_string());
    }
    if known.is_tracked {
        renewal["metadata"]["managedFields"] = json!([{}]);
    }
    renewal
}

/// The pause until the next renewal: a quarter of the duration, and up to 4 % more, as in kubelet.
pub fn renew_after(duration: Duration, dice: u64) -> Duration {
    jitter::above(duration / RENEWALS_PER_DURATION, 40, dice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_at_a_quarter_of_its_duration() {
        let duration = Duration::from_secs(40);
        assert_eq!(renew_after(duration, 0), Duration::from_secs(10));
        assert_eq!(renew_after(duration, 40), Duration::from_millis(10_400));
        assert_eq!(renew_after(duration, 41), Duration::from_secs(10));
        let lease = lease("edge1", "n1", duration, Timestamp::UNIX_EPOCH);
        assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "n1");
        assert_eq!(lease["metadata"]["namespace"], LEASE_NAMESPACE);
        let spec = json!({
            "holderIdentity": "edge1",
            "leaseDurationSeconds": 40,
            "renewTime": "1970-01-01T00:00:00.000000Z",
        });
        let renewal = |known| renewal("edge1", duration, Timestamp::UNIX_EPOCH, known);
        let known = |version| KnownLease { version, ..KnownLease::default() };
        let (of_node, tracked) =
            (KnownLease { is_own: true, ..known(7) }, KnownLease { is_tracked: true, ..KnownLease::default() });
        assert_eq!((&lease["spec"], &renewal(known(0))), (&spec, &json!({ "spec": spec })));
        assert_eq!(renewal(tracked), json!({ "metadata": { "managedFields": [{}] }, "spec": spec }));
        assert_eq!(renewal(known(7)), json!({ "metadata": { "resourceVersion": "7" }, "spec": spec }));
        let time = json!({ "renewTime": "1970-01-01T00:00:00.000000Z" });
        assert_eq!(renewal(of_node), json!({ "metadata": { "resourceVersion": "7" }, "spec": time }));
    }
}
