//! Updates that wait: for a window, for an application, for a link that is not metered. What has to start does not wait, and
//! neither does what is done by hand.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image::{self, ImageBuilder, noise};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{NodeOptions, container, container_id};
use limpet_tests::registry::{self, Registry};
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_generation_waits_for_an_application_and_for_nothing_else).on(without_agent),
        case!(a_bundle_waits_for_its_window_and_not_by_hand).on(without_agent),
        case!(the_image_of_a_change_waits_and_that_of_a_start_does_not).on(without_agent),
        case!(an_application_decides_by_its_url).on(without_agent),
        case!(a_metered_link_is_not_used).on(without_agent),
        case!(a_bundle_by_hand_can_wait_for_the_window).on(without_agent),
        case!(downloads_keep_to_the_bandwidth).on(without_agent),
        case!(a_server_gets_the_nodes_newest_report).on(without_agent),
    ])
}

fn without_agent(node: &mut NodeOptions) {
    node.agent = false;
}

/// It is open for a minute of each year.
const NEW_YEAR: &str = "windows: [{start: '0 0 1 1 *', duration: 1m}]";

/// Starts the agent with these lines in its LimpetConfiguration.
fn start(node: &mut TestNode, lines: &[String]) -> Result<()> {
    let lines = lines.to_vec();
    node.agent.reconfigure(|settings| settings.limpet.extend(lines))?;
    node.agent.start()
}

fn of_image(image: &str) -> Value {
    pod("web", json!({ "containers": [with(shell("main", IDLE), json!({ "image": image }))] }))
}

fn runs(node: &TestNode, image: &str) -> Result<Value> {
    node.wait_pod("web", &format!("ready with {image}"), |pod| {
        let status = container(pod, "main");
        status["ready"] == true && status["image"] == image
    })
}

fn wait_status(node: &TestNode, part: &str) -> Result<()> {
    wait::until_true(wait::SOON, &format!("{part:?} in limpet status"), || {
        node.agent.cli(&["status"]).is_ok_and(|reply| reply.code == Some(0) && reply.stdout.contains(part))
    })
}

fn a_generation_waits_for_an_application_and_for_nothing_else(node: &mut TestNode) -> Result<()> {
    let busy = node.dir().join("busy");
    fs::write(&busy, "")?;
    let generations = "generations: {policy: {file: all}, minReadySeconds: 1}".to_owned();
    start(node, &[generations, format!("updates: {{apply: {{lockFile: {}}}}}", busy.display())])?;
    // Nothing ran before.
    node.apply(&of_image(image::V1))?;
    let before = runs(node, image::V1)?;
    node.apply(&of_image(image::V2))?;
    let waits = format!("the newest version of file waits to be applied: the lock file {} exists", busy.display());
    wait_status(node, &waits)?;
    let sources = node.agent.cli(&["sources"])?.success()?;
    ensure!(sources.contains(&waits), "{sources}");
    let generations = node.agent.cli(&["generations"])?.success()?;
    ensure!(generations.contains("apply is held: the lock file"), "{generations}");
    node.wait_event("the newest version of file waits, apply is held: the lock file")?;
    node.agent.kill();
    node.agent.start()?;
    wait_status(node, &waits)?;
    ensure!(container_id(&runs(node, image::V1)?, "main")? == container_id(&before, "main")?, "restarted meanwhile");
    fs::remove_file(&busy)?;
    runs(node, image::V2)?;
    wait::until_true(wait::SOON, "nothing that waits", || {
        node.agent.cli(&["status"]).is_ok_and(|reply| !reply.stdout.contains("waits to be"))
    })
}

/// A pair for tests alone, in the form of minisign -G -W.
const SECRET: &str = "untrusted comment: test\nRWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAbGltcGV0LWGZpTYsjynE0ao7rN8R7i31a/JxNJjKeQpziamPNXp5xHWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkUioi9CjRJmNDvCXD0+q+1bTyjp4D10lC6fH/W74mAgM4=\n";
const PUBLIC: &str = "RWRsaW1wZXQtYXWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkU";

/// A bundle with a ConfigMap alone.
fn bundle(node: &TestNode, serial: u64) -> Result<PathBuf> {
    let (manifest, out) = (node.dir().join("map.json"), node.dir().join(format!("{serial}.made")));
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" } });
    fs::write(&manifest, map.to_string())?;
    let (key, serial) = (node.dir().join("secret"), serial.to_string());
    let [key, manifest, file] = [&key, &manifest, &out].map(|path| path.display().to_string());
    let arguments = ["bundle", "create", "--name", "plant", "--version", "1.4", "--serial", &serial, "--key", &key];
    node.agent.cli(&[&arguments[..], &["-f", &manifest, "-o", &file]].concat())?.success()?;
    Ok(out)
}

fn a_bundle_waits_for_its_window_and_not_by_hand(node: &mut TestNode) -> Result<()> {
    let (stick, public) = (node.dir().join("stick"), node.dir().join("public"));
    fs::create_dir(&stick)?;
    fs::write(&public, PUBLIC)?;
    fs::write(node.dir().join("secret"), SECRET)?;
    let bundles = format!("bundle: {{keys: [{}], directory: {}}}", public.display(), stick.display());
    start(node, &[bundles, format!("updates: {{apply: {{{NEW_YEAR}}}}}")])?;
    // The first bundle of a node waits for no window.
    fs::rename(bundle(node, 1)?, stick.join("1.limpet"))?;
    let has = |serial: u64| format!("has plant 1.4 serial {serial}");
    let shows =
        |node: &TestNode, part: &str| node.agent.cli(&["sources"]).is_ok_and(|reply| reply.stdout.contains(part));
    wait::until_true(wait::SOON, "the first bundle", || shows(node, &has(1)))?;
    let second = bundle(node, 2)?;
    fs::copy(&second, stick.join("2.part"))?;
    fs::rename(stick.join("2.part"), stick.join("2.limpet"))?;
    wait_status(node, "bundle plant 1.4 serial 2 waits to be applied: the apply window is closed; it opens in ")?;
    ensure!(shows(node, &has(1)), "the bundle was taken outside of its window");
    // What the node has does not wait.
    node.agent.kill();
    node.agent.start()?;
    wait_status(node, "bundle plant 1.4 serial 2 waits to be applied")?;
    let status = node.agent.cli(&["status"])?.success()?;
    ensure!(!status.contains("serial 1 waits"), "{status}");
    node.agent.cli(&["bundle", "apply", &second.display().to_string()])?.success()?;
    ensure!(shows(node, &has(2)), "the bundle was not taken by hand");
    Ok(())
}

const HOST: &str = "registry.test:5000";

fn the_image_of_a_change_waits_and_that_of_a_start_does_not(node: &mut TestNode) -> Result<()> {
    let registry = Registry::start(&node.dir().join("registry"))?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
    let names = ["1", "2"].map(|version| format!("{HOST}/plant/web:{version}"));
    for (version, name) in ["1", "2"].iter().zip(&names) {
        let image = ImageBuilder::new(name).file("version", format!("{version}\n"), 0o644).build()?;
        registry.add(&image, "plant/web", version)?;
    }
    start(node, &[format!("updates: {{download: {{{NEW_YEAR}}}}}")])?;
    node.apply(&of_image(&names[0]))?;
    let before = runs(node, &names[0])?;
    node.apply(&of_image(&names[1]))?;
    node.wait_event(&format!("Image \"{}\" is not pulled yet: the download window is closed until", names[1]))?;
    let during = runs(node, &names[0])?;
    ensure!(container_id(&during, "main")? == container_id(&before, "main")?, "restarted by the change");
    // A container that has ended starts with what is wanted now.
    node.exec("web", "main", &["kill", "-9", "1"]).ok();
    node.exec("web", "main", &["kill", "1"]).ok();
    runs(node, &names[1]).map(drop)
}

fn an_application_decides_by_its_url(node: &mut TestNode) -> Result<()> {
    let (listener, agrees) = (TcpListener::bind("127.0.0.1:0")?, Arc::new(AtomicBool::new(false)));
    let (url, asked) = (format!("http://{}/may-update", listener.local_addr()?), Arc::clone(&agrees));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let status = if asked.load(Ordering::SeqCst) { "204 No Content" } else { "503 Service Unavailable" };
            let read = stream.read(&mut [0; 4096]);
            let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            // A client that has left needs no answer.
            let _ = read.and_then(|_| stream.write_all(answer.as_bytes()));
        }
    });
    let generations = "generations: {policy: {file: all}, minReadySeconds: 1}".to_owned();
    start(node, &[generations, format!("updates: {{apply: {{vetoURL: '{url}'}}}}")])?;
    // An application has a veto also on a node where nothing runs yet.
    agrees.store(true, Ordering::SeqCst);
    node.apply(&of_image(image::V1))?;
    let before = runs(node, image::V1)?;
    agrees.store(false, Ordering::SeqCst);
    node.apply(&of_image(image::V2))?;
    wait_status(node, &format!("waits to be applied: {url} answers with 503 Service Unavailable"))?;
    ensure!(container_id(&runs(node, image::V1)?, "main")? == container_id(&before, "main")?, "restarted meanwhile");
    agrees.store(true, Ordering::SeqCst);
    runs(node, image::V2).map(drop)
}

fn a_metered_link_is_not_used(node: &mut TestNode) -> Result<()> {
    let registry = Registry::start(&node.dir().join("registry"))?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
    let name = format!("{HOST}/plant/web:2");
    registry.add(&ImageBuilder::new(&name).file("version", "2\n", 0o644).build()?, "plant/web", "2")?;
    let metered = node.dir().join("metered");
    fs::write(&metered, "")?;
    let generations = "generations: {policy: {file: all}, minReadySeconds: 1}".to_owned();
    let command = format!("meteredCommand: [/usr/bin/test, -e, {}]", metered.display());
    start(node, &[generations, format!("updates: {{download: {{{command}}}}}")])?;
    node.apply(&of_image(image::V1))?;
    runs(node, image::V1)?;
    node.apply(&of_image(&name))?;
    wait_status(node, "the newest version of file waits to be downloaded: the link is metered")?;
    ensure!(!node.agent.cli(&["images", "ls", "-o", "name"])?.success()?.contains(&name), "it was pulled");
    // A start of the agent asks again, like a change of the network.
    node.agent.kill();
    node.agent.start()?;
    wait_status(node, "waits to be downloaded: the link is metered")?;
    node.agent.kill();
    fs::remove_file(&metered)?;
    node.agent.start()?;
    runs(node, &name).map(drop)
}

fn a_bundle_by_hand_can_wait_for_the_window(node: &mut TestNode) -> Result<()> {
    let (busy, public) = (node.dir().join("busy"), node.dir().join("public"));
    fs::write(&busy, "")?;
    fs::write(&public, PUBLIC)?;
    fs::write(node.dir().join("secret"), SECRET)?;
    let bundles = format!("bundle: {{keys: [{}]}}", public.display());
    start(node, &[bundles, format!("updates: {{apply: {{lockFile: {}}}}}", busy.display())])?;
    let file = bundle(node, 3)?.display().to_string();
    let mut applying = node.agent.cli_command(&["bundle", "apply", "--window", &file])?.spawn()?;
    wait_status(node, "bundle plant 1.4 serial 3 waits to be applied: the lock file")?;
    ensure!(applying.try_wait()?.is_none(), "it did not wait");
    ensure!(!node.agent.cli(&["sources"])?.success()?.contains("has plant"), "it was applied");
    fs::remove_file(&busy)?;
    ensure!(applying.wait()?.success(), "it was refused");
    ensure!(node.agent.cli(&["sources"])?.success()?.contains("has plant 1.4 serial 3"), "it was not applied");
    Ok(())
}

fn downloads_keep_to_the_bandwidth(node: &mut TestNode) -> Result<()> {
    const BYTES: usize = 600 << 10;
    let registry = Registry::start(&node.dir().join("registry"))?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
    let name = format!("{HOST}/plant/large:1");
    let image = ImageBuilder::new(&name).bare().file("noise", noise("large", BYTES), 0o644).build()?;
    registry.add(&image, "plant/large", "1")?;
    start(node, &["updates: {bandwidth: 200Ki}".to_owned()])?;
    let begun = Instant::now();
    node.agent.cli(&["images", "pull", &name])?.success()?;
    // At this rate it takes three seconds, and no machine is faster than the limit lets it be.
    let took = begun.elapsed();
    ensure!(took > Duration::from_secs(2), "600 KiB at 200 KiB/s took {took:?}");
    Ok(())
}

/// Takes the reports that are sent to it: a server for one request per connection.
fn reports() -> Result<(String, Receiver<(String, Value)>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/nodes/{{node}}", listener.local_addr()?);
    let (send, received) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let Some(report) = take_report(stream) else { continue };
            if send.send(report).is_err() {
                return;
            }
        }
    });
    Ok((url, received))
}

/// Head and body of a request.
fn take_report(mut stream: TcpStream) -> Option<(String, Value)> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).ok().filter(|length| *length > 0)?;
    }
    let lower = head.to_ascii_lowercase();
    let length = lower.split("content-length: ").nth(1)?.lines().next()?.trim().parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").ok()?;
    Some((head, serde_json::from_slice(&body).ok()?))
}

fn a_server_gets_the_nodes_newest_report(node: &mut TestNode) -> Result<()> {
    let (url, received) = reports()?;
    start(node, &[format!("updates: {{report: {{url: '{url}', interval: 1s}}}}")])?;
    node.apply(&of_image(image::V1))?;
    runs(node, image::V1)?;
    let is_healthy = |(head, report): &(String, Value)| {
        let name = report["node"].as_str().unwrap_or_default();
        head.starts_with(&format!("PUT /nodes/{name} ")) && report["pods"]["ready"] == 1 && report["healthy"] == true
    };
    let mut last = None;
    let (head, report) = wait::until(wait::SOON, "a report of a healthy node", || {
        last = received.recv_timeout(Duration::from_secs(1)).ok().or(last.take());
        last.clone().filter(is_healthy)
    })
    .with_context(|| format!("the last one: {last:?}"))?;
    ensure!(head.contains("limpet-signature: dW50cnVzdGVkIGNvbW1lbnQ6"), "{head}");
    ensure!(
        report["sources"].as_array().is_some_and(|all| all.iter().any(|source| source["source"] == "file")),
        "{report:#}"
    );
    let root = node.agent.settings().root();
    ensure!(root.join("report.key").exists() && root.join("report.pub").exists());
    wait_status(node, ", sent ")
}
