//! What is reported about pods: their Kubernetes status, and the snapshot that readers load.

mod conditions;
pub mod generate;
mod never_ran;
pub mod observed;
mod observed_pod;
pub mod resources;
pub mod retired;
