//! Local objects: ConfigMaps and Secrets that a source defines, for the pods of that source only. An apiserver's pods
//! also have its tokens, addresses of Services, paths of claimed volumes, certificates and runtime classes as
//! objects. The workloads of a source, of which pods are made, are objects too ([`workload`]).
//!
//! Input: a decoded document. Output: an [`ObjectRecord`], shared by `Arc` from the source to the worker, and for
//! each pod the [`PodObjects`] it refers to. Pure: no I/O, no clock. Values are [`SecretBytes`] for both kinds: they
//! are never printed, and are erased when the last owner drops them. Faults name fields and keys, never values.

pub mod claim;
pub mod csi;
mod decode;
pub mod iscsi;
mod key;
pub mod local_claim;
pub mod local_service;
mod metadata;
pub mod pod_certificate;
mod pod_objects;
mod record;
mod redaction;
mod reference;
pub mod runtime_class;
mod secret_bytes;
pub mod service;
mod start_values;
pub mod token;
pub mod trust_bundle;
pub mod workload;

pub(crate) use decode::read;
pub use decode::{decode, from_apiserver, restore};
pub use key::{ObjectKey, ObjectKind};
pub use metadata::KEYS_ANNOTATION;
pub use pod_objects::{ObjectState, PodObjects};
pub use record::{Entry, ObjectRecord};
pub use reference::{flex_secret, in_environment, iscsi_secret, mounted, of_sandbox, pull_secrets, references};
pub use secret_bytes::SecretBytes;
pub use start_values::StartValues;
