//! Sidecars, and containers with their own restart policy.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image::V2;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, process, suite, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(sidecars_start_in_order_and_end_in_reverse_after_the_others),
        case!(hooks_of_sidecars_run_while_the_others_end),
        case!(a_sidecar_restarts_alone),
        case!(a_pod_with_only_sidecars_left_completes),
        case!(a_sidecar_is_killed_with_the_grace_of_its_pod),
        case!(a_container_restarts_by_its_own_policy_and_rules),
        case!(an_exit_restarts_all_containers_in_their_order),
    ])
}

/// A container that writes into `/shared/diary` when it starts, after the entry `after`, and when SIGTERM ends it.
fn noted(name: &str, after: &str) -> Value {
    lasting(name, after, "exit 0")
}

fn lasting(name: &str, after: &str, on_term: &str) -> Value {
    let script = format!(
        "{}; trap 'echo -{name} >> /shared/diary; {on_term}' TERM; echo +{name} >> /shared/diary; \
         while :; do sleep 1000 & wait; done",
        wait_for(after)
    );
    in_shared(shell(name, &script))
}

fn wait_for(entry: &str) -> String {
    format!("until grep -q '{entry}' /shared/diary || [ -z '{entry}' ]; do sleep 0.1; done")
}

fn in_shared(container: Value) -> Value {
    with(container, json!({ "volumeMounts": [{ "name": "shared", "mountPath": "/shared" }] }))
}

fn sidecar(container: Value) -> Value {
    with(container, json!({ "restartPolicy": "Always" }))
}

fn web(node: &TestNode, spec: Value) -> Result<Value> {
    let shared = node.dir().join("shared");
    fs::create_dir_all(&shared)?;
    let defaults = json!({
        "terminationGracePeriodSeconds": 60, "volumes": [{ "name": "shared", "hostPath": { "path": shared } }],
    });
    Ok(pod("web", with(defaults, spec)))
}

fn diary(node: &TestNode) -> String {
    fs::read_to_string(node.dir().join("shared/diary")).unwrap_or_default().replace('\n', " ")
}

fn wait_diary(node: &TestNode, expected: &str) -> Result<()> {
    let written = wait::until_true(wait::SOON, &format!("{expected:?} in the diary"), || diary(node) == expected);
    written.with_context(|| format!("the diary has {:?}", diary(node)))
}

fn condition<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let conditions = pod["status"]["conditions"].as_array();
    let condition = conditions.into_iter().flatten().find(|condition| condition["type"] == name);
    condition.map_or(&Value::Null, |condition| &condition["status"])
}

fn sidecars_start_in_order_and_end_in_reverse_after_the_others(node: &mut TestNode) -> Result<()> {
    // The init container waits for the sidecar before it, and fails if the one after it has started.
    let script = format!("{}; grep -q two /shared/diary || echo +prepare >> /shared/diary", wait_for("+one"));
    let prepare = in_shared(shell("prepare", &script));
    let spec = json!({
        "initContainers": [sidecar(noted("one", "")), prepare, sidecar(noted("two", "+prepare"))],
        "containers": [noted("main", "+two")],
    });
    node.apply(&web(node, spec)?)?;
    let web = node.wait_running("web")?;
    wait_diary(node, "+one +prepare +two +main ")?;
    for name in ["one", "two"] {
        let status = container(&web, name);
        ensure!(status["ready"] == true && status["started"] == true, "{status}");
    }
    ensure!(condition(&web, "Initialized") == "True" && condition(&web, "Ready") == "True", "{}", web["status"]);
    let table = node.agent.cli(&["pods"])?.success()?;
    ensure!(table.contains("3/3") && table.contains("Running"), "{table}");

    // Another agent ends the pod than the one that has started it.
    node.agent.kill();
    node.agent.start()?;
    let adopted = node.wait_running("web")?;
    for name in ["one", "two", "main"] {
        ensure!(container_id(&adopted, name)? == container_id(&web, name)?, "{name} was restarted");
    }
    node.remove("web")?;
    node.wait_gone("web")?;
    wait_diary(node, "+one +prepare +two +main -main -two -one ")
}

fn hooks_of_sidecars_run_while_the_others_end(node: &mut TestNode) -> Result<()> {
    let hooked = |name: &str, after: &str| {
        let script = format!("echo pre-{name} >> /shared/hooks");
        let hook = json!({ "preStop": { "exec": { "command": ["/bin/sh", "-c", script] } } });
        with(sidecar(noted(name, after)), json!({ "lifecycle": hook }))
    };
    // It ends only after both hooks have run.
    let until = "until [ $(wc -l < /shared/hooks) -ge 2 ]; do sleep 0.1; done; echo ended >> /shared/hooks; exit 0";
    let spec = json!({
        "initContainers": [hooked("one", ""), hooked("two", "+one")], "containers": [lasting("main", "+two", until)],
    });
    node.apply(&web(node, spec)?)?;
    node.wait_running("web")?;
    wait_diary(node, "+one +two +main ")?;
    fs::write(node.dir().join("shared/hooks"), "")?;
    node.remove("web")?;
    node.wait_gone("web")?;
    wait_diary(node, "+one +two +main -main -two -one ")?;
    let hooks = fs::read_to_string(node.dir().join("shared/hooks"))?;
    let mut hooks: Vec<&str> = hooks.lines().collect();
    // The order of the two does not matter.
    let both = hooks.len().min(2);
    hooks[..both].sort_unstable();
    ensure!(hooks == ["pre-one", "pre-two", "ended"], "{hooks:?}");
    Ok(())
}

fn a_sidecar_restarts_alone(node: &mut TestNode) -> Result<()> {
    let spec = |image: Value| {
        let side = with(sidecar(noted("side", "")), image);
        json!({ "restartPolicy": "OnFailure", "initContainers": [side], "containers": [noted("main", "+side")] })
    };
    node.apply(&web(node, spec(json!({})))?)?;
    let before = node.wait_running("web")?;
    wait_diary(node, "+side +main ")?;
    let id = container_id(&before, "side")?;
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("no task of that id")?;
    process::signal_pid(task.pid, Signal::KILL);
    let restarted = |count: u64| {
        move |pod: &Value| {
            let side = container(pod, "side");
            side["restartCount"] == count && side["state"]["running"].is_object()
        }
    };
    node.wait_pod("web", "its sidecar restarted after a kill", restarted(1))?;
    wait_diary(node, "+side +main +side ")?;
    node.apply(&web(node, spec(json!({ "image": V2 })))?)?;
    let after = node.wait_pod("web", "its sidecar restarted for its image", restarted(2))?;
    ensure!(container(&after, "side")["image"] == V2, "{}", after["status"]);
    ensure!(container_id(&after, "main")? == container_id(&before, "main")?, "the other container restarted, too");
    wait_diary(node, "+side +main +side -side +side ")
}

fn a_pod_with_only_sidecars_left_completes(node: &mut TestNode) -> Result<()> {
    let main = in_shared(shell("main", "until [ -e /shared/done ]; do sleep 0.1; done"));
    // The exit code of a sidecar fails no pod.
    let sidecars = [sidecar(noted("one", "")), sidecar(lasting("two", "+one", "exit 9"))];
    let spec = json!({ "restartPolicy": "Never", "initContainers": sidecars, "containers": [main] });
    node.apply(&web(node, spec)?)?;
    node.wait_running("web")?;
    wait_diary(node, "+one +two ")?;
    fs::write(node.dir().join("shared/done"), "")?;
    let web = node.wait_pod("web", "completed", |pod| pod["status"]["phase"] == "Succeeded")?;
    wait_diary(node, "+one +two -two -one ")?;
    ensure!(container(&web, "two")["state"]["terminated"]["exitCode"] == 9, "{}", web["status"]);
    node.agent.kill();
    node.agent.start()?;
    node.apply(&pod("mark", json!({ "containers": [shell("main", IDLE)] })))?;
    node.wait_running("mark")?;
    ensure!(diary(node) == "+one +two -two -one ", "{}", diary(node));
    node.wait_pod("web", "completed", |pod| pod["status"]["phase"] == "Succeeded").map(drop)
}

fn a_sidecar_is_killed_with_the_grace_of_its_pod(node: &mut TestNode) -> Result<()> {
    let spec = json!({
        "terminationGracePeriodSeconds": 1, "initContainers": [sidecar(lasting("side", "", ":"))],
        "containers": [lasting("main", "+side", ":")],
    });
    node.apply(&web(node, spec)?)?;
    node.wait_running("web")?;
    wait_diary(node, "+side +main ")?;
    node.remove("web")?;
    node.wait_gone("web")?;
    // The main container has used up the grace period, and the sidecar is stopped nevertheless.
    wait_diary(node, "+side +main -main -side ")
}

fn a_container_restarts_by_its_own_policy_and_rules(node: &mut TestNode) -> Result<()> {
    let count = |name: &str, code: &str| {
        let script = format!("echo >> /shared/{name}; [ $(wc -l < /shared/{name}) -ge 2 ] || exit {code}; exit 0");
        in_shared(shell(name, &script))
    };
    let rules = json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }]);
    let with_rules = |container: Value, rules: &Value| {
        with(container, json!({ "restartPolicy": "Never", "restartPolicyRules": rules }))
    };
    let spec = json!({
        "initContainers": [with_rules(count("init", "42"), &rules)],
        "containers": [with_rules(count("retried", "42"), &rules), with_rules(count("final", "1"), &rules)],
    });
    node.apply(&web(node, spec)?)?;
    let web = node.wait_pod("web", "failed", |pod| pod["status"]["phase"] == "Failed")?;
    let restarts = |name: &str| container(&web, name)["restartCount"].as_u64();
    ensure!(
        [restarts("init"), restarts("retried"), restarts("final")] == [Some(1), Some(1), Some(0)],
        "{}",
        web["status"]
    );
    ensure!(container(&web, "retried")["state"]["terminated"]["exitCode"] == 0, "{}", web["status"]);
    ensure!(container(&web, "final")["state"]["terminated"]["exitCode"] == 1, "{}", web["status"]);
    Ok(())
}

fn an_exit_restarts_all_containers_in_their_order(node: &mut TestNode) -> Result<()> {
    let starts = |name: &str, after: &str, then: &str| {
        in_shared(shell(name, &format!("{}; echo +{name} >> /shared/diary; {then}", wait_for(after))))
    };
    let once = "[ $(grep -c +source /shared/diary) -ge 2 ] || exit 42; sleep 1000";
    let rules = json!([{ "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } }]);
    let source = json!({ "restartPolicy": "Never", "restartPolicyRules": rules });
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [starts("init", "", ":"), sidecar(starts("side", "", "sleep 1000"))],
        "containers": [with(starts("source", "+other", once), source), starts("other", "", "sleep 1000")],
    });
    node.apply(&web(node, spec)?)?;
    let names = ["init", "side", "source", "other"];
    let web = node.wait_pod("web", "restarted", |pod| {
        pod["status"]["phase"] == "Running"
            && names.iter().all(|name| container(pod, name)["restartCount"] == 1)
            && names[1..].iter().all(|name| container(pod, name)["state"]["running"].is_object())
    })?;
    let last = |name: &str| container(&web, name)["lastState"]["terminated"]["exitCode"].as_i64();
    ensure!(names.map(last) == [Some(0), Some(137), Some(42), Some(137)], "{}", web["status"]);
    let conditions = web["status"]["conditions"].as_array().context("conditions")?;
    let restarting = conditions.iter().find(|condition| condition["type"] == "AllContainersRestarting");
    ensure!(restarting.is_some_and(|condition| condition["status"] == "False"), "{}", web["status"]);
    wait::until_true(wait::SOON, "the second entry of each", || diary(node).split_whitespace().count() == 8)?;
    let diary = diary(node);
    let entries: Vec<&str> = diary.split_whitespace().collect();
    ensure!(entries[..4] == ["+init", "+side", "+other", "+source"], "{diary}");
    ensure!(entries[4..6] == ["+init", "+side"], "init containers come first again: {diary}");
    Ok(())
}
