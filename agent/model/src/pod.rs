//! Turns a manifest into a pod: decode, default, validate, identity, fingerprint, diff.
//!
//! Everything here is pure: input is bytes and names, output is values and faults. No I/O, no clock.

pub(crate) mod accept;
pub mod allocation;
pub mod apparmor;
pub mod authored;
pub mod bandwidth;
pub mod compute_resources;
mod container_form;
#[cfg(test)]
mod corpus_tests;
pub(crate) mod decode;
pub(crate) mod default;
pub mod device;
pub mod diff;
pub mod downward;
pub(crate) mod draft;
pub mod edit;
pub mod encoding;
pub mod ephemeral;
pub mod fault;
pub mod field_validation;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod fields_tests;
pub(crate) mod fingerprint;
pub mod host_port;
pub mod huge_pages;
pub mod identity;
pub mod images;
mod incarnation;
pub mod key;
pub mod memory_qos;
pub(crate) mod name;
pub mod oom_score;
pub mod qos;
pub mod quantity;
pub mod record;
pub mod replaceable;
pub mod requests;
pub mod resize;
pub mod restart_on_change;
pub mod role;
pub mod security;
pub(crate) mod size;
pub mod strict;
pub mod swap;
pub mod sysctl;
pub mod totals;
pub(crate) mod unsupported;
pub(crate) mod validate;
pub mod volume_kind;
pub(crate) mod yaml;

pub use decode::from_value;
pub use diff::{Part, PodDiff};
pub use edit::{Edit, edits, edits_between};
pub use fault::{Fault, FaultList, Reason, Severity};
pub use field_validation::FieldValidation;
pub use fingerprint::Fingerprint;
pub use key::{ContainerName, NameError, PodKey, PodUid, VolumeName};
pub use name::{is_dns_label, is_dns_subdomain, is_label_value, is_qualified_name};
pub use record::{PodRecord, is_terminal_phase};
pub use role::Role;
pub(crate) use yaml::join as field_path;

/// The prefix of the annotation that set a container's AppArmor profile before the field existed; the container's
/// name follows.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

#[cfg(test)]
mod kubelet_tests;
