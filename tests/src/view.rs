//! What a container sees and what a pod's status shows, side by side for limpet and a real kubelet.
//!
//! `tests/views/FAMILY.yaml` has pods, which [`manifests`] reads. Their containers run [`SCRIPT`], which prints what
//! it sees in sections. [`observe`] runs all of them under one node agent and collects that, with the pods' statuses
//! and cgroups. [`normal`] replaces what differs between any two runs by names. `tests/views/kubelet.jsonl` has the
//! results of a real kubelet, each container as its difference from the first: [`record`].

pub mod manifests;
pub mod normal;
pub mod observe;
pub mod record;
pub mod status;

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::json;

use crate::image::{Image, ImageBuilder};

/// The image of the containers.
pub const IMAGE: &str = "registry.test/limpet/view:v1";
/// The same with its own user, directory, variables and command.
pub const IMAGE_WITH_USER: &str = "registry.test/limpet/view-user:v1";
/// What prints a view.
pub const SCRIPT: &str = include_str!("view/script.sh");

/// The lines of each section, sorted.
pub type View = BTreeMap<String, Vec<String>>;
/// Views of containers by `pod/container`, those of pods (status, cgroup) by `pod`.
pub type Views = BTreeMap<String, View>;

/// The images that the pods of the corpus run.
pub fn images() -> Result<[Image; 2]> {
    let plain = ImageBuilder::new(IMAGE).file("bin/view", SCRIPT, 0o755).config("Entrypoint", json!(["/bin/view"]));
    let user = ImageBuilder::new(IMAGE_WITH_USER)
        .file("bin/view", SCRIPT, 0o755)
        .file("etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n", 0o644)
        .file("srv/readme", "of the image\n", 0o644)
        .config("Entrypoint", json!(["/bin/view"]))
        .config("Cmd", json!(["from", "image"]))
        .config("User", json!("app"))
        .config("WorkingDir", json!("/srv"))
        .config("Env", json!(["PATH=/usr/bin:/bin", "FROM_IMAGE=yes", "OVERRIDDEN=image"]));
    Ok([plain.config("Cmd", json!([])).build()?, user.build()?])
}
