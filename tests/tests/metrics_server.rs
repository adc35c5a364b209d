//! The figures of a node by way of metrics-server: `kubectl top`, and a HorizontalPodAutoscaler that acts on them. The
//! cluster is a whole one.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::cluster::kubelet_api::{NodeAddress, join_with_api};
use limpet_tests::cluster::metrics_server::MetricsServer;
use limpet_tests::cluster::{self, Cluster, joining, wait_at};
use limpet_tests::manifest::{pod, shell, with};
use limpet_tests::{TestNode, case, image, suite, wait};
use serde_json::{Value, json};

/// Several readings of metrics-server, and several looks of an autoscaler, which come every 15 s.
const A_WHILE: Duration = Duration::from_secs(180);
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";

fn main() -> ExitCode {
    let code = suite::run([
        joining(case!(a_deployment_is_scheduled_scaled_and_deleted)),
        joining(case!(kubectl_top_agrees_with_limpet_top)),
        joining(case!(an_autoscaler_follows_what_a_deployment_burns)),
    ]);
    cluster::end();
    code
}

/// A Deployment named after the node, for it alone, whose container runs that script.
fn deployment(node: &TestNode, script: &str, replicas: u32) -> Value {
    let labels = json!({ "app": node.name() });
    let resources = json!({ "resources": { "requests": { "cpu": "100m" }, "limits": { "cpu": "200m" } } });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": node.name() },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "nodeSelector": { "kubernetes.io/hostname": node.name() },
                    "terminationGracePeriodSeconds": 1,
                    "containers": [with(shell("main", script), resources)],
                },
            },
        },
    })
}

/// Waits until the node's Deployment has this number of ready replicas.
fn wait_replicas(node: &TestNode, cluster: &Cluster, count: u32) -> Result<()> {
    let path = format!("{DEPLOYMENTS}/{}", node.name());
    let status = || Ok::<_, anyhow::Error>(cluster.get(&path)?.context("no Deployment")?["status"].clone());
    wait::until_true(A_WHILE, &format!("{count} ready replicas"), || {
        status().is_ok_and(|now| now["readyReplicas"] == count && now["replicas"] == count)
    })
    .with_context(|| format!("{:?}", status()))
}

fn a_deployment_is_scheduled_scaled_and_deleted(node: &mut TestNode) -> Result<()> {
    let (cluster, address, port) = (cluster::whole()?, NodeAddress::add()?, Port::claim()?);
    join_with_api(node, &cluster, &port, &address)?;
    // Every pod has a token: a container finds it, and the authority's certificate from kube-controller-manager.
    let script = "head -n 1 /var/run/secrets/kubernetes.io/serviceaccount/ca.crt; sleep 100000 & wait";
    cluster.create(DEPLOYMENTS, &deployment(node, script, 2))?;
    wait_replicas(node, &cluster, 2)?;
    let name = node.name().to_owned();
    wait::until_true(wait::SOON, "the log of a container that read its token's files", || {
        cluster.run_kubectl(&["logs", &format!("deployment/{name}")]).is_ok_and(|log| log.contains("BEGIN CERTIFI"))
    })?;
    cluster.run_kubectl(&["scale", &format!("deployment/{name}"), "--replicas=4"])?;
    wait_replicas(node, &cluster, 4)?;
    ensure!(node.pods()?.len() == 4, "{:?}", node.pods()?);
    cluster.run_kubectl(&["set", "image", &format!("deployment/{name}"), &format!("main={}", image::V2)])?;
    cluster.run_kubectl(&["rollout", "status", &format!("deployment/{name}"), "--timeout=180s"])?;
    wait::until_true(wait::SOON, "four pods of the new image, and no others", || {
        let is_new = |pod: &Value| {
            pod["status"]["containerStatuses"][0]["ready"] == true && pod["spec"]["containers"][0]["image"] == image::V2
        };
        node.pods().is_ok_and(|pods| pods.len() == 4 && pods.iter().all(is_new))
    })?;
    cluster.run_kubectl(&["delete", "deployment", &name])?;
    wait::until_true(wait::SOON, "no pod", || node.pods().is_ok_and(|pods| pods.is_empty()))
}

/// Milli CPUs and KiB of a container in a PodMetricsList.
fn figures(list: &Value, pod: &str) -> Option<(f64, f64)> {
    let item = list["items"].as_array()?.iter().find(|item| item["metadata"]["name"] == pod)?;
    let usage = &item["containers"][0]["usage"];
    let (cpu, memory) = (usage["cpu"].as_str()?, usage["memory"].as_str()?);
    let unit = |end: &str, each: f64| cpu.strip_suffix(end)?.parse::<f64>().ok().map(|count| count * each);
    let milli = unit("n", 1e-6).or_else(|| unit("u", 1e-3)).or_else(|| unit("m", 1.0));
    let cpu = milli.or_else(|| Some(cpu.parse::<f64>().ok()? * 1e3))?;
    let kib = memory.strip_suffix("Ki").map(|kib| kib.parse().ok());
    Some((cpu, kib.unwrap_or_else(|| Some(memory.parse::<f64>().ok()? / 1024.0))?))
}

fn kubectl_top_agrees_with_limpet_top(node: &mut TestNode) -> Result<()> {
    let (cluster, address, port) = (cluster::whole()?, NodeAddress::add()?, Port::claim()?);
    join_with_api(node, &cluster, &port, &address)?;
    // The first pod uses a fifth of a CPU, the second holds 40 MiB and sleeps.
    let limit = json!({ "resources": { "limits": { "cpu": "200m" } } });
    node.apply(&pod("burns", json!({ "containers": [with(shell("main", "while :; do :; done"), limit)] })))?;
    let holds = "dd if=/dev/zero of=/dev/shm/held bs=1M count=40; sleep 100000 & wait";
    node.apply(&pod("holds", json!({ "containers": [shell("main", holds)] })))?;
    node.wait_running("burns")?;
    node.wait_running("holds")?;
    let server = MetricsServer::start(&cluster)?;
    let (burns, holds) = (node.full_name("burns"), node.full_name("holds"));
    let of_pods = format!("{METRICS}/namespaces/default/pods");
    let figures_of = |list: &Value| Some((figures(list, &burns)?, figures(list, &holds)?));
    let theirs = wait::until(A_WHILE, "figures of both pods", || figures_of(&cluster.get(&of_pods).ok()??))
        .with_context(|| server.log())?;
    let list: Value = serde_json::from_str(&node.agent.cli(&["top", "containers", "-o", "json"])?.success()?)?;
    let ours = figures_of(&list).with_context(|| format!("no figures: {list}"))?;
    println!("metrics-server: {theirs:?}; limpet top: {ours:?}");
    for (cpu, _) in [theirs.0, ours.0] {
        ensure!((100.0..=260.0).contains(&cpu), "burns: {cpu} m");
    }
    for (cpu, _) in [theirs.1, ours.1] {
        ensure!(cpu < 20.0, "holds: {cpu} m");
    }
    let (their_memory, our_memory) = (theirs.1.1, ours.1.1);
    ensure!(our_memory > 40.0 * 1024.0, "holds: {our_memory} KiB");
    ensure!((their_memory - our_memory).abs() < our_memory / 20.0, "holds: {their_memory} and {our_memory} KiB");

    let top = cluster.run_kubectl(&["top", "pods", "--containers"])?;
    ensure!(top.lines().any(|line| line.starts_with(&holds) && line.contains("main")), "{top}");
    let top = cluster.run_kubectl(&["top", "nodes"])?;
    let line = top.lines().find(|line| line.starts_with(node.name())).with_context(|| top.clone())?;
    // The columns are NAME, CPU, CPU %, memory and memory %, and all of them are known.
    ensure!(line.split_whitespace().count() == 5 && !line.contains("unknown"), "{top}");
    println!("{top}");
    let path = format!("{METRICS}/nodes/{}", node.name());
    wait_at(&cluster, &path, "the node's own figures", |shown| shown["usage"]["memory"] != "0").map(drop)
}

fn an_autoscaler_follows_what_a_deployment_burns(node: &mut TestNode) -> Result<()> {
    let (cluster, address, port) = (cluster::whole()?, NodeAddress::add()?, Port::claim()?);
    join_with_api(node, &cluster, &port, &address)?;
    let dir = node.dir().join("burn");
    std::fs::create_dir_all(&dir)?;
    let volume = json!({ "name": "burn", "hostPath": { "path": dir } });
    let mount = json!({ "volumeMounts": [{ "name": "burn", "mountPath": "/burn" }] });
    let mut deployment = deployment(node, "while :; do [ -e /burn/on ] || sleep 1; done", 1);
    let spec = &mut deployment["spec"]["template"]["spec"];
    spec["volumes"] = json!([volume]);
    spec["containers"][0] = with(spec["containers"][0].clone(), mount);
    cluster.create(DEPLOYMENTS, &deployment)?;
    wait_replicas(node, &cluster, 1)?;
    let server = MetricsServer::start(&cluster)?;
    let scaler = json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": node.name() },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": node.name() },
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": [{ "type": "Resource", "resource": {
                "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 },
            } }],
            "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } },
        },
    });
    let scalers = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    cluster.create(scalers, &scaler)?;
    let path = format!("{scalers}/{}", node.name());
    let current = |shown: &Value| shown["status"]["currentMetrics"][0]["resource"]["current"].clone();
    wait::until_true(A_WHILE, "an autoscaler that knows the use", || {
        cluster.get(&path).ok().flatten().is_some_and(|shown| current(&shown)["averageUtilization"].is_u64())
    })
    .with_context(|| server.log())?;
    std::fs::write(dir.join("on"), "")?;
    let scaled = wait_replicas(node, &cluster, 3).and_then(|()| {
        std::fs::remove_file(dir.join("on"))?;
        wait_replicas(node, &cluster, 1)
    });
    scaled.with_context(|| format!("{:?}\n{}", cluster.get(&path), server.log()))?;
    cluster.delete(&path)?;
    cluster.run_kubectl(&["delete", "deployment", node.name()])?;
    wait::until_true(wait::SOON, "no pod", || node.pods().is_ok_and(|pods| pods.is_empty()))
}
