//! The node's Lease: the object, its renewals and when they are due (kubelet's `pkg/kubelet/nodelease`).
//!
//! An idle node sends nothing else, so each byte of a renewal counts 360 times an hour.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

/// The namespace of the nodes' Leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// kubelet's `nodeLeaseRenewIntervalFraction`, 0.25.
const RENEWALS_PER_DURATION: u32 = 4;

/// The lease to create.
pub fn lease(name: &str, node_uid: &str, duration: Duration, now: Timestamp) -> Value {
    let mut lease = renewal(name, duration, now, 0, false);
    lease["apiVersion"] = json!("coordination.k8s.io/v1");
    lease["kind"] = json!("Lease");
    lease["metadata"] = json!({
        "name": name,
        "namespace": LEASE_NAMESPACE,
        "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid }],
    });
    lease
}

/// The merge patch that renews it. `version`: the required one; 0: any. `tracked`: whether the apiserver keeps a list of
/// who set which field. It is longer than the rest and comes back with every answer; an emptied one stays empty.
pub fn renewal(name: &str, duration: Duration, now: Timestamp, version: u64, tracked: bool) -> Value {
    // A MicroTime has exactly six digits.
    let time = now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let spec = json!({ "holderIdentity": name, "leaseDurationSeconds": duration.as_secs(), "renewTime": time });
    let mut renewal = json!({ "spec": spec });
    if version != 0 {
        renewal["metadata"]["resourceVersion"] = json!(version.to_string());
    }
    if tracked {
        renewal["metadata"]["managedFields"] = json!([{}]);
    }
    renewal
}

/// The pause until the next renewal: a quarter of the duration, and up to 4 % more, as kubelet has it.
pub fn renew_after(duration: Duration, dice: u64) -> Duration {
    let spread = u32::try_from(dice % 41).unwrap_or(0);
    duration / RENEWALS_PER_DURATION * (1_000 + spread) / 1_000
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
        let renewal = |version, tracked| renewal("edge1", duration, Timestamp::UNIX_EPOCH, version, tracked);
        assert_eq!((&lease["spec"], &renewal(0, false)), (&spec, &json!({ "spec": spec })));
        assert_eq!(renewal(0, true), json!({ "metadata": { "managedFields": [{}] }, "spec": spec }));
        assert_eq!(renewal(7, false), json!({ "metadata": { "resourceVersion": "7" }, "spec": spec }));
    }
}
