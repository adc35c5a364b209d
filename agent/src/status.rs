//! What the agent reports besides the status of pods (`limpet_core::status`): events, metrics and rejected manifests.

pub mod event;
pub mod metrics;
pub mod rejection;

/// The version of Kubernetes' Pod API the agent is built with.
pub const POD_API: &str = "v1.37";
