//! Properties of a container's systemd scope, so that a host shutdown stops a pod as its deletion would: the agent
//! stops first and restarts nothing, every process gets SIGTERM and the pod's grace period, and containerd stops
//! last.
//!
//! runc passes annotations with this prefix on as properties of the scope, with values in GVariant's text format.

use limpet_model::stop_signal::MIN_GRACE_PERIOD;

use super::SpecInput;

/// runc's prefix.
const PROPERTY: &str = "org.systemd.property.";
/// The unit that runs until containers have exited; it need not exist.
const RUNTIME_UNIT: &str = "containerd.service";

/// The annotations; none if containers have no scopes.
pub(super) fn annotations(input: &SpecInput<'_>) -> Vec<(String, String)> {
    let node = input.node;
    if !node.systemd_cgroup {
        return Vec::new();
    }
    let grace_micros = input.pod.grace_seconds().max(MIN_GRACE_PERIOD.as_secs()).saturating_mul(1_000_000);
    let property = |name: &str, value: String| (format!("{PROPERTY}{name}"), value);
    // systemd stops a unit before those that it is ordered after.
    let mut properties =
        vec![property("TimeoutStopUSec", format!("uint64 {grace_micros}")), property("After", unit_list(RUNTIME_UNIT))];
    properties.extend(node.service.as_deref().map(|service| property("Before", unit_list(service))));
    properties
}

/// An array of one string; escaped unit names contain backslashes.
fn unit_list(unit: &str) -> String {
    format!("['{}']", unit.replace('\\', r"\\").replace('\'', r"\'"))
}
