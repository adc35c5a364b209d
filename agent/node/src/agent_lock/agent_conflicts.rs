//! Detects other node agents: kubelets, by processes and ports, and programs that contain one.
//!
//! Only root's processes outside of pods count, because anybody can choose a name and a port.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fmt, fs};

use limpet_host::{cgroup, process_cgroup};

/// Process names (`/proc/<pid>/comm`, at most 15 bytes) of kubelet and of programs that contain it, and their common
/// names.
const AGENTS: &[(&str, &str)] = &[
    ("kubelet", "kubelet"),
    ("hyperkube", "kubelet (hyperkube)"),
    ("kubelite", "MicroK8s' kubelite"),
    ("k3s", "k3s"),
    ("k3s-server", "k3s"),
    ("k3s-agent", "k3s agent"),
    ("k0s", "k0s"),
    ("rke2", "RKE2"),
    ("edgecore", "KubeEdge's edgecore"),
];
/// The executables of these processes.
const EXECUTABLES: [&str; 7] = ["kubelet", "hyperkube", "kubelite", "k3s", "k0s", "rke2", "edgecore"];
/// The ports of kubelet's API, its read-only API and its health.
const PORTS: [u16; 3] = [10_250, 10_255, 10_248];
/// `TCP_LISTEN` in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Another agent, or a sign of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtherAgent {
    Process {
        agent: &'static str,
        pid: u32,
        /// Its command line, if it can be read.
        command: String,
    },
    /// A kubelet port in use, without a visible process that holds it.
    Port { port: u16 },
}

impl fmt::Display for OtherAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { agent, pid, command } if command.is_empty() => write!(f, "{agent}, pid {pid}"),
            Self::Process { agent, pid, command } => write!(f, "{agent}, pid {pid} ({command})"),
            Self::Port { port } => {
                write!(f, "a process that cannot be seen from here listens on kubelet's port {port}")
            }
        }
    }
}

/// A process as `/proc` shows it; `None` for what cannot be read.
#[derive(Debug, Clone, Default)]
struct Process {
    /// `/proc/<pid>/comm`.
    comm: String,
    executable: Option<String>,
    /// Its effective user.
    uid: Option<u32>,
    network: Option<String>,
    /// Whether it is in a pod's cgroup.
    in_pod: bool,
}

impl Process {
    fn read(pid: u32, comm: String, cgroup_root: &Path) -> Self {
        let link = |name: &str| {
            fs::read_link(format!("/proc/{pid}/{name}")).ok().map(|target| target.to_string_lossy().into_owned())
        };
        let cgroups = process_cgroup::cgroups(pid, None).unwrap_or_default();
        Self {
            comm,
            executable: link("exe"),
            uid: process_cgroup::effective_uid(pid).ok(),
            network: link("ns/net"),
            in_pod: cgroups.iter().any(|path| cgroup::owner(cgroup_root, path).is_some()),
        }
    }

    /// The agent that it is, if it belongs to this node. For root's processes, unknown facts count against it.
    fn agent(&self, own_network: Option<&str>) -> Option<&'static str> {
        let agent = agent(&self.comm)?;
        let executable = self.executable.as_deref().map(|path| path.strip_suffix(" (deleted)").unwrap_or(path));
        let executable = executable.and_then(|path| path.rsplit('/').next());
        // A node in a container, as kind creates them, has its own network namespace and is another node.
        let here = self.network.is_none() || self.network.as_deref() == own_network;
        let counts = self.uid == Some(0) && executable.is_none_or(|name| EXECUTABLES.contains(&name));
        (counts && here && !self.in_pod).then_some(agent)
    }
}

/// Searches for another agent on this node. `cgroup_root` is `cgroupRoot`, to recognize pods.
pub fn find(cgroup_root: &Path) -> Option<OtherAgent> {
    let own_network = fs::read_link("/proc/self/ns/net").ok().map(|target| target.to_string_lossy().into_owned());
    let mut sockets_seen = BTreeSet::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(comm) = fs::read_to_string(entry.path().join("comm")) else { continue };
        if agent(comm.trim_end()).is_none() {
            continue;
        }
        let process = Process::read(pid, comm.trim_end().to_owned(), cgroup_root);
        if let Some(agent) = process.agent(own_network.as_deref()) {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let command = command.trim().chars().take(200).collect();
            return Some(OtherAgent::Process { agent, pid, command });
        }
    }
    let listening = listening();
    if listening.is_empty() {
        return None;
    }
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            sockets(&entry.path(), &mut sockets_seen);
        }
    }
    // A port held by a process that is not an agent is ignored.
    let still = self::listening();
    let unseen = listening.iter().find(|socket| !sockets_seen.contains(&socket.1) && still.contains(socket));
    unseen.map(|(port, _)| OtherAgent::Port { port: *port })
}

fn agent(comm: &str) -> Option<&'static str> {
    AGENTS.iter().find(|(name, _)| *name == comm).map(|(_, agent)| *agent)
}

/// kubelet's ports that root uses in this network namespace, with their sockets' inodes.
fn listening() -> Vec<(u16, u64)> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    tables.iter().filter_map(|path| fs::read_to_string(path).ok()).flat_map(|table| listeners(&table)).collect()
}

fn listeners(table: &str) -> Vec<(u16, u64)> {
    let listener = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, uid, inode) = (fields.get(1)?, fields.get(3)?, fields.get(7)?, fields.get(9)?);
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (*state == LISTEN && *uid == "0" && PORTS.contains(&port)).then_some((port, inode.parse().ok()?))
    };
    table.lines().skip(1).filter_map(listener).collect()
}

/// Adds the sockets of a process, as far as visible.
fn sockets(process: &Path, into: &mut BTreeSet<u64>) {
    for descriptor in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
        let target = fs::read_link(descriptor.path()).ok();
        let inode = target.as_ref().and_then(|target| target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']'));
        into.extend(inode.and_then(|inode| inode.parse::<u64>().ok()));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};

    use limpet_tests::need;

    use super::*;

    #[test]
    fn only_an_agents_executable_that_root_runs_outside_of_pods_counts() {
        let kubelet = Process {
            comm: "kubelet".to_owned(),
            executable: Some("/usr/bin/kubelet".to_owned()),
            uid: Some(0),
            network: Some("net:[1]".to_owned()),
            in_pod: false,
        };
        let exe = |path: &str| Process { executable: Some(path.to_owned()), ..kubelet.clone() };
        let table = [
            ("a kubelet", kubelet.clone(), true),
            ("one whose file was replaced", exe("/usr/bin/kubelet (deleted)"), true),
            ("k3s' own", exe("/var/lib/rancher/k3s/data/1/bin/k3s"), true),
            ("root's, executable not readable", Process { executable: None, ..kubelet.clone() }, true),
            ("network not readable", Process { network: None, ..kubelet.clone() }, true),
            ("another program with that name", exe("/usr/bin/sleep"), false),
            ("a local user's", Process { uid: Some(1000), ..kubelet.clone() }, false),
            ("of an unknown user", Process { uid: None, ..kubelet.clone() }, false),
            ("a pod's", Process { in_pod: true, ..kubelet.clone() }, false),
            ("of another node", Process { network: Some("net:[2]".to_owned()), ..kubelet.clone() }, false),
            ("not an agent", Process { comm: "sleep".to_owned(), ..kubelet }, false),
        ];
        for (what, process, counts) in table {
            assert_eq!(process.agent(Some("net:[1]")).is_some(), counts, "{what}");
        }
    }

    /// A process whose executable is called `kubelet`, in its own network namespace, so that no agent on this machine
    /// takes it for a kubelet of its node.
    struct FakeKubelet {
        child: Child,
        _directory: tempfile::TempDir,
    }

    impl FakeKubelet {
        fn start(uid: u32) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("kubelet");
            fs::copy("/bin/sh", &path).unwrap();
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(directory.path(), open).unwrap();
            let mut command = Command::new("unshare");
            command.args(["--net", &format!("--setuid={uid}")]).arg(&path).args(["-c", "echo ready; read never"]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut ready = [0; 6];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
            Self { child, _directory: directory }
        }

        fn is_agent(&self) -> bool {
            let process = Process::read(self.child.id(), "kubelet".to_owned(), Path::new("/"));
            process.agent(process.network.as_deref()).is_some()
        }
    }

    impl Drop for FakeKubelet {
        fn drop(&mut self) {
            self.child.kill().and_then(|()| self.child.wait()).unwrap();
        }
    }

    #[test]
    fn a_local_users_kubelet_does_not_count_and_roots_does() {
        let Some(()) = need::root("other users' processes, network namespaces") else { return };
        assert!(!FakeKubelet::start(65_534).is_agent());
        assert!(FakeKubelet::start(0).is_agent());
    }

    #[test]
    fn agents_are_recognized_by_their_process_names() {
        for (comm, expected) in [
            ("kubelet", Some("kubelet")),
            ("k3s-server", Some("k3s")),
            ("kubelite", Some("MicroK8s' kubelite")),
            ("limpet", None),
            ("kubelet-exporte", None),
            ("containerd", None),
        ] {
            assert_eq!(agent(comm), expected, "{comm}");
        }
        assert!(AGENTS.iter().all(|(comm, _)| comm.len() <= 15));
    }

    #[test]
    fn only_roots_listeners_on_kubelets_ports_are_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:2808 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0\n\
            1: 0100007F:280A 00000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0\n\
            2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0\n\
            3: 00000000:280F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4714 1 0 100 0\n\
            4: 0100007F:280A 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4715 1 0 100 0\n\
            5: broken\n";
        assert_eq!(listeners(table), [(10_248, 4_711), (10_255, 4_714)]);
        assert_eq!(listeners(""), []);
    }

    #[test]
    fn the_sockets_of_a_process_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = format!(":{:04X}", listener.local_addr().unwrap().port());
        let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
        let line = table.lines().find(|line| line.contains(&port) && line.contains(" 0A ")).unwrap();
        let inode: u64 = line.split_whitespace().nth(9).unwrap().parse().unwrap();
        let mut held = BTreeSet::new();
        sockets(Path::new("/proc/self"), &mut held);
        assert!(held.contains(&inode));
    }
}
