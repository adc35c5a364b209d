//! The volumes that a container's image declares (`VOLUME`), created and filled for each instance before its mounts
//! are set up.

use std::path::{Path, PathBuf};

use containerd_client::types::Mount;

use super::failed::{StartFailure, config_error};
use super::{ContainerdExecutor, Start};
use limpet_containerd::image_volumes::{declared, fill};
use limpet_containerd::snapshot_mount::SnapshotMount;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::call_watch::calling;

impl ContainerdExecutor {
    /// Creates the directories of the image's volumes, with the contents that they have in its fresh snapshot, which
    /// `mounts` describes.
    pub(super) async fn fill_image_volumes(&self, start: &Start<'_>, mounts: &[Mount]) -> Result<(), StartFailure> {
        let paths: Vec<PathBuf> = declared(start.image, start.container).map_err(config_error)?;
        if paths.is_empty() {
            return Ok(());
        }
        calling("filling the volumes of its image");
        let mounts: Vec<_> = mounts.iter().map(SnapshotMount::from).collect();
        let (volumes, uid) = (self.volumes.clone(), start.pod.record.uid.clone());
        let (name, id) = (start.slot.name.clone(), start.id.clone());
        let filled = blocking::run(self.volumes.pod_dir(&uid), DEADLINE, move |progress| {
            let made = volumes.make_declared(&uid, &name, id.as_str(), paths.len());
            let made = made.map_err(|error| error.to_string())?;
            let each: Vec<(&Path, &Path)> =
                paths.iter().map(PathBuf::as_path).zip(made.iter().map(PathBuf::as_path)).collect();
            fill(&mounts, &each, progress).map_err(|error| error.to_string())
        });
        filled.await.unwrap_or_else(|error| Err(error.to_string())).map_err(config_error)
    }
}
