#![allow(clippy::unwrap_used)]
//! Tests with real sandboxes. They need root and are skipped without.

use std::fs::File;
use std::process::Command;

use limpet_tests::need;

use super::*;

fn root() -> bool {
    need::root("namespaces and mounts").is_some()
}

/// A run directory that is unmounted and removed with the test.
struct RunDir(tempfile::TempDir);

impl RunDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path().join("sandboxes"), rustix::mount::UnmountFlags::DETACH);
    }
}

fn request(uid: &PodUid) -> SandboxRequest<'_> {
    SandboxRequest {
        uid,
        host_network: false,
        host_ipc: false,
        share_processes: false,
        own_users: false,
        hostname: "web-0",
        sysctls: &[],
        shm_size: DEFAULT_SHM_SIZE,
        labelling: None,
    }
}

/// The output of `command` in the sandbox's namespaces.
fn inside(sandbox: &Sandbox, command: &[&str]) -> String {
    let mut nsenter = Command::new("nsenter");
    for (flag, pin) in
        [("--net", &sandbox.namespaces.network), ("--ipc", &sandbox.namespaces.ipc), ("--uts", &sandbox.namespaces.uts)]
    {
        if let Some(pin) = pin {
            nsenter.arg(format!("{flag}={}", pin.display()));
        }
    }
    let output = nsenter.args(command).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Whether an unprivileged user without groups cannot list `path`.
fn is_unused(path: &Path) -> bool {
    use std::os::unix::process::CommandExt as _;
    Command::new("ls").arg(path).uid(65_534).gid(65_534).output().unwrap().status.success()
}

#[tokio::test]
async fn no_other_user_of_the_node_reaches_a_pods_shared_memory() {
    if !root() {
        return;
    }
    let (run, uid) = (RunDir::new(), PodUid::new("shm"));
    let sandboxes_dir = run.0.path().join("sandboxes");
    // The directory as an earlier version has created it.
    std::fs::create_dir(&sandboxes_dir).unwrap();
    for dir in [run.0.path(), &sandboxes_dir] {
        std::fs::set_permissions(dir, Permissions::from_mode(0o711)).unwrap();
    }
    let sandboxes = Sandboxes::open(run.0.path()).await.unwrap();
    let sandbox = sandboxes.create(&request(&uid)).await.unwrap().sandbox;
    assert_eq!(std::fs::metadata(&sandbox.shm).unwrap().permissions().mode() & 0o7777, 0o1777);
    assert!(!is_unused(&sandbox.shm));
    sandboxes.remove(&uid).await.unwrap();
}

#[tokio::test]
async fn a_sandbox_is_configured_found_again_and_removed() {
    if !root() {
        return;
    }
    let run = RunDir::new();
    let sandboxes = Sandboxes::open(run.0.path()).await.unwrap();
    let uid = PodUid::new("uid-1");
    let sysctls =
        [("net.ipv4.tcp_syncookies".to_owned(), "0".to_owned()), ("kernel/shm_rmid_forced".to_owned(), "1".to_owned())];
    let request = SandboxRequest { sysctls: &sysctls, ..request(&uid) };
    assert_eq!(sandboxes.find(&request).await.unwrap(), None);

    let sandbox = sandboxes.create(&request).await.unwrap().sandbox;
    assert_eq!(sandbox.hostname, "web-0");
    assert_eq!(inside(&sandbox, &["hostname"]), "web-0");
    assert_eq!(inside(&sandbox, &["cat", "/proc/sys/net/ipv4/tcp_syncookies"]), "0");
    assert_eq!(inside(&sandbox, &["cat", "/proc/sys/kernel/shm_rmid_forced"]), "1");
    assert_eq!(inside(&sandbox, &["cat", "/proc/sys/net/ipv4/ping_group_range"]), "0\t2147483647");
    assert_eq!(inside(&sandbox, &["cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start"]), "0");
    assert!(inside(&sandbox, &["cat", "/proc/self/net/fib_trie"]).contains("127.0.0.1"), "lo has its address");
    let shm = rustix::fs::statfs(&sandbox.shm).unwrap();
    assert_eq!(shm.f_blocks * u64::try_from(shm.f_bsize).unwrap(), DEFAULT_SHM_SIZE);

    // After a restart of the agent, opening again changes nothing, and the existing sandbox is found.
    let again = Sandboxes::open(run.0.path()).await.unwrap();
    assert_eq!(again.find(&request).await.unwrap(), Some(sandbox));
    assert_eq!(again.list().await.unwrap(), std::slice::from_ref(&uid));
    again.remove(&uid).await.unwrap();
    again.remove(&uid).await.unwrap();
    assert_eq!(again.find(&request).await.unwrap(), None);
    assert_eq!(again.list().await.unwrap(), []);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(run.0.path().join("sandboxes/uid-1").to_str().unwrap()), "{mounts}");
}

#[tokio::test]
async fn the_agents_own_namespaces_do_not_change() {
    if !root() {
        return;
    }
    let run = RunDir::new();
    let here = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let sandboxes = Sandboxes::open(run.0.path()).await.unwrap();
    let uid = PodUid::new("uid-2");
    sandboxes.create(&request(&uid)).await.unwrap();
    assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), here);
    assert_eq!(std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), hostname);
    sandboxes.remove(&uid).await.unwrap();
}

#[tokio::test]
async fn host_namespaces_get_no_pin() {
    if !root() {
        return;
    }
    let run = RunDir::new();
    let sandboxes = Sandboxes::open(run.0.path()).await.unwrap();
    let uid = PodUid::new("uid-3");
    let request = SandboxRequest { host_network: true, host_ipc: true, ..request(&uid) };
    let sandbox = sandboxes.create(&request).await.unwrap().sandbox;
    assert_eq!(sandbox.namespaces, Namespaces::default());
    assert_eq!((sandbox.shm.as_path(), sandbox.hostname.as_str()), (Path::new("/dev/shm"), "web-0"));
    assert_eq!(sandboxes.find(&request).await.unwrap(), Some(sandbox));
    sandboxes.remove(&uid).await.unwrap();
    assert_eq!(sandboxes.find(&request).await.unwrap(), None);
}

#[tokio::test]
async fn an_incomplete_sandbox_is_not_found_and_is_created_again() {
    if !root() {
        return;
    }
    let run = RunDir::new();
    let sandboxes = Sandboxes::open(run.0.path()).await.unwrap();
    let uid = PodUid::new("uid-4");
    let sandbox = sandboxes.create(&request(&uid)).await.unwrap().sandbox;
    // Simulates an agent that crashed before the last pin was bound: a regular file in the namespace's place, and
    // message queues that are still mounted for labelling.
    let pin = sandbox.namespaces.network.clone().unwrap();
    let queues = pin.with_file_name(namespaces::MESSAGE_QUEUES);
    std::fs::create_dir(&queues).unwrap();
    rustix::mount::mount("mqueue", &queues, "mqueue", MountFlags::empty(), c"").unwrap();
    rustix::mount::unmount(&pin, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(sandboxes.find(&request(&uid)).await.unwrap(), None);
    let anew = sandboxes.create(&request(&uid)).await.unwrap().sandbox;
    assert!(anew.id.is_some() && anew.id != sandbox.id);
    assert_eq!(anew.namespaces, sandbox.namespaces);
    assert_eq!(sandboxes.find(&request(&uid)).await.unwrap(), Some(anew));
    sandboxes.remove(&uid).await.unwrap();
}

#[tokio::test]
async fn a_failed_sysctl_is_named_and_the_sandbox_is_removed() {
    if !root() {
        return;
    }
    let run = RunDir::new();
    let sandboxes = Sandboxes::open(run.0.path()).await.unwrap();
    let uid = PodUid::new("uid-5");
    let sysctls = [("net.ipv4.no_such_thing".to_owned(), "1".to_owned())];
    let error = sandboxes.create(&SandboxRequest { sysctls: &sysctls, ..request(&uid) }).await.unwrap_err();
    assert!(error.to_string().contains("cannot set sysctl net.ipv4.no_such_thing to \"1\""), "{error}");
    assert_eq!(sandboxes.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_namespace_lives_as_long_as_its_pin() {
    if !root() {
        return;
    }
    let run = RunDir::new();
    let sandboxes = Sandboxes::open(run.0.path()).await.unwrap();
    let uid = PodUid::new("uid-6");
    let sandbox = sandboxes.create(&request(&uid)).await.unwrap().sandbox;
    let held = File::open(sandbox.namespaces.network.as_ref().unwrap()).unwrap();
    // A busy sandbox can be removed too.
    sandboxes.remove(&uid).await.unwrap();
    drop(held);
    assert_eq!(sandboxes.list().await.unwrap(), []);
}
