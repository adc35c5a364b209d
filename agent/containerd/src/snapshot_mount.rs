//! Mounts the layers of a snapshot on the host, read-only.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};
use rustix::thread::UnshareFlags;

/// The kernel's limit for mount options: less than a page.
const MAX_OPTIONS: usize = 4_095;

/// One mount of a snapshot, as containerd's `Snapshots.Prepare`, `View` and `Mounts` return it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotMount {
    /// `overlay` or `bind`.
    pub fs_type: String,
    /// The directory, for `bind`.
    pub source: String,
    /// Mount options: `lowerdir=…`, `upperdir=…`, `ro`, `rbind`…
    pub options: Vec<String>,
}

impl From<&containerd_client::types::Mount> for SnapshotMount {
    fn from(mount: &containerd_client::types::Mount) -> Self {
        Self { fs_type: mount.r#type.clone(), source: mount.source.clone(), options: mount.options.clone() }
    }
}

/// Mounts a snapshot at `target`, a directory. Blocks; needs `CAP_SYS_ADMIN`.
///
/// # Errors
/// When the snapshot is of a kind that is not known here, or the kernel refuses.
pub fn mount_read_only(mounts: &[SnapshotMount], target: &Path) -> io::Result<()> {
    let (layers, target) = (layers(mounts)?, target.to_owned());
    // A thread of its own: its working directory is changed.
    let work = move || {
        // SAFETY: only root and working directory are unshared, not the table of file descriptors, and this thread exits
        // with this function.
        #[allow(unsafe_code)]
        unsafe {
            rustix::thread::unshare_unsafe(UnshareFlags::FS)?;
        }
        mount_layers(&layers, &target, MountFlags::RDONLY)
    };
    let mounting = std::thread::Builder::new().name("image-volume".to_owned()).spawn(work)?;
    mounting.join().map_err(|_| io::Error::other("the thread mounting the image panicked"))?
}

/// The snapshot's directories, topmost first. They are only read, so an upper layer is treated as one more layer.
pub(crate) fn layers(mounts: &[SnapshotMount]) -> io::Result<Vec<PathBuf>> {
    let unsupported = |what: String| io::Error::new(io::ErrorKind::Unsupported, what);
    let [mount] = mounts else {
        return Err(unsupported(format!("a snapshot of {} mounts, not one", mounts.len())));
    };
    match mount.fs_type.as_str() {
        "bind" | "rbind" => Ok(vec![PathBuf::from(&mount.source)]),
        "overlay" => {
            let option = |name: &str| mount.options.iter().find_map(|option| option.strip_prefix(name));
            let lower = option("lowerdir=").into_iter().flat_map(|directories| directories.split(':'));
            Ok(option("upperdir=").into_iter().chain(lower).map(PathBuf::from).collect())
        }
        other => Err(unsupported(format!("a snapshot mounted as {other}"))),
    }
}

/// Mounts the layers at `target`. Changes the working directory.
pub(crate) fn mount_layers(layers: &[PathBuf], target: &Path, flags: MountFlags) -> io::Result<()> {
    if let [only] = layers {
        mount_bind(only, target)?;
        // Flags of a bind mount are only set by a remount.
        return Ok(mount_remount(target, MountFlags::BIND | flags, c"")?);
    }
    let (directory, options) = overlay_options(layers)?;
    rustix::process::chdir(&directory)?;
    Ok(mount("overlay", target, "overlay", flags, options.as_c_str())?)
}

/// The working directory, and the overlay's options relative to it: many layers only fit with relative paths.
pub(crate) fn overlay_options(layers: &[PathBuf]) -> io::Result<(PathBuf, CString)> {
    let mut base = layers.first().and_then(|layer| layer.parent()).unwrap_or(Path::new("/")).to_owned();
    while !layers.iter().all(|layer| layer.starts_with(&base)) && base.pop() {}
    let relative: Vec<String> =
        layers.iter().map(|layer| layer.strip_prefix(&base).unwrap_or(layer).to_string_lossy().into_owned()).collect();
    let options = format!("lowerdir={}", relative.join(":"));
    if options.len() > MAX_OPTIONS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} layers are too many", layers.len())));
    }
    Ok((base, CString::new(options)?))
}
