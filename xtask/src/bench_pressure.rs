//! `cargo xtask bench pressure --emulated`: a node that runs short, by limpet and by a real kubelet on the same
//! emulated machine: who is ended, in which order, after how long, and what is left.
//!
//! Pods are those of a manifest directory, which kubelet never ends, and those of an apiserver, which runs on this
//! machine and is reached through the emulator. One installation is made and its memory kept; each scenario takes up
//! from there, with an agent that has just started. What a scenario leaves are lines, kept below
//! `target/bench/pressure`; the table is made of them.

mod record;
mod scenario;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::Cluster;
use limpet_tests::image::{self, PAUSE, V1};
use limpet_tests::sweep::Machines;
use limpet_tests::vm::{self, Boot, Disk, Guest};
use limpet_tests::{agent, wait};
use serde_json::{Value, json};

use self::record::{FILLED, Record};
pub(crate) use self::scenario::Scenario;
use self::scenario::{HIGH, HOG, NODE, PINNED, WATCH};
use crate::{dist, kubernetes, setup, vm_image};

/// The machine's memory, in MiB.
const MACHINE_MEMORY: u32 = 3_072;
/// How long a command may take on an emulated machine, which is slow.
const SHELL_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a scenario is watched at most, and how long after its last event, in ms. kubelet checks its images every 5
/// minutes.
const WATCH_LIMITS: (u32, u32) = (420_000, 40_000);
/// How long pods run before the hog begins, so that they are measured: kubelet measures every 10 to 15 s.
const SECONDS_BEFORE_HOG: u32 = 30;

/// Mounts the disks, starts containerd, and imports the images.
const INSTALL_SCRIPT: &str = "set -e
card=$(ls /sys/class/net | grep -v -x lo | head -n 1)
ip address add 10.0.2.15/24 dev \"$card\" && ip link set \"$card\" up
for disk in node:384 images:200; do
    name=${disk%:*}
    truncate -s \"${disk#*:}M\" \"/var/$name.img\"
    mkfs.ext4 -q -m 0 -O ^has_journal \"/var/$name.img\"
    mkdir -p \"/$name\" && mount -o loop \"/var/$name.img\" \"/$name\"
done
mkdir -p /etc/agent/manifests /node/logs /etc/containerd
echo 'nameserver 192.0.2.53' > /etc/resolv.conf
install -D /payload/deploy/10-limpet.conflist /etc/cni/net.d/10-limpet.conflist
systemctl stop containerd
cp /payload/containerd.toml /etc/containerd/config.toml
systemctl start containerd
ctr -n k8s.io images import /payload/images.tar > /dev/null
sync";

/// Who runs the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contender {
    Limpet,
    Kubelet,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Limpet => "limpet",
            Self::Kubelet => "kubelet",
        }
    }

    fn command(self) -> String {
        let program = match self {
            Self::Limpet => "/payload/limpet run",
            Self::Kubelet => "/payload/kubelet --root-dir /node/kubelet --cert-dir /node/kubelet/pki",
        };
        format!(
            "{program} --config /etc/agent/config.yaml --kubeconfig /payload/kubeconfig --hostname-override {NODE} --node-ip 10.0.2.15"
        )
    }
}

/// What to run.
#[derive(Debug)]
pub(crate) struct Options {
    /// The scenarios to run; empty for all.
    pub(crate) scenarios: Vec<Scenario>,
    /// Whether the executable for nodes runs, instead of the one for tests.
    pub(crate) dist: bool,
    /// The kubelet to measure as well.
    pub(crate) kubelet: Option<PathBuf>,
}

/// Runs the scenarios and prints the table of all that has been run so far.
pub(crate) fn run(options: &Options) -> Result<()> {
    setup::default()?;
    kubernetes::apiserver()?;
    let image = vm_image::ensure()?;
    let limpet = match std::env::var_os(agent::PROGRAM_VARIABLE) {
        Some(program) => program.into(),
        None if options.dist => dist::build()?,
        None => dist::for_tests()?,
    };
    let results = agent::workspace_dir().join("target/bench/pressure");
    fs::create_dir_all(&results).with_context(|| format!("{}", results.display()))?;
    wait::end_on_signal();
    let stage = Stage::set(image, &limpet, options.kubelet.as_deref())?;
    let scenarios = if options.scenarios.is_empty() { Scenario::ALL.to_vec() } else { options.scenarios.clone() };
    let kubelet = options.kubelet.is_some().then_some(Contender::Kubelet);
    for scenario in scenarios {
        for contender in [Some(Contender::Limpet), kubelet].into_iter().flatten() {
            eprintln!("{}: {}", scenario.title(), contender.name());
            let lines = stage.act(scenario, contender, &results)?;
            fs::write(results.join(file_name(scenario, contender)), lines)?;
        }
    }
    println!("{}", record::table(&records(&results)?)?);
    Ok(())
}

fn file_name(scenario: Scenario, contender: Contender) -> String {
    format!("{}-{}.lines", scenario.name(), contender.name())
}

/// The records of scenarios, of this run or an earlier one.
fn records(results: &Path) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for scenario in Scenario::ALL {
        for contender in [Contender::Limpet, Contender::Kubelet] {
            let path = results.join(file_name(scenario, contender));
            if path.is_file() {
                let lines = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
                let (scenario, who) = (scenario.title().to_owned(), contender.name().to_owned());
                records.push(Record { scenario, who, lines });
            }
        }
    }
    Ok(records)
}

/// A machine on which everything is installed and nothing runs, and an apiserver.
#[derive(Debug)]
struct Stage {
    image: PathBuf,
    dir: WorkDir,
    payload: PathBuf,
    base: Disk,
    cluster: Cluster,
}

/// A directory that is removed with the value.
#[derive(Debug)]
struct WorkDir(PathBuf);

impl Drop for WorkDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

impl Stage {
    fn set(image: PathBuf, limpet: &Path, kubelet: Option<&Path>) -> Result<Self> {
        let dir = WorkDir(Machines::Bench.dir());
        let (files, payload) = (dir.0.join("payload"), dir.0.join("payload.img"));
        fs::create_dir_all(&files)?;
        let cluster = Cluster::boot()?;
        cluster.add_account()?;
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": HIGH }, "value": 1_000,
        });
        cluster.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class)?;
        write_payload(&files, &payload, &cluster, limpet, kubelet)?;
        let disk = Disk::over_image(&image, &dir.0.join("base.qcow2"))?;
        let mut guest = Guest::boot(disk, &how(&image, &payload, &dir.0))?;
        guest.run(INSTALL_SCRIPT)?;
        guest.run(&format!("echo '{} kubernetes' >> /etc/hosts", vm::LOOPBACK))?;
        guest.run(&format!("sysctl -q kernel.threads-max={}", scenario::threads_max()))?;
        guest.run(&format!("ctr -n k8s.io images label {PINNED} io.cri-containerd.pinned=pinned"))?;
        let base = guest.keep()?;
        Ok(Self { image, dir, payload, base, cluster })
    }

    /// Runs one scenario. Returns its lines; the agent's log is saved in `results`.
    fn act(&self, scenario: Scenario, contender: Contender, results: &Path) -> Result<String> {
        let disk = self.base.copy(&self.dir.0.join("scenario.qcow2"))?;
        let mut guest = Guest::resume(disk, &how(&self.image, &self.payload, &self.dir.0))?;
        let lines = self.act_on(&mut guest, scenario, contender);
        let log = guest
            .attempt("journalctl -u agent -u containerd -n 20000 --no-pager -o short-precise; dmesg | tail -n 100");
        let log = log.map(|(_, log)| log).unwrap_or_default();
        fs::write(results.join(format!("{}.log", file_name(scenario, contender))), log)?;
        guest.power_cut();
        lines
    }

    fn act_on(&self, guest: &mut Guest, scenario: Scenario, contender: Contender) -> Result<String> {
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        guest.run(&format!("date -s @{seconds}"))?;
        self.clear()?;
        let [api, manifests] = scenario.pods();
        let (limit, quiet) = WATCH_LIMITS;
        let names = scenario.names().join(" ");
        guest.run(&format!("mkdir -p {WATCH}"))?;
        background(guest, &format!("bash /payload/observer {limit} {quiet} {HOG} {FILLED} {names}"))?;
        guest.until(SHELL_TIMEOUT, "the observer", &format!("test -e {WATCH}/ready"), |_| Some(()))?;
        for pod in &manifests {
            let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
            guest.run(&format!("cat > /etc/agent/manifests/{name}.yaml <<'END'\n{pod}\nEND"))?;
        }
        start(guest, scenario, contender)?;
        wait::until_true(SHELL_TIMEOUT, "the node in the cluster", || {
            let shown = self.cluster.get(&format!("/api/v1/nodes/{NODE}"));
            shown.is_ok_and(|node| node.is_some()) || wait::pass(Duration::from_secs(1)).is_err()
        })?;
        for pod in &api {
            self.cluster.create(PODS, pod)?;
        }
        let all = scenario.names();
        let ready = format!("sleep 1; cat {WATCH}/ready");
        guest.until(SHELL_TIMEOUT, "every pod", &ready, |lines| {
            all.iter().all(|name| lines.contains(&format!("began {name} "))).then_some(())
        })?;
        guest.run(&format!("sleep {SECONDS_BEFORE_HOG}"))?;
        let before = guest.run(scenario.left())?;
        if scenario == Scenario::Images {
            images_come_and_a_pod_ends(guest)?;
        } else {
            guest.run(&format!("touch {WATCH}/go"))?;
        }
        let over = format!("sleep 2; cat {WATCH}/lines");
        let lines = guest.until(SHELL_TIMEOUT, "the end of the scenario", &over, |lines| {
            lines.lines().any(|line| line.starts_with("over ")).then(|| lines.to_owned())
        })?;
        let after = guest.run(scenario.left())?;
        let left = format!("left {} (before: {})", after.trim(), before.trim());
        let all = [vec![lines.trim_end().to_owned(), left], self.reasons()?].concat();
        Ok(all.join("\n") + "\n")
    }

    /// Removes what an earlier scenario has left in the apiserver.
    fn clear(&self) -> Result<()> {
        self.cluster.delete(&format!("{PODS}?gracePeriodSeconds=0"))?;
        let node = format!("/api/v1/nodes/{NODE}");
        if self.cluster.get(&node)?.is_some() {
            self.cluster.delete(&node)?;
        }
        Ok(())
    }

    /// Lines about the pods that failed for another reason than an eviction, or that had such a container.
    fn reasons(&self) -> Result<Vec<String>> {
        let line = |pod: &Value| {
            let name = pod["metadata"]["name"].as_str()?.trim_end_matches(&format!("-{NODE}")).to_owned();
            let container = &pod["status"]["containerStatuses"][0];
            let ended = ["state", "lastState"].map(|state| container[state]["terminated"]["reason"].as_str());
            let reason = pod["status"]["reason"].as_str().or(ended.into_iter().flatten().next())?;
            (reason != "Evicted").then(|| format!("reason {name} {reason}"))
        };
        Ok(self.cluster.list(PODS)?.iter().filter_map(line).collect())
    }
}

const PODS: &str = "/api/v1/namespaces/default/pods";

fn how<'a>(image: &'a Path, payload: &'a Path, dir: &'a Path) -> Boot<'a> {
    Boot { memory: MACHINE_MEMORY, network: true, ..Boot::new(image, payload, dir) }
}

/// Writes the configuration of the contender and starts it.
fn start(guest: &mut Guest, scenario: Scenario, contender: Contender) -> Result<()> {
    let settings = json!({
        "apiVersion": "limpet.dev/v1beta1",
        "kind": "LimpetConfiguration",
        "rootDirectory": "/node/limpet",
        "runDirectory": "/run/limpet",
    });
    let mut configuration = scenario.configuration().to_string();
    if contender == Contender::Limpet {
        configuration.push_str(&format!("\n---\n{settings}"));
    }
    guest.run(&format!("cat > /etc/agent/config.yaml <<'END'\n{configuration}\nEND"))?;
    let properties =
        ["KillMode=process", "Delegate=yes", "TasksMax=infinity", "OOMScoreAdjust=-999", "LimitNOFILE=65536"];
    let properties: String = properties.iter().map(|property| format!("-p {property} ")).collect();
    guest.run(&format!("systemd-run --unit=agent {properties} {}", contender.command())).map(drop)
}

/// Has `first` end, imports two images that no pod uses, and has `second` end when the store is above its threshold.
fn images_come_and_a_pod_ends(guest: &mut Guest) -> Result<()> {
    let ended = |name: &str| format!("sleep 1; cat {WATCH}/ready | grep -c 'ended {name} '");
    guest.run("rm /etc/agent/manifests/first.yaml")?;
    guest.until(SHELL_TIMEOUT, "the end of a pod", &ended("first"), |_| Some(()))?;
    guest.run("ctr -n k8s.io images import /payload/more.tar > /dev/null")?;
    let (limit, quiet) = WATCH_LIMITS;
    background(guest, &format!("bash /payload/watch-images {limit} {quiet}"))?;
    guest.until(SHELL_TIMEOUT, "the first look at the images", &format!("test -s {WATCH}/before"), |_| Some(()))?;
    guest.run("rm /etc/agent/manifests/second.yaml").map(drop)
}

/// Runs a command in the background of the shell.
fn background(guest: &mut Guest, command: &str) -> Result<()> {
    guest.run(&format!("setsid {command} < /dev/null > /dev/null 2>&1 &")).map(drop)
}

/// Writes everything that a scenario needs on the machine.
fn write_payload(files: &Path, payload: &Path, cluster: &Cluster, limpet: &Path, kubelet: Option<&Path>) -> Result<()> {
    fs::copy(limpet, files.join("limpet"))?;
    if let Some(kubelet) = kubelet {
        ensure!(kubelet.is_file(), "{} is not a kubelet", kubelet.display());
        fs::copy(kubelet, files.join("kubelet"))?;
    }
    fs::create_dir_all(files.join("deploy"))?;
    let conflist = "deploy/10-limpet.conflist";
    fs::copy(agent::workspace_dir().join(conflist), files.join(conflist))?;
    fs::write(files.join("observer"), include_str!("bench_pressure/observer.sh"))?;
    fs::write(files.join("watch-images"), include_str!("bench_pressure/images.sh"))?;
    let containerd = format!(
        "version = 2\nroot = \"/images/containerd\"\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"{PAUSE}\"\n"
    );
    fs::write(files.join("containerd.toml"), containerd)?;
    let [first, more] = scenario::images()?;
    let (demo, pause) = (image::demo_images()?, image::pause_image()?);
    let demo = demo.iter().filter(|image| image.name == V1);
    let first: Vec<_> = demo.chain([&pause]).chain(&first).collect();
    image::write_oci_archive(&first, &files.join("images.tar"))?;
    image::write_oci_archive(&more.iter().collect::<Vec<_>>(), &files.join("more.tar"))?;
    write_credentials(files, cluster)?;
    vm::write_payload(files, payload)?;
    fs::remove_dir_all(files).context("clear the payload directory")
}

/// Writes the node's kubeconfig, with its certificate beside it.
fn write_credentials(files: &Path, cluster: &Cluster) -> Result<()> {
    let server = format!("https://kubernetes:{}", cluster.port());
    let path = cluster.node_credentials_at(&server, NODE)?;
    let mut kubeconfig: Value = serde_json::from_slice(&fs::read(&path)?)?;
    let parts = [
        ("/clusters/0/cluster/certificate-authority", "ca.crt"),
        ("/users/0/user/client-certificate", "node.crt"),
        ("/users/0/user/client-key", "node.key"),
    ];
    for (pointer, name) in parts {
        let named = kubeconfig.pointer_mut(pointer).with_context(|| format!("no {pointer} in {}", path.display()))?;
        let from = named.as_str().context("a file name is not UTF-8")?.to_owned();
        fs::copy(&from, files.join(name)).with_context(|| from.clone())?;
        *named = json!(format!("/payload/{name}"));
    }
    fs::write(files.join("kubeconfig"), kubeconfig.to_string()).context("the node's kubeconfig")
}
