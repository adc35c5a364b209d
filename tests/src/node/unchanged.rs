//! Checks that a pod was left alone.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{TestNode, container};

impl TestNode {
    /// Waits until the pod `name` runs, and checks that its container `main` is the one of `before`, never restarted.
    ///
    /// # Errors
    /// When it does not run, or in another container.
    pub fn ensure_unchanged(&self, name: &str, before: &Value) -> Result<()> {
        let now = self.wait_running(name)?;
        let (current, earlier) = (container(&now, "main"), container(before, "main"));
        ensure!(current["containerID"] == earlier["containerID"], "{}", now["status"]);
        ensure!(current["restartCount"] == 0);
        Ok(())
    }
}
