//! Mounts a snapshot on the host, read-only, for each type of snapshotter.

pub(crate) mod private;

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};
use rustix::thread::UnshareFlags;

/// The kernel's limit for mount options: less than a page.
const MAX_OPTIONS: usize = 4_095;

/// One mount of a snapshot, as containerd's `Snapshots.Prepare`, `View` and `Mounts` return it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotMount {
    /// `overlay`, `bind`, or a file system such as `btrfs` or `ext4`.
    pub fs_type: String,
    /// The directory for `bind`, the device for a file system.
    pub source: String,
    /// Mount options: `lowerdir=…`, `upperdir=…`, `subvolid=…`, `ro`, `rbind`…
    pub options: Vec<String>,
}

impl From<&containerd_client::types::Mount> for SnapshotMount {
    fn from(mount: &containerd_client::types::Mount) -> Self {
        Self { fs_type: mount.r#type.clone(), source: mount.source.clone(), options: mount.options.clone() }
    }
}

impl SnapshotMount {
    /// The directory with the overlayfs snapshotter's layers, `<number>/fs`, of a container's root file system or an
    /// image.
    ///
    /// # Errors
    ///
    /// The mount is another snapshotter's, which has no separate layers to map.
    pub fn layers_directory(&self) -> io::Result<&Path> {
        let layer = match self.fs_type.as_str() {
            "bind" => Some(self.source.as_str()),
            "overlay" => self.option("lowerdir=").and_then(|layers| layers.split(':').next()),
            _ => None,
        };
        let layer = layer.map(Path::new).filter(|layer| layer.ends_with("fs"));
        layer.and_then(|layer| layer.parent()?.parent()).ok_or_else(|| {
            let message = format!("a snapshot of {} has no layers to map; set snapshotter to overlayfs", self.fs_type);
            io::Error::new(io::ErrorKind::Unsupported, message)
        })
    }

    /// The writable layer.
    pub fn upper(&self) -> Option<&Path> {
        self.option("upperdir=").map(Path::new)
    }

    fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name))
    }

    /// The same mount with every read-only layer below `copy` instead of `directory`.
    #[must_use]
    pub fn moved(&self, directory: &Path, copy: &Path) -> Self {
        let moved = |layer: &str| match Path::new(layer).strip_prefix(directory) {
            Ok(rest) => copy.join(rest).to_string_lossy().into_owned(),
            Err(_) => layer.to_owned(),
        };
        let option = |option: &String| match option.strip_prefix("lowerdir=") {
            Some(layers) => format!("lowerdir={}", layers.split(':').map(moved).collect::<Vec<_>>().join(":")),
            None => option.clone(),
        };
        let source = if self.fs_type == "bind" { moved(&self.source) } else { self.source.clone() };
        Self { fs_type: self.fs_type.clone(), source, options: self.options.iter().map(option).collect() }
    }
}

/// Adds the SELinux label of all files to the mounts of a container's root file system, as containerd's client does.
#[must_use]
pub fn labelled(mut mounts: Vec<containerd_client::types::Mount>, label: &str) -> Vec<containerd_client::types::Mount> {
    for mount in &mut mounts {
        // Quoted, because a level may contain a comma.
        mount.options.push(format!("context=\"{label}\""));
    }
    mounts
}

/// Mounts a snapshot at the directory `target`. Blocks; needs `CAP_SYS_ADMIN`.
///
/// # Errors
///
/// The kind of snapshot is unknown, or the kernel refuses.
pub fn mount_read_only(mounts: &[SnapshotMount], target: &Path) -> io::Result<()> {
    let (root, target) = (Root::from_mounts(mounts)?, target.to_owned());
    // Runs on a separate thread, because it changes its working directory.
    let work = move || {
        // SAFETY: only root and working directory are unshared, not the table of file descriptors, and this thread exits
        // with this function.
        #[allow(unsafe_code)]
        unsafe {
            rustix::thread::unshare_unsafe(UnshareFlags::FS)?;
        }
        root.mount(&target, MountFlags::RDONLY)
    };
    let mounting = std::thread::Builder::new().name("image-volume".to_owned()).spawn(work)?;
    mounting.join().map_err(|_| io::Error::other("the thread mounting the image panicked"))?
}

/// The root of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// Directories, topmost first (overlayfs, native). They are only read, so an upper layer counts as another layer.
    Layers(Vec<PathBuf>),
    /// A separate file system (btrfs, zfs, devmapper).
    FileSystem {
        fs_type: String,
        source: String,
        /// These flags also apply to the superblock: mounts of a device must agree on whether it is read-only.
        flags: MountFlags,
        data: CString,
    },
}

impl Root {
    /// Interprets containerd's description of a snapshot.
    pub(crate) fn from_mounts(mounts: &[SnapshotMount]) -> io::Result<Self> {
        let [mount] = mounts else {
            return Err(unsupported(&format!("{} mounts instead of one", mounts.len())));
        };
        match mount.fs_type.as_str() {
            "bind" | "rbind" => Ok(Self::Layers(vec![PathBuf::from(&mount.source)])),
            "overlay" => {
                let option = |name: &str| mount.options.iter().find_map(|option| option.strip_prefix(name));
                let lower = option("lowerdir=").into_iter().flat_map(|directories| directories.split(':'));
                Ok(Self::Layers(option("upperdir=").into_iter().chain(lower).map(PathBuf::from).collect()))
            }
            _ => file_system(mount),
        }
    }

    /// Mounts it at `target`, with `flags` for this mount. Changes the working directory.
    pub(crate) fn mount(&self, target: &Path, flags: MountFlags) -> io::Result<()> {
        match self {
            Self::Layers(layers) => mount_layers(layers, target, flags),
            Self::FileSystem { fs_type, source, flags: mount_flags, data } => {
                mount(
                    source.as_str(),
                    target,
                    fs_type.as_str(),
                    *mount_flags | (flags - MountFlags::RDONLY),
                    data.as_c_str(),
                )?;
                Ok(mount_remount(target, MountFlags::BIND | flags, c"")?)
            }
        }
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layers(layers) => {
                let top = layers.first().map(|layer| layer.display().to_string()).unwrap_or_default();
                write!(f, "{} layers, {top} on top", layers.len())
            }
            Self::FileSystem { fs_type, source, data, .. } => {
                write!(f, "{fs_type} file system of {source} ({})", data.to_string_lossy())
            }
        }
    }
}

/// A file system on a device: options that are kernel flags, and the others as text.
fn file_system(mount: &SnapshotMount) -> io::Result<Root> {
    let (mut flags, mut data) = (MountFlags::empty(), Vec::new());
    for option in &mount.options {
        match option.as_str() {
            "ro" => flags |= MountFlags::RDONLY,
            "noatime" => flags |= MountFlags::NOATIME,
            "nodiratime" => flags |= MountFlags::NODIRATIME,
            "relatime" => flags |= MountFlags::RELATIME,
            "nodev" => flags |= MountFlags::NODEV,
            "nosuid" => flags |= MountFlags::NOSUID,
            "noexec" => flags |= MountFlags::NOEXEC,
            "sync" => flags |= MountFlags::SYNCHRONOUS,
            "rw" | "defaults" => {}
            "loop" => return Err(unsupported("a loop device")),
            option if option.contains("dir={{") => return Err(unsupported("mounts that refer to other mounts")),
            other => data.push(other),
        }
    }
    let (fs_type, source, data) = (mount.fs_type.clone(), mount.source.clone(), CString::new(data.join(","))?);
    Ok(Root::FileSystem { fs_type, source, flags, data })
}

/// The error for a snapshotter that limpet cannot mount.
fn unsupported(what: &str) -> io::Error {
    let message = format!(
        "containerd's snapshotter uses {what}, which limpet does not mount; set snapshotter in the LimpetConfiguration \
         to overlayfs, native, btrfs or devmapper"
    );
    io::Error::new(io::ErrorKind::Unsupported, message)
}

/// Mounts the layers at `target`. Changes the working directory.
fn mount_layers(layers: &[PathBuf], target: &Path, flags: MountFlags) -> io::Result<()> {
    if let [only] = layers {
        mount_bind(only, target)?;
        // A bind mount's flags can only be set by a remount.
        return Ok(mount_remount(target, MountFlags::BIND | flags, c"")?);
    }
    let (directory, options) = overlay_options(layers)?;
    rustix::process::chdir(&directory)?;
    Ok(mount("overlay", target, "overlay", flags, options.as_c_str())?)
}

/// The working directory, and the overlay's options relative to it: many layers only fit with relative paths.
fn overlay_options(layers: &[PathBuf]) -> io::Result<(PathBuf, CString)> {
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

#[cfg(test)]
mod tests;
