//! Checks what the node is short of, and how the agent learns of it.

use std::path::Path;

use super::Finding;
use crate::config::Config;
use crate::eviction::{alarm, meter};
use limpet_core::eviction::{EvictionPolicy, Observations, Signal};
use limpet_host::file_system;
use limpet_model::node::Pressure;

pub(super) fn examine(config: &Config) -> Vec<Finding> {
    let mut seen = Observations::new();
    // The directory is created at the first start. Until then, its nearest existing parent counts.
    let root = config.root_dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    meter::add_disk(&mut seen, file_system::space(root).ok(), [Signal::NodefsAvailable, Signal::NodefsInodesFree]);
    seen.extend(meter::pids().map(|pids| (Signal::PidAvailable, pids)));
    let mut findings = vec![thresholds(&config.eviction, &seen)];
    if config.eviction.watches(Pressure::Memory) {
        findings.push(memory(alarm::is_available()));
    }
    findings
}

fn thresholds(policy: &EvictionPolicy, seen: &Observations) -> Finding {
    if policy.thresholds.is_empty() {
        let remedy = "Set evictionHard";
        return Finding::degraded(
            "eviction",
            "no threshold is set: under memory pressure the OOM killer chooses what ends",
            remedy,
        );
    }
    let met: Vec<String> = policy.met(seen).map(|signal| signal.as_str().to_owned()).collect();
    if met.is_empty() {
        return Finding::ok("eviction", "neither the disk of the root directory nor process ids are short");
    }
    let text = format!("{} below its threshold: pods are evicted and new ones may be refused", met.join(" and "));
    Finding::degraded("eviction", text, "Free some, or lower the threshold")
}

fn memory(alarm: std::io::Result<()>) -> Finding {
    let name = "memory pressure";
    match alarm {
        Ok(()) => Finding::ok(name, format!("{} reports when memory is short", alarm::MEMORY)),
        Err(error) => {
            let text = format!(
                "{}: {error}; memory is measured every 10 to 60 s while pods run, and may run out in between",
                alarm::MEMORY
            );
            Finding::degraded(name, text, "Use a kernel with CONFIG_PSI, and psi=1 on its command line")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use limpet_core::eviction::Observation;

    #[test]
    fn what_is_short_is_named() {
        let policy = EvictionPolicy::default();
        let seen = |available| [(Signal::NodefsAvailable, Observation { available, capacity: 100 })].into();
        assert_eq!(thresholds(&policy, &seen(50)).level, Level::Ok);
        let short = thresholds(&policy, &seen(5));
        assert_eq!(short.level, Level::Degraded);
        assert!(short.text.starts_with("nodefs.available below its threshold"), "{short:?}");
        assert_eq!(memory(Err(std::io::ErrorKind::NotFound.into())).level, Level::Degraded);
    }
}
