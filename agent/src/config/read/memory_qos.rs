//! Memory that the kernel reserves for pods: the keys of kubelet's `MemoryQoS`.

use limpet_model::pod::memory_qos::MemoryQos;

use super::ConfigDiagnostics;
use crate::config::tree::Map;

impl ConfigDiagnostics {
    pub(super) fn memory_qos(&mut self, map: &Map<'_>) -> MemoryQos {
        let mut qos = MemoryQos::default();
        const POLICY: &str = "memoryReservationPolicy";
        match map.text(POLICY) {
            None | Some(("None" | "", _)) => {}
            Some(("TieredReservation", _)) => qos.keeps_requests = true,
            Some((other, at)) => {
                self.error(Some(at), POLICY, format!("{other:?} is neither None nor TieredReservation"));
            }
        }
        if let Some((factor, at)) = map.float("memoryThrottlingFactor") {
            match factor > 0.0 && factor <= 1.0 {
                true => qos.throttling = Some(factor),
                false => {
                    self.error(Some(at), "memoryThrottlingFactor", format!("{factor} is not above 0 and at most 1"))
                }
            }
        }
        qos
    }
}
