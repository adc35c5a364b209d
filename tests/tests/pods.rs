//! What a pod's spec requests is what its processes find: volumes, environment, users, rights and limits.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cgroup::{self, main_process, pod_limits};
use limpet_tests::image::{self, ImageBuilder};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, suite, wait};
use places::{
    a_lesser_pod_gives_its_place_to_a_critical_one, a_pod_beyond_the_nodes_number_starts_once_another_is_over,
};
use processes::a_pod_has_no_more_processes_than_it_may;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

#[path = "pods/places.rs"]
mod places;
#[path = "pods/processes.rs"]
mod processes;

fn main() -> ExitCode {
    suite::run([
        case!(empty_dirs_are_shared),
        case!(host_paths_of_every_type),
        case!(the_environment_knows_the_pod),
        case!(a_pod_on_the_hosts_network_has_the_hosts_name),
        case!(the_termination_message_is_shown),
        case!(the_image_says_the_user),
        case!(the_pod_says_the_user),
        case!(a_process_that_cannot_begin_fails_its_pod),
        case!(a_root_file_system_may_be_read_only),
        case!(capabilities_are_dropped_and_added),
        case!(seccomp_profiles_are_applied),
        case!(limits_are_the_cgroups),
        case!(the_pods_cgroup_follows_an_edit_of_resources),
        case!(a_pod_has_no_more_processes_than_it_may).on(|node| node.kubelet = vec!["podPidsLimit: 40".to_owned()]),
        case!(another_qos_class_makes_a_new_pod),
        case!(a_removed_host_path_is_recreated),
        case!(a_pod_starts_once_the_node_has_what_it_requests_and_selects)
            .on(|node| node.kubelet = vec!["kubeReserved: {cpu: 250m}".to_owned()]),
        case!(a_lesser_pod_ends_for_a_critical_one_and_runs_again_after_it),
        case!(a_pod_beyond_the_nodes_number_starts_once_another_is_over)
            .on(|node| node.kubelet = vec!["maxPods: 1".to_owned()]),
        case!(a_lesser_pod_gives_its_place_to_a_critical_one).on(|node| node.kubelet = vec!["maxPods: 1".to_owned()]),
    ])
}

/// Runs a pod of one container, `main`, with further keys for container and pod, and returns it when it runs.
fn run(node: &TestNode, main: Value, spec: Value) -> Result<Value> {
    node.apply(&pod("web", with(json!({ "containers": [with(shell("main", IDLE), main)] }), spec)))?;
    node.wait_running("web")
}

fn sh(node: &TestNode, script: &str) -> Result<String> {
    node.exec("web", "main", &["/bin/sh", "-c", script])
}

fn empty_dirs_are_shared(node: &mut TestNode) -> Result<()> {
    let mounts = json!({ "volumeMounts": [
        { "name": "disk", "mountPath": "/disk" },
        { "name": "memory", "mountPath": "/memory" },
    ] });
    let containers = [with(shell("main", IDLE), mounts.clone()), with(shell("side", IDLE), mounts)];
    let volumes = json!([
        { "name": "disk", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } },
    ]);
    node.apply(&pod("web", json!({ "containers": containers, "volumes": volumes })))?;
    node.wait_running("web")?;
    sh(node, "echo one > /disk/file; echo two > /memory/file")?;
    ensure!(node.exec("web", "side", &["cat", "/disk/file", "/memory/file"])? == "one\ntwo\n");
    let mounts = sh(node, "cat /proc/mounts")?;
    let memory = mounts.lines().find(|line| line.contains(" /memory ")).context("no mount at /memory")?;
    ensure!(memory.contains("tmpfs") && memory.contains("size=8192k"), "{memory}");
    ensure!(sh(node, "stat -c %a /disk")? == "777\n");
    Ok(())
}

fn host_paths_of_every_type(node: &mut TestNode) -> Result<()> {
    let dir = node.dir().join("host");
    fs::create_dir_all(dir.join("directory"))?;
    fs::write(dir.join("file"), "content\n")?;
    let _listener = std::os::unix::net::UnixListener::bind(dir.join("socket"))?;
    let types = [
        ("any", "", "directory"),
        ("directory", "Directory", "directory"),
        ("made-directory", "DirectoryOrCreate", "made/directory"),
        ("file", "File", "file"),
        ("made-file", "FileOrCreate", "made-file"),
        ("socket", "Socket", "socket"),
        ("char", "CharDevice", "/dev/null"),
    ];
    let volume = |(name, kind, path): (&str, &str, &str)| json!({ "name": name, "hostPath": { "path": dir.join(path), "type": kind } });
    let volumes: Vec<_> = types.into_iter().map(volume).collect();
    let mounts: Vec<_> =
        types.iter().map(|(name, ..)| json!({ "name": name, "mountPath": format!("/host/{name}") })).collect();
    run(node, json!({ "volumeMounts": mounts }), json!({ "volumes": volumes }))?;
    let tests = "test -d /host/any && test -d /host/directory && test -d /host/made-directory && cat /host/file && \
        test -f /host/made-file && test -S /host/socket && test -c /host/char && echo all";
    ensure!(sh(node, tests)? == "content\nall\n");
    ensure!(fs::metadata(dir.join("made/directory"))?.permissions().mode() & 0o777 == 0o755);
    ensure!(fs::metadata(dir.join("made-file"))?.permissions().mode() & 0o777 == 0o644);
    ensure!(fs::metadata(dir.join("socket"))?.file_type().is_socket());

    let wrong = json!({ "name": "wrong", "hostPath": { "path": dir.join("file"), "type": "Directory" } });
    let main = with(shell("main", IDLE), json!({ "volumeMounts": [{ "name": "wrong", "mountPath": "/wrong" }] }));
    node.apply(&pod("wrong", json!({ "containers": [main], "volumes": [wrong] })))?;
    node.wait_event("FailedMount")?;
    ensure!(node.pod("wrong").is_some_and(|pod| pod["status"]["phase"] == "Pending"));
    Ok(())
}

fn the_environment_knows_the_pod(node: &mut TestNode) -> Result<()> {
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let resource = json!({ "name": "CPU", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } });
    let env = json!([
        { "name": "PLAIN", "value": "a" },
        { "name": "TWICE", "value": "$(PLAIN)$(PLAIN) $$(PLAIN) $(ABSENT)" },
        field("NAME", "metadata.name"),
        field("NAMESPACE", "metadata.namespace"),
        field("ID", "metadata.uid"),
        field("NODE", "spec.nodeName"),
        field("COLOUR", "metadata.labels['colour']"),
        resource,
    ]);
    let main = json!({ "env": env, "args": ["$(PLAIN)"], "resources": { "limits": { "cpu": "2" } } });
    let manifest = pod("web", json!({ "containers": [with(shell("main", IDLE), main)] }));
    node.apply(&with(manifest, json!({ "metadata": { "labels": { "colour": "red" } } })))?;
    let web = node.wait_running("web")?;
    let uid = web["metadata"]["uid"].as_str().context("no UID")?;
    let said = sh(node, "echo \"$TWICE|$NAME|$NAMESPACE|$ID|$NODE|$COLOUR|$CPU|$VERSION\"")?;
    ensure!(
        said == format!("aa $(PLAIN) $(ABSENT)|{}|default|{uid}|{}|red|2|1\n", node.full_name("web"), node.name()),
        "{said}"
    );
    Ok(())
}

fn a_pod_on_the_hosts_network_has_the_hosts_name(node: &mut TestNode) -> Result<()> {
    run(node, json!({}), json!({ "hostname": "own" }))?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    ensure!(host != node.name(), "the node has a name of its own: {host}");
    // They share one UTS namespace, so a later name of the host is the pod's, too.
    let namespace = fs::read_link("/proc/self/ns/uts")?.to_string_lossy().into_owned();
    let script = "readlink /proc/self/ns/uts; hostname; cat /etc/hostname; echo $HOSTNAME";
    let inside = sh(node, script)?;
    ensure!(inside == format!("{namespace}\n{host}\n{host}\n{host}\n"), "{inside}");
    Ok(())
}

fn the_termination_message_is_shown(node: &mut TestNode) -> Result<()> {
    let said = shell("said", "echo by file > /dev/termination-log; echo by log; exit 4");
    let logged =
        with(shell("logged", "echo by log; exit 4"), json!({ "terminationMessagePolicy": "FallbackToLogsOnError" }));
    node.apply(&pod("web", json!({ "restartPolicy": "Never", "containers": [said, logged] })))?;
    let web = node.wait_pod("web", "failed", |pod| pod["status"]["phase"] == "Failed")?;
    for (name, message) in [("said", "by file"), ("logged", "by log")] {
        let ended = &container(&web, name)["state"]["terminated"];
        ensure!(ended["exitCode"] == 4 && ended["message"].as_str().map(str::trim) == Some(message), "{name}: {ended}");
    }
    Ok(())
}

fn the_image_says_the_user(node: &mut TestNode) -> Result<()> {
    let image = ImageBuilder::new("registry.test/limpet/user:v1").config("User", json!("app")).build()?;
    let archive = node.dir().join("user.tar");
    image::write_oci_archive(&[&image], &archive)?;
    node.containerd.import(&archive)?;
    run(node, json!({ "image": image.name }), json!({}))?;
    let said = sh(node, "id; echo $HOME")?;
    ensure!(said == "uid=1000(app) gid=1000(app) groups=1000(app),2000(serial),2001(video)\n/tmp\n", "{said}");
    Ok(())
}

fn a_process_that_cannot_begin_fails_its_pod(node: &mut TestNode) -> Result<()> {
    // The kernel passes no such long variable to a program.
    let long = json!({ "env": [{ "name": "LONG", "value": "x".repeat(140_000) }] });
    let relative = json!({ "workingDir": "relative" });
    for (name, main) in [("long", long), ("relative", relative)] {
        let spec = json!({ "restartPolicy": "Never", "containers": [with(shell("main", IDLE), main)] });
        node.apply(&pod(name, spec))?;
        node.wait_pod(name, "failed", |pod| pod["status"]["phase"] == "Failed")?;
    }
    let relative = node.pod("relative").context("the pod is gone")?;
    let ended = &relative["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(ended["reason"] == "StartError" && ended["exitCode"] == 128, "{ended}");
    Ok(())
}

fn the_pod_says_the_user(node: &mut TestNode) -> Result<()> {
    let context = json!({ "runAsUser": 1234, "runAsGroup": 5678, "fsGroup": 4321, "supplementalGroups": [777] });
    let spec = json!({ "securityContext": context, "volumes": [{ "name": "data", "emptyDir": {} }] });
    run(node, json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }), spec)?;
    let said = sh(node, "id -u; id -g; id -G; touch /data/mine && stat -c %g /data/mine")?;
    let lines: Vec<_> = said.lines().collect();
    ensure!(lines[..2] == ["1234", "5678"] && lines[3] == "4321", "{said}");
    let mut groups: Vec<_> = lines[2].split(' ').collect();
    groups.sort_unstable();
    ensure!(groups == ["4321", "5678", "777"], "{said}");
    Ok(())
}

fn a_root_file_system_may_be_read_only(node: &mut TestNode) -> Result<()> {
    run(node, json!({ "securityContext": { "readOnlyRootFilesystem": true } }), json!({}))?;
    let said = sh(node, "touch /new 2>&1 || true; touch /dev/shm/new && echo shm")?;
    ensure!(said.contains("Read-only file system") && said.ends_with("shm\n"), "{said}");
    Ok(())
}

/// A line of the first process's `/proc/1/status`.
fn status_line(node: &TestNode, key: &str) -> Result<String> {
    let said = sh(node, "cat /proc/1/status")?;
    let line = said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
    line.map(str::to_owned).with_context(|| format!("no {key} in {said}"))
}

fn capabilities_are_dropped_and_added(node: &mut TestNode) -> Result<()> {
    run(node, json!({}), json!({}))?;
    ensure!(status_line(node, "CapBnd")? == "00000000a80425fb", "{}", status_line(node, "CapBnd")?);
    let capabilities = json!({ "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] });
    let context = json!({ "securityContext": { "capabilities": capabilities, "allowPrivilegeEscalation": false } });
    let uid = node.pod("web").context("no pod")?["metadata"]["uid"].clone();
    node.apply(&pod("web", json!({ "containers": [with(shell("main", IDLE), context)] })))?;
    node.wait_pod("web", "made again", |pod| pod["metadata"]["uid"] != uid)?;
    node.wait_running("web")?;
    ensure!(status_line(node, "CapEff")? == "0000000000000400", "{}", status_line(node, "CapEff")?);
    ensure!(status_line(node, "CapBnd")? == "0000000000000400");
    ensure!(status_line(node, "NoNewPrivs")? == "1");
    Ok(())
}

fn seccomp_profiles_are_applied(node: &mut TestNode) -> Result<()> {
    let profile = |kind: &str| json!({ "securityContext": { "seccompProfile": { "type": kind } } });
    let containers = [
        shell("main", IDLE),
        with(shell("default", IDLE), profile("RuntimeDefault")),
        with(shell("none", IDLE), profile("Unconfined")),
    ];
    node.apply(&pod("web", json!({ "containers": containers })))?;
    node.wait_running("web")?;
    for (name, mode) in [("main", "0"), ("default", "2"), ("none", "0")] {
        let said = node.exec("web", name, &["grep", "Seccomp:", "/proc/1/status"])?;
        ensure!(said == format!("Seccomp:\t{mode}\n"), "{name}: {said}");
    }
    Ok(())
}

/// The next instance of `main`, once it runs.
fn next_running(node: &TestNode, before: &Value) -> Result<Value> {
    let old = container_id(before, "main")?;
    node.wait_pod("web", "running its next container", |pod| {
        let runs = container(pod, "main")["state"]["running"].is_object();
        runs && container_id(pod, "main").is_ok_and(|id| id != old)
    })
}

fn the_pods_cgroup_follows_an_edit_of_resources(node: &mut TestNode) -> Result<()> {
    let resources = |cpu: &str, memory: &str| {
        let limits = json!({ "cpu": cpu, "memory": memory });
        let restarts = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
        json!({ "resources": { "requests": { "cpu": "10m" }, "limits": limits }, "resizePolicy": restarts })
    };
    let mut web = run(node, resources("100m", "64Mi"), json!({}))?;
    let wanted = |memory: u64, quota: &str| ((memory << 20).to_string(), quota.to_owned());
    ensure!(pod_limits(node, &web)? == wanted(64, "10000"), "{:?}", pod_limits(node, &web)?);
    for (cpu, memory, limits) in [("500m", "256Mi", wanted(256, "50000")), ("200m", "32Mi", wanted(32, "20000"))] {
        let main = with(shell("main", IDLE), resources(cpu, memory));
        node.apply(&pod("web", json!({ "containers": [main] })))?;
        let after = next_running(node, &web)?;
        ensure!(after["metadata"]["uid"] == web["metadata"]["uid"], "{after}");
        wait::until_true(wait::SOON, "the pod's cgroup", || {
            pod_limits(node, &after).is_ok_and(|current| current == limits)
        })?;
        web = after;
    }
    Ok(())
}

fn another_qos_class_makes_a_new_pod(node: &mut TestNode) -> Result<()> {
    let before = run(node, json!({ "resources": { "limits": { "memory": "64Mi" } } }), json!({}))?;
    let group = cgroup::file(main_process(node, &before)?, "memory", "tasks", "cgroup.procs")?;
    let group = group.ancestors().nth(2).context("no pod's cgroup")?;
    let manifest = pod("web", json!({ "containers": [shell("main", IDLE)] }));
    let file = node.dir().join("web.json");
    fs::write(&file, manifest.to_string())?;
    let diff = node.agent.cli(&["diff", "-f", &file.to_string_lossy()])?.stdout;
    ensure!(diff.contains("QoS class changes from Burstable to BestEffort"), "{diff}");
    node.apply(&manifest)?;
    let after = node.wait_pod("web", "best-effort", |pod| {
        pod["status"]["qosClass"] == "BestEffort" && container(pod, "main")["state"]["running"].is_object()
    })?;
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "{after}");
    ensure!(container(&after, "main")["restartCount"] == 0, "{}", after["status"]);
    let place = fs::read_to_string(format!("/proc/{}/cgroup", main_process(node, &after)?))?;
    ensure!(place.contains("besteffort") && !group.exists(), "{place} {}", group.display());
    Ok(())
}

fn a_removed_host_path_is_recreated(node: &mut TestNode) -> Result<()> {
    let path = node.dir().join("run/app");
    let volume = json!({ "name": "app", "hostPath": { "path": path, "type": "DirectoryOrCreate" } });
    let mount = json!({ "volumeMounts": [{ "name": "app", "mountPath": "/app" }] });
    let web = run(node, mount, json!({ "volumes": [volume] }))?;
    fs::remove_dir_all(node.dir().join("run/app"))?;
    let pid = Pid::from_raw(i32::try_from(main_process(node, &web)?)?).context("no process")?;
    rustix::process::kill_process(pid, Signal::KILL)?;
    next_running(node, &web)?;
    sh(node, "touch /app/there")?;
    ensure!(path.join("there").exists());
    Ok(())
}

fn limits_are_the_cgroups(node: &mut TestNode) -> Result<()> {
    let resources = json!({
        "requests": { "cpu": "250m", "memory": "16Mi" },
        "limits": { "cpu": "500m", "memory": "64Mi" },
    });
    let web = run(node, json!({ "resources": resources }), json!({}))?;
    ensure!(web["status"]["qosClass"] == "Burstable", "{}", web["status"]);
    let id = container_id(&web, "main")?;
    let pid = node.containerd.tasks()?.iter().find(|task| task.id == id).context("no task")?.pid;
    ensure!(cgroup::value(pid, "memory", "memory.limit_in_bytes", "memory.max")? == (64 << 20).to_string());
    let quota = cgroup::value(pid, "cpu", "cpu.cfs_quota_us", "cpu.max")?;
    ensure!(quota == "50000" || quota == "50000 100000", "{quota}");
    let weight = cgroup::value(pid, "cpu", "cpu.shares", "cpu.weight")?;
    ensure!(weight == "256" || weight.parse::<u32>().is_ok_and(|weight| weight < 100), "{weight}");
    let uid = web["metadata"]["uid"].as_str().context("no UID")?;
    let place = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let directory = format!("/{}/kubepods/burstable/pod{uid}/{id}", node.cgroup());
    let scope = format!("-kubepods-burstable-pod{uid}.slice/limpet-{id}.scope");
    ensure!(place.contains(&directory) || place.contains(&scope), "neither {directory} nor {scope} is in {place}");
    Ok(())
}

fn a_pod_starts_once_the_node_has_what_it_requests_and_selects(node: &mut TestNode) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    let all_but = |milli: usize| cores * 1_000 - 250 - milli;
    let asks = |name: &str, milli: usize| {
        let resources = json!({ "resources": { "requests": { "cpu": format!("{milli}m") } } });
        pod(name, json!({ "containers": [with(shell("main", IDLE), resources)] }))
    };
    node.apply(&asks("large", all_but(100)))?;
    node.wait_running("large")?;
    node.apply(&asks("fits", 100))?;
    let fits = node.wait_running("fits")?;
    node.apply(&asks("waits", 100))?;
    let waits = node.wait_pod("waits", "waiting", |pod| pod["status"]["reason"] == "OutOfcpu")?;
    let why = format!("cpu, requested: 100, used: {}, capacity: {}", all_but(0), all_but(0));
    let message = waits["status"]["message"].as_str().unwrap_or_default();
    ensure!(waits["status"]["phase"] == "Pending" && message.contains(&why), "{waits}");
    node.wait_event(&why)?;
    // What runs stays, even after an edit that requests more than there is, and what waits is known after a restart.
    node.apply(&asks("fits", 150))?;
    node.wait_pod("fits", "edited", |pod| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "150m")?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_pod("waits", "waiting", |pod| pod["status"]["reason"] == "OutOfcpu")?;
    ensure!(container_id(&node.wait_running("fits")?, "main")? == container_id(&fits, "main")?);
    node.remove("large")?;
    node.wait_running("waits")?;

    let selects = |value: &str| {
        let selector = json!({ "nodeSelector": { "kubernetes.io/os": value } });
        pod("selects", with(json!({ "containers": [shell("main", IDLE)] }), selector))
    };
    node.apply(&selects("windows"))?;
    let waits = node.wait_pod("selects", "waiting", |pod| pod["status"]["reason"] == "NodeAffinity")?;
    ensure!(waits["status"]["phase"] == "Pending", "{waits}");
    node.apply(&selects("linux"))?;
    node.wait_running("selects")?;
    Ok(())
}

fn a_lesser_pod_ends_for_a_critical_one_and_runs_again_after_it(node: &mut TestNode) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    let asks = |name: &str, milli: usize| {
        let resources = json!({ "resources": { "requests": { "cpu": format!("{milli}m") } } });
        let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [with(shell("main", IDLE), resources)] });
        pod(name, spec)
    };
    let lesser = asks("lesser", cores * 1_000 - 500).to_string();
    node.agent.cli_with_input(&["apply", "-f", "-"], lesser.as_bytes())?.success()?;
    let before = main_process(node, &node.wait_running("lesser")?)?;
    node.apply(&asks("critical", 600))?;
    node.wait_running("critical")?;
    node.wait_event("Preempted in order to admit critical pod")?;
    let waits = |pod: &Value| pod["status"]["phase"] == "Pending" && pod["status"]["reason"] == "OutOfcpu";
    node.wait_pod("lesser", "waiting for room", waits)?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_pod("lesser", "waiting for room", waits)?;
    node.remove("critical")?;
    let again = node.wait_running("lesser")?;
    ensure!(main_process(node, &again)? != before, "{again}");
    Ok(())
}
