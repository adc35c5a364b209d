//! Exclusive processors: the keys of kubelet's CPU manager.

use limpet_core::cpu_allocation::{CpuPolicyOptions, NONE, STATIC};
use limpet_cpus::CpuPolicySettings;
use limpet_model::cpu_set::CpuSet;
use limpet_model::pod::quantity::Amount;
use limpet_model::pod::requests::Resource;

use super::ConfigDiagnostics;
use crate::config::Config;
use crate::config::tree::{Map, Value};

const OPTIONS: &str = "cpuManagerPolicyOptions";
const RESERVED: &str = "reservedSystemCPUs";

impl ConfigDiagnostics {
    pub(super) fn processors(&mut self, map: &Map<'_>, cpus: &mut CpuPolicySettings) {
        cpus.policy = self.cpu_policy(map);
        if let Some(period) = self.timeout(map, "cpuManagerReconcilePeriod", "10s") {
            cpus.reconcile_period = period;
        }
        let Some((text, at)) = map.text(RESERVED).filter(|(text, _)| !text.is_empty()) else { return };
        match CpuSet::parse(text) {
            Ok(reserved) => cpus.reserved = Some(reserved),
            Err(why) => self.error(Some(at), RESERVED, why),
        }
        for key in ["systemReservedCgroup", "kubeReservedCgroup"] {
            if map.text(key).is_some_and(|(group, _)| !group.is_empty()) {
                self.error(Some(at), RESERVED, format!("cannot be used with {key}; remove one of the two"));
            }
        }
    }

    fn cpu_policy(&mut self, map: &Map<'_>) -> Option<CpuPolicyOptions> {
        const POLICY: &str = "cpuManagerPolicy";
        let mut options = CpuPolicyOptions::default();
        for entry in map.map(OPTIONS) {
            let path = format!("{OPTIONS}.{}", entry.key);
            let set = match &entry.node.value {
                Value::Text(value) => options.set(&entry.key, value),
                other => Err(format!("expected text, found {}; write it in quotes", other.kind())),
            };
            if let Err(why) = set {
                self.error(Some(entry.node.position), &path, why);
            }
        }
        match map.text(POLICY) {
            Some((STATIC, _)) => return Some(options),
            Some((NONE | "", _)) | None => {}
            Some((other, at)) => self.error(Some(at), POLICY, format!("{other:?} is neither none nor static")),
        }
        if let Some(first) = map.map(OPTIONS).first() {
            self.error(Some(first.position), OPTIONS, "has options of the policy static; set cpuManagerPolicy: static");
        }
        None
    }
}

impl Config {
    /// Uses the listed processors instead of the reserved amounts, including those of flags.
    pub(super) fn reserve_named_cpus(&mut self) {
        let Some(cpus) = &self.cpus.reserved else { return };
        self.node.reserved.kube.resources[Resource::Cpu] = Amount::default();
        self.node.reserved.system.resources[Resource::Cpu] = Amount::from_units(cpus.len() as u64);
    }
}
