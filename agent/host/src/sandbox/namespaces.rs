//! Creates a pod's namespaces on the calling thread and pins them as files.
//!
//! The caller must discard the thread: after [`make`] it is in the pod's namespaces.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::UnshareFlags;

use super::unshare::unshare_namespaces;
use super::users::NamespaceHolder;
use super::{SandboxError, SandboxRequest};
use crate::{rtnetlink, selinux};
use limpet_model::pod::{PodUid, sysctl};
use limpet_model::sandbox::{Namespaces, Sandbox};

/// containerd 2's defaults in every pod's network namespace (`enable_unprivileged_icmp`,
/// `enable_unprivileged_ports`), unless the Pod overrides them: any user may ping, and listen on ports below 1024.
const NETWORK_DEFAULTS: [(&str, &str); 2] =
    [("net.ipv4.ping_group_range", "0 2147483647"), ("net.ipv4.ip_unprivileged_port_start", "0")];

/// Where message queues are mounted temporarily, in the directory of the sandbox.
pub(super) const MESSAGE_QUEUES: &str = "mqueue";

/// The settings of the new namespaces, owned by the worker thread.
#[derive(Debug)]
pub(super) struct NamespaceSettings {
    pub(super) uid: PodUid,
    hostname: String,
    sysctls: Vec<(String, String)>,
    /// Bytes of `/dev/shm`.
    pub(super) shm_size: u64,
    /// The SELinux label of the pod's files.
    pub(super) label: Option<String>,
}

impl NamespaceSettings {
    /// Copies the settings from `request`.
    pub(super) fn new(request: &SandboxRequest<'_>) -> Self {
        Self {
            uid: request.uid.clone(),
            hostname: request.hostname.to_owned(),
            sysctls: request.sysctls.to_vec(),
            shm_size: request.shm_size,
            label: None,
        }
    }

    pub(super) fn failed(&self, operation: &'static str, source: impl Into<io::Error>) -> SandboxError {
        SandboxError::Namespace { uid: self.uid.clone(), operation, source: source.into() }
    }
}

/// Creates the namespaces of `sandbox`, configures them, and only then binds them onto their files.
pub(super) fn make(sandbox: &Sandbox, settings: &NamespaceSettings) -> Result<(), SandboxError> {
    let wanted = &sandbox.namespaces;
    match (&wanted.user, sandbox.ids) {
        (Some(pin), Some(ids)) => {
            let failed = |error| settings.failed("make a user namespace", error);
            let holder = NamespaceHolder::start().map_err(failed)?;
            holder.map(ids).map_err(|error| settings.failed("map the ids of the user namespace", error))?;
            holder.enter().map_err(|error| settings.failed("enter the namespaces of the pod", error))?;
            bind(&holder.user_namespace(), pin)?;
        }
        _ => unshare(wanted).map_err(|errno| settings.failed("unshare namespaces", errno))?,
    }
    if wanted.uts.is_some() {
        rustix::system::sethostname(settings.hostname.as_bytes())
            .map_err(|errno| settings.failed("set the hostname", errno))?;
    }
    if wanted.network.is_some() {
        rtnetlink::bring_up(rtnetlink::LOOPBACK_INDEX)
            .map_err(|error| settings.failed("bring the loopback interface up", error))?;
    }
    set_sysctls(wanted, settings)?;
    if let (Some(pin), Some(label)) = (&wanted.ipc, &settings.label) {
        label_message_queues(&pin.with_file_name(MESSAGE_QUEUES), label);
    }
    for (pin, kind) in [(&wanted.ipc, "ipc"), (&wanted.uts, "uts"), (&wanted.network, "net")] {
        if let Some(pin) = pin {
            bind(Path::new(&format!("/proc/thread-self/ns/{kind}")), pin)?;
        }
    }
    Ok(())
}

/// The file system of the IPC namespace's message queues has the agent's label, and a policy may deny it to OCI
/// runtimes, so it gets the label of the pod's files. `path` is created for this and removed.
fn label_message_queues(path: &Path, label: &str) {
    let label = || {
        std::fs::create_dir(path)?;
        rustix::mount::mount("mqueue", path, "mqueue", MountFlags::empty(), c"")?;
        let labelled = selinux::relabel(path, label);
        rustix::mount::unmount(path, UnmountFlags::DETACH)?;
        labelled
    };
    let labelled = label();
    if let Err(error) = std::fs::remove_dir(path).and(labelled) {
        tracing::debug!(%error, "relabelling the message queues failed; the runtime may not be able to mount them");
    }
}

fn unshare(wanted: &Namespaces) -> rustix::io::Result<()> {
    let mut flags = UnshareFlags::empty();
    flags.set(UnshareFlags::NEWNET, wanted.network.is_some());
    flags.set(UnshareFlags::NEWIPC, wanted.ipc.is_some());
    flags.set(UnshareFlags::NEWUTS, wanted.uts.is_some());
    // Applies only to children of this thread.
    flags.set(UnshareFlags::NEWPID, wanted.pid.is_some());
    if flags.is_empty() { Ok(()) } else { unshare_namespaces(flags) }
}

/// Writes containerd's defaults and the Pod's sysctls. `/proc/sys` shows the calling thread's namespaces.
fn set_sysctls(wanted: &Namespaces, settings: &NamespaceSettings) -> Result<(), SandboxError> {
    for (name, value) in NETWORK_DEFAULTS.iter().filter(|_| wanted.network.is_some()) {
        let overridden = settings.sysctls.iter().any(|(set, _)| sysctl::dotted(set) == *name);
        if overridden {
            continue;
        }
        match write(&sysctl::path(name), value) {
            // A kernel that was built without the sysctl needs no setting.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(sysctl_failed(settings, name, value, error));
            }
            _ => {}
        }
    }
    for (name, value) in &settings.sysctls {
        write(&sysctl::path(name), value).map_err(|error| sysctl_failed(settings, name, value, error))?;
    }
    Ok(())
}

fn sysctl_failed(settings: &NamespaceSettings, name: &str, value: &str, source: io::Error) -> SandboxError {
    SandboxError::Sysctl { uid: settings.uid.clone(), name: name.to_owned(), value: value.to_owned(), source }
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    // A single write call, because the kernel takes each write as a complete value.
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// Binds a namespace, a file below `/proc/<pid>/ns`, onto the file `pin`.
pub(super) fn bind(namespace: &Path, pin: &Path) -> Result<(), SandboxError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(pin)
        .map_err(|source| SandboxError::path("make", pin, source))?;
    rustix::mount::mount_bind(namespace, pin).map_err(|errno| super::at("bind a namespace onto", pin, errno))
}
