//! kubectl and a node, through a real apiserver: every command of kubectl that a node answers, by every protocol that
//! apiservers use with nodes.
//!
//! Each run uses the machine's own kubectl. The long form uses all that `cargo xtask kubectl` builds, including 1.30,
//! and an apiserver that speaks SPDY to nodes whatever kubectl speaks.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::cluster::kubelet_api::{NodeAddress, join_with_api};
use limpet_tests::cluster::{self, Cluster, joining, wait_at};
use limpet_tests::forwarded::{self, Forwarded};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::process::Daemon;
use limpet_tests::terminal::Terminal;
use limpet_tests::{TestNode, case, image, process, suite, tools, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let code = suite::run([joining(case!(every_command_that_a_node_answers))]);
    cluster::end();
    code
}

/// How a stream comes from kubectl to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// kubectl's WebSocket is passed on, as apiservers since 1.36 do for nodes that declare support.
    WebSocket,
    /// kubectl's SPDY is passed on, as before 1.31.
    Spdy,
    /// kubectl's WebSocket becomes SPDY at the apiserver, as from 1.30 to 1.35.
    Translated,
}

/// One kubectl, and how its streams come to the node.
struct Kubectl<'a> {
    node: &'a TestNode,
    cluster: &'a Cluster,
    program: &'a Path,
    way: Way,
    /// Distinguishes files and containers of this run from those of others.
    name: String,
}

fn every_command_that_a_node_answers(node: &mut TestNode) -> Result<()> {
    let installed = tools::on_path("kubectl").context("no kubectl")?;
    let mut programs = vec![installed];
    let mut ways = vec![Way::WebSocket, Way::Spdy];
    if suite::is_long() {
        programs.extend(tools::kubectls());
        ways.push(Way::Translated);
        ensure!(programs.len() >= 3, "{programs:?}: run: cargo xtask kubectl");
    }
    let (mut cluster, address, port) = (cluster::exclusive()?, NodeAddress::add()?, Port::claim()?);
    join_with_api(node, &cluster, &port, &address)?;
    prepare(node, &cluster)?;
    for way in ways {
        if way == Way::Translated {
            cluster.stop()?;
            cluster.start_with(&["--feature-gates=ExtendWebSocketsToKubelet=false"])?;
        }
        for (number, program) in programs.iter().enumerate() {
            let name = format!("{number}-{way:?}").to_lowercase();
            let kubectl = Kubectl { node, cluster: &cluster, program, way, name };
            let said = process::checked(kubectl.command().args(["version", "--client"]))?;
            let version = said.lines().next().unwrap_or_default();
            println!("{version}, {way:?}");
            kubectl.try_all().with_context(|| format!("{version}, {way:?}"))?;
        }
        let translated = cluster.text("/metrics")?.contains("\napiserver_stream_translator_requests_total{");
        ensure!(translated == (way == Way::Translated), "{way:?}: translated at the apiserver: {translated}");
    }
    cluster.stop()?;
    Ok(())
}

/// Makes the pods that every kubectl reads.
fn prepare(node: &TestNode, cluster: &Cluster) -> Result<()> {
    node.apply(&forwarded::server("web"))?;
    let terminal = json!({ "command": ["/bin/sh"], "stdin": true, "tty": true });
    node.apply(&pod("shell", json!({ "containers": [with(shell("main", ""), terminal)] })))?;
    let reads = with(shell("main", "while read line; do echo $line-read; done"), json!({ "stdin": true }));
    node.apply(&pod("reader", json!({ "containers": [reads] })))?;
    // The container ends once, and then prints whatever it finds in a file.
    let talks = "[ -e /data/died ] || { touch /data/died; echo first life; exit 1; }; echo second life; \
                 while :; do if [ -e /data/say ]; then cat /data/say; rm /data/say; fi; usleep 20000; done";
    let mounts = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let volumes = json!([{ "name": "data", "emptyDir": {} }]);
    node.apply(&pod("talker", json!({ "containers": [with(shell("main", talks), mounts)], "volumes": volumes })))?;

    // No controller creates the ConfigMap that would come with its token.
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" }, "automountServiceAccountToken": false,
    });
    cluster.apply("/api/v1/namespaces/default/serviceaccounts/default", &account)?;
    let pods = "/api/v1/namespaces/default/pods";
    let patient = json!({ "metadata": { "name": node.full_name("patient") }, "spec": { "nodeName": node.name() } });
    cluster.create(pods, &with(simple("patient", IDLE), patient))?;
    for name in ["web", "shell", "reader", "patient", "talker"] {
        wait_at(cluster, &format!("{pods}/{}", node.full_name(name)), "ready", |shown| {
            cluster::condition(shown, "Ready")["status"] == "True"
        })?;
    }
    node.wait_logged("talker", "main", "second life")?;
    node.wait_logged("web", "main", "serves").map(drop)
}

impl Kubectl<'_> {
    fn command(&self) -> Command {
        let websockets = if self.way == Way::Spdy { "false" } else { "true" };
        let mut command = self.cluster.kubectl(self.program);
        command.env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets);
        command.env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets);
        command
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        process::checked(self.command().args(args))
    }

    /// The path of a file of this run.
    fn file(&self, what: &str) -> PathBuf {
        self.node.dir().join(format!("{what}-{}", self.name))
    }

    fn try_all(&self) -> Result<()> {
        self.exec().context("exec")?;
        self.exec_at_a_terminal().context("exec -it")?;
        self.attach().context("attach")?;
        self.attach_without_a_terminal().context("attach without a terminal")?;
        self.port_forward().context("port-forward")?;
        // The other commands have no streams, or the same ones.
        if suite::is_long() || self.way == Way::WebSocket {
            self.logs().context("logs")?;
            self.proxy().context("proxy")?;
            self.copy().context("cp")?;
            self.edit_and_delete().context("edit and delete")?;
            self.debug_pod().context("debug POD")?;
            self.debug_node().context("debug node/NAME")?;
        }
        Ok(())
    }

    fn logs(&self) -> Result<()> {
        let talker = self.node.full_name("talker");
        let followed = Daemon::start(self.command().args(["logs", "-f", &talker]), &self.file("followed"))?;
        wait::until_true(wait::SOON, "what is there", || followed.log().contains("second life"))?;
        let say = format!("echo {} > /data/saying; mv /data/saying /data/say", self.name);
        self.node.exec("talker", "main", &["/bin/sh", "-c", &say])?;
        wait::until_true(wait::SOON, "what comes later", || followed.log().ends_with(&format!("{}\n", self.name)))?;
        let all = self.run(&["logs", &talker])?;
        ensure!(all == followed.log() && all.starts_with("second life\n"), "{all}: {}", followed.log());
        let previous = self.run(&["logs", &talker, "--previous"])?;
        ensure!(previous == "first life\n", "{previous}");
        ensure!(self.run(&["logs", &talker, "--since=1h"])? == all, "since an hour");
        wait::until_true(wait::SOON, "a second without a line", || {
            self.run(&["logs", &talker, "--since=1s"]).is_ok_and(|recent| recent.is_empty())
        })
    }

    fn exec(&self) -> Result<()> {
        let web = self.node.full_name("web");
        let exec = ["exec", "-i", &web, "-c", "main", "--", "sh", "-c", "cat; echo err >&2; exit 7"];
        let input = b"in and out\n".repeat(10_000);
        let output = process::run(self.command().args(exec), &input)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.stdout == input, "{} bytes: {said}", output.stdout.len());
        ensure!(said.starts_with("err\n") && output.status.code() == Some(7), "{}: {said}", output.status);
        Ok(())
    }

    /// Runs kubectl at a terminal whose size changes.
    fn exec_at_a_terminal(&self) -> Result<()> {
        let mut exec = self.command();
        exec.args(["exec", "-it", &self.node.full_name("web"), "-c", "main", "--", "/bin/sh"]);
        let mut sized = Command::new("sh");
        sized.args(["-c", r#"tty; stty rows 24 cols 80; exec "$0" "$@""#]).arg(exec.get_program());
        sized.args(exec.get_args()).envs(exec.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut terminal = Terminal::on_terminal(&sized, &self.file("sized"))?;
        shows_size(&mut terminal, "24 80")?;
        let shown = terminal.shown();
        let tty = shown.lines().find(|line| line.starts_with("/dev/pts/")).context("no terminal")?.trim();
        process::checked(Command::new("stty").args(["-F", tty, "rows", "41", "cols", "101"]))?;
        shows_size(&mut terminal, "41 101")?;
        terminal.write("exit\r")?;
        terminal.wait_end()
    }

    fn attach(&self) -> Result<()> {
        let mut attach = self.command();
        attach.args(["attach", "-i", &self.node.full_name("shell")]);
        let mut attached = Terminal::piped(attach, &self.file("attached"))?;
        wait::until_true(wait::SOON, "the shell's answer", || {
            attached.write("echo $((40 + 2))-here\n").is_ok() && attached.shown().contains("42-here")
        })
        .with_context(|| attached.shown())?;
        attached.end_input();
        attached.wait_end()
    }

    fn copy(&self) -> Result<()> {
        let (there, back) = (self.file("there"), self.file("back"));
        std::fs::create_dir_all(there.join("below"))?;
        let noise = std::fs::read(self.program)?;
        std::fs::write(there.join("below/noise"), &noise[..noise.len().min(4 << 20)])?;
        std::fs::write(there.join("empty"), "")?;
        let in_pod = format!("{}:/www/{}", self.node.full_name("web"), self.name);
        let text = |path: &Path| path.display().to_string();
        self.run(&["cp", &text(&there), &in_pod, "-c", "main"])?;
        self.run(&["cp", &in_pod, &text(&back), "-c", "main"])?;
        process::checked(Command::new("diff").arg("-r").arg(&there).arg(&back))?;
        Ok(())
    }

    fn attach_without_a_terminal(&self) -> Result<()> {
        let mut attach = self.command();
        attach.args(["attach", "-i", &self.node.full_name("reader")]);
        let mut attached = Terminal::piped(attach, &self.file("read"))?;
        attached.write(&format!("{}\n", self.name))?;
        self.node.wait_logged("reader", "main", &format!("{}-read", self.name))?;
        attached.end_input();
        attached.wait_end()
    }

    fn port_forward(&self) -> Result<()> {
        let (pod, ports) = (format!("pod/{}", self.node.full_name("web")), format!(":{}", forwarded::PORT));
        let mut command = self.command();
        command.args(["port-forward", "--address=127.0.0.1", &pod, &ports]);
        Forwarded::start(&mut command, &self.file("forwarded"))?.check(self.node, "web")
    }

    fn proxy(&self) -> Result<()> {
        let proxy = Daemon::start(self.command().args(["proxy", "--port=0"]), &self.file("proxy"))?;
        let address = wait::until(wait::SOON, "the proxy's address", || {
            let said = proxy.log();
            Some(said.split_once("Starting to serve on ")?.1.lines().next()?.to_owned())
        })?;
        let get = |path: &str| {
            let url = format!("http://{address}/api/v1/nodes/{}/proxy/{path}", self.node.name());
            process::output("curl", &["-sS", "--fail", "--max-time", "60", &url])
        };
        ensure!(get("healthz")? == "ok", "healthz");
        let talker = self.node.full_name("talker");
        let last = get(&format!("containerLogs/default/{talker}/main?tailLines=1"))?;
        ensure!(last == format!("{}\n", self.name), "{last}");
        let pods: Value = serde_json::from_str(&get("pods")?)?;
        ensure!(pods["items"].as_array().is_some_and(|pods| pods.len() >= 4), "{pods}");
        ensure!(get("metrics/resource")?.contains(&talker), "metrics");
        Ok(())
    }

    /// Edits with an editor take effect in place, and a deletion returns once the pod's containers have ended.
    fn edit_and_delete(&self) -> Result<()> {
        let (short, pods) = (format!("edited-{}", self.name), "/api/v1/namespaces/default/pods");
        let name = self.node.full_name(&short);
        let bound = json!({ "metadata": { "name": name }, "spec": { "nodeName": self.node.name() } });
        self.cluster.create(pods, &with(simple(&short, IDLE), bound))?;
        self.run(&["wait", "--for=condition=Ready", "pod", &name, "--timeout=60s"])?;
        let before = self.node.wait_running(&short)?;
        let editor = format!("sed -i s#{}#{}#", image::V1, image::V2);
        process::checked(self.command().args(["edit", "pod", &name]).env("KUBE_EDITOR", editor))?;
        wait_at(self.cluster, &format!("{pods}/{name}"), "of the other image", |shown| {
            let main = container(shown, "main");
            main["image"] == image::V2 && main["ready"] == true && main["restartCount"] == 1
        })?;
        let after = self.node.wait_running(&short)?;
        ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "another pod: {after}");
        self.run(&["delete", "pod", &name, "--timeout=60s"])?;
        let id = container_id(&after, "main")?;
        ensure!(
            self.node.containerd.tasks()?.iter().all(|task| task.id != id),
            "deleted while its container was there"
        );
        self.node.wait_gone(&short)
    }

    fn debug_pod(&self) -> Result<()> {
        let (patient, container) = (self.node.full_name("patient"), format!("look-{}", self.name));
        let mut debug = self.command();
        debug.args(["debug", "-it", &patient, &format!("--image={}", image::V2), "--target=main"]);
        debug.args([&format!("--container={container}"), "--profile=general", "--", "/bin/sh"]);
        let mut terminal = Terminal::on_terminal(&debug, &self.file("debug"))?;
        terminal.wait_for("try pressing enter")?;
        terminal.write("echo beside-$(tr '\\0' ' ' < /proc/1/cmdline)\r")?;
        terminal.wait_for("beside-/bin/sh -c trap")?;
        terminal.write("exit\r")?;
        terminal.wait_end()
    }

    fn debug_node(&self) -> Result<()> {
        let mut debug = self.command();
        debug.args(["debug", "-it", &format!("node/{}", self.node.name()), &format!("--image={}", image::V2)]);
        debug.args(["--profile=general", "--", "/bin/sh"]);
        let mut terminal = Terminal::on_terminal(&debug, &self.file("debug-node"))?;
        terminal.wait_for("try pressing enter")?;
        // A debug container on the node sees the node's files and processes.
        let kept = self.file("kept");
        std::fs::write(&kept, "42-of-the-node\n")?;
        terminal.write(&format!("cat /host{}; ls -d /proc/{}\r", kept.display(), std::process::id()))?;
        terminal.wait_for("42-of-the-node")?;
        terminal.wait_for(&format!("/proc/{}\r", std::process::id()))?;
        terminal.write("exit\r")?;
        terminal.wait_end()?;
        let pods = "/api/v1/namespaces/default/pods";
        let listed = self.cluster.list(pods)?;
        let mut names = listed.iter().filter_map(|pod| pod["metadata"]["name"].as_str());
        let name = names.rfind(|name| name.starts_with("node-debugger-")).context("no pod")?;
        let path = format!("{pods}/{name}");
        wait_at(self.cluster, &path, "over", |shown| shown["status"]["phase"] == "Succeeded")?;
        self.cluster.delete(&path)?;
        wait::until_true(wait::SOON, "the end of the node's debugger", || {
            self.cluster.get(&path).is_ok_and(|object| object.is_none())
        })
    }
}

/// Asks for the terminal's size until it is the given one.
fn shows_size(terminal: &mut Terminal, size: &str) -> Result<()> {
    let shown = wait::until_true(wait::SOON, size, || {
        terminal.write("stty size\r").is_ok() && terminal.shown().contains(&format!("{size}\r"))
    });
    shown.with_context(|| terminal.shown())
}
