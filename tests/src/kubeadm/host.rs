//! A machine within the machine, for programs that know only one place for their files. Its root is the machine's
//! own, with what it writes kept separately in memory, and it has its own network.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kubelet::{self, KERNEL_SETTINGS};
use crate::process::{self, Daemon, tail};
use crate::{TestNode, agent, image, tools, wait};
use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

/// How the kubelet of kubeadm's package is started, see its `10-kubeadm.conf`. `$0` is `limpet run`, or kubelet.
const UNIT: &str = "\
KUBELET_KUBECONFIG_ARGS='--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf'
KUBELET_CONFIG_ARGS='--config=/var/lib/kubelet/config.yaml'
. /var/lib/kubelet/kubeadm-flags.env
grep -q ^cgroupRoot /var/lib/kubelet/config.yaml || echo \"cgroupRoot: /$CGROUP$SETTINGS\" >> /var/lib/kubelet/config.yaml
exec $0 $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS --v=4";
/// What a kubelet needs besides kubeadm's configuration on a machine with cgroup v1.
const SETTINGS_OF_KUBELET: &str = "
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false";

/// The first process of the host, which makes its root and stays.
const INIT: &str = "\
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs \"$DIR/host\"
mkdir \"$DIR/host/upper\" \"$DIR/host/work\" \"$DIR/host/root\"
mount -t overlay overlay -o \"lowerdir=/,upperdir=$DIR/host/upper,workdir=$DIR/host/work\" \"$DIR/host/root\"
cd \"$DIR/host/root\"
for dir in proc sys dev \"${DIR#/}\"; do mkdir -p \"$dir\"; mount --rbind \"/$dir\" \"$dir\"; done
mount -t tmpfs tmpfs run
pivot_root . mnt
umount -l /mnt
mkdir -p /run/limpet /run/containerd /etc/cni/net.d /opt/cni/bin /var/log/pods /var/log/containers /var/lib/limpet
mount --bind \"$DIR/run\" /run/limpet
mount --bind \"$DIR/root\" /var/lib/limpet
mount --bind \"$DIR/ctd\" /run/containerd
mount --bind \"$CNI_CONFIG\" /etc/cni/net.d
mount --bind \"$CNI_PLUGINS\" /opt/cni/bin
ip link set lo up
echo 'nameserver 198.51.100.53' > /etc/resolv.conf
ip route add unreachable 198.51.100.53
printf '127.0.0.1 localhost\\n192.0.2.1 %s\\n' \"$NAME\" > /etc/hosts
echo 1 > /proc/sys/net/ipv4/ip_forward
echo ready
exec sleep infinity";

/// A node of the tests with its own host, and the agent that runs there as kubeadm's unit starts it.
pub struct Host<'a> {
    /// Its directories, its cgroup and its containerd.
    pub node: &'a mut TestNode,
    init: Daemon,
    agent: Option<Daemon>,
    /// Runs instead of limpet.
    kubelet: Option<PathBuf>,
    /// The address by which other hosts know it.
    pub address: &'static str,
}

impl<'a> Host<'a> {
    /// Makes a host for `node`, on which nothing runs yet, and starts containerd on it.
    pub fn boot(node: &'a mut TestNode, address: &'static str) -> Result<Self> {
        let dir = node.dir().to_owned();
        for name in ["host", "run", "root"] {
            fs::create_dir_all(dir.join(name))?;
        }
        let settings = node.agent.settings();
        let plugins = settings.cni_plugins.first().context("no CNI plugins")?;
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--net", "sh", "-c", INIT])
            .env("DIR", &dir)
            .env("NAME", node.name())
            .env("CNI_PLUGINS", plugins);
        command.env("CNI_CONFIG", &settings.cni_config);
        let init = Daemon::start(&mut command, &dir.join("init.log"))?;
        let ready = wait::until_true(wait::SOON, "the host", || init.log().contains("ready"));
        ready.with_context(|| init.log())?;
        let pid = init.pid();
        node.containerd.move_to_host_of(pid);
        node.containerd.start()?;
        Ok(Self { node, init, agent: None, kubelet: None, address })
    }

    /// Makes it run a real kubelet in place of limpet. kubelet finds the kernel's settings as it needs them, and
    /// writes none.
    pub fn use_kubelet(&mut self, program: &Path) -> Result<()> {
        let dir = self.node.dir().join("kubelet");
        for (setting, value) in KERNEL_SETTINGS {
            let path = dir.join(setting);
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            fs::write(&path, format!("{value}\n"))?;
            self.shell(&format!("mount --bind {} /proc/sys/{setting}", path.display()))?;
        }
        self.shell("mkdir -p /var/lib/kubelet && mount --bind /var/lib/kubelet /var/lib/kubelet")?;
        self.shell("mount --make-shared /var/lib/kubelet")?;
        self.node.make_cgroup("kubelet")?;
        self.node.import(&[&image::pause_image()?])?;
        let link = dir.join(kubelet::PROGRAM);
        symlink(program, &link)?;
        self.kubelet = Some(link);
        Ok(())
    }

    /// Gives its address to a host that is not linked to another.
    pub fn give_address(&self) -> Result<()> {
        self.shell("ip link add eth0 type veth peer name peer && ip link set peer up")?;
        self.add_address()
    }

    fn add_address(&self) -> Result<()> {
        let address = self.address;
        let script =
            format!("ip address add {address}/24 dev eth0; ip link set eth0 up; ip route add default dev eth0");
        self.shell(&script).map(drop)
    }

    /// Its first process.
    pub fn pid(&self) -> u32 {
        self.init.pid()
    }

    /// `program` on this host.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        process::entering(self.init.pid(), program.as_ref())
    }

    /// Runs a script on this host and returns what it printed.
    pub fn shell(&self, script: &str) -> Result<String> {
        process::checked(self.command("sh").args(["-c", script]))
    }

    /// kubectl on this host, as kubeadm's administrator.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let program = tools::kubernetes("kubectl").context("no kubectl; run: cargo xtask nightly kubeadm")?;
        process::checked(self.command(program).arg("--kubeconfig=/etc/kubernetes/admin.conf").args(args))
    }

    /// Applies an object, as kubeadm's administrator.
    pub fn apply(&self, object: &Value) -> Result<()> {
        let file = self.node.dir().join("object.json");
        fs::write(&file, object.to_string())?;
        self.kubectl(&["apply", "-f", &file.to_string_lossy()]).map(drop)
    }

    /// Runs kubeadm with these arguments and a file of these documents, and starts the agent as soon as kubeadm says
    /// that it would. kubeadm's preliminary checks are skipped, because a machine within a machine lacks what they
    /// look for: services, modules.
    pub fn kubeadm(&mut self, args: &[&str], documents: &[Value]) -> Result<()> {
        let file = self.node.dir().join("kubeadm.yaml");
        let documents: Vec<String> = documents.iter().map(ToString::to_string).collect();
        fs::write(&file, documents.join("\n---\n"))?;
        let log = self.node.dir().join("kubeadm.log");
        let mut kubeadm = Daemon::start(
            self.command(kubeadm()?).args(args).arg(&file).args(["--ignore-preflight-errors=all", "--v=1"]),
            &log,
        )?;
        let mut ended = false;
        let asked = wait::until_true(wait::SOON, "kubeadm's start of the node agent", || {
            ended = kubeadm.ended().is_ok_and(|status| status.is_some());
            ended || kubeadm.log().contains("[kubelet-start] Starting the kubelet")
        });
        asked.and_then(|()| self.start_agent()).with_context(|| tail(&kubeadm.log(), 40))?;
        let status = kubeadm.wait(4 * wait::SOON).with_context(|| tail(&kubeadm.log(), 40))?;
        ensure!(status.success(), "kubeadm: {status}: {}", tail(&kubeadm.log(), 60));
        Ok(())
    }

    /// Starts the agent with kubeadm's files and flags.
    pub fn start_agent(&mut self) -> Result<()> {
        let (program, cgroup, settings) = match &self.kubelet {
            None => (format!("{} run", agent::program()?.display()), self.node.cgroup().to_owned(), ""),
            Some(kubelet) => {
                (kubelet.display().to_string(), format!("{}/kubelet", self.node.cgroup()), SETTINGS_OF_KUBELET)
            }
        };
        let mut command = self.command("sh");
        command.args(["-c", UNIT, &program]).env("CGROUP", cgroup).env("SETTINGS", settings);
        command.env("PATH", std::env::join_paths(tools::search_path())?);
        self.agent = Some(Daemon::start(&mut command, &self.node.dir().join("agent.log"))?);
        Ok(())
    }

    /// Kills at once all that runs on the host except its first process, including containers and their shims.
    pub fn kill_everything(&mut self) -> Result<()> {
        self.agent = None;
        self.node.containerd.kill();
        wait::until_true(wait::SOON, "the end of all processes", || {
            let left = self.processes();
            left.iter().for_each(|pid| process::signal_pid(*pid, Signal::KILL));
            left.is_empty()
        })
    }

    /// The processes in the host's mount namespace, shims among them, and those of the node's containers.
    fn processes(&self) -> Vec<u32> {
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let (init, namespace_here) = (self.init.pid(), namespace(self.init.pid()));
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let here = pids.filter(|pid| namespace(*pid).is_some_and(|it| Some(it) == namespace_here));
        let lists =
            self.node.cgroups().into_iter().filter_map(|cgroup| fs::read_to_string(cgroup.join("cgroup.procs")).ok());
        let contained = lists.flat_map(|list| list.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>());
        here.chain(contained).filter(|pid| *pid != init).collect()
    }
}

/// The program.
pub fn kubeadm() -> Result<PathBuf> {
    tools::kubernetes("kubeadm").context("no kubeadm; run: cargo xtask nightly kubeadm")
}

/// Links two hosts, each of which gets a route to the pods of the other.
pub fn link(hosts: [&Host<'_>; 2]) -> Result<()> {
    let [first, two] = hosts.map(|host| host.init.pid().to_string());
    let name = format!("ltk{first}");
    let ip = |args: &[&str]| process::output("ip", args).map(drop);
    ip(&["link", "add", &name, "netns", &first, "type", "veth", "peer", "name", "eth0", "netns", &two])?;
    hosts[0].shell(&format!("ip link set {name} name eth0"))?;
    for (host, other) in [(hosts[0], hosts[1]), (hosts[1], hosts[0])] {
        let pods = other.node.cni.as_ref().context("no pod network")?.subnet();
        host.add_address()?;
        host.shell(&format!("ip route add {pods} via {}", other.address))?;
    }
    Ok(())
}
