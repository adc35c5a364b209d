//! Keeps the status of the network up to date with the configuration directory.

use std::io;

use tokio_util::sync::CancellationToken;

use super::Network;
use super::conflist::{ConfigError, Conflist};
use crate::path_watch::PathWatch;
use crate::watch_again::{Attempts, WATCH_AGAIN};

/// The content of the directory when it was last read.
type Known = Option<Result<Conflist, ConfigError>>;

impl Network {
    /// Keeps the status up to date until `stop`, and calls `changed` after each change of the configuration. If
    /// inotify is unavailable (its limits are used up), the directory is read once a minute, and at every attach.
    pub async fn watch(&self, stop: CancellationToken, changed: impl Fn()) {
        stop.run_until_cancelled(async {
            let (mut known, mut attempts) = (None, Attempts::new(WATCH_AGAIN));
            loop {
                let Err(error) = self.follow(&mut known, &changed).await else { continue };
                let report = |error: &io::Error| {
                    tracing::warn!(
                        directory = %self.inner.conf_dir.display(), %error,
                        "the CNI configuration cannot be watched; it is read once a minute; \
                         raise fs.inotify.max_user_instances and max_user_watches"
                    );
                };
                attempts.failed(&error, report).await;
            }
        })
        .await;
    }

    async fn follow(&self, known: &mut Known, changed: &impl Fn()) -> io::Result<()> {
        let mut watch = PathWatch::directory(&self.inner.conf_dir).await;
        loop {
            let (read, status_changed) = self.read_config().await;
            if status_changed || known.as_ref().is_some_and(|known| *known != read) {
                tracing::info!(status = %self.status(), "CNI configuration changed");
                changed();
            }
            *known = Some(read);
            match &mut watch {
                Ok(watch) => watch.changed().await?,
                Err(error) => return Err(std::mem::replace(error, io::ErrorKind::Other.into())),
            }
        }
    }
}
