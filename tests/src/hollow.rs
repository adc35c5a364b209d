//! Hollow nodes: a process that runs many nodes of a cluster, the pods that the cluster has for them, and what the
//! apiserver shows of that.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{Cluster, condition};
use crate::process::Daemon;

/// How many nodes a bench has; `cargo xtask bench` sets it.
pub const NODES_VARIABLE: &str = "LIMPET_BENCH_NODES";
/// The prefix of the nodes' names; a number follows.
const PREFIX: &str = "hollow";

/// The process.
#[derive(Debug)]
pub struct HollowNodes {
    daemon: Daemon,
    /// How many nodes it runs.
    pub count: usize,
}

impl HollowNodes {
    /// Starts that many nodes; `dir` is for their log and their databases.
    pub fn start(program: &Path, kubeconfig: &Path, count: usize, dir: &Path, flags: &[&str]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["--name-prefix", PREFIX, "--count", &count.to_string()]);
        command.arg("--kubeconfig").arg(kubeconfig).args(flags).env("TMPDIR", dir);
        Ok(Self { daemon: Daemon::start(&mut command, &dir.join("hollow.log"))?, count })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Asks it to end, and waits for that.
    pub fn stop(mut self) -> Result<()> {
        self.daemon.signal(Signal::TERM);
        let status = self.daemon.wait(Duration::from_secs(60))?;
        ensure!(status.success(), "the hollow nodes ended with {status}:\n{}", self.log());
        Ok(())
    }

    /// How many nodes the apiserver shows as ready, with leases that were renewed after `since`.
    pub fn ready(&self, cluster: &Cluster, since: &str) -> Result<usize> {
        ensure!(
            Path::new(&format!("/proc/{}/exe", self.pid())).exists(),
            "the hollow nodes have ended:\n{}",
            self.log()
        );
        let leases = cluster.list(&cached("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"))?;
        let renewed = |lease: &&Value| lease["spec"]["renewTime"].as_str().is_some_and(|time| time > since);
        let renewed: Vec<_> = leases.iter().filter(renewed).map(|lease| lease["metadata"]["name"].clone()).collect();
        let nodes = cluster.list(&cached("/api/v1/nodes"))?;
        let ready =
            |node: &&Value| condition(node, "Ready")["status"] == "True" && renewed.contains(&node["metadata"]["name"]);
        Ok(nodes.iter().filter(ready).count())
    }
}

/// Reads from the only apiserver's memory, so that looking does not disturb.
fn cached(path: &str) -> String {
    format!("{path}?resourceVersion=0")
}

/// A pod that is bound to the node of that number. `deadline` is after how many seconds its node ends it; `None` if
/// it keeps running.
pub fn bound_pod(node: usize, number: usize, deadline: Option<u64>) -> Value {
    let container = json!({
        "name": "main", "image": "registry.k8s.io/pause:3.10",
        "resources": { "requests": { "cpu": "1m", "memory": "1Mi" } },
    });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": format!("web-{node}-{number}"), "namespace": "default" },
        "spec": {
            "nodeName": format!("{PREFIX}-{node}"),
            "terminationGracePeriodSeconds": 5,
            "activeDeadlineSeconds": deadline,
            "containers": [container],
        },
    })
}

/// How many pods the apiserver shows in which state: `Running` counts only with every container ready.
pub fn states(cluster: &Cluster) -> Result<BTreeMap<String, usize>> {
    let mut states = BTreeMap::new();
    for pod in cluster.list(&cached("/api/v1/namespaces/default/pods"))? {
        let status = &pod["status"];
        let ready = condition(&pod, "Ready")["status"] == "True" && status["podIP"].is_string();
        let state = match (status["phase"].as_str().unwrap_or_default(), status["reason"].as_str()) {
            ("Running", _) if !ready => "Running, not ready".to_owned(),
            (phase, None) => phase.to_owned(),
            (phase, Some(reason)) => format!("{phase}: {reason}"),
        };
        *states.entry(state).or_default() += 1;
    }
    Ok(states)
}

/// What the apiserver has counted of requests since it started.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Requests {
    /// How many, including watches, by verb and resource.
    pub by_kind: BTreeMap<String, u64>,
    /// How many of these it has rejected because there were too many, or because it could not serve them yet.
    pub rejected: BTreeMap<String, u64>,
}

impl Requests {
    /// The current numbers.
    pub fn fetch(cluster: &Cluster) -> Result<Self> {
        Ok(Self::read(&cluster.text("/metrics").context("the apiserver's metrics")?))
    }

    fn read(text: &str) -> Self {
        let mut requests = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            // Counts are whole numbers, written as floating-point ones.
            let value = value.parse::<f64>().unwrap_or_default() as u64;
            let label = |name: &str| {
                let (_, rest) = series.split_once(&format!("{name}=\""))?;
                rest.split_once('"').map(|(value, _)| value.to_owned())
            };
            if series.starts_with("apiserver_request_total{") {
                let parts = ["verb", "resource", "subresource"].map(|name| label(name).unwrap_or_default());
                let kind = parts.join(" ").trim().to_owned();
                if label("code").as_deref() == Some("429") {
                    *requests.rejected.entry(kind.clone()).or_default() += value;
                }
                *requests.by_kind.entry(kind).or_default() += value;
            }
        }
        requests
    }

    /// The requests since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self { by_kind: grown(&self.by_kind, &before.by_kind), rejected: grown(&self.rejected, &before.rejected) }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.by_kind.values().sum()
    }
}

/// The growth of each number.
fn grown(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let grown = now.iter().map(|(name, count)| (name.clone(), count.saturating_sub(*before.get(name).unwrap_or(&0))));
    grown.filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind_and_those_turned_away_by_themselves() {
        let text = "# HELP apiserver_request_total …\n\
            apiserver_request_total{code=\"200\",verb=\"PATCH\",resource=\"pods\",subresource=\"status\"} 7\n\
            apiserver_request_total{code=\"429\",verb=\"LIST\",resource=\"pods\",subresource=\"\"} 1e+01\n\
            apiserver_flowcontrol_rejected_requests_total{reason=\"queue-full\"} 10\n";
        let requests = Requests::read(text);
        let rejected = BTreeMap::from([("LIST pods".to_owned(), 10)]);
        assert_eq!((requests.total(), &requests.rejected), (17, &rejected));
        let later = Requests::read(&text.replace("} 7", "} 9")).since(&requests);
        assert_eq!(later.by_kind, BTreeMap::from([("PATCH pods status".to_owned(), 2)]));
        assert!(later.rejected.is_empty(), "{later:?}");
    }
}
