//! The keys for memory that the kernel reserves.

use limpet_model::pod::memory_qos::MemoryQos;

use super::*;

fn loaded(text: &str) -> Result<Config, Vec<String>> {
    load_text(&format!("{KUBELET_HEAD}{text}"), &[]).0
}

#[test]
fn memory_is_kept_and_slowed_only_on_demand() {
    let qos = |text: &str| loaded(text).unwrap().cgroups.memory_qos;
    assert_eq!((qos(""), qos("memoryReservationPolicy: None")), (MemoryQos::default(), MemoryQos::default()));
    let both = MemoryQos { keeps_requests: true, throttling: Some(0.9) };
    assert_eq!(qos("memoryReservationPolicy: TieredReservation\nmemoryThrottlingFactor: 0.9"), both);
    assert_eq!(qos("memoryThrottlingFactor: 1").throttling, Some(1.0));
    for text in ["memoryReservationPolicy: Hard", "memoryThrottlingFactor: 0", "memoryThrottlingFactor: 1.1"] {
        assert!(loaded(text).is_err(), "{text}");
    }
}
