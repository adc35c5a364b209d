//! What helps on the node itself: the support bundle, which says everything and gives no secret away.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use flate2::read::GzDecoder;
use limpet_tests::claim::Port;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::web::Web;
use limpet_tests::{TestNode, case, suite};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([case!(a_support_bundle_explains_the_node_and_holds_no_secret).on(|node| node.agent = false)])
}

/// How every planted secret begins.
const PLANTED: &str = "pl4nted";

fn planted(place: &str) -> String {
    format!("{PLANTED}-{place}")
}

/// Puts a secret into every place of the node that has one. The server of the URL is to be kept.
fn plant(node: &mut TestNode, port: &Port) -> Result<Web> {
    let list = json!({ "apiVersion": "v1", "kind": "PodList", "items": [] });
    let web = Web::start(port, &list.to_string())?;
    let address = format!("127.0.0.1:{}", port.number);
    let url = format!("http://me:{}@{address}/pods?key={}", planted("userinfo"), planted("query"));
    let header = planted("header");
    let settings = node.agent.settings();
    let kubeconfig = settings.dir.join("kubeconfig");
    let cluster = json!({ "server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true });
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "edge",
        "clusters": [{ "name": "edge", "cluster": cluster }],
        "users": [{ "name": "edge", "user": { "token": planted("kubeconfig") } }],
        "contexts": [{ "name": "edge", "context": { "cluster": "edge", "user": "edge" } }],
    });
    fs::write(&kubeconfig, config.to_string())?;
    let hosts = settings.certs_d.join("registry.example");
    fs::create_dir_all(&hosts)?;
    let toml = format!("[host.\"https://registry.example\".header]\nauthorization = \"Basic {}\"\n", planted("hosts"));
    fs::write(hosts.join("hosts.toml"), toml)?;
    fs::create_dir_all(settings.root().join("pki"))?;
    fs::write(settings.root().join("pki/spare.key"), planted("key"))?;
    let auths = json!({ "auths": { "registry.example": { "username": "me", "password": planted("registry") } } });
    fs::write(settings.root().join("config.json"), auths.to_string())?;
    node.agent.reconfigure(|settings| {
        settings.flags.push(format!("--kubeconfig={}", kubeconfig.display()));
        settings.kubelet.push(format!("staticPodURL: {url}\nstaticPodURLHeader: {{X-Token: [{header}]}}"));
    })?;
    Ok(web)
}

fn secret(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data })
}

/// A pod with secrets wherever its manifest and its programs can have one.
fn talkative() -> Value {
    let printed = format!(
        "echo a plain line; echo password={}; echo 'Authorization: Bearer {}'; \
         printf -- '-----BEGIN PRIVATE KEY-----\\n{}\\n-----END PRIVATE KEY-----\\n'; {IDLE}",
        planted("printed"),
        planted("bearer"),
        planted("pem")
    );
    let main = json!({
        "args": [planted("argument")],
        "env": [{ "name": "MODE_OF_MAIN", "value": planted("env") }],
        "envFrom": [{ "secretRef": { "name": "token" } }],
        "volumeMounts": [{ "name": "all", "mountPath": "/all" }],
        "readinessProbe": {
            "exec": { "command": ["/bin/sh", "-c", format!("echo token={}; exit 1", planted("probe"))] },
            "periodSeconds": 1,
        },
        "livenessProbe": { "periodSeconds": 3600, "initialDelaySeconds": 3600, "httpGet": {
            "port": 1, "httpHeaders": [{ "name": "X", "value": planted("probe-header") }] } },
    });
    let spec = json!({
        "containers": [with(shell("main", &printed), main)],
        "imagePullSecrets": [{ "name": "pull" }],
        "volumes": [{ "name": "all", "projected": { "sources": [
            { "secret": { "name": "token" } }, { "configMap": { "name": "settings" } } ] } }],
    });
    let annotation = json!({ "kubectl.kubernetes.io/last-applied-configuration": planted("annotation") });
    with(pod("web", spec), json!({ "metadata": { "annotations": annotation } }))
}

/// The files of an archive, by their names below its one directory.
fn unpacked(path: &Path) -> Result<BTreeMap<String, String>> {
    let mut tar = tar::Archive::new(GzDecoder::new(File::open(path)?));
    let mut files = BTreeMap::new();
    for entry in tar.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.to_string_lossy().into_owned();
        let (_, name) = name.split_once('/').with_context(|| format!("{name} lies in no directory"))?;
        let (name, mut text) = (name.to_owned(), String::new());
        entry.read_to_string(&mut text)?;
        files.insert(name, text);
    }
    Ok(files)
}

/// Makes a bundle; none of its files holds anything planted.
fn bundle(node: &TestNode, name: &str, more: &[&str]) -> Result<BTreeMap<String, String>> {
    let path = node.dir().join(name);
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let (config, file) = (text(&node.agent.settings().config()), text(&path));
    let arguments = [&["support-bundle", "--config", &config, "-o", &file], more].concat();
    let shown = node.agent.cli(&arguments)?.success()?;
    ensure!(shown == format!("{file}\n"), "{shown}");
    let metadata = fs::metadata(&path)?;
    ensure!(metadata.permissions().mode() & 0o777 == 0o600 && metadata.len() < 2 << 20, "{metadata:?}");
    let again = node.agent.cli(&arguments)?;
    ensure!(again.code == Some(2) && again.stderr.contains("exists: name another file"), "{again:?}");
    let files = unpacked(&path)?;
    for (name, text) in &files {
        let found = text.find(PLANTED).map(|at| text[at..].chars().take(40).collect::<String>());
        ensure!(found.is_none() && !name.contains(PLANTED), "{name} holds {found:?}");
    }
    Ok(files)
}

/// Whether the file that begins and ends like this contains `text`.
fn has(files: &BTreeMap<String, String>, begin: &str, end: &str, text: &str) -> Result<()> {
    let found = files.iter().find(|(name, _)| name.starts_with(begin) && name.ends_with(end));
    let (name, found) = found.with_context(|| format!("no {begin}…{end} among {:?}", files.keys()))?;
    ensure!(found.contains(text), "no {text:?} in {name}: {found}");
    Ok(())
}

fn a_support_bundle_explains_the_node_and_holds_no_secret(node: &mut TestNode) -> Result<()> {
    let port = Port::claim()?;
    let _web = plant(node, &port)?;
    node.agent.start()?;
    node.apply(&secret("token", json!({ "TOKEN": planted("secret"), "b": planted("projected") })))?;
    node.apply(&secret(
        "pull",
        json!({ ".dockerconfigjson": format!("{{\"auths\":{{}},\"x\":\"{}\"}}", planted("pull")) }),
    ))?;
    node.apply(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" },
        "data": { "a": planted("config-map") } }))?;
    node.apply(&talkative())?;
    node.wait_logged("web", "main", "END PRIVATE KEY")?;
    node.wait_event("Readiness probe failed")?;
    ensure!(node.logs("web", "main")?.contains(&planted("printed")), "there is something to find");

    let files = bundle(node, "up.tar.gz", &[])?;
    let pod = format!("pods/default/{}", node.full_name("web"));
    for (begin, end, text) in [
        ("CONTENTS", "", "doctor.txt"),
        ("doctor", ".txt", "containerd"),
        ("version", ".json", "podApi"),
        ("sources", ".json", "127.0.0.1"),
        ("configz", ".json", "staticPodURL"),
        ("images.json", "", "registry.test/limpet/demo:v1"),
        ("stats-summary", ".json", "nodeName"),
        ("metrics/agent", ".txt", "limpet_"),
        ("events", ".txt", "Readiness probe failed"),
        ("pods.txt", "", "web"),
        (&pod, ".json", "MODE_OF_MAIN"),
        (&pod, ".txt", "Restart Policy"),
        ("machine/proc-meminfo", ".txt", "MemTotal"),
        ("machine/mounts", ".txt", "/proc"),
        ("machine/cgroups", ".txt", "pids.max"),
        ("machine/space", ".txt", "bytes available"),
        ("logs/containers/", "main/0.log", "a plain line"),
        ("logs/containers/", "main/0.log", "password=<redacted>"),
    ] {
        has(&files, begin, end, text)?;
    }

    let quiet = bundle(node, "quiet.tar.gz", &["--no-logs"])?;
    ensure!(quiet.keys().all(|name| !name.starts_with("logs/containers")), "{:?}", quiet.keys());
    ensure!(!quiet["events.txt"].contains("probe failed"), "{}", quiet["events.txt"]);

    node.agent.kill();
    let down = bundle(node, "down.tar.gz", &[])?;
    has(&down, "CONTENTS", "", "missing: what the agent knows: pods, events")?;
    has(&down, "logs/containers/", "main/0.log", "a plain line")?;
    has(&down, "machine/cgroups", ".txt", "pids.max")?;
    node.agent.start()
}
