//! What benches compare: the agent and, if requested, a real kubelet, on one containerd, in turns.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::agent::{self, Agent};
use crate::claim::Port;
use crate::cluster::Cluster;
use crate::cluster::kubelet_api::NodeAddress;
use crate::containerd::Containerd;
use crate::footprint::pids;
use crate::kubelet::Kubelet;
use crate::node::{NodeOptions, TestNode, containers, sweep};
use crate::podman::{PODMAN_VARIABLE, Podman};
use crate::{manifest, wait};

/// The variable with the kubelet to run beside the agent.
pub const KUBELET_VARIABLE: &str = "LIMPET_BENCH_KUBELET";

/// A node agent that runs the pods of a directory.
pub trait Contender {
    /// Its name in the results.
    fn name(&self) -> &'static str;
    /// The name of its Node in a cluster.
    fn node_name(&self) -> &str;
    /// The directory of its manifests.
    fn manifests(&self) -> PathBuf;
    /// Starts its process, without waiting for anything.
    fn spawn(&mut self) -> Result<()>;
    /// Starts it and waits until it responds.
    fn start(&mut self) -> Result<()>;
    /// Ends it like a service manager; its pods live on.
    fn stop(&mut self) -> Result<()>;
    /// Its process, while it runs.
    fn pid(&self) -> Option<u32>;
    /// The answer of its API to a GET of `path`.
    fn get(&self, path: &str) -> Result<Vec<u8>>;

    /// Writes the manifest of a pod.
    fn apply(&self, pod: &Value) -> Result<()> {
        let name = pod["metadata"]["name"].as_str().context("a manifest needs a name")?;
        manifest::put(&self.manifests(), &format!("{name}.yaml"), &pod.to_string())
    }

    /// Removes the manifest of the pod `name`.
    fn remove(&self, name: &str) -> Result<()> {
        let path = self.manifests().join(format!("{name}.yaml"));
        fs::remove_file(&path).with_context(|| format!("{}", path.display()))
    }

    /// The processes that keep its pods, by kind, if these are not an agent, loggers, shims and containerd.
    fn keepers(&self) -> Option<Vec<(&'static str, Vec<u32>)>> {
        None
    }

    /// The pods as its API shows them.
    fn pods(&self) -> Result<Vec<Value>> {
        let list: Value = serde_json::from_slice(&self.get("/pods")?).context("the answer to /pods")?;
        // kubelet returns null if there are none.
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }
}

impl Contender for Agent {
    fn name(&self) -> &'static str {
        "limpet"
    }

    fn node_name(&self) -> &str {
        &self.settings().node_name
    }

    fn manifests(&self) -> PathBuf {
        self.settings().manifests()
    }

    fn spawn(&mut self) -> Result<()> {
        Self::spawn(self)
    }

    fn start(&mut self) -> Result<()> {
        Self::start(self)
    }

    fn stop(&mut self) -> Result<()> {
        self.terminate().map(drop)
    }

    fn pid(&self) -> Option<u32> {
        Self::pid(self)
    }

    fn get(&self, path: &str) -> Result<Vec<u8>> {
        get(UnixStream::connect(self.settings().socket())?, path)
    }
}

impl Contender for Kubelet {
    fn name(&self) -> &'static str {
        "kubelet"
    }

    fn node_name(&self) -> &str {
        Self::name(self)
    }

    fn manifests(&self) -> PathBuf {
        Self::manifests(self)
    }

    fn spawn(&mut self) -> Result<()> {
        Self::spawn(self)
    }

    fn start(&mut self) -> Result<()> {
        Self::spawn(self)?;
        self.wait_ready()
    }

    fn stop(&mut self) -> Result<()> {
        Self::stop(self)
    }

    fn pid(&self) -> Option<u32> {
        Self::pid(self)
    }

    fn get(&self, path: &str) -> Result<Vec<u8>> {
        get(self.connect()?, path)
    }
}

impl Contender for Podman {
    fn name(&self) -> &'static str {
        "podman"
    }

    fn node_name(&self) -> &str {
        Self::name(self)
    }

    fn manifests(&self) -> PathBuf {
        Self::manifests(self)
    }

    fn spawn(&mut self) -> Result<()> {
        Ok(())
    }

    fn start(&mut self) -> Result<()> {
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        self.finish_commands()
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn get(&self, path: &str) -> Result<Vec<u8>> {
        bail!("Podman serves no {path}")
    }

    fn apply(&self, pod: &Value) -> Result<()> {
        Self::apply(self, pod)
    }

    fn remove(&self, name: &str) -> Result<()> {
        Self::remove(self, name)
    }

    fn keepers(&self) -> Option<Vec<(&'static str, Vec<u32>)>> {
        Some(Self::keepers(self))
    }

    fn pods(&self) -> Result<Vec<Value>> {
        Self::pods(self)
    }
}

/// The body of the answer, with a separate connection.
fn get(mut stream: impl Read + Write, path: &str) -> Result<Vec<u8>> {
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let ok = answer.get(9..12) == Some(b"200");
    ensure!(ok, "{path}: {}", String::from_utf8_lossy(&answer[..answer.len().min(200)]));
    let body = answer.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |at| at + 4);
    Ok(answer.split_off(body))
}

/// Writes the manifest of a pod.
pub fn apply(contender: &dyn Contender, pod: &Value) -> Result<()> {
    contender.apply(pod)
}

/// Removes the manifest of the pod `name`.
pub fn remove(contender: &dyn Contender, name: &str) -> Result<()> {
    contender.remove(name)
}

/// How many of the pods run with every container ready.
pub fn ready(pods: &[Value]) -> usize {
    let is_ready = |pod: &&Value| {
        let all = containers(pod);
        pod["status"]["phase"] == "Running" && !all.is_empty() && all.iter().all(|container| container["ready"] == true)
    };
    pods.iter().filter(is_ready).count()
}

/// Waits until the contender shows so many pods, all of them ready.
pub fn wait_ready(contender: &dyn Contender, count: usize) -> Result<()> {
    let what = format!("{count} ready pods of {}", contender.name());
    wait::until_true(wait::SOON * 3, &what, || {
        contender.pods().is_ok_and(|pods| pods.len() == count && ready(&pods) == count)
    })
}

/// Waits until nothing runs any more.
pub fn settle(contender: &dyn Contender, containerd: &Containerd) -> Result<()> {
    wait_ready(contender, 0)?;
    let what = format!("the end of all tasks of {}", contender.name());
    wait::until_true(wait::SOON * 3, &what, || containerd.tasks().is_ok_and(|tasks| tasks.is_empty()))
}

/// The processes that a contender and its pods need on a node with its files in `dir`, by kind.
pub fn processes(
    contender: &dyn Contender,
    containerd: &Containerd,
    dir: &Path,
) -> Result<Vec<(&'static str, Vec<u32>)>> {
    if let Some(keepers) = contender.keepers() {
        return Ok(keepers);
    }
    let agent = contender.pid().with_context(|| format!("{} does not run", contender.name()))?;
    let mut loggers = pids(dir, "limpet");
    loggers.retain(|pid| *pid != agent);
    Ok(vec![
        ("agent", vec![agent]),
        ("loggers", loggers),
        ("shims", pids(dir, "containerd-shim")),
        ("pause", containerd.pauses()?),
        ("containerd", containerd.pid().into_iter().collect()),
    ])
}

/// A node on which nothing runs yet, and the agents that will run pods on it.
#[derive(Debug)]
pub struct Stage {
    kubelet: Option<Kubelet>,
    podman: Option<Podman>,
    /// The address of their Nodes, in a cluster.
    address: Option<NodeAddress>,
    _ports: [Port; 3],
    /// The node; its agent is the first contender.
    pub node: TestNode,
}

impl Stage {
    /// Boots the node with a release build of the agent, and with the kubelet that the environment names.
    pub fn set() -> Result<Self> {
        let kubelet = std::env::var_os(KUBELET_VARIABLE).map(PathBuf::from);
        Self::boot(kubelet.is_some(), kubelet)
    }

    /// The same for a kubelet that the bench runs itself.
    pub fn set_with_cri() -> Result<Self> {
        Self::boot(true, None)
    }

    fn boot(cri: bool, kubelet: Option<PathBuf>) -> Result<Self> {
        wait::end_on_signal();
        sweep();
        let program = std::env::var_os(agent::PROGRAM_VARIABLE).map(PathBuf::from);
        let program = program.map_or_else(|| agent::build(&["--release"]), Ok)?;
        let ports = [Port::claim()?, Port::claim()?, Port::claim()?];
        let node = TestNode::boot(&NodeOptions {
            program: Some(program),
            agent: false,
            cni: true,
            cri,
            verbosity: 2,
            kubelet: every_listener(&ports),
            ..NodeOptions::default()
        })?;
        let kubelet = kubelet.map(|program| Kubelet::prepare(&program, &node)).transpose()?;
        let podman = std::env::var_os(PODMAN_VARIABLE).map(|_| Podman::prepare(&node)).transpose()?;
        Ok(Self { kubelet, podman, address: None, _ports: ports, node })
    }

    /// Makes them join the cluster at their next start, with that address of its apiserver and with the defaults of a
    /// kubelet.
    pub fn admit(&mut self, cluster: &Cluster, server: &str) -> Result<()> {
        let credentials = cluster.node_credentials_at(server, self.node.name())?;
        let address = NodeAddress::add()?;
        self.node.agent.reconfigure(|settings| {
            settings.flags.push(format!("--kubeconfig={}", credentials.display()));
            settings.limpet.push(format!("nodeIP: {}", address.address));
        })?;
        if let Some(kubelet) = &mut self.kubelet {
            kubelet.admit(cluster, &address)?;
            // Its API needs no password here, as without a cluster.
            kubelet.reconfigure(|configuration| configuration["address"] = "127.0.0.1".into())?;
            cluster.node_credentials_at(server, kubelet.name())?;
        }
        self.address = Some(address);
        Ok(())
    }

    /// Podman, if it is measured, too.
    pub fn podman(&self) -> Option<&Podman> {
        self.podman.as_ref()
    }

    /// The contenders, limpet first, and the containerd that they share.
    pub fn parts(&mut self) -> (Vec<&mut dyn Contender>, &Containerd) {
        let TestNode { containerd, agent, .. } = &mut self.node;
        let kubelet = self.kubelet.iter_mut().map(|kubelet| kubelet as &mut dyn Contender);
        let podman = self.podman.iter_mut().map(|podman| podman as &mut dyn Contender);
        (std::iter::once(agent as &mut dyn Contender).chain(kubelet).chain(podman).collect(), containerd)
    }

    /// Runs a measurement; if it fails, the error says what was going on.
    pub fn measure<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        act(self).map_err(|error| {
            let kubelet = self.kubelet.as_ref().map(Kubelet::log).unwrap_or_default();
            error.context(format!("{}--- kubelet's log\n{}", self.node.evidence(), crate::process::tail(&kubelet, 30)))
        })
    }

    /// Shuts it down and checks that nothing is left.
    pub fn finish(self) -> Result<()> {
        drop(self.kubelet);
        drop(self.podman);
        self.node.finish()
    }
}

/// All that the agent serves on a network; its sockets are open anyway.
fn every_listener([port, read_only, health]: &[Port; 3]) -> Vec<String> {
    vec![
        format!("address: 127.0.0.1\nport: {}\nreadOnlyPort: {}", port.number, read_only.number),
        format!(
            "healthzPort: {}\nauthentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}",
            health.number
        ),
        "authorization: {mode: AlwaysAllow}".to_owned(),
    ]
}
