//! What a cluster shows about a node's pods.

use anyhow::Result;
use serde_json::Value;

use super::{Cluster, condition, wait_at};
use crate::TestNode;
use crate::node::container_id;

impl Cluster {
    /// Waits until the Pod at `path` is ready, and shows the container in which the node runs its pod `pod`.
    ///
    /// # Errors
    ///
    /// That does not happen in time.
    pub fn wait_reported(&self, node: &TestNode, path: &str, pod: &str) -> Result<Value> {
        wait_at(self, path, "reported as it runs", |shown| {
            let pod_of_node = node.pod(pod).unwrap_or_default();
            let same = container_id(&pod_of_node, "main").ok() == container_id(shown, "main").ok();
            same && shown["status"]["phase"] == "Running" && condition(shown, "Ready")["status"] == "True"
        })
    }
}
