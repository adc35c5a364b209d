//! Workloads of the node's own sources: what their controllers make of them, with a real containerd.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, case, image, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_deployment_is_scaled_and_rolled_out),
        case!(a_rollout_outlives_the_agent_and_the_database),
        case!(an_applied_deployment_is_stored_and_deleted),
        case!(a_rollout_is_undone_and_held),
        case!(a_daemon_set_of_a_broken_file_stays),
        case!(a_stateful_set_keeps_its_ordinals).on(|node| node.cni = true),
        case!(an_indexed_job_finishes_once).on(|node| node.cni = true),
        case!(a_job_that_fails_says_why),
        case!(a_cron_job_begins_jobs_by_its_schedule),
    ])
}

/// A workload called `web` whose containers run `script`, with further fields of its spec.
fn workload(kind: &str, image: &str, script: &str, spec: Value) -> Value {
    let container = with(shell("main", script), json!({ "image": image }));
    let template = json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [container] },
    });
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": "web" },
        "spec": with(json!({ "selector": { "matchLabels": { "app": "web" } }, "template": template }), spec),
    })
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn image_of(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default()
}

/// The workload's pods.
fn pods(node: &TestNode) -> Result<Vec<Value>> {
    let owned = |pod: &Value| pod["metadata"]["annotations"]["limpet.dev/owner"].is_string();
    Ok(node.pods()?.into_iter().filter(owned).collect())
}

/// Waits until the workload's pods are as described.
fn wait_pods(node: &TestNode, what: &str, accept: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>> {
    wait::until(wait::SOON, what, || pods(node).ok().filter(|pods| accept(pods)))
        .with_context(|| format!("{:#}", Value::from(pods(node).unwrap_or_default())))
}

/// Waits until there are `count` pods of `image`, all of them ready, and no others.
fn wait_ready(node: &TestNode, count: usize, image: &str) -> Result<Vec<Value>> {
    wait_pods(node, &format!("{count} ready pods of {image}"), |pods| {
        pods.len() == count && pods.iter().all(|pod| is_ready(pod) && image_of(pod) == image)
    })
}

fn containers(pods: &[Value]) -> Result<Vec<String>> {
    let mut ids = pods.iter().map(|pod| container_id(pod, "main")).collect::<Result<Vec<_>>>()?;
    ids.sort();
    Ok(ids)
}

fn write(node: &TestNode, workload: &Value) -> Result<()> {
    node.drop_text("web.yaml", &workload.to_string())
}

fn a_deployment_is_scaled_and_rolled_out(node: &mut TestNode) -> Result<()> {
    let deployment = |image: &str, replicas: u32| workload("Deployment", image, IDLE, json!({ "replicas": replicas }));
    write(node, &deployment(image::V1, 2))?;
    let first = wait_ready(node, 2, image::V1)?;
    let (metadata, ids) = (&first[0]["metadata"], containers(&first)?);
    let hash = metadata["labels"]["pod-template-hash"].as_str().context("no pod-template-hash")?;
    let name = metadata["name"].as_str().unwrap_or_default();
    ensure!(name.starts_with(&format!("web-{hash}-")) && name.len() == "web--".len() + hash.len() + 5, "{name}");
    ensure!(metadata["ownerReferences"][0]["name"] == format!("web-{hash}"), "{metadata}");
    let described = node.agent.cli(&["describe", name])?.success()?;
    ensure!(described.contains(&format!("ReplicaSet/web-{hash}")), "{described}");

    node.agent.kill();
    node.agent.start()?;
    ensure!(containers(&wait_ready(node, 2, image::V1)?)? == ids, "restarted by the agent's restart");
    write(node, &deployment(image::V1, 3))?;
    let more = containers(&wait_ready(node, 3, image::V1)?)?;
    ensure!(ids.iter().all(|id| more.contains(id)), "restarted by a new number of replicas");
    write(node, &deployment(image::V2, 3))?;
    let updated = containers(&wait_ready(node, 3, image::V2)?)?;
    ensure!(updated.iter().all(|id| !more.contains(id)), "{updated:?}");
    node.remove("web")?;
    wait_pods(node, "no pods", <[Value]>::is_empty)?;
    node.wait_nothing_runs()
}

/// The update does not get ready, and the agent is killed meanwhile.
fn a_rollout_outlives_the_agent_and_the_database(node: &mut TestNode) -> Result<()> {
    let strategy = json!({ "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
    let spec = json!({ "replicas": 2, "strategy": strategy });
    write(node, &workload("Deployment", image::V1, IDLE, spec.clone()))?;
    let first = containers(&wait_ready(node, 2, image::V1)?)?;
    let mut broken = workload("Deployment", image::V2, IDLE, spec.clone());
    broken["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] =
        json!({ "exec": { "command": ["/bin/false"] } });
    write(node, &broken)?;
    let is_stuck = |pods: &[Value]| {
        let running = |pod: &&Value| container_id(pod, "main").is_ok();
        pods.len() == 3
            && pods.iter().filter(running).count() == 3
            && pods.iter().filter(|pod| is_ready(pod)).count() == 2
    };
    let stuck = containers(&wait_pods(node, "a rollout that is stuck", is_stuck)?)?;
    ensure!(first.iter().all(|id| stuck.contains(id)), "an old pod has gone: {first:?} {stuck:?}");
    node.agent.kill();
    node.agent.start()?;
    ensure!(containers(&wait_pods(node, "the same after a kill", is_stuck)?)? == stuck, "restarted");
    node.agent.kill();
    fs::remove_file(node.agent.settings().root().join("limpet.db"))?;
    node.agent.start()?;
    ensure!(containers(&wait_pods(node, "the same without the database", is_stuck)?)? == stuck, "restarted");
    write(node, &workload("Deployment", image::V2, IDLE, spec))?;
    wait_ready(node, 2, image::V2).map(drop)
}

fn an_applied_deployment_is_stored_and_deleted(node: &mut TestNode) -> Result<()> {
    let deployment = workload("Deployment", image::V1, IDLE, json!({ "replicas": 1 })).to_string();
    let apply = |text: &str| node.agent.cli_with_input(&["apply", "-f", "-"], text.as_bytes());
    ensure!(apply(&deployment)?.success()? == "deployment.apps/web created\n");
    let ids = containers(&wait_ready(node, 1, image::V1)?)?;
    ensure!(apply(&deployment)?.success()? == "deployment.apps/web unchanged\n");
    let refused = apply(&deployment.replace("\"replicas\":1", "\"replicas\":-1"))?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("spec.replicas"), "{refused:?}");
    node.agent.kill();
    node.agent.start()?;
    ensure!(containers(&wait_ready(node, 1, image::V1)?)? == ids, "restarted");
    let wide = node.agent.cli(&["pods", "-o", "wide"])?.success()?;
    ensure!(wide.contains("Deployment/web"), "{wide}");
    let scaled = node.agent.cli(&["scale", "deployment/web", "--replicas", "2"])?.success()?;
    ensure!(scaled == "deployment.apps/web scaled\n", "{scaled}");
    ensure!(containers(&wait_ready(node, 2, image::V1)?)?.contains(&ids[0]), "restarted by another number");
    let missing = node.agent.cli(&["scale", "deploy/other", "--replicas", "2"])?;
    ensure!(
        missing.code == Some(1) && missing.stderr.contains("no deployment.apps other in namespace default"),
        "{missing:?}"
    );
    let said = node.agent.cli(&["delete", "deployment", "web"])?.success()?;
    ensure!(said == "deployment.apps \"web\" deleted\n", "{said}");
    wait_pods(node, "no pods", <[Value]>::is_empty).map(drop)
}

/// The history names each template with its cause, also after a restart of the agent, and an undo returns to one.
fn a_rollout_is_undone_and_held(node: &mut TestNode) -> Result<()> {
    let version = |image: &str, cause: &str| {
        let mut web = workload("Deployment", image, IDLE, json!({ "replicas": 2 }));
        web["metadata"]["annotations"] = json!({ "kubernetes.io/change-cause": cause });
        web
    };
    let apply = |node: &TestNode, document: &Value| {
        let path = node.dir().join("web.json");
        fs::write(&path, document.to_string())?;
        node.agent.cli(&["apply", "-f", &path.to_string_lossy()])?.success().map(drop)
    };
    let rollout = |node: &TestNode, arguments: &[&str]| {
        let output = node.agent.cli(&[&["rollout", arguments[0], "deployment/web"], &arguments[1..]].concat())?;
        anyhow::Ok((output.code, output.stdout, output.stderr))
    };
    apply(node, &version(image::V1, "the first"))?;
    let first = containers(&wait_ready(node, 2, image::V1)?)?;
    let (_, _, refused) = rollout(node, &["undo"])?;
    ensure!(refused.contains("no last revision to roll back to"), "{refused}");
    apply(node, &version(image::V2, "the second"))?;
    wait_ready(node, 2, image::V2)?;
    node.agent.kill();
    node.agent.start()?;
    let history = "deployment.apps/web\nREVISION   CHANGE-CAUSE\n1          the first\n2          the second\n";
    let shown = rollout(node, &["history"])?.1;
    ensure!(shown == history, "{shown}");
    let (_, template, _) = rollout(node, &["history", "--revision", "1"])?;
    ensure!(
        template.starts_with("deployment.apps/web with revision #1\n") && template.contains(image::V1),
        "{template}"
    );
    ensure!(rollout(node, &["undo"])?.1 == "deployment.apps/web rolled back\n");
    let third = containers(&wait_ready(node, 2, image::V1)?)?;
    ensure!(third.iter().all(|id| !first.contains(id)), "{third:?}");
    let shown = rollout(node, &["history", "-o", "json"])?.1;
    let numbers: Vec<Value> = serde_json::from_str(&shown)?;
    ensure!(numbers.iter().map(|revision| &revision["number"]).eq([2, 3].iter()), "{shown}");
    let skipped = rollout(node, &["undo", "--to-revision", "3"])?.1;
    ensure!(skipped.contains("skipped rollback (current template already matches revision 3)"), "{skipped}");
    let (code, _, missing) = rollout(node, &["undo", "--to-revision", "1"])?;
    ensure!(code == Some(1) && missing.contains("unable to find specified revision 1 in history"), "{missing}");
    ensure!(rollout(node, &["pause"])?.1 == "deployment.apps/web paused\n");
    let (_, _, held) = rollout(node, &["undo"])?;
    ensure!(held.contains("cannot rollback a paused deployment"), "{held}");
    apply(node, &with(version(image::V2, "held"), json!({ "spec": { "paused": true } })))?;
    node.agent.kill();
    node.agent.start()?;
    ensure!(containers(&wait_ready(node, 2, image::V1)?)? == third, "a paused rollout went on");
    ensure!(rollout(node, &["resume"])?.1 == "deployment.apps/web resumed\n");
    wait_ready(node, 2, image::V2)?;
    // A file's history is shown, and its template is edited there.
    node.agent.cli(&["delete", "deployment", "web"])?.success()?;
    wait_pods(node, "no pods", <[Value]>::is_empty)?;
    write(node, &version(image::V1, "from a file"))?;
    wait_ready(node, 2, image::V1)?;
    ensure!(rollout(node, &["history"])?.1.contains("1          from a file"));
    let (code, _, refused) = rollout(node, &["undo"])?;
    let place =
        "deployment.apps web was not applied: its manifest is that of file web.yaml, which limpet does not change";
    ensure!(code == Some(1) && refused.contains(place) && refused.contains("--revision NUMBER"), "{refused}");
    let (_, _, refused) = rollout(node, &["restart"])?;
    ensure!(refused.contains("an annotation kubectl.kubernetes.io/restartedAt"), "{refused}");
    let (code, said, _) = rollout(node, &["status"])?;
    ensure!(code == Some(0) && said == "deployment \"web\" successfully rolled out\n", "{said}");
    let page = node.agent.cli(&["describe", "deployment/web"])?.success()?;
    let replicas = "2 desired | 2 updated | 2 total | 2 available | 0 unavailable";
    ensure!(page.contains(replicas) && page.contains("file web.yaml") && page.contains("web-"), "{page}");
    let missing = node.agent.cli(&["describe", "deployment", "other"])?;
    ensure!(missing.code == Some(1) && missing.stderr.contains("no deployment.apps other"), "{missing:?}");
    Ok(())
}

fn a_daemon_set_of_a_broken_file_stays(node: &mut TestNode) -> Result<()> {
    let daemon = |image: &str| workload("DaemonSet", image, IDLE, json!({}));
    write(node, &daemon(image::V1))?;
    let ids = containers(&wait_ready(node, 1, image::V1)?)?;
    let mut broken = daemon(image::V2);
    broken["spec"]["template"]["spec"]["containers"][0]["imagee"] = json!("typo");
    write(node, &broken)?;
    node.wait_event("spec.template.spec.containers[0].imagee")?;
    node.agent.kill();
    node.agent.start()?;
    ensure!(containers(&wait_ready(node, 1, image::V1)?)? == ids, "restarted");
    write(node, &daemon(image::V2))?;
    wait_ready(node, 1, image::V2).map(drop)
}

/// A Job called `build` whose containers run `script`, with further fields of its spec.
fn job(script: &str, spec: Value) -> Value {
    let template = json!({ "spec": {
        "hostNetwork": true, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [shell("main", script)],
    } });
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "build" },
        "spec": with(json!({ "template": template }), spec),
    })
}

fn phases(pods: &[Value]) -> Vec<&str> {
    let mut phases: Vec<&str> = pods.iter().filter_map(|pod| pod["status"]["phase"].as_str()).collect();
    phases.sort_unstable();
    phases
}

/// Each index runs once, even if the agent is killed, and if the Job's template is edited, which is refused.
fn an_indexed_job_finishes_once(node: &mut TestNode) -> Result<()> {
    let results = node.dir().join("results");
    fs::create_dir_all(&results)?;
    let script =
        "cat /proc/sys/kernel/hostname >> /results/$JOB_COMPLETION_INDEX; echo index $JOB_COMPLETION_INDEX is done";
    let spec = json!({ "completions": 3, "parallelism": 2, "completionMode": "Indexed" });
    let mut indexed = job(script, spec);
    let pod = &mut indexed["spec"]["template"]["spec"];
    pod["hostNetwork"] = json!(false);
    pod["volumes"] = json!([{ "name": "results", "hostPath": { "path": results } }]);
    pod["containers"][0]["volumeMounts"] = json!([{ "name": "results", "mountPath": "/results" }]);
    write(node, &indexed)?;
    node.wait_event("Job completed")?;
    let pods = wait_pods(node, "three pods that have succeeded", |pods| phases(pods) == ["Succeeded"; 3])?;
    let metadata = &pods[0]["metadata"];
    let (name, labels) = (metadata["name"].as_str().unwrap_or_default(), &metadata["labels"]);
    ensure!(name.starts_with("build-0-") && name.len() == "build-0-12345".len(), "{name}");
    ensure!(labels["batch.kubernetes.io/job-name"] == "build" && labels["job-name"] == "build", "{labels}");
    ensure!(metadata["annotations"]["batch.kubernetes.io/job-completion-index"] == "0", "{metadata}");
    ensure!(metadata["ownerReferences"][0]["kind"] == "Job", "{metadata}");
    ensure!(metadata["ownerReferences"][0]["uid"] == labels["controller-uid"], "{metadata}");
    let logs = node.agent.cli(&["logs", name])?.success()?;
    ensure!(logs == "index 0 is done\n", "{logs}");
    let runs = || -> Result<Vec<String>> {
        (0..3).map(|index| Ok(fs::read_to_string(results.join(index.to_string()))?)).collect()
    };
    let hosts = ["build-0\n", "build-1\n", "build-2\n"];
    ensure!(runs()? == hosts, "{:?}", runs()?);
    let events = node.events()?;
    ensure!(events.contains("job/build") && events.contains("SuccessfulCreate"), "{events}");
    let page = node.agent.cli(&["describe", "job/build"])?.success()?;
    for part in ["0 Active / 3 Succeeded / 0 Failed", "0-2", "Job completed", "build-0-", "Completed At"] {
        ensure!(page.contains(part), "{part}\n{page}");
    }

    node.agent.kill();
    node.agent.start()?;
    wait_pods(node, "the same after a kill", |pods| phases(pods) == ["Succeeded"; 3])?;
    let mut edited = indexed.clone();
    edited["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image::V2);
    write(node, &edited)?;
    node.wait_event("spec.template: of Job default/build: field is immutable")?;
    ensure!(runs()? == hosts, "an index has run twice: {:?}", runs()?);
    node.remove("web")?;
    wait_pods(node, "no pods", <[Value]>::is_empty)?;
    node.wait_nothing_runs()
}

fn a_job_that_fails_says_why(node: &mut TestNode) -> Result<()> {
    let rules = json!([{ "action": "FailJob", "onExitCodes": { "operator": "In", "values": [42] } }]);
    write(node, &job("exit 42", json!({ "podFailurePolicy": { "rules": rules } })))?;
    node.wait_event("failed with exit code 42 matching FailJob rule at index 0")?;
    let pods = wait_pods(node, "a pod that has failed", |pods| phases(pods) == ["Failed"])?;
    ensure!(pods[0]["metadata"]["ownerReferences"][0]["name"] == "build", "{}", pods[0]);
    let misspelt = job("true", json!({ "backofLimit": 2 })).to_string();
    let refused = node.agent.cli_with_input(&["apply", "-f", "-"], misspelt.as_bytes())?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("backoffLimit"), "{refused:?}");
    Ok(())
}

/// The schedule is `@every`, which need not wait for the next minute.
fn a_cron_job_begins_jobs_by_its_schedule(node: &mut TestNode) -> Result<()> {
    let of_job = &job("echo done", json!({}))["spec"];
    let spec = json!({ "schedule": "@every 2s", "timeZone": "Europe/Berlin", "jobTemplate": { "spec": of_job } });
    let cron = json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "tick" }, "spec": spec });
    write(node, &cron)?;
    node.wait_event("Saw completed job: tick-")?;
    let pods = wait_pods(node, "a pod that has succeeded", |pods| phases(pods).first() == Some(&"Succeeded"))?;
    let owner = pods[0]["metadata"]["ownerReferences"][0]["name"].as_str().unwrap_or_default();
    let minutes: u64 = owner.strip_prefix("tick-").context("no Job of the CronJob")?.parse()?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs() / 60;
    ensure!(now - minutes < 5, "{owner} at {now}");
    let page = node.agent.cli(&["describe", "cronjob", "tick"])?.success()?;
    ensure!(page.contains("@every 2s") && page.contains("Europe/Berlin") && page.contains("Last Schedule"), "{page}");
    node.agent.kill();
    node.agent.start()?;
    let id = container_id(&pods[0], "main")?;
    let is_same = |pod: &Value| container_id(pod, "main").is_ok_and(|other| other == id);
    wait_pods(node, "the same after a kill", |pods| pods.iter().any(is_same))?;
    node.remove("web")?;
    wait_pods(node, "no pods", <[Value]>::is_empty).map(drop)
}

/// Pods begin in order, are updated from the last one on, and no ordinal exists twice.
fn a_stateful_set_keeps_its_ordinals(node: &mut TestNode) -> Result<()> {
    let script = "cat /proc/sys/kernel/hostname; trap 'exit 0' TERM; sleep 100000 & wait";
    let set = |image: &str, replicas: u32| {
        let mut set = workload("StatefulSet", image, script, json!({ "replicas": replicas, "serviceName": "peers" }));
        set["spec"]["template"]["spec"]["hostNetwork"] = json!(false);
        set
    };
    let names = |pods: &[Value]| -> Vec<String> {
        let mut names: Vec<String> =
            pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).map(str::to_owned).collect();
        names.sort();
        names
    };
    write(node, &set(image::V1, 2))?;
    let first = wait_ready(node, 2, image::V1)?;
    ensure!(names(&first) == ["web-0", "web-1"], "{:?}", names(&first));
    let pod = first.iter().find(|pod| pod["metadata"]["name"] == "web-1").context("no web-1")?;
    let labels = &pod["metadata"]["labels"];
    ensure!(labels["apps.kubernetes.io/pod-index"] == "1", "{labels}");
    ensure!(labels["statefulset.kubernetes.io/pod-name"] == "web-1", "{labels}");
    ensure!(labels["controller-revision-hash"].as_str().is_some_and(|hash| hash.starts_with("web-")), "{labels}");
    ensure!(pod["spec"]["subdomain"] == "peers" && pod["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet");
    ensure!(node.agent.cli(&["logs", "web-1"])?.success()? == "web-1\n", "another host name");
    let started = |pods: &[Value], name: &str| {
        let pod = pods.iter().find(|pod| pod["metadata"]["name"] == name);
        pod.and_then(|pod| pod["status"]["startTime"].as_str().map(str::to_owned)).unwrap_or_default()
    };
    ensure!(started(&first, "web-0") <= started(&first, "web-1"), "web-1 was first");
    let ids = containers(&first)?;
    node.agent.kill();
    fs::remove_file(node.agent.settings().root().join("limpet.db"))?;
    node.agent.start()?;
    ensure!(containers(&wait_ready(node, 2, image::V1)?)? == ids, "restarted by the loss of the database");
    write(node, &set(image::V2, 3))?;
    let updated = wait_ready(node, 3, image::V2)?;
    ensure!(names(&updated) == ["web-0", "web-1", "web-2"], "{:?}", names(&updated));
    write(node, &set(image::V2, 1))?;
    let last = wait_ready(node, 1, image::V2)?;
    ensure!(names(&last) == ["web-0"], "{:?}", names(&last));
    node.remove("web")?;
    wait_pods(node, "no pods", <[Value]>::is_empty)?;
    node.wait_nothing_runs()
}
