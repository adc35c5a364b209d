//! Eviction orders for incarnations beside which others were found.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures_util::FutureExt as _;
use limpet_core::allocation::NodeOffer;
use limpet_core::fixtures::{READY, now, record_of};
use limpet_core::probe::ProbeGrid;
use limpet_core::state::{PodState, SandboxState};
use limpet_core::status::observed::Observed;
use limpet_host::network::NetworkStatus;
use limpet_model::pod::PodUid;
use limpet_model::source::SourceKind::{File, Push};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::allocator::AllocationGuard;
use crate::fake::FakeExecutor;
use crate::fake::world::World;
use crate::inbox::Inbox;
use limpet_plugins::device_plugins::DevicePlugins;
use limpet_telemetry::event::Events;
use limpet_telemetry::health::Health;
use limpet_telemetry::metrics::Metrics;
use limpet_telemetry::reporter::Reporter;

fn context() -> WorkerContext {
    let world = Arc::new(Mutex::new(World::new(1, false)));
    let (_, network) = watch::channel(NetworkStatus::Ready { name: "test".to_owned() });
    let (health, _) = Health::new();
    let reporter = Reporter {
        runtime_endpoint: "/test".into(),
        node_name: "edge1".to_owned(),
        network,
        events: Events::default(),
        metrics: Metrics::new("edge1"),
        observed: Observed::default(),
        health,
        devices: Arc::<DevicePlugins>::default(),
    };
    let one_pod = NodeOffer { max_pods: Some(1), ..NodeOffer::default() };
    WorkerContext {
        executor: Arc::new(FakeExecutor::new(world)),
        reporter: Arc::new(reporter),
        probe_grid: ProbeGrid::default(),
        followed: Arc::default(),
        allocator: Arc::new(Allocator::new(one_pod, BTreeMap::new(), Arc::default())),
        evictions: mpsc::channel(1).0,
    }
}

/// An incarnation of the pod `web` that was found running.
fn adopted(uid: &str) -> PodState {
    let record = record_of("web", Push, json!({ "containers": [{ "name": "a" }] }));
    let mut pod = PodState::new(Arc::new(PodRecord { uid: PodUid::new(uid), ..(*record).clone() }), now().wall);
    pod.sandbox = SandboxState::Ready(Arc::default());
    pod
}

/// A worker that has found these incarnations, and a critical pod for which the last of them is ordered to end.
fn ordered(context: &WorkerContext, uids: &[&str]) -> (PodWorker, PodState, AllocationGuard, EvictionOrder) {
    let node = &context.allocator;
    let incarnations: Vec<PodState> = uids.iter().map(|uid| adopted(uid)).collect();
    let running = node.enter_running(&incarnations.last().unwrap().record);
    let (key, inbox) = (incarnations[0].record.key.clone(), Arc::<Inbox>::default());
    let (_, state) = watch::channel(NodeState::default());
    let stop = CancellationToken::new();
    let worker = PodWorker::new(key, inbox, context.clone(), state, stop, incarnations, running);
    let mut critical =
        PodState::new(record_of("critical", File, json!({ "containers": [{ "name": "a" }] })), now().wall);
    let mut allocation = node.enter(&critical.record).unwrap();
    let victims = victims_of(&mut critical, &mut allocation);
    let [victim] = &victims[..] else { panic!("{victims:?}") };
    let (key, uid) = (victim.key.clone(), victim.uid.clone());
    let order = EvictionOrder { key, uid, verdict: PodVerdict::preempted(), done: oneshot::channel().0 };
    (worker, critical, allocation, order)
}

fn victims_of(critical: &mut PodState, allocation: &mut AllocationGuard) -> Vec<Arc<PodRecord>> {
    allocation.admit(critical, READY, true).and_then(|refused| refused.victims).unwrap_or_default()
}

#[tokio::test]
async fn an_incarnation_is_ended_once_it_is_the_current_one() {
    let context = context();
    let (mut worker, mut critical, mut allocation, order) = ordered(&context, &["first", "second"]);
    worker.settle(now());
    worker.evict(order);
    assert!(allocation.freed().now_or_never().is_none(), "it is not ordered again before that");
    assert!(worker.advance(now()));
    let current = worker.current.as_ref().unwrap();
    assert_eq!((current.record.uid.as_str(), current.is_failed()), ("second", true));
    assert!(victims_of(&mut critical, &mut allocation).is_empty());
    worker.advance(now());
    assert!(victims_of(&mut critical, &mut allocation).is_empty() && critical.verdict.is_none(), "it has the slot");
}

#[tokio::test]
async fn an_order_for_an_incarnation_that_is_not_there_does_not_count() {
    let context = context();
    let (mut worker, mut critical, mut allocation, order) = ordered(&context, &["only"]);
    worker.evict(EvictionOrder { uid: PodUid::new("other"), ..order });
    assert!(allocation.freed().now_or_never().is_some() && !worker.current.as_ref().unwrap().is_failed());
    assert_eq!(victims_of(&mut critical, &mut allocation).len(), 1);
}

#[test]
fn a_pod_that_exceeds_its_limit_again_pauses_as_a_container_that_crashes() {
    let (begun, mut back_off) = (Instant::now(), LimitBackOff::default());
    let (mut at, mut pauses) = (begun, Vec::new());
    for _ in 0..4 {
        let due = back_off.due(at).unwrap_or(at);
        assert_eq!(back_off.due(due), None);
        pauses.push((due - at).as_secs());
        back_off.ran(due);
        at = due + Duration::from_secs(60);
    }
    assert_eq!(pauses, [0, 10, 20, 40]);
    assert_eq!(back_off.due(at + backoff::RESET_AFTER), None, "it has run for long");
}
