//! What a pod asks for in namespaces, profiles, runtimes and devices is what its processes find.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, case, process, suite, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(containers_share_their_processes),
        case!(a_shared_namespace_outlives_the_agent_and_comes_again_when_its_init_ends),
        case!(a_profile_that_the_host_does_not_have_is_refused),
        case!(what_another_host_would_use_is_ignored),
        case!(strict_groups_are_the_pods_alone),
        case!(a_runtime_class_says_which_runtime_runs_the_pod),
        case!(a_device_is_the_containers_that_ask_for_it).on(|node| {
            node.limpet = vec![
                "devices:".to_owned(),
                "  example.com/shared: {paths: [/dev/fuse]}".to_owned(),
                "  example.com/modem: {paths: [/dev/fuse], exclusive: true, permissions: r}".to_owned(),
                "  example.com/lone: {paths: [/dev/fuse], exclusive: true}".to_owned(),
                "  example.com/unplugged: {paths: [/dev/no-such-device]}".to_owned(),
            ];
        }),
    ])
}

const LIMIT: Duration = Duration::from_secs(60);

fn sh(node: &TestNode, script: &str) -> Result<String> {
    node.exec("web", "main", &["/bin/sh", "-c", script])
}

/// Two containers, the second of which leaves an orphan.
fn apply_sharing(node: &TestNode) -> Result<()> {
    let orphan = format!("(sleep 99991 &); {IDLE}");
    let containers = [shell("main", IDLE), shell("side", &orphan)];
    node.apply(&pod("web", json!({ "shareProcessNamespace": true, "containers": containers })))
}

/// The pid, in the host's namespace, of the init that the sandbox of `pod` has.
fn init(node: &TestNode, pod: &Value) -> Result<u32> {
    let uid = pod["metadata"]["uid"].as_str().context("no uid")?;
    let file = node.agent.settings().run().join("sandboxes").join(uid).join("init");
    Ok(fs::read_to_string(&file).with_context(|| file.display().to_string())?.parse()?)
}

fn containers_share_their_processes(node: &mut TestNode) -> Result<()> {
    apply_sharing(node)?;
    let pod = node.wait_running("web")?;
    let seen = sh(node, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")?;
    ensure!(seen.matches("sleep 100000").count() >= 2 && seen.contains("sleep 99991"), "{seen}");
    ensure!(sh(node, "tr '\\0' ' ' < /proc/1/cmdline")?.starts_with("/limpet pod-init"), "process 1 is no init");
    // Its rights, its files and the host's namespaces are out of reach.
    let status = sh(node, "cat /proc/1/status")?;
    for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"] {
        ensure!(status.contains(line), "{line}: {status}");
    }
    for path in ["root/", "exe", "ns/mnt", "cwd/", "fd/"] {
        let tried = sh(node, &format!("ls /proc/1/{path} && readlink /proc/1/{path} || echo refused"))?;
        ensure!(tried.contains("refused"), "{path}: {tried}");
    }
    let pid = init(node, &pod)?;
    let root = fs::read_dir(format!("/proc/{pid}/root/"))?.flatten().map(|entry| entry.file_name());
    ensure!(root.collect::<Vec<_>>() == ["limpet"], "the init has files");
    ensure!(fs::write(format!("/proc/{pid}/root/limpet"), "").is_err(), "the program can be written to");
    ensure!(fs::read_to_string(format!("/proc/{pid}/cgroup"))?.contains("init"), "the init has no cgroup of its own");
    // An orphan that ends is reaped, and a signal to process 1 does nothing.
    let find = "kill -TERM 1; for p in /proc/[0-9]*; do \
                [ \"$(tr '\\0' ' ' < $p/cmdline)\" = 'sleep 99991 ' ] && echo ${p#/proc/}; done; true";
    let orphan = sh(node, find)?;
    let orphan = orphan.lines().next().context("no orphan")?.to_owned();
    ensure!(sh(node, &format!("grep PPid /proc/{orphan}/status"))? == "PPid:\t1\n");
    sh(node, &format!("kill -KILL {orphan}"))?;
    wait::until_true(LIMIT, "the orphan to be reaped", || {
        sh(node, &format!("[ -e /proc/{orphan} ] || echo gone")).is_ok_and(|said| said == "gone\n")
    })?;
    node.remove("web")?;
    node.wait_gone("web")?;
    wait::until_true(LIMIT, "the init to end with its pod", || !process::is_alive(pid))
}

fn a_shared_namespace_outlives_the_agent_and_comes_again_when_its_init_ends(node: &mut TestNode) -> Result<()> {
    apply_sharing(node)?;
    let before = node.wait_running("web")?;
    let first = init(node, &before)?;
    node.agent.kill();
    node.agent.start()?;
    let after = node.wait_running("web")?;
    ensure!(container_id(&before, "main")? == container_id(&after, "main")?, "a restart of the agent restarts nothing");
    ensure!(init(node, &after)? == first);
    process::signal_pid(first, Signal::KILL);
    let again = node.wait_pod("web", "runs in a new sandbox", |pod| {
        let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
        let running = pod["status"]["containerStatuses"]
            .as_array()
            .is_some_and(|all| all.iter().all(|one| one["state"]["running"].is_object()));
        running && restarts == Some(1)
    })?;
    ensure!(again["metadata"]["uid"] == before["metadata"]["uid"]);
    ensure!(init(node, &again)? != first);
    node.wait_event("SandboxChanged")
}

/// This suite's host has no AppArmor; kubelet refuses a pod that names a profile there, be it the default.
fn a_profile_that_the_host_does_not_have_is_refused(node: &mut TestNode) -> Result<()> {
    if fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|value| value.starts_with('Y')) {
        eprintln!("skipped: this host has AppArmor");
        return Ok(());
    }
    let key = "container.apparmor.security.beta.kubernetes.io/main";
    for (name, profile, annotation) in [
        ("field", json!({ "type": "Localhost", "localhostProfile": "tight" }), None),
        ("default", json!({ "type": "RuntimeDefault" }), None),
        ("annotation", json!({ "type": "Unconfined" }), Some("localhost/tight")),
    ] {
        let mut manifest = pod(name, json!({ "containers": [shell("main", IDLE)] }));
        match annotation {
            Some(value) => manifest["metadata"]["annotations"] = json!({ key: value }),
            None => manifest["spec"]["securityContext"] = json!({ "appArmorProfile": profile }),
        }
        node.apply(&manifest)?;
        let refused = node.wait_pod(name, "refused", |pod| pod["status"]["phase"] == "Failed")?;
        ensure!(refused["status"]["reason"] == "AppArmor", "{refused}");
        let message = "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host";
        ensure!(refused["status"]["message"] == message, "{refused}");
    }
    Ok(())
}

fn what_another_host_would_use_is_ignored(node: &mut TestNode) -> Result<()> {
    let context = json!({
        "seLinuxOptions": { "level": "s0:c1,c2" }, "seLinuxChangePolicy": "Recursive",
        "windowsOptions": { "runAsUserName": "nobody" },
    });
    let container = with(shell("main", IDLE), json!({ "securityContext": { "seLinuxOptions": { "type": "a_t" } } }));
    node.apply(&pod("web", json!({ "securityContext": context, "containers": [container] })))?;
    node.wait_running("web")?;
    node.apply(&pod("other", json!({ "os": { "name": "windows" }, "containers": [shell("main", IDLE)] })))?;
    let refused = node.wait_pod("other", "refused", |pod| pod["status"]["phase"] == "Failed")?;
    ensure!(refused["status"]["reason"] == "PodOSNotSupported", "{refused}");
    Ok(())
}

fn strict_groups_are_the_pods_alone(node: &mut TestNode) -> Result<()> {
    for (name, policy, wanted) in [("merge", "Merge", "703 1000 2000 2001"), ("strict", "Strict", "703 1000")] {
        let context = json!({ "runAsUser": 1000, "supplementalGroups": [703], "supplementalGroupsPolicy": policy });
        node.apply(&pod(name, json!({ "securityContext": context, "containers": [shell("main", IDLE)] })))?;
        node.wait_running(name)?;
        let groups = node.exec(name, "main", &["/bin/sh", "-c", "sed -n 's/^Groups:\\t*//p' /proc/1/status"])?;
        ensure!(groups.trim() == wanted, "{name}: {groups:?}");
    }
    Ok(())
}

/// The other runtime is runc behind a script that says it was called.
fn a_runtime_class_says_which_runtime_runs_the_pod(node: &mut TestNode) -> Result<()> {
    let (runtime, called) = (node.dir().join("other-runc"), node.dir().join("called"));
    fs::write(&runtime, format!("#!/bin/sh\necho \"$@\" >> {}\nexec runc \"$@\"\n", called.display()))?;
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755))?;
    node.agent.kill();
    let class = format!("runtimeClasses: {{other: {{binary: {}}}}}", runtime.display());
    node.agent.reconfigure(|settings| settings.limpet.push(class))?;
    node.agent.start()?;

    node.apply(&pod("plain", json!({ "containers": [shell("main", IDLE)] })))?;
    node.wait_running("plain")?;
    ensure!(!called.exists(), "a pod without a class has the class's runtime");
    let overhead = json!({ "memory": "8Mi" });
    let resources = json!({ "resources": { "limits": { "memory": "16Mi" } } });
    let spec = json!({
        "runtimeClassName": "other", "overhead": overhead, "containers": [with(shell("main", IDLE), resources)],
    });
    node.apply(&pod("web", spec))?;
    let web = node.wait_running("web")?;
    let id = container_id(&web, "main")?;
    let calls = fs::read_to_string(&called)?;
    ensure!(calls.lines().any(|call| call.contains(" create ") && call.contains(&id)), "{calls}");

    node.apply(&pod("lost", json!({ "runtimeClassName": "none", "containers": [shell("main", IDLE)] })))?;
    node.wait_event("failed to get RuntimeClass \"none\"")
}

fn asking(name: &str, device: &str, count: u32) -> Value {
    let limits = json!({ "resources": { "limits": { device: count } } });
    pod(name, json!({ "containers": [with(shell("main", IDLE), limits), shell("side", IDLE)] }))
}

/// /dev/fuse is no device that every container has, and whether it may be opened is the cgroup's to say.
fn a_device_is_the_containers_that_ask_for_it(node: &mut TestNode) -> Result<()> {
    let open = "(: < /dev/fuse) && echo read; (: > /dev/fuse) && echo written; true";
    let tried = |node: &TestNode, name: &str, container: &str| node.exec(name, container, &["/bin/sh", "-c", open]);
    node.apply(&asking("shared", "example.com/shared", 2))?;
    node.wait_running("shared")?;
    ensure!(tried(node, "shared", "main")? == "read\nwritten\n", "the device cannot be used");
    ensure!(node.exec("shared", "side", &["/bin/sh", "-c", "ls /dev"])?.lines().all(|name| name != "fuse"));

    node.apply(&asking("modem", "example.com/modem", 1))?;
    let modem = node.wait_running("modem")?;
    ensure!(tried(node, "modem", "main")? == "read\n", "the permissions are not those of the table");
    node.apply(&asking("second", "example.com/modem", 1))?;
    let waits = node.wait_pod("second", "waiting", |pod| pod["status"]["reason"] == "OutOfexample.com/modem")?;
    ensure!(waits["status"]["phase"] == "Pending", "{waits}");
    // Who has a device is known again after a restart of the agent, and nothing of it is restarted.
    node.agent.kill();
    node.agent.start()?;
    node.wait_pod("second", "waiting", |pod| pod["status"]["reason"] == "OutOfexample.com/modem")?;
    ensure!(container_id(&node.wait_running("modem")?, "main")? == container_id(&modem, "main")?);
    node.remove("modem")?;
    node.wait_running("second")?;

    for (name, device, count, phase, why) in [
        ("unknown", "example.com/other", 1, "Pending", "can't allocate unregistered device example.com/other"),
        ("many", "example.com/lone", 2, "Failed", "Requested: 2, Available: 1, which is unexpected"),
    ] {
        node.apply(&asking(name, device, count))?;
        let refused = node
            .wait_pod(name, "refused", |pod| pod["status"]["phase"] == phase && pod["status"]["reason"].is_string())?;
        let message = refused["status"]["message"].as_str().unwrap_or_default();
        ensure!(refused["status"]["reason"] == "UnexpectedAdmissionError" && message.contains(why), "{refused}");
    }
    node.apply(&asking("unplugged", "example.com/unplugged", 1))?;
    node.wait_event("read /dev/no-such-device")
}
