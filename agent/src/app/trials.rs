//! The generations of sources: what they need of the node, what drives them, and how users reach them.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::published::Published;
use super::{SharedParts, decoder};
use crate::executor::containerd::ContainerdExecutor;
use crate::generations::{KeeperParts, NodeKeeper};
use limpet_core::pod_order::PodOrder;
use limpet_generations::Generations;
use limpet_server::generations::GenerationsState;
use limpet_store::Store;
use limpet_worker::executor::Executor;
use limpet_worker::trials::{TrialParts, Trials};

/// What the generations of sources need of the node.
pub(super) fn keeper_parts(
    shared: &SharedParts,
    node_name: &Arc<str>,
    store: &Arc<Store>,
    sources: &[Arc<Published>],
    shutting_down: &watch::Receiver<bool>,
) -> KeeperParts {
    KeeperParts {
        store: Arc::clone(store),
        settings: shared.config.generations.clone(),
        sources: sources.iter().map(|source| source.kind()).collect(),
        decoder: decoder(&shared.config),
        node_name: Arc::clone(node_name),
        health: shared.health.clone(),
        shutting_down: shutting_down.clone(),
        images: shared.kept_images.clone(),
        updates: shared.updates.clone(),
        run_dir: shared.config.run_dir.clone(),
    }
}

/// The generations with what drives them, if any source has some, and how users reach them.
pub(super) fn trials(
    shared: &SharedParts,
    executor: &Arc<ContainerdExecutor>,
    generations: Option<(Generations, Arc<NodeKeeper>)>,
    pod_orders: mpsc::Sender<PodOrder>,
) -> (Option<Trials>, Option<GenerationsState>) {
    let Some((generations, keeper)) = generations else { return (None, None) };
    let (order, orders) = mpsc::channel(1);
    let (views, shown) = watch::channel(Vec::new());
    let parts = TrialParts {
        keeper,
        executor: Arc::clone(executor) as Arc<dyn Executor>,
        observed: shared.observed.clone(),
        events: shared.events.clone(),
        metrics: shared.metrics.clone(),
        orders,
        pod_orders,
        views,
    };
    let state = GenerationsState { views: shown, orders: order, held_updates: shared.held_updates() };
    (Some(Trials::new(generations, parts)), Some(state))
}
