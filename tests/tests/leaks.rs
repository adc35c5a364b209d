//! Many pods are created and deleted, and some stay for long: nothing is left behind, and the agent and its loggers do
//! not grow.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::contender::{Contender as _, apply, remove};
use limpet_tests::footprint::{Footprint, pids};
use limpet_tests::image::{V1, V2};
use limpet_tests::inventory::Inventory;
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::container;
use limpet_tests::{TestNode, agent, case, suite, wait};
use serde_json::{Value, json};

/// By how much the agent's memory may vary, in KiB. The ring of the last 1,000 events fills (half a MiB), and the
/// allocator keeps pages that it has used: up to 2 MiB after many pods at once, and then no more. A leak of 6 KiB per
/// pod exceeds it with 500 pods.
const AGENT_ALLOWANCE: u64 = 3072;

/// By how much a logger's memory may vary; it allocates nothing for a line.
const LOGGER_ALLOWANCE: u64 = 48;

fn main() -> ExitCode {
    suite::run([
        case!(nothing_is_left_behind).on(|node| (node.cni, node.cri, node.verbosity) = (true, true, 2)),
        case!(what_runs_for_long_does_not_grow).on(|node| {
            node.kubelet = vec!["containerLogMaxSize: 1Mi".to_owned(), "containerLogMaxFiles: 2".to_owned()];
            node.verbosity = 2;
        }),
    ])
}

/// The agent once it is idle. Threads that wait for blocking work end after some seconds, and their stacks with them.
fn idle_agent(node: &TestNode) -> Result<Footprint> {
    let pid = node.agent.pid().context("the agent does not run")?;
    wait::until(wait::SOON, "the agent's idleness", || Some(Footprint::measure(pid)).filter(|agent| agent.threads == 1))
}

fn nothing_is_left_behind(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("first", IDLE))?;
    node.wait_bpf_programs()?;
    node.remove("first")?;
    let (warm_up, waves) = if suite::is_long() { (10, 50) } else { (1, 3) };
    (0..warm_up).try_for_each(|number| wave(node, number))?;
    let memory = idle_agent(node)?.private;
    let before = Inventory::take(node)?;
    (0..waves).try_for_each(|number| wave(node, warm_up + number))?;
    let differences = || Ok(before.differences(&Inventory::take(node)?));
    wait::until_none(wait::SOON, "anything that was not there before, or is gone", differences)?;
    let now = idle_agent(node)?.private;
    println!("{} pods; the agent's own memory: {memory} KiB before, {now} KiB after", waves * WAVE.len());
    ensure!(now <= memory + AGENT_ALLOWANCE, "the agent's memory grew from {memory} to {now} KiB");
    Ok(())
}

/// The kinds of pods of a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It uses everything that a pod may have, and an edit restarts one container.
    ImageEdited,
    /// It uses the same, and an edit makes a new pod.
    Recreated,
    /// Its image does not exist.
    NoImage,
    /// Its program is not in the image.
    NoProgram,
    /// It fails, again and again.
    Crashes,
    /// It runs to its end.
    Finishes,
}

const WAVE: [Kind; 10] = [
    Kind::ImageEdited,
    Kind::Recreated,
    Kind::ImageEdited,
    Kind::Recreated,
    Kind::ImageEdited,
    Kind::Recreated,
    Kind::NoImage,
    Kind::NoProgram,
    Kind::Crashes,
    Kind::Finishes,
];

/// Creates, edits and deletes one pod of each kind, and waits until nothing runs.
fn wave(node: &TestNode, number: usize) -> Result<()> {
    let names: Vec<_> = (0..WAVE.len()).map(|at| format!("pod-{number}-{at}")).collect();
    let pods = || WAVE.into_iter().zip(&names);
    for (kind, name) in pods() {
        node.drop_text(&format!("{name}.yaml"), &manifest(kind, name, false).to_string())?;
    }
    wait_all(node, "as created", |shown| pods().all(|(kind, name)| has_come(kind, &node.full_name(name), shown)))?;
    let created = node.agent.pods()?;
    for (kind, name) in pods().filter(|(kind, _)| matches!(kind, Kind::ImageEdited | Kind::Recreated)) {
        node.drop_text(&format!("{name}.yaml"), &manifest(kind, name, true).to_string())?;
    }
    wait_all(node, "as edited", |shown| {
        pods().all(|(kind, name)| is_edited(kind, &node.full_name(name), &created, shown))
    })?;
    for (_, name) in pods() {
        node.remove(name)?;
    }
    wait_all(node, "gone", |shown| shown.is_empty())?;
    node.wait_nothing_runs()
}

fn wait_all(node: &TestNode, what: &str, fact: impl Fn(&[Value]) -> bool) -> Result<()> {
    let what = format!("all pods {what}");
    wait::until_true(wait::SOON * 2, &what, || node.agent.pods().is_ok_and(|pods| fact(&pods)))
}

fn find<'a>(pods: &'a [Value], name: &str) -> Option<&'a Value> {
    pods.iter().find(|pod| pod["metadata"]["name"] == name)
}

fn runs(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && container(pod, "main")["state"]["running"].is_object()
}

/// Whether the agent shows what a pod of this kind comes to.
fn has_come(kind: Kind, name: &str, pods: &[Value]) -> bool {
    let Some(pod) = find(pods, name) else { return false };
    let main = container(pod, "main");
    let waiting = main["state"]["waiting"]["reason"].as_str().unwrap_or_default();
    match kind {
        Kind::ImageEdited | Kind::Recreated => runs(pod),
        Kind::NoImage => waiting.contains("Image"),
        Kind::NoProgram => main["lastState"]["terminated"].is_object() || main["state"]["terminated"].is_object(),
        Kind::Crashes => main["restartCount"].as_u64() >= Some(1),
        Kind::Finishes => pod["status"]["phase"] == "Succeeded",
    }
}

fn is_edited(kind: Kind, name: &str, before: &[Value], now: &[Value]) -> bool {
    let (Some(before), Some(now)) = (find(before, name), find(now, name)) else { return false };
    match kind {
        Kind::ImageEdited => runs(now) && container(now, "main")["image"] == V2,
        Kind::Recreated => runs(now) && before["metadata"]["uid"] != now["metadata"]["uid"],
        _ => true,
    }
}

fn manifest(kind: Kind, name: &str, edited: bool) -> Value {
    match kind {
        Kind::ImageEdited => rich(name, json!({ "image": if edited { V2 } else { V1 } })),
        Kind::Recreated => rich(name, json!({ "env": [{ "name": "EDITED", "value": edited.to_string() }] })),
        Kind::NoImage => with_main(name, json!({ "image": "127.0.0.1:9/nowhere:v1" })),
        Kind::NoProgram => with_main(name, json!({ "command": ["/no/such/program"] })),
        Kind::Crashes => with_main(name, json!({ "command": ["/bin/sh", "-c", "exit 3"] })),
        Kind::Finishes => with(
            with_main(name, json!({ "command": ["/bin/sh", "-c", "echo done"] })),
            json!({ "spec": { "restartPolicy": "Never" } }),
        ),
    }
}

/// A pod with an address of its own.
fn with_main(name: &str, main: Value) -> Value {
    pod(name, json!({ "hostNetwork": false, "containers": [with(shell("main", IDLE), main)] }))
}

/// A pod that uses everything, and the objects to which it refers.
fn rich(name: &str, main: Value) -> Value {
    let mounts = json!({
        "volumeMounts": [
            { "name": "memory", "mountPath": "/memory" },
            { "name": "disk", "mountPath": "/disk" },
            { "name": "config", "mountPath": "/config" },
            { "name": "config", "mountPath": "/single", "subPath": "greeting" },
        ],
        "envFrom": [{ "secretRef": { "name": name } }],
    });
    let spec = json!({
        "initContainers": [with(shell("init", "echo init; echo init > /disk/init"), mounts.clone())],
        "containers": [shell("side", IDLE), with(with(shell("main", IDLE), mounts), main)],
        "hostNetwork": false,
        "volumes": [
            { "name": "memory", "emptyDir": { "medium": "Memory" } },
            { "name": "disk", "emptyDir": {} },
            { "name": "config", "configMap": { "name": name } },
        ],
    });
    let metadata = json!({ "name": name });
    json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            { "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "greeting": "hello" } },
            { "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { "TOKEN": "secret" } },
            pod(name, spec),
        ],
    })
}

/// How long the soak works before its first figure, and between the first and the last.
fn soak_times() -> (Duration, Duration) {
    if suite::is_long() {
        (Duration::from_secs(600), Duration::from_secs(3600))
    } else {
        (Duration::from_secs(10), Duration::from_secs(30))
    }
}

fn what_runs_for_long_does_not_grow(node: &mut TestNode) -> Result<()> {
    // It writes a megabyte in some seconds, so its log is rotated all the time.
    let chatter = "while :; do yes 'a line of a log that goes on for ever' | head -n 500; usleep 50000; done";
    node.apply(&simple("chatty", chatter))?;
    node.wait_bpf_programs()?;
    let (warm_up, time) = soak_times();
    let mut round = 0;
    let mut work = |node: &TestNode, time: Duration| -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < time {
            round += 1;
            soak_round(node, round).with_context(|| format!("round {round}"))?;
        }
        Ok(())
    };
    work(node, warm_up)?;
    let before = Size::measure(node)?;
    work(node, time)?;
    let after = Size::measure(node)?;
    println!("{round} rounds; before: {before:?}; after: {after:?}");
    after.is_no_larger_than(&before)
}

/// One round: an edit that restarts a container, one that makes a new pod which fails once, one of a ConfigMap, and
/// requests.
fn soak_round(node: &TestNode, round: usize) -> Result<()> {
    let flipped = [V1, V2][round % 2];
    apply(&node.agent, &with_main_on_host("flip", json!({ "image": flipped })))?;
    let fails_once = "[ -e /data/tried ] || { touch /data/tried; exit 1; }; exec sleep 100000";
    let failing = json!({
        "command": ["/bin/sh", "-c", fails_once],
        "env": [{ "name": "ROUND", "value": round.to_string() }],
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
    });
    let volumes = json!({ "spec": { "volumes": [{ "name": "data", "emptyDir": {} }] } });
    apply(&node.agent, &with(with_main_on_host("fails", failing), volumes))?;
    node.drop_text("config.yaml", &reported(round).to_string())?;
    let (name, number) = (|pod: &str| node.full_name(pod), json!(round.to_string()));
    wait_all(node, "as edited", |pods| {
        let main = |pod: &str| find(pods, &name(pod)).filter(|pod| runs(pod)).map(|pod| container(pod, "main"));
        let env = find(pods, &name("fails")).map(|pod| &pod["spec"]["containers"][0]["env"][0]["value"]);
        main("flip").is_some_and(|main| main["image"] == flipped)
            && env.is_some_and(|value| *value == number)
            && main("fails").is_some_and(|main| main["restartCount"] == 1)
            && main("config").is_some()
    })?;
    wait::until_true(wait::SOON, "the edited file", || {
        node.exec("config", "main", &["cat", "/config/round"]).is_ok_and(|text| text == round.to_string())
    })?;
    for args in [&["logs", "--tail", "5", &name("chatty")][..], &["events"], &["describe", &name("flip")], &["pods"]] {
        node.agent.cli(args)?.success()?;
    }
    if round.is_multiple_of(5) {
        remove(&node.agent, "flip")?;
        node.wait_gone("flip")?;
    }
    Ok(())
}

fn with_main_on_host(name: &str, main: Value) -> Value {
    pod(name, json!({ "containers": [with(shell("main", IDLE), main)] }))
}

/// A pod and the ConfigMap whose edits it sees.
fn reported(round: usize) -> Value {
    let main = json!({ "volumeMounts": [{ "name": "config", "mountPath": "/config" }] });
    let volumes = json!({ "spec": { "volumes": [{ "name": "config", "configMap": { "name": "config" } }] } });
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "config" },
        "data": { "round": round.to_string() },
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": [map, with(with_main_on_host("config", main), volumes)] })
}

/// How large the agent and its largest logger are.
#[derive(Debug)]
struct Size {
    agent: Footprint,
    logger_private: u64,
    logger_descriptors: u64,
}

impl Size {
    fn measure(node: &TestNode) -> Result<Self> {
        let agent = node.agent.pid();
        // limpet's shim writes the logs itself.
        let writers = if agent::has_limpets_shim() { "containerd-shim" } else { "limpet" };
        let mut loggers = pids(node.dir(), writers);
        loggers.retain(|pid| Some(*pid) != agent);
        let loggers: Vec<_> = loggers.into_iter().map(Footprint::measure).collect();
        ensure!(!loggers.is_empty(), "no logger is seen");
        let largest = |size: fn(&Footprint) -> u64| loggers.iter().map(size).max().unwrap_or(0);
        Ok(Self {
            agent: idle_agent(node)?,
            logger_private: largest(|logger| logger.private),
            logger_descriptors: largest(|logger| logger.descriptors),
        })
    }

    fn is_no_larger_than(&self, before: &Self) -> Result<()> {
        let grown = |what, now: u64, before: u64, allowance| {
            ensure!(now <= before + allowance, "{what} grew from {before} to {now}");
            Ok(())
        };
        grown("the agent's memory (KiB)", self.agent.private, before.agent.private, AGENT_ALLOWANCE)?;
        grown("the memory of a logger (KiB)", self.logger_private, before.logger_private, LOGGER_ALLOWANCE)?;
        grown("a logger's descriptors", self.logger_descriptors, before.logger_descriptors, 0)?;
        // A request or a restart holds a few of them for a moment.
        grown("the agent's descriptors", self.agent.descriptors, before.agent.descriptors, 4)
    }
}
