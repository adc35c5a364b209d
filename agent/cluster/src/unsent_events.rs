//! Keeps events that the apiserver does not have yet in a file, so that they survive a restart of the agent.
//!
//! Statuses and mirrors need no file, since they are derived from observed state. The file is written when the agent
//! stops and, to spare flash, only every ten minutes while there is no connection: a power cut loses the events of
//! that time. Once everything is posted the file is removed.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event as KubeEvent;
use serde::{Deserialize, Serialize};

use super::event_schedule::due;
use super::link::Link;
use limpet_host::private_file;
use limpet_telemetry::event::{Event, Events, MAX_EVENTS, MAX_MESSAGE};

/// How long events may be in memory only.
const SAVE_INTERVAL: Duration = Duration::from_secs(600);
/// The largest file that the agent writes.
const MAX_BYTES: u64 = (MAX_EVENTS * (MAX_MESSAGE + 2_048)) as u64;

/// The file's document, in a form that kubectl can read.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventList {
    api_version: String,
    kind: String,
    items: Vec<KubeEvent>,
}

#[derive(Debug)]
pub(super) struct UnsentEvents {
    link: Link,
    node_name: String,
    events: Events,
    /// `None` if no file is kept.
    path: Option<PathBuf>,
    /// The events in the file.
    written: Mutex<Vec<Event>>,
}

impl UnsentEvents {
    pub(super) fn new(link: Link, node_name: String, events: Events, path: Option<PathBuf>) -> Self {
        Self { link, node_name, events, path, written: Mutex::default() }
    }

    /// Records the events that an earlier run of the agent could not send.
    pub(super) async fn load(&self) {
        let Some(path) = self.path.clone() else { return };
        let loaded = tokio::task::spawn_blocking(move || read(&path)).await;
        match loaded.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(events) => {
                *self.written() = events.clone();
                events.into_iter().for_each(|event| _ = self.events.record(event));
            }
            Err(error) => tracing::warn!(%error, "reading the saved unsent events failed"),
        }
    }

    /// Saves unsent events at intervals while there is no connection.
    pub(super) async fn save_regularly(&self) {
        let mut changed = self.events.changed();
        loop {
            changed.await;
            // Subscribed before saving, so that no event in between is missed.
            changed = self.events.changed();
            tokio::time::sleep(SAVE_INTERVAL).await;
            if !self.link.is_online() {
                self.save().await;
            }
        }
    }

    /// Removes the file, if there is one, because everything is posted.
    pub(super) async fn all_posted(&self) {
        let is_there = !self.written().is_empty();
        if is_there {
            self.save().await;
        }
    }

    /// Saves unsent events; removes the file if there are none.
    pub(super) async fn save(&self) {
        let Some(path) = self.path.clone() else { return };
        let all = self.events.snapshot();
        let unsent: Vec<Event> = {
            let posted = self.link.outbox().posted();
            due(&all, &posted, &self.node_name, Timestamp::now()).into_iter().cloned().collect()
        };
        if *self.written() == unsent {
            return;
        }
        let items = unsent.iter().map(|event| event.as_kubernetes(&self.node_name)).collect();
        let saved = tokio::task::spawn_blocking(move || write(&path, items)).await;
        match saved.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => *self.written() = unsent,
            Err(error) => tracing::warn!(%error, "saving unsent events failed"),
        }
    }

    fn written(&self) -> std::sync::MutexGuard<'_, Vec<Event>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file's events; none without a file. Blocks.
fn read(path: &Path) -> io::Result<Vec<Event>> {
    let mut text = Vec::new();
    match fs::File::open(path) {
        Ok(file) => file.take(MAX_BYTES).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let list: EventList = serde_json::from_slice(&text)?;
    Ok(list.items.into_iter().take(MAX_EVENTS).filter_map(Event::from_kubernetes).collect())
}

/// Writes the file. Blocks.
fn write(path: &Path, items: Vec<KubeEvent>) -> io::Result<()> {
    if items.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let list = EventList { api_version: "v1".to_owned(), kind: "EventList".to_owned(), items };
    private_file::write(path, &serde_json::to_string(&list)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use limpet_model::pod::{PodKey, PodUid};
    use limpet_telemetry::event::EventType;

    #[test]
    fn events_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("unsent-events.json");
        assert_eq!(read(&path).unwrap(), []);
        let key = PodKey::new("lab", "web");
        let event = |pod: Option<_>, container: Option<&str>, event_type, count| Event {
            involved: pod.into(),
            field_path: container.map(|name| limpet_model::pod::Role::Sidecar.field_path(name)),
            event_type,
            reason: "BackOff".into(),
            message: "it \"failed\"".to_owned(),
            count,
            first_seen: Timestamp::new(1_000, 123_456_789).unwrap(),
            last_seen: Timestamp::from_second(2_000).unwrap(),
        };
        let all = [
            event(Some((key, PodUid::new("u1"))), Some("main"), EventType::Warning, 7),
            event(None, None, EventType::Normal, 1),
        ];
        write(&path, all.iter().map(|event| event.as_kubernetes("edge1")).collect()).unwrap();
        assert_eq!(read(&path).unwrap(), all);
        write(&path, Vec::new()).unwrap();
        assert!(!path.exists());
        fs::write(&path, "{").unwrap();
        read(&path).unwrap_err();
    }
}
