//! Connects a source to the merge, and reports what it publishes: changed and rejected manifests become events, and
//! the source's state can be read at any time.

use std::path::PathBuf;
use std::sync::Arc;

use limpet_cluster::Link;
use limpet_core::merge::slot::Slots;
use limpet_core::source::{ChangeKind, ManifestChange, Rejection, SourceSnapshot, delta};
use limpet_core::status::observed::Observed;
use limpet_model::actor::Actor;
use limpet_model::error_chain::error_chain;
use limpet_model::pod::{PodKey, fault};
use limpet_model::source::SourceKind;
use limpet_server::{SourceView, Sources};
use limpet_sources::Pulse;
use limpet_store::Store;
use limpet_telemetry::event::{EventType, Events, MAX_MESSAGE};
use limpet_telemetry::metrics::Metrics;
use limpet_telemetry::rejection;

/// A configured source.
#[derive(Debug)]
pub struct Published {
    pub kind: SourceKind,
    /// Where it reads, as text.
    pub place: Arc<str>,
    /// How it learns of changes, as text.
    pub backend: Arc<str>,
    pub pulse: Arc<Pulse>,
    /// The slots from which the merge reads.
    pub slots: Arc<Slots>,
    pub events: Events,
    pub metrics: Metrics,
    /// Notified because watches of pods include rejections.
    pub observed: Observed,
}

impl Published {
    pub fn kind(&self) -> SourceKind {
        self.kind
    }

    /// Publishes a snapshot to the merge, and to those who watch.
    pub fn publish(&self, snapshot: Arc<SourceSnapshot>) {
        let before = self.snapshot();
        // Reports the origins that were not rejected before, or not for the same reasons.
        for origin in &delta::between(&before, &snapshot).rejected {
            if let Some(rejected) = snapshot.rejected.get(origin) {
                self.report(&snapshot, rejected);
            }
        }
        self.report_changes(&snapshot);
        self.slots.publish(self.kind, snapshot);
        self.observed.touch();
    }

    /// Reports an event for each change; repetitions are counted. A pod that appears without a known author has
    /// enough other events.
    fn report_changes(&self, snapshot: &SourceSnapshot) {
        for change in snapshot.changes.iter().filter(|change| change.change != ChangeKind::Rejected) {
            if change.change == ChangeKind::Created && change.actor.is_none() {
                continue;
            }
            let by = change.actor.as_ref().map_or_else(Actor::default, Actor::without_pids);
            let parts = [format!("{} {}", change.origin, change.what()), change.effect(), format!("by {by}")];
            let message = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
            self.events.emit(change.of_pod(), None, EventType::Normal, "ManifestChanged", message);
        }
    }

    fn snapshot(&self) -> Arc<SourceSnapshot> {
        Arc::clone(&self.slots.load()[self.kind.index()])
    }

    fn report(&self, snapshot: &SourceSnapshot, rejected: &Rejection) {
        // The rest of an event's message is for the actor.
        let mut message = fault::summary(&rejected.faults, MAX_MESSAGE * 3 / 4);
        let actor = snapshot.changes.iter().filter(|change| *change.origin == *rejected.origin);
        if let Some(actor) = actor.filter_map(|change| change.actor.as_ref()).next() {
            message = format!("{message}; written by {}", actor.without_pids());
        }
        let kept = rejected.kept.iter().filter_map(|key| snapshot.pods.get(key)).map(|pod| &**pod);
        let manifest = rejection::RejectedManifest { source: self.kind, faults: &rejected.faults, message: &message };
        rejection::report(&self.events, &self.metrics, &manifest, kept);
    }
}

/// The configured sources, for the server.
#[derive(Debug, Clone)]
pub struct ConfiguredSources {
    /// The sources in order of precedence.
    pub sources: Vec<Arc<Published>>,
    /// The database with their last good versions.
    pub store: Arc<Store>,
    /// The connection to the apiserver, if one is configured.
    pub link: Option<Link>,
}

impl ConfiguredSources {
    /// Where it reads; for the apiserver, the current server of the kubeconfig.
    fn place(&self, source: &Published) -> Arc<str> {
        match self.link.as_ref().filter(|_| source.kind.traits().is_connection) {
            Some(link) => Arc::from(link.view().server),
            None => Arc::clone(&source.place),
        }
    }
}

impl Sources for ConfiguredSources {
    fn views(&self) -> Vec<SourceView> {
        let view = |source: &Arc<Published>| SourceView {
            kind: source.kind,
            place: self.place(source),
            backend: source
                .pulse
                .backend()
                .map_or_else(|| Arc::clone(&source.backend), |backend| Arc::from(backend.as_str())),
            last_good: source.pulse.last_success(),
            next_retry: source.pulse.next_retry(),
            persist_error: source.pulse.persist_error().or_else(|| self.store.volatile()),
            snapshot: source.snapshot(),
        };
        self.sources.iter().map(view).collect()
    }

    fn damaged(&self) -> Vec<PathBuf> {
        self.store.damaged()
    }

    fn history(&self, pod: &PodKey) -> Result<Vec<ManifestChange>, String> {
        self.store.history(pod).map_err(|error| error_chain(&error))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use limpet_core::source::Health;
    use limpet_model::pod::Fault;

    #[test]
    fn a_rejection_is_reported_once_and_again_when_its_reason_changes() {
        let events = Events::default();
        let published = Published {
            kind: SourceKind::File,
            place: Arc::from("manifests"),
            backend: Arc::from("inotify"),
            pulse: Arc::default(),
            slots: Arc::default(),
            events: events.clone(),
            metrics: Metrics::new("edge1"),
            observed: Observed::default(),
        };
        published.pulse.succeeded(jiff::Timestamp::UNIX_EPOCH);
        let snapshot = |message: &str| {
            let origin: Arc<str> = Arc::from("web.yaml");
            let faults = vec![Fault::error("spec.containers", message)];
            let rejection = Rejection { origin: Arc::clone(&origin), faults, kept: Vec::new() };
            let rejected = imbl::OrdMap::unit(origin, Arc::new(rejection));
            Arc::new(SourceSnapshot { rejected, health: Health::Good, ..SourceSnapshot::default() })
        };
        published.publish(snapshot("required"));
        published.publish(snapshot("required"));
        published.publish(snapshot("too many"));
        let emitted: Vec<(String, u32)> = events.snapshot().into_iter().map(|e| (e.message, e.count)).collect();
        assert_eq!(emitted, [("spec.containers: required".to_owned(), 1), ("spec.containers: too many".to_owned(), 1)]);
        let root = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&root.path().join("limpet.db")).unwrap().0);
        let sources = ConfiguredSources { sources: vec![Arc::new(published)], store, link: None };
        assert!(sources.views()[0].last_good.is_some() && sources.damaged().is_empty());
    }
}
