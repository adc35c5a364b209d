//! Sets of manifests as people write them, on a node of a whole control plane and on limpet alone.
//!
//! `tests/sets/NAME/1.yaml` is a set, and `2.yaml` its second version, if it has one: [`files`]. Each is in a namespace of its own name.
//! A [`stage::Stage`] is what a set is given to: [`control_plane`] has etcd, apiserver, controllers, scheduler, kubelet and CoreDNS,
//! [`alone`] has limpet. [`run`] gives sets to a stage and looks until they have come to rest. [`view`] makes lines of what it sees,
//! with names in place of what differs between any two runs ([`aliases`]), and [`rollout`] of the numbers of ready pods on the way.
//! `tests/sets/recorded.json` has the lines of the control plane: [`record`].

pub mod aliases;
pub mod alone;
pub mod control_plane;
pub mod files;
pub mod lookup;
pub mod record;
pub mod rollout;
pub mod run;
pub mod stage;
pub mod view;

use anyhow::Result;
use serde_json::json;

use crate::image::{Image, ImageBuilder};

/// The name of the image that the containers of all sets run, without its version.
const IMAGE: &str = "registry.test/sets/app";

/// Both versions of the image.
pub fn images() -> Result<[Image; 2]> {
    let version = |number: &str| {
        ImageBuilder::new(&format!("{IMAGE}:{number}"))
            .file("bin/app", include_str!("sets/app.sh"), 0o755)
            .config("Entrypoint", json!(["/bin/app"]))
            .config("Cmd", json!(["idle"]))
            .config("Env", json!(["PATH=/usr/bin:/bin", format!("VERSION={number}")]))
            .build()
    };
    Ok([version("1")?, version("2")?])
}
