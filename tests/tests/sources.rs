//! Pods from a URL and from `limpet apply`: they run, and what was accepted outlives server, agent and crash.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::agent::Reply;
use limpet_tests::claim::Port;
use limpet_tests::manifest::{IDLE, pod, shell, simple};
use limpet_tests::node::container_id;
use limpet_tests::web::Web;
use limpet_tests::{TestNode, case, need, process, suite, wait};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_url_s_pod_outlives_its_server).on(|node| node.agent = false),
        case!(an_applied_pod_survives_a_crash_right_after_the_answer),
        case!(a_pod_of_a_file_comes_before_an_applied_one),
        case!(a_card_that_goes_and_comes_restarts_nothing),
        case!(a_guard_that_cannot_be_had_stops_the_start_when_it_is_demanded).on(|node| node.agent = false),
        case!(who_changed_a_manifest_is_reported),
        case!(a_pod_that_writes_manifests_raises_an_alarm),
        case!(a_pod_with_the_run_directory_is_refused_unless_it_is_listed),
        case!(a_full_disk_is_reported_and_overcome).on(|node| node.root_size = Some(16 << 20)),
    ])
}

fn list(pods: &[Value]) -> String {
    json!({ "apiVersion": "v1", "kind": "PodList", "items": pods }).to_string()
}

/// Waits until `limpet sources` shows `text`.
fn wait_sources(node: &TestNode, text: &str) -> Result<String> {
    wait::until(wait::SOON, &format!("{text:?} among the sources"), || {
        node.agent.cli(&["sources"]).ok()?.success().ok().filter(|sources| sources.contains(text))
    })
    .with_context(|| format!("{:?}", node.agent.cli(&["sources"])))
}

fn a_url_s_pod_outlives_its_server(node: &mut TestNode) -> Result<()> {
    let port = Port::claim()?;
    let web = Web::start(&port, &list(&[simple("web", IDLE), simple("side", IDLE)]))?;
    let url = web.url();
    node.agent.reconfigure(|settings| {
        settings.kubelet.push(format!("staticPodURL: {url}\nhttpCheckFrequency: 1s"));
    })?;
    node.agent.start()?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    node.wait_running("side")?;

    drop(web);
    node.agent.kill();
    node.agent.start()?;
    let sources = wait_sources(node, "refused")?;
    ensure!(sources.contains(&url) && sources.lines().any(|line| line.starts_with("http")), "{sources}");
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");

    // The server is back with fewer pods: the missing one ends, and the rest is left alone.
    let web = Web::start(&port, &list(&[simple("web", IDLE)]))?;
    node.wait_gone("side")?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");
    web.serve("");
    let sources = wait_sources(node, "empty response")?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "{sources}");
    web.serve(&list(&[]));
    node.wait_gone("web")
}

fn an_applied_pod_survives_a_crash_right_after_the_answer(node: &mut TestNode) -> Result<()> {
    let both = format!("{}\n---\n{}", simple("web", IDLE), simple("db", IDLE));
    let said = node.agent.cli_with_input(&["apply", "-f", "-"], both.as_bytes())?.success()?;
    node.agent.kill();
    ensure!(said == "pod/web created\npod/db created\n", "{said}");
    node.agent.start()?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    node.wait_running("db")?;
    let changes = history(node, "web")?;
    ensure!(
        changes.len() == 1 && changes[0]["actor"]["command"] == "limpet" && changes[0]["actor"]["uid"] == 0,
        "{changes:?}"
    );
    let said = node.agent.cli_with_input(&["apply", "-f", "-"], both.as_bytes())?.success()?;
    ensure!(said == "pod/web unchanged\npod/db unchanged\n", "{said}");

    let broken = pod("bad", json!({ "containers": [shell("A_A", IDLE)] })).to_string();
    let refused = node.agent.cli_with_input(&["apply", "-f", "-"], broken.as_bytes())?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("spec.containers[0].name"), "{refused:?}");

    let said = node.agent.cli(&["delete", "web", "--grace-period", "1"])?.success()?;
    ensure!(said == "pod \"web\" deleted\n", "{said}");
    ensure!(node.pod("web").is_none(), "delete waits until the pod has ended");
    let running = node.containerd.tasks()?;
    ensure!(running.iter().all(|task| task.id != id), "{running:?}");
    node.agent.cli(&["delete", "db", "--wait=false"])?.success()?;
    node.agent.kill();
    node.agent.start()?;
    // This does not show before containerd was read: only then is it gone for good.
    node.wait_nothing_runs()?;
    node.wait_gone("db")?;
    let missing = node.agent.cli(&["delete", "db"])?;
    ensure!(missing.code == Some(1) && missing.stderr.contains("no pod db"), "{missing:?}");
    node.agent.cli(&["delete", "db", "--ignore-not-found"])?.success().map(drop)
}

fn a_pod_of_a_file_comes_before_an_applied_one(node: &mut TestNode) -> Result<()> {
    let manifest = simple("web", IDLE);
    node.apply(&manifest)?;
    node.wait_running("web")?;
    let refused = node.agent.cli_with_input(&["apply", "-f", "-"], manifest.to_string().as_bytes())?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("file web.yaml"), "{refused:?}");
    let refused = node.agent.cli(&["delete", "web"])?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("file web.yaml"), "{refused:?}");
    let sources = node.agent.cli(&["sources"])?.success()?;
    let push = sources.lines().find(|line| line.starts_with("push")).context("no push source")?;
    ensure!(push.contains("ready"), "{sources}");
    node.remove("web")?;
    node.wait_gone("web")?;
    node.agent.cli_with_input(&["apply", "-f", "-"], manifest.to_string().as_bytes())?.success()?;
    node.wait_running("web").map(drop)
}

fn a_card_that_goes_and_comes_restarts_nothing(node: &mut TestNode) -> Result<()> {
    let (card, manifests) = (node.dir().join("card"), node.agent.settings().manifests());
    fs::create_dir(&card)?;
    mount("limpet-test", &card, "tmpfs", MountFlags::empty(), Some(c"size=1m"))?;
    mount_bind(&card, &manifests)?;
    node.apply(&simple("web", IDLE))?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    let same = |node: &TestNode| -> Result<()> {
        let pod = node.wait_running("web")?;
        ensure!(container_id(&pod, "main")? == id, "restarted: {}", pod["status"]);
        Ok(())
    };
    unmount(&manifests, UnmountFlags::DETACH)?;
    wait_sources(node, "is empty, and not the directory its pods came from")?;
    same(node)?;
    // The directory is as after a boot at which the card was not mounted.
    node.agent.kill();
    node.agent.start()?;
    wait_sources(node, "is empty, and not the directory its pods came from")?;
    same(node)?;
    mount_bind(&card, &manifests)?;
    wait_sources(node, "watching (")?;
    same(node)?;
    node.remove("web")?;
    node.wait_gone("web")?;
    unmount(&manifests, UnmountFlags::DETACH)?;
    unmount(&card, UnmountFlags::DETACH)?;
    node.wait_nothing_runs()
}

/// Writes a manifest by another process, and returns its pid.
fn put_as_a_process(node: &TestNode, file: &str, manifest: &Value) -> Result<u32> {
    let beside = node.dir().join("beside");
    fs::write(&beside, manifest.to_string())?;
    let mut child = Command::new("mv").arg(&beside).arg(node.agent.settings().manifests().join(file)).spawn()?;
    let pid = child.id();
    ensure!(child.wait()?.success(), "mv failed");
    Ok(pid)
}

/// The stored changes of a pod's manifest, the oldest first.
fn history(node: &TestNode, pod: &str) -> Result<Vec<Value>> {
    let text = node.agent.cli(&["history", pod, "-o", "json"])?.success()?;
    let document: Value = serde_json::from_str(&text)?;
    Ok(document["changes"].as_array().context("no changes")?.clone())
}

fn wait_history(node: &TestNode, pod: &str, count: usize) -> Result<Vec<Value>> {
    wait::until(wait::SOON, &format!("{count} changes of {pod}"), || {
        history(node, pod).ok().filter(|changes| changes.len() == count)
    })
}

fn who_changed_a_manifest_is_reported(node: &mut TestNode) -> Result<()> {
    // A manifest from before the watch has no known author.
    wait_sources(node, "watching (")?;
    let created = put_as_a_process(node, "web.yaml", &simple("web", IDLE))?;
    node.wait_running("web")?;
    let mut edited = simple("web", IDLE);
    edited["metadata"]["labels"] = json!({ "tier": "front" });
    let relabelled = put_as_a_process(node, "web.yaml", &edited)?;
    wait_history(node, "web", 2)?;
    edited["spec"]["containers"] = json!("none");
    let broken = put_as_a_process(node, "web.yaml", &edited)?;
    let changes = wait_history(node, "web", 3)?;
    let kinds: Vec<&str> = changes.iter().filter_map(|change| change["change"].as_str()).collect();
    ensure!(kinds == ["created", "edited", "rejected"], "{changes:?}");
    ensure!(changes[1]["touched"] == json!(["labels"]) && changes[1]["restarts"].is_null(), "{}", changes[1]);

    // A restart of the agent is no change, not even of a manifest that is still refused.
    let described = node.agent.cli(&["describe", "web"])?.success()?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_event("manifest rejected")?;
    ensure!(wait_history(node, "web", 3)? == changes, "a restart changed the history");
    ensure!(described.contains("History:") && described.contains("rejected: "), "{described}");

    let known = node.agent.cli(&["sources"])?.success()?;
    if !known.contains("fanotify") {
        need::kernel_lacks("who did it, for want of fanotify");
        return Ok(());
    }
    // Of a process that has ended before it is checked, only its pid may be known.
    for (change, pid) in changes.iter().zip([created, relabelled, broken]) {
        ensure!(change["actor"]["pid"] == json!(pid), "{change} is not by {pid}");
    }
    node.remove("web")?;
    node.wait_gone("web")?;
    let of_gone = history(node, &format!("default/{}", node.full_name("web")))?;
    ensure!(of_gone.last().is_some_and(|last| last["change"] == "removed"), "{of_gone:?}");
    let test_pid = std::process::id();
    ensure!(of_gone[3]["actor"]["pid"] == json!(test_pid) && of_gone[3]["actor"]["uid"] == json!(0), "{}", of_gone[3]);
    node.wait_event("web.yaml removed; by ")
}

fn a_pod_that_writes_manifests_raises_an_alarm(node: &mut TestNode) -> Result<()> {
    let manifests = node.agent.settings().manifests();
    let script = "while [ ! -f /m/go ]; do sleep 0.1; done; echo a > /m/notes.txt; exec sleep 100000";
    let mut container = shell("writer", script);
    container["volumeMounts"] = json!([{ "name": "m", "mountPath": "/m" }]);
    let volumes = json!([{ "name": "m", "hostPath": { "path": manifests } }]);
    node.apply(&pod("web", json!({ "containers": [container], "volumes": volumes })))?;
    node.wait_running("web")?;
    if !node.agent.cli(&["sources"])?.success()?.contains("fanotify") {
        need::kernel_lacks("who did it, for want of fanotify");
        return Ok(());
    }
    fs::write(manifests.join("go"), "")?;
    node.wait_event("PodChangesManifests")?;
    let events = node.events()?;
    let attribution = format!("pod default/{}, container writer changes files", node.full_name("web"));
    ensure!(events.contains(&attribution), "{events}");
    let page = node.agent.metrics()?;
    let counted = page
        .lines()
        .any(|line| line.starts_with("limpet_manifest_writes_by_pod_total{") && line.contains("container=\"writer\""));
    ensure!(counted && page.contains("limpet_manifest_watch_backend{backend=\"fanotify\"} 1"), "{page}");
    Ok(())
}

/// A pod whose container has the run directory, read-only like everything of the host, and the command line with its
/// loader.
fn client(node: &TestNode) -> Result<Value> {
    let settings = node.agent.settings();
    let program = node.agent.cli_command(&[])?.get_program().to_owned();
    let volumes = [
        ("run", settings.run(), "/host/run"),
        ("libraries", "/usr".into(), "/host/usr"),
        ("limpet", program.into(), "/host/limpet"),
    ];
    let mut container = shell("main", IDLE);
    let mount = |(name, _, path): &(&str, PathBuf, &str)| json!({ "name": name, "mountPath": path, "readOnly": true });
    container["volumeMounts"] = volumes.iter().map(mount).collect();
    let volume = |(name, path, _): &(&str, PathBuf, &str)| json!({ "name": name, "hostPath": { "path": path } });
    let volumes: Vec<_> = volumes.iter().map(volume).collect();
    Ok(pod("client", json!({ "containers": [container], "volumes": volumes })))
}

/// Runs `limpet` with these arguments in the client's container.
fn from_client(node: &TestNode, arguments: &str, input: &str) -> Result<Reply> {
    let script = format!(
        "set -- /host/usr/lib*/ld-linux* /host/usr/lib/*/ld-linux*; for loader; do [ -e \"$loader\" ] && break; done; \
         exec \"$loader\" --library-path \"$(echo /host/usr/lib*/*-linux-gnu* /host/usr/lib64 | tr ' ' :)\" \
         /host/limpet --socket /host/run/limpet.sock {arguments}"
    );
    let full = node.full_name("client");
    node.agent.cli_with_input(&["exec", "-i", &full, "-c", "main", "--", "sh", "-c", &script], input.as_bytes())
}

fn a_pod_with_the_run_directory_is_refused_unless_it_is_listed(node: &mut TestNode) -> Result<()> {
    node.apply(&client(node)?)?;
    node.wait_running("client")?;
    let pushed = simple("pushed", IDLE).to_string();
    for (arguments, input) in [("apply -f -", &*pushed), ("pods", ""), ("sources", "")] {
        let reply = from_client(node, arguments, input)?;
        ensure!(reply.code != Some(0), "{arguments}: {reply:?}");
        ensure!(reply.stderr.contains("processes of pods may not use limpet's socket"), "{arguments}: {reply:?}");
    }
    ensure!(node.pod("pushed").is_none(), "a refused push runs");
    let refused: Vec<String> =
        node.events()?.lines().filter(|line| line.contains("LocalSocketRefused")).map(str::to_owned).collect();
    ensure!(refused.len() == 1 && refused[0].contains(&node.full_name("client")), "{refused:?}");
    ensure!(node.agent.log().contains("refused a process of a pod on the local socket"));

    node.agent.reconfigure(|settings| settings.limpet.push("socketAllowedPods: [default/client]".to_owned()))?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_running("client")?;
    from_client(node, "apply -f -", &pushed)?.success()?;
    node.wait_running("pushed")?;
    let changes = history(node, "pushed")?;
    ensure!(changes[0]["actor"]["resident"]["container"] == "main", "{changes:?}");
    Ok(())
}

fn a_full_disk_is_reported_and_overcome(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    let filler = node.agent.settings().root().join("filler");
    ensure!(fs::write(&filler, vec![0; 32 << 20]).is_err(), "the disk is not full");
    // The pod needs more room than the database has left.
    let large = |name: &str| {
        let data = json!({ "a": "x".repeat(900 << 10) });
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
    };
    for name in ["one", "two", "three"] {
        node.apply(&large(name))?;
    }
    let sources = wait_sources(node, "manifests accepted by file are not saved to disk")?;
    ensure!(sources.contains("No space left on device"), "{sources}");
    let refused = node.agent.cli_with_input(&["apply", "-f", "-"], large("four").to_string().as_bytes())?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("cannot be persisted"), "{refused:?}");
    // An agent that starts on a full disk knows the last good version of a manifest that is now broken.
    node.drop_text("web.yaml", "kind: Pod\nspec: [")?;
    node.wait_event("web.yaml")?;
    node.agent.kill();
    node.agent.start()?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");
    wait_sources(node, "web.yaml")?;
    node.apply(&simple("web", IDLE))?;
    fs::remove_file(&filler)?;
    node.apply(&simple("db", IDLE))?;
    node.wait_running("db")?;
    wait::until_true(wait::SOON, "everything is saved", || {
        node.agent.cli(&["sources"]).is_ok_and(|reply| !reply.stdout.contains("not saved to disk"))
    })?;
    node.agent.cli_with_input(&["apply", "-f", "-"], large("four").to_string().as_bytes())?.success()?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");
    Ok(())
}

/// The guard itself is tested in other kernels (`cargo xtask test-kernels`). Here it is not available, because a cgroup
/// is missing.
fn a_guard_that_cannot_be_had_stops_the_start_when_it_is_demanded(node: &mut TestNode) -> Result<()> {
    let guard = "manifestGuard: strict\nmanifestGuardCgroups: [/sys/fs/cgroup/nowhere]";
    node.agent.reconfigure(|settings| settings.limpet.push(guard.to_owned()))?;
    let refused = process::run(&mut node.agent.command()?, b"")?;
    let said = format!("{}{}", String::from_utf8_lossy(&refused.stdout), String::from_utf8_lossy(&refused.stderr));
    ensure!(!refused.status.success() && said.contains("manifestGuard"), "{}: {said}", refused.status);

    node.agent.reconfigure(|settings| settings.limpet.push("manifestGuardRequired: false".to_owned()))?;
    node.agent.start()?;
    node.apply(&simple("web", IDLE))?;
    node.wait_running("web")?;
    let log = node.agent.log();
    ensure!(log.contains("the manifest guard is not active"), "{log}");
    let events = node.agent.cli(&["events"])?.success()?;
    ensure!(events.contains("ManifestGuardMissing"), "{events}");
    let status = node.agent.cli(&["guard", "status"])?;
    ensure!(status.code == Some(1) && status.stdout.trim() == "off", "{status:?}");
    Ok(())
}
