//! What a container finds and what a pod's status says, side by side for limpet and a real kubelet.
//!
//! `tests/views/FAMILY.yaml` holds pods; [`manifests`] reads them. Their containers run [`SCRIPT`], which prints what it finds
//! by sections; [`observe`] runs them all under one node agent and collects that, with the pods' statuses and cgroups;
//! [`normal`] puts names in the place of what no two runs share. `tests/views/kubelet.jsonl` is what a real kubelet gave,
//! each container as its difference from the first: [`record`].

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
/// The same with a user, a directory, variables and a command of its own.
pub const IMAGE_WITH_USER: &str = "registry.test/limpet/view-user:v1";
/// What prints a view.
pub const SCRIPT: &str = include_str!("view/script.sh");

/// By section, the lines of each in order of their text.
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
