//! Tools on the node itself: the support bundle, which has everything except secrets, and copies of files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use flate2::read::GzDecoder;
use limpet_tests::claim::Port;
use limpet_tests::image::ImageBuilder;
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::web::Web;
use limpet_tests::{TestNode, case, suite, tools, wait};
use rustix::fs::{Gid, Uid};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_support_bundle_explains_the_node_and_holds_no_secret).on(|node| node.agent = false),
        case!(a_tree_goes_into_a_container_and_comes_back),
        case!(the_status_of_a_node_says_what_needs_attention),
        case!(no_link_leads_a_copy_out_of_a_container_or_of_its_destination),
    ])
}

/// The node is in no cluster.
fn the_status_of_a_node_says_what_needs_attention(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    node.wait_running("web")?;
    let well = node.agent.cli(&["status"])?.success()?;
    ensure!(well.contains("Apiserver:        no apiserver configured") && !well.contains("Needs attention"), "{well}");
    ensure!(well.contains("Pods:             1: 1 running, 1 ready"), "{well}");

    let absent = json!({ "image": "none.example/none:1", "imagePullPolicy": "Never" });
    node.apply(&pod("broken", json!({ "containers": [with(shell("main", IDLE), absent)] })))?;
    node.drop_text("bad.yaml", "kind: Pod")?;
    let document =
        || -> Result<Value> { Ok(serde_json::from_str(&node.agent.cli(&["status", "-o", "json"])?.stdout)?) };
    wait::until_true(wait::SOON, "what needs attention", || {
        document().is_ok_and(|document| document["attention"].as_array().is_some_and(|points| points.len() == 2))
    })?;
    let document = document()?;
    ensure!(document["pods"]["failing"][0]["name"] == node.full_name("broken"), "{document}");
    ensure!(document["apiserver"].is_null() && document["pods"]["ready"] == 1, "{document}");
    let shown = node.agent.cli(&["status"])?;
    ensure!(shown.code == Some(1) && shown.stdout.contains("source file: 1 manifest is rejected"), "{shown:?}");

    node.agent.terminate()?;
    let gone = node.agent.cli(&["status"])?;
    ensure!(gone.code == Some(3), "{gone:?}");
    node.agent.start()
}

/// How every planted secret begins.
const PLANTED: &str = "pl4nted";

fn planted(place: &str) -> String {
    format!("{PLANTED}-{place}")
}

/// Puts a secret into every place of the node that has one. The returned server of the URL has to be kept.
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

/// A pod with secrets wherever its manifest and its programs can have them.
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

/// Makes a bundle, and checks that none of its files has a planted secret.
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
        let leaked = text.find(PLANTED).map(|at| text[at..].chars().take(40).collect::<String>());
        ensure!(leaked.is_none() && !name.contains(PLANTED), "{name} holds {leaked:?}");
    }
    Ok(files)
}

/// Whether the file that begins and ends like this contains `text`.
fn has(files: &BTreeMap<String, String>, begin: &str, end: &str, text: &str) -> Result<()> {
    let member = files.iter().find(|(name, _)| name.starts_with(begin) && name.ends_with(end));
    let (name, contents) = member.with_context(|| format!("no {begin}…{end} among {:?}", files.keys()))?;
    ensure!(contents.contains(text), "no {text:?} in {name}: {contents}");
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
    has(&down, "CONTENTS", "", "missing: the agent's state: pods, events")?;
    has(&down, "logs/containers/", "main/0.log", "a plain line")?;
    has(&down, "machine/cgroups", ".txt", "pids.max")?;
    node.agent.start()
}

fn a_tree_goes_into_a_container_and_comes_back(node: &mut TestNode) -> Result<()> {
    let busybox = fs::read(tools::busybox().context("no busybox")?)?;
    let scratch = ImageBuilder::new("registry.test/scratch:v1").bare().file("busybox", busybox, 0o755).build()?;
    node.import(&[&scratch])?;
    let bare = json!({ "image": scratch.name, "command": ["/busybox", "sleep", "100000"], "workingDir": "/" });
    node.apply(&pod("bare", json!({ "containers": [with(json!({ "name": "main" }), bare)] })))?;
    node.apply(&simple("web", &format!("mkdir -p /in /work; cd /work; {IDLE}")))?;
    node.wait_running("bare")?;
    node.wait_running("web")?;
    let from = node.dir().join("tree");
    let odd = OsStr::from_bytes(b"-odd\n\xff name");
    fs::create_dir_all(from.join(odd))?;
    fs::write(from.join(odd).join("file"), "content\n")?;
    fs::set_permissions(from.join(odd).join("file"), fs::Permissions::from_mode(0o640))?;
    rustix::fs::chown(from.join(odd).join("file"), Some(Uid::from_raw(1234)), Some(Gid::from_raw(5678)))?;
    std::os::unix::fs::symlink("somewhere", from.join("link"))?;
    fs::write(from.join("large"), vec![7; 200 << 20])?;
    let path = |path: &Path| path.to_string_lossy().into_owned();
    for pod in ["web", "bare"] {
        node.agent.cli(&["cp", &path(&from), &format!("{pod}:/in")])?.success()?;
        let inside = if pod == "web" { "/in/tree" } else { "/in" };
        let back = node.dir().join(format!("back-{pod}"));
        let out = node.agent.cli(&["cp", &format!("{pod}:{inside}"), &path(&back)])?;
        ensure!(out.stderr.contains("warning: link is left out: a symlink"), "{out:?}");
        out.success()?;
        ensure!(fs::read(back.join(odd).join("file"))? == b"content\n");
        ensure!(fs::metadata(back.join(odd).join("file"))?.permissions().mode() & 0o777 == 0o640);
        ensure!(fs::read(back.join("large"))? == vec![7; 200 << 20], "the large file differs");
        ensure!(back.join("link").symlink_metadata().is_err());
    }
    let owner =
        node.exec("web", "main", &["sh", "-c", "stat -c '%u:%g %a' /in/tree/*/file; readlink /in/tree/link"])?;
    ensure!(owner == "1234:5678 640\nsomewhere\n", "{owner}");
    // This copies streams, uses a relative path, and does not keep modes.
    node.agent.cli_with_input(&["cp", "-", "web:note"], b"from stdin")?.success()?;
    ensure!(node.exec("web", "main", &["cat", "/work/note"])? == "from stdin");
    ensure!(node.agent.cli(&["cp", "web:/work/note", "-"])?.success()? == "from stdin");
    node.agent.cli(&["cp", "--no-preserve", &path(&from.join("large")), "web:/work/plain"])?.success()?;
    ensure!(node.exec("web", "main", &["stat", "-c", "%u:%g %a %s", "/work/plain"])? == "0:0 644 209715200\n");
    let usage = node.agent.cli(&["cp", "a", "b"])?;
    ensure!(usage.code == Some(2) && usage.stderr.contains("one of FROM and TO"), "{usage:?}");
    let missing = node.agent.cli(&["cp", "web:/absent", "."])?;
    ensure!(missing.code == Some(1) && missing.stderr.contains("/absent"), "{missing:?}");
    Ok(())
}

fn no_link_leads_a_copy_out_of_a_container_or_of_its_destination(node: &mut TestNode) -> Result<()> {
    let victim = node.dir().join("victim");
    fs::write(&victim, "the host's")?;
    let (dir, file) = (node.dir().display().to_string(), victim.display().to_string());
    let script =
        format!("mkdir /t; ln -s {file} /leak; ln -s {dir} /up; ln -s {dir} /t/sub; echo new > /t/file; {IDLE}");
    node.apply(&simple("web", &script))?;
    node.wait_running("web")?;
    wait::until_true(wait::SOON, "the links", || node.exec("web", "main", &["cat", "/t/file"]).is_ok())?;
    let to = node.dir().join("to");
    fs::create_dir(&to)?;
    let to_path = to.display().to_string();
    for inside in ["/leak", "/up/victim", &format!("/../../../../../..{file}")] {
        let read = node.agent.cli(&["cp", &format!("web:{inside}"), &to_path])?;
        ensure!(read.code == Some(1) && fs::read_dir(&to)?.next().is_none(), "{inside}: {read:?}");
    }
    // Into the container: a link is replaced, and a link to a directory is resolved inside.
    let source = node.dir().join("source");
    fs::write(&source, "copied")?;
    let source = source.display().to_string();
    node.agent.cli(&["cp", &source, "web:/leak"])?.success()?;
    ensure!(node.exec("web", "main", &["cat", "/leak"])? == "copied");
    let refused = node.agent.cli(&["cp", &source, "web:/up/written"])?;
    ensure!(refused.code == Some(1) && !node.dir().join("written").exists(), "{refused:?}");
    // Out of the container: its link is left out, and a link in the way on the node is not followed.
    std::os::unix::fs::symlink(&victim, to.join("file"))?;
    node.agent.cli(&["cp", "web:/t/file", &to_path])?.success()?;
    node.agent.cli(&["cp", "web:/t", &to_path])?.success()?;
    ensure!(to.join("t/sub").symlink_metadata().is_err());
    ensure!(fs::read_to_string(to.join("file"))? == "new\n");
    ensure!(fs::read_to_string(&victim)? == "the host's");
    Ok(())
}
