//! A pod's user namespace (`hostUsers: false`): the ids that it is given, and the process that makes it.
//!
//! A process with threads cannot make a user namespace, so limpet's executable is started again for it ([`ARGUMENT`]).
//! It makes the pod's network, IPC and UTS namespaces with it, which belong to the user namespace then, and ends when
//! they are pinned. The agent maps the ids, enters those three and configures them as it does those of other pods.
//!
//! The file `ids` of a sandbox has its ids. They are the pod's from before its namespaces are made until they are gone.

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

/// The only argument that makes the executable the holder of new namespaces.
const ARGUMENT: &str = "pod-user-namespace";
/// Which users have which ranges of the node's ids.
const SUBORDINATE_IDS: [&str; 2] = ["/etc/subuid", "/etc/subgid"];
/// How much of such a file is read, in bytes.
const MAX_SUBORDINATE_IDS: u64 = 1 << 20;
/// The ids of sandboxes.
static IDS: AllocationFile = AllocationFile::new("ids");

/// Whether this process was started as a holder. Ask early in `main`, while there is one thread.
pub fn invoked() -> bool {
    std::env::args_os().skip(1).eq([ARGUMENT])
}

/// Makes the namespaces, reports that, and keeps them until the agent closes its end or ends itself.
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
    // The end of the pipe, however it comes.
    let _ = io::stdin().read_exact(&mut [0]);
    ExitCode::SUCCESS
}

/// The process that has made a pod's namespaces. When it is dropped, the process ends, and with it the namespaces that
/// are not pinned.
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
            // One write call: the kernel takes no second one.
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
        // It ends at once; if it cannot be waited for, only its entry in the process table remains.
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

/// The content of a file of subordinate ids; a missing one has none.
fn read_subordinate_ids(path: &Path) -> Result<String, SandboxError> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_SUBORDINATE_IDS).read_to_end(&mut text));
    match read {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(SandboxError::path("read", path, error)),
        _ => Ok(String::from_utf8_lossy(&text).into_owned()),
    }
}

/// The ids of the sandbox in `dir`; `None`: it uses the host's.
pub(super) fn read(dir: &Path) -> Result<Option<IdRange>, SandboxError> {
    Ok(IDS.read(dir)?.and_then(|text| IdRange::parse(&text)))
}

/// Releases the ids of the sandbox in `dir`; none is success.
pub(super) fn release(dir: &Path) -> Result<(), SandboxError> {
    IDS.remove(dir)
}
