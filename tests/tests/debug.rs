//! Ephemeral containers: `limpet debug`, with no apiserver, and `kubectl debug`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::cluster::kubelet_api::{NodeAddress, join_with_api};
use limpet_tests::cluster::{self, joining, wait_at};
use limpet_tests::image::{self, ImageBuilder, write_oci_archive};
use limpet_tests::manifest::{IDLE, pod, simple, with};
use limpet_tests::node::container_id;
use limpet_tests::terminal::Terminal;
use limpet_tests::{TestNode, case, suite, tools};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let code = suite::run([
        case!(a_pod_without_a_shell_is_looked_into_and_the_agent_runs_nothing_twice),
        case!(what_is_added_ends_with_the_pod_and_an_image_that_is_nowhere_changes_nothing),
        joining(case!(kubectl_debugs_a_pod_of_the_apiserver)),
    ]);
    cluster::end();
    code
}

/// The state of an ephemeral container.
fn state<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let statuses = pod["status"]["ephemeralContainerStatuses"].as_array();
    let status = statuses.and_then(|list| list.iter().find(|status| status["name"] == name));
    status.map_or(&Value::Null, |status| &status["state"])
}

fn a_pod_without_a_shell_is_looked_into_and_the_agent_runs_nothing_twice(node: &mut TestNode) -> Result<()> {
    // A whiteout removes the shell from busybox.
    let bare = ImageBuilder::new("registry.example/bare:1").file("bin/.wh.sh", "", 0o644).build()?;
    let archive = node.dir().join("bare.tar");
    write_oci_archive(&[&bare], &archive)?;
    node.containerd.import(&archive)?;
    let main = json!({ "name": "main", "image": bare.name, "command": ["/bin/sleep", "100000"] });
    node.apply(&pod("bare", json!({ "containers": [main] })))?;
    let id = container_id(&node.wait_running("bare")?, "main")?;
    let shell = node.agent.cli(&["exec", "bare", "--", "/bin/sh"])?;
    ensure!(shell.code != Some(0), "{shell:?}");

    let debug = ["debug", "-it", "bare", "--image", image::V2, "--target", "main", "-c", "look", "--env", "SIDE=in"];
    let mut terminal = Terminal::on_terminal(&node.agent.cli_command(&debug)?, &node.dir().join("first.shown"))?;
    terminal.wait_for("try pressing enter")?;
    terminal.write("echo $SIDE-$VERSION-beside-$(tr '\\0' ' ' < /proc/1/cmdline)\r")?;
    terminal.wait_for("in-2-beside-/bin/sleep 100000")?;
    let seen = node.agent.cli(&["pods"])?.success()?;
    ensure!(seen.contains("1/1") && seen.contains("debugged by look"), "{seen}");
    let described = node.agent.cli(&["describe", "bare"])?.success()?;
    ensure!(described.contains("Ephemeral Containers") && described.contains(image::V2), "{described}");

    node.agent.kill();
    node.agent.start()?;
    let adopted = node.wait_pod("bare", "found again", |pod| state(pod, "look")["running"].is_object())?;
    ensure!(container_id(&adopted, "main")? == id, "{adopted}");
    let attach = ["attach", "-it", "bare", "-c", "look"];
    let mut again = Terminal::on_terminal(&node.agent.cli_command(&attach)?, &node.dir().join("again.shown"))?;
    again.wait_for("try pressing enter")?;
    again.write("exit 3\r")?;
    again.wait_end()?;
    let over = node.wait_pod("bare", "its end", |pod| state(pod, "look")["terminated"]["exitCode"] == 3)?;
    let ended = state(&over, "look")["terminated"]["containerID"].clone();
    node.agent.kill();
    node.agent.start()?;
    let later = node.wait_pod("bare", "found as ended", |pod| state(pod, "look")["terminated"]["exitCode"] == 3)?;
    ensure!(
        state(&later, "look")["terminated"]["containerID"] == ended && container_id(&later, "main")? == id,
        "{later}"
    );
    ensure!(later["status"]["phase"] == "Running", "{later}");
    let log = node.agent.cli(&["logs", "bare", "-c", "look"])?.success()?;
    ensure!(log.contains("in-2-beside"), "{log}");
    node.remove("bare")?;
    node.wait_gone("bare")
}

fn what_is_added_ends_with_the_pod_and_an_image_that_is_nowhere_changes_nothing(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    for (more, message) in [
        (&["--target", "none"][..], "targetContainerName: Not found: \"none\""),
        (&["-c", "main"][..], "name: Duplicate value: \"main\""),
    ] {
        let refused = node.agent.cli(&[&["debug", "web", "--image", image::V2][..], more].concat())?;
        ensure!(refused.code == Some(1) && refused.stderr.contains(message), "{refused:?}");
    }
    let none = ["debug", "web", "--image", "127.0.0.1:1/none:1", "-c", "none"];
    node.agent.cli(&none)?.success()?;
    let stubborn = ["debug", "web", "--image", image::V2, "-c", "stays", "--", "/bin/sh", "-c"];
    node.agent.cli(&[&stubborn[..], &["trap '' TERM; while :; do sleep 100000; done"]].concat())?.success()?;
    let both = node.wait_pod("web", "one that runs and one without an image", |pod| {
        let waits = &state(pod, "none")["waiting"]["reason"];
        state(pod, "stays")["running"].is_object() && (waits == "ErrImagePull" || waits == "ImagePullBackOff")
    })?;
    ensure!(container_id(&both, "main")? == id && both["status"]["phase"] == "Running", "{both}");
    let ready = both["status"]["conditions"].as_array().context("no conditions")?;
    ensure!(ready.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"), "{both}");
    // The containers have a second of grace, and then get SIGKILL.
    node.remove("web")?;
    node.wait_gone("web")
}

fn kubectl_debugs_a_pod_of_the_apiserver(node: &mut TestNode) -> Result<()> {
    let program = tools::on_path("kubectl").context("no kubectl")?;
    let (cluster, address, port) = (cluster::shared()?, NodeAddress::add()?, Port::claim()?);
    join_with_api(node, &cluster, &port, &address)?;
    cluster.add_account()?;
    let pods = "/api/v1/namespaces/default/pods";
    let name = node.full_name("web");
    let bound = json!({ "metadata": { "name": name }, "spec": { "nodeName": node.name(), "automountServiceAccountToken": false } });
    cluster.create(pods, &with(simple("web", IDLE), bound))?;
    let path = format!("{pods}/{name}");
    let before = wait_at(&cluster, &path, "running", |shown| shown["status"]["phase"] == "Running")?;

    let mut debug = cluster.kubectl(&program);
    debug.args(["debug", "-it", &name, &format!("--image={}", image::V2), "--image-pull-policy=IfNotPresent"]);
    debug.args(["--target=main", "--container=look", "--profile=general", "--", "/bin/sh"]);
    let mut terminal = Terminal::on_terminal(&debug, &node.dir().join("kubectl.shown"))?;
    terminal.wait_for("try pressing enter")?;
    terminal.write("echo beside-$(tr '\\0' ' ' < /proc/1/cmdline)\r")?;
    terminal.wait_for("beside-/bin/sh -c trap")?;
    terminal.write("exit 3\r")?;
    terminal.wait_end()?;
    let after = wait_at(&cluster, &path, "its end", |shown| state(shown, "look")["terminated"]["exitCode"] == 3)?;
    ensure!(container_id(&after, "main")? == container_id(&before, "main")?, "{after}");
    ensure!(after["status"]["phase"] == "Running", "{after}");
    // The apiserver's pod does not have what only the node has added.
    node.agent.cli(&["debug", &name, "--image", image::V2, "-c", "own", "--", "/bin/sleep", "100000"])?.success()?;
    node.wait_pod("web", "the node's own", |pod| state(pod, "own")["running"].is_object())?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_pod("web", "both", |pod| {
        state(pod, "own")["running"].is_object() && state(pod, "look")["terminated"]["exitCode"] == 3
    })?;
    let shown = cluster.get(&path)?.context("it is gone")?;
    ensure!(state(&shown, "own").is_null(), "{shown}");
    cluster.delete(&path)?;
    node.wait_gone("web")
}
