//! Uses containerd through its native API: images, snapshots, OCI specs, containers, exec, logs, events.
//!
//! This crate has no policy: the worker decides, and this crate executes. `docs/containerd.md` describes calls, their
//! order and their pitfalls.

pub mod attach;
pub mod client;
pub mod container;
pub mod error;
pub mod event_stream;
pub mod exec;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod image;
pub mod image_verifier;
pub mod image_volumes;
mod lease;
pub mod log;
mod logger_scan;
pub mod record;
pub mod settings;
pub mod snapshot_mount;
pub mod snapshotter;
pub mod spec;
mod start_leases;
pub mod stdin;
pub mod user;
