//! The specs of Kubernetes' own node tests (`test/e2e_node` of 1.37.1) for a kubelet without an apiserver, run against the agent.
//!
//! The suite makes its namespaces on a real apiserver, puts manifests into the agent's directory, calls its ports 10250, 10255
//! and 10248, and restarts it as a [unit of systemd](SystemdUnit). docs/testing.md says which spec is left out.

use std::fs;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::apiserver::{Apiserver, TOKEN};
use limpet_tests::image::ImageBuilder;
use limpet_tests::node::NodeOptions;
use limpet_tests::process::Daemon;
use limpet_tests::systemd_unit::{Request, SystemdUnit};
use limpet_tests::{TestNode, case, process, suite, tools};

/// The images of the suite that these specs run.
const BUSYBOX: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2";

/// How long its specs may take.
const SUITE_TIMEOUT: Duration = Duration::from_secs(900);

/// The spec that is left out. It removes a container by CRI, which limpet refuses, and asserts that `startTime` changes
/// when the agent restarts, which limpet keeps.
const LEFT_OUT: &str = "should be ready after init container is removed and kubelet restarts";

fn main() -> ExitCode {
    let open = |node: &mut NodeOptions| {
        node.cni = true;
        node.kubelet = vec![
            "address: 127.0.0.1\nport: 10250\nreadOnlyPort: 10255\nhealthzPort: 10248".to_owned(),
            "authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}".to_owned(),
            "authorization: {mode: AlwaysAllow}".to_owned(),
        ];
    };
    suite::run([case!(the_standalone_specs_of_kubernetes_pass).on(open)])
}

fn the_standalone_specs_of_kubernetes_pass(node: &mut TestNode) -> Result<()> {
    let program = tools::kubernetes("e2e_node").context("no e2e_node; run: cargo xtask nightly standalone")?;
    let apiserver = Apiserver::start(&node.dir().join("apiserver"), &[])?;
    node.import(&[&ImageBuilder::new(BUSYBOX).build()?])?;
    let unit = SystemdUnit::new(&node.dir().join("unit"))?;
    let any_system = node.dir().join("system.yaml");
    fs::write(&any_system, "os: Linux\n")?;

    // The suite reads logs in kubelet's directory.
    let script = "mkdir -p /var/log/pods && mount --bind \"$LOGS\" /var/log/pods && exec \"$@\"";
    let mut suite = Command::new("unshare");
    suite.args(["--mount", "sh", "-c", script, "sh"]).arg(program);
    suite
        .args(["--standalone-mode", "--start-services=false", "--stop-services=false", "--prepull-images=false"])
        .arg("--delete-namespace=false")
        .arg(format!("--system-spec-file={}", any_system.display()))
        .arg(format!("--host={}", apiserver.url()))
        .args([&format!("--bearer-token={TOKEN}"), &format!("--node-name={}", node.name())])
        .args(["--ginkgo.label-filter=Feature: containsAny StandaloneMode", "--ginkgo.no-color"])
        .arg(format!("--ginkgo.skip={LEFT_OUT}"))
        .env("LOGS", node.agent.settings().pod_logs())
        .env("PATH", unit.search_path()?)
        .current_dir(node.dir());
    let log = node.dir().join("suite.log");
    let mut suite = Daemon::start(&mut suite, &log)?;
    unit.serve(&mut suite, SUITE_TIMEOUT, |request| {
        node.agent.kill();
        if request == Request::Restart { node.agent.start() } else { Ok(()) }
    })?;
    let said = fs::read_to_string(&log)?;
    let passed = said.contains("5 Passed | 0 Failed") && said.contains("SUCCESS!");
    ensure!(passed, "{}", process::tail(&said, 200));
    Ok(())
}
