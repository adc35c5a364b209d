//! The node's snapshots, which are the layers of images and the writable layers of containers, and their disk usage.

use std::collections::HashSet;

use containerd_client::services::v1::snapshots::{ListSnapshotsRequest, UsageRequest};
use tonic::Code;

use super::Containers;
use crate::error::RuntimeError;
use limpet_host::disk_usage::DiskUsage;
use limpet_model::container::ContainerId;

/// Selects the snapshots that containers write to.
const ACTIVE_SNAPSHOTS: &str = "kind==active";

impl Containers {
    /// The keys of all writable snapshots.
    pub(super) async fn active_snapshots(&self) -> Result<HashSet<String>, RuntimeError> {
        self.snapshot_keys(vec![ACTIVE_SNAPSHOTS.to_owned()]).await
    }

    /// The size of the container's writable layer, by containerd's count; zero if it does not exist.
    pub async fn layer_usage(&self, id: &ContainerId) -> Result<DiskUsage, RuntimeError> {
        self.snapshot_usage(id.as_str()).await
    }

    /// The total size of all snapshots, except the writable ones in `apart`, which are counted elsewhere. containerd
    /// knows the size of an image's layer, and walks a writable one.
    pub async fn layers_usage(&self, apart: &HashSet<String>) -> Result<DiskUsage, RuntimeError> {
        let mut total = DiskUsage::default();
        for key in self.snapshot_keys(Vec::new()).await?.difference(apart) {
            total += self.snapshot_usage(key).await?;
        }
        Ok(total)
    }

    async fn snapshot_keys(&self, filters: Vec<String>) -> Result<HashSet<String>, RuntimeError> {
        let failed = |status| RuntimeError::from_status("Snapshots.List", "the node", status);
        let message = ListSnapshotsRequest { snapshotter: self.config.snapshotter.clone(), filters };
        let request = self.client.call("Snapshots.List", message);
        let mut pages = self.snapshots().list(request).await.map_err(failed)?.into_inner();
        let mut keys = HashSet::new();
        while let Some(page) = pages.message().await.map_err(failed)? {
            keys.extend(page.info.into_iter().map(|snapshot| snapshot.name));
        }
        Ok(keys)
    }

    async fn snapshot_usage(&self, key: &str) -> Result<DiskUsage, RuntimeError> {
        let message = UsageRequest { snapshotter: self.config.snapshotter.clone(), key: key.to_owned() };
        match self.snapshots().usage(self.client.call("Snapshots.Usage", message)).await {
            Ok(usage) => {
                let usage = usage.into_inner();
                let count = |number: i64| u64::try_from(number).unwrap_or_default();
                Ok(DiskUsage { bytes: count(usage.size), inodes: count(usage.inodes) })
            }
            Err(status) if status.code() == Code::NotFound => Ok(DiskUsage::default()),
            Err(status) => Err(RuntimeError::from_status("Snapshots.Usage", key, status)),
        }
    }
}
