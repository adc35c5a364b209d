//! Attribution of the watch's events: looks up in the [`Attributor`](crate::actors::Attributor) who made each change.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Actors, DirectoryWatch, RescanReason};
use crate::actors::{Completeness, DirectoryEntry};
use limpet_model::actor::Actor;
use limpet_model::attribution::Backend;
use limpet_model::directory_id::DirectoryId;

impl DirectoryWatch {
    /// Records who makes changes, for the next event. Resolves whenever something was recorded. Cancel safe.
    pub async fn listen(&mut self) {
        let completeness = self.attributor.read_events().await;
        self.rescan_if_lost(completeness);
    }

    /// Who made the changes of the last event, as far as it is known.
    pub fn actors(&self) -> Actors {
        self.actors.iter().map(|(name, (_, actor))| (name.clone(), Arc::clone(actor))).collect()
    }

    /// Whether `actor`, as [`Self::actors`] returned it, is still the last one to change the name, so that what was
    /// read is theirs.
    pub fn is_certain(&mut self, name: &OsStr, actor: &Arc<Actor>) -> bool {
        self.actors.get(name).is_none_or(|(entry, _)| !self.attributor.is_superseded(entry, actor))
    }

    /// The active backend.
    pub fn backend(&self) -> Backend {
        self.attributor.backend()
    }

    pub(super) fn rescan_if_lost(&mut self, completeness: Completeness) {
        if completeness == Completeness::EventsLost {
            self.pending.get_or_insert(RescanReason::Attributor);
        }
    }

    /// Looks up the actors of the changes that are handled next. Cancel safe.
    pub(super) async fn attribute(&mut self) {
        let entries: Vec<&DirectoryEntry> = self.hinted.values().flatten().collect();
        let completeness = self.attributor.wait_for(&entries).await;
        self.rescan_if_lost(completeness);
        self.attributor.marked().await;
        self.actors.clear();
        self.attributor.prune();
        for (name, entry) in &self.hinted {
            let Some(entry) = entry else { continue };
            if let Some(actor) = self.attributor.actor_of(entry) {
                self.actors.insert(name.clone(), (entry.clone(), actor));
            }
        }
        if self.pending.is_some()
            && let Some((_, id)) = self.main
        {
            for (name, actor) in self.attributor.actors_in(id) {
                self.actors.entry(name.clone()).or_insert(((id, name), actor));
            }
        }
        if let Some(at) = self.drained.take() {
            self.attributor.set_caught_up(at);
        }
    }

    /// Passes the watched directories to the attributor.
    pub(super) fn update_attributor(&mut self) {
        let main = self.main.iter().map(|(wd, id)| (*wd, *id));
        let links = self.link_ids.iter().map(|(wd, id)| (*wd, *id));
        let mut directories: Vec<(PathBuf, DirectoryId)> = Vec::new();
        for (wd, id) in main.chain(links) {
            if let Some(path) = self.queue.path(wd).filter(|_| directories.iter().all(|(_, known)| *known != id)) {
                directories.push((path.to_owned(), id));
            }
        }
        self.attributor.set_directories(directories);
    }
}
