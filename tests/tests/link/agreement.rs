//! Whether the cluster's view of a node is the node's own, and whether anything was restarted.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use limpet_tests::cluster::{Cluster, condition, node_path, wait_at};
use limpet_tests::node::containers;
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

use super::PODS;

/// How long node and cluster may need to agree: longer than any pause between attempts.
const AGREEMENT_TIMEOUT: Duration = Duration::from_secs(120);

/// The container ids of some pods, with how often each was restarted.
#[derive(Debug, PartialEq)]
pub(crate) struct Running(BTreeMap<String, Vec<(String, Value, Value)>>);

impl Running {
    /// Observes the containers of the pods with these names in the manifests.
    pub(crate) fn observe(node: &TestNode, pods: &[&str]) -> Result<Self> {
        let of_pod = |name: &&str| {
            let pod = node.wait_running(name)?;
            let container_of = |status: &Value| {
                let name = status["name"].as_str().unwrap_or_default().to_owned();
                (name, status["containerID"].clone(), status["restartCount"].clone())
            };
            Ok(((*name).to_owned(), containers(&pod).iter().map(container_of).collect()))
        };
        Ok(Self(pods.iter().map(of_pod).collect::<Result<_>>()?))
    }

    /// Fails if one of the containers is another one, or was restarted.
    pub(crate) fn check(&self, node: &TestNode) -> Result<()> {
        let names: Vec<&str> = self.0.keys().map(String::as_str).collect();
        let now = Self::observe(node, &names)?;
        ensure!(*self == now, "restarted: before {self:?}, now {now:?}");
        Ok(())
    }
}

/// Waits until the cluster's view is the node's: it is ready, its lease is renewed, its `pods` pods and their statuses
/// are the same, and nothing is unsent.
pub(crate) fn wait_agreement(node: &TestNode, cluster: &Cluster, pods: usize) -> Result<()> {
    wait::until_none(AGREEMENT_TIMEOUT, "a difference between the cluster and the node", || {
        let mut differing = differences(node, cluster)?;
        let count = node.pods()?.len();
        if count != pods {
            differing.push(format!("{count} pods on the node, not {pods}"));
        }
        Ok(differing)
    })?;
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", node.name());
    let first = wait_at(cluster, &lease, "there", |_| true)?;
    wait_at(cluster, &lease, "renewed", |now| now["spec"]["renewTime"] != first["spec"]["renewTime"]).map(drop)
}

fn differences(node: &TestNode, cluster: &Cluster) -> Result<Vec<String>> {
    let mut differing = Vec::new();
    let shown = cluster.get(&node_path(node))?.unwrap_or_default();
    if condition(&shown, "Ready")["status"] != "True" {
        differing.push(format!("the node is not ready: {}", shown["status"]["conditions"]));
    }
    let status: Value = serde_json::from_str(&node.agent.cli(&["status", "-o", "json"])?.stdout)?;
    let unsent = &status["apiserver"]["unsent"];
    if *unsent != json!({ "statuses": 0, "mirrors": 0, "events": 0 }) {
        differing.push(format!("unsent: {unsent}"));
    }
    let list = cluster.list(&format!("{PODS}?fieldSelector=spec.nodeName={}", node.name()))?;
    let mut theirs: BTreeMap<String, Value> = list.into_iter().map(|pod| (name(&pod), pod)).collect();
    for pod in node.pods()? {
        match theirs.remove(&name(&pod)) {
            None => differing.push(format!("the cluster lacks {}", name(&pod))),
            Some(shown) => differing.extend(differences_of(&pod, &shown)),
        }
    }
    differing.extend(theirs.into_keys().map(|name| format!("the node lacks {name}")));
    Ok(differing)
}

fn name(pod: &Value) -> String {
    pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// How the node's own view of a pod differs from the cluster's.
fn differences_of(pod: &Value, shown: &Value) -> Vec<String> {
    let uid = &pod["metadata"]["uid"];
    let mirror = &shown["metadata"]["annotations"]["kubernetes.io/config.mirror"];
    let mut differing = Vec::new();
    let mut compare = |what: &str, on_node: &Value, shown: &Value| {
        if on_node != shown {
            differing.push(format!("{what} is {on_node} on the node and {shown} in the cluster"));
        }
    };
    let pod_name = name(pod);
    compare(&format!("{pod_name}: the UID"), uid, if mirror.is_null() { &shown["metadata"]["uid"] } else { mirror });
    for field in ["phase", "reason", "podIP", "startTime"] {
        compare(&format!("{pod_name}: {field}"), &pod["status"][field], &shown["status"][field]);
    }
    for kind in ["Ready", "ContainersReady", "Initialized"] {
        compare(&format!("{pod_name}: {kind}"), &condition(pod, kind)["status"], &condition(shown, kind)["status"]);
    }
    let (mine, theirs) = (&pod["status"]["containerStatuses"], &shown["status"]["containerStatuses"]);
    for index in 0..mine.as_array().map_or(0, Vec::len).max(theirs.as_array().map_or(0, Vec::len)) {
        for field in ["name", "containerID", "restartCount", "ready", "started", "state"] {
            compare(&format!("{pod_name}: {field} of container {index}"), &mine[index][field], &theirs[index][field]);
        }
    }
    differing
}
