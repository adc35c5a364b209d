//! A pod's sandbox without a pause container: pinned namespaces and `/dev/shm`.
//!
//! `<run-dir>/sandboxes/<pod uid>` contains `net`, `ipc` and `uts`, files onto which the pod's namespaces are
//! bind-mounted (pins), and `shm`, a tmpfs. Containers join them by path, so the namespaces live as long as the pins
//! and need no process. A reboot removes them all; a restart of the agent removes none.
//!
//! A sandbox is complete when all its pins exist: they are bound last, after the namespaces are configured. So after
//! a crash, [`Sandboxes::find`] does not return an incomplete sandbox, and [`Sandboxes::create`] removes it. The file
//! `id` distinguishes it from every earlier sandbox.
//!
//! Only a shared PID namespace (`shareProcessNamespace`) needs a process: [`init`]. The file `init` has its PID, and
//! a sandbox whose init has ended is not complete.
//!
//! A pod with `hostUsers: false` also has a user namespace, `user`, which owns the others; the file `ids` has the
//! node's ids that it was given. The mounts of its containers are below `layers` and `mounts` ([`id_mapped`]).
//!
//! If limpet sets SELinux labels, the file `level` has the pod's level ([`levels`]).

mod allocation_file;
pub mod id_mapped;
pub mod init;
mod levels;
mod mounts;
mod namespaces;
mod start;
mod unshare;
pub mod users;

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::MountFlags;

pub use self::levels::label_shared_memory;
use self::mounts::{
    NSFS_MAGIC, PRIVATE_MODE, TMPFS_MAGIC, at, detach, exists, file_system_of, ignore_not_found, is_mount_point,
    make_dir, make_private,
};
pub use self::start::WaitingInit;

use limpet_model::pod::PodUid;
use limpet_model::sandbox::{Namespaces, Sandbox};
use limpet_model::selinux::PodLabelling;
use limpet_model::user_namespace::SubordinateIdsError;

/// The size of a pod's `/dev/shm` in bytes, as in containerd's CRI plugin.
pub const DEFAULT_SHM_SIZE: u64 = 64 << 20;

/// The file that holds a sandbox's id.
const ID: &str = "id";
/// The pin of a user namespace.
const USERS: &str = "user";

/// The shared memory of a pod with `hostIPC`.
const HOST_SHM: &str = "/dev/shm";

/// The settings of a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct SandboxRequest<'a> {
    pub uid: &'a PodUid,
    /// `hostNetwork`: no network and no UTS namespace.
    pub host_network: bool,
    /// `hostIPC`: no IPC namespace, and the host's `/dev/shm`.
    pub host_ipc: bool,
    /// `shareProcessNamespace`: a PID namespace of the pod, with an [`init`].
    pub share_processes: bool,
    /// `hostUsers: false`: a user namespace of the pod, which owns its others.
    pub own_users: bool,
    /// The pod's own hostname, at most 64 bytes; with `hostNetwork` the host's, whose UTS namespace the pod is in.
    pub hostname: &'a str,
    /// The Pod's sysctls, checked by [`limpet_model::pod::sysctl::check_sysctls`].
    pub sysctls: &'a [(String, String)],
    /// Bytes of `/dev/shm`, normally [`DEFAULT_SHM_SIZE`].
    pub shm_size: u64,
    /// What its SELinux labels are made of; `None` if nothing is labelled.
    pub labelling: Option<&'a PodLabelling>,
}

impl SandboxRequest<'_> {
    /// The paths of the requested sandbox below `dir`. Pure.
    fn sandbox(&self, dir: &Path) -> Sandbox {
        Sandbox {
            id: None,
            namespaces: Namespaces {
                network: (!self.host_network).then(|| dir.join("net")),
                ipc: (!self.host_ipc).then(|| dir.join("ipc")),
                uts: (!self.host_network).then(|| dir.join("uts")),
                pid: self.share_processes.then(|| dir.join("pid")),
                user: self.own_users.then(|| dir.join(USERS)),
            },
            shm: if self.host_ipc { HOST_SHM.into() } else { dir.join("shm") },
            hostname: self.hostname.to_owned(),
            ids: None,
            level: None,
        }
    }
}

/// Why a sandbox could not be created, found or removed. All are retried, because each may be repaired on the node
/// while the pod waits.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A system call on a path failed.
    #[error("sandbox: cannot {operation} {}: {source}", path.display())]
    Path { operation: &'static str, path: PathBuf, source: io::Error },
    /// A namespace could not be created or configured.
    #[error("sandbox of pod {uid}: cannot {operation}: {source}")]
    Namespace { uid: PodUid, operation: &'static str, source: io::Error },
    /// A sysctl could not be set.
    #[error("sandbox of pod {uid}: cannot set sysctl {name} to {value:?}: {source}")]
    Sysctl {
        uid: PodUid,
        /// The sysctl as the Pod writes it.
        name: String,
        value: String,
        source: io::Error,
    },
    /// All ids of the node are allocated.
    #[error("sandbox of pod {uid}: no IDs are free for its user namespace; delete another pod with hostUsers: false")]
    NoIds { uid: PodUid },
    /// The node's ids for pods are unknown.
    #[error("sandbox of pod {uid}: {source}")]
    SubordinateIds { uid: PodUid, source: SubordinateIdsError },
    /// All SELinux levels are allocated.
    #[error("sandbox of pod {uid}: no SELinux level is free; delete another pod")]
    NoLevel { uid: PodUid },
    /// The worker thread could not be started or panicked.
    #[error("sandbox: {0}")]
    Thread(String),
}

impl SandboxError {
    fn path(operation: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        Self::Path { operation, path: path.as_ref().to_owned(), source }
    }
}

/// A new sandbox.
#[derive(Debug)]
pub struct CreatedSandbox {
    pub sandbox: Sandbox,
    /// The init of a shared PID namespace. It waits for [`WaitingInit::release`], and ends if this is dropped before.
    pub init: Option<WaitingInit>,
}

/// The sandboxes of this node. Clones share the directory.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    dir: Arc<Path>,
}

impl Sandboxes {
    /// The sandboxes below `run_dir`, for reading only; [`Self::open`] is for creating them.
    pub fn below(run_dir: &Path) -> Self {
        Self { dir: run_dir.join("sandboxes").into() }
    }

    /// Makes `<run_dir>/sandboxes` a mount point with private propagation, so that pins do not leak into other mount
    /// namespaces (where they would keep a removed pod's namespaces alive). Idempotent. An agent that may not mount
    /// logs an error and continues, because it still manages the running pods.
    pub async fn open(run_dir: &Path) -> Result<Self, SandboxError> {
        let Self { dir } = Self::below(run_dir);
        let made = dir.clone();
        blocking(move || {
            make_dir(&made)?;
            // Another version may have created it with more permissions.
            std::fs::set_permissions(&made, Permissions::from_mode(PRIVATE_MODE))
                .map_err(|source| SandboxError::path("restrict", &made, source))?;
            match make_private(&made) {
                Err(SandboxError::Path { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                    tracing::error!(%source, "limpet may not mount (it needs CAP_SYS_ADMIN); no new pod can start");
                    Ok(())
                }
                made => made,
            }
        })
        .await?;
        Ok(Self { dir })
    }

    /// The pod's sandbox, if it is complete: every pin is a namespace and the shared memory is mounted. It is
    /// complete after a restart of the agent, but not after a reboot or a crash during [`Self::create`].
    pub async fn find(&self, request: &SandboxRequest<'_>) -> Result<Option<Sandbox>, SandboxError> {
        let dir = self.pod_dir(request.uid);
        let mut sandbox = request.sandbox(&dir);
        if !self.is_whole(request.uid, &sandbox).await? {
            return Ok(None);
        }
        let own_users = request.own_users;
        let (sandboxes, uid, labelling) = (self.dir.clone(), request.uid.clone(), request.labelling.cloned());
        let (id, ids, level) = blocking(move || {
            // A sandbox from an earlier version may not have a level yet.
            let level = labelling.map(|policy| levels::allocate(&sandboxes, &dir, &uid, &policy)).transpose()?;
            Ok((read_id(&dir)?, users::read(&dir)?, level))
        })
        .await?;
        // Without the record of its ids nothing can be mounted for it.
        if own_users && ids.is_none() {
            return Ok(None);
        }
        (sandbox.id, sandbox.ids, sandbox.level) = (id, ids, level);
        Ok(Some(sandbox))
    }

    /// Whether `sandbox`, which [`Self::find`] or [`Self::create`] returned for the pod, is still complete.
    pub async fn is_whole(&self, uid: &PodUid, sandbox: &Sandbox) -> Result<bool, SandboxError> {
        let (dir, sandbox) = (self.pod_dir(uid), sandbox.clone());
        blocking(move || {
            if !exists(&dir)? {
                return Ok(false);
            }
            for pin in sandbox.namespaces.pins() {
                if file_system_of(pin)? != Some(NSFS_MAGIC) {
                    return Ok(false);
                }
            }
            if sandbox.namespaces.pid.is_some() && !start::is_alive(&dir)? {
                return Ok(false);
            }
            let own_shm = sandbox.namespaces.ipc.is_some();
            Ok(!own_shm || (file_system_of(&sandbox.shm)? == Some(TMPFS_MAGIC) && is_mount_point(&sandbox.shm)?))
        })
        .await
    }

    /// Creates the pod's sandbox. An older or incomplete one is removed first.
    pub async fn create(&self, request: &SandboxRequest<'_>) -> Result<CreatedSandbox, SandboxError> {
        let dir = self.pod_dir(request.uid);
        let mut sandbox = request.sandbox(&dir);
        let mut settings = namespaces::NamespaceSettings::new(request);
        let (sandboxes, labelling) = (self.dir.clone(), request.labelling.cloned());
        let runtime = tokio::runtime::Handle::current();
        let result = on_fresh_thread(move || {
            remove_directory(&dir)?;
            make_dir(&dir)?;
            let made = write_id(&dir).and_then(|id| {
                sandbox.id = Some(id);
                if sandbox.namespaces.user.is_some() {
                    sandbox.ids = Some(users::allocate(&sandboxes, &dir, &settings.uid)?);
                }
                if let Some(labelling) = labelling {
                    let level = levels::allocate(&sandboxes, &dir, &settings.uid, &labelling)?;
                    settings.label = Some(labelling.file_label(&level));
                    sandbox.level = Some(level);
                }
                make(&sandbox, &settings)?;
                start::start(&runtime, &dir, &sandbox.namespaces, &settings)
            });
            made.map(|init| CreatedSandbox { sandbox, init }).inspect_err(|_| {
                if let Err(error) = remove_directory(&dir) {
                    tracing::warn!(%error, "removing an incomplete sandbox failed; the next attempt removes it");
                }
            })
        });
        result.await
    }

    /// Removes the pod's sandbox. Namespaces are freed when the last process in them exits. A missing sandbox counts
    /// as success.
    pub async fn remove(&self, uid: &PodUid) -> Result<(), SandboxError> {
        let dir = self.pod_dir(uid);
        blocking(move || remove_directory(&dir)).await
    }

    /// The pods that have a sandbox, complete or not, for the clean-up of orphans.
    pub async fn list(&self) -> Result<Vec<PodUid>, SandboxError> {
        let dir = self.dir.clone();
        blocking(move || {
            let fail = |source| SandboxError::path("list", &dir, source);
            let mut uids = Vec::new();
            for entry in std::fs::read_dir(&dir).map_err(fail)? {
                if let Some(name) = entry.map_err(fail)?.file_name().to_str() {
                    uids.extend(PodUid::parse(name));
                }
            }
            uids.sort();
            Ok(uids)
        })
        .await
    }

    /// The pin of the network namespace of a pod that has its own, and a sandbox.
    pub fn network(&self, uid: &PodUid) -> PathBuf {
        self.pod_dir(uid).join("net")
    }

    fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.dir.join(uid.as_str())
    }
}

/// Creates shared memory first, then namespaces: a sandbox is complete once it is pinned.
fn make(sandbox: &Sandbox, settings: &namespaces::NamespaceSettings) -> Result<(), SandboxError> {
    if sandbox.namespaces.ipc.is_some() {
        make_dir(&sandbox.shm)?;
        let mut data = format!("mode=1777,size={}", settings.shm_size);
        if let Some(ids) = sandbox.ids {
            data.push_str(&format!(",uid={0},gid={0}", ids.first));
        }
        // The text consists of digits and letters, so it contains no zero byte.
        let data = std::ffi::CString::new(data).unwrap_or_default();
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("shm", &sandbox.shm, "tmpfs", flags, data.as_c_str())
            .map_err(|errno| at("mount tmpfs on", &sandbox.shm, errno))?;
    }
    namespaces::make(sandbox, settings)
}

/// Writes a new id for the sandbox in `dir`, before its first pin.
fn write_id(dir: &Path) -> Result<String, SandboxError> {
    let random = Path::new("/proc/sys/kernel/random/uuid");
    let id = std::fs::read_to_string(random).map_err(|source| SandboxError::path("read", random, source))?;
    let id = id.trim().to_owned();
    let path = dir.join(ID);
    std::fs::write(&path, &id).map_err(|source| SandboxError::path("write", &path, source))?;
    Ok(id)
}

/// The id of the sandbox in `dir`; `None` for one from an earlier version.
fn read_id(dir: &Path) -> Result<Option<String>, SandboxError> {
    let path = dir.join(ID);
    match std::fs::read_to_string(&path) {
        Ok(id) => Ok(Some(id)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SandboxError::path("read", path, source)),
    }
}

/// Unmounts everything in `dir` and removes it.
fn remove_directory(dir: &Path) -> Result<(), SandboxError> {
    let id = dir.join(ID);
    ignore_not_found(std::fs::remove_file(&id)).map_err(|source| SandboxError::path("remove", &id, source))?;
    start::end(dir)?;
    id_mapped::remove_all(dir)?;
    for name in ["pid", "net", "uts", "ipc", USERS, "shm", namespaces::MESSAGE_QUEUES] {
        let path = dir.join(name);
        detach(&path)?;
        let is_directory = ["shm", namespaces::MESSAGE_QUEUES].contains(&name);
        let removed = if is_directory { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) };
        ignore_not_found(removed).map_err(|source| SandboxError::path("remove", &path, source))?;
    }
    // Released last: until then no other pod gets its ids and its level.
    users::release(dir)?;
    levels::release(dir)?;
    ignore_not_found(std::fs::remove_dir(dir)).map_err(|source| SandboxError::path("remove", dir, source))
}

/// Runs `work` on tokio's blocking threads, without a deadline because tmpfs and nsfs wait for no device.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| SandboxError::Thread(error.to_string()))?
}

/// Runs `work` on a new thread, because on a shared one it would change the namespaces of later work. If the caller
/// is dropped, the work is still finished.
async fn on_fresh_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    let (done, result) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("sandbox".to_owned())
        .stack_size(256 << 10)
        .spawn(move || {
            // If the receiver is gone, the next attempt finds or removes the sandbox.
            let _ = done.send(work());
        })
        .map_err(|error| SandboxError::Thread(format!("cannot start a thread: {error}")))?;
    result.await.map_err(|_| SandboxError::Thread("the thread panicked".to_owned()))?
}

#[cfg(test)]
mod tests;
