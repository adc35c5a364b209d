//! Eviction under node pressure: which pods end when a disk is full, which stay, and that they run again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, ensure};
use limpet_tests::image::ImageBuilder;
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::container;
use limpet_tests::{TestNode, case, cgroup, image, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(the_pod_above_its_request_goes_and_comes_back).on(|node| {
            node.root_size = Some(128 << 20);
            node.kubelet = lines("nodefs.available", "48Mi", "8s");
        }),
        case!(more_is_reclaimed_than_the_threshold).on(|node| {
            node.root_size = Some(128 << 20);
            node.kubelet = lines("nodefs.available", "48Mi", "1s");
            node.kubelet.push("evictionMinimumReclaim: {nodefs.available: 48Mi}".to_owned());
        }),
        case!(a_soft_threshold_waits_and_leaves_time_to_end).on(|node| {
            node.root_size = Some(64 << 20);
            node.kubelet = [
                "evictionHard: {nodefs.available: 1Mi}",
                "evictionSoft: {nodefs.available: 32Mi}",
                "evictionSoftGracePeriod: {nodefs.available: 3s}",
                "evictionMaxPodGracePeriod: 20",
            ]
            .map(str::to_owned)
            .to_vec();
        }),
        case!(the_pod_with_the_most_files_goes_where_inodes_are_short).on(|node| {
            // A disk of this size has 16,384 inodes.
            node.root_size = Some(64 << 20);
            node.kubelet = lines("nodefs.inodesFree", "50%", "1s");
        }),
        case!(unused_images_go_before_pods).on(|node| {
            node.image_disk = Some(128 << 20);
            node.kubelet = lines("imagefs.available", "48Mi", "1s");
        }),
        case!(memory_is_reclaimed_and_critical_pods_stay),
        case!(all_pods_are_kept_within_what_is_not_reserved).on(|node| {
            let reserved = memory_of_the_node() - (OF_ALL_PODS >> 10);
            node.kubelet = lines("memory.available", "100Mi", "1s");
            node.kubelet.push(format!("systemReserved: {{memory: {reserved}Ki}}"));
        }),
        case!(memory_is_measured_when_processes_wait_for_it).on(|node| {
            // So much is available that memory is measured once a minute.
            node.kubelet = lines("memory.available", "1Mi", "1s");
        }),
        case!(memory_is_measured_more_often_the_less_is_left),
        case!(process_ids_are_reclaimed),
    ])
}

fn lines(signal: &str, value: &str, transition: &str) -> Vec<String> {
    vec![format!("evictionHard: {{{signal}: {value}}}"), format!("evictionPressureTransitionPeriod: {transition}")]
}

/// The memory that all pods may use if the rest is reserved.
const OF_ALL_PODS: u64 = 160 << 20;

/// The memory that is reserved for the node, in KiB, for systemReserved.
fn memory_of_the_node() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    total.and_then(|total| total.parse().ok()).unwrap_or_default()
}

/// A pod that writes so many MiB into an emptyDir while the flag is there, and requests so many.
fn writer(name: &str, flag: &Path, mib: u32, requested: u32) -> Value {
    let fill = format!("if [ -e /flag/{name} ]; then dd if=/dev/zero of=/data/big bs=1M count={mib}; fi; {IDLE}");
    let mounts = json!([{ "name": "data", "mountPath": "/data" }, { "name": "flag", "mountPath": "/flag" }]);
    let resources = json!({ "requests": { "ephemeral-storage": format!("{requested}Mi") } });
    let main = with(shell("main", &fill), json!({ "volumeMounts": mounts, "resources": resources }));
    let volumes = json!([{ "name": "data", "emptyDir": {} }, { "name": "flag", "hostPath": { "path": flag } }]);
    pod(name, json!({ "containers": [main], "volumes": volumes }))
}

fn flags(node: &TestNode, names: &[&str]) -> Result<PathBuf> {
    let dir = node.dir().join("flags");
    fs::create_dir_all(&dir)?;
    for name in names {
        fs::write(dir.join(name), "")?;
    }
    Ok(dir)
}

/// Applies a pod that is not of a manifest file, so that it ends however little that helps.
fn push(node: &TestNode, manifest: &Value) -> Result<()> {
    let file = node.dir().join("pushed.yaml");
    fs::write(&file, serde_json::to_string(manifest)?)?;
    node.agent.cli(&["apply", "-f", &file.to_string_lossy()])?.success()?;
    Ok(())
}

fn wait_evicted(node: &TestNode, name: &str) -> Result<Value> {
    node.wait_pod(name, "evicted", |pod| pod["status"]["phase"] == "Failed" && pod["status"]["reason"] == "Evicted")
}

fn the_pod_above_its_request_goes_and_comes_back(node: &mut TestNode) -> Result<()> {
    let dir = flags(node, &["within", "above"])?;
    node.apply(&writer("within", &dir, 32, 64))?;
    let within = node.wait_running("within")?;
    node.apply(&writer("above", &dir, 56, 1))?;
    let above = wait_evicted(node, "above")?;
    let message = above["status"]["message"].as_str().unwrap_or_default();
    ensure!(
        message.starts_with("The node was low on resource: ephemeral-storage. Threshold quantity: 48Mi, "),
        "{message}"
    );
    let conditions = above["status"]["conditions"].to_string();
    ensure!(conditions.contains("DisruptionTarget") && conditions.contains("TerminationByKubelet"), "{conditions}");
    for reason in ["EvictionThresholdMet", "NodeHasDiskPressure", "Evicted"] {
        node.wait_event(reason)?;
    }

    // Under pressure a manifest's pod starts, as with kubelet, and an applied one waits for the end of the pressure.
    push(node, &simple("pushed", IDLE))?;
    node.wait_pod("pushed", "waits", |pod| {
        pod["status"]["phase"] == "Pending" && pod["status"]["message"] == "The node had condition: [DiskPressure]. "
    })?;
    ensure!(node.agent.metrics()?.contains("limpet_node_pressure{condition=\"DiskPressure\"} 1"));
    node.apply(&simple("static", IDLE))?;
    node.wait_running("static")?;

    fs::remove_file(dir.join("above"))?;
    node.wait_running("above")?;
    node.wait_running("pushed")?;
    for reason in ["NodeHasNoDiskPressure", "EvictionOver"] {
        node.wait_event(reason)?;
    }
    let still = node.wait_running("within")?;
    ensure!(container(&still, "main")["containerID"] == container(&within, "main")["containerID"]);
    ensure!(container(&still, "main")["restartCount"] == 0);
    let metrics = node.agent.metrics()?;
    ensure!(metrics.contains("kubelet_evictions{eviction_signal=\"nodefs.available\"} 1"), "{metrics}");
    ensure!(metrics.contains("limpet_node_pressure{condition=\"DiskPressure\"} 0"), "{metrics}");
    Ok(())
}

fn more_is_reclaimed_than_the_threshold(node: &mut TestNode) -> Result<()> {
    let dir = flags(node, &["small", "large"])?;
    node.apply(&simple("web", IDLE))?;
    let web = node.wait_running("web")?;
    push(node, &writer("small", &dir, 38, 1))?;
    node.wait_running("small")?;
    push(node, &writer("large", &dir, 44, 1))?;
    wait_evicted(node, "large")?;
    // Without the larger pod the threshold is not met, but less is available than the minimum reclaim requires.
    wait_evicted(node, "small")?;
    let still = node.wait_running("web")?;
    ensure!(container(&still, "main")["containerID"] == container(&web, "main")["containerID"]);
    Ok(())
}

fn the_pod_with_the_most_files_goes_where_inodes_are_short(node: &mut TestNode) -> Result<()> {
    let dir = flags(node, &["few", "many"])?;
    let files = |name: &str, number: u32| {
        let fill = format!("if [ -e /flag/{name} ]; then cd /data; seq {number} | xargs touch; fi; {IDLE}");
        let mut manifest = writer(name, &dir, 1, 1);
        manifest["spec"]["containers"][0]["command"][2] = json!(fill);
        manifest
    };
    node.apply(&files("few", 3_000))?;
    let few = node.wait_running("few")?;
    node.apply(&files("many", 9_000))?;
    let many = wait_evicted(node, "many")?;
    let message = many["status"]["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("The node was low on resource: inodes. Threshold quantity: "), "{message}");
    node.wait_event("NodeHasDiskPressure")?;
    fs::remove_file(dir.join("many"))?;
    node.wait_running("many")?;
    node.wait_event("NodeHasNoDiskPressure")?;
    let still = node.wait_running("few")?;
    ensure!(container(&still, "main")["containerID"] == container(&few, "main")["containerID"]);
    let metric = "kubelet_evictions{eviction_signal=\"nodefs.inodesFree\"} 1";
    ensure!(node.agent.metrics()?.contains(metric), "no {metric}");
    Ok(())
}

fn a_soft_threshold_waits_and_leaves_time_to_end(node: &mut TestNode) -> Result<()> {
    let dir = flags(node, &["patient"])?;
    let mut manifest = writer("patient", &dir, 40, 1);
    let fill = manifest["spec"]["containers"][0]["command"][2].as_str().unwrap_or_default();
    let fill = fill.replace("trap 'exit 0' TERM", "trap 'sleep 2; echo done > /flag/ended; exit 0' TERM");
    manifest["spec"]["containers"][0]["command"][2] = json!(fill);
    manifest["spec"]["terminationGracePeriodSeconds"] = json!(30);
    node.apply(&manifest)?;
    let evicted = wait_evicted(node, "patient")?;
    ensure!(dir.join("ended").exists(), "it was not left the time to end");
    ensure!(container(&evicted, "main")["state"]["terminated"]["exitCode"] == 0, "{evicted:#}");
    fs::remove_file(dir.join("patient"))?;
    node.remove("patient")?;
    node.wait_gone("patient")
}

fn unused_images_go_before_pods(node: &mut TestNode) -> Result<()> {
    let filler: Vec<u8> =
        (0..24 << 20_usize).map(|index: usize| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let unused = ImageBuilder::new("registry.test/unused:v1").file("filler", filler, 0o644).build()?;
    let archive = node.dir().join("unused.tar");
    image::write_docker_archive(&[&unused], &archive)?;
    node.agent.cli(&["images", "import", &archive.to_string_lossy()])?.success()?;
    node.apply(&simple("web", IDLE))?;
    let before = node.wait_running("web")?;
    fs::write(node.containerd.root().join("filler"), vec![1; 30 << 20])?;
    wait::until_true(wait::SOON, "the removal of the image", || {
        let names = node.containerd.ctr(&["images", "ls", "-q"]);
        names.is_ok_and(|names| !names.contains("registry.test/unused"))
    })?;
    node.wait_event("NodeHasNoDiskPressure")?;
    let after = node.wait_running("web")?;
    ensure!(container(&before, "main")["containerID"] == container(&after, "main")["containerID"]);
    ensure!(!node.agent.metrics()?.contains("kubelet_evictions{"), "a pod was ended");
    Ok(())
}

/// A critical pod, which uses more than any other and must not end.
fn critical(script: &str) -> Value {
    with(simple("critical", script), json!({ "spec": { "priorityClassName": "system-cluster-critical" } }))
}

fn memory_is_reclaimed_and_critical_pods_stay(node: &mut TestNode) -> Result<()> {
    let hog = |mib: u32| format!("dd if=/dev/zero of=/dev/shm/hog bs=1M count={mib}; {IDLE}");
    node.apply(&critical(&hog(48)))?;
    let before = node.wait_running("critical")?;
    push(node, &simple("hog", &hog(24)))?;
    node.wait_running("hog")?;
    // So much is never available, so the node need not run short of it.
    restart_under_pressure(node, "memory.available", "99.9%")?;
    let evicted = wait_evicted(node, "hog")?;
    let message = evicted["status"]["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("The node was low on resource: memory. Threshold quantity: "), "{message}");
    ensure!(message.contains("Container main was using ") && message.contains(", request is 0, "), "{message}");
    node.wait_event("NodeHasInsufficientMemory")?;
    let after = node.wait_running("critical")?;
    ensure!(container(&before, "main")["containerID"] == container(&after, "main")["containerID"]);
    Ok(())
}

/// Restarts the agent with a threshold that is always met. The pods have to run already, because a pod that is applied
/// under pressure does not start.
fn restart_under_pressure(node: &mut TestNode, signal: &str, threshold: &str) -> Result<()> {
    node.agent.kill();
    node.agent.reconfigure(|settings| settings.kubelet = lines(signal, threshold, "1s"))?;
    node.agent.start()
}

fn all_pods_are_kept_within_what_is_not_reserved(node: &mut TestNode) -> Result<()> {
    node.wait_event("NodeAllocatableEnforced")?;
    let hog = |mib: u32| format!("dd if=/dev/zero of=/dev/shm/hog bs=1M count={mib}; {IDLE}");
    push(node, &simple("calm", &hog(8)))?;
    let calm = node.wait_running("calm")?;
    let (limit, _) = cgroup::limits_of_all_pods(node, &calm)?;
    ensure!(limit == OF_ALL_PODS.to_string(), "{limit}");
    // 100 MiB have to stay available.
    push(node, &simple("hog", &hog(60)))?;
    let evicted = wait_evicted(node, "hog")?;
    let message = evicted["status"]["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("The node was low on resource: memory. Threshold quantity: 100Mi, "), "{message}");
    node.wait_event("NodeHasInsufficientMemory")?;
    let metric = "kubelet_evictions{eviction_signal=\"allocatableMemory.available\"} 1";
    wait::until_true(wait::SOON, metric, || node.agent.metrics().is_ok_and(|metrics| metrics.contains(metric)))?;
    let still = node.wait_running("calm")?;
    ensure!(container(&still, "main")["containerID"] == container(&calm, "main")["containerID"]);
    // The pod uses more than all may have at once. The kernel reports it before memory is measured again.
    let before = node.agent.log_size();
    let fill = format!("for dir in /dev/shm /a /b; do fallocate -l 58M $dir/hog; done; {IDLE}");
    let mut greedy = simple("greedy", &fill);
    // Each volume is as large as what pods may request, 60 MiB.
    greedy["spec"]["volumes"] =
        ["a", "b"].map(|name| json!({ "name": name, "emptyDir": { "medium": "Memory" } })).to_vec().into();
    greedy["spec"]["containers"][0]["volumeMounts"] =
        ["a", "b"].map(|name| json!({ "name": name, "mountPath": format!("/{name}") })).to_vec().into();
    push(node, &greedy)?;
    let alarm = "the pods have used up the available memory";
    wait::until_true(wait::SOON, alarm, || node.agent.log_from(before).contains(alarm))
}

fn process_ids_are_reclaimed(node: &mut TestNode) -> Result<()> {
    let forks = |number: u32| format!("for i in $(seq {number}); do sleep 100000 & done; {IDLE}");
    node.apply(&critical(&forks(20)))?;
    node.wait_running("critical")?;
    push(node, &simple("forks", &forks(10)))?;
    node.wait_running("forks")?;
    let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    let limits = limits.iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    let all = limits.min().unwrap_or_default();
    restart_under_pressure(node, "pid.available", &format!("'{all}'"))?;
    let evicted = wait_evicted(node, "forks")?;
    let message = evicted["status"]["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("The node was low on resource: pids. Threshold quantity: "), "{message}");
    node.wait_event("NodeHasInsufficientPID")?;
    node.wait_running("critical").map(drop)
}

/// This holds whether or not the kernel reports processes that wait for memory: memory may fall below the threshold
/// without that.
fn memory_is_measured_more_often_the_less_is_left(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    node.wait_running("web")?;
    let measured = |log: &str| -> Option<(u64, u64)> {
        let mut lines = log.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let line = lines.find(|line| line["message"] == "node resources measured")?;
        let pause = line["again_in"].as_str()?.strip_suffix('s')?.parse::<f64>().ok()?;
        Some((line["memory_available"].as_u64()?, pause as u64))
    };
    let mut pause_at = |threshold: u64| -> Result<(u64, u64)> {
        node.agent.kill();
        let before = node.agent.log_size();
        let threshold = format!("{}Ki", threshold >> 10);
        node.agent.reconfigure(|settings| settings.kubelet = lines("memory.available", &threshold, "1s"))?;
        node.agent.start()?;
        wait::until(wait::SOON, "a measurement", || measured(&node.agent.log_from(before)))
    };
    // First nearly all memory may be used, and then only 300 MiB of what is available.
    let (left, seldom) = pause_at(1 << 20)?;
    let (_, often) = pause_at(left.saturating_sub(300 << 20))?;
    ensure!(often == 10 && seldom > often, "{often} s, and {seldom} s with {left} bytes left");
    Ok(())
}

/// Processes wait at the limit of their own container, too, because its page cache is smaller than the files that they
/// read again and again.
fn memory_is_measured_when_processes_wait_for_it(node: &mut TestNode) -> Result<()> {
    if fs::metadata("/proc/pressure/memory").is_err() {
        println!("this kernel does not report pressure");
        return Ok(());
    }
    let read = "while :; do cat /data/$i > /dev/null; done";
    let script = format!(
        "for i in 1 2 3 4; do dd if=/dev/zero of=/data/$i bs=1M count=16; done; \
         for i in 1 2 3 4; do (until [ -e /flag/read ]; do sleep 0.1; done; {read}) & done; {IDLE}"
    );
    let dir = flags(node, &[])?;
    let mounts = json!([{ "name": "data", "mountPath": "/data" }, { "name": "flag", "mountPath": "/flag" }]);
    let resources = json!({ "limits": { "memory": "16Mi" } });
    let main = with(shell("main", &script), json!({ "volumeMounts": mounts, "resources": resources }));
    let volumes = json!([{ "name": "data", "emptyDir": {} }, { "name": "flag", "hostPath": { "path": dir } }]);
    node.apply(&pod("reader", json!({ "containers": [main], "volumes": volumes })))?;
    node.wait_running("reader")?;
    let before = node.agent.log_size();
    flags(node, &["read"])?;
    let logged = |message: &str, field: &str, value: Value| {
        let log = node.agent.log_from(before);
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.any(|line| line["message"] == message && line[field] == value)
    };
    let rung = "the kernel reports processes that wait";
    wait::until_true(wait::SOON, rung, || logged(rung, "resource", json!("MemoryPressure")))?;
    let measured = "node resources measured";
    wait::until_true(wait::SOON, "a measurement for it", || logged(measured, "memory_stalled", json!(true)))
}
