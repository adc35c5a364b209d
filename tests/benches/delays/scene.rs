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
/// A limit that nothing reaches that is not measured.
const SETUP_TIMEOUT: Duration = Duration::from_secs(300);
/// The interval between observations.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// By how much longer the pause before a cause is in the next run, up to [`MAX_DELAY`], so that causes meet the
/// contenders' timers at any point of their period.
const DELAY_STEP: Duration = Duration::from_millis(2_700);
/// See [`DELAY_STEP`].
const MAX_DELAY: Duration = Duration::from_secs(12);
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// How long something took; `None` if it had not happened after [`WAIT_TIMEOUT`].
pub(crate) type Took = Option<Duration>;

/// One run with one contender.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) wire: &'a Wire,
    pub(crate) place: &'a ContenderInfo,
    /// The number of the run, which makes its names new.
    pub(crate) run: usize,
}

/// The facts about a contender that do not change.
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
    /// Its name in the manifest.
    name: String,
    namespace: String,
}

impl Scene<'_> {
    /// Lets at least `time` pass; how much more differs from run to run.
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

    /// The manifest of a version of a pod.
    pub(crate) fn manifest(&self, pod: &Pod, version: &str) -> Value {
        let text = simple(&pod.name, &format!(": {}; {IDLE}", mark(pod, version)));
        with(text, json!({ "metadata": { "namespace": pod.namespace } }))
    }

    /// Writes the manifest of a version of a static pod.
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

    /// Creates a version of a pod of the apiserver, bound to the node.
    pub(crate) fn create(&self, pod: &Pod, version: &str) -> Result<()> {
        self.create_with(pod, version, json!({}))
    }

    /// Creates such a pod with `more` in its manifest.
    pub(crate) fn create_with(&self, pod: &Pod, version: &str, more: Value) -> Result<()> {
        let bound = json!({ "spec": { "nodeName": self.place.node } });
        self.cluster.create(PODS, &with(with(self.manifest(pod, version), bound), more))
    }

    /// The path of one of the apiserver's own pods.
    pub(crate) fn path(&self, pod: &Pod) -> String {
        format!("{PODS}/{}", pod.name)
    }

    /// The path of the mirror of a static pod.
    pub(crate) fn mirror(&self, pod: &Pod) -> String {
        format!("/api/v1/namespaces/{}/pods/{}-{}", pod.namespace, pod.name, self.place.node)
    }

    /// The path of the Node.
    pub(crate) fn node(&self) -> String {
        format!("/api/v1/nodes/{}", self.place.node)
    }

    /// The apiserver's object at `path`.
    pub(crate) fn at(&self, path: &str) -> Option<Value> {
        self.cluster.get(path).ok().flatten()
    }

    /// Whether the Node exists and is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.at(&self.node()).is_some_and(|node| condition(&node, "Ready")["status"] == "True")
    }

    /// The time of the last renewal of the node's lease.
    pub(crate) fn renewed(&self) -> Option<Value> {
        Some(self.at(&format!("{LEASES}/{}", self.place.node))?["spec"]["renewTime"].clone())
    }

    /// Lets the link through again and waits until the node has renewed its lease over it.
    pub(crate) fn recover(&self) -> Result<()> {
        let before = self.renewed();
        self.wire.join();
        until("a renewal of the lease", || self.renewed().is_some_and(|now| Some(now) != before))
    }

    /// Waits until a static pod runs and its mirror shows it. Returns the mirror.
    pub(crate) fn wait_mirror(&self, pod: &Pod) -> Result<Value> {
        self.wait_shown(&self.mirror(pod))
    }

    /// Waits until the pod at `path` is shown as running and ready.
    pub(crate) fn wait_shown(&self, path: &str) -> Result<Value> {
        until(&format!("{path} as ready"), || self.at(path).is_some_and(|shown| is_running(&shown)))?;
        self.at(path).with_context(|| format!("{path} is gone"))
    }

    /// Removes a static pod, and waits for its end.
    pub(crate) fn end(&self, pod: &Pod, version: &str) -> Result<()> {
        self.remove(pod)?;
        until(&format!("the end of {}", pod.name), || processes(pod, version).is_empty())
    }

    /// Deletes a pod of the apiserver, and waits for its end.
    pub(crate) fn delete(&self, pod: &Pod) -> Result<()> {
        let path = self.path(pod);
        self.cluster.delete(&path)?;
        until(&format!("the end of {path}"), || self.cluster.get(&path).is_ok_and(|shown| shown.is_none()))
    }
}

/// Whether the pod runs and is ready.
pub(crate) fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && condition(pod, "Ready")["status"] == "True"
}

/// A part of the command line of a version's process that no other bench has that runs at the same time.
fn mark(pod: &Pod, version: &str) -> String {
    format!("of-{}:{}:{version}:", std::process::id(), pod.name)
}

/// The processes of a version of a pod.
pub(crate) fn processes(pod: &Pod, version: &str) -> Vec<u32> {
    process::mentioning(&mark(pod, version))
}

pub(crate) fn runs(pod: &Pod, version: &str) -> bool {
    !processes(pod, version).is_empty()
}

pub(crate) fn wait_runs(pod: &Pod, version: &str) -> Result<()> {
    until(&format!("version {version} of {}", pod.name), || runs(pod, version))
}

/// Kills the processes of a version of a pod.
pub(crate) fn kill(pod: &Pod, version: &str) -> Result<()> {
    let pids = processes(pod, version);
    ensure!(!pids.is_empty(), "{} does not run", pod.name);
    pids.into_iter().for_each(|pid| process::signal_pid(pid, Signal::KILL));
    Ok(())
}

/// How long after `cause` the fact first held.
pub(crate) fn after(cause: Instant, fact: impl Fn() -> bool) -> Result<Took> {
    let [took] = all_after(cause, [&fact])?;
    Ok(took)
}

/// How long after `cause` each of several facts first held.
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
