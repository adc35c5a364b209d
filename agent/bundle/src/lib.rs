//! Signed bundles: manifests, ConfigMaps, Secrets and images of a node in one file, `.limpet`, for nodes without a registry
//! or without a network.
//!
//! A bundle is a tar: a detached signature over all that follows, and an OCI image layout. [`create`](mod@create) makes it,
//! [`bundle`] reads it, [`announcement`] its first bytes, [`decision`] says whether it replaces what a node has, and only the holder of a [`node_key`] opens the
//! Secrets that are sealed to it. The agent's source of bundles and the commands
//! are above. Nothing here talks to containerd or a network.

pub mod announcement;
pub mod bundle;
pub mod check;
pub mod command;
mod content;
pub mod create;
pub mod decision;
mod document;
mod envelope;
mod error;
mod hpke;
mod image_archive;
mod inspect;
mod layout;
pub mod node_key;
mod sealed;
pub mod settings;
mod tar_writer;

pub use document::{ARTIFACT_TYPE, BundleConfig, BundledImage, LAYER_TYPE};
pub use error::BundleError;
pub use limpet_signature::{PublicKeys, SecretKey, SignatureError};

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
