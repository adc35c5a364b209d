//! containerd, driven through its native API: images, snapshots, OCI specs, sandboxes, containers, logs, exec.
//!
//! Policy-free: the worker decides, this room does. Calls, their order and their pitfalls follow the facts
//! recorded in `docs/containerd.md`.

pub mod client;
pub mod container;
pub mod error;
pub mod exec;
pub mod image;
mod lease;
pub mod log;
pub mod record;
pub mod spec;
pub mod user;
