//! Where situations take place: pods whose processes are recognized on the node, what the cluster shows of them, and
//! waits that are timed and may fail.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use limpet_tests::cluster::{Cluster, condition};
use limpet_tests::contender::Contender;
use limpet_tests::manifest::{self, IDLE, simple, with};
use limpet_tests::wire::Wire;
use limpet_tests::{process, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A wait that has taken this long has failed.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// More than anything takes that is not measured.
const SETUP_TIMEOUT: Duration = Duration::from_secs(300);
/// How often is looked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// What passes before a cause is so much longer in the next run, up to [`MAX_DELAY`]: causes meet what the contenders
/// repeat at any point of its period.
const DELAY_STEP: Duration = Duration::from_millis(2_700);
/// See [`DELAY_STEP`].
const MAX_DELAY: Duration = Duration::from_secs(12);
/// Where the pods of the apiserver are.
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
/// Where the ConfigMaps are.
pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// How long something took; `None`: it had not happened after [`WAIT_TIMEOUT`].
pub(crate) type Took = Option<Duration>;

/// One run with one contender.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) wire: &'a Wire,
    pub(crate) place: &'a ContenderInfo,
    /// Makes names of this run new.
    pub(crate) run: usize,
}

/// What of a contender does not change.
#[derive(Debug)]
pub(crate) struct ContenderInfo {
    who: &'static str,
    node: String,
    manifests: PathBuf,
}

impl ContenderInfo {
    pub(crate) fn new(contender: &dyn Contender) -> Self {
        Self { who: contender.name(), node: contender.node_name().to_owned(), manifests: contender.manifests() }
    }
}

/// A pod of this run.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    /// What its manifest calls it.
    name: String,
    namespace: String,
}

impl Scene<'_> {
    /// Lets at least `time` pass, in each run another.
    pub(crate) fn pass(&self, time: Duration) -> Result<()> {
        let more = DELAY_STEP.saturating_mul(self.run as u32).as_millis() % MAX_DELAY.as_millis();
        wait::pass(time + Duration::from_millis(more as u64))
    }

    /// The name of a pod or an object in this run.
    pub(crate) fn name(&self, pod: &str) -> String {
        format!("{pod}-{}-{}", self.place.who, self.run)
    }

    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.pod_in("default", name)
    }

    pub(crate) fn pod_in(&self, namespace: &str, name: &str) -> Pod {
        Pod { name: self.name(name), namespace: namespace.to_owned() }
    }

    /// That version of a pod as its manifest has it.
    pub(crate) fn manifest(&self, pod: &Pod, version: &str) -> Value {
        let text = simple(&pod.name, &format!(": {}; {IDLE}", mark(pod, version)));
        with(text, json!({ "metadata": { "namespace": pod.namespace } }))
    }

    /// Puts that version of a static pod into place.
    pub(crate) fn apply(&self, pod: &Pod, version: &str) -> Result<()> {
        self.put(pod, &self.manifest(pod, version))
    }

    pub(crate) fn put(&self, pod: &Pod, manifest: &Value) -> Result<()> {
        manifest::put(&self.place.manifests, &format!("{}.yaml", pod.name), &manifest.to_string())
    }

    /// Removes the manifest of a static pod.
    pub(crate) fn remove(&self, pod: &Pod) -> Result<()> {
        let path = self.place.manifests.join(format!("{}.yaml", pod.name));
        fs::remove_file(&path).with_context(|| format!("{}", path.display()))
    }

    /// Creates that version of a pod of the apiserver's, bound to the node.
    pub(crate) fn create(&self, pod: &Pod, version: &str) -> Result<()> {
        self.create_with(pod, version, json!({}))
    }

    /// The same with more in its manifest.
    pub(crate) fn create_with(&self, pod: &Pod, version: &str, more: Value) -> Result<()> {
        let bound = json!({ "spec": { "nodeName": self.place.node } });
        self.cluster.create(PODS, &with(with(self.manifest(pod, version), bound), more))
    }

    /// Where the apiserver has a pod of its own.
    pub(crate) fn path(&self, pod: &Pod) -> String {
        format!("{PODS}/{}", pod.name)
    }

    /// Where the apiserver has the mirror of a static pod.
    pub(crate) fn mirror(&self, pod: &Pod) -> String {
        format!("/api/v1/namespaces/{}/pods/{}-{}", pod.namespace, pod.name, self.place.node)
    }

    /// Where the apiserver has the Node.
    pub(crate) fn node(&self) -> String {
        format!("/api/v1/nodes/{}", self.place.node)
    }

    /// What the apiserver has at `path`.
    pub(crate) fn at(&self, path: &str) -> Option<Value> {
        self.cluster.get(path).ok().flatten()
    }

    /// Whether the Node is there and ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.at(&self.node()).is_some_and(|node| condition(&node, "Ready")["status"] == "True")
    }

    /// When the node's lease was renewed last.
    pub(crate) fn renewed(&self) -> Option<Value> {
        Some(self.at(&format!("{LEASES}/{}", self.place.node))?["spec"]["renewTime"].clone())
    }

    /// Lets the link through again and waits until the node has renewed its lease over it.
    pub(crate) fn recover(&self) -> Result<()> {
        let before = self.renewed();
        self.wire.join();
        until("a renewal of the lease", || self.renewed().is_some_and(|now| Some(now) != before))
    }

    /// Waits until a static pod runs and its mirror shows it; the mirror.
    pub(crate) fn wait_mirror(&self, pod: &Pod) -> Result<Value> {
        self.wait_shown(&self.mirror(pod))
    }

    /// Waits until the pod at `path` is shown as running and ready.
    pub(crate) fn wait_shown(&self, path: &str) -> Result<Value> {
        until(&format!("{path} as ready"), || self.at(path).is_some_and(|shown| is_running(&shown)))?;
        self.at(path).with_context(|| format!("{path} is gone"))
    }

    /// Takes a static pod away.
    pub(crate) fn end(&self, pod: &Pod, version: &str) -> Result<()> {
        self.remove(pod)?;
        until(&format!("the end of {}", pod.name), || processes(pod, version).is_empty())
    }

    /// Takes a pod of the apiserver's away.
    pub(crate) fn delete(&self, pod: &Pod) -> Result<()> {
        let path = self.path(pod);
        self.cluster.delete(&path)?;
        until(&format!("the end of {path}"), || self.cluster.get(&path).is_ok_and(|shown| shown.is_none()))
    }
}

/// Whether that is a pod that runs and is ready.
pub(crate) fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && condition(pod, "Ready")["status"] == "True"
}

/// What the command line of that version's process has, and of no other bench's that runs beside this one.
fn mark(pod: &Pod, version: &str) -> String {
    format!("of-{}:{}:{version}:", std::process::id(), pod.name)
}

/// The processes of that version of a pod.
pub(crate) fn processes(pod: &Pod, version: &str) -> Vec<u32> {
    process::mentioning(&mark(pod, version))
}

/// Whether that version of a pod runs.
pub(crate) fn runs(pod: &Pod, version: &str) -> bool {
    !processes(pod, version).is_empty()
}

/// Waits until that version of a pod runs.
pub(crate) fn wait_runs(pod: &Pod, version: &str) -> Result<()> {
    until(&format!("version {version} of {}", pod.name), || runs(pod, version))
}

/// Kills that version of a pod.
pub(crate) fn kill(pod: &Pod, version: &str) -> Result<()> {
    let pids = processes(pod, version);
    ensure!(!pids.is_empty(), "{} does not run", pod.name);
    pids.into_iter().for_each(|pid| process::signal_pid(pid, Signal::KILL));
    Ok(())
}

/// How long after `cause` the fact held first.
pub(crate) fn after(cause: Instant, fact: impl Fn() -> bool) -> Result<Took> {
    let [took] = all_after(cause, [&fact])?;
    Ok(took)
}

/// The same of several facts at once.
pub(crate) fn all_after<const N: usize>(cause: Instant, facts: [&dyn Fn() -> bool; N]) -> Result<[Took; N]> {
    let mut took = [None; N];
    while took.contains(&None) && cause.elapsed() < WAIT_TIMEOUT {
        for (took, fact) in took.iter_mut().zip(facts).filter(|(took, _)| took.is_none()) {
            *took = fact().then(|| cause.elapsed());
        }
        wait::pass(POLL_INTERVAL)?;
    }
    Ok(took)
}

/// Waits for what is not measured.
pub(crate) fn until(what: &str, fact: impl Fn() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !fact() {
        if begun.elapsed() > SETUP_TIMEOUT {
            bail!("{what}: waited in vain");
        }
        wait::pass(POLL_INTERVAL)?;
    }
    Ok(())
}
