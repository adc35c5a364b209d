//! What a cluster shows about a node's pods.

use anyhow::Result;
use serde_json::Value;

use super::{Cluster, condition, wait_at};
use crate::TestNode;
use crate::node::container_id;

impl Cluster {
    /// Waits until the Pod at `path` is ready, and shows the container in which the node runs its pod `pod`.
    ///
    ///
    /// # Errors
    ///
    /// That does not happen in time.
    pub fn wait_reported(&self, node: &TestNode, path: &str, pod: &str) -> Result<Value> {
        wait_at(self, path, "reported as it runs", |found| {
            let own = node.pod(pod).unwrap_or_default();
            let same = container_id(&own, "main").ok() == container_id(found, "main").ok();
            same && found["status"]["phase"] == "Running" && condition(found, "Ready")["status"] == "True"
        })
    }
}
