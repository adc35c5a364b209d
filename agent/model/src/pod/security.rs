//! Kubernetes' Pod Security Standards, latest version: which parts of a pod its level does not allow, in the words of
//! the standard (`k8s.io/pod-security-admission`). Pure. Only fields of Linux are checked.

mod baseline;
mod restricted;

use std::collections::BTreeSet;
use std::str::FromStr;

use k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::pod::{Fault, PodRecord};
use crate::source::SourceKind;

/// What pods may contain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SecurityLevel {
    /// Everything.
    #[default]
    Privileged,
    /// Nothing by which a pod can escalate its privileges in known ways.
    Baseline,
    /// Only what follows the practices of hardened pods.
    Restricted,
}

impl SecurityLevel {
    /// The names of all levels.
    pub const NAMES: [&str; 3] = ["privileged", "baseline", "restricted"];

    /// The name in configurations and messages.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for SecurityLevel {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let levels = [Self::Privileged, Self::Baseline, Self::Restricted];
        levels.into_iter().find(|level| level.as_str() == name).ok_or(())
    }
}

/// The level of each source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SecurityLevels([SecurityLevel; SourceKind::ALL.len()]);

impl SecurityLevels {
    /// All sources may do everything.
    pub const PRIVILEGED: Self = Self([SecurityLevel::Privileged; SourceKind::ALL.len()]);

    /// The level of the pods of that source.
    pub fn for_source(self, source: SourceKind) -> SecurityLevel {
        self.0[source.index()]
    }

    /// The same with another level for one source.
    pub fn with(mut self, source: SourceKind, level: SecurityLevel) -> Self {
        self.0[source.index()] = level;
        self
    }
}

/// Something that a level forbids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    reason: String,
    detail: String,
}

impl Violation {
    fn new(reason: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { reason: reason.into(), detail: detail.into() }
    }
}

/// Refuses what the level does not allow, all in one fault.
pub fn check(record: &PodRecord, level: SecurityLevel) -> Option<Fault> {
    let violations = violations(record, level);
    let parts: Vec<String> =
        violations.iter().map(|violation| format!("{} ({})", violation.reason, violation.detail)).collect();
    (!parts.is_empty()).then(|| {
        let (key, level) = (&record.key, level.as_str());
        let message = format!("pod {key} violates PodSecurity \"{level}:latest\": {}", parts.join(", "));
        Fault::error("spec", message).with_remedy("change these fields, or podSecurity in the LimpetConfiguration")
    })
}

/// All of `baseline` applies to `restricted` too, except for checks that a stricter one replaces.
fn violations(record: &PodRecord, level: SecurityLevel) -> Vec<Violation> {
    let violations_of = |checks: &[fn(&PodRecord) -> Option<Violation>]| -> Vec<Violation> {
        checks.iter().filter_map(|check| check(record)).collect()
    };
    match level {
        SecurityLevel::Privileged => Vec::new(),
        SecurityLevel::Baseline => violations_of(&baseline::ALL),
        SecurityLevel::Restricted => violations_of(&restricted::ALL),
    }
}

/// Whether root in the pod is not root on the node. The standards then allow more.
fn has_own_users(spec: &PodSpec) -> bool {
    spec.host_users == Some(false)
}

/// The names of the containers for which `is_bad` holds.
fn bad_containers<'a>(record: &'a PodRecord, mut is_bad: impl FnMut(&'a Container) -> bool) -> Vec<&'a str> {
    record.containers().filter(|container| is_bad(container)).map(|container| container.name.as_str()).collect()
}

/// `container "a"`, `containers "a", "b"`.
fn named(noun: &str, names: &[&str]) -> String {
    format!("{} {}", plural(noun, names.len()), quoted(names.iter().copied()))
}

/// `pod`, `container "a"`, `pod and containers "a", "b"`; `None`: nothing is bad.
fn setters(pod: bool, containers: &[&str]) -> Option<String> {
    let containers = (!containers.is_empty()).then(|| named("container", containers));
    match (pod, containers) {
        (false, containers) => containers,
        (true, None) => Some("pod".to_owned()),
        (true, Some(containers)) => Some(format!("pod and {containers}")),
    }
}

fn plural(noun: &str, count: usize) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}

fn quoted<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    items.into_iter().map(|item| format!("\"{item}\"")).collect::<Vec<_>>().join(", ")
}

fn use_of(names: &[&str]) -> &'static str {
    if names.len() == 1 { "uses" } else { "use" }
}

type Names<'a> = BTreeSet<&'a str>;

#[cfg(test)]
mod tests;
