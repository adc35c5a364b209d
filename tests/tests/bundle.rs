//! Signed bundles: made, checked and applied on a node without a registry; refused ones; restarts and power cuts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use limpet_tests::file_server::FileServer;
use limpet_tests::image::{self, Blob, Image, ImageBuilder, noise};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::registry::{self, Proxy, Registry};
use limpet_tests::{TestNode, case, process, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_bundle_runs_on_a_node_without_a_registry).on(without_images),
        case!(a_refused_bundle_changes_nothing).on(without_images),
        case!(a_bundle_survives_a_restart_of_the_agent).on(without_images),
        case!(a_delta_needs_the_layers_of_the_bundle_before).on(without_images),
        case!(a_bundle_in_a_directory_is_taken_when_it_is_whole).on(without_images),
        case!(a_stage_keeps_a_bundle_from_other_nodes_except_by_hand).on(without_images),
        case!(sealed_secrets_are_read_by_their_node_alone).on(without_images),
        case!(a_bundle_of_a_url_is_downloaded_once_across_a_break).on(without_images),
        case!(a_bundle_for_other_nodes_is_not_downloaded).on(without_images),
        case!(a_bundle_of_a_registry_follows_its_tag).on(without_images),
    ])
}

fn without_images(node: &mut limpet_tests::node::NodeOptions) {
    (node.images, node.agent) = (false, false);
}

/// Key pairs that are only for tests, in the form of `minisign -G -W`.
const SECRET: &str = "untrusted comment: test\nRWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAbGltcGV0LWGZpTYsjynE0ao7rN8R7i31a/JxNJjKeQpziamPNXp5xHWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkUioi9CjRJmNDvCXD0+q+1bTyjp4D10lC6fH/W74mAgM4=\n";
const PUBLIC: &str = "RWRsaW1wZXQtYXWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkU";
const FOREIGN_SECRET: &str = "untrusted comment: test\nRWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAbGltcGV0LWLpgBD8jBc/W6CCkH4kJjX9sD1PCi9Y+5cQOBqnG9UeQddWIlka9Cp2pXXE7V1NgyG2IWnqeppSx8YgXg5sI5fHZ6c6JiRpv1spmVYSnbgepa4n5xf003QW9m/caNGy3I8=\n";

/// A workshop that makes bundles for a node.
struct Workshop {
    dir: PathBuf,
}

impl Workshop {
    /// Opens a workshop, lets the node accept its bundles, and starts the agent.
    fn open(node: &mut TestNode, further: &str) -> Result<Self> {
        let dir = node.dir().join("workshop");
        fs::create_dir_all(&dir)?;
        for (name, text) in [("secret", SECRET), ("public", PUBLIC), ("foreign", FOREIGN_SECRET)] {
            fs::write(dir.join(name), text)?;
        }
        let key = dir.join("public");
        let bundle = format!("bundle: {{keys: [{}], maxSize: 64Mi{further}}}", key.display());
        node.agent.reconfigure(|settings| settings.limpet.push(bundle))?;
        node.agent.start()?;
        Ok(Self { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes a bundle of the pod `web` with that image, and of a ConfigMap.
    fn make(&self, node: &TestNode, serial: u64, image: &Image, further: &[&str]) -> Result<PathBuf> {
        self.make_by("secret", node, serial, image, further)
    }

    fn make_by(&self, key: &str, node: &TestNode, serial: u64, image: &Image, further: &[&str]) -> Result<PathBuf> {
        let settings = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" },
            "data": { "serial": serial.to_string() } });
        self.bundle(key, node, serial, (image, json!([web(image), settings])), further)
    }

    /// Makes a bundle of these objects, whose pods have that image.
    fn bundle(
        &self,
        key: &str,
        node: &TestNode,
        serial: u64,
        (image, objects): (&Image, Value),
        further: &[&str],
    ) -> Result<PathBuf> {
        let archive = self.path(&format!("{serial}.tar"));
        image::write_oci_archive(&[image], &archive)?;
        let manifests = self.path(&format!("{serial}.json"));
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        fs::write(&manifests, list.to_string())?;
        let out = self.path(&format!("{serial}.limpet"));
        let (key, serial) = (self.path(key), serial.to_string());
        let [key, manifests, archive, file] = [&key, &manifests, &archive, &out].map(|path| path.display().to_string());
        let mut arguments = vec!["bundle", "create", "--name", "plant", "--version", "1.4", "--serial", &serial];
        arguments.extend(["--key", &key, "-f", &manifests, "--image", &archive, "-o", &file]);
        arguments.extend(further);
        node.agent.cli(&arguments)?.success()?;
        Ok(out)
    }
}

/// The pod of a bundle: it prints the version in its image and the value of its ConfigMap.
fn web(image: &Image) -> Value {
    let command = format!("cat /version /settings/serial; {IDLE}");
    let further = json!({ "image": image.name, "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [{ "name": "settings", "mountPath": "/settings" }] });
    let volumes = json!([{ "name": "settings", "configMap": { "name": "settings" } }]);
    pod("web", json!({ "containers": [with(shell("main", &command), further)], "volumes": volumes }))
}

fn build(version: &str) -> Result<Image> {
    let image = ImageBuilder::new("registry.test/plant/web:v1").file("version", format!("version {version}\n"), 0o644);
    image.file("noise", noise(version, 200_000), 0o644).gzip().build()
}

fn apply(node: &TestNode, bundle: &Path) -> Result<String> {
    node.agent.cli(&["bundle", "apply", &bundle.display().to_string()])?.success()
}

/// The error of `limpet bundle apply` about a refused bundle.
fn refused(node: &TestNode, bundle: &Path) -> Result<String> {
    let reply = node.agent.cli(&["bundle", "apply", &bundle.display().to_string()])?;
    ensure!(reply.code == Some(1), "{} was taken: {}", bundle.display(), reply.stdout);
    Ok(reply.stderr)
}

/// Whether `limpet sources` shows `part`.
fn shows(node: &TestNode, part: &str) -> bool {
    node.agent.cli(&["sources"]).is_ok_and(|reply| reply.stdout.contains(part))
}

fn wait_version(node: &TestNode, version: &str) -> Result<()> {
    node.wait_running("web")?;
    node.wait_logged("web", "main", &format!("version {version}")).map(drop)
}

fn end(node: &TestNode) -> Result<()> {
    // A bundle's pods end with the next bundle.
    let empty = node.dir().join("empty.json");
    fs::write(&empty, json!({ "apiVersion": "v1", "kind": "List", "items": [] }).to_string())?;
    let (key, out) = (node.dir().join("workshop/secret"), node.dir().join("empty.limpet"));
    let [key, empty, file] = [&key, &empty, &out].map(|path| path.display().to_string());
    let serial = u64::MAX.to_string();
    let arguments =
        ["bundle", "create", "--name", "plant", "--version", "none", "--serial", &serial, "--key", &key, "-f", &empty];
    node.agent.cli(&[&arguments[..], &["-o", &file]].concat())?.success()?;
    apply(node, &out)?;
    node.wait_gone("web")
}

fn a_bundle_runs_on_a_node_without_a_registry(node: &mut TestNode) -> Result<()> {
    let workshop = Workshop::open(node, "")?;
    let first = workshop.make(node, 1, &build("1")?, &[])?;
    let key = workshop.path("public").display().to_string();
    let verified = node.agent.cli(&["bundle", "verify", "--key", &key, &first.display().to_string()])?.success()?;
    ensure!(verified.contains("bundle plant 1.4 serial 1 is whole and signed"), "{verified}");
    let page = node.agent.cli(&["bundle", "inspect", &first.display().to_string()])?.success()?;
    for part in ["ConfigMap default/settings", "Pod default/web", "registry.test/plant/web:v1@sha256:", "not checked"] {
        ensure!(page.contains(part), "{part}: {page}");
    }
    let applied = apply(node, &first)?;
    ensure!(applied.contains("bundle plant 1.4 serial 1 applied"), "{applied}");
    wait_version(node, "1")?;
    node.wait_logged("web", "main", "1")?;
    ensure!(apply(node, &first)?.contains("unchanged"));
    let sources = node.agent.cli(&["sources"])?.success()?;
    let line = sources.lines().find(|line| line.starts_with("bundle")).unwrap_or_default();
    ensure!(line.contains("has plant 1.4 serial 1"), "{sources}");
    let pods = node.agent.cli(&["pods"])?.success()?;
    ensure!(pods.contains("bundle plant"), "{pods}");

    apply(node, &workshop.make(node, 2, &build("2")?, &[])?)?;
    wait_version(node, "2")?;
    node.wait_event("BundleApplied")?;
    end(node)
}

fn a_refused_bundle_changes_nothing(node: &mut TestNode) -> Result<()> {
    let workshop = Workshop::open(node, "")?;
    let old = workshop.make(node, 4, &build("4")?, &[])?;
    apply(node, &workshop.make(node, 5, &build("5")?, &[])?)?;
    wait_version(node, "5")?;
    let before = (container_id(&node.wait_running("web")?, "main")?, images(node)?);

    let message = refused(node, &old)?;
    ensure!(message.contains("serial 4 is not higher than 5") && message.contains("reset-serial"), "{message}");
    let whole = fs::read(workshop.make(node, 6, &build("6")?, &[])?)?;
    let damaged = workshop.path("damaged.limpet");
    for (bytes, part) in [
        (whole[..whole.len() / 2].to_vec(), "not what was signed"),
        (whole[..whole.len() - 512].to_vec(), "not what was signed"),
        (whole[..1000].to_vec(), "not a bundle"),
        ([&whole[..], &noise("x", 512)].concat(), "not what was signed"),
        (vec![0; 65 << 20], "bundle.maxSize"),
    ] {
        fs::write(&damaged, bytes)?;
        let message = refused(node, &damaged)?;
        ensure!(message.contains(part), "{part}: {message}");
    }
    let foreign = workshop.make_by("foreign", node, 7, &build("7")?, &[])?;
    let message = refused(node, &foreign)?;
    ensure!(message.contains("none of the keys"), "{message}");
    ensure!(refused(node, &workshop.path("gone"))?.contains("No such file"));
    let uploads = node.agent.settings().root().join("bundle");
    ensure!(fs::read_dir(uploads)?.next().is_none(), "a copy of a refused bundle is left");
    let after = (container_id(&node.wait_running("web")?, "main")?, images(node)?);
    ensure!(before == after, "{before:?} became {after:?}");
    node.wait_event("BundleRefused")?;

    node.agent.cli(&["bundle", "reset-serial"])?.success()?;
    apply(node, &old)?;
    wait_version(node, "4")?;
    end(node)
}

fn a_bundle_in_a_directory_is_taken_when_it_is_whole(node: &mut TestNode) -> Result<()> {
    let stick = node.dir().join("stick");
    fs::create_dir(&stick)?;
    let workshop = Workshop::open(node, &format!(", directory: {}", stick.display()))?;
    let whole = fs::read(workshop.make(node, 1, &build("1")?, &[])?)?;
    let file = stick.join("plant.limpet");
    fs::write(&file, &whole[..whole.len() / 2])?;
    wait::until_true(wait::SOON, "the refusal of half a bundle", || shows(node, "not what was signed"))?;
    fs::write(&file, &whole)?;
    wait_version(node, "1")?;
    wait::until_true(wait::SOON, "no refusal", || !shows(node, "not what was signed"))?;

    // A stick with an older and a newer bundle is mounted there. It is removed before the next start.
    let other = node.dir().join("other");
    fs::create_dir(&other)?;
    fs::copy(workshop.make(node, 3, &build("3")?, &[])?, other.join("b.limpet"))?;
    fs::copy(workshop.make(node, 2, &build("2")?, &[])?, other.join("a.limpet"))?;
    process::checked(Command::new("mount").arg("--bind").arg(&other).arg(&stick))?;
    let taken = wait_version(node, "3");
    process::checked(Command::new("umount").arg(&stick))?;
    taken?;
    node.agent.kill();
    node.agent.start()?;
    wait_version(node, "3")?;
    ensure!(!shows(node, "rejected"), "an older bundle is shown as refused");
    end(node)
}

fn a_stage_keeps_a_bundle_from_other_nodes_except_by_hand(node: &mut TestNode) -> Result<()> {
    let stick = node.dir().join("stick");
    fs::create_dir(&stick)?;
    let workshop = Workshop::open(node, &format!(", directory: {}", stick.display()))?;
    let put = |serial: u64, bundle: &Path| -> Result<()> {
        let part = stick.join("part");
        fs::copy(bundle, &part)?;
        Ok(fs::rename(part, stick.join(format!("{serial}.limpet")))?)
    };
    put(1, &workshop.make(node, 1, &build("1")?, &["--rollout", "100%"])?)?;
    wait_version(node, "1")?;
    let second = workshop.make(node, 2, &build("2")?, &["--rollout", "0%"])?;
    put(2, &second)?;
    let outside = "has plant 1.4 serial 1; plant 1.4 serial 2 is for the first 0 % of the nodes, and this one is at ";
    wait::until_true(wait::SOON, "the stage in limpet sources", || shows(node, outside))?;
    node.wait_event("plant 1.4 serial 2 is for the first 0 % of the nodes")?;
    apply(node, &second)?;
    wait_version(node, "2")?;
    ensure!(shows(node, "has plant 1.4 serial 2") && !shows(node, "of the nodes"), "the stage is still shown");
    end(node)
}

fn sealed_secrets_are_read_by_their_node_alone(node: &mut TestNode) -> Result<()> {
    const VALUE: &str = "the-word-of-the-day";
    let workshop = Workshop::open(node, "")?;
    let public = node.agent.cli(&["bundle", "node-key"])?.success()?;
    let key = node.agent.settings().root().join("node.key");
    ensure!(fs::read_to_string(key.with_extension("pub"))? == public, "{public}");
    let [of_node, stranger, of_stranger] = ["node.pub", "stranger", "stranger.pub"].map(|name| workshop.path(name));
    fs::write(&of_node, &public)?;
    // Keys are those of openssl.
    process::checked(Command::new("openssl").args(["genpkey", "-algorithm", "X25519", "-out"]).arg(&stranger))?;
    let mut pkey = Command::new("openssl");
    process::checked(pkey.args(["pkey", "-pubout", "-in"]).arg(&stranger).arg("-out").arg(&of_stranger))?;
    let image = build("1")?;
    let further = json!({ "image": image.name, "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [{ "name": "token", "mountPath": "/token" }] });
    let script = format!("wc -c < /token/word; {IDLE}");
    let volumes = json!([{ "name": "token", "secret": { "secretName": "token" } }]);
    let web = pod("web", json!({ "containers": [with(shell("main", &script), further)], "volumes": volumes }));
    let token = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "token" }, "stringData": { "word": VALUE } });
    let make = |node: &TestNode, serial: u64, keys: &[&Path]| {
        let keys: Vec<String> = keys.iter().map(|key| format!("--seal-to={}", key.display())).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        workshop.bundle("secret", node, serial, (&image, json!([web, token])), &keys)
    };
    let foreign = make(node, 1, &[&of_stranger])?;
    let message = refused(node, &foreign)?;
    ensure!(message.contains("are sealed to other nodes") && message.contains("bundle node-key"), "{message}");
    let sealed = make(node, 2, &[&of_stranger, &of_node])?;
    let page = node.agent.cli(&["bundle", "inspect", &sealed.display().to_string()])?.success()?;
    ensure!(page.contains("Secret default/token, sealed") && page.contains("Sealed to the keys"), "{page}");
    let value = VALUE.as_bytes();
    ensure!(!fs::read(&sealed)?.windows(value.len()).any(|window| window == value), "the bundle has the value");
    apply(node, &sealed)?;
    node.wait_running("web")?;
    node.wait_logged("web", "main", &VALUE.len().to_string())?;

    // The node keeps its key, and makes another one only when it has none.
    node.agent.kill();
    node.agent.start()?;
    ensure!(node.agent.cli(&["bundle", "node-key"])?.success()? == public, "the key was replaced");
    node.agent.kill();
    fs::remove_file(&key)?;
    node.agent.start()?;
    node.wait_running("web")?;
    ensure!(node.agent.cli(&["bundle", "node-key"])?.success()? != public, "no new key");
    let message = refused(node, &make(node, 3, &[&of_node])?)?;
    ensure!(message.contains("are sealed to other nodes"), "{message}");
    let shown = [node.agent.log(), node.events()?, node.agent.cli(&["sources", "-o", "json"])?.success()?].concat();
    ensure!(!shown.contains(VALUE), "the value is shown");
    end(node)
}

fn a_bundle_of_a_url_is_downloaded_once_across_a_break(node: &mut TestNode) -> Result<()> {
    let server = FileServer::start()?;
    let workshop = Workshop::open(node, &format!(", url: \"{}\", interval: 1s", server.url()))?;
    wait::until_true(wait::SOON, "the missing bundle", || shows(node, "answered 404"))?;
    let whole = fs::read(workshop.make(node, 1, &build("1")?, &[])?)?;
    let half = whole.len() / 2;
    server.serve(whole, Some(half));
    wait_version(node, "1")?;
    wait::until_true(wait::SOON, "the end of the problem", || shows(node, "has plant 1.4 serial 1"))?;
    wait::until_true(wait::SOON, "a conditional request", || {
        server.requests().iter().any(|request| request == "0 304")
    })?;
    // Its first bytes, the rest until the break, and what was missing then.
    let parts: Vec<_> = server.requests().into_iter().filter(|request| request.contains(" 2")).collect();
    ensure!(parts == ["0 206".to_owned(), "1536 206".to_owned(), format!("{half} 206")], "{parts:?}");

    // After a restart it is not downloaded again.
    node.agent.kill();
    node.agent.start()?;
    let known = server.requests().len();
    wait::until_true(wait::SOON, "a request", || server.requests().len() > known)?;
    ensure!(server.requests()[known] == "0 304", "{:?}", server.requests());
    server.serve(fs::read(workshop.make_by("foreign", node, 2, &build("2")?, &[])?)?, None);
    wait::until_true(wait::SOON, "the refusal", || shows(node, "none of the keys"))?;
    // What was refused is not downloaded again until it changes.
    let known = server.requests().len();
    wait::until_true(wait::SOON, "two requests", || server.requests().len() > known + 1)?;
    ensure!(server.requests()[known..].iter().all(|request| request == "0 304"), "{:?}", server.requests());
    server.serve(fs::read(workshop.make(node, 3, &build("3")?, &[])?)?, None);
    wait_version(node, "3")?;
    end(node)
}

/// The bytes that say for which nodes a bundle is.
const FIRST_BYTES: usize = 1536;

fn a_bundle_for_other_nodes_is_not_downloaded(node: &mut TestNode) -> Result<()> {
    let server = FileServer::start()?;
    let workshop = Workshop::open(node, &format!(", url: \"{}\", interval: 1s", server.url()))?;
    apply(node, &workshop.make(node, 5, &build("5")?, &[])?)?;
    wait_version(node, "5")?;
    // Its first bytes are requested, and no others.
    server.serve(fs::read(workshop.make(node, 6, &build("6")?, &["--rollout", "0%"])?)?, None);
    let outside = "has plant 1.4 serial 5; plant 1.4 serial 6 is for the first 0 % of the nodes";
    wait::until_true(wait::SOON, "the stage in limpet sources", || shows(node, outside))?;
    wait::until_true(wait::SOON, "a conditional request", || {
        server.requests().iter().any(|request| request == "0 304")
    })?;
    ensure!(server.sent() == FIRST_BYTES, "{} bytes were sent", server.sent());
    let known = server.requests().len();
    server.serve(fs::read(workshop.make(node, 4, &build("4")?, &[])?)?, None);
    wait::until_true(wait::SOON, "the end of the older one", || {
        server.requests().iter().skip(known).any(|request| request == "0 304")
    })?;
    ensure!(server.sent() == 2 * FIRST_BYTES, "{} bytes were sent", server.sent());
    // What is foreseen is no more than that: the next one is taken.
    server.serve(fs::read(workshop.make(node, 7, &build("7")?, &["--rollout", "100%"])?)?, None);
    wait_version(node, "7")?;
    end(node)
}

/// The tests' registry, as the node knows it.
const HOST: &str = "registry.test:5000";

fn a_bundle_of_a_registry_follows_its_tag(node: &mut TestNode) -> Result<()> {
    let registry = Registry::start(&node.dir().join("registry"))?;
    let proxy = Proxy::start(registry.address())?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, proxy.address())?;
    let workshop = Workshop::open(node, &format!(", image: \"{HOST}/plant/bundle:stable\", interval: 1s"))?;
    let publish = |serial: u64, options: &[&str]| -> Result<String> {
        let file = Blob::new(fs::read(workshop.make(node, serial, &build(&serial.to_string())?, options)?)?);
        let empty = Blob::new(b"{}".to_vec());
        let descriptor = |media_type: &str, blob: &Blob| json!({ "mediaType": media_type, "digest": blob.digest(), "size": blob.bytes.len() });
        let manifest = json!({ "schemaVersion": 2, "mediaType": image::MANIFEST_TYPE,
            "artifactType": "application/vnd.limpet.bundle.v1",
            "config": descriptor("application/vnd.oci.empty.v1+json", &empty),
            "layers": [descriptor("application/vnd.limpet.bundle.v1+tar", &file)] });
        let manifest = Blob::new(manifest.to_string().into_bytes());
        let digest = file.digest();
        registry.add_artifact(&manifest, &[file, empty], "plant/bundle", "stable")?;
        Ok(digest)
    };
    for serial in [1, 2] {
        let layer = publish(serial, &[])?;
        wait_version(node, &serial.to_string())?;
        ensure!(proxy.offsets(&layer) == [0, FIRST_BYTES as u64], "{:?}", proxy.offsets(&layer));
    }
    // Of a bundle for other nodes nothing but the first bytes is requested.
    let layer = publish(3, &["--rollout", "0%"])?;
    wait::until_true(wait::SOON, "the stage in limpet sources", || {
        shows(node, "has plant 1.4 serial 2; plant 1.4 serial 3 is for the first 0 % of the nodes")
    })?;
    ensure!(proxy.offsets(&layer) == [0], "{:?}", proxy.offsets(&layer));
    end(node)
}

fn images(node: &TestNode) -> Result<String> {
    node.agent.cli(&["images", "ls", "-o", "name"])?.success()
}

fn a_bundle_survives_a_restart_of_the_agent(node: &mut TestNode) -> Result<()> {
    let workshop = Workshop::open(node, "")?;
    apply(node, &workshop.make(node, 1, &build("1")?, &[])?)?;
    wait_version(node, "1")?;
    let before = container_id(&node.wait_running("web")?, "main")?;
    node.agent.kill();
    // This is a copy that a power cut has left behind.
    let copy = node.agent.settings().root().join("bundle/incoming.limpet");
    fs::write(&copy, "half")?;
    node.agent.start()?;
    let after = container_id(&node.wait_running("web")?, "main")?;
    ensure!(before == after, "the container was restarted");
    ensure!(apply(node, &workshop.path("1.limpet"))?.contains("unchanged"));
    ensure!(!copy.exists(), "a copy is left");
    end(node)
}

fn a_delta_needs_the_layers_of_the_bundle_before(node: &mut TestNode) -> Result<()> {
    let workshop = Workshop::open(node, "")?;
    let first = workshop.make(node, 1, &build("1")?, &[])?;
    let from = first.display().to_string();
    let second = workshop.make(node, 2, &build("2")?, &["--from", &from])?;
    let sizes = [&first, &second].map(|path| fs::metadata(path).map_or(0, |metadata| metadata.len()));
    ensure!(sizes[1] * 2 < sizes[0], "the delta has {} bytes of {}", sizes[1], sizes[0]);
    let message = refused(node, &second)?;
    ensure!(message.contains("leaves out layers that this node lacks: sha256:"), "{message}");
    ensure!(images(node)?.is_empty(), "{}", images(node)?);
    apply(node, &first)?;
    wait_version(node, "1")?;
    apply(node, &second)?;
    wait_version(node, "2")?;
    end(node)
}
