//! Unpacks layers from the content store into snapshots: one committed snapshot per layer, keyed by chain id.
//!
//! A chain id is only a configuration's claim. So an existing snapshot is used for a layer only if the layer is known
//! to unpack to the snapshot's content: by containerd's label `containerd.io/uncompressed` on the layer's content,
//! which its own clients also write, or because the layer was unpacked again and compared.

use std::time::Duration;

use containerd_client::services::v1::ApplyRequest;
use containerd_client::services::v1::diff_client::DiffClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{
    CommitSnapshotRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
};
use containerd_client::types::{self, Mount};
use oci_spec::image::{Descriptor, ImageConfiguration, ImageManifest};
use tokio::sync::watch;
use tonic::Code;

use super::content::{Labels, Store};
use super::error::CallError;

/// The label with the digest of the uncompressed layer.
const UNCOMPRESSED: &str = "containerd.io/uncompressed";
/// The call that creates a snapshot on top of another.
const PREPARE: &str = "Snapshots.Prepare";
/// The deadline of one layer: gigabytes on a slow SD card.
const APPLY_DEADLINE: Duration = Duration::from_secs(3600);

/// A layer and its snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layer<'a> {
    /// The compressed layer.
    pub(super) descriptor: &'a Descriptor,
    /// The digest of the uncompressed layer.
    pub(super) diff_id: &'a str,
    /// The snapshot's key.
    pub(super) chain_id: &'a str,
}

impl<'a> Layer<'a> {
    /// An image's layers, lowest first.
    pub(super) fn all(
        manifest: &'a ImageManifest,
        config: &'a ImageConfiguration,
        chain_ids: &'a [String],
    ) -> Vec<Self> {
        let ids = config.rootfs().diff_ids().iter().zip(chain_ids);
        let layers = manifest.layers().iter().zip(ids);
        layers.map(|(descriptor, (diff_id, chain_id))| Self { descriptor, diff_id, chain_id }).collect()
    }
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

    /// Unpacks the layers that are not unpacked yet, lowest first, and verifies that the others match their claims.
    pub(super) async fn unpack(&self, layers: &[Layer<'_>], lease: &str) -> Result<(), CallError> {
        if self.is_unpacked(layers).await? {
            return Ok(());
        }
        let _serial = self.unpacking.lock().await;
        self.unpack_from(0, layers, lease).await
    }

    /// Unpacks each layer as soon as it has `arrived` and those below it are unpacked, and calls `unpacked` for it.
    /// Ends with the last layer, or early if `arrived` is emptied because no more will arrive.
    pub(super) async fn unpack_arriving(
        &self,
        layers: &[Layer<'_>],
        mut arrived: watch::Receiver<Vec<bool>>,
        lease: &str,
        unpacked: impl Fn(),
    ) -> Result<(), CallError> {
        let is_unpacked = self.is_unpacked(layers).await?;
        for index in 0..layers.len() {
            let is_over = {
                let waited = arrived.wait_for(|arrived| arrived.get(index) != Some(&false)).await;
                waited.map_or(true, |arrived| arrived.is_empty())
            };
            if is_over {
                return Ok(());
            }
            if !is_unpacked {
                // If no more layers arrive, this image does not wait for another one's unpacking.
                let _serial = tokio::select! {
                    biased;
                    _ = arrived.wait_for(Vec::is_empty) => return Ok(()),
                    serial = self.unpacking.lock() => serial,
                };
                self.unpack_from(index, layers.get(..=index).unwrap_or_default(), lease).await?;
            }
            unpacked();
        }
        Ok(())
    }

    /// Whether the snapshots of all layers exist, and each is known to match its layer.
    async fn is_unpacked(&self, layers: &[Layer<'_>]) -> Result<bool, CallError> {
        let Some(top) = layers.last() else { return Ok(true) };
        if !self.has_snapshot(top.chain_id).await? {
            return Ok(false);
        }
        for layer in layers {
            if !self.is_proved(layer).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the layer's content is known to unpack to its diff id.
    async fn is_proved(&self, layer: &Layer<'_>) -> Result<bool, CallError> {
        let digest: &str = layer.descriptor.digest().as_ref();
        if digest == layer.diff_id {
            return Ok(true);
        }
        let known = self.info(digest).await?;
        Ok(known.is_some_and(|(_, labels)| labels.get(UNCOMPRESSED).is_some_and(|known| known == layer.diff_id)))
    }

    /// Unpacks the layers from `index` on; those below are unpacked. The caller holds the lock on unpacking.
    async fn unpack_from(&self, index: usize, layers: &[Layer<'_>], lease: &str) -> Result<(), CallError> {
        match self.unpack_missing(index, layers, lease).await {
            // Nothing referred to a layer's snapshot, so it was collected after the check. It is now unpacked under
            // the lease.
            Err(error) if error.operation == PREPARE && error.code == Code::NotFound => {
                self.unpack_missing(0, layers, lease).await
            }
            done => done,
        }
    }

    async fn unpack_missing(&self, index: usize, layers: &[Layer<'_>], lease: &str) -> Result<(), CallError> {
        let (below, above) = layers.split_at_checked(index).unwrap_or_default();
        let mut parent = below.last().map_or("", |layer| layer.chain_id);
        for layer in above {
            let exists = self.has_snapshot(layer.chain_id).await?;
            if !exists || !self.is_proved(layer).await? {
                self.unpack_layer(layer, parent, lease, exists).await?;
            }
            parent = layer.chain_id;
        }
        Ok(())
    }

    /// Unpacks a layer, or only compares it if its snapshot `exists`.
    async fn unpack_layer(&self, layer: &Layer<'_>, parent: &str, lease: &str, exists: bool) -> Result<(), CallError> {
        // The key is the same after a crash. The content is then unknown, so it is removed.
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
            let proof = Labels::from([(UNCOMPRESSED.to_owned(), layer.diff_id.to_owned())]);
            self.label(layer.descriptor.digest().as_ref(), proof).await?;
            if exists {
                self.remove_snapshot(&key).await
            } else {
                self.commit_snapshot(layer.chain_id, &key, lease).await
            }
        };
        let unpacked = unpacked.await;
        if unpacked.as_ref().err().is_none_or(|error| error.code == Code::AlreadyExists) {
            if unpacked.is_err() {
                self.remove_snapshot(&key).await?;
            }
            return Ok(());
        }
        if let Err(error) = self.remove_snapshot(&key).await {
            tracing::debug!(%error, "removing a partly unpacked snapshot failed; the next attempt removes it");
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
        // The snapshot must be on disk before its commit, because it is not verified again after a power cut.
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
