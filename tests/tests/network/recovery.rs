//! Pods whose record, plugin or configuration has changed since they were attached.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::IDLE;
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, tools, wait};

use crate::{address, networked};

/// The record of a pod's attachment.
fn record(node: &TestNode, uid: &str) -> PathBuf {
    node.agent.settings().root().join("network").join(uid)
}

pub(crate) fn a_damaged_record_restarts_nothing(node: &mut TestNode) -> Result<()> {
    node.apply(&networked("web", IDLE))?;
    let before = node.wait_running("web")?;
    let uid = before["metadata"]["uid"].as_str().context("no uid")?;
    for damage in [Some(""), Some("{\"namespace\""), None] {
        node.agent.kill();
        match damage {
            Some(text) => fs::write(record(node, uid), text)?,
            None => fs::remove_file(record(node, uid))?,
        }
        node.agent.start()?;
        let after = node.wait_running("web")?;
        let ids = (container_id(&before, "main")?, container_id(&after, "main")?);
        ensure!(ids.0 == ids.1 && container(&after, "main")["restartCount"] == 0, "{damage:?}: {}", after["status"]);
        ensure!(address(&before)? == address(&after)?, "{damage:?}: {}", after["status"]);
        let written = fs::read_to_string(record(node, uid))?;
        ensure!(written.contains(&address(&before)?), "{damage:?}: {written}");
    }
    // It is detached like any other pod.
    node.remove("web")?;
    node.wait_gone("web")?;
    let cni = node.cni.as_ref().context("no network")?;
    ensure!(cni.allocated().is_empty(), "{:?}", cni.allocated());
    node.wait_nothing_runs()
}

pub(crate) fn a_pod_goes_whose_network_never_worked(node: &mut TestNode) -> Result<()> {
    let cni = node.cni.as_ref().context("no network")?;
    let subnet = cni.subnet();
    cni.give_from(&["NONE".to_owned()])?;
    node.agent.start()?;
    node.apply(&networked("web", IDLE))?;
    node.wait_event("FailedCreatePodSandBox")?;
    node.remove("web")?;
    node.wait_gone("web")?;
    // The same manifest starts with a correct list.
    node.cni.as_ref().context("no network")?.give_from(&[subnet])?;
    node.apply(&networked("web", IDLE))?;
    node.wait_running("web")?;
    Ok(())
}

pub(crate) fn a_pod_goes_whose_plugin_was_uninstalled(node: &mut TestNode) -> Result<()> {
    let installed = tools::cni_plugins().context("no CNI plugins")?;
    let plugins = node.dir().join("plugins");
    fs::create_dir(&plugins)?;
    for plugin in ["bridge", "host-local"] {
        std::os::unix::fs::symlink(installed.join(plugin), plugins.join(plugin))?;
    }
    node.agent.reconfigure(|settings| settings.cni_plugins = vec![plugins.clone()])?;
    node.agent.start()?;
    node.apply(&networked("web", IDLE))?;
    let web = node.wait_running("web")?;
    let uid = web["metadata"]["uid"].as_str().context("no uid")?.to_owned();
    fs::remove_file(plugins.join("bridge"))?;
    node.remove("web")?;
    node.wait_gone("web")?;
    ensure!(record(node, &uid).exists(), "nothing says that an address is reserved");

    std::os::unix::fs::symlink(installed.join("bridge"), plugins.join("bridge"))?;
    node.agent.kill();
    node.agent.start()?;
    let cni = node.cni.as_ref().context("no network")?;
    wait::until_true(wait::SOON, "the address to be given back", || cni.allocated().is_empty())
}
