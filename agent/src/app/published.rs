//! A source's way into the merge, and what people are told on the way: rejected manifests become events, and the
//! source's state can be asked for at any time.

use std::sync::{Arc, Mutex, PoisonError};

use imbl::ordmap::DiffItem;
use jiff::Timestamp;

use crate::merge::slot::Slots;
use crate::pod::Severity;
use crate::server::{SourceView, Sources};
use crate::source::{Health, Rejection, SourceKind, SourceSnapshot};
use crate::status::event::{EventType, Events};
use crate::status::observed::Observed;

/// One configured source.
#[derive(Debug)]
pub(super) struct Published {
    kind: SourceKind,
    place: Arc<str>,
    backend: Arc<str>,
    slots: Arc<Slots>,
    events: Events,
    observed: Observed,
    last_good: Mutex<Option<Timestamp>>,
}

impl Published {
    pub(super) fn new(
        kind: SourceKind,
        place: &str,
        backend: &str,
        slots: Arc<Slots>,
        events: Events,
        observed: Observed,
    ) -> Self {
        let (place, backend, last_good) = (Arc::from(place), Arc::from(backend), Mutex::default());
        Self { kind, place, backend, slots, events, observed, last_good }
    }

    pub(super) fn kind(&self) -> SourceKind {
        self.kind
    }

    /// Publishes a snapshot: into the merge, and to those who watch.
    pub(super) fn publish(&self, snapshot: Arc<SourceSnapshot>) {
        let before = self.snapshot();
        if snapshot.health == Health::Good {
            *self.last_good.lock().unwrap_or_else(PoisonError::into_inner) = Some(Timestamp::now());
        }
        for rejection in newly_rejected(&before, &snapshot) {
            self.report(&snapshot, rejection);
        }
        self.slots.publish(self.kind, snapshot);
        self.observed.touch();
    }

    fn snapshot(&self) -> Arc<SourceSnapshot> {
        Arc::clone(&self.slots.load()[self.kind.index()])
    }

    /// An event on each pod that runs on in its last good version; on the node when there is none.
    fn report(&self, snapshot: &SourceSnapshot, rejection: &Rejection) {
        let errors = rejection.faults.iter().filter(|fault| fault.severity == Severity::Error);
        let message = errors.map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let kept: Vec<_> = rejection.kept.iter().filter_map(|key| snapshot.pods.get(key)).collect();
        if kept.is_empty() {
            self.events.emit(None, None, EventType::Warning, "FailedValidation", message);
            return;
        }
        for record in kept {
            let pod = Some((record.key.clone(), record.uid.clone()));
            let message = format!("manifest rejected, the last good version runs on: {message}");
            self.events.emit(pod, None, EventType::Warning, "FailedValidation", message);
        }
    }
}

/// What `after` refuses that `before` did not, or not for the same reasons.
fn newly_rejected<'a>(before: &'a SourceSnapshot, after: &'a SourceSnapshot) -> Vec<&'a Rejection> {
    let differences = before.rejected.diff(&after.rejected);
    let new = differences.filter_map(|difference| match difference {
        DiffItem::Add(_, rejection) | DiffItem::Update { new: (_, rejection), .. } => Some(&**rejection),
        DiffItem::Remove(..) => None,
    });
    new.collect()
}

/// The configured sources, for the server.
#[derive(Debug, Clone)]
pub(super) struct ConfiguredSources(pub(super) Vec<Arc<Published>>);

impl Sources for ConfiguredSources {
    fn views(&self) -> Vec<SourceView> {
        let view = |source: &Arc<Published>| SourceView {
            kind: source.kind,
            place: Arc::clone(&source.place),
            backend: Arc::clone(&source.backend),
            last_good: *source.last_good.lock().unwrap_or_else(PoisonError::into_inner),
            snapshot: source.snapshot(),
        };
        self.0.iter().map(view).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::pod::Fault;

    #[test]
    fn a_rejection_is_told_once_and_again_when_its_reason_changes() {
        let events = Events::default();
        let published = Published::new(
            SourceKind::File,
            "manifests",
            "inotify",
            Arc::default(),
            events.clone(),
            Observed::default(),
        );
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
        let told: Vec<(String, u32)> = events.snapshot().into_iter().map(|e| (e.message, e.count)).collect();
        assert_eq!(told, [("spec.containers: required".to_owned(), 1), ("spec.containers: too many".to_owned(), 1)]);
        assert!(ConfiguredSources(vec![Arc::new(published)]).views()[0].last_good.is_some());
    }
}
