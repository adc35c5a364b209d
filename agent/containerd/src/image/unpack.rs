//! Unpacks layers of the content store into snapshots: one committed snapshot per layer, whose key is the chain id.

use std::time::Duration;

use containerd_client::services::v1::ApplyRequest;
use containerd_client::services::v1::diff_client::DiffClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{
    CommitSnapshotRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
};
use containerd_client::types::{self, Mount};
use oci_spec::image::Descriptor;
use tonic::Code;

use super::content::{Labels, Store};
use super::error::CallError;

/// The call that makes a snapshot on top of another.
const PREPARE: &str = "Snapshots.Prepare";
/// How long one layer may take: gigabytes on a slow SD card.
const APPLY_DEADLINE: Duration = Duration::from_secs(3600);

/// A layer, and the snapshot it becomes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layer<'a> {
    /// The compressed layer.
    pub(super) descriptor: &'a Descriptor,
    /// The digest of the uncompressed layer.
    pub(super) diff_id: &'a str,
    /// The snapshot's key.
    pub(super) chain_id: &'a str,
}

impl Store {
    pub(super) fn snapshots(&self) -> SnapshotsClient<tonic::transport::Channel> {
        SnapshotsClient::new(self.client.channel())
    }

    /// Whether a committed snapshot exists.
    pub(super) async fn has_snapshot(&self, key: &str) -> Result<bool, CallError> {
        let (snapshotter, key) = (self.snapshotter.to_string(), key.to_owned());
        let request = self.client.request(StatSnapshotRequest { snapshotter, key: key.clone() });
        match self.snapshots().stat(request).await {
            Ok(_) => Ok(true),
            Err(status) if status.code() == Code::NotFound => Ok(false),
            Err(status) => Err(CallError::new("Snapshots.Stat", &key, &status)),
        }
    }

    /// Unpacks the layers that are not unpacked yet, lowest first.
    pub(super) async fn unpack(&self, layers: &[Layer<'_>], lease: &str) -> Result<(), CallError> {
        let _serial = self.unpacking.lock().await;
        match self.unpack_missing(layers, lease).await {
            // Nothing referred to a layer's snapshot, and it was collected after the look at it. Now it is unpacked for the lease.
            Err(error) if error.operation == PREPARE && error.code == Code::NotFound => {
                self.unpack_missing(layers, lease).await
            }
            done => done,
        }
    }

    async fn unpack_missing(&self, layers: &[Layer<'_>], lease: &str) -> Result<(), CallError> {
        let mut parent = "";
        for layer in layers {
            if !self.has_snapshot(layer.chain_id).await? {
                self.unpack_layer(layer, parent, lease).await?;
            }
            parent = layer.chain_id;
        }
        Ok(())
    }

    async fn unpack_layer(&self, layer: &Layer<'_>, parent: &str, lease: &str) -> Result<(), CallError> {
        // The key is the same after a crash: its content is unknown then, and removed.
        let key = format!("limpet-unpack-{}", layer.chain_id);
        let mounts = match self.prepare(&key, parent, lease).await {
            Err(error) if error.code == Code::AlreadyExists => {
                self.remove_snapshot(&key).await?;
                self.prepare(&key, parent, lease).await?
            }
            other => other?,
        };
        let unpacked = async {
            self.apply(layer, mounts, lease).await?;
            self.commit_snapshot(layer.chain_id, &key, lease).await
        };
        let unpacked = unpacked.await;
        if unpacked.as_ref().err().is_none_or(|error| error.code == Code::AlreadyExists) {
            if unpacked.is_err() {
                self.remove_snapshot(&key).await?;
            }
            return Ok(());
        }
        if let Err(error) = self.remove_snapshot(&key).await {
            tracing::debug!(%error, "a partly unpacked snapshot is not removed until the next attempt");
        }
        unpacked
    }

    async fn prepare(&self, key: &str, parent: &str, lease: &str) -> Result<Vec<Mount>, CallError> {
        let request = PrepareSnapshotRequest {
            snapshotter: self.snapshotter.to_string(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            labels: Labels::new(),
        };
        let prepared = self.snapshots().prepare(self.client.leased_request(request, lease)).await;
        prepared.map(|response| response.into_inner().mounts).map_err(|status| CallError::new(PREPARE, key, &status))
    }

    async fn apply(&self, layer: &Layer<'_>, mounts: Vec<Mount>, lease: &str) -> Result<(), CallError> {
        let digest = layer.descriptor.digest().to_string();
        let diff = types::Descriptor {
            media_type: layer.descriptor.media_type().to_string(),
            digest: digest.clone(),
            size: i64::try_from(layer.descriptor.size()).unwrap_or(i64::MAX),
            ..Default::default()
        };
        // The snapshot must be on disk before it is committed: after a power cut it is not verified again.
        let message = ApplyRequest { diff: Some(diff), mounts, sync_fs: true, ..Default::default() };
        let mut request = self.client.leased_request(message, lease);
        request.set_timeout(APPLY_DEADLINE);
        let applied = DiffClient::new(self.client.channel()).apply(request).await;
        let applied = applied.map_err(|status| CallError::new("Diff.Apply", &digest, &status))?;
        let unpacked = applied.into_inner().applied.map(|descriptor| descriptor.digest).unwrap_or_default();
        if unpacked == layer.diff_id {
            return Ok(());
        }
        let message = format!("layer unpacks to {unpacked}, its configuration has {}", layer.diff_id);
        Err(CallError::new("Diff.Apply", &digest, &tonic::Status::data_loss(message)))
    }

    async fn commit_snapshot(&self, name: &str, key: &str, lease: &str) -> Result<(), CallError> {
        let request = CommitSnapshotRequest {
            snapshotter: self.snapshotter.to_string(),
            name: name.to_owned(),
            key: key.to_owned(),
            labels: Labels::new(),
        };
        let committed = self.snapshots().commit(self.client.leased_request(request, lease)).await;
        committed.map(drop).map_err(|status| CallError::new("Snapshots.Commit", name, &status))
    }

    async fn remove_snapshot(&self, key: &str) -> Result<(), CallError> {
        let request = RemoveSnapshotRequest { snapshotter: self.snapshotter.to_string(), key: key.to_owned() };
        match self.snapshots().remove(self.client.request(request)).await {
            Err(status) if status.code() != Code::NotFound => Err(CallError::new("Snapshots.Remove", key, &status)),
            _ => Ok(()),
        }
    }
}
