//! What systemd is told of a container's scope, so that a shutdown of the host ends a pod as its removal would: the
//! agent goes first and starts nothing again, every process gets SIGTERM and the pod's grace, and containerd goes last.
//!
//! runc hands annotations with this prefix on as properties of the scope, their values in GVariant's text form.

use super::SpecInput;

/// runc's prefix.
const PROPERTY: &str = "org.systemd.property.";
/// What stays until the containers have ended; a unit of this name need not exist.
const RUNTIME_UNIT: &str = "containerd.service";

/// The annotations; none when containers have no scopes.
pub(super) fn annotations(input: &SpecInput<'_>) -> Vec<(String, String)> {
    let node = input.node;
    if !node.systemd_cgroup {
        return Vec::new();
    }
    let grace_micros = input.pod.grace_seconds().saturating_mul(1_000_000);
    let property = |name: &str, value: String| (format!("{PROPERTY}{name}"), value);
    // A unit is stopped after those that are to start after it.
    let mut properties =
        vec![property("TimeoutStopUSec", format!("uint64 {grace_micros}")), property("After", unit_list(RUNTIME_UNIT))];
    properties.extend(node.service.as_deref().map(|service| property("Before", unit_list(service))));
    properties
}

/// An array of one string; names of units hold backslashes for what they escape.
fn unit_list(unit: &str) -> String {
    format!("['{}']", unit.replace('\\', r"\\").replace('\'', r"\'"))
}
