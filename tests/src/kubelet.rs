//! A real kubelet on a node's containerd, which benches compare with the agent, with or without a cluster.
//!
//! It stays within the node's directory and cgroup. What it would write elsewhere (`/var/lib/kubelet`,
//! `/var/log/containers`, six settings of the kernel) is mounted over in its own mount namespace.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::mount::MountPropagationFlags;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::claim::Port;
use crate::cluster::Cluster;
use crate::cluster::kubelet_api::NodeAddress;
use crate::node::TestNode;
use crate::process::{Daemon, tail};
use crate::{tools, wait};

/// The name of its process. limpet refuses to start beside a process called kubelet, and others may be testing it on
/// this machine.
pub(crate) const PROGRAM: &str = "peer-kubelet";

/// What kubelet sets at its start. If it finds these values it writes nothing.
pub(crate) const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Starts kubelet. `$0` is its directory, and the arguments are kubelet's.
///
/// containerd has to see what it mounts in its root directory; all other mounts stay its own.
const START: &str = r#"set -e
while read -r _ _ _ _ path _; do
    [ "$path" = "$0/root" ] || mount --make-slave "$path" 2> /dev/null || true
done < /proc/self/mountinfo
mount --bind "$0/var-lib" /var/lib
mount --bind "$0/var-log" /var/log
while read -r setting; do mount --bind "$0/kernel/$setting" "/proc/sys/$setting"; done < "$0/settings"
exec "$0/peer-kubelet" "$@""#;

/// The daemon and its directories.
#[derive(Debug)]
pub struct Kubelet {
    dir: PathBuf,
    node_name: String,
    /// The port without authentication, and the one with.
    ports: [Port; 2],
    flags: Vec<String>,
    daemon: Option<Daemon>,
}

impl Kubelet {
    /// Writes the configuration of `program` on `node`, which needs the CRI plugin; nothing is started.
    pub fn prepare(program: &Path, node: &TestNode) -> Result<Self> {
        let dir = node.dir().join("kubelet");
        for name in ["manifests", "root", "logs", "plugins", "var-lib", "var-log"] {
            fs::create_dir_all(dir.join(name)).with_context(|| format!("{}", dir.display()))?;
        }
        share(&dir.join("root"))?;
        for (setting, value) in KERNEL_SETTINGS {
            let path = dir.join("kernel").join(setting);
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            fs::write(&path, format!("{value}\n")).with_context(|| format!("{}", path.display()))?;
        }
        let settings: String = KERNEL_SETTINGS.iter().map(|(setting, _)| format!("{setting}\n")).collect();
        fs::write(dir.join("settings"), settings)?;
        symlink(program, dir.join(PROGRAM)).with_context(|| format!("link {PROGRAM}"))?;
        let ports = [Port::claim()?, Port::claim()?];
        let cgroup = format!("{}/kubelet", node.cgroup());
        node.make_cgroup("kubelet")?;
        let configuration = configuration(&dir, node, &ports, &cgroup);
        fs::write(dir.join("config.yaml"), serde_json::to_vec_pretty(&configuration)?)?;
        Ok(Self { dir, node_name: format!("kubelet-{}", node.name()), ports, flags: Vec::new(), daemon: None })
    }

    /// Makes it ready to start again after [`TestNode::lose_power`].
    pub fn recover(&mut self, node: &TestNode) -> Result<()> {
        self.daemon = None;
        share(&self.root())?;
        node.make_cgroup("kubelet")
    }

    /// Makes it join the cluster at its next start, like kubeadm's nodes.
    pub fn admit(&mut self, cluster: &Cluster, address: &NodeAddress) -> Result<()> {
        self.reconfigure(|configuration| {
            configuration["address"] = json!(address.address);
            configuration["authentication"] =
                json!({ "anonymous": { "enabled": false }, "x509": { "clientCAFile": cluster.authority() } });
            configuration["authorization"] = json!({ "mode": "Webhook" });
        })?;
        let kubeconfig = cluster.node_credentials(&self.node_name)?;
        self.flags = vec![format!("--kubeconfig={}", kubeconfig.display()), format!("--node-ip={}", address.address)];
        Ok(())
    }

    /// Changes its configuration; the next start reads it.
    pub fn reconfigure(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let path = self.dir.join("config.yaml");
        let mut configuration: Value = serde_json::from_slice(&fs::read(&path)?)?;
        change(&mut configuration);
        fs::write(&path, serde_json::to_vec_pretty(&configuration)?).with_context(|| format!("{}", path.display()))
    }

    /// Makes it read this configuration at its next start.
    pub fn configure_by(&self, file: &Path) -> Result<()> {
        let copy = self.dir.join("config.yaml");
        fs::copy(file, &copy).map(drop).with_context(|| format!("{}", copy.display()))
    }

    /// The TLS port of its API.
    pub fn port(&self) -> u16 {
        self.ports[1].number
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.node_name
    }

    /// Fails once it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        match self.daemon.as_mut().map(Daemon::ended).transpose()?.flatten() {
            None => Ok(()),
            Some(status) => bail!("kubelet ended, {status}; its log ends with:\n{}", tail(&self.log(), 20)),
        }
    }

    /// Its manifest directory.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// Its root directory.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The directory of what pods write.
    pub fn pod_logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
    }

    /// Starts it; it may not answer yet.
    pub fn spawn(&mut self) -> Result<()> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "unchanged", "/bin/sh", "-c", START]).arg(&self.dir);
        for (flag, path) in [("--config", "config.yaml"), ("--root-dir", "root"), ("--cert-dir", "root/pki")] {
            command.arg(flag).arg(self.dir.join(path));
        }
        command.args(["--hostname-override", &self.node_name]).args(&self.flags);
        if let Ok(path) = std::env::join_paths(tools::search_path()) {
            command.env("PATH", path);
        }
        self.daemon = Some(Daemon::start(&mut command, &self.dir.join("kubelet.log"))?);
        Ok(())
    }

    /// Waits until it answers.
    pub fn wait_ready(&self) -> Result<()> {
        let answers = || wait::until(Duration::from_secs(120), "kubelet's answer", || self.connect().ok());
        answers().map(drop).with_context(|| format!("kubelet's log ends with:\n{}", tail(&self.log(), 15)))
    }

    /// A connection to its API.
    pub fn connect(&self) -> Result<TcpStream> {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[0].number)).context("connect to kubelet")
    }

    /// Ends it with SIGTERM; what it runs lives on.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        daemon.signal(Signal::TERM);
        daemon.wait(Duration::from_secs(30)).map(drop)
    }

    /// All it has logged.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.dir.join("kubelet.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Makes containerd see what is mounted below the root directory.
fn share(root: &Path) -> Result<()> {
    rustix::mount::mount_bind(root, root).context("bind the root directory")?;
    rustix::mount::mount_change(root, MountPropagationFlags::SHARED).context("share the root directory")
}

/// The defaults, except for directories and ports and for what this machine does not have or must not lose.
fn configuration(dir: &Path, node: &TestNode, [open, closed]: &[Port; 2], cgroup: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": dir.join("manifests"),
        "containerRuntimeEndpoint": format!("unix://{}", node.containerd.socket().display()),
        "podLogsDir": dir.join("logs"),
        "volumePluginDir": dir.join("plugins"),
        "resolvConf": node.agent.settings().resolv_conf(),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "address": "127.0.0.1",
        "port": closed.number,
        "readOnlyPort": open.number,
        "healthzPort": 0,
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        // The machine's filter rules, images and disk are not its own.
        "makeIPTablesUtilChains": false,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": { "memory.available": "1Mi" },
    })
}
