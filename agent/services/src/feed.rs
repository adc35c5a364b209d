//! Finds the Services among the sources' snapshots, within the merge loop. Where there are none it costs a look into each map.

use std::sync::Arc;

use limpet_core::source::Snapshots;
use limpet_model::object::{ObjectKey, ObjectKind};
use limpet_model::source::SourceKind;
use tokio::sync::watch;

use crate::links::ServiceLinks;
use crate::membership::Definition;

/// The Services of all sources.
#[derive(Debug, Clone, Default)]
pub struct Definitions {
    /// In the order of the sources' precedence.
    pub services: Arc<[Definition]>,
    /// Whether all sources have been read, so that a Service that is not here is gone.
    pub are_complete: bool,
    /// The number of changes so far: another one means other addresses.
    pub version: u64,
}

impl Definitions {
    /// Those of the snapshots of these sources.
    fn new(snapshots: &Snapshots, sources: &[SourceKind]) -> Self {
        let mut all = Self { are_complete: true, ..Self::default() };
        let mut all_services = Vec::new();
        for source in SourceKind::ALL.into_iter().filter(|source| sources.contains(source)) {
            let snapshot = &snapshots[source.index()];
            let first = ObjectKey::new(ObjectKind::Service, "", "");
            let services = snapshot.objects.range(first..).take_while(|(key, _)| key.kind == ObjectKind::Service);
            all_services.extend(services.map(|(_, record)| Definition { source, record: Arc::clone(record) }));
            all.are_complete &= snapshot.ready;
        }
        all.services = all_services.into();
        all
    }

    fn is_same(&self, other: &Self) -> bool {
        let is_same = |(a, b): (&Definition, &Definition)| a.source == b.source && Arc::ptr_eq(&a.record, &b.record);
        self.are_complete == other.are_complete
            && self.services.len() == other.services.len()
            && self.services.iter().zip(&*other.services).all(is_same)
    }
}

/// Starts the task that serves them.
pub type Start = Box<dyn FnOnce(watch::Receiver<Definitions>) + Send>;

/// Passes Services to the task that serves them, which is started with the first one.
pub struct Feed {
    definitions: watch::Sender<Definitions>,
    /// The sources that the node has, but for the apiserver.
    sources: Vec<SourceKind>,
    start: Option<Start>,
    links: ServiceLinks,
    /// What an earlier agent has left has to be removed if there is no Service any more.
    has_leftovers: bool,
}

impl Feed {
    /// A feed of these sources that starts the task by `start`: when there is a Service, or at once if an earlier agent has left rules.
    pub fn new(mut sources: Vec<SourceKind>, start: Start, links: ServiceLinks, has_leftovers: bool) -> Self {
        sources.retain(|source| *source != SourceKind::Api);
        Self { definitions: watch::Sender::default(), sources, start: Some(start), links, has_leftovers }
    }

    /// Passes on what has changed.
    pub fn read(&mut self, snapshots: &Snapshots) {
        let mut next = Definitions::new(snapshots, &self.sources);
        if next.is_same(&self.definitions.borrow()) {
            return;
        }
        next.version = self.definitions.borrow().version + 1;
        let is_needed = self.has_leftovers || !next.services.is_empty();
        if is_needed || self.start.is_none() {
            self.links.expect(next.version);
        }
        self.definitions.send_replace(next);
        if is_needed && let Some(start) = self.start.take() {
            start(self.definitions.subscribe());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use limpet_core::source::SourceSnapshot;
    use serde_json::json;

    use super::*;
    use crate::membership::tests::definition;

    fn snapshots(definitions: &[&Definition], ready: bool) -> Snapshots {
        let mut snapshots: Snapshots = Default::default();
        let objects = definitions.iter().map(|known| (known.record.key.clone(), Arc::clone(&known.record))).collect();
        snapshots[SourceKind::File.index()] = Arc::new(SourceSnapshot { objects, ready, ..SourceSnapshot::default() });
        snapshots
    }

    #[test]
    fn the_task_is_started_with_the_first_service_and_learns_of_changes() {
        let started = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&started);
        let start = move |leftovers| {
            let counter = Arc::clone(&counter);
            let count = move |_| {
                counter.fetch_add(1, Ordering::Relaxed);
            };
            Feed::new(vec![SourceKind::File], Box::new(count), ServiceLinks::default(), leftovers)
        };
        let mut feed = start(false);
        feed.read(&snapshots(&[], true));
        assert_eq!(started.load(Ordering::Relaxed), 0, "without a Service");
        let web = definition(json!({}));
        feed.read(&snapshots(&[&web], true));
        let mut definitions = feed.definitions.subscribe();
        feed.read(&snapshots(&[&web], true));
        assert!(!definitions.has_changed().unwrap(), "nothing has changed");
        feed.read(&snapshots(&[], true));
        assert!(definitions.has_changed().unwrap() && definitions.borrow_and_update().services.is_empty());
        assert_eq!(started.load(Ordering::Relaxed), 1);
        start(true).read(&snapshots(&[], true));
        assert_eq!(started.load(Ordering::Relaxed), 2, "an earlier agent has left rules");
    }

    #[test]
    fn services_are_complete_once_all_sources_are_read() {
        let is_complete = |ready, sources: &[_]| Definitions::new(&snapshots(&[], ready), sources).are_complete;
        assert!(!is_complete(false, &[SourceKind::File]));
        assert!(is_complete(true, &[SourceKind::File]), "whatever the others that the node lacks");
        assert!(!is_complete(true, &[SourceKind::File, SourceKind::Http]));
    }
}
