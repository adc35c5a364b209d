//! `cargo xtask demo`: the life of a pod on a real containerd, and a Deployment with a Service; each step is printed and timed, and
//! nothing is left behind.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use limpet_tests::image::{self, V1, V2};
use limpet_tests::manifest::{pod, shell, with};
use limpet_tests::node::{NodeOptions, container, container_id};
use limpet_tests::own_network::OwnNetwork;
use limpet_tests::{TestNode, agent, process, sweep, tools, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::setup;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The major version of containerd; without it the machine's own, or 1.7.
    #[arg(long, value_name = "MAJOR", value_parser = clap::value_parser!(u32).range(1..=2))]
    containerd: Option<u32>,
}

/// Runs all steps; what was made is taken down however they end.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    wait::end_on_signal();
    let mut demo = Demo { start: Instant::now(), took: Vec::new() };
    let choice = demo.step("set up", || setup::for_major(arguments.containerd))?;
    ensure!(tools::is_root(), "containers need root: sudo -E env PATH=\"$PATH\" cargo xtask demo");
    // The profile of the tests builds fastest, and `cargo xtask test` reuses the result.
    let program = demo.step("build the agent", || agent::build(&[]))?;
    sweep::sweep();
    let containerd = choice.first().map(|(_, major)| major.clone());
    let options = NodeOptions {
        agent: false,
        cni: true,
        images: false,
        containerd_choice: containerd,
        program: Some(program),
        ..NodeOptions::default()
    };
    let node = demo.step("start a containerd of its own", || TestNode::boot(&options))?;
    let shown = demo.show(node).and_then(|node| demo.step("take it all down", || node.finish()));
    demo.report(shown.is_ok());
    if shown.is_err() && wait::interrupted() {
        bail!("interrupted; everything was removed");
    }
    shown
}

struct Demo {
    start: Instant,
    took: Vec<(&'static str, Duration)>,
}

impl Demo {
    /// Prints what is done and records how long it took.
    fn step<T>(&mut self, what: &'static str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if wait::interrupted() {
            bail!("interrupted before: {what}");
        }
        println!("\n==> {what}");
        let start = Instant::now();
        let done = act().with_context(|| what.to_owned())?;
        self.took.push((what, start.elapsed()));
        Ok(done)
    }

    /// Runs the steps on the booted node. Returns the node if all went well, and otherwise takes it down.
    fn show(&mut self, mut node: TestNode) -> Result<TestNode> {
        match self.act(&mut node) {
            Ok(()) => Ok(node),
            Err(error) => Err(error.context(format!("the demo failed\n{}", node.evidence()))),
        }
    }

    fn act(&mut self, node: &mut TestNode) -> Result<()> {
        println!("    all files are below {}", node.dir().display());
        self.step("put the demo image into the agent's images directory", || save_images(node))?;
        // Services have rules in the kernel: those of the demo are in a network of its own.
        let _network = self.step("start the agent", || OwnNetwork::start(node))?;
        self.step("drop in a manifest of two containers", || {
            node.apply(&manifest(V1))?;
            println!(
                "    {} (containers web and clock)",
                node.agent.settings().manifests().join("demo.yaml").display()
            );
            node.wait_running("demo")
        })?;
        table(node)?;
        let before = node.wait_running("demo")?;
        self.step("edit the image of web: v1 becomes v2", || edit_image(node, &before))?;
        self.step("kill the process of web: it comes again", || kill_container(node))?;
        table(node)?;
        self.step("read its logs", || show_logs(node))?;
        self.step("delete the manifest: the pod ends within its grace", || {
            node.remove("demo")?;
            node.wait_gone("demo")?;
            node.wait_nothing_runs()?;
            println!("    no container, mount, cgroup or log of it is left");
            Ok(())
        })?;
        self.step("drop in a Deployment and a Service: web has a name", || reach_service(node))?;
        self.step("delete them", || {
            for file in ["web", "client"] {
                node.remove(file)?;
            }
            node.wait_nothing_runs()
        })
    }

    fn report(&self, well: bool) {
        println!("\n{:<58} {:>9}", "STEP", "TOOK");
        for (what, took) in &self.took {
            println!("{what:<58} {:>9}", readable(*took));
        }
        println!("{:<58} {:>9}", if well { "all" } else { "until it ended" }, readable(self.start.elapsed()));
    }
}

fn readable(duration: Duration) -> String {
    match duration.as_millis() {
        millis @ 0..1000 => format!("{millis} ms"),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

fn save_images(node: &TestNode) -> Result<()> {
    let dir = node.agent.settings().root().join("images");
    std::fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
    let [first, second] = image::demo_images()?;
    image::write_docker_archive(&[&first, &second], &dir.join("demo.tar"))?;
    println!("    {} with {V1} and {V2}, made of busybox", dir.join("demo.tar").display());
    Ok(())
}

/// Two containers; `web` prints its version, `clock` only counts.
fn manifest(image: &str) -> Value {
    let lasting = "trap 'echo told to end; exit 0' TERM; sleep 100000 & wait";
    let web = with(
        shell("web", &format!("echo \"this is version $(cat /version)\"; {lasting}")),
        json!({ "image": image, "resources": { "limits": { "memory": "32Mi" } } }),
    );
    pod("demo", json!({ "terminationGracePeriodSeconds": 5, "containers": [web, shell("clock", lasting)] }))
}

/// Prints `limpet pods`, as the user would see it.
fn table(node: &TestNode) -> Result<()> {
    println!("\n$ limpet pods\n{}", node.agent.cli(&["pods"])?.success()?.trim_end());
    Ok(())
}

fn edit_image(node: &TestNode, before: &Value) -> Result<()> {
    node.apply(&manifest(V2))?;
    let old = container_id(before, "web")?;
    let after = node.wait_pod("demo", "running the second image", |pod| {
        container_id(pod, "web").is_ok_and(|id| id != old) && container(pod, "web")["state"]["running"].is_object()
    })?;
    let version = node.exec("demo", "web", &["cat", "/version"])?;
    ensure!(version == "2\n", "web has version {version:?}");
    ensure!(container_id(&after, "clock")? == container_id(before, "clock")?, "clock was restarted");
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "the pod was recreated");
    println!("    web is now container {}…", short(&container_id(&after, "web")?));
    println!("    clock is still container {}…, and the pod keeps its UID", short(&container_id(&after, "clock")?));
    Ok(())
}

/// The beginning of an id: its end is the same for all containers of a pod.
fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

fn kill_container(node: &TestNode) -> Result<()> {
    let before = node.wait_running("demo")?;
    let id = container_id(&before, "web")?;
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("web has no process")?;
    process::signal_pid(task.pid, Signal::KILL);
    let after = node.wait_pod("demo", "restarted", |pod| {
        container_id(pod, "web").is_ok_and(|now| now != id) && container(pod, "web")["state"]["running"].is_object()
    })?;
    println!("    process {} killed; restarts of web: {}", task.pid, container(&after, "web")["restartCount"]);
    Ok(())
}

fn show_logs(node: &TestNode) -> Result<()> {
    let log = node.wait_logged("demo", "web", "version")?;
    println!("$ limpet logs {} -c web\n{}", node.full_name("demo"), log.trim_end());
    Ok(())
}

/// What answers each request with the name of its pod.
const SERVER: &str = "hostname > /tmp/index.html; exec httpd -f -p 8080 -h /tmp";
/// What asks for it, without the headers of the answer.
const REQUEST: &str = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 web 80 | tail -n 1";

/// A Deployment of two pods, and a Service for them.
fn served() -> [Value; 2] {
    let server = with(
        shell("main", SERVER),
        json!({
            "ports": [{ "name": "http", "containerPort": 8080 }],
            "readinessProbe": { "tcpSocket": { "port": "http" }, "periodSeconds": 1 },
        }),
    );
    let labels = json!({ "app": "web" });
    let template = json!({
        "metadata": { "labels": labels },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [server] },
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": { "replicas": 2, "selector": { "matchLabels": labels }, "template": template },
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": labels, "ports": [{ "port": 80, "targetPort": "http" }] },
    });
    [deployment, service]
}

/// Has another pod reach both pods of the Deployment by the name of their Service.
fn reach_service(node: &TestNode) -> Result<()> {
    let idle = shell("main", "trap 'exit 0' TERM; sleep 100000 & wait");
    node.apply(&pod("client", json!({ "hostNetwork": false, "containers": [idle] })))?;
    let documents = served().map(|document| document.to_string());
    node.drop_text("web.yaml", &documents.join("\n---\n"))?;
    node.wait_running("client")?;
    let ask = || node.exec("client", "main", &["/bin/sh", "-c", REQUEST]);
    let mut answers = std::collections::BTreeSet::new();
    wait::until_true(wait::SOON, "answers of both pods", || {
        answers.extend(ask().ok().filter(|answer| answer.starts_with("web-")));
        answers.len() == 2
    })?;
    println!("$ limpet services\n{}", node.agent.cli(&["services"])?.success()?.trim_end());
    table(node)?;
    println!("\n$ limpet exec {} -- nc web 80     # several times", node.full_name("client"));
    answers.iter().for_each(|answer| println!("{}", answer.trim_end()));
    Ok(())
}
