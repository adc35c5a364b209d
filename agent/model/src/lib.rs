//! limpet's data types and how manifests are decoded into them: pods, objects, containers, images, sources.
//!
//! Everything here is pure: no I/O, no clock, no runtime. The other crates exchange only these values:
//! `limpet-core` decides on them, `limpet-host`, `limpet-containerd` and `limpet-attribution` act on them.

pub mod actor;
pub mod attribution;
pub mod clock;
pub mod container;
pub mod cpu_set;
pub mod device_allocation;
pub mod directory_id;
pub mod error_chain;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod go_duration;
pub mod hex;
pub mod image;
pub mod image_name;
pub mod lifecycle;
pub mod manifest;
pub mod node;
pub mod node_selector;
pub mod object;
pub mod pod;
pub mod probe;
pub mod process;
pub mod pull_credential;
pub mod pull_progress;
pub mod retry_after;
pub mod sandbox;
pub mod selinux;
pub mod service_account;
pub mod source;
pub mod stop_signal;
pub mod taint;
pub mod user_namespace;
pub mod verdict;

/// The version of Kubernetes' Pod API that limpet is built with.
pub const POD_API: &str = "v1.37";

/// The node's version of Kubernetes, which tools compare with the apiserver's, followed by this agent's own version.
pub fn kubelet_version() -> String {
    format!("{POD_API}.0+limpet.{}", env!("CARGO_PKG_VERSION"))
}
