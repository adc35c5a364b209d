//! The file source's watch: event handling, attribution of changes, and periodic rescans without events.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use super::FileSource;
use limpet_core::jitter;
use limpet_core::source::{Health, SourceSnapshot};
use limpet_watch::{DirectoryWatch, WatchEvent};

impl FileSource {
    pub(super) async fn handle(&mut self, event: std::io::Result<WatchEvent>, publish: &impl Fn(Arc<SourceSnapshot>)) {
        self.take_actors();
        match event {
            Ok(WatchEvent::Hint(names)) if self.health == Health::Good => {
                let names = names.iter().filter_map(|name| name.to_str()).filter(|name| self.scanner.is_manifest(name));
                let names = names.map(Arc::from).collect();
                return self.rescan(names, publish).await;
            }
            Ok(WatchEvent::Hint(_)) => {}
            Ok(WatchEvent::Rescan(reason)) => {
                debug!(?reason, directory = %self.scanner.directory.display(), "rescan");
            }
            Err(error) => self.lose_watch(&error),
        }
        self.rescan_all(publish).await;
    }

    pub(super) fn set_resync(&mut self) {
        let is_watched = self.watch.is_some() && self.unwatched_fs.is_none();
        let pause = if is_watched { self.periods.watched } else { self.periods.blind };
        self.resync = Instant::now() + jittered(pause);
    }

    pub(super) async fn open_watch(&mut self) {
        match DirectoryWatch::with_attribution(&self.scanner.directory, self.settings.clone(), self.feeds.take()).await
        {
            Ok(watch) => {
                self.watch = Some(watch);
                self.blind = None;
                self.links.clear();
            }
            Err(error) => self.lose_watch(&error),
        }
    }

    /// Records that there are no change notifications any more; [`Health`] reports it.
    pub(super) fn lose_watch(&mut self, error: &std::io::Error) {
        self.watch = None;
        self.blind = Some(format!("reading every {} s: {error}", self.periods.blind.as_secs()).into());
        self.set_resync();
    }

    /// Stores who made the changes that are scanned now.
    pub(super) fn take_actors(&mut self) {
        let actors = self.watch.as_ref().map(DirectoryWatch::actors).unwrap_or_default();
        let named = actors.into_iter().filter_map(|(name, actor)| Some((Arc::from(name.to_str()?), actor)));
        self.actors = named.collect();
    }

    /// Drops the actors of files that may have been changed by another process meanwhile.
    pub(super) fn drop_uncertain(&mut self) {
        if let Some(watch) = &mut self.watch {
            self.actors.retain(|name, actor| watch.is_certain(OsStr::new(&**name), actor));
        }
    }

    /// How it learns of changes, as shown to users.
    pub(super) fn backend(&self) -> String {
        let backend = self.watch.as_ref().map_or("", |watch| watch.backend().as_str());
        match self.unwatched_fs {
            Some(unwatched_fs) => {
                let seconds = self.periods.blind.as_secs();
                format!("{backend}; {unwatched_fs} hides changes: read every {seconds} s")
            }
            None => backend.to_owned(),
        }
    }
}

/// `period` with a jitter of a tenth, so that many nodes on one network file system do not read at the same time.
fn jittered(period: Duration) -> Duration {
    jitter::around(period, 100, fastrand::u64(..))
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
