//! The status of a pod that an apiserver binds to a node is as under a real kubelet: how it ends, why it is refused, what its
//! deletion leaves. So is what its containers find of the ConfigMaps and Secrets that it refers to.
//!
//! `tests/views/cluster` holds the pods and what kubelet 1.37.1 reported of each; `cargo xtask nightly states` runs kubelet again
//! and writes that file again.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::kubelet_api::NodeAddress;
use limpet_tests::cluster::{self, Cluster, condition, join, joining, wait_at};
use limpet_tests::kubelet::Kubelet;
use limpet_tests::manifest::with;
use limpet_tests::view::manifests::{self, Case, Then};
use limpet_tests::view::normal::Machine;
use limpet_tests::view::observe::{self, Stage, machine, most, names, prepare};
use limpet_tests::view::record::{self, Known};
use limpet_tests::view::{Views, status};
use limpet_tests::{TestNode, case, suite, tools, wait};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// The taint that keeps pods without a toleration from running.
const TAINT: &str = r#"[{"key":"states","value":"test","effect":"NoExecute"}]"#;
/// The prefix of the apiserver's name for the volume of a pod's token.
const TOKEN_VOLUME: &str = "kube-api-access-";
/// The shortest period of measurements, because a pod that uses too much ends only after one.
const PERIOD: &str = "1s";

/// The field `user` of files in volumes, which limpet has by default.
const GATE: &str = "AtomicWriteVolumeUserFields";
/// `binaryData` holds a NUL and a byte that is no UTF-8.
const CONFIG_MAP: &str = r#"{
    "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "view" },
    "data": { "word": "of the map", "lines": "one\ntwo\n", "empty": "", "app.conf": "a=1", "1st": "a digit first" },
    "binaryData": { "bytes": "AP8K" }
}"#;
const SECRET: &str = r#"{
    "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "view" },
    "stringData": { "word": "of the secret", "password": "p w$(A)", "key.pem": "-----" }
}"#;
const RUNTIME_CLASS: &str = r#"{
    "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "view" }, "handler": "runc"
}"#;

fn main() -> ExitCode {
    let limpet = joining(case!(a_pod_of_a_cluster_is_as_under_kubelet)).on(|node| {
        node.keep_memory = true;
        node.kubelet.push(format!("registerWithTaints: {TAINT}"));
        node.kubelet.push(format!("volumeStatsAggPeriod: {PERIOD}"));
    });
    let kubelet = joining(case!(kubelet_gives_what_is_recorded)).on(|node| {
        node.keep_memory = true;
        node.cri = true;
        node.containerd_choice = Some("2".to_owned());
    });
    let code = suite::run(std::iter::once(limpet).chain(suite::is_long().then_some(kubelet)));
    cluster::end();
    code
}

/// The intended differences.
const ON_PURPOSE: &[Known] = &[
    ("", "status", "imageID = ", "limpet names the repository of an imported image too"),
    ("", "status", "resources.limits.memory = 9007199254740988Ki", "kubelet shows a cgroup without a limit so"),
    ("a-port-taken", "status", "message = ", "limpet names the pod that has the port"),
    ("a-no-config-map-of-volume", "status", "state.waiting.message", "limpet says what the pod waits for"),
    ("a-deleted-after-init", "status", "Ready].", AS_BEFORE),
    ("a-deleted-before-init", "status", "Ready].", AS_BEFORE),
    ("a-deleted-while-pending", "status", "Ready].", AS_BEFORE),
    (
        "a-too-much-disk",
        "status",
        "containerStatuses[main].",
        "kubelet has removed the container before it looks how it ended",
    ),
    ("a-too-much-disk", "status", "resources.", "the same"),
    ("o-config-map-of-group/", "mounts", "size=ALLOCATABLE_MEMORY,", GROUP),
    ("o-projected-of-group/", "mounts", "size=ALLOCATABLE_MEMORY,", GROUP),
    ("o-secret-of-group/", "mounts", "size=ALLOCATABLE_MEMORY,", GROUP),
    ("o-secret-of-users/", "mounts", "size=ALLOCATABLE_MEMORY,", GROUP),
];

const GROUP: &str = "limpet gives owner and mode with the mount itself";
const AS_BEFORE: &str = "kubelet leaves them as they were when it sets the states of containers that never ran";

fn a_pod_of_a_cluster_is_as_under_kubelet(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared_with(&[&format!("--feature-gates={GATE}=true")])?;
    cluster.add_account()?;
    prepare(node, &node.agent.settings().root())?;
    join(node, &cluster, &[])?;
    let (views, late) = observe(&Stage::of_limpet(node), &cluster, wait::SOON * 2)?;
    let findings = record::differing(&record::of_kubelet(&manifests::dir_of_cluster())?, &views, ON_PURPOSE);
    ensure!(findings.is_empty() && late.is_empty(), "{}\nnot in time:\n{}", findings.join("\n"), late.join("\n"));
    Ok(())
}

fn kubelet_gives_what_is_recorded(node: &mut TestNode) -> Result<()> {
    let program = tools::kubernetes("kubelet").context("no kubelet; run: cargo xtask kubelet")?;
    let (cluster, address) = (cluster::shared_with(&[&format!("--feature-gates={GATE}=true")])?, NodeAddress::add()?);
    cluster.add_account()?;
    let mut kubelet = Kubelet::prepare(&program, node)?;
    prepare(node, &kubelet.root())?;
    kubelet.admit(&cluster, &address)?;
    let taints: Value = serde_json::from_str(TAINT)?;
    kubelet.reconfigure(|it| {
        it["registerWithTaints"] = taints;
        it["volumeStatsAggPeriod"] = json!(PERIOD);
        it["featureGates"] = json!({ GATE: true });
    })?;
    kubelet.spawn()?;
    wait_at(&cluster, &format!("/api/v1/nodes/{}", kubelet.name()), "ready", |shown| {
        condition(shown, "Ready")["status"] == "True"
    })?;
    let (views, late) = observe(&Stage::of_kubelet(node, &kubelet), &cluster, Duration::from_secs(200))?;
    let before = record::renew(&manifests::dir_of_cluster(), &views)?;
    ensure!(late.is_empty(), "not in time:\n{}\n{}", late.join("\n"), limpet_tests::process::tail(&kubelet.log(), 20));
    let changed = record::differing(&before, &views, ON_PURPOSE);
    ensure!(changed.is_empty(), "kubelet does not give what was recorded; written again:\n{}", changed.join("\n"));
    Ok(())
}

/// Runs all pods at the same time until each has the state to compare. Returns their statuses, and the pods that did
/// not reach it in time.
fn observe(stage: &Stage, cluster: &Cluster, limit: Duration) -> Result<(Views, Vec<String>)> {
    let mut run = Run { stage, cluster, machine: machine()?, created: BTreeSet::new(), done: BTreeSet::new() };
    create_objects(cluster)?;
    let cases = manifests::cases(&manifests::dir_of_cluster())?;
    let mut views = Views::new();
    let mut left: BTreeMap<&str, String> = cases.iter().map(|case| (&*case.name, "not shown".to_owned())).collect();
    let mut failed = None;
    let in_time = wait::until_true(limit, "the statuses of all pods", || {
        failed = run.look(&cases, &mut views, &mut left).err();
        left.is_empty() || failed.is_some()
    });
    if let Some(error) = failed {
        return Err(error);
    }
    if wait::interrupted() {
        in_time?;
    }
    Ok((views, left.into_iter().map(|(name, why)| format!("{name}: {why}")).collect()))
}

/// The objects that pods of `objects.yaml` refer to. Both node agents may use one cluster.
fn create_objects(cluster: &Cluster) -> Result<()> {
    let of_namespace = |kind: &str| format!("/api/v1/namespaces/default/{kind}");
    for (path, object) in [
        (of_namespace("configmaps"), CONFIG_MAP),
        (of_namespace("secrets"), SECRET),
        ("/apis/node.k8s.io/v1/runtimeclasses".to_owned(), RUNTIME_CLASS),
    ] {
        let object: Value = serde_json::from_str(object)?;
        cluster.apply(&format!("{path}/view"), &object)?;
    }
    Ok(())
}

struct Run<'a> {
    stage: &'a Stage,
    cluster: &'a Cluster,
    machine: Machine,
    created: BTreeSet<String>,
    /// The pods for which everything that follows their start was done.
    done: BTreeSet<String>,
}

impl Run<'_> {
    fn look<'a>(&mut self, cases: &'a [Case], views: &mut Views, left: &mut BTreeMap<&'a str, String>) -> Result<()> {
        let pods = self.cluster.list(&format!("{PODS}?fieldSelector=spec.nodeName%3D{}", self.stage.node_name))?;
        let node = &self.stage.node_name;
        let shown = |name: &str| pods.iter().find(|pod| pod["metadata"]["name"] == format!("{name}-{node}").as_str());
        let runs = |name: &String| shown(name).is_some_and(|pod| pod["status"]["phase"] == "Running");
        for case in cases {
            let pod = shown(&case.name);
            if pod.is_none() && case.after.as_ref().is_none_or(runs) && !self.created.contains(&case.name) {
                self.cluster.create(PODS, &self.manifest(case)?)?;
                self.created.insert(case.name.clone());
            }
            let (Some(pod), true) = (pod, left.contains_key(&*case.name)) else { continue };
            if let Some(then) = case.then.filter(|_| has_begun(pod) && !self.done.contains(&case.name)) {
                self.act(case, then)?;
                self.done.insert(case.name.clone());
                continue;
            }
            match self.seen(case, pod) {
                Ok(of_pod) => {
                    views.extend(of_pod);
                    left.remove(&*case.name);
                }
                Err(why) => drop(left.insert(&case.name, format!("{why:#}; status: {}", pod["status"]))),
            }
        }
        Ok(())
    }

    fn full_name(&self, name: &str) -> String {
        format!("{name}-{}", self.stage.node_name)
    }

    /// The pod's manifest, bound as by a scheduler.
    fn manifest(&self, case: &Case) -> Result<Value> {
        let mut pod = self.stage.manifest(case, &self.machine)?;
        if pod["spec"]["tolerations"].is_null() {
            pod["spec"]["tolerations"] = json!([{ "operator": "Exists" }]);
        }
        if case.then.is_some() {
            pod["metadata"]["finalizers"] = json!(["limpet.test/states"]);
        }
        let name = self.full_name(&case.name);
        Ok(with(pod, json!({ "metadata": { "name": name }, "spec": { "nodeName": self.stage.node_name } })))
    }

    fn act(&self, case: &Case, then: Then) -> Result<()> {
        let name = self.full_name(&case.name);
        let path = format!("{PODS}/{name}");
        match then {
            Then::Delete => self.cluster.delete(&path),
            Then::Evict => {
                let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name } });
                self.cluster.create(&format!("{path}/eviction"), &eviction)
            }
            Then::Resize => {
                let container =
                    json!({ "name": "main", "resources": { "requests": { "memory": most(self.machine.memory) } } });
                self.cluster.patch_items(&format!("{path}/resize"), &json!({ "spec": { "containers": [container] } }))
            }
        }
    }

    /// The status of one pod, and what its containers find; an error says what is still awaited.
    fn seen(&self, case: &Case, pod: &Value) -> Result<Views> {
        let mut names = names(pod, self.stage, &self.machine);
        names.add(&self.full_name(&case.name), "POD");
        let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let of_token = volumes.filter_map(|volume| volume["name"].as_str()).find(|name| name.starts_with(TOKEN_VOLUME));
        names.add(of_token.unwrap_or_default(), "TOKEN");
        let lines = status::lines(&pod["status"]);
        let lines = lines.iter().map(|line| without_amounts(&names.normal(line))).collect();
        let due = case.then.is_none() || self.done.contains(&case.name);
        ensure!(due, "it has not begun");
        observe::seen(case, pod, self.stage, &self.machine, &names, lines)
    }
}

/// A line without the amounts of the machine and those of earlier pods, which differ between runs.
fn without_amounts(line: &str) -> String {
    let cut = line.contains("Node didn't have enough resource").then(|| line.split_once(", used: ")).flatten();
    cut.map_or_else(|| line.to_owned(), |(kept, _)| kept.to_owned())
}

/// Whether its main container runs, or the first that has not ended has a reason why it does not. limpet reports a
/// missing image while init containers run, so the reason of a later container does not count.
fn has_begun(pod: &Value) -> bool {
    let lists = ["initContainerStatuses", "containerStatuses"].into_iter();
    let mut containers = lists.filter_map(|list| pod["status"][list].as_array()).flatten();
    let next = containers.find(|container| !container["state"]["terminated"].is_object());
    let reason = next.and_then(|container| container["state"]["waiting"]["reason"].as_str());
    pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
        || reason.is_some_and(|reason| reason.starts_with("Err"))
}
