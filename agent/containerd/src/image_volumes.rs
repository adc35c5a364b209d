//! The volumes that an image declares (`VOLUME`), as in containerd's CRI plugin: each container gets a directory per
//! volume, which initially has the image's content at that path.

mod copy;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Container;
use limpet_host::blocking::Progress;
use limpet_host::confined::{self, Confinement};
use limpet_host::volume::absolute;
use limpet_model::image::LocalImage;
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;

use crate::snapshot_mount::SnapshotMount;
use crate::snapshot_mount::private::with_mounted;

/// The most volumes of one image: each is a directory and a mount.
const MAX_VOLUMES: usize = 128;

/// The paths of the volumes that the image declares, except the root and those at which the container mounts its own
/// volumes.
///
/// # Errors
///
/// The image declares too many.
pub fn declared(image: &LocalImage, container: &Container) -> Result<Vec<PathBuf>, String> {
    let volumes = image.config.config().as_ref().and_then(|config| config.volumes().as_deref());
    let mounted: BTreeSet<PathBuf> =
        container.volume_mounts.iter().flatten().map(|mount| absolute(&mount.mount_path)).collect();
    let paths: BTreeSet<PathBuf> = volumes.unwrap_or_default().iter().map(|path| absolute(path)).collect();
    let paths: Vec<PathBuf> =
        paths.into_iter().filter(|path| path.parent().is_some() && !mounted.contains(path)).collect();
    match paths.len() {
        0..=MAX_VOLUMES => Ok(paths),
        count => Err(format!("image {} declares {count} volumes; at most {MAX_VOLUMES} are possible", image.name)),
    }
}

/// Fills each directory with the content at the paired path of the image's snapshot. A directory stays empty if the
/// image does not have the path. Blocks; needs `CAP_SYS_ADMIN`.
///
/// # Errors
///
/// The snapshot cannot be mounted, a path is not a directory, or a copy fails; the error names it.
pub fn fill(mounts: &[SnapshotMount], volumes: &[(&Path, &Path)], progress: &Progress) -> io::Result<()> {
    with_mounted(mounts, "image-volumes", |root| {
        volumes.iter().try_for_each(|(path, directory)| {
            let named = |error: io::Error| {
                io::Error::new(error.kind(), format!("the volume {} of the image: {error}", path.display()))
            };
            let inside = path.strip_prefix("/").unwrap_or(path);
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
            let source = match confined::open(&root, inside, flags, Confinement::IN_ROOT.without_mounts()) {
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
                opened => opened.map_err(|errno| named(errno.into()))?,
            };
            if FileType::from_raw_mode(fstat(&source)?.st_mode) != FileType::Directory {
                return Err(named(io::Error::new(io::ErrorKind::NotADirectory, "it is no directory there")));
            }
            copy::tree(source, directory, progress).map_err(named)
        })
    })
}

#[cfg(test)]
mod tests;
