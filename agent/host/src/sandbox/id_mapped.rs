//! ID-mapped mounts for a pod with a user namespace (`hostUsers: false`): root's files on disk belong to the pod's
//! root.
//!
//! limpet makes them itself, so neither runc nor containerd needs to support them: copies of a container's mounts,
//! below `<sandbox>/mounts/<container>`, which the OCI runtime binds and which are removed once the container's
//! process exists; and `<sandbox>/layers`, a copy of the directory with all image layers, for the overlays of the
//! pod's containers.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

use super::{SandboxError, at, detach, ignore_not_found};
use crate::mount_table::{self, is_mount_point};
use crate::volume::Mount;
use limpet_model::sandbox::Sandbox;

/// The directory in a sandbox with the copies for its containers.
const MOUNTS: &str = "mounts";
/// The copy of the directory with the layers of images.
const LAYERS: &str = "layers";

// linux/mount.h, and the number of the call, which is that of every architecture that limpet is built for.
const SYS_MOUNT_SETATTR: libc::c_long = 442;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

/// `struct mount_attr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A pod's user namespace, with which mounts are mapped.
#[derive(Debug)]
pub struct IdMapping {
    directory: PathBuf,
    users: OwnedFd,
}

impl IdMapping {
    /// The mapping of a pod; `None` if it uses the host's user namespace.
    ///
    /// # Errors
    ///
    /// The pin cannot be opened.
    pub fn open(sandbox: &Sandbox) -> Result<Option<Self>, SandboxError> {
        let Some(pin) = sandbox.namespaces.user.as_deref() else { return Ok(None) };
        let users = rustix::fs::open(pin, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let users = users.map_err(|errno| at("open", pin, errno))?;
        Ok(Some(Self { directory: pin.parent().unwrap_or(Path::new("/")).to_owned(), users }))
    }

    /// The mounts of a container with mapped copies as sources. An image below `pod_dir` is already mapped and stays.
    ///
    /// # Errors
    ///
    /// A file system does not support ID-mapped mounts, or the kernel refuses.
    pub fn mounts(&self, container_id: &str, pod_dir: &Path, mounts: Vec<Mount>) -> Result<Vec<Mount>, SandboxError> {
        let copies = copies(&self.directory, container_id);
        remove_below(&copies)?;
        let table =
            mount_table::mounts().map_err(|source| SandboxError::path("read", "/proc/self/mountinfo", source))?;
        let pod_dir = pod_dir.canonicalize().map_err(|source| SandboxError::path("stat", pod_dir, source))?;
        let mut mapped = Vec::with_capacity(mounts.len());
        for (index, mount) in mounts.into_iter().enumerate() {
            let source = mount.host_path.canonicalize();
            let source = source.map_err(|source| SandboxError::path("stat", &mount.host_path, source))?;
            if mount_table::holding(&table, &source).is_some_and(|on| is_mapped(on, &pod_dir)) {
                mapped.push(mount);
                continue;
            }
            let copy = copies.join(index.to_string());
            make_mount_point(&source, &copy)?;
            self.copy(&source, &copy)?;
            mapped.push(Mount { host_path: copy, ..mount });
        }
        Ok(mapped)
    }

    /// The mapped copy of `directory`, which has the image layers; created for the pod's first container.
    ///
    /// # Errors
    ///
    /// Its file system does not support ID-mapped mounts, or the kernel refuses.
    pub fn layers(&self, directory: &Path) -> Result<PathBuf, SandboxError> {
        let copy = self.directory.join(LAYERS);
        make_mount_point(directory, &copy)?;
        if !is_mount_point(&copy).map_err(|source| SandboxError::path("stat", &copy, source))? {
            self.copy(directory, &copy)?;
        }
        Ok(copy)
    }

    /// Removes the copies with which a container was created.
    ///
    /// # Errors
    ///
    /// One cannot be unmounted.
    pub fn remove(&self, container_id: &str) -> Result<(), SandboxError> {
        remove_below(&copies(&self.directory, container_id))
    }

    fn copy(&self, source: &Path, target: &Path) -> Result<(), SandboxError> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let tree = rustix::mount::open_tree(CWD, source, flags).map_err(|errno| at("copy the mount", source, errno))?;
        map(&tree, &self.users).map_err(|error| not_mapped(source, error))?;
        let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&tree, "", CWD, target, whole).map_err(|errno| at("mount on", target, errno))
    }
}

/// Maps the ids of the detached mount `tree`, but not of mounts below it, as containerd's CRI plugin does.
#[allow(unsafe_code)]
fn map(tree: &OwnedFd, users: &OwnedFd) -> io::Result<()> {
    let users = u64::try_from(users.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let attributes = MountAttributes { set: MOUNT_ATTR_IDMAP, clear: 0, propagation: 0, user_namespace: users };
    // SAFETY: the descriptor is open as long as `tree` is borrowed, the path is an empty C string, and the kernel reads
    // `attributes`, which lives until the call returns, and no more than its size.
    let result = unsafe {
        libc::syscall(
            SYS_MOUNT_SETATTR,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(&attributes),
            size_of::<MountAttributes>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn not_mapped(source: &Path, error: io::Error) -> SandboxError {
    let source_error = if error.raw_os_error() == Some(libc::EINVAL) {
        io::Error::new(io::ErrorKind::Unsupported, "its file system has no ID-mapped mounts (hostUsers: false)")
    } else {
        error
    };
    SandboxError::path("map the ids of", source, source_error)
}

fn is_mapped(on: &mount_table::Mount, pod_dir: &Path) -> bool {
    let mapped = on.file_system == "overlay" || on.flags.iter().any(|flag| flag == "idmapped");
    mapped && on.point != pod_dir && on.point.starts_with(pod_dir)
}

/// The directory with the copies for a container. The beginning of its id distinguishes it from the pod's other
/// containers.
fn copies(directory: &Path, container_id: &str) -> PathBuf {
    directory.join(MOUNTS).join(container_id.get(..32).unwrap_or(container_id))
}

fn make_mount_point(source: &Path, target: &Path) -> Result<(), SandboxError> {
    let failed = |source| SandboxError::path("make", target, source);
    if source.is_dir() {
        return std::fs::create_dir_all(target).map_err(failed);
    }
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    std::fs::File::create(target).map(drop).map_err(failed)
}

/// Removes all copies of the sandbox in `directory`; missing ones count as success.
pub(super) fn remove_all(directory: &Path) -> Result<(), SandboxError> {
    let mounts = directory.join(MOUNTS);
    for container in entries(&mounts)? {
        remove_below(&container)?;
    }
    remove_directory(&mounts)?;
    let layers = directory.join(LAYERS);
    detach(&layers)?;
    remove_directory(&layers)
}

fn remove_below(copies: &Path) -> Result<(), SandboxError> {
    for copy in entries(copies)? {
        detach(&copy)?;
        let removed = std::fs::remove_file(&copy).or_else(|_| std::fs::remove_dir(&copy));
        ignore_not_found(removed).map_err(|source| SandboxError::path("remove", &copy, source))?;
    }
    remove_directory(copies)
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, SandboxError> {
    let listed = match std::fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    listed.map_err(|source| SandboxError::path("list", directory, source))
}

fn remove_directory(path: &Path) -> Result<(), SandboxError> {
    ignore_not_found(std::fs::remove_dir(path)).map_err(|source| SandboxError::path("remove", path, source))
}
