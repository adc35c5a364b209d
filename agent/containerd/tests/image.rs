//! Tests of images with a real containerd and a real registry, both private to each test.
//!
//! Needs root, containerd 1.7 or later (`LIMPET_CONTAINERD_BIN` or `PATH`) and docker-registry; without them each test
//! says so and is skipped, or fails under `cargo xtask test`.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "image/bearer.rs"]
mod bearer;
#[path = "image/made.rs"]
mod made;
#[path = "image/node.rs"]
mod node;
#[path = "image/proxy.rs"]
mod proxy;
#[path = "image/registry.rs"]
mod registry;

use std::path::PathBuf;

use bearer::Bearer;
use limpet_containerd::image::{ArchiveEvent, ImageError, Images, PullProgress};
use made::Made;
use node::Node;
use proxy::Proxy;
use registry::Registry;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A layer that does not compress and takes a few round trips.
const BIG: usize = 8 << 20;

/// Returns from the test, saying why, when the machine lacks what it needs; fails where that has to be there.
macro_rules! need {
    ($what:expr) => {
        match limpet_tests::need::need($what) {
            Some(value) => value,
            None => return,
        }
    };
}

#[tokio::test]
async fn an_image_is_pulled_unpacked_and_survives_the_collector() {
    let (node, registry) = (need!(Node::start().await), need!(Registry::start().await));
    let made = Made::new("pull", 1 << 20);
    registry.push_index("demo/app", "1", &made).await;
    let images = node.images();
    let name = format!("{}/demo/app:1", registry.address);
    assert!(images.find(&name).await.unwrap().is_none());

    let image = images.pull(&name).await.unwrap();
    assert_eq!(*image.name, *name);
    assert_eq!(*image.digest, *made.index_digest());
    assert_eq!(*image.chain_id, *made.chain_id());
    assert_eq!(image.config.config().as_ref().unwrap().cmd().as_ref().unwrap(), &["sh"]);
    assert!(node.leases().await.is_empty(), "{:?}", node.leases().await);

    node.collect_garbage().await;
    // Another agent knows only what is in containerd.
    let found = node.images().find(&name).await.unwrap().unwrap();
    assert_eq!((&found.chain_id, &found.digest), (&image.chain_id, &image.digest));
    assert_eq!(found.size, image.size);
    assert!(node.has_snapshot(&image.chain_id).await);
    let by_digest = format!("elsewhere.example/x@{}", image.digest);
    assert_eq!(node.images().find(&by_digest).await.unwrap().unwrap().chain_id, image.chain_id);
    node.assert_file(&image.chain_id, "bin/busybox").await;
    node.assert_file(&image.chain_id, "etc/made").await;
}

#[tokio::test]
async fn content_lost_in_a_power_cut_is_restored() {
    let (node, registry) = (need!(Node::start().await), need!(Registry::start().await));
    let made = Made::new("power", 1 << 20);
    registry.push("demo/app", "1", &made).await;
    let (images, name) = (node.images(), format!("{}/demo/app:1", registry.address));
    let image = images.pull(&name).await.unwrap();

    node.remove_snapshot(&image.chain_id).await;
    assert!(images.find(&name).await.unwrap().is_some());
    assert!(node.has_snapshot(&image.chain_id).await, "content is unpacked again without a registry");

    node.remove_content(&made.config_digest()).await;
    assert!(node.images().find(&name).await.unwrap().is_none(), "an image without its configuration is missing");
    images.pull(&name).await.unwrap();
    assert!(node.images().find(&name).await.unwrap().is_some());

    // A partial download whose bytes the disk has lost: the digest shows it, and it is fetched from the beginning.
    let other = Made::new("other", 2 << 20);
    registry.push("demo/other", "1", &other).await;
    node.leave_ingest(&other.layers[1], &vec![0; 1 << 20]).await;
    images.pull(&format!("{}/demo/other:1", registry.address)).await.unwrap();
}

#[tokio::test]
async fn a_password_is_needed_and_found() {
    let node = need!(Node::start().await);
    let registry = need!(Registry::start_closed().await);
    let made = Made::new("password", 1000);
    registry.push("private/app", "1", &made).await;
    let name = format!("{}/private/app:1", registry.address);

    let error = node.images().pull(&name).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
    assert!(error.to_string().contains("without credentials"), "{error}");

    node.credentials(&registry.address, "limpet", "wr0ng");
    let error = node.images().pull(&name).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
    assert!(!error.to_string().contains("wr0ng") && !format!("{error:?}").contains("wr0ng"), "{error}");
    assert!(node.images().find(&name).await.unwrap().is_none());

    node.credentials(&registry.address, "limpet", "s3cret");
    node.images().pull(&name).await.unwrap();
}

#[tokio::test]
async fn a_bearer_token_is_fetched_once_and_a_registry_without_ranges_resumed() {
    let node = need!(Node::start().await);
    let made = Made::new("bearer", 2 << 20);
    let layer = made.layers[1].clone();
    let registry = Bearer::start(made, Some("Basic bGltcGV0OnMzY3JldA==")).await;
    let name = format!("{}/demo/app:1", registry.address);
    let error = node.images().pull(&name).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
    node.credentials(&registry.address, "limpet", "s3cret");
    // The beginning is stored; bytes that the registry sends again are skipped.
    node.leave_ingest(&layer, &layer.bytes[..1 << 20]).await;
    node.images().pull(&name).await.unwrap();
    assert_eq!(registry.asked(), ["service=demo&scope=repository%3Ademo%2Fapp%3Apull"; 2]);
}

#[tokio::test]
async fn a_cut_download_continues_where_it_stopped() {
    let (node, registry) = (need!(Node::start().await), need!(Registry::start().await));
    let made = Made::new("cut", BIG);
    registry.push("demo/big", "1", &made).await;
    let proxy = Proxy::start(&registry.address).await;
    proxy.cut_after(3 << 20, 1);
    let name = format!("{}/demo/big:1", proxy.address);
    node.images().pull(&name).await.unwrap();
    let layer = &made.layers[1].digest;
    assert!(proxy.offsets(layer).last().unwrap() > &0, "{:?}", proxy.offsets(layer));
    assert!(proxy.served() < 2 * BIG as u64, "{} bytes served", proxy.served());
}

#[tokio::test]
async fn a_download_that_fails_is_continued_by_the_next_agent() {
    let (node, registry) = (need!(Node::start().await), need!(Registry::start().await));
    let made = Made::new("restart", BIG);
    registry.push("demo/big", "1", &made).await;
    let proxy = Proxy::start(&registry.address).await;
    let name = format!("{}/demo/big:1", proxy.address);
    // Enough for the first attempt alone; then every connection is cut at once.
    proxy.cut_after(5 << 20, usize::MAX);
    let error = {
        let images = node.images();
        let pull = images.pull(&name);
        tokio::pin!(pull);
        tokio::select! {
            outcome = &mut pull => outcome.map(drop),
            () = proxy.cut_happened() => {
                proxy.cut_after(0, usize::MAX);
                pull.await.map(drop)
            }
        }
    };
    let error = error.unwrap_err();
    assert!(matches!(error, ImageError::Cut { .. }), "{error}");
    assert_eq!(error.reason(), "ErrImagePull");
    node.collect_garbage().await;
    node.restart_containerd().await;

    proxy.heal();
    let before = proxy.offsets(&made.layers[1].digest).len();
    node.images().pull(&name).await.unwrap();
    let offsets = proxy.offsets(&made.layers[1].digest);
    assert!(offsets[before] > 0, "the new agent asks for the rest: {offsets:?}");
    assert!(proxy.served() < 2 * BIG as u64, "{} bytes served", proxy.served());
    assert!(node.leases().await.is_empty());
}

#[tokio::test]
async fn a_dropped_pull_stops_and_may_be_forgotten() {
    let (node, registry) = (need!(Node::start().await), need!(Registry::start().await));
    let made = Made::new("forgotten", BIG);
    registry.push("demo/big", "1", &made).await;
    let proxy = Proxy::start(&registry.address).await;
    proxy.cut_after(1 << 20, usize::MAX);
    let (images, name) = (node.images(), format!("{}/demo/big:1", proxy.address));
    tokio::select! {
        _ = images.pull(&name) => panic!("pulled through a cut"),
        () = proxy.cut_happened() => {}
    }
    assert!(images.progress(&name).is_none());
    assert_eq!(node.leases().await.len(), 1);
    images.forget_unwanted(|wanted| wanted == name).await.unwrap();
    assert_eq!(node.leases().await.len(), 1);
    images.forget_unwanted(|_| false).await.unwrap();
    assert!(node.leases().await.is_empty());
}

#[tokio::test]
async fn missing_images_have_distinct_errors() {
    let (node, registry) = (need!(Node::start().await), need!(Registry::start().await));
    let images = node.images();
    let error = images.pull(&format!("{}/no/such:1", registry.address)).await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound { .. }), "{error}");
    assert!(error.to_string().contains("failed to pull image") && error.to_string().contains("not found"), "{error}");
    assert!(node.leases().await.is_empty());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = images.pull(&format!("{free}/a:1")).await.unwrap_err();
    assert!(matches!(error, ImageError::Unreachable { .. }), "{error}");
    let error = images.pull("Not A Name").await.unwrap_err();
    assert_eq!(error.reason(), "InvalidImageName");
    // An image for other machines only.
    let made = Made::new("foreign", 1000);
    registry.push_foreign("demo/foreign", "1", &made).await;
    let error = images.pull(&format!("{}/demo/foreign:1", registry.address)).await.unwrap_err();
    assert!(error.to_string().contains("no manifest for linux/"), "{error}");
}

#[tokio::test]
async fn a_mirror_stands_in_for_the_registry() {
    let (node, registry) = (need!(Node::start().await), need!(Registry::start().await));
    let made = Made::new("mirror", 1000);
    registry.push("library/app", "1", &made).await;
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hosts = format!(
        "server = \"http://{dead}\"\n[host.\"http://{dead}\"]\n[host.\"http://{}\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
        registry.address
    );
    node.hosts_toml("docker.io", &hosts);
    let image = node.images().pull("app:1").await.unwrap();
    assert_eq!(&*image.name, "docker.io/library/app:1");
    assert!(node.images().find("docker.io/library/app:1").await.unwrap().is_some());
    node.hosts_toml("docker.io", "server = \"ftp://x\"");
    let error = node.images().pull("app:1").await.unwrap_err();
    assert!(matches!(error, ImageError::Config { .. }), "{error}");
}

#[tokio::test]
async fn tls_is_verified_by_the_authority_in_certs_d() {
    let (node, registry) = (need!(Node::start().await), need!(Registry::start_tls().await));
    let made = Made::new("tls", 1000);
    registry.push("demo/app", "1", &made).await;
    // A name that is not loopback: there the certificate counts.
    let name = "tls.example/demo/app:1";
    node.hosts_toml("tls.example", &format!("server = \"https://{}\"", registry.address));
    let error = node.images().pull(name).await.unwrap_err();
    assert!(matches!(error, ImageError::Unreachable { .. }), "{error}");
    let ca = registry.certificate().display().to_string();
    node.hosts_toml("tls.example", &format!("server = \"https://{}\"\nca = {ca:?}", registry.address));
    node.images().pull(name).await.unwrap();
    let other = Made::new("tls-unverified", 1000);
    registry.push("demo/other", "1", &other).await;
    node.hosts_toml("tls.example", &format!("server = \"https://{}\"\nskip_verify = true", registry.address));
    node.images().pull("tls.example/demo/other:1").await.unwrap();
}

#[tokio::test]
async fn two_pods_share_one_pull() {
    let (node, registry) = (need!(Node::start().await), need!(Registry::start().await));
    let made = Made::new("shared", BIG);
    registry.push("demo/big", "1", &made).await;
    let proxy = Proxy::start(&registry.address).await;
    let (images, name) = (node.images(), format!("{}/demo/big:1", proxy.address));
    let (one, other) = tokio::join!(images.pull(&name), images.pull(&name));
    assert!(std::sync::Arc::ptr_eq(&one.unwrap(), &other.unwrap()));
    assert_eq!(proxy.offsets(&made.layers[1].digest), [0]);
}

#[tokio::test]
async fn a_pull_reports_its_progress() {
    let (node, registry) = (need!(Node::start().await), need!(Registry::start().await));
    let made = Made::new("progress", BIG);
    registry.push("demo/big", "1", &made).await;
    let (images, name) = (node.images(), format!("{}/demo/big:1", registry.address));
    let pull = images.pull(&name);
    tokio::pin!(pull);
    // The first poll starts the pull.
    assert!(futures_util::poll!(&mut pull).is_pending());
    let mut progress = images.progress(&name).unwrap();
    let mut seen: Vec<PullProgress> = Vec::new();
    loop {
        tokio::select! {
            biased;
            Ok(()) = progress.changed() => seen.push(*progress.borrow_and_update()),
            outcome = &mut pull => break drop(outcome.unwrap()),
        }
    }
    let total: u64 = made.layers.iter().map(|layer| layer.size).sum();
    let last = PullProgress { done: total, total, unpacking: true };
    assert_eq!(seen.last(), Some(&last), "{seen:?}");
    assert!(images.progress(&name).is_none());
}

#[tokio::test]
async fn a_full_disk_is_named_and_recovers() {
    let (node, registry) = (need!(Node::start_on(24 << 20).await), need!(Registry::start().await));
    let made = Made::new("full", 32 << 20);
    registry.push("demo/big", "1", &made).await;
    let name = format!("{}/demo/big:1", registry.address);
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
    let node = need!(Node::start().await);
    let names: Vec<String> =
        ["docker", "oci", "gz", "zst"].iter().map(|form| format!("docker.io/library/{form}:1")).collect();
    let made: Vec<Made> = names.iter().map(|name| Made::new(name, 300_000)).collect();
    let dir = node.archives();
    made[0].docker_save(&dir.join("a.tar"), &names[0]);
    made[1].oci_layout(&dir.join("b.tar"), &names[1]);
    made[2].docker_save(&node.scratch("c.tar"), &names[2]);
    node.compress("gzip", "c.tar", &dir.join("c.tar.gz"));
    made[3].oci_layout(&node.scratch("d.tar"), &names[3]);
    node.compress("zstd", "d.tar", &dir.join("d.tar.zst"));
    std::fs::write(dir.join("e.tar"), b"no tar at all").unwrap();
    std::fs::write(dir.join("notes.txt"), b"not looked at").unwrap();

    let stop = CancellationToken::new();
    let images = node.images();
    let (task, mut events) = importing(&images, &stop);
    images.archives_ready().await;
    for name in &names {
        assert_eq!(imported(events.recv().await.unwrap()).1, [name.as_str()]);
    }
    assert!(matches!(events.recv().await.unwrap(), ArchiveEvent::Failed { path, .. } if path == dir.join("e.tar")));
    node.collect_garbage().await;
    for (name, made) in names.iter().zip(&made) {
        let image = node.images().find(name).await.unwrap().unwrap();
        assert_eq!(*image.chain_id, *made.chain_id());
        assert!(node.is_pinned(name).await);
        node.assert_file(&image.chain_id, "bin/busybox").await;
    }
    assert!(node.leases().await.is_empty());

    // One that is copied there, one that is moved there, and the invalid one repaired.
    let late = Made::new("late", 300_000);
    late.docker_save(&dir.join("f.tar"), "late:1");
    assert_eq!(imported(events.recv().await.unwrap()).1, ["docker.io/library/late:1"]);
    late.oci_layout(&node.scratch("g"), "late:2");
    std::fs::rename(node.scratch("g"), dir.join("g.tar")).unwrap();
    assert_eq!(imported(events.recv().await.unwrap()).1, ["docker.io/library/late:2"]);
    late.oci_layout(&dir.join("e.tar"), "late:3");
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
