//! Which pods are woken, and what a dropped guard releases.

use futures_util::FutureExt as _;
use limpet_core::fixtures::{READY, now, record_of};
use limpet_model::source::SourceKind::{File, Push};
use serde_json::json;

use super::*;

fn with_slots(count: usize, plugins: &Arc<DevicePlugins>) -> Arc<Allocator> {
    let offer = NodeOffer { max_pods: Some(count), ..NodeOffer::default() };
    Arc::new(Allocator::new(offer, BTreeMap::new(), Arc::clone(plugins)))
}

fn pod(name: &str, requests: serde_json::Value) -> PodState {
    let spec = json!({ "containers": [{ "name": "a", "resources": { "limits": requests } }] });
    PodState::new(record_of(name, File, spec), now().wall)
}

fn is_woken(guard: &AllocationGuard) -> bool {
    guard.freed().now_or_never().is_some()
}

#[test]
fn a_pod_that_waits_is_woken_once_by_what_another_frees_with_its_guard() {
    let node = with_slots(1, &Arc::default());
    let (mut first, mut second) = (pod("first", json!({})), pod("second", json!({})));
    let mut held = node.enter(&first.record).unwrap();
    assert!(held.admit(&mut first, READY, true).is_none());
    let mut waits = node.guard(&second.record.key);
    assert!(waits.admit(&mut second, READY, true).is_some() && !is_woken(&waits));
    assert!(node.slot_freed().now_or_never().is_none(), "nothing was freed");
    drop(held);
    assert!(is_woken(&waits) && !is_woken(&waits));
    assert!(node.slot_freed().now_or_never().is_some(), "so are pods without a worker");
    assert!(waits.admit(&mut second, READY, true).is_none());
    assert!(!is_woken(&waits), "it waits for nothing");
    assert_eq!(node.enter(&first.record).unwrap_err().verdict.reason, "OutOfpods");
}

#[test]
fn devices_of_plugins_are_free_with_the_guard() {
    let plugins = Arc::<DevicePlugins>::default();
    let node = with_slots(9, &plugins);
    let changes = node.device_changes();
    plugins.list("x.io/gpu", 1);
    assert!(changes.has_changed().unwrap(), "who waits for devices learns of new ones");
    let gpu = || json!({ "x.io/gpu": 1 });
    let (mut first, mut second) = (pod("first", gpu()), pod("second", gpu()));
    let mut held = node.guard(&first.record.key);
    assert!(held.admit(&mut first, READY, true).is_none() && node.wants_plugins(&first.record));
    let mut waits = node.guard(&second.record.key);
    assert_eq!(&*waits.admit(&mut second, READY, true).unwrap().verdict.reason, "OutOfx.io/gpu");
    drop(held);
    assert!(is_woken(&waits) && waits.admit(&mut second, READY, true).is_none());
}

#[test]
fn what_was_found_running_keeps_what_it_uses() {
    let node = with_slots(1, &Arc::default());
    let mut running = pod("running", json!({}));
    running.sandbox = limpet_core::state::SandboxState::Ready(Arc::default());
    let guards: Vec<AllocationGuard> = ["running", "beside"]
        .iter()
        .map(|name| node.enter_running(&record_of(name, Push, json!({ "containers": [] }))))
        .collect();
    guards[0].adopt([&running].into_iter());
    let new = record_of("new", Push, json!({ "containers": [{ "name": "a" }] }));
    assert!(node.enter(&new).is_err(), "more run than there are slots");
    drop(guards);
    assert!(node.enter(&new).is_ok());
}
