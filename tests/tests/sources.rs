//! Pods from a URL and from `limpet apply`: they run, and what was accepted outlives server, agent and crash.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, simple};
use limpet_tests::node::container_id;
use limpet_tests::web::Web;
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_url_s_pod_outlives_its_server).on(|node| node.agent = false),
        case!(an_applied_pod_survives_a_crash_right_after_the_answer),
        case!(a_pod_of_a_file_comes_before_an_applied_one),
    ])
}

fn list(pods: &[Value]) -> String {
    json!({ "apiVersion": "v1", "kind": "PodList", "items": pods }).to_string()
}

fn a_url_s_pod_outlives_its_server(node: &mut TestNode) -> Result<()> {
    let web = Web::start(0, &list(&[simple("web", IDLE), simple("side", IDLE)]))?;
    let (url, port) = (web.url(), web.port());
    node.agent.reconfigure(|settings| {
        settings.kubelet.push(format!("staticPodURL: {url}\nhttpCheckFrequency: 1s"));
    })?;
    node.agent.start()?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    node.wait_running("side")?;

    drop(web);
    node.agent.kill();
    node.agent.start()?;
    let state = |word: &'static str| {
        wait::until(wait::SOON, &format!("a source with {word}"), || {
            node.agent.cli(&["sources"]).ok()?.success().ok().filter(|sources| sources.contains(word))
        })
    };
    let sources = state("refused")?;
    ensure!(sources.contains(&url) && sources.lines().any(|line| line.starts_with("http")), "{sources}");
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");

    // The server is back with less: what it does not have any more ends, the rest is left alone.
    let web = Web::start(port, &list(&[simple("web", IDLE)]))?;
    node.wait_gone("side")?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");
    web.serve("");
    let sources = state("empty answer")?;
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
    // It is not seen before containerd was read: only then is it gone for good.
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
