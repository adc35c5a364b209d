//! Probes: every handler for each of the three kinds, what their results do to a container, and that no restart of the
//! agent or of containerd loses these.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use limpet_tests::grpc_health::{HealthServer, NOT_SERVING, SERVING};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, cgroup, process, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_command_is_a_probe),
        case!(a_get_is_a_probe).on(|node| node.cni = true),
        case!(a_get_over_tls_is_a_probe).on(|node| node.cni = true),
        case!(a_connection_is_a_probe).on(|node| node.cni = true),
        case!(a_grpc_health_check_is_a_probe),
        case!(a_grpc_health_check_reaches_a_pods_own_network).on(|node| node.cni = true),
        case!(readiness_comes_and_goes_without_a_restart),
        case!(a_startup_probe_holds_back_the_others),
        case!(a_failed_probe_has_a_grace_of_its_own),
        case!(with_never_a_failed_probe_ends_the_pod),
        case!(a_probe_without_a_result_changes_nothing),
        case!(readiness_outlives_the_agent_and_containerd),
    ])
}

/// A pod whose container runs `script` with `probe` as all three kinds: liveness tolerates 5 failures, readiness only
/// one.
fn probed(name: &str, script: &str, probe: &Value) -> Value {
    let with_threshold = |failures: u32| {
        with(json!({ "periodSeconds": 1, "failureThreshold": failures, "timeoutSeconds": 10 }), probe.clone())
    };
    let probes = json!({ "startupProbe": with_threshold(100), "readinessProbe": with_threshold(1), "livenessProbe": with_threshold(5) });
    pod(name, json!({ "containers": [with(shell("main", script), probes)] }))
}

fn exec(command: &str) -> Value {
    json!({ "exec": { "command": ["/bin/sh", "-c", command] } })
}

fn wait_ready(node: &TestNode, name: &str, ready: bool) -> Result<Value> {
    let what = if ready { "ready" } else { "not ready" };
    node.wait_pod(name, what, |pod| {
        let running = container(pod, "main")["state"]["running"].is_object();
        running && container(pod, "main")["ready"] == ready && condition(pod, "Ready")["status"] == status(ready)
    })
}

fn status(holds: bool) -> &'static str {
    if holds { "True" } else { "False" }
}

fn condition<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().find(|condition| condition["type"] == name).unwrap_or(&Value::Null)
}

fn wait_restarted(node: &TestNode, name: &str) -> Result<Value> {
    node.wait_pod(name, "restarted", |pod| container(pod, "main")["restartCount"].as_u64() >= Some(1))
}

/// Checks that the pod becomes ready; that after `fail` its probes fail, first readiness, and then liveness restarts
/// it; and that `mend` makes it ready again.
fn lives_by_its_probes(
    node: &TestNode,
    manifest: &Value,
    fail: impl FnOnce() -> Result<()>,
    mend: impl FnOnce() -> Result<()>,
    output: &str,
) -> Result<()> {
    node.apply(manifest)?;
    let first = wait_ready(node, "web", true)?;
    ensure!(container(&first, "main")["started"] == true, "{}", first["status"]);
    fail()?;
    let unready = node.wait_pod("web", "not ready", |pod| container(pod, "main")["ready"] == false)?;
    ensure!(container_id(&unready, "main")? == container_id(&first, "main")?, "{}", unready["status"]);
    wait_restarted(node, "web")?;
    mend()?;
    let again = wait_ready(node, "web", true)?;
    ensure!(container_id(&again, "main")? != container_id(&first, "main")?, "{}", again["status"]);
    for event in [
        &format!("Readiness probe failed: {output}"),
        &format!("Liveness probe failed: {output}"),
        "Container main failed liveness probe, will be restarted",
    ] {
        node.wait_event(event)?;
    }
    let metrics = node.agent.metrics()?;
    for series in ["probe_type=\"Startup\",result=\"successful\"", "probe_type=\"Liveness\",result=\"failed\""] {
        ensure!(metrics.contains(&format!("prober_probe_total{{{series}")), "no {series} in {metrics}");
    }
    node.remove("web")?;
    node.wait_gone("web")?;
    ensure!(!node.agent.metrics()?.contains("prober_probe_total{"), "counts of a pod that is gone");
    Ok(())
}

fn a_command_is_a_probe(node: &mut TestNode) -> Result<()> {
    let probe = exec("test -e $(PLACE)/healthy || { echo unwell; exit 3; }");
    let mut manifest = probed("web", &format!("touch /tmp/healthy; {IDLE}"), &probe);
    manifest["spec"]["containers"][0]["env"] = json!([{ "name": "PLACE", "value": "/tmp" }]);
    let fail = || node.exec("web", "main", &["rm", "/tmp/healthy"]).map(drop);
    lives_by_its_probes(node, &manifest, fail, || Ok(()), "unwell")
}

fn a_get_is_a_probe(node: &mut TestNode) -> Result<()> {
    let probe = json!({ "httpGet": { "path": "/healthy", "port": "web", "httpHeaders": [{ "name": "X-Probe", "value": "1" }] } });
    let script = "touch /tmp/healthy; httpd -p 8080 -h /tmp; ".to_owned() + IDLE;
    let mut manifest = probed("web", &script, &probe);
    manifest["spec"]["hostNetwork"] = false.into();
    manifest["spec"]["containers"][0]["ports"] = json!([{ "name": "web", "containerPort": 8080 }]);
    let fail = || node.exec("web", "main", &["rm", "/tmp/healthy"]).map(drop);
    lives_by_its_probes(node, &manifest, fail, || Ok(()), "HTTP probe failed with statuscode: 404")
}

/// The server has a self-signed certificate for another name.
fn a_get_over_tls_is_a_probe(node: &mut TestNode) -> Result<()> {
    let site = node.dir().join("site");
    fs::create_dir(&site)?;
    fs::write(site.join("healthy"), "well\n")?;
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=other.test"]);
    process::checked(openssl.arg("-keyout").arg(site.join("key")).arg("-out").arg(site.join("crt")))?;
    // The machine's openssl runs with the machine's libraries, in the places where it looks for them.
    let script = "for name in lib lib64; do [ -e /$name ] || ln -s usr/$name /$name; done; cd /site; \
                  openssl s_server -accept 8443 -cert crt -key key -WWW & "
        .to_owned()
        + IDLE;
    let get = json!({ "scheme": "HTTPS", "path": "/healthy", "port": 8443 });
    let mut manifest = probed("web", &script, &json!({ "httpGet": get }));
    manifest["spec"]["hostNetwork"] = false.into();
    manifest["spec"]["volumes"] = json!([
        { "name": "programs", "hostPath": { "path": "/usr" } }, { "name": "site", "hostPath": { "path": site } },
    ]);
    manifest["spec"]["containers"][0]["volumeMounts"] = json!([
        { "name": "programs", "mountPath": "/usr", "readOnly": true }, { "name": "site", "mountPath": "/site" },
    ]);
    let fail = || node.exec("web", "main", &["/bin/sh", "-c", "killall openssl"]).map(drop);
    lives_by_its_probes(node, &manifest, fail, || Ok(()), "Get \"https://")
}

fn a_connection_is_a_probe(node: &mut TestNode) -> Result<()> {
    let script = "httpd -p 8080 -h /tmp; ".to_owned() + IDLE;
    let mut manifest = probed("web", &script, &json!({ "tcpSocket": { "port": 8080 } }));
    manifest["spec"]["hostNetwork"] = false.into();
    let fail = || node.exec("web", "main", &["killall", "httpd"]).map(drop);
    lives_by_its_probes(node, &manifest, fail, || Ok(()), "dial tcp ")
}

fn a_grpc_health_check_is_a_probe(node: &mut TestNode) -> Result<()> {
    let server = HealthServer::start()?;
    let manifest = probed("web", IDLE, &json!({ "grpc": { "port": server.port, "service": "web" } }));
    let answer = |status| {
        server.answer(status);
        Ok(())
    };
    let output = "service unhealthy (responded with ";
    lives_by_its_probes(node, &manifest, || answer(NOT_SERVING), || answer(SERVING), output)
}

fn a_grpc_health_check_reaches_a_pods_own_network(node: &mut TestNode) -> Result<()> {
    let mut manifest = probed("web", IDLE, &json!({ "grpc": { "port": 9000 } }));
    manifest["spec"]["hostNetwork"] = false.into();
    node.apply(&manifest)?;
    let started = node.wait_pod("web", "started", |pod| container(pod, "main")["state"]["running"].is_object())?;
    ensure!(container(&started, "main")["ready"] == false, "{started:#}");
    let server = HealthServer::start_in_network_of(cgroup::main_process(node, &started)?, 9000)?;
    wait_ready(node, "web", true)?;
    server.answer(NOT_SERVING);
    wait_ready(node, "web", false)?;
    server.answer(SERVING);
    wait_ready(node, "web", true).map(drop)
}

fn readiness_comes_and_goes_without_a_restart(node: &mut TestNode) -> Result<()> {
    let readiness =
        with(exec("test -e /tmp/ready"), json!({ "periodSeconds": 1, "failureThreshold": 2, "successThreshold": 2 }));
    let main = with(shell("main", IDLE), json!({ "readinessProbe": readiness }));
    node.apply(&pod("web", json!({ "containers": [main] })))?;
    let first = wait_ready(node, "web", false)?;
    let message = "containers with unready status: [main]";
    for name in ["Ready", "ContainersReady"] {
        let condition = condition(&first, name);
        ensure!(
            (&condition["reason"], &condition["message"]) == (&json!("ContainersNotReady"), &json!(message)),
            "{condition}"
        );
    }
    ensure!(container(&first, "main")["started"] == true, "{}", first["status"]);
    let table = node.agent.cli(&["pods"])?.success()?;
    ensure!(table.contains(" 0/1 "), "{table}");
    for _ in 0..2 {
        node.exec("web", "main", &["touch", "/tmp/ready"])?;
        let ready = wait_ready(node, "web", true)?;
        ensure!(node.agent.cli(&["pods"])?.success()?.contains(" 1/1 "));
        ensure!(container_id(&ready, "main")? == container_id(&first, "main")?, "{}", ready["status"]);
        node.exec("web", "main", &["rm", "/tmp/ready"])?;
        wait_ready(node, "web", false)?;
    }
    let described = node.agent.cli(&["describe", &node.full_name("web")])?.success()?;
    let line = "exec [/bin/sh -c test -e /tmp/ready] delay=0s timeout=1s period=1s #success=2 #failure=2";
    ensure!(described.contains(line), "{described}");
    Ok(())
}

fn a_startup_probe_holds_back_the_others(node: &mut TestNode) -> Result<()> {
    let every_second =
        |probe: Value, failures: u32| with(probe, json!({ "periodSeconds": 1, "failureThreshold": failures }));
    let probes = json!({
        "startupProbe": every_second(exec("echo not yet; test -e /tmp/started"), 10_000),
        "readinessProbe": every_second(exec("true"), 1),
        "livenessProbe": every_second(exec("false"), 1),
    });
    node.apply(&pod("web", json!({ "containers": [with(shell("main", IDLE), probes)] })))?;
    let counted = |metrics: &str| {
        let line = metrics.lines().find(|line| line.contains("probe_type=\"Startup\",result=\"failed\""));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or_default()
    };
    wait::until_true(wait::SOON, "three failures", || node.agent.metrics().is_ok_and(|text| counted(&text) >= 3.0))?;
    let metrics = node.agent.metrics()?;
    ensure!(!metrics.contains("probe_type=\"Liveness\"") && !metrics.contains("probe_type=\"Readiness\""), "{metrics}");
    let waiting = wait_ready(node, "web", false)?;
    let main = container(&waiting, "main");
    ensure!(main["started"] == false && main["restartCount"] == 0, "{main}");
    node.exec("web", "main", &["touch", "/tmp/started"])?;
    wait_restarted(node, "web")?;
    node.wait_event("Container main failed liveness probe, will be restarted")?;
    node.wait_event("Startup probe failed: not yet")
}

fn a_failed_probe_has_a_grace_of_its_own(node: &mut TestNode) -> Result<()> {
    for (name, probe) in [("live", "livenessProbe"), ("start", "startupProbe")] {
        let failing = with(
            exec("false"),
            json!({ "periodSeconds": 1, "failureThreshold": 1, "terminationGracePeriodSeconds": 1 }),
        );
        let main = with(shell("main", "trap '' TERM; while :; do sleep 1; done"), json!({ probe: failing }));
        // The pod's own grace period is longer than the test waits.
        node.apply(&pod(name, json!({ "terminationGracePeriodSeconds": 1_000_000, "containers": [main] })))?;
        let restarted = wait_restarted(node, name)?;
        let last = &container(&restarted, "main")["lastState"]["terminated"];
        ensure!(last["exitCode"] == 137 && last["reason"] == "Error", "{restarted}");
    }
    node.wait_event("Container main failed startup probe, will be restarted")?;
    for name in ["live", "start"] {
        // Its end does not take as long, either.
        node.apply(&pod(name, json!({ "containers": [shell("main", IDLE)] })))?;
    }
    Ok(())
}

fn with_never_a_failed_probe_ends_the_pod(node: &mut TestNode) -> Result<()> {
    let failing = with(exec("false"), json!({ "periodSeconds": 1, "failureThreshold": 1 }));
    let main = with(shell("main", IDLE), json!({ "livenessProbe": failing }));
    node.apply(&pod("once", json!({ "restartPolicy": "Never", "containers": [main.clone()] })))?;
    node.apply(&pod("again", json!({ "restartPolicy": "OnFailure", "containers": [main] })))?;
    // It ends with 0 on SIGTERM.
    node.wait_pod("once", "succeeded", |pod| pod["status"]["phase"] == "Succeeded")?;
    wait_restarted(node, "again")?;
    node.wait_event("Container main failed liveness probe")
}

fn a_probe_without_a_result_changes_nothing(node: &mut TestNode) -> Result<()> {
    let broken = json!({ "exec": { "command": ["/no/such/program"] }, "periodSeconds": 1, "failureThreshold": 1 });
    let main = with(shell("main", IDLE), json!({ "livenessProbe": broken }));
    node.apply(&pod("web", json!({ "containers": [main] })))?;
    node.wait_event("Liveness probe errored and resulted in unknown state: ")?;
    let unknown = |metrics: String| {
        let line = metrics.lines().find(|line| line.contains("result=\"unknown\""))?.to_owned();
        line.rsplit(' ').next()?.parse::<f64>().ok()
    };
    wait::until_true(wait::SOON, "three errors", || node.agent.metrics().ok().and_then(unknown) >= Some(3.0))?;
    let pod = wait_ready(node, "web", true)?;
    ensure!(container(&pod, "main")["restartCount"] == 0, "{}", pod["status"]);
    Ok(())
}

fn readiness_outlives_the_agent_and_containerd(node: &mut TestNode) -> Result<()> {
    // The probe succeeds, and never again once the file is gone: without a record the container would never be ready
    // again.
    let probe = with(exec("test -e /tmp/healthy"), json!({ "periodSeconds": 1, "failureThreshold": 10_000 }));
    let probes = json!({ "startupProbe": probe, "readinessProbe": probe });
    let script = format!("touch /tmp/healthy; {IDLE}");
    node.apply(&pod("web", json!({ "containers": [with(shell("main", &script), probes)] })))?;
    let before = wait_ready(node, "web", true)?;
    wait::until_true(wait::SOON, "it is recorded", || node.agent.log().contains("probe results changed"))?;
    node.exec("web", "main", &["rm", "/tmp/healthy"])?;
    node.wait_event("Readiness probe failed")?;

    node.agent.kill();
    node.agent.start()?;
    let same = |node: &TestNode| -> Result<()> {
        let after = node.wait_running("web")?;
        let main = container(&after, "main");
        ensure!(container_id(&after, "main")? == container_id(&before, "main")?, "{main}");
        ensure!(
            main["ready"] == true && main["started"] == true && condition(&after, "Ready")["status"] == "True",
            "{main}"
        );
        Ok(())
    };
    same(node)?;
    node.wait_event("Readiness probe failed")?;
    same(node)?;

    let log = node.agent.log_size();
    node.containerd.kill();
    wait::until_true(wait::SOON, "containerd is missed", || node.agent.log_from(log).contains("containerd gone"))?;
    node.containerd.start()?;
    wait::until_true(wait::SOON, "containerd is back", || {
        node.agent.log_from(log).contains("connected to containerd")
    })?;
    same(node)
}
