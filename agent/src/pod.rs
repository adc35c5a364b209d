//! A manifest becomes a pod: decode, default, validate, identity, fingerprint, diff.
//!
//! Everything here is pure: bytes and names in, values and faults out. No I/O, no clock.

pub mod authored;
#[cfg(test)]
mod corpus_tests;
mod decode;
mod default;
pub mod diff;
pub mod edit;
pub mod fault;
mod fingerprint;
pub mod identity;
pub mod key;
mod manifest;
pub mod quantity;
pub mod record;
pub(crate) mod strict;
mod totals;
mod unsupported;
mod validate;
mod yaml;

pub(crate) use decode::from_value;
pub use diff::{Part, PodDiff};
pub use edit::{Edit, edits};
pub use fault::{Fault, Reason, Severity};
pub use key::{PodKey, PodUid};
pub use manifest::{Manifest, Restored, read, restore, restore_kept};
pub use record::{Fingerprint, PodRecord};
pub(crate) use validate::{is_dns_label, is_dns_subdomain};
pub(crate) use yaml::join as field_path;

/// What the annotation begins with that was an AppArmor profile before there was a field; the container's name follows.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

#[cfg(test)]
mod kubelet_tests;
