//! The requests of node tools over gRPC: crictl on the CRI socket, and a client of PodResources, against a real limpet.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use limpet_node_api::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use limpet_node_api::pod_resources::{AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest};
use limpet_tests::forwarded::{self, Forwarded};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::container_id;
use limpet_tests::process::Daemon;
use limpet_tests::{TestNode, case, process, suite, tools, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(crictl_shows_what_runs).on(|node| (node.cni, node.crictl) = (true, true)),
        case!(crictl_streams).on(|node| (node.cni, node.crictl) = (true, true)),
        case!(crictl_changes_nothing_and_pods_are_refused).on(|node| node.crictl = true),
        case!(pod_resources_are_the_devices_of_containers).on(|node| node.limpet = vec![MODEM.to_owned()]),
    ])
}

/// A device in the form of the LimpetConfiguration.
const MODEM: &str = "devices: {example.com/modem: {paths: [/dev/kmsg], exclusive: true}}";

fn socket(node: &TestNode) -> PathBuf {
    node.agent.settings().run().join("cri.sock")
}

fn command(node: &TestNode, args: &[&str]) -> Result<Command> {
    let mut command = Command::new(tools::crictl().context("no crictl")?);
    let endpoint = format!("unix://{}", socket(node).display());
    command.args(["--runtime-endpoint", &endpoint, "--image-endpoint", &endpoint, "--timeout", "60s"]).args(args);
    Ok(command)
}

/// Runs crictl, and returns what it prints.
fn crictl(node: &TestNode, args: &[&str]) -> Result<String> {
    process::checked(&mut command(node, args)?)
}

fn document(node: &TestNode, args: &[&str]) -> Result<Value> {
    let text = crictl(node, args)?;
    serde_json::from_str(&text).with_context(|| format!("{args:?}: {text}"))
}

/// The message with which crictl fails.
fn refusal(node: &TestNode, args: &[&str]) -> Result<String> {
    let output = process::run(&mut command(node, args)?, b"")?;
    ensure!(!output.status.success(), "{args:?} was done: {}", String::from_utf8_lossy(&output.stdout));
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn crictl_shows_what_runs(node: &mut TestNode) -> Result<()> {
    let containers = json!({ "hostNetwork": false, "containers": [
        shell("main", "echo hello from inside; sleep 1000000"),
        with(shell("side", IDLE), json!({ "env": [{ "name": "MODE", "value": "edge" }] })),
    ]});
    node.apply(&with(pod("web", containers), json!({ "metadata": { "labels": { "app": "web" } } })))?;
    let web = node.wait_running("web")?;
    let (main, side) = (container_id(&web, "main")?, container_id(&web, "side")?);
    node.wait_logged("web", "main", "hello")?;

    let version = crictl(node, &["version"])?;
    ensure!(version.contains("RuntimeName:  limpet") && version.contains("RuntimeApiVersion:  v1"), "{version}");
    let info = document(node, &["info"])?;
    let conditions = info["status"]["conditions"].as_array().context("no conditions")?;
    ensure!(conditions.len() == 2 && conditions.iter().all(|condition| condition["status"] == true), "{info}");

    // Pods and containers have ids that can be shortened.
    let pods = document(node, &["pods", "--label", "app=web", "-o", "json"])?;
    let [sandbox] = &pods["items"].as_array().context("no items")?[..] else { anyhow::bail!("{pods}") };
    ensure!(sandbox["metadata"]["uid"] == web["metadata"]["uid"] && sandbox["state"] == "SANDBOX_READY", "{sandbox}");
    let id = sandbox["id"].as_str().context("no id")?;
    let status = document(node, &["inspectp", &id[..13]])?;
    ensure!(status["status"]["network"]["ip"] == web["status"]["podIP"], "{status}");
    let listed = document(node, &["ps", "--pod", id, "-o", "json"])?;
    ensure!(listed["containers"].as_array().is_some_and(|all| all.len() == 2), "{listed}");
    let table = crictl(node, &["ps"])?;
    ensure!(
        table.contains(&main[..13]) && table.contains("Running") && table.contains(&node.full_name("web")),
        "{table}"
    );
    let status = document(node, &["inspect", &main[..13]])?;
    let (state, image) = (&status["status"]["state"], &status["status"]["image"]["image"]);
    ensure!(state == "CONTAINER_RUNNING" && status["info"]["pid"].is_u64(), "{status}");

    // Images have the names that containers refer to.
    let images = document(node, &["images", "-o", "json"])?;
    let all = images["images"].as_array().context("no images")?;
    let image_of_pod =
        all.iter().find(|image_listed| image_listed["repoTags"].as_array().is_some_and(|tags| tags.contains(image)));
    let image_of_pod = image_of_pod.with_context(|| format!("{image} is not in {images}"))?;
    ensure!(image_of_pod["id"] == listed["containers"][0]["imageRef"], "{image_of_pod} {listed}");
    ensure!(image_of_pod["size"].as_str().is_some_and(|size| size != "0"), "{image_of_pod}");
    let name = image.as_str().unwrap_or_default();
    ensure!(document(node, &["inspecti", name])?["status"]["id"] == image_of_pod["id"], "{name}");
    let disk = document(node, &["imagefsinfo", "-o", "json"])?;
    ensure!(disk.to_string().contains("usedBytes"), "{disk}");

    // The container's figures, its log, and a command in it.
    let stats = document(node, &["stats", "-o", "json", &main])?;
    let memory = &stats["stats"][0]["memory"]["workingSetBytes"]["value"];
    ensure!(memory.as_str().is_some_and(|bytes| bytes != "0"), "{stats}");
    let stats = document(node, &["statsp", "-o", "json"])?;
    let linux = &stats["stats"][0]["linux"];
    ensure!(
        linux["cpu"]["usageCoreNanoSeconds"].is_object()
            && linux["containers"].as_array().is_some_and(|all| all.len() == 2),
        "{stats}"
    );
    ensure!(linux["network"]["defaultInterface"]["name"] == "eth0", "{stats}");
    ensure!(crictl(node, &["metricdescs"])?.contains("container_cpu_usage_seconds_total"));
    ensure!(crictl(node, &["metricsp"])?.contains("container_memory_working_set_bytes"));
    ensure!(crictl(node, &["logs", &main])? == "hello from inside\n");
    ensure!(crictl(node, &["exec", "--sync", &side, "/bin/sh", "-c", "echo $MODE"])?.trim() == "edge");
    let failed = refusal(node, &["exec", "--sync", &side, "/bin/sh", "-c", "echo lost >&2; exit 3"])?;
    ensure!(failed.contains("lost") && failed.contains('3'), "{failed}");
    let late = refusal(node, &["exec", "--sync", "--timeout", "1", &side, "/bin/sh", "-c", IDLE])?;
    ensure!(late.contains("killed after 1 s"), "{late}");

    // Events are sent from the moment of the request.
    let log = node.dir().join("events.log");
    let events = Daemon::start(&mut command(node, &["events"])?, &log)?;
    let mut count = 0;
    wait::until(wait::SOON, "an event of a start", || {
        count += 1;
        let name = format!("late-{count}");
        node.apply(&simple(&name, IDLE)).and_then(|()| node.wait_running(&name)).ok()?;
        events.log().contains("CONTAINER_STARTED_EVENT").then_some(())
    })?;
    node.remove(&format!("late-{count}"))?;
    wait::until_true(wait::SOON, "the events of an end", || {
        ["CONTAINER_STOPPED_EVENT", "CONTAINER_DELETED_EVENT"].iter().all(|kind| events.log().contains(kind))
    })
}

fn crictl_streams(node: &mut TestNode) -> Result<()> {
    node.apply(&forwarded::server("web"))?;
    node.wait_logged("web", "main", "serves")?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    for transport in ["spdy", "websocket"] {
        let exec =
            |script: &str| command(node, &["exec", "--transport", transport, "-i", &id, "/bin/sh", "-c", script]);
        let said = process::run(&mut exec("cat; echo lost >&2; exit 3")?, b"sent")?;
        let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        ensure!(out == "sent" && err.contains("lost") && err.contains('3'), "{transport}: {out}{err}");

        let log = node.dir().join(format!("forward-{transport}.log"));
        let sandbox = crictl(node, &["pods", "-q"])?;
        let ports = format!(":{}", forwarded::PORT);
        let forward = &mut command(node, &["port-forward", "--transport", transport, sandbox.trim(), &ports])?;
        Forwarded::start(forward, &log)?.check(node, "web")?;
    }
    // What is written during a watch is seen.
    let log = node.dir().join("attach.log");
    let attached = Daemon::start(&mut command(node, &["attach", &id])?, &log)?;
    let mut count = 0;
    wait::until(wait::SOON, "a line of the container", || {
        count += 1;
        node.exec("web", "main", &["/bin/sh", "-c", &format!("echo line {count} > /proc/1/fd/1")]).ok()?;
        attached.log().contains("line").then_some(())
    })
}

fn crictl_changes_nothing_and_pods_are_refused(node: &mut TestNode) -> Result<()> {
    let programs = tools::crictl().and_then(|path| Some(path.parent()?.to_owned())).context("no crictl")?;
    let volume = |name: &str, path: &std::path::Path| json!({ "name": name, "hostPath": { "path": path } });
    let mounts = json!({ "volumeMounts": [
        { "name": "programs", "mountPath": "/programs" },
        { "name": "run", "mountPath": "/limpet" },
    ]});
    let volumes = [volume("programs", &programs), volume("run", &node.agent.settings().run())];
    node.apply(&pod("spy", json!({ "containers": [with(shell("main", IDLE), mounts)], "volumes": volumes })))?;
    let spy = node.wait_running("spy")?;
    let mode = std::fs::metadata(socket(node))?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    let id = container_id(&spy, "main")?;
    let sandbox = crictl(node, &["pods", "-q"])?;
    let sandbox = sandbox.trim();
    let images = crictl(node, &["images", "-q"])?;
    let image = images.lines().next().context("no image")?;

    for (args, hint) in [
        (&["stopp", sandbox][..], "limpet delete POD"),
        (&["rmp", "-f", sandbox], "limpet delete POD"),
        (&["stop", &id], "limpet delete POD"),
        (&["rm", "-f", &id], "limpet delete POD"),
        (&["update", "--memory", "1000000", &id], "edit it"),
        (&["rmi", image], "limpet images prune"),
        (&["pull", "busybox:none"], "limpet images pull"),
    ] {
        let message = refusal(node, args)?;
        ensure!(message.contains(hint) && message.contains("FailedPrecondition"), "{args:?}: {message}");
    }
    ensure!(container_id(&node.wait_running("spy")?, "main")? == id, "the container was replaced");

    let inside = ["/programs/crictl", "--runtime-endpoint", "unix:///limpet/cri.sock", "version"];
    let Err(refused) = node.exec("spy", "main", &inside) else { anyhow::bail!("a process of a pod was answered") };
    let refused = format!("{refused:#}");
    ensure!(refused.contains("PermissionDenied") && refused.contains("socketAllowedPods"), "{refused}");
    node.wait_event("LocalSocketRefused")
}

fn pod_resources_are_the_devices_of_containers(node: &mut TestNode) -> Result<()> {
    let limits = json!({ "resources": { "limits": { "example.com/modem": 1 } } });
    let containers = json!({ "containers": [with(shell("main", IDLE), limits), shell("plain", IDLE)] });
    node.apply(&pod("web", containers))?;
    node.wait_running("web")?;
    let name = node.full_name("web");
    let socket = node.agent.settings().root().join("pod-resources/kubelet.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = PodResourcesListerClient::new(containerd_client::connect(&socket).await?);
        let listed = client.list(ListPodResourcesRequest {}).await?.into_inner().pod_resources;
        let [web] = &listed[..] else { anyhow::bail!("{listed:?}") };
        let [main, plain] = &web.containers[..] else { anyhow::bail!("{web:?}") };
        let [device] = &main.devices[..] else { anyhow::bail!("{main:?}") };
        ensure!(
            web.name == name
                && (device.resource_name.as_str(), &*device.device_ids)
                    == ("example.com/modem", &["/dev/kmsg".to_owned()][..])
        );
        ensure!(plain.devices.is_empty() && main.cpu_ids.is_empty(), "{web:?}");
        let request = GetPodResourcesRequest { pod_name: name, pod_namespace: "default".to_owned() };
        ensure!(client.get(request).await?.into_inner().pod_resources.as_ref() == Some(web));
        let missing = GetPodResourcesRequest { pod_name: "none".to_owned(), pod_namespace: "default".to_owned() };
        let Err(missing) = client.get(missing).await else { anyhow::bail!("a pod that is not there was shown") };
        ensure!(missing.message() == "pod none in namespace default not found", "{missing}");
        let all = client.get_allocatable_resources(AllocatableResourcesRequest {}).await?.into_inner();
        ensure!(all.devices == [device.clone()] && all.cpu_ids.is_empty(), "{all:?}");
        Ok(())
    })
}
