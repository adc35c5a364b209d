//! The configured sources. Each is a task that publishes to the merge.

use std::sync::Arc;

use limpet_model::attribution::{WatchObserver, WatchSettings};
use limpet_model::source::SourceKind;
use tokio::sync::mpsc;

use super::published::Published;
use super::{SharedParts, decoder};
use crate::attribution::Feed;
use crate::source::Pulse;
use crate::source::api::ApiSource;
use crate::source::file::FileSource;
use crate::source::http::HttpSource;
use crate::source::push::{PushContext, PushSource};
use crate::store::Store;
use limpet_core::source::{cluster_update, push};

/// Starts the configured sources. Also returns the channel to that of the apiserver, if the node is in a cluster.
pub(super) fn start_sources(
    shared: &SharedParts,
    node_name: &str,
    store: &Arc<Store>,
    pushed: push::Inbox,
    observer: &Arc<dyn WatchObserver>,
    feeds: mpsc::Receiver<Feed>,
) -> (Vec<Arc<Published>>, Option<mpsc::Sender<cluster_update::Update>>) {
    let stop = &shared.stop;
    let mut all = Vec::new();
    let decoder = decoder(&shared.config);
    if let Some(path) = &shared.config.sources.manifest_path {
        let settings = WatchSettings { wanted: shared.config.sources.watch, observer: Arc::clone(observer) };
        let source = FileSource::new(path, node_name, Arc::clone(store), decoder).watched(settings, Some(feeds));
        let published = published(shared, SourceKind::File, &path.to_string_lossy(), "", source.pulse());
        all.push(Arc::clone(&published));
        let stop = stop.clone();
        shared.tasks.spawn(async move { source.run(|snapshot| published.publish(snapshot), stop).await });
    }
    let conditions = PushContext { slots: Arc::clone(&shared.slots), observed: shared.observed.clone() };
    let source = PushSource::new(node_name, Arc::clone(store), decoder, conditions);
    let socket = shared.config.socket();
    let published_pushes = published(shared, SourceKind::Push, &socket.to_string_lossy(), "", source.pulse());
    all.push(Arc::clone(&published_pushes));
    let stop_pushes = stop.clone();
    shared.tasks.spawn(async move {
        source.run(pushed, |snapshot| published_pushes.publish(snapshot), stop_pushes).await;
    });
    if let Some(settings) = &shared.config.sources.manifest_url {
        let source = HttpSource::new(settings.clone(), node_name, Arc::clone(store), decoder);
        let source = source.woken_by(shared.node_network.clone());
        let backend = format!("every {} s", settings.frequency.as_secs());
        let published = published(shared, SourceKind::Http, &settings.address.to_string(), &backend, source.pulse());
        all.push(Arc::clone(&published));
        let stop = stop.clone();
        shared.tasks.spawn(async move { source.run(|snapshot| published.publish(snapshot), stop).await });
    }
    let cluster = &shared.config.cluster;
    let updates = cluster.kubeconfig.is_some().then(|| {
        let (updates, inbox) = cluster_update::channel();
        let source = ApiSource::new(node_name, Arc::clone(store), decoder);
        let published = published(shared, SourceKind::Api, &cluster.server, "watch", source.pulse());
        all.push(Arc::clone(&published));
        let stop = stop.clone();
        shared.tasks.spawn(async move { source.run(inbox, |snapshot| published.publish(snapshot), stop).await });
        updates
    });
    (all, updates)
}

/// Connects a source to the merge.
fn published(shared: &SharedParts, kind: SourceKind, place: &str, backend: &str, pulse: Arc<Pulse>) -> Arc<Published> {
    Arc::new(Published {
        kind,
        place: Arc::from(place),
        backend: Arc::from(backend),
        pulse,
        slots: Arc::clone(&shared.slots),
        events: shared.events.clone(),
        metrics: shared.metrics.clone(),
        observed: shared.observed.clone(),
    })
}
