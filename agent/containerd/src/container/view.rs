//! Read-only views of images, which pods use as volumes. containerd's garbage collection never removes a view; it is
//! removed with its pod.

use std::collections::HashMap;

use containerd_client::services::v1::snapshots::{MountsRequest, RemoveSnapshotRequest, ViewSnapshotRequest};
use containerd_client::types::Mount;
use jiff::Timestamp;
use tonic::Code;

use super::Containers;
use crate::error::{RuntimeError, none_if_missing};
use limpet_model::pod::PodUid;

const GC_ROOT: &str = "containerd.io/gc.root";

/// The key of a volume's view.
fn key(uid: &PodUid, volume: &str) -> String {
    format!("limpet-volume-{uid}-{volume}")
}

impl Containers {
    /// The mounts of a volume's view, which is created from the image `chain_id` unless it exists.
    pub async fn view(&self, uid: &PodUid, volume: &str, chain_id: &str) -> Result<Vec<Mount>, RuntimeError> {
        let (key, snapshotter) = (key(uid, volume), self.config.snapshotter.clone());
        let message = ViewSnapshotRequest {
            snapshotter: snapshotter.clone(),
            key: key.clone(),
            parent: chain_id.to_owned(),
            labels: HashMap::from([(GC_ROOT.to_owned(), Timestamp::now().to_string())]),
        };
        match self.snapshots().view(self.client.call("Snapshots.View", message)).await {
            Ok(made) => Ok(made.into_inner().mounts),
            Err(status) if status.code() == Code::AlreadyExists => {
                let message = MountsRequest { snapshotter, key: key.clone() };
                let mounts = self.snapshots().mounts(self.client.call("Snapshots.Mounts", message)).await;
                mounts
                    .map(|mounts| mounts.into_inner().mounts)
                    .map_err(|status| RuntimeError::from_status("Snapshots.Mounts", &key, status))
            }
            Err(status) => Err(RuntimeError::from_status("Snapshots.View", &key, status)),
        }
    }

    /// Removes a volume's view. A missing view counts as success.
    pub async fn remove_view(&self, uid: &PodUid, volume: &str) -> Result<(), RuntimeError> {
        let key = key(uid, volume);
        let message = RemoveSnapshotRequest { snapshotter: self.config.snapshotter.clone(), key: key.clone() };
        none_if_missing(self.snapshots().remove(self.client.call("Snapshots.Remove", message)).await)
            .map(drop)
            .map_err(|status| RuntimeError::from_status("Snapshots.Remove", &key, status))
    }
}
