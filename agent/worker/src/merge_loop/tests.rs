//! The merge task: bursts, back-pressure, readers.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use imbl::OrdMap;
use limpet_core::merge::{DesiredPods, PodChange};
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::pod::qos::QosClass;
use limpet_model::pod::{Fingerprint, PodKey, PodRecord, PodUid};
use limpet_tests::wait;

use super::*;
use limpet_core::source::SourceSnapshot;
use limpet_model::source::SourceKind;

fn record(source: SourceKind, version: u8) -> Arc<PodRecord> {
    Arc::new(PodRecord {
        ephemeral: Vec::new(),
        qos_class: QosClass::BestEffort,
        cgroup_limits: CgroupLimits::BEST_EFFORT,
        key: PodKey::new("default", source.as_str()),
        uid: PodUid::new(source.as_str()),
        fingerprint: Fingerprint([version; 16]),
        immutable_fingerprint: Fingerprint([0; 16]),
        source,
        origin: Arc::from("a"),
        manifest: Arc::from(&b"{}"[..]),
        pod: Pod::default(),
    })
}

/// A snapshot with one pod at this version.
fn view(source: SourceKind, version: u8) -> Arc<SourceSnapshot> {
    let record = record(source, version);
    let pods = OrdMap::unit(record.key.clone(), record);
    Arc::new(SourceSnapshot { pods, ready: true, ..SourceSnapshot::default() })
}

struct Running {
    slots: Arc<Slots>,
    desired: Desired,
    merged: mpsc::Receiver<Merged>,
    stop: CancellationToken,
}

fn start() -> Running {
    let (sender, merged) = mpsc::channel(1);
    let (slots, desired, stop) = (Arc::<Slots>::default(), Desired::default(), CancellationToken::new());
    tokio::spawn(run(Arc::clone(&slots), desired.clone(), sender, stop.clone()));
    Running { slots, desired, merged, stop }
}

fn versions(desired: &DesiredPods) -> Vec<u8> {
    desired.pods.values().map(|record| record.fingerprint.0[0]).collect()
}

#[tokio::test]
async fn a_burst_behind_a_busy_supervisor_is_merged_once_and_in_order() {
    let mut running = start();
    running.slots.publish(SourceKind::File, view(SourceKind::File, 1));
    // The supervisor receives nothing: the first merge waits in the channel, the next one for a channel slot.
    while running.desired.load().pods.is_empty() {
        tokio::task::yield_now().await;
    }
    for version in 2..=200 {
        for source in SourceKind::ALL {
            running.slots.publish(source, view(source, version));
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(versions(&running.desired.load()), [1], "readers see what the supervisor receives, never more");

    let first = running.merged.recv().await.unwrap();
    let second = running.merged.recv().await.unwrap();
    assert_eq!(first.changes.len(), 1);
    let changes: Vec<_> = second.changes.iter().map(|change| (change.verb(), change.record().source)).collect();
    use SourceKind::{Api, Bundle, File, Http, Push};
    assert_eq!(changes, [("ADD", Api), ("ADD", Bundle), ("ADD", Http), ("ADD", Push), ("UPDATE", File)]);
    assert_eq!(versions(&second.desired), [200; SourceKind::ALL.len()]);
    assert_eq!(versions(&running.desired.load()), [200; SourceKind::ALL.len()]);
    tokio::task::yield_now().await;
    assert!(running.merged.try_recv().is_err(), "199 publications of five sources were one merge");
}

/// Each source runs on its own thread, and its last snapshot arrives.
#[tokio::test]
async fn readiness_and_last_snapshots_of_racing_sources_arrive() {
    for _ in 0..100 {
        let mut running = start();
        let publishing = SourceKind::ALL.map(|source| {
            let slots = Arc::clone(&running.slots);
            tokio::task::spawn_blocking(move || {
                (1..=20).for_each(|version| slots.publish(source, view(source, version)))
            })
        });
        let mut followed: BTreeMap<PodKey, u8> = BTreeMap::new();
        loop {
            let merged = running.merged.recv().await.unwrap();
            for change in &merged.changes {
                let (key, version) = (change.record().key.clone(), change.record().fingerprint.0[0]);
                let before = followed.insert(key, version);
                assert_eq!(before.is_none(), matches!(change, PodChange::Added(_)));
                assert!(before.is_none_or(|before| before < version), "a source's snapshots never arrive in reverse");
            }
            assert!(followed.values().copied().eq(versions(&merged.desired)));
            if versions(&merged.desired) == [20; SourceKind::ALL.len()] {
                assert_eq!(merged.desired.ready, [true; SourceKind::ALL.len()]);
                break;
            }
        }
        for source in publishing {
            source.await.unwrap();
        }
        running.stop.cancel();
    }
}

#[tokio::test]
async fn a_pod_that_loses_is_reported_although_nothing_changes() {
    let mut running = start();
    let claim = |source| {
        let mut record = (*record(source, 1)).clone();
        record.key = PodKey::new("default", "web");
        let pods = OrdMap::unit(record.key.clone(), Arc::new(record));
        Arc::new(SourceSnapshot { pods, ready: true, ..SourceSnapshot::default() })
    };
    running.slots.publish(SourceKind::Http, claim(SourceKind::Http));
    running.slots.publish(SourceKind::Api, claim(SourceKind::Api));
    running.merged.recv().await.unwrap();
    running.slots.publish(SourceKind::Api, Arc::new(SourceSnapshot { ready: true, ..SourceSnapshot::default() }));
    let merged = running.merged.recv().await.unwrap();
    assert!(merged.changes.is_empty() && merged.contested == [PodKey::new("default", "web")]);
    assert!(merged.desired.duplicates.is_empty());
}

#[tokio::test]
async fn an_unreferenced_object_is_dropped() {
    let mut running = start();
    let value = serde_json::json!({"metadata": {"name": "m"}});
    let object =
        limpet_model::object::decode(&value, limpet_model::object::ObjectKind::Secret, Arc::from("a")).0.unwrap();
    let objects = OrdMap::unit(object.key.clone(), Arc::new(object));
    let with_it = SourceSnapshot { objects, ready: true, ..SourceSnapshot::default() };
    running.slots.publish(SourceKind::Push, Arc::new(with_it));
    assert_eq!(running.merged.recv().await.unwrap().desired.objects[SourceKind::Push.index()].len(), 1);
    running.slots.publish(SourceKind::Push, Arc::new(SourceSnapshot { ready: true, ..SourceSnapshot::default() }));
    let let_go = async {
        while !running.desired.load().objects[SourceKind::Push.index()].is_empty() {
            tokio::task::yield_now().await;
        }
    };
    // The timeout only ends a failing test.
    tokio::time::timeout(wait::soon(), let_go).await.unwrap();
    assert!(running.merged.try_recv().is_err(), "and nothing is sent");
}
