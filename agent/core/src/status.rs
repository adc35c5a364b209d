//! What is reported of pods: their Kubernetes status, and the snapshot that readers load.

pub mod generate;
pub mod observed;
pub mod resources;
pub mod retired;
