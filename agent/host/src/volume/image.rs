//! Image volumes: an image's files, which its owner mounts read-only once for the whole pod.

use std::io;
use std::path::Path;

use super::{VolumeError, plugin_directory, removal};
use limpet_model::pod::volume_kind::VolumePlugin;

/// Detaches all mounts of a pod with image volumes and returns their names. For a pod without them, nothing is
/// changed.
pub(super) fn detach(pod_dir: &Path) -> Result<Vec<String>, VolumeError> {
    let directory = plugin_directory::path(pod_dir, VolumePlugin::Image);
    let entries = match std::fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(VolumeError::io("list", &directory))?,
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    // A subPath also keeps the image mounted.
    removal::detach_below(pod_dir)?;
    Ok(names)
}
