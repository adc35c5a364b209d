//! Whether two versions of a pod are one incarnation: the same pod, edited in place, and not its successor.

use crate::pod::replaceable::obstacles;
use crate::pod::resize::pod_resizes_in_place;
use crate::pod::{PodRecord, huge_pages};

impl PodRecord {
    /// Whether `other` can be reached without terminating the pod. A UID set in the manifest stays when the pod
    /// changes, so the fingerprint decides as well. So do the QoS class, because the pod's cgroup is below that of
    /// its class, the huge pages, with which its cgroup and volumes are made, resources of the pod that do not change
    /// in place, and edits of containers that cannot be replaced alone.
    pub fn is_same_incarnation(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.immutable_fingerprint == other.immutable_fingerprint
            && self.qos_class == other.qos_class
            && huge_pages::requests(self.spec()) == huge_pages::requests(other.spec())
            && pod_resizes_in_place(self.spec(), other.spec())
            && obstacles(self, other).is_empty()
    }
}
