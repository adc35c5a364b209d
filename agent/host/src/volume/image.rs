//! Image volumes: an image's files, which its owner mounts read-only once for the whole pod.

use std::io;
use std::path::{Path, PathBuf};

use super::{VolumeError, removal};

/// The directory of the pod's image volumes.
fn directory(pod_dir: &Path) -> PathBuf {
    pod_dir.join("volumes/kubernetes.io~image")
}

/// The path of the image volume of that name.
pub(super) fn path(pod_dir: &Path, volume: &str) -> PathBuf {
    directory(pod_dir).join(volume)
}

/// Detaches all mounts of a pod with image volumes and returns their names. For a pod without them, nothing is
/// changed.
pub(super) fn detach(pod_dir: &Path) -> Result<Vec<String>, VolumeError> {
    let directory = directory(pod_dir);
    let entries = match std::fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(VolumeError::io("list", &directory))?,
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    // A subPath also keeps the image mounted.
    removal::detach_below(pod_dir)?;
    Ok(names)
}
