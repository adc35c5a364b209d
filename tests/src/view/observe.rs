//! Runs the pods of the corpus under one node agent and collects their views.

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::mount::{MountFlags, MountPropagationFlags};
use serde_json::{Value, json};

use super::manifests::Case;
use super::normal::{self, Machine, Names};
use super::{View, Views, images, status};
use crate::contender::{self, Contender};
use crate::kubelet::Kubelet;
use crate::node::TestNode;
use crate::wait;

/// What is read from the agent, and where it stores what pods write.
#[derive(Debug)]
pub struct Stage {
    /// The node's own directory.
    pub dir: PathBuf,
    /// The name by which the agent knows the node.
    pub node_name: String,
    /// The directory of logs.
    pub logs: PathBuf,
    /// The cgroup of the agent's pods.
    pub cgroup: String,
    is_kubelet: bool,
}

impl Stage {
    /// The stage of the node's own agent.
    pub fn of_limpet(node: &TestNode) -> Self {
        let settings = node.agent.settings();
        Self {
            dir: node.dir().to_owned(),
            node_name: node.name().to_owned(),
            logs: settings.pod_logs(),
            cgroup: settings.cgroup.clone(),
            is_kubelet: false,
        }
    }

    /// The stage of a kubelet on `node`.
    pub fn of_kubelet(node: &TestNode, kubelet: &Kubelet) -> Self {
        Self {
            dir: node.dir().to_owned(),
            node_name: kubelet.name().to_owned(),
            logs: kubelet.pod_logs(),
            cgroup: format!("{}/kubelet", node.cgroup()),
            is_kubelet: true,
        }
    }

    /// A pod's manifest, with the values of this run.
    pub fn manifest(&self, case: &Case, machine: &Machine) -> Result<Value> {
        let dir = self.dir.display().to_string();
        let of_run = [("NODE_DIR", dir), ("MOST_MEMORY", most(machine.memory)), ("LOOPBACK", loopback())];
        let text = of_run.iter().fold(case.manifest.to_string(), |text, (name, value)| text.replace(name, value));
        Ok(serde_json::from_str(&text)?)
    }

    /// The lines that have to be in the status of a pod before it is compared.
    pub fn awaited<'a>(&self, case: &'a Case) -> &'a [String] {
        if self.is_kubelet { &case.until_of_kubelet } else { &case.until }
    }

    /// Puts a pod's manifest into place.
    fn apply(&self, case: &Case, agent: &dyn Contender, machine: &Machine) -> Result<()> {
        contender::apply(agent, &self.manifest(case, machine)?)
    }
}

/// More than half of so many bytes, as a quantity with only one spelling.
pub fn most(memory: u64) -> String {
    format!("{}Mi", most_mebibytes(memory))
}

fn most_mebibytes(memory: u64) -> u64 {
    (memory / 20 * 11) >> 20 | 1
}

/// An address of the loopback device that no other run uses, because pods on the node's network listen there.
fn loopback() -> String {
    let [_, second, third, last] = std::process::id().to_be_bytes();
    format!("127.{}.{third}.{last}", second | 64)
}

/// The files of the pods' cgroups that are checked from outside.
const POD_CGROUP: [&str; 5] = [
    "memory/memory.limit_in_bytes",
    "cpu/cpu.shares",
    "cpu/cpu.cfs_quota_us",
    "cpu/cpu.cfs_period_us",
    "pids/pids.max",
];

/// A seccomp profile on the node, which allows everything but chroot.
const PROFILE: &str =
    r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chroot"],"action":"SCMP_ACT_ERRNO"}]}"#;

/// The configuration of the agents for these pods.
pub fn settings() -> [(&'static str, Value); 5] {
    [
        ("maxPods", json!(400)),
        ("volumeStatsAggPeriod", json!("1s")),
        ("allowedUnsafeSysctls", json!(["net.core.*", "kernel.msg*"])),
        ("clusterDNS", json!(["192.0.2.20"])),
        ("clusterDomain", json!("cluster.test")),
    ]
}

/// Puts the images and the node's files into place; `root` is the agent's root directory.
pub fn prepare(node: &TestNode, root: &Path) -> Result<()> {
    let profiles = root.join("seccomp");
    fs::create_dir_all(&profiles)?;
    fs::write(profiles.join("no-chroot.json"), PROFILE)?;
    let [plain, user] = images()?;
    node.import(&[&plain, &user])?;
    // Mounts below this one are propagated to pods and from them.
    let shared = node.dir().join("shared");
    fs::create_dir_all(&shared)?;
    rustix::mount::mount("limpet-test", &shared, "tmpfs", MountFlags::empty(), c"size=1m").context("a shared mount")?;
    rustix::mount::mount_change(&shared, MountPropagationFlags::SHARED).context("a shared mount")?;
    let host = node.dir().join("host");
    fs::create_dir_all(host.join("directory/below"))?;
    fs::write(host.join("file"), "of the node\n")?;
    fs::write(host.join("directory/file"), "in a directory of the node\n")?;
    // The socket's file stays after its listener is dropped.
    std::os::unix::net::UnixListener::bind(host.join("socket"))?;
    Ok(())
}

/// Runs all `cases` at the same time until each has the state to compare. Returns their views, and the cases that did
/// not reach it in time.
pub fn observe(cases: &[Case], stage: &Stage, agent: &dyn Contender, limit: Duration) -> Result<(Views, Vec<String>)> {
    let machine = machine()?;
    let (mut later, mut at_once): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|case| case.after.is_some());
    // Pods with a deadline are created first, because their time starts with their creation.
    at_once.sort_by_key(|case| case.manifest["spec"]["activeDeadlineSeconds"].is_null());
    at_once.into_iter().try_for_each(|case| stage.apply(case, agent, &machine))?;
    let mut views = Views::new();
    let mut left: BTreeMap<&str, String> =
        cases.iter().map(|case| (case.name.as_str(), "not shown".to_owned())).collect();
    let mut failed = None;
    let done = wait::until_true(limit, "the views of all pods", || {
        let pods = agent.pods().unwrap_or_default();
        let shown = |name: &str| {
            let full_name = format!("{name}-{}", stage.node_name);
            pods.iter().find(move |pod| pod["metadata"]["name"] == full_name.as_str())
        };
        let runs = |name: &String| shown(name).is_some_and(|pod| pod["status"]["phase"] == "Running");
        let (due, waiting): (Vec<&Case>, _) = later.iter().partition(|case| case.after.as_ref().is_some_and(runs));
        later = waiting;
        failed = due.into_iter().find_map(|case| stage.apply(case, agent, &machine).err());
        for case in cases.iter().filter(|case| left.contains_key(case.name.as_str())).collect::<Vec<_>>() {
            let Some(pod) = shown(&case.name) else { continue };
            let names = names(pod, stage, &machine);
            let lines = status::lines(&pod["status"]).iter().map(|line| names.normal(line)).collect();
            match seen(case, pod, stage, &machine, &names, lines) {
                Ok(of_pod) => {
                    views.extend(of_pod);
                    left.remove(case.name.as_str());
                }
                Err(why) => drop(left.insert(&case.name, format!("{why:#}; status: {}", pod["status"]))),
            }
        }
        left.is_empty() || failed.is_some()
    });
    if let Some(error) = failed {
        return Err(error);
    }
    if wait::interrupted() {
        done?;
    }
    Ok((views, left.into_iter().map(|(name, why)| format!("{name}: {why}")).collect()))
}

/// All views of one pod, with the lines of its status; an error says what is still awaited.
pub fn seen(
    case: &Case,
    pod: &Value,
    stage: &Stage,
    machine: &Machine,
    names: &Names,
    lines: Vec<String>,
) -> Result<Views> {
    for until in stage.awaited(case) {
        lines.iter().find(|line| line.contains(until.as_str())).with_context(|| format!("no {until}"))?;
    }
    let viewers = case.viewers();
    let mut of_containers = Vec::new();
    for container in &viewers {
        let printed = log(pod, container, stage).filter(|text| text.contains("== end"));
        let printed = printed.with_context(|| format!("no view of {container}"))?;
        of_containers.push(normal::view(&printed, names, machine));
    }
    let runs = |name: &str| crate::node::container(pod, name)["state"]["running"].is_object();
    let mut with_state: Vec<_> =
        of_containers.iter_mut().zip(&viewers).map(|(view, name)| (view, runs(name))).collect();
    normal::name_namespaces(&mut with_state, machine);
    let named = viewers.iter().map(|container| format!("{}/{container}", case.name));
    let mut views: Views = named.zip(of_containers).collect();
    let mut of_pod = View::from([("status".to_owned(), lines)]);
    if !case.status_alone {
        of_pod.extend(cgroup(pod, stage).map(|lines| ("cgroup".to_owned(), lines)));
    }
    views.insert(case.name.clone(), of_pod);
    Ok(views)
}

/// The names for the parts of the pod's view that belong to this run.
pub fn names(pod: &Value, stage: &Stage, machine: &Machine) -> Names {
    let mut names = Names::default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    names.add(&stage.dir.display().to_string(), "NODE_DIR");
    names.add(&stage.node_name, "NODE");
    names.add(stage.cgroup.trim_start_matches('/'), "CGROUP");
    names.add(&text(&pod["metadata"]["uid"]), "UID");
    // The machine's first process, which a pod with `hostPID` sees.
    let init = fs::read("/proc/1/cmdline").unwrap_or_default();
    names.add(String::from_utf8_lossy(&init).replace('\0', " ").trim_end(), "HOST_INIT");
    let memory = machine.memory >> 10;
    names.add(&format!("{memory}k"), "NODE_MEMORY");
    names.add(&most(machine.memory), "MOST_MEMORY");
    names.add(&(most_mebibytes(machine.memory) << 20).to_string(), "MOST_MEMORY_BYTES");
    // The `evictionHard` of tests keeps 1 MiB free.
    names.add(&format!("{}k", memory.saturating_sub(1024)), "ALLOCATABLE_MEMORY");
    let host = text(&pod["status"]["hostIP"]);
    names.add(&host, "HOST_IP");
    names.add(&machine.address, "HOST_IP");
    for (list, name) in [("hostIPs", "HOST_IP"), ("podIPs", "POD_IP")] {
        for ip in pod["status"][list].as_array().into_iter().flatten() {
            names.add(&text(&ip["ip"]), name);
        }
    }
    names
}

/// The output of a container, without the log's own columns.
fn log(pod: &Value, container: &str, stage: &Stage) -> Option<String> {
    let text = |key: &str| pod["metadata"][key].as_str().map(str::to_owned);
    let dir = format!("{}_{}_{}", text("namespace")?, text("name")?, text("uid")?);
    let log = fs::read(stage.logs.join(dir).join(container).join("0.log")).ok()?;
    let log = String::from_utf8_lossy(&log).into_owned();
    let columns = |line: &str| Some(line.splitn(4, ' ').nth(3)?.trim_end_matches('\r').to_owned() + "\n");
    Some(log.lines().filter_map(columns).collect())
}

/// The pod's own cgroup, as the node sees it; `None` if it was removed.
fn cgroup(pod: &Value, stage: &Stage) -> Option<Vec<String>> {
    let uid = pod["metadata"]["uid"].as_str()?;
    let parents = ["", "/burstable", "/besteffort"].into_iter();
    let mut places = parents.map(|class| format!("{}/kubepods{class}/pod{uid}", stage.cgroup.trim_start_matches('/')));
    let root = Path::new("/sys/fs/cgroup");
    let place = places.find(|place| root.join("memory").join(place).is_dir())?;
    let mut lines: Vec<_> = POD_CGROUP
        .into_iter()
        .filter_map(|file| {
            let (controller, name) = file.split_once('/')?;
            let value = fs::read_to_string(root.join(controller).join(&place).join(name)).unwrap_or_default();
            Some(format!("{file} = {}", value.trim()))
        })
        .collect();
    let below = place.split_once("/kubepods").map_or("", |(_, below)| below);
    lines.push(format!("at /kubepods{}", below.replace(uid, "UID")));
    Some(lines)
}

/// The facts of this machine.
pub fn machine() -> Result<Machine> {
    let memory = rustix::system::sysinfo();
    let mut machine = Machine { memory: memory.totalram * u64::from(memory.mem_unit), ..Machine::default() };
    // Nothing is sent; the kernel only tells from which address it would be.
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    if socket.connect("192.0.2.1:9").is_ok() {
        machine.address = socket.local_addr()?.ip().to_string();
    }
    for entry in fs::read_dir("/proc/self/ns")? {
        let entry = entry?;
        let target = fs::read_link(entry.path())?;
        machine.namespaces.insert(entry.file_name().to_string_lossy().into_owned(), target.display().to_string());
    }
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    machine.limits = fs::read_to_string("/proc/self/limits")?.lines().map(squeezed).collect();
    Ok(machine)
}
