//! Device plugins: a real plugin on its socket, and what containers get of it. `LIMPET_TEST_LONG=1` adds kubelet's own.

mod plugin;
mod sample;
mod serve;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_node_api::plugin_registration::RegistrationStatus;
use limpet_node_api::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use limpet_node_api::pod_resources::{AllocatableResourcesRequest, ListPodResourcesRequest};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};

use plugin::{Behaviour, CARD, Plugin};
use sample::kubelets_sample_plugin_registers_again_after_a_restart;

fn main() -> ExitCode {
    let mut cases = vec![
        case!(a_device_is_one_containers_and_stays_it),
        case!(what_a_plugin_gives_is_in_the_container),
        case!(a_plugin_that_dies_takes_its_devices_with_it),
        case!(a_plugin_that_hangs_delays_its_own_pods_alone),
        case!(a_cdi_device_is_injected)
            .on(|node| node.limpet.push("devices: {example.com/gpu: {cdi: [example.com/card=a]}}".to_owned())),
        case!(plugins_in_the_registry_are_registered),
    ];
    if suite::is_long() {
        cases.push(case!(kubelets_sample_plugin_registers_again_after_a_restart));
    }
    suite::run(cases)
}

fn socket(node: &TestNode, name: &str) -> PathBuf {
    node.agent.settings().plugins().join("device-plugins").join(name)
}

/// Starts a plugin, and registers it.
fn start(node: &TestNode, ids: &[&str], behaviour: Behaviour) -> Result<Plugin> {
    wait::until_true(wait::SOON, "kubelet.sock", || socket(node, "kubelet.sock").exists())?;
    let plugin = Plugin::start(socket(node, "card.sock"), ids, behaviour)?;
    // An agent that has just started may not listen yet.
    wait::until_true(wait::SOON, "the registration", || plugin.register("v1beta1", CARD).is_ok())?;
    Ok(plugin)
}

/// A pod whose container has so many cards.
fn asking(name: &str, count: u32) -> Value {
    let asks = json!({ "resources": { "limits": { CARD: count } }, "env": [{ "name": "OWN", "value": "pod" }] });
    pod(name, json!({ "containers": [with(shell("main", IDLE), asks)] }))
}

fn variable(node: &TestNode, pod: &str, name: &str) -> Result<String> {
    Ok(node.exec(pod, "main", &["/bin/sh", "-c", &format!("printf %s \"${name}\"")])?.trim().to_owned())
}

fn waits(node: &TestNode, name: &str, reason: &str) -> Result<Value> {
    node.wait_pod(name, reason, |pod| pod["status"]["phase"] == "Pending" && pod["status"]["reason"] == reason)
}

fn resources(node: &TestNode) -> Result<(Vec<(String, String)>, usize)> {
    let socket = node.agent.settings().root().join("pod-resources/kubelet.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = PodResourcesListerClient::new(containerd_client::connect(&socket).await?);
        let pods = client.list(ListPodResourcesRequest {}).await?.into_inner().pod_resources;
        let devices = pods.iter().flat_map(|pod| {
            let devices = pod.containers.iter().flat_map(|container| &container.devices);
            devices.map(|device| (pod.name.clone(), device.device_ids.join(",")))
        });
        let all = client.get_allocatable_resources(AllocatableResourcesRequest {}).await?.into_inner();
        Ok((devices.collect(), all.devices.len()))
    })
}

/// There are two devices and three pods; then a container, the agent and the plugin are restarted.
fn a_device_is_one_containers_and_stays_it(node: &mut TestNode) -> Result<()> {
    node.apply(&asking("one", 1))?;
    let early = waits(node, "one", "UnexpectedAdmissionError")?;
    ensure!(
        early["status"]["message"].as_str().is_some_and(|text| text.contains("can't allocate unregistered device"))
    );
    let plugin = start(node, &["a", "b", "-c"], Behaviour { prefers: Some("b".to_owned()), ..Behaviour::default() })?;
    node.wait_running("one")?;
    ensure!(variable(node, "one", "CARDS")? == "b", "the plugin's preference does not count");
    node.apply(&asking("two", 1))?;
    node.wait_running("two")?;
    ensure!(variable(node, "two", "CARDS")? == "a");
    node.apply(&asking("three", 1))?;
    let short = waits(node, "three", "OutOfexample.com/card")?;
    let message = short["status"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("requested: 1, used: 2, capacity: 2"), "{message}");
    let (given, allocatable) = resources(node)?;
    let wanted = [("one", "b"), ("two", "a")].map(|(pod, id)| (node.full_name(pod), id.to_owned()));
    ensure!(given == wanted && allocatable == 2, "{given:?} of {allocatable}");

    // A container that starts again has the same device, also after a restart of the agent. The command may end with
    // its container.
    drop(node.exec("two", "main", &["/bin/sh", "-c", "kill -TERM 1"]));
    node.wait_pod("two", "restarted", |pod| {
        let main = &pod["status"]["containerStatuses"][0];
        main["restartCount"] == 1 && main["state"]["running"].is_object()
    })?;
    ensure!(variable(node, "two", "CARDS")? == "a", "its successor has another device");
    let first = container_id(&node.wait_running("one")?, "main")?;
    node.agent.kill();
    node.agent.start()?;
    wait::until_true(wait::SOON, "the removal of its socket, at which it registers again", || !plugin.socket.exists())?;
    drop(plugin);
    waits(node, "three", "OutOfexample.com/card")?;
    let plugin = start(node, &["a", "b"], Behaviour::default())?;
    // The command may end with its container.
    drop(node.exec("two", "main", &["/bin/sh", "-c", "kill -TERM 1"]));
    node.wait_pod("two", "restarted", |pod| {
        let main = &pod["status"]["containerStatuses"][0];
        main["restartCount"] == 2 && main["state"]["running"].is_object()
    })?;
    ensure!(variable(node, "two", "CARDS")? == "a" && container_id(&node.wait_running("one")?, "main")? == first);
    ensure!(resources(node)?.0 == wanted, "the agent has forgotten who has what");
    waits(node, "three", "OutOfexample.com/card")?;
    node.remove("one")?;
    node.wait_running("three")?;
    ensure!(variable(node, "three", "CARDS")? == "b", "what is freed is not given on");
    drop(plugin);
    Ok(())
}

fn what_a_plugin_gives_is_in_the_container(node: &mut TestNode) -> Result<()> {
    let started = node.dir().join("started");
    let plugin = start(node, &["a", "b"], Behaviour { started: Some(started.clone()), ..Behaviour::default() })?;
    let wrong = plugin.register("v1", CARD).err().context("another version was registered")?;
    ensure!(wrong.message().contains("requested API version \"v1\" is not supported"), "{wrong}");
    let wrong = plugin.register("v1beta1", "card").err().context("a name without domain was registered")?;
    ensure!(wrong.message().contains("the ResourceName \"card\" is invalid"), "{wrong}");
    let first = with(shell("first", "echo cards $CARDS"), json!({ "resources": { "limits": { CARD: 1 } } }));
    let mut web = asking("web", 2);
    web["spec"]["initContainers"] = json!([first]);
    node.apply(&web)?;
    let web = node.wait_running("web")?;
    node.wait_logged("web", "first", "cards a")?;
    ensure!(fs::read_to_string(&started)? == "a,b", "PreStartContainer was not called");
    let inside = |script: &str| node.exec("web", "main", &["/bin/sh", "-c", script]);
    ensure!((variable(node, "web", "CARDS")?, variable(node, "web", "OWN")?) == ("a,b".to_owned(), "pod".to_owned()));
    ensure!(inside("(: <> /dev/card) && test ! -e /dev/fuse && echo opened")? == "opened\n", "no device");
    ensure!(inside("cat /vendor/release")? == fs::read_to_string("/etc/os-release")?, "no mount");
    ensure!(inside("(: >> /vendor/release) 2>/dev/null || echo refused")? == "refused\n", "the mount is writable");
    let health = &web["status"]["containerStatuses"][0]["allocatedResourcesStatus"];
    let both = ["a", "b"].map(|id| json!({ "health": "Healthy", "resourceID": id }));
    ensure!(*health == json!([{ "name": CARD, "resources": both }]), "{health}");
    plugin.list(&["a", "-b"]);
    node.wait_pod("web", "a device is unhealthy", |pod| {
        let health = &pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"];
        health[0]["health"] == "Healthy" && health[1]["health"] == "Unhealthy"
    })?;
    Ok(())
}

fn a_plugin_that_dies_takes_its_devices_with_it(node: &mut TestNode) -> Result<()> {
    let plugin = start(node, &["a", "b"], Behaviour::default())?;
    node.apply(&asking("one", 1))?;
    let first = container_id(&node.wait_running("one")?, "main")?;
    drop(plugin);
    node.wait_pod("one", "its device unhealthy", |pod| {
        pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][0]["health"] == "Unhealthy"
    })?;
    node.apply(&asking("two", 1))?;
    waits(node, "two", "OutOfexample.com/card")?;
    ensure!(container_id(&node.wait_running("one")?, "main")? == first, "what runs was touched");
    let _again = start(node, &["a", "b"], Behaviour::default())?;
    node.wait_running("two")?;
    ensure!(variable(node, "two", "CARDS")? == "b");
    Ok(())
}

fn a_plugin_that_hangs_delays_its_own_pods_alone(node: &mut TestNode) -> Result<()> {
    let plugin = start(node, &["a"], Behaviour { hangs: true, ..Behaviour::default() })?;
    node.apply(&asking("stuck", 1))?;
    for name in ["one", "two", "three"] {
        node.apply(&simple(name, IDLE))?;
    }
    for name in ["one", "two", "three"] {
        node.wait_running(name)?;
    }
    let stuck = node.pod("stuck").context("the pod is not shown")?;
    ensure!(stuck["status"]["phase"] == "Pending", "{stuck}");
    // The call fails when the plugin ends, and not only at its deadline.
    drop(plugin);
    node.remove("stuck")?;
    node.wait_gone("stuck")
}

fn a_cdi_device_is_injected(node: &mut TestNode) -> Result<()> {
    let files = node.agent.settings().plugins().join("cdi");
    fs::create_dir_all(&files)?;
    let _plugin = start(node, &["a"], Behaviour { cdi: true, ..Behaviour::default() })?;
    node.apply(&asking("web", 1))?;
    node.wait_event("unresolvable CDI device example.com/card=a")?;
    let text = format!(
        "cdiVersion: 0.6.0\nkind: {CARD}\ncontainerEdits: {{env: [VENDOR=example]}}\ndevices:\n- name: a\n  containerEdits:\n    \
         env: [CARD=a]\n    deviceNodes: [{{path: /dev/card-a, hostPath: /dev/fuse, permissions: rw}}]\n    \
         additionalGids: [44]\n    \
         mounts: [{{hostPath: /etc/os-release, containerPath: /vendor/release, options: [ro, rbind]}}]\n    \
         hooks: [{{hookName: createRuntime, path: /bin/sh, args: [sh, -c, 'cat >/dev/null; echo ran > {}']}}]\n",
        node.dir().join("hook").display()
    );
    fs::write(files.join("card.yaml"), text)?;
    node.wait_running("web")?;
    let inside = |script: &str| node.exec("web", "main", &["/bin/sh", "-c", script]);
    ensure!(inside("echo $VENDOR $CARD; id -G")? == "example a\n0 44\n", "{}", inside("env; id -G")?);
    ensure!(inside("(: <> /dev/card-a) && echo opened")? == "opened\n", "no device");
    ensure!(inside("cat /vendor/release")? == fs::read_to_string("/etc/os-release")?, "no mount");
    ensure!(fs::read_to_string(node.dir().join("hook"))? == "ran\n", "the hook did not run");

    // A resource in the node's own table of devices needs no plugin.
    let limits = json!({ "resources": { "limits": { "example.com/gpu": 1 } } });
    node.apply(&pod("gpu", json!({ "containers": [with(shell("main", IDLE), limits)] })))?;
    node.wait_running("gpu")?;
    let shown =
        node.exec("gpu", "main", &["/bin/sh", "-c", "echo $VENDOR $CARD; (: <> /dev/card-a) && echo opened"])?;
    ensure!(shown == "example a\nopened\n", "{shown}");
    Ok(())
}

fn plugins_in_the_registry_are_registered(node: &mut TestNode) -> Result<()> {
    let registry = node.agent.settings().plugins().join("plugins_registry");
    wait::until_true(wait::SOON, "the directory of plugins", || registry.is_dir())?;
    let plugin = Plugin::start(node.dir().join("card.sock"), &["a"], Behaviour::default())?;
    let answer = |status: &tokio::sync::watch::Receiver<Option<RegistrationStatus>>| {
        let what = "the answer to a registration";
        wait::until(wait::SOON, what, || status.borrow().clone())
    };
    let dra = answer(&plugin.wait_for_request(&registry.join("dra-reg.sock"), "DRAPlugin")?)?;
    ensure!(!dra.plugin_registered && dra.error.contains("does not support plugins of type DRAPlugin"), "{dra:?}");
    let card = answer(&plugin.wait_for_request(&registry.join("card-reg.sock"), "DevicePlugin")?)?;
    ensure!(card.plugin_registered && card.error.is_empty(), "{card:?}");
    node.apply(&asking("one", 1))?;
    node.wait_running("one")?;
    ensure!(variable(node, "one", "CARDS")? == "a");
    // Without its socket the plugin counts as gone.
    fs::remove_file(registry.join("card-reg.sock"))?;
    node.wait_pod("one", "its device unhealthy", |pod| {
        pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][0]["health"] == "Unhealthy"
    })?;
    Ok(())
}
