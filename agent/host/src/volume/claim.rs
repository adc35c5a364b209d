//! A claim of a manifest: a directory of the node that is its alone, made when the first pod mounts it.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Volume;

use super::{Settings, VolumeError};
use limpet_model::object::local_claim::LocalClaim;
use limpet_model::object::{ObjectKind, PodObjects, claim};
use limpet_model::pod::PodRecord;

/// The directory of a claim, as a pod has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimDirectory {
    pub(super) volume: String,
    pub(super) path: PathBuf,
    /// Containers can write to it.
    pub(super) writable: bool,
    size: u64,
    retained: bool,
    /// No other pod may have it.
    pub(super) single_pod: bool,
}

impl ClaimDirectory {
    /// The directory of the volume, whose claim is `name`.
    pub(super) fn find(volume: &Volume, name: &str, objects: &PodObjects) -> Result<Self, VolumeError> {
        let kind = ObjectKind::PersistentVolumeClaim;
        let missing = || VolumeError::NoObject { volume: volume.name.clone(), kind, name: name.to_owned() };
        let claim: &LocalClaim =
            objects.get(kind, name).and_then(|object| object.claim.as_deref()).ok_or_else(missing)?;
        let read_only = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.read_only) == Some(true);
        Ok(Self {
            volume: volume.name.clone(),
            path: claim.directory.as_deref().ok_or_else(missing)?.to_owned(),
            writable: !read_only,
            size: claim.size,
            retained: claim.retained,
            single_pod: claim.single_pod,
        })
    }

    /// Those of a pod that are known.
    pub(super) fn all(pod: &PodRecord, objects: &PodObjects) -> Vec<Self> {
        let volumes = pod.spec().volumes.iter().flatten();
        volumes.filter_map(|volume| Self::find(volume, claim::local_name(pod, volume)?, objects).ok()).collect()
    }

    /// Makes it unless it is there, and limits its size.
    pub(super) fn set_up(&self, settings: &Settings) -> Result<(), VolumeError> {
        let is_new = !self.path.is_dir();
        let made = settings.claim_directories().make(&self.path, self.size, self.retained);
        let limited = made.map_err(|error| self.failed(&error))?;
        if is_new && !limited {
            tracing::info!(path = %self.path.display(), "the claim's size is not enforced: its file system has no project quotas");
        }
        Ok(())
    }

    /// Gives it the size that its claim has now.
    pub(super) fn resize(&self, settings: &Settings) -> Result<(), VolumeError> {
        if self.path.is_dir() { self.set_up(settings) } else { Ok(()) }
    }

    /// Nothing but what made it may make it again: its files would be missing.
    pub(super) fn check(&self) -> Result<(), VolumeError> {
        match std::fs::metadata(&self.path) {
            Ok(_) => Ok(()),
            Err(error) => Err(VolumeError::io("stat", &self.path)(error)),
        }
    }

    fn failed(&self, error: &(dyn std::error::Error + 'static)) -> VolumeError {
        let reason = limpet_model::error_chain::error_chain(error);
        VolumeError::Claim { volume: self.volume.clone(), reason }
    }
}

/// The directory of all claims.
pub(super) fn base(configured: Option<&Path>, root_dir: &Path) -> PathBuf {
    configured.map_or_else(|| root_dir.join("persistent-volumes"), Path::to_owned)
}
