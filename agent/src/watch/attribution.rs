//! Who did what an event of the watch is about: the watch and its attributor brought together.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Actors, DirectoryWatch, RescanReason};
use crate::attribution::{Outlook, Place};
use limpet_model::actor::Actor;
use limpet_model::attribution::Backend;
use limpet_model::directory_id::DirectoryId;

impl DirectoryWatch {
    /// Hears who does what, and leaves what it means to the next event. Resolves whenever something was heard. Cancel safe.
    pub async fn listen(&mut self) {
        let outlook = self.attributor.look().await;
        self.doubt(outlook);
    }

    /// Who did what the last event is about, as far as it is known.
    pub fn actors(&self) -> Actors {
        self.told.iter().map(|(name, (_, actor))| (name.clone(), Arc::clone(actor))).collect()
    }

    /// Whether `actor` was the last one at the name that [`Self::actors`] told of: what was read since is theirs.
    pub fn is_certain(&mut self, name: &OsStr, actor: &Arc<Actor>) -> bool {
        self.told.get(name).is_none_or(|(place, _)| !self.attributor.is_overtaken(place, actor))
    }

    /// What is at work.
    pub fn backend(&self) -> Backend {
        self.attributor.backend()
    }

    pub(super) fn doubt(&mut self, outlook: Outlook) {
        if outlook == Outlook::Lost {
            self.pending.get_or_insert(RescanReason::Attributor);
        }
    }

    /// Asks the attributor about what is handled next. Cancel safe.
    pub(super) async fn attribute(&mut self) {
        let places: Vec<&Place> = self.hinted.values().flatten().collect();
        let outlook = self.attributor.settle(&places).await;
        self.doubt(outlook);
        self.told.clear();
        self.attributor.tidy();
        for (name, place) in &self.hinted {
            let Some(place) = place else { continue };
            if let Some(actor) = self.attributor.who(place) {
                self.told.insert(name.clone(), (place.clone(), actor));
            }
        }
        if self.pending.is_some()
            && let Some((_, id)) = self.main
        {
            for (name, actor) in self.attributor.who_all(id) {
                self.told.entry(name.clone()).or_insert(((id, name), actor));
            }
        }
        if let Some(at) = self.drained.take() {
            self.attributor.caught_up(at);
        }
    }

    /// Shows the attributor what to look at.
    pub(super) fn point_attributor(&mut self) {
        let main = self.main.iter().map(|(wd, id)| (*wd, *id));
        let links = self.link_ids.iter().map(|(wd, id)| (*wd, *id));
        let mut directories: Vec<(PathBuf, DirectoryId)> = Vec::new();
        for (wd, id) in main.chain(links) {
            if let Some(path) = self.queue.path(wd).filter(|_| directories.iter().all(|(_, known)| *known != id)) {
                directories.push((path.to_owned(), id));
            }
        }
        self.attributor.look_at(directories);
    }
}
