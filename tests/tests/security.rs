//! What a pod requests in namespaces, profiles, runtimes and devices is what its processes find.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, case, process, suite, tools, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(containers_share_their_processes),
        case!(users_of_its_own_share_their_processes).on(|node| node.cni = true),
        case!(a_shared_namespace_outlives_the_agent_and_comes_again_when_its_init_ends),
        case!(a_profile_that_the_host_does_not_have_is_refused),
        case!(what_another_host_would_use_is_ignored),
        case!(strict_groups_are_the_pods_alone),
        case!(a_runtime_class_says_which_runtime_runs_the_pod),
        case!(a_pod_runs_under_gvisor).on(|node| node.cni = true),
        case!(a_pod_with_users_of_its_own_is_no_root_on_the_node).on(|node| node.cni = true),
        case!(users_of_its_own_have_volumes_hooks_and_a_network).on(|node| node.cni = true),
        case!(a_node_without_mapped_layers_refuses_users_of_its_own).on(|node| {
            node.cni = true;
            node.snapshotter = "native";
        }),
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

/// Applies a pod of two containers, the second of which leaves an orphan.
fn apply_sharing(node: &TestNode) -> Result<()> {
    let orphan = format!("(sleep 99991 &); {IDLE}");
    let containers = [shell("main", IDLE), shell("side", &orphan)];
    node.apply(&pod("web", json!({ "shareProcessNamespace": true, "containers": containers })))
}

/// The pid, in the host's namespace, of the init of the pod's sandbox.
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
    // The init's rights, its files and the host's namespaces are out of reach.
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
    // An orphan that ends is reaped, and a signal to process 1 has no effect.
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

fn users_of_its_own_share_their_processes(node: &mut TestNode) -> Result<()> {
    let tracing = json!({ "securityContext": { "capabilities": { "add": ["SYS_PTRACE", "SYS_CHROOT"] } } });
    let containers = [with(shell("main", IDLE), tracing), shell("side", "(sleep 99991 &); sleep 99992")];
    let spec =
        json!({ "shareProcessNamespace": true, "hostUsers": false, "hostNetwork": false, "containers": containers });
    node.apply(&pod("web", spec))?;
    let pod = node.wait_running("web")?;
    let seen = sh(node, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")?;
    ensure!(seen.contains("sleep 99991") && seen.contains("sleep 99992"), "{seen}");
    ensure!(sh(node, "tr '\\0' ' ' < /proc/1/cmdline")?.starts_with("/limpet pod-init"), "process 1 is no init");
    // The init has a user of the pod, no rights, no files, and the pod's cgroup.
    let (process, first) = (init(node, &pod)?, first_id(node, "web")?);
    let status = sh(node, "cat /proc/1/status")?;
    for line in ["Uid:\t0\t0\t0\t0", "Groups:\t \n", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"] {
        ensure!(status.contains(line), "{line}: {status}");
    }
    let above = sh(node, "ls /proc/1/root/ /proc/1/root/../.. /proc/1/cwd/..")?;
    ensure!(
        above.lines().all(|line| line.is_empty() || line.starts_with('/') || line == "limpet"),
        "files of the node: {above}"
    );
    let map = fs::read_to_string(format!("/proc/{process}/uid_map"))?;
    ensure!(map.split_whitespace().nth(1) == Some(&first.to_string()), "the init's users are others: {map}");
    let root = fs::read_dir(format!("/proc/{process}/root/"))?.flatten().map(|entry| entry.file_name());
    ensure!(root.collect::<Vec<_>>() == ["limpet"], "the init has files");
    ensure!(
        fs::read_to_string(format!("/proc/{process}/cgroup"))?.contains("init"),
        "the init has no cgroup of its own"
    );
    node.agent.kill();
    node.agent.start()?;
    let id = container_id(&pod, "main")?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "a restart of the agent restarts nothing");
    ensure!(process::is_alive(process));
    node.remove("web")?;
    node.wait_gone("web")?;
    wait::until_true(LIMIT, "the init to end with its pod", || !process::is_alive(process))
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
            .is_some_and(|all| all.iter().all(|status| status["state"]["running"].is_object()));
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

/// The other runtime is runc behind a script that records its call.
fn a_runtime_class_says_which_runtime_runs_the_pod(node: &mut TestNode) -> Result<()> {
    let (runtime, called) = (node.dir().join("other-runc"), node.dir().join("called"));
    fs::write(&runtime, format!("#!/bin/sh\necho \"$@\" >> {}\nexec runc \"$@\"\n", called.display()))?;
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755))?;
    node.agent.kill();
    let cdi = node.agent.settings().plugins().join("cdi");
    fs::create_dir_all(&cdi)?;
    let edits = json!({ "env": ["MARK=of the class"] });
    let devices = json!([{ "name": "one", "containerEdits": edits }]);
    let document = json!({ "cdiVersion": "0.6.0", "kind": "example.com/mark", "devices": devices });
    fs::write(cdi.join("mark.json"), document.to_string())?;
    let class =
        format!("runtimeClasses: {{other: {{binary: {}, devices: [example.com/mark=one]}}}}", runtime.display());
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
    ensure!(sh(node, "echo $MARK")?.trim() == "of the class", "the class's CDI device is missing");

    node.apply(&pod("lost", json!({ "runtimeClassName": "none", "containers": [shell("main", IDLE)] })))?;
    node.wait_event("failed to get RuntimeClass \"none\"")
}

/// gVisor's kernel answers in the container, which keeps its volume when it is started again.
fn a_pod_runs_under_gvisor(node: &mut TestNode) -> Result<()> {
    let runsc = tools::runsc().context("no runsc; run: cargo xtask test")?;
    let wrapper = node.dir().join("runsc");
    // gVisor runs without virtualisation; without cgroups, because it does not support both versions at once; and
    // without a network, because by the sysctls of newer kernels this version takes each network for the host's.
    let options = "--platform=ptrace --ignore-cgroups --network=none";
    let script = format!("#!/bin/sh\nexec {} {options} \"$@\"\n", runsc.display());
    fs::write(&wrapper, script)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    node.agent.kill();
    let class = format!("runtimeClasses: {{gvisor: {{binary: {}}}}}", wrapper.display());
    node.agent.reconfigure(|settings| settings.limpet.push(class))?;
    node.agent.start()?;
    // The container's standard input is not /dev/null, and nothing is executed in it: this version gives the node's
    // /dev/null to its own user.
    let script = format!("dmesg; cat /data/file; echo kept > /data/file; echo written; {IDLE}");
    let mounts = json!([{ "name": "data", "mountPath": "/data" }]);
    let main = with(shell("main", &script), json!({ "stdin": true, "volumeMounts": mounts }));
    let volumes = json!([{ "name": "data", "emptyDir": {} }]);
    let spec = json!({ "runtimeClassName": "gvisor", "hostNetwork": false, "containers": [main], "volumes": volumes });
    node.apply(&pod("web", spec))?;
    let first = container_id(&node.wait_running("web")?, "main")?;
    node.wait_logged("web", "main", "Starting gVisor")?;
    node.wait_logged("web", "main", "written")?;
    process::signal_pid(first_process(node, &first)?, Signal::KILL);
    node.wait_pod("web", "started again", |pod| {
        container_id(pod, "main").is_ok_and(|id| id != first) && pod["status"]["phase"] == "Running"
    })?;
    node.wait_logged("web", "main", "kept")?;
    ensure!(fs::metadata("/dev/null")?.uid() == 0, "the node's /dev/null has another owner");
    node.remove("web")?;
    node.wait_gone("web")
}

/// The first id of the pod on the node, as one of its processes sees it.
fn first_id(node: &TestNode, name: &str) -> Result<u32> {
    let map = node.exec(name, "main", &["/bin/sh", "-c", "cat /proc/self/uid_map; cat /proc/self/gid_map"])?;
    let lines: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let [uids, gids] = &lines[..] else { anyhow::bail!("{map}") };
    ensure!(uids == gids && uids[0] == "0" && uids[2] == "65536", "{map}");
    Ok(uids[1].parse()?)
}

/// The container's first process on the node.
fn first_process(node: &TestNode, id: &str) -> Result<u32> {
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id);
    Ok(task.context("no task")?.pid)
}

/// A pod with a user namespace that writes a file into a volume and one beside it.
fn mapped(name: &str) -> Value {
    let script = format!("echo by name > /dev/stdout; echo start >> /data/starts; echo own > /etc/made; {IDLE}");
    let mounts = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let spec = json!({
        "hostUsers": false, "hostNetwork": false, "volumes": [{ "name": "data", "emptyDir": {} }],
        "containers": [with(shell("main", &script), mounts)],
    });
    pod(name, spec)
}

fn a_pod_with_users_of_its_own_is_no_root_on_the_node(node: &mut TestNode) -> Result<()> {
    node.apply(&mapped("web"))?;
    node.apply(&mapped("second"))?;
    let web = node.wait_running("web")?;
    node.wait_running("second")?;
    let (first, second) = (first_id(node, "web")?, first_id(node, "second")?);
    ensure!(first >= 65_536 && first.abs_diff(second) >= 65_536, "{first} and {second} overlap");
    let id = container_id(&web, "main")?;
    let process = first_process(node, &id)?;
    ensure!(fs::metadata(format!("/proc/{process}"))?.uid() == first, "its root is not the first of its ids");
    node.wait_logged("web", "main", "by name")?;
    // Root's files belong to root inside, and on the node only those in a volume do.
    let inside = sh(node, "stat -c %u /bin/busybox /data/starts /etc/made /etc/hosts /dev/shm")?;
    ensure!(inside == "0\n".repeat(5), "{inside}");
    let uid = web["metadata"]["uid"].as_str().context("no uid")?;
    let volume = node.agent.settings().root().join("pods").join(uid).join("volumes/kubernetes.io~empty-dir/data");
    ensure!(fs::metadata(volume.join("starts"))?.uid() == 0, "the volume has the pod's ids");
    let made = fs::metadata(format!("/proc/{process}/root/etc/made"))?;
    ensure!(made.uid() == first, "a file of the container's is {}'s", made.uid());

    // The next agent finds the ids, and gives them to no other pod.
    node.agent.kill();
    node.agent.start()?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "a restart of the agent restarts nothing");
    node.apply(&mapped("third"))?;
    node.wait_running("third")?;
    let third = first_id(node, "third")?;
    ensure!(third != first && third != second, "{third} is another pod's");
    process::signal_pid(process, Signal::KILL);
    node.wait_pod("web", "runs again", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"] == 1 && status["state"]["running"].is_object()
    })?;
    ensure!(first_id(node, "web")? == first, "a restart of its container changes its ids");
    ensure!(sh(node, "cat /data/starts")? == "start\nstart\n", "the volume was not kept");
    Ok(())
}

/// A pod whose container has another user and volumes of every kind.
fn volumes_and_hooks(host: &std::path::Path) -> Value {
    let mount = |(name, path): (&str, &str)| json!({ "name": name, "mountPath": path });
    let mounts = [("config", "/config"), ("memory", "/memory"), ("host", "/host"), ("image", "/image")].map(mount);
    let probe = json!({ "exec": { "command": ["/bin/sh", "-c", "[ $(id -u) = 1000 ]"] }, "periodSeconds": 1 });
    let hook = json!({ "exec": { "command": ["/bin/sh", "-c", "echo started > /memory/hook"] } });
    let main = json!({
        "volumeMounts": mounts, "readinessProbe": probe, "lifecycle": { "postStart": hook },
        "securityContext": { "procMount": "Unmasked" },
    });
    let volumes = json!([
        { "name": "config", "configMap": { "name": "app" } },
        { "name": "memory", "emptyDir": { "medium": "Memory" } },
        { "name": "host", "hostPath": { "path": host } },
        { "name": "image", "image": { "reference": limpet_tests::image::V1 } },
    ]);
    let spec = json!({
        "hostUsers": false, "hostNetwork": false, "volumes": volumes,
        "securityContext": { "runAsUser": 1000, "fsGroup": 2000 },
        "containers": [with(shell("main", &format!("echo $$ > /memory/pid; {IDLE}")), main)],
    });
    pod("web", spec)
}

fn users_of_its_own_have_volumes_hooks_and_a_network(node: &mut TestNode) -> Result<()> {
    let metadata = json!({ "name": "app" });
    let config =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "key": "config\n" } });
    node.drop_text("app.yaml", &config.to_string())?;
    let host = node.dir().join("shared");
    fs::create_dir_all(&host)?;
    fs::write(host.join("file"), "of the node\n")?;
    fs::set_permissions(host.join("file"), fs::Permissions::from_mode(0o600))?;
    node.apply(&volumes_and_hooks(&host))?;
    node.wait_pod("web", "ready", |pod| pod["status"]["containerStatuses"][0]["ready"] == true)?;
    ensure!(sh(node, "cat /config/key /memory/hook")? == "config\nstarted\n");
    let owners = sh(node, "stat -c '%u %g' /memory /memory/pid /host/file /image/bin/busybox")?;
    ensure!(owners == "0 2000\n1000 2000\n0 0\n0 0\n", "{owners}");
    ensure!(sh(node, "cat /host/file 2> /dev/null || echo closed")? == "closed\n", "the node's root is the pod's user");
    ensure!(sh(node, "ip -o addr")?.contains("eth0"), "no network");
    ensure!(sh(node, "grep -c ' /proc/' /proc/self/mountinfo || true")? == "0\n", "/proc is masked");
    let name = node.full_name("web");
    let image = limpet_tests::image::V1;
    let debug = ["debug", &name, "--image", image, "--target", "main", "-c", "look", "--", "/bin/cat"];
    node.agent.cli(&[&debug[..], &["/proc/1/uid_map"]].concat())?.success()?;
    let first = first_id(node, "web")?.to_string();
    node.wait_logged("web", "look", &first).map(drop)
}

fn a_node_without_mapped_layers_refuses_users_of_its_own(node: &mut TestNode) -> Result<()> {
    node.apply(&mapped("web"))?;
    node.wait_event("can't set `spec.hostUsers: false`: snapshotter native has no layers that can be mapped")?;
    ensure!(node.containerd.tasks()?.is_empty(), "it runs");
    Ok(())
}

fn asking(name: &str, device: &str, count: u32) -> Value {
    let limits = json!({ "resources": { "limits": { device: count } } });
    pod(name, json!({ "containers": [with(shell("main", IDLE), limits), shell("side", IDLE)] }))
}

/// Not every container has /dev/fuse, and the cgroup decides whether it may be opened.
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
    // The next agent knows who has a device, and restarts nothing for it.
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
