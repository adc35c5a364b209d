//! Image garbage collection: which images are removed when their disk is full, and which stay.

use std::fs;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use limpet_tests::image::{self, Image, ImageBuilder, V1, V2};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{NodeOptions, container};
use limpet_tests::registry::{self, Registry};
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(the_least_recently_used_goes_and_what_is_needed_or_pinned_stays).on(small_image_disk),
        case!(an_image_that_finds_no_room_makes_room).on(|node| {
            small_image_disk(node);
            node.image_disk = Some(48 << 20);
            node.kubelet = lines(99, 98);
        }),
        case!(an_image_that_is_unused_for_long_is_removed).on(|node| {
            node.kubelet = [lines(99, 98), vec!["imageMaximumGCAge: 5s".to_owned()]].concat();
        }),
        case!(a_container_with_a_limit_that_writes_makes_images_go).on(|node| {
            small_image_disk(node);
            node.kubelet.extend(["volumeStatsAggPeriod: 1s".to_owned(), "evictionHard: {}".to_owned()]);
        }),
        case!(a_container_that_writes_makes_images_go).on(|node| {
            small_image_disk(node);
            // Nothing meets this threshold.
            node.kubelet.push("evictionHard: {imagefs.available: 1Mi}".to_owned());
        }),
        case!(images_are_listed_pulled_imported_pinned_and_removed_by_hand),
    ])
}

fn lines(high: u32, low: u32) -> Vec<String> {
    let marks =
        [("High", high), ("Low", low)].map(|(mark, percent)| format!("imageGC{mark}ThresholdPercent: {percent}"));
    [&marks[..], &["imageMinimumGCAge: 1ms".to_owned()]].concat()
}

/// Gives the node a disk with room for four images of [`SIZE`] and not for five: each needs it twice, packed and
/// unpacked.
fn small_image_disk(node: &mut NodeOptions) {
    node.image_disk = Some(96 << 20);
    node.kubelet = lines(75, 72);
}

const SIZE: usize = 8 << 20;
const HOST: &str = "registry.test:5000";

/// Images of the same size and different contents, in a registry that the node can reach.
struct Images(Registry);

impl Images {
    fn serve(node: &TestNode) -> Result<Self> {
        let registry = Registry::start(&node.dir().join("registry"))?;
        registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
        Ok(Self(registry))
    }

    fn add(&self, name: &str) -> Result<Image> {
        let salt = name.bytes().fold(7_usize, |sum, byte| sum * 31 + usize::from(byte));
        let filler: Vec<u8> = (0..SIZE).map(|index| ((index + salt).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let image = ImageBuilder::new(&format!("{HOST}/{name}:v1")).file("filler", filler, 0o644).build()?;
        self.0.add(&image, name, "v1")?;
        Ok(image)
    }

    /// Runs a pod with the name of its image.
    fn run(&self, node: &TestNode, name: &str) -> Result<Value> {
        let image = self.add(name)?.name;
        node.apply(&pod(name, json!({ "containers": [with(shell("main", IDLE), json!({ "image": image }))] })))?;
        node.wait_running(name)
    }
}

fn end(node: &TestNode, name: &str) -> Result<()> {
    node.remove(name)?;
    node.wait_gone(name)
}

/// Whether containerd has an image of that name, in full or as [`Images`] serves it.
fn has(node: &TestNode, name: &str) -> bool {
    let full = if name.contains(':') { name.to_owned() } else { format!("{HOST}/{name}:v1") };
    node.containerd.ctr(&["images", "ls", "-q"]).is_ok_and(|names| names.lines().any(|known| known == full))
}

fn wait_gone(node: &TestNode, name: &str) -> Result<()> {
    wait::until_true(wait::SOON, &format!("the removal of image {name}"), || !has(node, name))
}

/// Waits for a sample of the metrics: containerd forgets an image's name before it answers that the image is removed.
fn wait_counted(node: &TestNode, sample: &str) -> Result<()> {
    wait::until_true(wait::SOON, sample, || node.agent.metrics().is_ok_and(|metrics| metrics.contains(sample)))
}

/// Waits until the end of the image's use is recorded.
fn wait_recorded(node: &TestNode, name: &str) -> Result<()> {
    let filter = format!("name=={HOST}/{name}:v1");
    wait::until_true(wait::SOON, &format!("the last use of image {name}"), || {
        node.containerd.ctr(&["images", "ls", &filter]).is_ok_and(|row| row.contains("limpet.io/last-used"))
    })
}

fn the_least_recently_used_goes_and_what_is_needed_or_pinned_stays(node: &mut TestNode) -> Result<()> {
    node.containerd.ctr(&["images", "label", V1, "io.cri-containerd.pinned=pinned"])?;
    let images = Images::serve(node)?;
    let kept = images.run(node, "kept")?;
    for name in ["first", "second"] {
        images.run(node, name)?;
    }
    // This image is used last, although it came first. A new agent knows that from the record.
    end(node, "second")?;
    wait_recorded(node, "second")?;
    end(node, "first")?;
    wait_recorded(node, "first")?;
    node.agent.kill();
    node.agent.start()?;

    // The disk is above the threshold. The unused demo image is removed first, and is too small.
    images.run(node, "third")?;
    images.run(node, "fourth")?;
    wait_gone(node, "second")?;
    wait_gone(node, V2)?;
    ensure!(has(node, V1), "a pinned image went");
    ensure!(has(node, "first"), "more went than had to");
    wait_counted(node, "kubelet_image_garbage_collected_total{reason=\"space\"} 2")?;

    // All remaining images are needed, so the disk stays short, and every pod keeps running.
    images.run(node, "fifth")?;
    wait_gone(node, "first")?;
    fs::write(node.containerd.root().join("filler"), vec![1; 12 << 20])?;
    node.apply(&simple("short", IDLE))?;
    node.wait_running("short")?;
    end(node, "short")?;
    node.wait_event("FreeDiskSpaceFailed")?;
    for name in ["kept", "third", "fourth", "fifth"] {
        ensure!(has(node, name), "the image of {name} went although its pod runs");
    }
    let still = node.wait_running("kept")?;
    ensure!(container(&still, "main")["containerID"] == container(&kept, "main")["containerID"]);
    Ok(())
}

fn an_image_that_finds_no_room_makes_room(node: &mut TestNode) -> Result<()> {
    let images = Images::serve(node)?;
    images.run(node, "first")?;
    images.run(node, "second")?;
    end(node, "first")?;
    // Once the download is given up, less than the threshold is used, and still the image has no room.
    images.run(node, "third")?;
    ensure!(!has(node, "first"), "it fits beside all others");
    ensure!(has(node, "second"));
    Ok(())
}

fn an_image_that_is_unused_for_long_is_removed(node: &mut TestNode) -> Result<()> {
    let images = Images::serve(node)?;
    images.run(node, "kept")?;
    images.run(node, "first")?;
    end(node, "first")?;
    wait_gone(node, "first")?;
    ensure!(has(node, "kept"));
    wait_counted(node, "kubelet_image_garbage_collected_total{reason=\"age\"}")
}

fn images_are_listed_pulled_imported_pinned_and_removed_by_hand(node: &mut TestNode) -> Result<()> {
    let images = Images::serve(node)?;
    let cli = |args: &[&str]| node.agent.cli(&[&["images"], args].concat())?.success();
    images.run(node, "web")?;
    let other = images.add("other")?;
    ensure!(cli(&["pull", &other.name])? == format!("image {} pulled\n", other.name));
    let saved = ImageBuilder::new("registry.test/saved:v1").file("saved", "1", 0o644).build()?;
    let archive = node.dir().join("saved.tar");
    image::write_docker_archive(&[&saved], &archive)?;
    cli(&["import", &archive.to_string_lossy()])?;
    for name in [V1, &saved.name] {
        cli(&["pin", name])?;
    }
    cli(&["unpin", &saved.name])?;
    let refused = node.agent.cli(&["images", "pin", "registry.test/none:v1"])?;
    ensure!(refused.success().is_err_and(|error| format!("{error:#}").contains("no image")));

    let listed: Value = serde_json::from_str(&cli(&["-o", "json"])?)?;
    let image = |name: &str| {
        let named = |image: &&Value| image["names"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
        listed.as_array().and_then(|all| all.iter().find(named)).cloned().unwrap_or_default()
    };
    let web = image(&format!("{HOST}/web:v1"));
    ensure!(web["pods"] == json!([format!("default/{}", node.full_name("web"))]) && web["inUse"] == true, "{listed:#}");
    ensure!(image(V1)["pinned"] == true && image(&saved.name)["pinned"] == false, "{listed:#}");
    ensure!(image(&other.name)["size"].as_u64().is_some_and(|size| size > SIZE as u64), "{listed:#}");
    ensure!(cli(&["df", "-o", "json"])?.contains("overlayfs"));

    let removed = cli(&["prune"])?;
    for name in [V2, &other.name, &saved.name] {
        ensure!(removed.contains(&format!("image {name} removed\n")) && !has(node, name), "{removed}");
    }
    let left = cli(&["ls", "-o", "name"])?;
    ensure!(left == format!("{V1}\n{HOST}/web:v1\n"), "{left}");
    node.wait_running("web").map(drop)
}

fn a_container_that_writes_makes_images_go(node: &mut TestNode) -> Result<()> {
    // Only the measurements for eviction show the full disk.
    writes(node, json!({}))
}

fn a_container_with_a_limit_that_writes_makes_images_go(node: &mut TestNode) -> Result<()> {
    // Only the pod's own measurements show the full disk.
    writes(node, json!({ "resources": { "limits": { "ephemeral-storage": "1Gi" } } }))
}

/// Fills the disk of images by a container's layer.
fn writes(node: &mut TestNode, more: Value) -> Result<()> {
    let images = Images::serve(node)?;
    images.run(node, "kept")?;
    images.run(node, "first")?;
    end(node, "first")?;
    // After this check no image is added or removed.
    wait_recorded(node, "first")?;
    let writes = shell("main", &format!("dd if=/dev/zero of=/big bs=1M count=42 && {IDLE}"));
    node.apply(&pod("writer", json!({ "containers": [with(writes, more)] })))?;
    wait_gone(node, "first")?;
    ensure!(has(node, "kept") && has(node, V1));
    node.wait_running("writer").map(drop)
}
