//! Everything that exists of pods anywhere on the node, compared with what the pods that the agent shows should have.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use limpet_tests::process::mentioning;
use limpet_tests::{TestNode, agent};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

type Names = BTreeSet<String>;

/// What the pods shown should have.
#[derive(Debug, Default)]
struct Due {
    uids: Names,
    /// The UIDs of those pods that should have a sandbox.
    sandboxes: Names,
    /// The UIDs of those pods that should have their own network.
    networks: Names,
    running: Names,
    /// The containers that have a record: the newest instance of each, and the last that ended.
    newest: Names,
    previous: Names,
}

/// The part of a container's id that is its pod's.
pub(crate) fn pod_digits(uid: &str) -> String {
    hex(&Sha256::digest(uid))[..32].to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Due {
    fn collect(node: &TestNode, pods: &[Value]) -> Result<Self> {
        let mut due = Self::default();
        for pod in pods {
            due.add(node, pod)?;
        }
        Ok(due)
    }

    fn add(&mut self, node: &TestNode, pod: &Value) -> Result<()> {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let status = &pod["status"];
        let finished = ["Succeeded", "Failed"].iter().any(|phase| status["phase"] == *phase);
        if !finished {
            self.sandboxes.insert(uid.clone());
            if pod["spec"]["hostNetwork"] != true {
                self.networks.insert(uid.clone());
            }
        }
        let statuses = ["initContainerStatuses", "containerStatuses"];
        for container in statuses.iter().flat_map(|list| status[list].as_array().into_iter().flatten()) {
            let (Some(name), Some(attempt)) = (container["name"].as_str(), container["restartCount"].as_u64()) else {
                continue;
            };
            let Some(id) = id_in(&container["containerID"]) else { continue };
            if container["state"]["running"].is_object() {
                self.running.insert(id.clone());
            }
            if attempt > 0 {
                // While a container waits for its next start, its last state is that of the newest instance.
                let last = id_in(&container["lastState"]["terminated"]["containerID"]).filter(|last| *last != id);
                self.previous.extend(last.map_or_else(|| another(node, &uid, name, &id), |last| Ok(Some(last)))?);
            }
            self.newest.insert(id);
        }
        self.uids.insert(uid);
        Ok(())
    }
}

fn id_in(text: &Value) -> Option<String> {
    text.as_str()?.strip_prefix("containerd://").map(str::to_owned)
}

/// The id of another container than `id` with that name and pod in containerd.
fn another(node: &TestNode, uid: &str, name: &str, id: &str) -> Result<Option<String>> {
    let filter = format!(r#"labels."io.kubernetes.pod.uid"=={uid},labels."io.kubernetes.container.name"=={name}"#);
    let ids = node.containerd.ctr(&["containers", "ls", "-q", &filter])?;
    Ok(ids.lines().find(|other| *other != id).map(str::to_owned))
}

/// What exists and should not, or does not exist and should; empty if all is well.
pub(crate) fn differences(node: &TestNode, pods: &[Value]) -> Result<Vec<String>> {
    let due = Due::collect(node, pods)?;
    let mut differences = Vec::new();
    let tasks = node.containerd.tasks()?;
    let running = tasks.iter().filter(|task| task.state == "RUNNING").map(|task| task.id.clone()).collect();
    compare("running tasks", &running, &due.running, &mut differences);
    let dead = tasks.iter().filter(|task| task.state != "RUNNING");
    differences.extend(dead.map(|task| format!("a task that does not run: {} {}", task.id, task.state)));
    let containers: Names = node.containerd.containers()?.into_iter().collect();
    differences.extend(due.newest.difference(&containers).map(|id| format!("no record of container {id}")));
    let known: Names = due.newest.union(&due.previous).cloned().collect();
    differences.extend(containers.difference(&known).map(|id| format!("a container of nobody's: {id}")));
    let snapshots = active_snapshots(node, &due.running)?;
    compare("active snapshots", &snapshots, &due.running, &mut differences);
    // containerd killed under the request to collect garbage, below, leaves a lease that `ctr` made for it.
    let leases = node.containerd.ctr(&["leases", "ls", "-q"])?;
    let leases_of_agent = leases.lines().filter(|lease| lease.starts_with("limpet-"));
    differences.extend(leases_of_agent.map(|lease| format!("a lease: {lease}")));
    on_disk(node, &due, &mut differences);
    processes(node, &due, &mut differences);
    Ok(differences)
}

/// The active snapshots. containerd collects those that nothing holds, which is triggered before one counts as left
/// over.
fn active_snapshots(node: &TestNode, due: &Names) -> Result<Names> {
    let look = || -> Result<Names> {
        let active = node.containerd.snapshots()?.into_iter().filter(|snapshot| snapshot.kind == "Active");
        Ok(active.map(|snapshot| snapshot.key).collect())
    };
    let first = look()?;
    if first.is_subset(due) {
        return Ok(first);
    }
    node.containerd.ctr(&["content", "prune", "references"])?;
    look()
}

/// Compares pins, network records, addresses, links, cgroups, volumes and logs.
fn on_disk(node: &TestNode, due: &Due, differences: &mut Vec<String>) {
    let settings = node.agent.settings();
    compare("sandboxes", &names(&settings.run().join("sandboxes")), &due.sandboxes, differences);
    compare("network records", &names(&settings.root().join("network")), &due.networks, differences);
    compare("pod directories", &names(&settings.root().join("pods")), &due.uids, differences);
    let groups = node.pod_cgroups();
    let pods = groups.keys().filter_map(|pod| pod.strip_prefix("pod").map(str::to_owned)).collect();
    compare("pod cgroups", &pods, &due.sandboxes, differences);
    let containers = groups.values().flat_map(|below| below.iter().cloned()).collect();
    compare("container cgroups", &containers, &due.running, differences);
    let Some(cni) = &node.cni else { return };
    let addresses = cni.allocated();
    if addresses.len() != due.networks.len() {
        differences.push(format!("addresses {addresses:?} for {} pods", due.networks.len()));
    }
    let links = names(&Path::new("/sys/class/net").join(cni.bridge()).join("brif"));
    if links.len() != due.networks.len() {
        differences.push(format!("links {links:?} for {} pods", due.networks.len()));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let place = format!("{}/", node.dir().display());
    let roots = mounts.lines().filter(|line| line.contains(&place) && line.contains("/rootfs ")).count();
    if roots != due.running.len() {
        differences.push(format!("{roots} root file systems are mounted for {} containers", due.running.len()));
    }
}

/// Compares processes: each running pod has a shim and no other has, and each container has a logger. Two shims may
/// share a pod: one whose start was interrupted removes its successor's socket when it ends, and the next start makes
/// another one.
fn processes(node: &TestNode, due: &Due, differences: &mut Vec<String>) {
    let pods: Names = due.running.iter().map(|id| id[32..].to_owned()).collect();
    let there = shims(&node.containerd.socket()).into_iter().map(|(_, id)| id[32..].to_owned()).collect();
    compare("shims of pods", &there, &pods, differences);
    let logged: Vec<String> = loggers(node.dir()).into_iter().map(|(_, id)| id).collect();
    let distinct: Names = logged.iter().cloned().collect();
    let none = Names::new();
    compare("loggers", &distinct, if agent::has_limpets_shim() { &none } else { &due.running }, differences);
    if distinct.len() != logged.len() {
        differences.push(format!("several loggers of one container: {logged:?}"));
    }
}

/// The shims of the node's pods, each with the id for which it was started.
pub(crate) fn shims(socket: &Path) -> Vec<(u32, String)> {
    let all = mentioning(&socket.display().to_string()).into_iter().filter(|pid| is_named(*pid, "containerd-shim"));
    all.filter_map(|pid| {
        let arguments = arguments(pid);
        // `containerd-shim … start` and `delete` are short-lived calls of the same program.
        if arguments.iter().any(|argument| argument == "start" || argument == "delete") {
            return None;
        }
        let id = arguments.iter().position(|argument| argument == "-id")?;
        Some((pid, arguments.get(id + 1)?.clone()))
    })
    .collect()
}

/// The loggers of the node's containers, each with its container's id.
pub(crate) fn loggers(dir: &Path) -> Vec<(u32, String)> {
    let place = format!("{}/", dir.display());
    let all = mentioning(&place).into_iter().filter(|pid| is_named(*pid, "limpet"));
    all.filter_map(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let id = environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(b"CONTAINER_ID="))?;
        Some((pid, String::from_utf8_lossy(id).into_owned()))
    })
    .collect()
}

fn is_named(pid: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with(name))
}

/// The processes of the program `name`.
pub(crate) fn named(name: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let comm = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pids.filter(|pid| comm(pid).trim_end() == name).collect()
}

/// A process's command line.
pub(crate) fn arguments(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

fn names(dir: &Path) -> Names {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let all = entries.filter_map(|entry| entry.file_name().into_string().ok());
    all.filter(|name| !name.starts_with('.')).collect()
}

fn compare(what: &str, there: &Names, due: &Names, differences: &mut Vec<String>) {
    differences.extend(there.difference(due).map(|name| format!("{what}: {name} is too many")));
    differences.extend(due.difference(there).map(|name| format!("{what}: {name} is missing")));
}

/// The runs that containers have noted, in the order in which they first did.
pub(crate) fn runs(file: &Path) -> Result<Vec<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("{}", file.display())),
    }
}
