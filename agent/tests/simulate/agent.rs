//! One life of the agent on a simulated node: merge, supervisor and workers over the fake executor.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use limpet::debug::{self, DebugOrder};
use limpet::executor::fake::FakeExecutor;
use limpet::executor::fake::world::{World, live};
use limpet::merge_loop;
use limpet::reporter::Reporter;
use limpet::server::Health as AgentHealth;
use limpet::status::event::Events;
use limpet::status::metrics::Metrics;
use limpet::worker::WorkerContext;
use limpet::worker::inbox::EvictionOrder;
use limpet::worker::supervisor::{Intake, Supervisor};
use limpet_core::merge::Desired;
use limpet_core::merge::slot::Slots;
use limpet_core::node_state::{NodeNetwork, NodePressure};
use limpet_core::probe::ProbeGrid;
use limpet_core::source::Health;
use limpet_core::source::view::View;
use limpet_core::status::observed::Observed;
use limpet_host::network::NetworkStatus;
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::source::SourceKind;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The node's name.
pub(crate) const NODE: &str = "node";

/// A running agent.
pub(crate) struct Agent {
    tasks: JoinSet<()>,
    stop: CancellationToken,
    slots: Arc<Slots>,
    /// What is to run.
    pub(crate) desired: Desired,
    /// What it knows of the node's network.
    pub(crate) network: watch::Sender<NodeNetwork>,
    /// What the node is short of.
    pub(crate) pressure: watch::Sender<NodePressure>,
    /// The pods that have to end for it.
    pub(crate) evictions: mpsc::Sender<EvictionOrder>,
    /// The containers that are to be added to pods.
    #[allow(dead_code, reason = "the suite of workers adds no container")]
    pub(crate) debugs: mpsc::Sender<DebugOrder>,
    /// What is observed of it.
    pub(crate) observed: Observed,
}

impl Agent {
    /// Starts an agent on `world` with that network, and with one source that publishes `view`.
    pub(crate) fn start(world: &Arc<Mutex<World>>, view: &mut View, node_network: NodeNetwork) -> Self {
        let (slots, desired, stop) = (Arc::<Slots>::default(), Desired::default(), CancellationToken::new());
        let (merging, merged) = mpsc::channel(1);
        let (events, lifecycle) = mpsc::channel(1_024);
        let mut tasks = JoinSet::new();
        tasks.spawn(merge_loop::run(Arc::clone(&slots), desired.clone(), merging, stop.clone()));
        let (health, heartbeat) = AgentHealth::new();
        let (network_status, network) = watch::channel(NetworkStatus::Ready { name: "sim".to_owned() });
        let (archives, images) = watch::channel(Arc::default());
        let (addresses, node_network) = watch::channel(node_network);
        let (pressure, conditions) = watch::channel(NodePressure::from_iter([]));
        let (orders, evictions) = mpsc::channel(1);
        let (debugs, debug) = debug::channel();
        let observed = Observed::default();
        let reporter = Reporter {
            max_pods: 110,
            runtime_endpoint: "/simulated".into(),
            node_name: NODE.to_owned(),
            network: network.clone(),
            events: Events::default(),
            metrics: Metrics::new(NODE),
            observed: observed.clone(),
            health,
            device_plugins: Arc::default(),
        };
        let context = WorkerContext {
            executor: Arc::new(FakeExecutor::new(Arc::clone(world))),
            reporter: Arc::new(reporter),
            probe_grid: ProbeGrid { origin: Some(Instant::now().into_std()), slack_percent: 10 },
            followed: Arc::default(),
            node_claims: Arc::default(),
            evictions: orders.clone(),
        };
        let supervisor = Supervisor::new(context, vec![SourceKind::File], stop.clone());
        tasks.spawn(async move {
            let pressure = conditions;
            let intake =
                Intake { merged, lifecycle, network, node_network, images, pressure, evictions, debug, heartbeat };
            supervisor.run(intake).await;
            drop((network_status, archives));
        });
        let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
        if world.is_connected() {
            events.try_send(LifecycleEvent::Connected).unwrap();
        }
        world.begin_agent(events);
        drop(world);
        let agent =
            Self { tasks, stop, slots, desired, network: addresses, pressure, evictions: orders, debugs, observed };
        agent.slots.publish(SourceKind::File, view.snapshot());
        agent.publish(view);
        agent
    }

    /// The source publishes what has changed of `view`.
    pub(crate) fn publish(&self, view: &mut View) {
        if let Some(snapshot) = view.settle(true, Health::Good) {
            self.slots.publish(SourceKind::File, snapshot);
        }
    }

    /// It ends as by SIGTERM.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }

    /// It ends as by SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Lets virtual time pass, in which the processes of `world` exit when they are due.
pub(crate) async fn pass(world: &Mutex<World>, time: Duration) {
    // It goes on for ever.
    let _ = tokio::time::timeout(time, live(world)).await;
}
