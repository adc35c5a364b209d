//! A bundle that is signed, complete, and does not work.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use limpet_tests::manifest::{pod, shell, with};
use limpet_tests::{TestNode, image, wait};
use serde_json::json;

use crate::stage::{End, has_ended, is_good, web, works};

/// A pair for tests alone, in the form of minisign -G -W.
const SECRET: &str = "untrusted comment: test\nRWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAbGltcGV0LWGZpTYsjynE0ao7rN8R7i31a/JxNJjKeQpziamPNXp5xHWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkUioi9CjRJmNDvCXD0+q+1bTyjp4D10lC6fH/W74mAgM4=\n";
const PUBLIC: &str = "RWRsaW1wZXQtYXWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkU";

fn bundle(node: &TestNode, serial: u64, objects: &serde_json::Value) -> Result<PathBuf> {
    let at = |name: &str| node.dir().join(name);
    let (manifests, archive, out) = (at("objects.json"), at("demo.tar"), at(&format!("{serial}.limpet")));
    fs::write(&manifests, json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string())?;
    let [demo, _] = image::demo_images()?;
    image::write_oci_archive(&[&demo], &archive)?;
    let serial = serial.to_string();
    let [key, manifests, archive, file] =
        [&at("secret"), &manifests, &archive, &out].map(|path| path.display().to_string());
    let arguments = ["bundle", "create", "--name", "plant", "--version", "1", "--serial", &serial, "--key", &key];
    node.agent.cli(&[&arguments[..], &["-f", &manifests, "--image", &archive, "-o", &file]].concat())?.success()?;
    Ok(out)
}

pub(crate) fn a_bundle_that_does_not_work(node: &mut TestNode) -> Result<()> {
    let public = node.dir().join("public");
    fs::write(&public, PUBLIC)?;
    fs::write(node.dir().join("secret"), SECRET)?;
    let line = format!("bundle: {{keys: [{}]}}", public.display());
    node.agent.reconfigure(|settings| settings.limpet.push(line))?;
    node.agent.start()?;
    let apply = |serial: u64, objects: serde_json::Value| {
        let bundle = bundle(node, serial, &objects)?;
        node.agent.cli(&["bundle", "apply", &bundle.display().to_string()])?.success()
    };
    apply(1, json!([web()]))?;
    works(node)?;
    wait::until_true(wait::SOON, "a good bundle", || is_good(node))?;
    let crash = pod("web", json!({ "containers": [shell("main", "exit 9")] }));
    apply(2, json!([with(crash, json!({ "metadata": { "labels": { "version": "bad" } } }))]))?;
    has_ended(node, End::Undone("container main ended with 9"))?;
    works(node)?;
    // The next one is taken, and ends the pods.
    apply(3, json!([]))?;
    node.wait_gone("web")
}
