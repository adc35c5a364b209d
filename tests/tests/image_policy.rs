//! Which images may run: signatures of cosign, digests, containerd's image verifiers.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image::{self, Image, ImageBuilder};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::container;
use limpet_tests::registry::{self, Registry};
use limpet_tests::signature::Signer;
use limpet_tests::{TestNode, case, process, suite, tools};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let mut cases = vec![
        case!(only_what_a_key_has_signed_runs).on(|node| node.agent = false),
        case!(a_signature_is_kept_for_a_node_without_a_network).on(|node| node.agent = false),
        case!(signatures_are_found_by_the_referrers_api).on(|node| node.agent = false),
        case!(containerds_image_verifiers_are_asked_before_a_pull).on(|node| node.agent = false),
    ];
    // This case is only part of `cargo xtask nightly`, because cosign takes minutes to build.
    if tools::cosign().is_some() {
        cases.push(case!(what_cosign_has_signed_runs).on(|node| node.agent = false));
    }
    suite::run(cases)
}

/// The name under which the tests' registry is known to the node.
const HOST: &str = "registry.test:5000";

fn start_registry(node: &TestNode) -> Result<Registry> {
    let registry = Registry::start(&node.dir().join("registry"))?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
    Ok(registry)
}

/// Starts the agent with rules: images of the registry need a signature, and for all others `default` applies.
fn start_agent(node: &mut TestNode, keys: &[&Path], default: &str) -> Result<()> {
    let keys: Vec<_> = keys.iter().map(|key| key.display().to_string()).collect();
    let policy = json!({
        "rules": [{ "images": [format!("{HOST}/**")], "require": "cosign", "keys": keys }],
        "default": { "require": default },
    });
    node.agent.reconfigure(|settings| settings.limpet.push(format!("imagePolicy: {policy}")))?;
    node.agent.start()
}

fn build(repository: &str) -> Result<Image> {
    ImageBuilder::new(&format!("{HOST}/{repository}:v1")).file("name", repository.as_bytes(), 0o644).build()
}

fn pushed(registry: &Registry, repository: &str) -> Result<Image> {
    let image = build(repository)?;
    registry.add(&image, repository, "v1")?;
    Ok(image)
}

fn running(name: &str, image: &str) -> Value {
    pod(name, json!({ "containers": [with(shell("main", IDLE), json!({ "image": image }))] }))
}

/// Waits until the pod's container waits for an image that is refused, and returns the message.
fn refusal(node: &TestNode, name: &str) -> Result<String> {
    let pod = node.wait_pod(name, "refused", |pod| {
        container(pod, "main")["state"]["waiting"]["reason"] == "SignatureValidationFailed"
    })?;
    Ok(container(&pod, "main")["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned())
}

fn only_what_a_key_has_signed_runs(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node)?;
    let (plant, stranger) = (Signer::new(node.dir(), "plant")?, Signer::new(node.dir(), "stranger")?);
    let signed = pushed(&registry, "signed")?;
    plant.payload(&signed, None)?.tag(&registry, "signed", &signed)?;
    let bundled = pushed(&registry, "bundled")?;
    plant.bundle(&bundled)?.refer(&registry, "bundled", &bundled)?;
    let unsigned = pushed(&registry, "unsigned")?;
    let foreign = pushed(&registry, "foreign")?;
    stranger.payload(&foreign, None)?.tag(&registry, "foreign", &foreign)?;
    stranger.bundle(&foreign)?.refer(&registry, "foreign", &foreign)?;
    let tampered = pushed(&registry, "tampered")?;
    plant.payload(&signed, Some(&tampered))?.tag(&registry, "tampered", &tampered)?;
    // The signature of one image is stored under the tag for another one's.
    let replayed = pushed(&registry, "replayed")?;
    plant.payload(&signed, None)?.tag(&registry, "replayed", &replayed)?;
    // The tag was moved from a signed image to another one.
    let before = pushed(&registry, "moved")?;
    plant.payload(&before, None)?.tag(&registry, "moved", &before)?;
    registry.add(&unsigned, "moved", "v1")?;
    // A signed image has its signature under every tag.
    registry.add(&signed, "signed", "stable")?;

    start_agent(node, &[stranger_missing(node).as_path(), plant.public()], "digest")?;
    for (name, image) in
        [("signed", &*signed.name), ("bundled", &*bundled.name), ("stable", &format!("{HOST}/signed:stable"))]
    {
        node.apply(&running(name, image))?;
    }
    let refused = [
        ("unsigned", "no signature found"),
        ("foreign", "made by another key, or changed since"),
        ("tampered", "made by another key, or changed since"),
        ("replayed", "signs another image"),
        ("moved", "no signature found"),
    ];
    for (name, _) in refused {
        node.apply(&running(name, &format!("{HOST}/{name}:v1")))?;
    }
    node.apply(&running("tagged", image::V1))?;
    for (name, cause) in refused {
        let message = refusal(node, name)?;
        let key = format!("{}: ", plant.public().display());
        for part in ["imagePolicy rule 1 (registry.test:5000/**)", &key, cause, "limpet images verify"] {
            ensure!(message.contains(part), "{name}: {part:?} is not in {message:?}");
        }
        node.wait_event(&format!("Failed to pull image \"{HOST}/{name}:v1\""))?;
    }
    ensure!(refusal(node, "tagged")?.contains("name the image by its digest"));
    for name in ["signed", "bundled", "stable"] {
        node.wait_running(name)?;
    }
    let here = node.agent.cli(&["images", "ls", "-o", "name"])?.success()?;
    let expected = ["bundled:v1", "signed:stable", "signed:v1"].map(|name| format!("{HOST}/{name}"));
    let pulled: Vec<_> = here.lines().filter(|name| name.starts_with(HOST)).collect();
    ensure!(pulled.iter().all(|name| expected.iter().any(|known| known == name)), "{here}");
    verdicts_are_shown(node, &signed, &unsigned)
}

/// A key file that does not exist beside one that does.
fn stranger_missing(node: &TestNode) -> std::path::PathBuf {
    node.dir().join("missing.pub")
}

fn verdicts_are_shown(node: &TestNode, signed: &Image, unsigned: &Image) -> Result<()> {
    let shown = node.agent.cli(&["images", "verify", &signed.name])?;
    ensure!(shown.code == Some(0), "{shown:?}");
    for part in [&signed.digest(), "on this node", "missing.pub refused: cannot be read", "plant.pub accepted: signed"]
    {
        ensure!(shown.stdout.contains(part), "{part:?}: {shown:?}");
    }
    let shown = node.agent.cli(&["images", "verify", &unsigned.name])?;
    ensure!(shown.code == Some(1) && shown.stdout.contains("plant.pub refused: no signature found"), "{shown:?}");
    ensure!(shown.stdout.contains("not on this node"), "{shown:?}");
    let document = node.agent.cli(&["images", "verify", image::V1, "-o", "json"])?;
    let verdict: Value = serde_json::from_str(&document.stdout)?;
    ensure!(verdict["policy"]["requirement"] == "digest" && verdict["accepted"] == false, "{verdict}");
    Ok(())
}

fn a_signature_is_kept_for_a_node_without_a_network(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node)?;
    let plant = Signer::new(node.dir(), "plant")?;
    let pulled = pushed(&registry, "pulled")?;
    plant.payload(&pulled, None)?.tag(&registry, "pulled", &pulled)?;
    // The image comes by an archive, and its signature from the registry.
    let carried = pushed(&registry, "carried")?;
    plant.bundle(&carried)?.refer(&registry, "carried", &carried)?;
    let unsigned = build("unsigned")?;
    node.import(&[&carried, &unsigned])?;
    start_agent(node, &[plant.public()], "reject")?;
    node.apply(&running("pulled", &pulled.name))?;
    node.apply(&running("carried", &carried.name))?;
    node.wait_running("pulled")?;
    node.wait_running("carried")?;
    node.apply(&running("unsigned", &unsigned.name))?;
    ensure!(refusal(node, "unsigned")?.contains("no signature found"));

    drop(registry);
    node.agent.kill();
    node.agent.start()?;
    node.apply(&running("again", &pulled.name))?;
    node.apply(&running("carried-again", &carried.name))?;
    node.wait_running("again")?;
    node.wait_running("carried-again")?;

    // The file then has another key, and what the old one has signed is no longer accepted.
    let next = Signer::new(node.dir(), "next")?;
    fs::copy(next.public(), plant.public())?;
    node.apply(&running("third", &pulled.name))?;
    let message = refusal(node, "third")?;
    ensure!(message.contains("made by another key") && message.contains("plant.pub"), "{message}");
    Ok(())
}

/// The registry of the tests lacks the API, so a host is asked first that has nothing else.
fn signatures_are_found_by_the_referrers_api(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node)?;
    let plant = Signer::new(node.dir(), "plant")?;
    let image = pushed(&registry, "referred")?;
    let signature = plant.bundle(&image)?;
    registry.add_artifact(&signature.manifest, &signature.blobs, "referred", "untagged")?;
    let list = Arc::new(String::from_utf8(signature.referrers().bytes)?);
    let path = format!("/v2/referred/referrers/{}", image.digest());
    let lister = serve_list(path, list)?;
    let hosts = node.containerd.certs_d().join(HOST).join("hosts.toml");
    let host = |address: SocketAddr| format!("[host.\"http://{address}\"]\ncapabilities = [\"pull\", \"resolve\"]\n");
    let server = format!("server = \"http://{}\"\n", registry.address());
    fs::write(hosts, server + &host(lister) + &host(registry.address()))?;
    start_agent(node, &[plant.public()], "reject")?;
    node.apply(&running("referred", &image.name))?;
    node.wait_running("referred").map(drop)
}

/// Answers one path with a list and every other one with 404, until the process ends.
fn serve_list(path: String, list: Arc<String>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let Ok(reading) = stream.try_clone() else { continue };
            let head: Vec<String> =
                BufReader::new(reading).lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let asked = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
            let (status, body) = match asked.split('?').next() == Some(&path) {
                true => ("200 OK", list.as_str()),
                false => ("404 Not Found", ""),
            };
            let length = body.len();
            // A client may be gone before the answer.
            let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        }
    });
    Ok(address)
}

fn containerds_image_verifiers_are_asked_before_a_pull(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node)?;
    let (good, bad) = (pushed(&registry, "good")?, pushed(&registry, "bad")?);
    let verifiers = node.dir().join("verifiers");
    fs::create_dir(&verifiers)?;
    let program = verifiers.join("10-by-name");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {log}\ncat >> {log}\ncase \"$2\" in */bad:v1) echo not for this plant; exit 1;; esac\n",
        log = node.dir().join("asked").display()
    );
    fs::write(&program, script)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let configuration = node.dir().join("containerd-of-the-node.toml");
    let table = format!("[plugins.\"io.containerd.image-verifier.v1.bindir\"]\nbin_dir = {verifiers:?}\n");
    fs::write(&configuration, table)?;
    node.agent
        .reconfigure(|settings| settings.limpet.push(format!("containerdConfigFile: {}", configuration.display())))?;
    node.agent.start()?;
    node.apply(&running("good", &good.name))?;
    node.apply(&running("bad", &bad.name))?;
    node.wait_running("good")?;
    let message = refusal(node, "bad")?;
    ensure!(message.contains("10-by-name refused it (exit code 1): not for this plant"), "{message}");
    let asked = fs::read_to_string(node.dir().join("asked"))?;
    let line = format!(
        "-name {} -digest {} -stdin-media-type application/vnd.oci.descriptor.v1+json",
        good.name,
        good.digest()
    );
    ensure!(asked.contains(&line) && asked.contains(&format!("\"digest\":\"{}\"", good.digest())), "{asked}");
    let shown = node.agent.cli(&["images", "verify", &bad.name])?;
    ensure!(shown.code == Some(1) && shown.stdout.contains("not for this plant"), "{shown:?}");
    Ok(())
}

fn what_cosign_has_signed_runs(node: &mut TestNode) -> Result<()> {
    let registry = start_registry(node)?;
    let keys = node.dir().join("keys");
    fs::create_dir(&keys)?;
    let cosign = |arguments: &[&str]| {
        let mut command = Command::new(tools::cosign().context("no cosign here; run: cargo xtask nightly cosign")?);
        command.args(arguments).current_dir(&keys).env("COSIGN_PASSWORD", "").env("HOME", &keys);
        process::checked(&mut command).map(drop)
    };
    cosign(&["generate-key-pair"])?;
    let (old, new, unsigned) = (pushed(&registry, "old")?, pushed(&registry, "new")?, pushed(&registry, "unsigned")?);
    for (image, repository, form) in [(&old, "old", "false"), (&new, "new", "true")] {
        let target = format!("{}/{repository}@{}", registry.address(), image.digest());
        let form = format!("--new-bundle-format={form}");
        let options = ["--key", "cosign.key", "--tlog-upload=false", "--allow-insecure-registry", "--yes"];
        cosign(&[&["sign"][..], &options, &[&form, &target]].concat())?;
    }
    start_agent(node, &[&keys.join("cosign.pub")], "reject")?;
    for (name, image) in [("old", &old), ("new", &new), ("unsigned", &unsigned)] {
        node.apply(&running(name, &image.name))?;
    }
    node.wait_running("old")?;
    node.wait_running("new")?;
    ensure!(refusal(node, "unsigned")?.contains("no signature found"));
    Ok(())
}
