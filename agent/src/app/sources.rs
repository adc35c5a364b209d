//! The configured sources. Each is a task that publishes to the merge.

use std::sync::Arc;

use limpet_model::attribution::{WatchObserver, WatchSettings};
use limpet_model::source::SourceKind;
use tokio::sync::{mpsc, watch};

use super::bundles::ServedBundles;
use super::published::Published;
use super::{SharedParts, decoder};
use limpet_bundle::decision::AppliedBundle;
use limpet_bundle::settings::BundleSettings;
use limpet_containerd::image::Images;
use limpet_core::source::{cluster_update, push};
use limpet_server::bundle::{Bundles, BundlesState};
use limpet_sources::Pulse;
use limpet_sources::api::ApiSource;
use limpet_sources::bundle::{
    self, BundleDirectory, BundleIntake, BundleParts, BundleSource, RemoteBundles, RemoteParts,
};
use limpet_sources::file::FileSource;
use limpet_sources::http::HttpSource;
use limpet_sources::push::{PushContext, PushSource};
use limpet_store::Store;
use limpet_watch::actors::Feed;

/// What sources need besides what all parts share.
pub(super) struct SourceInputs<'a> {
    /// The inbox of pushed pods and objects.
    pub(super) pushed: push::Inbox,
    /// Tells who changes manifests.
    pub(super) observer: &'a Arc<dyn WatchObserver>,
    pub(super) feeds: mpsc::Receiver<Feed>,
    /// The store for the images of bundles.
    pub(super) images: &'a Images,
}

/// The sources, and the channels to those that other parts drive.
pub(super) struct StartedSources {
    /// The sources in order of precedence.
    pub(super) sources: Vec<Arc<Published>>,
    /// The channel to the source of the apiserver, if the node is in a cluster.
    pub(super) api_updates: Option<mpsc::Sender<cluster_update::Update>>,
    /// The channel to the source of bundles, if they are configured.
    pub(super) bundles: BundlesState,
    /// The bundle that the node has, once that is known.
    pub(super) bundle: Option<watch::Receiver<Option<Option<AppliedBundle>>>>,
}

/// Starts the configured sources.
pub(super) fn start_sources(
    shared: &SharedParts,
    node_name: &str,
    store: &Arc<Store>,
    inputs: SourceInputs<'_>,
) -> StartedSources {
    let SourceInputs { pushed, observer, feeds, images } = inputs;
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
    let intake = shared.config.bundle.as_ref().map(|settings| {
        let (published, intake) = start_bundles(shared, node_name, store, settings, images);
        all.push(published);
        intake
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
    let bundle = intake.as_ref().map(BundleIntake::applied);
    let node_key = shared.config.node_key();
    let bundles = intake.map(|intake| Arc::new(ServedBundles { intake, node_key }) as Arc<dyn Bundles>);
    StartedSources { sources: all, api_updates: updates, bundles, bundle }
}

/// Starts the source of bundles.
fn start_bundles(
    shared: &SharedParts,
    node_name: &str,
    store: &Arc<Store>,
    settings: &BundleSettings,
    images: &Images,
) -> (Arc<Published>, BundleIntake) {
    let parts = BundleParts {
        settings: settings.clone(),
        directory: shared.config.bundle_dir(),
        node_key: shared.config.node_key(),
        store: Arc::clone(store),
        images: images.clone(),
        updates: shared.updates.clone(),
        events: shared.events.clone(),
        metrics: shared.metrics.clone(),
    };
    let source = BundleSource::new(parts, node_name, decoder(&shared.config));
    let place = bundle_place(shared, settings);
    let published = published(shared, SourceKind::Bundle, &place, "", source.pulse());
    let (intake, inbox) = bundle::intake(shared.updates.clone(), shared.config.bundle_dir(), settings.max_size);
    if let Some(directory) = &settings.directory {
        shared.tasks.spawn(BundleDirectory::new(directory, intake.clone()).run(shared.stop.clone()));
    }
    let remote = || RemoteParts {
        directory: shared.config.bundle_dir(),
        max_size: settings.max_size,
        keys: settings.keys.clone(),
        intake: intake.clone(),
        throttle: shared.throttle.clone(),
        node_name: Arc::from(node_name),
        network: shared.node_network.clone(),
    };
    if let Some(url) = &shared.config.sources.bundle_url {
        shared.tasks.spawn(RemoteBundles::of_url(url.clone(), remote()).run(shared.stop.clone()));
    }
    if let Some(image) = &settings.image {
        let bundles = RemoteBundles::of_registry(images.clone(), image, settings.interval, remote());
        shared.tasks.spawn(bundles.run(shared.stop.clone()));
    }
    let (publisher, stop) = (Arc::clone(&published), shared.stop.clone());
    shared.tasks.spawn(async move { source.run(inbox, |snapshot| publisher.publish(snapshot), stop).await });
    (published, intake)
}

/// Where bundles come from, as text.
fn bundle_place(shared: &SharedParts, settings: &BundleSettings) -> String {
    let directory = settings.directory.as_ref().map(|directory| directory.display().to_string());
    let url = shared.config.sources.bundle_url.as_ref().map(|url| url.address.to_string());
    let places: Vec<String> = [directory, url, settings.image.clone()].into_iter().flatten().collect();
    if places.is_empty() { "limpet bundle apply".to_owned() } else { places.join(", ") }
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
