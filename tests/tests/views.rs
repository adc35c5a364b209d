//! A container under limpet finds what it finds under a real kubelet, and its pod's status says the same.
//!
//! `tests/views` holds the pods and what kubelet 1.37.1 gave for each on this kind of machine; `cargo xtask nightly
//! views` runs kubelet again and writes that file again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::kubelet::Kubelet;
use limpet_tests::node::NodeOptions;
use limpet_tests::view::manifests::{self, Case};
use limpet_tests::view::observe::{Stage, observe, prepare, settings};
use limpet_tests::view::record::{self, Known};
use limpet_tests::{TestNode, case, suite, tools, wait};
use serde_json::json;

fn main() -> ExitCode {
    let of_limpet = |node: &mut NodeOptions| {
        node.keep_memory = true;
        node.cni = true;
        node.agent = false;
        node.verbosity = 2;
        node.kubelet = settings().into_iter().map(|(key, value)| format!("{key}: {value}")).collect();
    };
    let of_kubelet = |node: &mut NodeOptions| {
        node.keep_memory = true;
        node.cni = true;
        node.cri = true;
        // kubelet supports these only with containerd 2: image volumes, strict groups, and mounts that are recursively
        // read-only.
        node.containerd_choice = Some("2".to_owned());
        node.agent = false;
    };
    let limpet = case!(a_pod_under_limpet_is_as_under_kubelet).on(of_limpet);
    let kubelet = case!(kubelet_gives_what_is_recorded).on(of_kubelet);
    suite::run(std::iter::once(limpet).chain(suite::is_long().then_some(kubelet)))
}

/// Fields of the Pod API that kubelet drops unread while their gate is off.
const GATES: [&str; 3] = ["ContainerStopSignals", "EmptyDirVolumeMode", "AtomicWriteVolumeUserFields"];

/// The intended differences.
const ON_PURPOSE: &[Known] = &[
    ("", "status", "hostIP", "kubelet without an apiserver does not know its node's address"),
    ("", "status", " = HOST_IP", "the same of podIP on the host's network"),
    ("environment-of-pod/", "environment", "HOSTS=", "limpet names the addresses of both families"),
    ("", "status", "imageID = ", "limpet names the repository of an imported image too"),
    ("", "status", "recursiveReadOnly = ", "limpet does it with every OCI runtime; kubelet needs runc 1.1.14"),
    ("", "mounts", "size=ALLOCATABLE_MEMORY,mode=", "limpet gives owner and mode with the mount itself"),
    ("empty-directory-of-group/", "mounts", "/volumes/b tmpfs", "the same"),
    ("downward-of-group/", "mounts", "/volumes/a tmpfs", "the same"),
    ("empty-directory-with-mode/", "", "/volumes/b ", "limpet heeds emptyDir.mode in memory, too"),
    ("", "status", "stopSignal = ", "limpet shows the signal that is used; containerd 2.1 does not tell kubelet"),
    ("t-resources-of-pod", "cgroup", "at /kubepods", REQUESTS),
    ("t-resources-of-pod", "cgroup", "cpu/cpu.shares = ", REQUESTS),
    ("t-resources-of-pod", "status", "allocatedResources.", REQUESTS),
    ("t-resources-of-pod", "status", "resources.requests.", REQUESTS),
    ("t-resources-of-pod", "status", "qosClass = ", REQUESTS),
    (
        "t-restart-of-all",
        "status",
        "lastState.terminated.",
        "limpet shows how the containers ended; kubelet has removed them by then",
    ),
    ("processes-shared/", "process", "process 1: ", "there is no pause container"),
    (
        "s-out-of-device",
        "status",
        "",
        "kubelet runs it without the device, which it does not know; limpet waits for it",
    ),
    ("s-preempted", "status", "", "it waits for room as any other pod, and runs again once there is some"),
    ("s-out-of-memory", "status", "state.terminated.reason = ", "an OOM kill is reported as such, not as an error"),
    ("", "sysctls", "net.ipv4.ip_forward = ", "a network namespace begins with the node's own"),
    ("s-non-root", "status", "state.waiting.message", "the status of a pod need not name the pod"),
    ("s-sub-path-expression", "status", "state.waiting.message", "limpet names the mount"),
    (
        "s-no-seccomp-profile",
        "status",
        "state.waiting.",
        "limpet reads the profile itself, before it makes the container",
    ),
    ("s-image-back-off", "status", "state.waiting.message", "containerd's words are not limpet's, which pulls itself"),
    ("s-image-invalid", "status", "state.waiting.message", "limpet pulls itself"),
    ("s-image-", "status", "podIP", "limpet makes no sandbox before it has looked at the image"),
    ("s-no", "status", "terminated.message", "the words are those of the version of containerd"),
];

const REQUESTS: &str = "a static pod gets what an API pod gets: there kubelet leaves the requests that follow from limits to the apiserver";

/// Pods that kubelet refuses for good, and that wait with limpet until the reason has gone.
const WAITING: [&str; 6] = [
    "s-other-nodes",
    "s-out-of-cpu",
    "s-out-of-disk",
    "s-out-of-huge-pages",
    "s-out-of-memory-of-node",
    "s-port-taken",
];

/// The lines in which a waiting pod differs from a failed one.
const OF_WAITING: [&str; 4] = ["phase = ", "reason = ", "message = ", "conditions["];

/// The lines that depend on the moment of kubelet's next sync: it makes the sandbox before it pulls, and removes it at
/// the next sync of a pod that has ended. limpet makes it during the pull, and removes it at once.
const OF_SANDBOX: [&str; 3] = [
    "conditions[PodReadyToStartContainers].status",
    "conditions[PodReadyToStartContainers].reason",
    "conditions[PodReadyToStartContainers].message",
];

fn on_purpose() -> Vec<Known> {
    let waits = WAITING.into_iter().flat_map(|pod| OF_WAITING.map(|part| (pod, "status", part, "it waits")));
    let families = ["s-", "t-"].into_iter();
    let sandbox = families.flat_map(|family| OF_SANDBOX.map(|part| (family, "status", part, "kubelet looks later")));
    ON_PURPOSE.iter().copied().chain(waits).chain(sandbox).collect()
}

fn a_pod_under_limpet_is_as_under_kubelet(node: &mut TestNode) -> Result<()> {
    let cases = chosen()?;
    prepare(node, &node.agent.settings().root())?;
    node.agent.start()?;
    let stage = Stage::of_limpet(node);
    let (mut views, late) = observe(&cases, &stage, &node.agent, wait::SOON * 2)?;
    if let Some(path) = std::env::var_os("LIMPET_VIEWS") {
        fs::write(path, record::written(&views)?)?;
    }
    let mut recorded = record::of_kubelet(&manifests::dir())?;
    record::retain_common_devices(&mut recorded, &mut views, is_device_here);
    let findings = record::differing(&recorded, &views, &on_purpose());
    ensure!(findings.is_empty() && late.is_empty(), "{}\nnot in time:\n{}", findings.join("\n"), late.join("\n"));
    Ok(())
}

fn is_device_here(path: &str) -> bool {
    Path::new(path).exists()
}

/// Every fifth pod of the corpus, in the long form every one; with `LIMPET_TEST_VIEWS=text` those whose name contains
/// the text. With each comes the pod that has to run before it, and the one that waits for it.
fn chosen() -> Result<Vec<Case>> {
    let part = std::env::var("LIMPET_TEST_VIEWS").ok();
    let step = if suite::is_long() || part.is_some() { 1 } else { 5 };
    let part = part.unwrap_or_default();
    let mut all = manifests::cases(&manifests::dir())?;
    let named: Vec<_> = all.iter().filter(|case| case.name.contains(&part)).step_by(step).collect();
    let mut names: BTreeSet<String> = named.iter().map(|case| case.name.clone()).collect();
    // A pod that comes after a chosen one may be what ends that one.
    let waits = |case: &&Case| case.after.as_ref().is_some_and(|before| names.contains(before));
    let waiting: Vec<_> = all.iter().filter(waits).map(|case| case.name.clone()).collect();
    names.extend(waiting);
    let before = all.iter().filter(|case| names.contains(&case.name)).filter_map(|case| case.after.clone());
    names.extend(before.collect::<Vec<_>>());
    all.retain(|case| names.contains(&case.name));
    Ok(all)
}

fn kubelet_gives_what_is_recorded(node: &mut TestNode) -> Result<()> {
    let program = tools::kubernetes("kubelet").context("no kubelet; run: cargo xtask kubelet")?;
    let cases = chosen()?;
    let mut kubelet = Kubelet::prepare(&program, node)?;
    prepare(node, &kubelet.root())?;
    kubelet.reconfigure(|it| {
        settings().into_iter().for_each(|(key, value)| it[key] = value);
        // limpet has these features by default.
        it["featureGates"] = GATES.into_iter().map(|gate| (gate.to_owned(), json!(true))).collect();
    })?;
    kubelet.spawn()?;
    kubelet.wait_ready()?;
    let stage = Stage::of_kubelet(node, &kubelet);
    let (mut views, late) = observe(&cases, &stage, &kubelet, Duration::from_secs(200))?;
    let mut before = record::renew(&manifests::dir(), &views)?;
    record::retain_common_devices(&mut before, &mut views, is_device_here);
    let changed = record::differing(&before, &views, &on_purpose());
    println!("{} views of {} pods", views.len(), cases.len());
    ensure!(late.is_empty(), "not in time:\n{}\n{}", late.join("\n"), limpet_tests::process::tail(&kubelet.log(), 20));
    ensure!(changed.is_empty(), "kubelet does not give what was recorded; written anew:\n{}", changed.join("\n"));
    Ok(())
}
