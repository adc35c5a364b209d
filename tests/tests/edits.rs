//! Edits of image and resources: the edited version runs, whatever its container's role, and whether or not it had
//! finished.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cgroup::{main_limits, main_process, pod_limits};
use limpet_tests::image::{V1, V2};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, suite, wait};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(an_edit_of_a_container_that_may_stay_stopped_makes_a_new_pod),
        case!(an_edit_of_what_has_finished_runs_it),
        case!(an_edit_of_an_init_container_makes_a_new_pod),
        case!(of_quick_edits_only_the_last_one_starts),
        case!(an_edit_while_the_agent_is_away_is_carried_out),
        case!(cpu_and_memory_change_without_a_restart),
        case!(a_resource_whose_policy_says_so_restarts_its_container),
        case!(a_pods_own_cpu_and_memory_change_without_a_restart),
        case!(a_memory_limit_below_what_is_used_waits),
        case!(a_resize_that_does_not_fit_waits_for_room),
    ])
}

/// A container that writes its name and its image's version into `/shared/runs` when it runs.
fn noted(name: &str, then: &str) -> Value {
    let script = format!("echo {name} $(cat /version) >> /shared/runs; {then}");
    with(shell(name, &script), json!({ "volumeMounts": [{ "name": "shared", "mountPath": "/shared" }] }))
}

fn job(node: &TestNode, spec: Value) -> Result<Value> {
    let shared = node.dir().join("shared");
    fs::create_dir_all(&shared)?;
    Ok(pod("job", with(spec, json!({ "volumes": [{ "name": "shared", "hostPath": { "path": shared } }] }))))
}

/// `manifest` with the second image in the container at `pointer`.
fn edited(manifest: &Value, pointer: &str) -> Value {
    let mut edited = manifest.clone();
    if let Some(container) = edited.pointer_mut(pointer) {
        container["image"] = V2.into();
    }
    edited
}

fn runs(node: &TestNode) -> String {
    fs::read_to_string(node.dir().join("shared/runs")).unwrap_or_default()
}

fn wait_runs(node: &TestNode, expected: &str) -> Result<()> {
    wait::until_true(wait::SOON, &format!("{expected:?} to have run"), || runs(node) == expected)
}

/// The output of `limpet diff` about the manifest.
fn forecast(node: &TestNode, manifest: &Value) -> Result<String> {
    let file = node.dir().join("edited.yaml");
    fs::write(&file, manifest.to_string())?;
    Ok(node.agent.cli(&["diff", "-f", &file.to_string_lossy()])?.stdout)
}

fn an_edit_of_a_container_that_may_stay_stopped_makes_a_new_pod(node: &mut TestNode) -> Result<()> {
    let manifest = job(node, json!({ "restartPolicy": "OnFailure", "containers": [noted("main", IDLE)] }))?;
    node.apply(&manifest)?;
    let before = node.wait_running("job")?;
    let edited = edited(&manifest, "/spec/containers/0");
    let said = forecast(node, &edited)?;
    ensure!(said.contains("recreates: the pod (container main is not started again under"), "{said}");
    node.apply(&edited)?;
    wait_runs(node, "main 1\nmain 2\n")?;
    let after = node.wait_running("job")?;
    ensure!(container(&after, "main")["restartCount"] == 0, "{}", after["status"]);
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "its uid is of what cannot change in place");
    let history = node.agent.cli(&["history", "job"])?.success()?;
    ensure!(history.contains("recreated the pod") && !history.contains("restarted main"), "{history}");
    Ok(())
}

fn an_edit_of_what_has_finished_runs_it(node: &mut TestNode) -> Result<()> {
    let containers = json!([noted("main", "exit 0"), noted("side", "exit 0")]);
    let manifest = job(node, json!({ "restartPolicy": "Never", "containers": containers }))?;
    node.apply(&manifest)?;
    let done = |pod: &Value| pod["status"]["phase"] == "Succeeded";
    node.wait_pod("job", "completed", done)?;
    fs::remove_file(node.dir().join("shared/runs"))?;
    node.apply(&edited(&manifest, "/spec/containers/0"))?;
    let both = || {
        let text = runs(node);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines == ["main 2", "side 1"]
    };
    wait::until_true(wait::SOON, "both to have run again", both)?;
    let after = node.wait_pod("job", "completed again", done)?;
    ensure!(container(&after, "main")["image"] == V2, "{}", after["status"]);
    Ok(())
}

fn an_edit_of_an_init_container_makes_a_new_pod(node: &mut TestNode) -> Result<()> {
    let spec = json!({ "initContainers": [noted("prepare", "true")], "containers": [noted("main", IDLE)] });
    let manifest = job(node, spec)?;
    node.apply(&manifest)?;
    let before = node.wait_running("job")?;
    let edited = edited(&manifest, "/spec/initContainers/0");
    let said = forecast(node, &edited)?;
    ensure!(said.contains("recreates: the pod (init container prepare runs again only in a new pod)"), "{said}");
    node.apply(&edited)?;
    wait_runs(node, "prepare 1\nmain 1\nprepare 2\nmain 1\n")?;
    // The pod keeps its UID. A client that knows the old containers by their ids does not take the new ones for them.
    let after = node.wait_running("job")?;
    ensure!(before["metadata"]["uid"] == after["metadata"]["uid"], "{}", after["metadata"]);
    ensure!(container_id(&before, "main")? != container_id(&after, "main")?, "{}", after["status"]);
    ensure!(container(&after, "main")["restartCount"] == 0, "{}", after["status"]);
    Ok(())
}

fn of_quick_edits_only_the_last_one_starts(node: &mut TestNode) -> Result<()> {
    let version = |name: &str| {
        // The container ends once all edits have arrived.
        const SLOW: &str = "trap 'until [ -e /shared/go ]; do sleep 0.1; done; exit 0' TERM; sleep 100000 & wait";
        let mut manifest =
            job(node, json!({ "terminationGracePeriodSeconds": 60, "containers": [noted(name, SLOW)] }))?;
        manifest["spec"]["containers"][0]["name"] = "main".into();
        Ok::<_, anyhow::Error>(manifest)
    };
    let versions = ["first", "second", "third", "fourth"].map(version);
    let [first, later @ ..] = versions;
    node.apply(&first?)?;
    wait_runs(node, "first 1\n")?;
    for edited in later {
        let log = node.agent.log_size();
        node.apply(&edited?)?;
        wait::until_true(wait::SOON, "the edit to be noticed", || node.agent.log_from(log).contains("SyncLoop ADD"))?;
        ensure!(runs(node) == "first 1\n", "started before the one before it had ended: {}", runs(node));
    }
    fs::write(node.dir().join("shared/go"), "")?;
    wait_runs(node, "first 1\nfourth 1\n")?;
    node.wait_running("job")?;
    ensure!(runs(node) == "first 1\nfourth 1\n", "{}", runs(node));
    Ok(())
}

fn an_edit_while_the_agent_is_away_is_carried_out(node: &mut TestNode) -> Result<()> {
    let spec = json!({
        "restartPolicy": "Never", "initContainers": [noted("prepare", "true")], "containers": [noted("main", "exit 3")],
    });
    let manifest = job(node, spec)?;
    node.apply(&manifest)?;
    node.wait_pod("job", "failed", |pod| pod["status"]["phase"] == "Failed")?;
    node.agent.kill();
    node.apply(&edited(&manifest, "/spec/containers/0"))?;
    node.agent.start()?;
    wait_runs(node, "prepare 1\nmain 1\nprepare 1\nmain 2\n")?;
    node.agent.kill();
    node.agent.start()?;
    node.apply(&pod("mark", json!({ "containers": [shell("main", IDLE)] })))?;
    node.wait_running("mark")?;
    ensure!(runs(node) == "prepare 1\nmain 1\nprepare 1\nmain 2\n", "{}", runs(node));
    Ok(())
}

fn limited(script: &str, cpu: &str, memory: &str) -> Value {
    let resources = json!({ "requests": { "cpu": "10m" }, "limits": { "cpu": cpu, "memory": memory } });
    pod("web", json!({ "containers": [with(shell("main", script), json!({ "resources": resources }))] }))
}

fn cpu_and_memory_change_without_a_restart(node: &mut TestNode) -> Result<()> {
    let wanted = |memory: u64, quota: &str| ((memory << 20).to_string(), quota.to_owned());
    node.apply(&limited(IDLE, "100m", "64Mi"))?;
    let before = node.wait_running("web")?;
    let (id, pid) = (container_id(&before, "main")?, main_process(node, &before)?);
    let said = forecast(node, &limited(IDLE, "500m", "256Mi"))?;
    ensure!(said.contains("resizes in place: container main"), "{said}");
    for (cpu, memory, limits) in [("500m", "256Mi", wanted(256, "50000")), ("200m", "32Mi", wanted(32, "20000"))] {
        node.apply(&limited(IDLE, cpu, memory))?;
        wait::until_true(wait::SOON, "the cgroups of pod and container", || {
            let values = [pod_limits(node, &before), main_limits(node, &before)];
            values.iter().all(|value| value.as_ref().is_ok_and(|value| *value == limits))
        })?;
    }
    node.wait_event("ResizeCompleted")?;
    // An agent that starts finds the container with the right limits.
    node.agent.kill();
    node.agent.start()?;
    node.apply(&pod("mark", json!({ "containers": [shell("main", IDLE)] })))?;
    node.wait_running("mark")?;
    let after = node.wait_running("web")?;
    ensure!(container_id(&after, "main")? == id && main_process(node, &after)? == pid, "{}", after["status"]);
    let main = container(&after, "main");
    ensure!(main["resources"]["limits"] == json!({ "cpu": "200m", "memory": "32Mi" }), "{main}");
    ensure!(main["allocatedResources"]["cpu"] == "10m", "{main}");
    let history = node.agent.cli(&["history", "web"])?.success()?;
    ensure!(history.contains("resized in place main") && !history.contains("restarted main"), "{history}");
    // A container that is started later has the new limits.
    rustix::process::kill_process(Pid::from_raw(i32::try_from(pid)?).context("no process")?, Signal::KILL)?;
    let next = node.wait_pod("web", "restarted", |pod| {
        container(pod, "main")["restartCount"] == 1 && container(pod, "main")["state"]["running"].is_object()
    })?;
    ensure!(main_limits(node, &next)? == wanted(32, "20000"), "{:?}", main_limits(node, &next));
    Ok(())
}

fn a_resource_whose_policy_says_so_restarts_its_container(node: &mut TestNode) -> Result<()> {
    let web = |cpu: &str, memory: &str| {
        let mut web = limited(IDLE, cpu, memory);
        let restart = |resource: &str, policy: &str| json!({ "resourceName": resource, "restartPolicy": policy });
        let policies = json!([restart("cpu", "NotRequired"), restart("memory", "RestartContainer")]);
        web["spec"]["containers"][0]["resizePolicy"] = policies;
        let containers = web["spec"]["containers"].as_array_mut();
        containers.into_iter().for_each(|containers| containers.push(shell("beside", IDLE)));
        web
    };
    node.apply(&web("100m", "64Mi"))?;
    let before = node.wait_running("web")?;
    let wanted = |memory: u64, quota: &str| ((memory << 20).to_string(), quota.to_owned());
    node.apply(&web("500m", "64Mi"))?;
    wait::until_true(wait::SOON, "the cgroup of the container", || {
        main_limits(node, &before).is_ok_and(|value| value == wanted(64, "50000"))
    })?;
    let resized = node.wait_running("web")?;
    ensure!(container_id(&resized, "main")? == container_id(&before, "main")?, "{}", resized["status"]);

    let said = forecast(node, &web("500m", "128Mi"))?;
    ensure!(said.contains("restarts: container main"), "{said}");
    node.apply(&web("500m", "128Mi"))?;
    let after = node.wait_pod("web", "restarted", |pod| {
        container(pod, "main")["restartCount"] == 1 && container(pod, "main")["state"]["running"].is_object()
    })?;
    ensure!(main_limits(node, &after)? == wanted(128, "50000"), "{:?}", main_limits(node, &after));
    ensure!(container_id(&after, "beside")? == container_id(&before, "beside")?, "{}", after["status"]);
    let same = |pointer: &str| after.pointer(pointer) == before.pointer(pointer);
    ensure!(same("/metadata/uid") && same("/status/podIP") && same("/status/startTime"), "{after}");
    ensure!(container(&after, "main")["resources"]["limits"]["memory"] == "128Mi", "{}", after["status"]);
    node.wait_event("ResizeCompleted")
}

fn a_pods_own_cpu_and_memory_change_without_a_restart(node: &mut TestNode) -> Result<()> {
    let shared = |resources: Value| pod("web", json!({ "resources": resources, "containers": [shell("main", IDLE)] }));
    let limits =
        |cpu: &str, memory: &str| json!({ "requests": { "cpu": "10m" }, "limits": { "cpu": cpu, "memory": memory } });
    node.apply(&shared(limits("100m", "64Mi")))?;
    let before = node.wait_running("web")?;
    let pid = main_process(node, &before)?;
    let said = forecast(node, &shared(limits("500m", "256Mi")))?;
    ensure!(said.contains("resizes in place: container main"), "{said}");
    node.apply(&shared(limits("500m", "256Mi")))?;
    wait::until_true(wait::SOON, "the cgroups of pod and container", || {
        let wanted = ((256_u64 << 20).to_string(), "50000".to_owned());
        let values = [pod_limits(node, &before), main_limits(node, &before)];
        values.iter().all(|value| value.as_ref().is_ok_and(|value| *value == wanted))
    })?;
    let after = node.wait_running("web")?;
    ensure!(main_process(node, &after)? == pid && after["metadata"]["uid"] == before["metadata"]["uid"], "{after}");
    // A limit that is removed does not change in place.
    let said = forecast(node, &shared(json!({ "requests": { "cpu": "10m" }, "limits": { "cpu": "500m" } })))?;
    ensure!(!said.contains("in place"), "{said}");
    node.apply(&shared(json!({ "requests": { "cpu": "10m" }, "limits": { "cpu": "500m" } })))?;
    node.wait_pod("web", "in a new container", |pod| {
        container(pod, "main")["state"]["running"].is_object() && main_process(node, pod).is_ok_and(|new| new != pid)
    })?;
    Ok(())
}

fn a_memory_limit_below_what_is_used_waits(node: &mut TestNode) -> Result<()> {
    let script = "x=$(head -c 24000000 /dev/zero | tr '\\0' a); echo full; while :; do sleep 1; done";
    node.apply(&limited(script, "200m", "128Mi"))?;
    let before = node.wait_running("web")?;
    node.wait_logged("web", "main", "full")?;
    node.apply(&limited(script, "200m", "16Mi"))?;
    let waits = |pod: &Value| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == "PodResizeInProgress" && condition["reason"] == "Error")
    };
    let pod = node.wait_pod("web", "waiting for less memory to be used", waits)?;
    ensure!(pod["status"].to_string().contains("below current usage"), "{}", pod["status"]);
    ensure!(container(&pod, "main")["resources"]["limits"]["memory"] == "128Mi", "{}", pod["status"]);
    ensure!(main_limits(node, &before)?.0 == (128_u64 << 20).to_string(), "{:?}", main_limits(node, &before));
    node.apply(&limited(script, "200m", "96Mi"))?;
    let after = node.wait_pod("web", "resized", |pod| !pod["status"].to_string().contains("PodResizeInProgress"))?;
    ensure!(main_limits(node, &before)?.0 == (96_u64 << 20).to_string(), "{:?}", main_limits(node, &before));
    ensure!(container_id(&after, "main")? == container_id(&before, "main")?, "{}", after["status"]);
    Ok(())
}

fn a_resize_that_does_not_fit_waits_for_room(node: &mut TestNode) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    let asks = |name: &str, image: &str, milli: usize| {
        let more = json!({ "image": image, "resources": { "requests": { "cpu": format!("{milli}m") } } });
        pod(name, json!({ "containers": [with(shell("main", IDLE), more)] }))
    };
    node.apply(&asks("large", V1, cores * 1_000 - 500))?;
    node.apply(&asks("web", V1, 400))?;
    node.wait_running("large")?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    node.apply(&asks("web", V1, 900))?;
    let pending = |pod: &Value| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.find(|condition| condition["type"] == "PodResizePending").cloned()
    };
    let deferred = node.wait_pod("web", "deferred", |pod| pending(pod).is_some())?;
    let condition = pending(&deferred).unwrap_or_default();
    ensure!(condition["status"] == "True" && condition["reason"] == "Deferred", "{condition}");
    let message = condition["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("Node didn't have enough resource: cpu, requested: 900, used: "), "{message}");
    ensure!(deferred["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "900m", "{deferred}");
    let main = container(&deferred, "main");
    ensure!(main["allocatedResources"]["cpu"] == "400m" && main["resources"]["requests"]["cpu"] == "400m", "{main}");
    node.wait_event("Pod resize OutOfcpu: {")?;
    // Other edits take effect, and an agent that starts finds the resize still waiting.
    node.apply(&asks("web", V2, 900))?;
    node.wait_pod("web", "of another image", |pod| container_id(pod, "main").is_ok_and(|now| now != id))?;
    node.agent.kill();
    node.agent.start()?;
    let deferred = node.wait_pod("web", "deferred again", |pod| pending(pod).is_some())?;
    let (id, main) = (container_id(&deferred, "main")?, container(&deferred, "main"));
    ensure!(main["allocatedResources"]["cpu"] == "400m", "{main}");
    node.remove("large")?;
    let resized = node.wait_pod("web", "resized", |pod| {
        pending(pod).is_none() && container(pod, "main")["resources"]["requests"]["cpu"] == "900m"
    })?;
    ensure!(container(&resized, "main")["allocatedResources"]["cpu"] == "900m", "{resized}");
    ensure!(container_id(&resized, "main")? == id, "{resized}");
    node.wait_event("ResizeCompleted")
}
