//! Images that cannot be had: nothing is switched.

use std::fs;
use std::net::TcpListener;

use anyhow::{Context as _, Result};
use limpet_tests::image::{self, ImageBuilder, noise};
use limpet_tests::node::container;
use limpet_tests::registry::{self, Registry};
use limpet_tests::signature::Signer;
use limpet_tests::{TestNode, wait};
use serde_json::json;

use crate::stage::{End, Update, container_with, is_good, try_all};

/// The tests' registry, one that asks for a password, and one that does not answer.
const HOST: &str = "registry.test:5000";
const CLOSED: &str = "closed.test:5000";
const AWAY: &str = "away.test:5000";

fn waits(name: &'static str, image: &str, why: &'static str) -> Update {
    Update { name, text: container_with(json!({ "image": image })), end: End::Waits(why) }
}

pub(crate) fn images_that_cannot_be_had(node: &mut TestNode) -> Result<()> {
    let registry = Registry::start(&node.dir().join("registry"))?;
    let closed = Registry::start_closed(&node.dir().join("closed"))?;
    let away = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    for (host, address) in [(HOST, registry.address()), (CLOSED, closed.address()), (AWAY, away)] {
        registry::allow_plain_http(&node.containerd.certs_d(), host, address)?;
    }
    let build =
        |name: &str| ImageBuilder::new(&format!("{HOST}/{name}:v1")).file("name", name.as_bytes(), 0o644).build();
    for name in ["signed/none", "digest/none"] {
        registry.add(&build(name)?, name, "v1")?;
    }
    registry.add_index(&image::foreign_index(), "plant/foreign", "v1")?;
    let [changed, other] = [build("plant/changed")?, build("plant/other")?];
    registry.add(&changed, "plant/changed", "v1")?;
    // Its layer was replaced in the registry.
    let layer = &changed.layers.last().context("no layer")?.hex;
    let blobs = node.dir().join("registry/data/docker/registry/v2/blobs/sha256");
    let other = &other.layers.last().context("no layer")?.bytes;
    fs::write(blobs.join(&layer[..2]).join(layer).join("data"), other)?;
    let signer = Signer::new(node.dir(), "plant")?;
    let policy = json!({
        "rules": [
            { "images": [format!("{HOST}/signed/**")], "require": "cosign", "keys": [signer.public()] },
            { "images": [format!("{HOST}/digest/**")], "require": "digest" },
        ],
        "default": { "require": "allow" },
    });
    node.agent.reconfigure(|settings| settings.limpet.push(format!("imagePolicy: {policy}")))?;
    node.agent.start()?;
    try_all(
        node,
        vec![
            waits("an image that is missing", &format!("{HOST}/plant/none:v1"), "plant/none:v1"),
            waits("an image for other machines", &format!("{HOST}/plant/foreign:v1"), "plant/foreign:v1"),
            waits("an image that was changed", &format!("{HOST}/plant/changed:v1"), "plant/changed:v1"),
            waits("an image that nobody has signed", &format!("{HOST}/signed/none:v1"), "no signature found"),
            waits("an image without a digest", &format!("{HOST}/digest/none:v1"), "imagePolicy rule 2"),
            waits("a registry with a password", &format!("{CLOSED}/plant/web:v1"), "closed.test:5000/plant/web:v1"),
            waits("a registry that is away", &format!("{AWAY}/plant/web:v1"), "away.test:5000/plant/web:v1"),
        ],
    )?;
    // A good one is no bad one: the restart that it needs itself does not count.
    node.drop_text("all.yaml", &container_with(json!({ "image": image::V2 })))?;
    wait::until_true(wait::SOON, "a good update", || {
        is_good(node) && node.pod("web").is_some_and(|pod| container(&pod, "main")["image"] == image::V2)
    })
}

pub(crate) fn an_image_that_fills_the_disk(node: &mut TestNode) -> Result<()> {
    let registry = Registry::start(&node.dir().join("registry"))?;
    registry::allow_plain_http(&node.containerd.certs_d(), HOST, registry.address())?;
    let large = ImageBuilder::new(&format!("{HOST}/plant/large:v1")).file("noise", noise("large", 56 << 20), 0o644);
    registry.add(&large.build()?, "plant/large", "v1")?;
    // No other means than that of the update is to be tested.
    let lines = ["evictionHard: {imagefs.available: 1Ki, nodefs.available: 1Ki}", "imageGCHighThresholdPercent: 100"];
    node.agent.reconfigure(|settings| settings.kubelet.extend(lines.map(str::to_owned)))?;
    node.agent.start()?;
    try_all(
        node,
        vec![waits(
            "an image that fills the disk",
            &format!("{HOST}/plant/large:v1"),
            "no space left on containerd's disk",
        )],
    )
}
