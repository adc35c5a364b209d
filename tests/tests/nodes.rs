//! The whole life of a pod on other nodes than those of the other suites: with the static executable for nodes, and
//! with containerd 2.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::image::V2;
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::web::Web;
use limpet_tests::{TestNode, agent, case, process, suite};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(the_static_executable).on(|node| (node.cni, node.agent) = (true, false)),
        case!(containerd_2).on(|node| (node.cni, node.containerd_choice) = (true, Some("2".to_owned()))),
    ])
}

/// The executable has its own C library, so a name in the URL has the agent resolve a name with it. Its logger and its
/// command line are the same file.
fn the_static_executable(node: &mut TestNode) -> Result<()> {
    let program = agent::static_program()?;
    is_linked_for_nodes(&program)?;
    node.agent.run_program(program);
    let port = Port::claim()?;
    let list = json!({ "apiVersion": "v1", "kind": "PodList", "items": [simple("by-url", IDLE)] });
    let web = Web::start(&port, &list.to_string())?;
    let url = web.url().replace("127.0.0.1", "localhost");
    node.agent.reconfigure(|settings| settings.kubelet.push(format!("staticPodURL: {url}\nhttpCheckFrequency: 1s")))?;
    node.agent.start()?;
    life(node)?;
    node.wait_running("by-url").map(drop)
}

/// Checks that it needs no library of the node and has no tables for unwinding, because a panic aborts.
fn is_linked_for_nodes(program: &Path) -> Result<()> {
    let mut command = Command::new("readelf");
    command.args(["--wide", "--program-headers", "--sections"]).arg(program);
    let said = process::checked(&mut command)?;
    for word in ["INTERP", ".dynamic", ".eh_frame"] {
        ensure!(!said.contains(word), "{} has {word}:\n{said}", program.display());
    }
    Ok(())
}

fn containerd_2(node: &mut TestNode) -> Result<()> {
    ensure!(node.containerd.version().0 == 2, "{:?}", node.containerd.version());
    life(node)
}

/// A pod with an address is read, edited, restarted, adopted and deleted.
fn life(node: &mut TestNode) -> Result<()> {
    let web = |image: Value| {
        let script = "echo hello $(cat /version); trap 'exit 0' TERM; read -r _ < /stop/now & wait $!; exit 1";
        let mount = json!({ "volumeMounts": [{ "name": "stop", "mountPath": "/stop" }] });
        let init = shell("init", "mkfifo /stop/now");
        let spec = json!({
            "initContainers": [with(init, mount.clone())],
            "containers": [with(with(shell("main", script), mount), image), shell("side", IDLE)],
            "volumes": [{ "name": "stop", "emptyDir": {} }],
        });
        let mut pod = pod("web", spec);
        pod["spec"]["hostNetwork"] = json!(false);
        pod
    };
    node.apply(&web(json!({})))?;
    let before = node.wait_running("web")?;
    ensure!(before["status"]["podIP"].is_string(), "no address: {}", before["status"]);
    ensure!(node.wait_logged("web", "main", "hello")? == "hello 1\n");
    ensure!(node.exec("web", "side", &["hostname"])? == format!("{}\n", node.full_name("web")));

    node.apply(&web(json!({ "image": V2 })))?;
    let edited = node.wait_pod("web", "running its second image", |pod| {
        let main = container(pod, "main");
        main["state"]["running"].is_object() && container_id(pod, "main").ok() != container_id(&before, "main").ok()
    })?;
    ensure!(container_id(&edited, "side")? == container_id(&before, "side")?, "the other container was restarted");
    node.exec("web", "main", &["/bin/sh", "-c", "echo > /stop/now"])?;
    let restarted = node.wait_pod("web", "restarted", |pod| {
        let main = container(pod, "main");
        main["state"]["running"].is_object() && main["lastState"]["terminated"]["exitCode"] == 1
    })?;

    node.agent.kill();
    node.containerd.kill();
    node.containerd.start()?;
    node.agent.start()?;
    node.apply(&simple("marker", IDLE))?;
    node.wait_running("marker")?;
    let adopted = node.wait_running("web")?;
    for name in ["main", "side"] {
        ensure!(container_id(&adopted, name)? == container_id(&restarted, name)?, "{name} was started again");
    }
    node.remove("web")?;
    node.wait_gone("web")
}
