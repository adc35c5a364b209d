//! Tests of images with a real containerd and a real registry, both private to each test.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "image/bearer.rs"]
mod bearer;
#[path = "image/node.rs"]
mod node;

use std::iter::repeat;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bearer::Bearer;
use limpet_containerd::image::{ArchiveEvent, ImageError, ImagePlatform, Images, PullAccess, PullStep, RunningPull};
use limpet_model::object::{self, ObjectKind};
use limpet_model::pull_progress::PullProgress;
use limpet_tests::claim::Port;
use limpet_tests::image::{self, Image, ImageBuilder};
use limpet_tests::need;
use limpet_tests::registry::{PASSWORD, Proxy, Registry, USER};
use node::Node;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A layer that does not compress and takes a few round trips.
const BIG: usize = 8 << 20;

/// A node and a registry that everybody may use.
fn start() -> Option<(Node, Registry)> {
    let node = Node::start()?;
    let registry = node.registry(Registry::start)?;
    Some((node, registry))
}

/// An image that is unique for its `seed`, with `size` bytes that do not compress.
fn build(seed: &str, size: usize) -> Image {
    ImageBuilder::new(seed).file("etc/made", image::noise(seed, size), 0o644).gzip().build().unwrap()
}

#[tokio::test]
async fn an_image_is_pulled_unpacked_and_survives_the_collector() {
    let Some((node, registry)) = start() else { return };
    let made = build("pull", 1 << 20);
    registry.add_with_index(&made, "demo/app", "1").unwrap();
    let images = node.images();
    let name = format!("{}/demo/app:1", registry.address());
    assert!(images.find(&name, ImagePlatform::Node).await.unwrap().is_none());

    let image = images.pull(&name).await.unwrap();
    assert_eq!(*image.name, *name);
    assert_eq!(*image.digest, *made.index().digest());
    assert_eq!(*image.chain_id, *made.chain_id());
    assert_eq!(image.config.config().as_ref().unwrap().cmd().as_ref().unwrap(), &["/bin/sh"]);
    assert!(node.leases().await.is_empty(), "{:?}", node.leases().await);

    node.collect_garbage().await;
    // Another agent knows only what is in containerd.
    let stored = node.images().find(&name, ImagePlatform::Node).await.unwrap().unwrap();
    assert_eq!((&stored.chain_id, &stored.digest), (&image.chain_id, &image.digest));
    assert_eq!(stored.size, image.size);
    assert!(node.has_snapshot(&image.chain_id).await);
    let by_digest = format!("elsewhere.example/x@{}", image.digest);
    assert_eq!(node.images().find(&by_digest, ImagePlatform::Node).await.unwrap().unwrap().chain_id, image.chain_id);
    node.assert_file(&image.chain_id, "bin/busybox").await;
    node.assert_file(&image.chain_id, "etc/made").await;
}

#[tokio::test]
async fn an_image_gets_no_layers_of_another_one_by_claiming_them() {
    let Some((node, registry)) = start() else { return };
    let (secret, other) = (build("secret", 1 << 20), build("other", 1 << 20));
    registry.add(&secret, "private/app", "1").unwrap();
    let name = |image: &str| format!("{}/{image}:1", registry.address());
    node.images().pull(&name("private/app")).await.unwrap();

    // A configuration that names the layers of the other image, beside layers of its own.
    let claiming = other.claiming(&secret).unwrap();
    assert_eq!(claiming.chain_id(), secret.chain_id());
    registry.add(&claiming, "evil/claims", "1").unwrap();
    let error = node.images().pull(&name("evil/claims")).await.unwrap_err();
    assert!(error.to_string().contains("layer unpacks to"), "{error}");
    assert!(node.images().find(&name("evil/claims"), ImagePlatform::Node).await.unwrap().is_none());

    // A manifest that names them, in a repository that does not have them.
    let mut without = secret.clone();
    without.layers.clear();
    registry.add(&without, "evil/names", "1").unwrap();
    let error = node.images().pull(&name("evil/names")).await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound { .. }), "{error}");

    // One that has them shares them, and none is downloaded twice.
    registry.add(&secret, "public/app", "1").unwrap();
    let proxy = Proxy::start(registry.address()).unwrap();
    let shared = format!("{}/public/app:1", proxy.address());
    assert_eq!(
        node.images().pull(&shared).await.unwrap().chain_id,
        node.images().pull(&name("private/app")).await.unwrap().chain_id
    );
    assert!(proxy.bytes() < 100_000, "{} bytes served", proxy.bytes());
}

#[tokio::test]
async fn layers_that_another_client_has_unpacked_are_compared_once() {
    let Some((node, registry)) = start() else { return };
    let made = build("compared", 1 << 20);
    registry.add(&made, "demo/app", "1").unwrap();
    let name = format!("{}/demo/app:1", registry.address());
    let image = node.images().pull(&name).await.unwrap();
    let (layer, key) = (made.layers[1].digest(), "containerd.io/uncompressed");
    let known = node.label(&layer, key).await.unwrap();
    // As of a client that does not write it.
    node.set_label(&layer, key, "").await;
    assert_eq!(node.label(&layer, key).await, None);
    node.images().pull(&name).await.unwrap();
    assert_eq!(node.label(&layer, key).await, Some(known));
    assert!(node.has_snapshot(&image.chain_id).await);
    node.assert_file(&image.chain_id, "etc/made").await;
}

#[tokio::test]
async fn content_lost_in_a_power_cut_is_restored() {
    let Some((node, registry)) = start() else { return };
    let made = build("power", 1 << 20);
    registry.add(&made, "demo/app", "1").unwrap();
    let (images, name) = (node.images(), format!("{}/demo/app:1", registry.address()));
    let image = images.pull(&name).await.unwrap();

    node.remove_snapshot(&image.chain_id).await;
    assert!(images.find(&name, ImagePlatform::Node).await.unwrap().is_some());
    assert!(node.has_snapshot(&image.chain_id).await, "content is unpacked again without a registry");

    node.remove_content(&made.config.digest()).await;
    assert!(
        node.images().find(&name, ImagePlatform::Node).await.unwrap().is_none(),
        "an image without its configuration is missing"
    );
    images.pull(&name).await.unwrap();
    assert!(node.images().find(&name, ImagePlatform::Node).await.unwrap().is_some());

    // A partial download whose bytes the disk has lost: the digest shows it, and it is fetched from the beginning.
    let other = build("other", 2 << 20);
    registry.add(&other, "demo/other", "1").unwrap();
    node.leave_ingest(&other.layers[1], &vec![0; 1 << 20]).await;
    images.pull(&format!("{}/demo/other:1", registry.address())).await.unwrap();
}

#[tokio::test]
async fn a_password_is_needed_and_found() {
    let Some(node) = Node::start() else { return };
    let Some(registry) = node.registry(Registry::start_closed) else { return };
    let made = build("password", 1000);
    registry.add(&made, "private/app", "1").unwrap();
    let name = format!("{}/private/app:1", registry.address());

    let error = node.images().pull(&name).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
    assert!(error.to_string().contains("without credentials"), "{error}");

    node.credentials(&registry.address().to_string(), USER, "wr0ng");
    let error = node.images().pull(&name).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
    assert!(!error.to_string().contains("wr0ng") && !format!("{error:?}").contains("wr0ng"), "{error}");
    assert!(node.images().find(&name, ImagePlatform::Node).await.unwrap().is_none());

    node.credentials(&registry.address().to_string(), USER, PASSWORD);
    node.images().pull(&name).await.unwrap();
}

#[tokio::test]
async fn a_bearer_token_is_fetched_once_and_a_registry_without_ranges_resumed() {
    let Some(node) = Node::start() else { return };
    let made = build("bearer", 2 << 20);
    let layer = made.layers[1].clone();
    let login = format!("Basic {}", BASE64.encode(format!("{USER}:{PASSWORD}")));
    let registry = Bearer::start(made, login).await;
    let name = format!("{}/demo/app:1", registry.address);
    let error = node.images().pull(&name).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
    node.credentials(&registry.address, USER, PASSWORD);
    // The beginning is stored; bytes that the registry sends again are skipped.
    node.leave_ingest(&layer, &layer.bytes[..1 << 20]).await;
    node.images().pull(&name).await.unwrap();
    assert_eq!(registry.asked(), ["service=demo&scope=repository%3Ademo%2Fapp%3Apull"; 2]);
}

#[tokio::test]
async fn a_cut_download_continues_where_it_stopped() {
    let Some((node, registry)) = start() else { return };
    let made = build("cut", BIG);
    registry.add(&made, "demo/big", "1").unwrap();
    let proxy = Proxy::start(registry.address()).unwrap();
    proxy.cut_after([3 << 20]);
    let name = format!("{}/demo/big:1", proxy.address());
    node.images().pull(&name).await.unwrap();
    let layer = &made.layers[1].digest();
    assert!(proxy.offsets(layer).last().unwrap() > &0, "{:?}", proxy.offsets(layer));
    assert!(proxy.bytes() < 2 * BIG as u64, "{} bytes served", proxy.bytes());
}

#[tokio::test]
async fn a_download_that_fails_is_continued_by_the_next_agent() {
    let Some((mut node, registry)) = start() else { return };
    let made = build("restart", BIG);
    registry.add(&made, "demo/big", "1").unwrap();
    let proxy = Proxy::start(registry.address()).unwrap();
    let name = format!("{}/demo/big:1", proxy.address());
    // Enough for the first attempt alone; then every connection is cut at once.
    proxy.cut_after(std::iter::once(5 << 20).chain(repeat(0)));
    let error = node.images().pull(&name).await.unwrap_err();
    assert!(matches!(error, ImageError::Cut { .. }), "{error}");
    assert_eq!(error.reason(), "ErrImagePull");
    node.collect_garbage().await;
    node.restart_containerd();

    proxy.heal();
    let before = proxy.offsets(&made.layers[1].digest()).len();
    node.images().pull(&name).await.unwrap();
    let offsets = proxy.offsets(&made.layers[1].digest());
    assert!(offsets[before] > 0, "the new agent asks for the rest: {offsets:?}");
    assert!(proxy.bytes() < 2 * BIG as u64, "{} bytes served", proxy.bytes());
    assert!(node.leases().await.is_empty());
}

#[tokio::test]
async fn a_dropped_pull_stops_and_may_be_forgotten() {
    let Some((node, registry)) = start() else { return };
    let made = build("forgotten", BIG);
    registry.add(&made, "demo/big", "1").unwrap();
    let proxy = Proxy::start(registry.address()).unwrap();
    proxy.cut_after(repeat(1 << 20));
    let (images, name) = (node.images(), format!("{}/demo/big:1", proxy.address()));
    let cut = tokio::task::spawn_blocking(move || proxy.wait_cut());
    tokio::select! {
        _ = images.pull(&name) => panic!("pulled through a cut"),
        cut = cut => cut.unwrap().unwrap(),
    }
    assert_eq!(node.leases().await.len(), 1);
    images.forget_unwanted(|wanted| wanted == name).await.unwrap();
    assert_eq!(node.leases().await.len(), 1);
    images.forget_unwanted(|_| false).await.unwrap();
    assert!(node.leases().await.is_empty());
}

#[tokio::test]
async fn missing_images_have_distinct_errors() {
    let Some((node, registry)) = start() else { return };
    let images = node.images();
    let error = images.pull(&format!("{}/no/such:1", registry.address())).await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound { .. }), "{error}");
    assert!(error.to_string().contains("failed to pull image") && error.to_string().contains("not found"), "{error}");
    assert!(node.leases().await.is_empty());
    let silent = Port::claim().unwrap();
    let error = images.pull(&format!("127.0.0.1:{}/a:1", silent.number)).await.unwrap_err();
    assert!(matches!(error, ImageError::Unreachable { .. }), "{error}");
    let error = images.pull("Not A Name").await.unwrap_err();
    assert_eq!(error.reason(), "InvalidImageName");
    // An image for other machines only.
    registry.add_index(&image::foreign_index(), "demo/foreign", "1").unwrap();
    let error = images.pull(&format!("{}/demo/foreign:1", registry.address())).await.unwrap_err();
    assert!(error.to_string().contains("no manifest for wasi/wasm or linux/"), "{error}");
}

#[tokio::test]
async fn a_mirror_stands_in_for_the_registry() {
    let Some((node, registry)) = start() else { return };
    let made = build("mirror", 1000);
    registry.add(&made, "library/app", "1").unwrap();
    let silent = Port::claim().unwrap();
    let dead = format!("127.0.0.1:{}", silent.number);
    let hosts = format!(
        "server = \"http://{dead}\"\n[host.\"http://{dead}\"]\n[host.\"http://{}\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
        registry.address()
    );
    node.hosts_toml("docker.io", &hosts);
    let image = node.images().pull("app:1").await.unwrap();
    assert_eq!(&*image.name, "docker.io/library/app:1");
    assert!(node.images().find("docker.io/library/app:1", ImagePlatform::Node).await.unwrap().is_some());
    node.hosts_toml("docker.io", "server = \"ftp://x\"");
    let error = node.images().pull("app:1").await.unwrap_err();
    assert!(matches!(error, ImageError::Config { .. }), "{error}");
}

#[tokio::test]
async fn tls_is_verified_by_the_authority_in_certs_d() {
    let (Some(node), Some(_)) = (Node::start(), need::program("openssl")) else { return };
    let Some(registry) = node.registry(Registry::start_tls) else { return };
    let made = build("tls", 1000);
    registry.add(&made, "demo/app", "1").unwrap();
    // A name that is not loopback: there the certificate counts.
    let name = "tls.example/demo/app:1";
    node.hosts_toml("tls.example", &format!("server = \"https://{}\"", registry.address()));
    let error = node.images().pull(name).await.unwrap_err();
    assert!(matches!(error, ImageError::Unreachable { .. }), "{error}");
    let ca = registry.certificate().display().to_string();
    node.hosts_toml("tls.example", &format!("server = \"https://{}\"\nca = {ca:?}", registry.address()));
    node.images().pull(name).await.unwrap();
    let other = build("tls-unverified", 1000);
    registry.add(&other, "demo/other", "1").unwrap();
    node.hosts_toml("tls.example", &format!("server = \"https://{}\"\nskip_verify = true", registry.address()));
    node.images().pull("tls.example/demo/other:1").await.unwrap();
    // As containerd: an http URL with settings for TLS, and a loopback port, may have TLS.
    for (repository, name) in [("by-url", "tls.example".to_owned()), ("by-port", registry.address().to_string())] {
        registry.add(&build(repository, 1000), repository, "1").unwrap();
        node.hosts_toml("tls.example", &format!("server = \"http://{}\"\nca = {ca:?}", registry.address()));
        node.images().pull(&format!("{name}/{repository}:1")).await.unwrap();
    }
}

#[tokio::test]
async fn two_pods_share_one_pull() {
    let Some((node, registry)) = start() else { return };
    let made = build("shared", BIG);
    registry.add(&made, "demo/big", "1").unwrap();
    let proxy = Proxy::start(registry.address()).unwrap();
    let (images, name) = (node.images(), format!("{}/demo/big:1", proxy.address()));
    let (first, other) = tokio::join!(images.pull(&name), images.pull(&name));
    assert!(std::sync::Arc::ptr_eq(&first.unwrap(), &other.unwrap()));
    assert_eq!(proxy.offsets(&made.layers[1].digest()), [0]);
}

#[tokio::test]
async fn a_pull_reports_its_progress() {
    let Some((node, registry)) = start() else { return };
    let made = build("progress", BIG);
    registry.add(&made, "demo/big", "1").unwrap();
    let (images, name) = (node.images(), format!("{}/demo/big:1", registry.address()));
    let seen = steps(images.start_pull(&name, PullAccess::default()).unwrap()).await;
    let total: u64 = made.layers.iter().map(|layer| layer.bytes.len() as u64).sum();
    let last = PullProgress { done: total, total, layers: 2, downloaded: 2, unpacked: 2 };
    assert_eq!(seen.last(), Some(&last), "{seen:?}");
}

/// How far a pull was until it succeeded.
async fn steps(mut pull: RunningPull) -> Vec<PullProgress> {
    let mut seen = Vec::new();
    loop {
        match pull.next().await {
            PullStep::Progress(progress) => seen.push(progress),
            PullStep::Ended(result) => {
                result.unwrap();
                return seen;
            }
        }
    }
}

#[tokio::test]
async fn a_pull_that_waits_for_another_one_shows_its_progress() {
    let Some((node, registry)) = start() else { return };
    let made = build("waiting", BIG);
    registry.add(&made, "demo/big", "1").unwrap();
    let (images, name) = (node.images(), format!("{}/demo/big:1", registry.address()));
    let first = images.start_pull(&name, PullAccess::default()).unwrap();
    // Another pod's secret: it pulls for itself, after the first.
    let secret = json!({"kind": "Secret", "metadata": {"name": "pull"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": "{}"}});
    let (secret, _) = object::decode(&secret, ObjectKind::Secret, "pull.yaml".into());
    let access = PullAccess { secrets: [Arc::new(secret.unwrap())].into(), ..PullAccess::default() };
    let second = images.start_pull(&name, access).unwrap();
    let (first, second) = tokio::join!(steps(first), steps(second));
    let all = first.last().unwrap();
    let shown = second.iter().filter(|progress| *progress == all).count();
    assert_eq!(shown, 2, "the first pull's end and its own: {second:?}");
}

#[tokio::test]
async fn layers_are_downloaded_side_by_side_and_unpacked_in_their_order() {
    let Some((node, registry)) = start() else { return };
    let made = build("layers", 1 << 20);
    registry.add(&made, "demo/layers", "1").unwrap();
    let proxy = Proxy::start(registry.address()).unwrap();
    let [lower, upper] = [0, 1].map(|index| format!("/blobs/{}", made.layers[index].digest()));
    let (images, name) = (node.images(), format!("{}/demo/layers:1", proxy.address()));
    proxy.hold(&lower);
    let pull = tokio::spawn(steps(images.start_pull(&name, PullAccess::default()).unwrap()));
    let asked = proxy.clone();
    tokio::task::spawn_blocking(move || asked.wait_request(&upper)).await.unwrap().unwrap();
    // The upper layer arrives, but nothing is below it yet.
    let mut seen = images.start_pull(&name, PullAccess::default()).unwrap();
    wait_for(&mut seen, |progress| progress.downloaded == 1 && progress.unpacked == 0).await;
    proxy.release();
    let seen = pull.await.unwrap();
    assert_eq!(seen.last().unwrap().unpacked, 2, "{seen:?}");
}

#[tokio::test]
async fn a_layer_is_unpacked_while_the_next_is_downloaded() {
    let Some((node, registry)) = start() else { return };
    let made = build("unpacked", 1 << 20);
    registry.add(&made, "demo/layers", "1").unwrap();
    let proxy = Proxy::start(registry.address()).unwrap();
    let (images, name) = (node.images(), format!("{}/demo/layers:1", proxy.address()));
    proxy.hold(&format!("/blobs/{}", made.layers[1].digest()));
    let mut pull = images.start_pull(&name, PullAccess::default()).unwrap();
    wait_for(&mut pull, |progress| progress.downloaded == 1 && progress.unpacked == 1).await;
    proxy.release();
    let seen = steps(pull).await;
    assert_eq!(seen.last().unwrap().unpacked, 2, "{seen:?}");
    node.collect_garbage().await;
    assert!(node.images().find(&name, ImagePlatform::Node).await.unwrap().is_some());
}

async fn wait_for(pull: &mut RunningPull, is_so: impl Fn(&PullProgress) -> bool) {
    loop {
        match pull.next().await {
            PullStep::Progress(progress) if is_so(&progress) => return,
            PullStep::Progress(_) => {}
            PullStep::Ended(result) => panic!("ended before: {result:?}"),
        }
    }
}

#[tokio::test]
async fn a_full_disk_is_named_and_recovers() {
    let Some(node) = Node::start_on(24 << 20) else { return };
    let Some(registry) = node.registry(Registry::start) else { return };
    let made = build("full", 32 << 20);
    registry.add(&made, "demo/big", "1").unwrap();
    let name = format!("{}/demo/big:1", registry.address());
    let error = node.images().pull(&name).await.unwrap_err();
    assert!(matches!(error, ImageError::DiskFull { .. }), "{error}");
    assert!(error.is_transient());
    node.resize(256 << 20);
    node.images().pull(&name).await.unwrap();
}

/// Runs the import until `stop`, and returns its events.
fn importing(
    images: &Images,
    stop: &CancellationToken,
) -> (tokio::task::JoinHandle<()>, mpsc::UnboundedReceiver<ArchiveEvent>) {
    let (images, stop) = (images.clone(), stop.clone());
    let (sender, events) = mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        images.import_archives_with(stop, move |event| sender.send(event).unwrap()).await;
    });
    (task, events)
}

fn imported(event: ArchiveEvent) -> (PathBuf, Vec<String>) {
    match event {
        ArchiveEvent::Imported { path, images } => (path, images),
        ArchiveEvent::Failed { error, .. } => panic!("{error}"),
    }
}

#[tokio::test]
async fn archives_are_imported_pinned_and_not_read_again() {
    let Some(node) = Node::start() else { return };
    let made = ["docker", "linked", "oci", "gz", "zst", "crane"].map(|form| {
        let name = format!("docker.io/library/{form}:1");
        let plain = ImageBuilder::new(&name).file("etc/made", image::noise(form, 300_000), 0o644);
        if matches!(form, "oci" | "zst" | "crane") { plain.gzip() } else { plain }.build().unwrap()
    });
    let [docker, linked, oci, gz, zst, crane] = made.each_ref();
    let dir = node.archives();
    image::write_docker_archive(&[docker, linked], &dir.join("a.tar")).unwrap();
    image::write_oci_archive_of_indexes(&[oci], &dir.join("b.tar")).unwrap();
    image::write_docker_archive(&[gz], &node.scratch("c.tar")).unwrap();
    node.compress("gzip", "c.tar", &dir.join("c.tar.gz"));
    image::write_oci_archive_of_indexes(&[zst], &node.scratch("d.tar")).unwrap();
    node.compress("zstd", "d.tar", &dir.join("d.tar.zst"));
    image::write_crane_archive(&[crane], &dir.join("d2.tar")).unwrap();
    std::fs::write(dir.join("e.tar"), b"no tar at all").unwrap();
    std::fs::write(dir.join("notes.txt"), b"not looked at").unwrap();

    let stop = CancellationToken::new();
    let images = node.images();
    let (task, mut events) = importing(&images, &stop);
    images.archives_ready().await;
    for archive in [&[docker, linked][..], &[oci], &[gz], &[zst], &[crane]] {
        let names: Vec<_> = archive.iter().map(|image| image.name.clone()).collect();
        assert_eq!(imported(events.recv().await.unwrap()).1, names);
    }
    assert!(matches!(events.recv().await.unwrap(), ArchiveEvent::Failed { path, .. } if path == dir.join("e.tar")));
    node.collect_garbage().await;
    for made in &made {
        let image = node.images().find(&made.name, ImagePlatform::Node).await.unwrap().unwrap();
        assert_eq!(*image.chain_id, *made.chain_id());
        assert!(node.is_pinned(&made.name).await);
        node.assert_file(&image.chain_id, "bin/busybox").await;
    }
    assert!(node.leases().await.is_empty());

    // One that is copied there, one that is moved there, and the invalid one repaired.
    let late = |tag: u32| {
        ImageBuilder::new(&format!("late:{tag}"))
            .file("etc/made", image::noise("late", 300_000), 0o644)
            .build()
            .unwrap()
    };
    image::write_docker_archive(&[&late(1)], &node.scratch("f")).unwrap();
    std::fs::copy(node.scratch("f"), dir.join("f.tar")).unwrap();
    assert_eq!(imported(events.recv().await.unwrap()).1, ["docker.io/library/late:1"]);
    image::write_oci_archive_of_indexes(&[&late(2)], &node.scratch("g")).unwrap();
    std::fs::rename(node.scratch("g"), dir.join("g.tar")).unwrap();
    assert_eq!(imported(events.recv().await.unwrap()).1, ["docker.io/library/late:2"]);
    image::write_oci_archive_of_indexes(&[&late(3)], &node.scratch("h")).unwrap();
    std::fs::copy(node.scratch("h"), dir.join("e.tar")).unwrap();
    assert_eq!(imported(events.recv().await.unwrap()).1, ["docker.io/library/late:3"]);
    stop.cancel();
    task.await.unwrap();

    // The next start finds everything imported.
    let (stop, images) = (CancellationToken::new(), node.images());
    let (task, mut events) = importing(&images, &stop);
    images.archives_ready().await;
    stop.cancel();
    task.await.unwrap();
    assert!(events.recv().await.is_none(), "an unchanged archive is not imported again");
}
