//! A pod's user namespace (`hostUsers: false`): the ids that it gets, and the process that creates it.
//!
//! A process with threads cannot create a user namespace, so limpet's executable is started again for it
//! ([`ARGUMENT`]). That process also creates the pod's network, IPC and UTS namespaces, which then belong to the user
//! namespace, and ends when they are pinned. The agent maps the ids, enters those three namespaces and configures
//! them like those of other pods.
//!
//! The file `ids` of a sandbox has its ids. They belong to the pod from before its namespaces are created until they
//! are gone.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};

use super::SandboxError;
use super::allocation_file::AllocationFile;
use super::unshare::unshare_namespaces;

use limpet_model::pod::PodUid;
use limpet_model::user_namespace::{IdRange, SubordinateIds};

/// The only argument, which selects the role that holds new namespaces.
const ARGUMENT: &str = "pod-user-namespace";
/// The files with users' ranges of the node's ids.
const SUBORDINATE_IDS: [&str; 2] = ["/etc/subuid", "/etc/subgid"];
/// The most bytes of such a file that are read.
const MAX_SUBORDINATE_IDS: u64 = 1 << 20;
/// The ids of sandboxes.
static IDS: AllocationFile = AllocationFile::new("ids");

/// Whether this process was started as a holder. Call it early in `main`, while there is only one thread.
pub fn invoked() -> bool {
    std::env::args_os().skip(1).eq([ARGUMENT])
}

/// Creates the namespaces, reports that, and holds them until the agent closes the pipe or ends.
pub fn main() -> ExitCode {
    let all = UnshareFlags::NEWUSER | UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    let made = unshare_namespaces(all).map_err(io::Error::from);
    let output = match &made {
        Ok(()) => "\n".to_owned(),
        Err(error) => error.raw_os_error().unwrap_or_default().to_string(),
    };
    let reported = io::stdout().write_all(output.as_bytes()).and_then(|()| io::stdout().flush());
    if made.is_err() || reported.is_err() {
        return ExitCode::FAILURE;
    }
    // Returns at the end of the pipe, however it comes.
    let _ = io::stdin().read_exact(&mut [0]);
    ExitCode::SUCCESS
}

/// The process that has created a pod's namespaces. Dropping it ends the process, and with it the namespaces that are
/// not pinned.
#[derive(Debug)]
pub(super) struct NamespaceHolder(Child);

impl NamespaceHolder {
    /// Starts it, and waits until the namespaces are made.
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(ARGUMENT).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut holder = Self(command.spawn()?);
        let mut output = [0; 16];
        let length = holder.0.stdout.as_mut().map_or(Ok(0), |pipe| pipe.read(&mut output))?;
        match output.get(..length).unwrap_or_default() {
            b"\n" => Ok(holder),
            b"" => Err(io::ErrorKind::UnexpectedEof.into()),
            errno => {
                let errno = std::str::from_utf8(errno).ok().and_then(|errno| errno.parse().ok());
                Err(errno.map_or_else(|| io::ErrorKind::InvalidData.into(), io::Error::from_raw_os_error))
            }
        }
    }

    /// Maps the ids of its user namespace.
    pub(super) fn map(&self, ids: IdRange) -> io::Result<()> {
        for map in ["uid_map", "gid_map"] {
            // A single write call, because the kernel accepts no second one.
            let mut file = OpenOptions::new().write(true).open(format!("/proc/{}/{map}", self.0.id()))?;
            file.write_all(ids.id_map().as_bytes())?;
        }
        Ok(())
    }

    /// Moves the calling thread into its network, IPC and UTS namespaces.
    pub(super) fn enter(&self) -> io::Result<()> {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let namespaces = ThreadNameSpaceType::NETWORK
            | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
            | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
        Ok(move_into_thread_name_spaces(process.as_fd(), namespaces)?)
    }

    /// Where its user namespace can be bound from.
    pub(super) fn user_namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/user", self.0.id()).into()
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It ends immediately; if waiting fails, only its entry in the process table remains.
        let _ = self.0.wait();
    }
}

/// Allocates ids for the sandbox in `dir` that no sandbox below `sandboxes` has.
pub(super) fn allocate(sandboxes: &Path, dir: &Path, uid: &PodUid) -> Result<IdRange, SandboxError> {
    let _guard = IDS.lock();
    let used: Vec<IdRange> = IDS.read_all(sandboxes)?.iter().filter_map(|text| IdRange::parse(text)).collect();
    let [users, groups] = SUBORDINATE_IDS.map(|path| read_subordinate_ids(Path::new(path)));
    let of_pods = SubordinateIds::parse(&users?, &groups?)
        .map_err(|source| SandboxError::SubordinateIds { uid: uid.clone(), source })?;
    let ids = limpet_model::user_namespace::allocate(&used, &of_pods);
    let ids = ids.ok_or_else(|| SandboxError::NoIds { uid: uid.clone() })?;
    IDS.write(dir, &ids.to_string())?;
    Ok(ids)
}

/// The content of a file of subordinate ids; empty if it does not exist.
fn read_subordinate_ids(path: &Path) -> Result<String, SandboxError> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_SUBORDINATE_IDS).read_to_end(&mut text));
    match read {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(SandboxError::path("read", path, error)),
        _ => Ok(String::from_utf8_lossy(&text).into_owned()),
    }
}

/// The ids of the sandbox in `dir`; `None` if it uses the host's.
pub(super) fn read(dir: &Path) -> Result<Option<IdRange>, SandboxError> {
    Ok(IDS.read(dir)?.and_then(|text| IdRange::parse(&text)))
}

/// Releases the ids of the sandbox in `dir`; missing ones count as success.
pub(super) fn release(dir: &Path) -> Result<(), SandboxError> {
    IDS.remove(dir)
}
