//! The file source and its watch: what an event calls for, who is behind it, and how often everything is looked at
//! although nothing was told.

use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use super::FileSource;
use crate::watch::{DirectoryWatch, WatchEvent};
use limpet_core::source::{Health, SourceSnapshot};

impl FileSource {
    pub(super) async fn handle(&mut self, event: std::io::Result<WatchEvent>, publish: &impl Fn(Arc<SourceSnapshot>)) {
        self.take_actors();
        match event {
            Ok(WatchEvent::Hint(names)) if self.health == Health::Good => {
                let names = names.iter().filter_map(|name| name.to_str()).filter(|name| self.place.counts(name));
                let names = names.map(Arc::from).collect();
                return self.look_at(names, publish).await;
            }
            Ok(WatchEvent::Hint(_)) => {}
            Ok(WatchEvent::Rescan(reason)) => {
                debug!(?reason, directory = %self.place.directory.display(), "rescan");
            }
            Err(error) => self.go_blind(&error),
        }
        self.look_at_all(publish).await;
    }

    pub(super) fn set_resync(&mut self) {
        let sees_all = self.watch.is_some() && self.unseen.is_none();
        let pause = if sees_all { self.pace.watched } else { self.pace.blind };
        self.resync = Instant::now() + jittered(pause);
    }

    pub(super) fn open_watch(&mut self) {
        match DirectoryWatch::with_attribution(&self.place.directory, self.settings.clone(), self.feeds.take()) {
            Ok(watch) => {
                self.watch = Some(watch);
                self.blind = None;
                self.links.clear();
            }
            Err(error) => self.go_blind(&error),
        }
    }

    /// The kernel tells nothing of changes from now on; [`Health`] says so.
    pub(super) fn go_blind(&mut self, error: &std::io::Error) {
        self.watch = None;
        self.blind = Some(format!("reading every {} s: {error}", self.pace.blind.as_secs()).into());
        self.set_resync();
    }

    /// Who did what is looked at now.
    pub(super) fn take_actors(&mut self) {
        let told = self.watch.as_ref().map(DirectoryWatch::actors).unwrap_or_default();
        let named = told.into_iter().filter_map(|(name, actor)| Some((Arc::from(name.to_str()?), actor)));
        self.actors = named.collect();
    }

    /// What was read of a file that somebody else has been at meanwhile may be theirs.
    pub(super) fn drop_uncertain(&mut self) {
        if let Some(watch) = &mut self.watch {
            self.actors.retain(|name, actor| watch.is_certain(OsStr::new(&**name), actor));
        }
    }

    /// What tells of changes, for people.
    pub(super) fn backend(&self) -> String {
        let backend = self.watch.as_ref().map_or("", |watch| watch.backend().as_str());
        match self.unseen {
            Some(unseen) => {
                let seconds = self.pace.blind.as_secs();
                format!("{backend}; {unseen} hides changes: read every {seconds} s")
            }
            None => backend.to_owned(),
        }
    }
}

/// Within a tenth of `period`, so that many nodes on one network file system do not read at once.
fn jittered(period: Duration) -> Duration {
    let dice = u32::try_from(RandomState::new().hash_one(()) % 201).unwrap_or(100);
    period * (900 + dice) / 1_000
}

pub(super) async fn next_event(watch: Option<&mut DirectoryWatch>) -> std::io::Result<WatchEvent> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

pub(super) async fn listen(watch: Option<&mut DirectoryWatch>) {
    match watch {
        Some(watch) => watch.listen().await,
        None => std::future::pending().await,
    }
}
