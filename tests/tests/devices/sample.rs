//! kubelet's sample device plugin, as kubelet's own tests have it, and kubelet's client of PodResources.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::process::Daemon;
use limpet_tests::{TestNode, process, tools, wait};
use serde_json::{Value, json};

use super::{socket, waits};

/// The plugin's resource.
const RESOURCE: &str = "example.com/resource";
const DEVICES: [&str; 2] = ["Dev-1", "Dev-2"];
/// How the programs are built.
const BUILD: &str = "run: cargo xtask nightly device-plugin";

/// The running plugin. It makes files for its devices on this machine, which are removed with it.
struct Sample(Daemon);

impl Sample {
    /// Starts the plugin, with the node's directory of plugins in the place of kubelet's.
    fn start(node: &TestNode) -> Result<Self> {
        let program = tools::kubernetes("sample-device-plugin").context("no sample-device-plugin").context(BUILD)?;
        // The plugin runs in its own mount namespace.
        let script = "mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/kubelet && mount --bind \"$1\" /var/lib/kubelet && exec \"$2\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "/bin/sh", "-c", script, "sh"]);
        command.arg(node.agent.settings().plugins()).arg(program).env("LIMPET_TEST_NODE", node.dir());
        Ok(Self(Daemon::start(&mut command, &node.dir().join("sample-plugin.log"))?))
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        for device in DEVICES {
            fs::remove_file(Path::new("/tmp").join(device)).ok();
        }
    }
}

/// A pod whose container has so many of its devices.
fn asking(name: &str, count: u32) -> Value {
    let asks = json!({ "resources": { "limits": { RESOURCE: count } } });
    pod(name, json!({ "containers": [with(shell("main", IDLE), asks)] }))
}

/// The result of kubelet's client: the devices of each pod, and how many there are for pods.
fn resources(node: &TestNode) -> Result<(Vec<(String, String)>, usize)> {
    let program = tools::kubernetes("pod-resources").context("no pod-resources").context(BUILD)?;
    let socket = node.agent.settings().root().join("pod-resources/kubelet.sock");
    let said: Value = serde_json::from_str(&process::checked(Command::new(program).arg(socket))?)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let ids = |devices: &Value| -> Vec<String> {
        let of_resource = list(devices).into_iter().filter(|device| device["resource_name"] == RESOURCE);
        of_resource
            .flat_map(|device| list(&device["device_ids"]))
            .filter_map(|id| Some(id.as_str()?.to_owned()))
            .collect()
    };
    let mut given = Vec::new();
    for pod in list(&said["pods"]) {
        for container in list(&pod["containers"]) {
            let name = pod["name"].as_str().unwrap_or_default();
            given.extend(ids(&container["devices"]).into_iter().map(|id| (name.to_owned(), id)));
        }
    }
    given.sort();
    Ok((given, ids(&said["allocatable"]).len()))
}

pub(crate) fn kubelets_sample_plugin_registers_again_after_a_restart(node: &mut TestNode) -> Result<()> {
    wait::until_true(wait::SOON, "kubelet.sock", || socket(node, "kubelet.sock").exists())?;
    let plugin = Sample::start(node)?;
    let registered = |node: &TestNode| {
        let what = "the plugin's devices, as kubelet's client reads them";
        wait::until_true(wait::SOON, what, || resources(node).is_ok_and(|(_, count)| count == DEVICES.len()))
            .with_context(|| format!("{:?}, the plugin: {}", resources(node), plugin.0.log()))
    };
    registered(node)?;
    node.apply(&asking("one", 2))?;
    let before = node.wait_running("one")?;
    ensure!(node.exec("one", "main", &["/bin/sh", "-c", "cd /tmp && echo Dev-*"])? == "Dev-1 Dev-2\n", "no devices");
    let both = DEVICES.map(|id| (node.full_name("one"), id.to_owned()));
    ensure!(resources(node)?.0 == both, "{:?}", resources(node)?);
    node.apply(&asking("two", 1))?;
    waits(node, "two", &format!("OutOf{RESOURCE}"))?;

    node.agent.kill();
    node.agent.start()?;
    registered(node)?;
    ensure!(plugin.0.log().contains("restarting"), "{}", plugin.0.log());
    ensure!(resources(node)?.0 == both, "the agent has forgotten who has what: {:?}", resources(node)?);
    let after = node.wait_running("one")?;
    ensure!(container_id(&after, "main")? == container_id(&before, "main")?, "the pod was touched");
    ensure!(after["status"]["containerStatuses"][0]["restartCount"] == 0, "{}", after["status"]);
    waits(node, "two", &format!("OutOf{RESOURCE}"))?;
    node.remove("one")?;
    node.wait_running("two")?;
    let (given, _) = resources(node)?;
    ensure!(given.len() == 1 && given[0].0 == node.full_name("two"), "{given:?}");
    Ok(())
}
