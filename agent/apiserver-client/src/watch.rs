//! Watches: reports changes of the objects that a selector matches.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kube::core::watch::BookmarkMeta;
use kube::core::{Status, WatchEvent};
use limpet_model::error_chain::causes;
use serde_json::Value;

use crate::body::Body;
use crate::client::{Client, DEADLINE, MAX_REFUSAL, refusal};
use crate::error::RequestError;
use crate::lines::{LineError, Lines};
use crate::request::{Request, Resource, Selector, WatchFrom};

#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The new state of a new or changed object.
    Stored(Value),
    /// The last state of a deleted object.
    Deleted(Value),
    /// Nothing changed; the watch has reached this version.
    Bookmark(String),
    /// All initial objects have been sent, as of this version. Sent after [`WatchFrom::All`].
    AllSent(String),
}

/// The annotation of the bookmark that follows the initial objects.
const ALL_SENT: &str = "k8s.io/initial-events-end";

impl Change {
    /// The version at which a watch may begin after this change.
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Stored(object) | Self::Deleted(object) => object["metadata"]["resourceVersion"].as_str(),
            Self::Bookmark(version) | Self::AllSent(version) => Some(version),
        }
    }
}

/// The changes from a server, until it ends the watch.
pub struct Watch {
    lines: Lines<Body>,
    received_count: Arc<AtomicU64>,
}

impl Watch {
    /// The next change; `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Change, RequestError>> {
        let arrived = || _ = self.received_count.fetch_add(1, Ordering::Relaxed);
        loop {
            let line = match self.lines.next(arrived).await? {
                Ok(line) => line,
                Err(LineError::Body(error)) if breaks_off(&*error) => return None,
                Err(LineError::Body(error)) => return Some(Err(error.into())),
                Err(error @ LineError::TooLong) => return Some(Err(RequestError::Unreadable(error.to_string()))),
            };
            match serde_json::from_slice(&line) {
                Ok(event) => return Some(change(event)),
                // The last line was truncated.
                Err(error) if error.is_eof() => {}
                Err(error) => {
                    let status = serde_json::from_slice::<Status>(&line);
                    let unreadable = |_| RequestError::Unreadable(error.to_string());
                    return Some(Err(status.map_or_else(unreadable, |status| RequestError::refused(&status))));
                }
            }
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

fn change(event: WatchEvent<Value>) -> Result<Change, RequestError> {
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => Ok(Change::Stored(object)),
        WatchEvent::Deleted(object) => Ok(Change::Deleted(object)),
        WatchEvent::Bookmark(bookmark) => {
            let BookmarkMeta { resource_version, annotations } = bookmark.metadata;
            let all_sent = annotations.get(ALL_SENT).is_some_and(|value| value == "true");
            Ok(if all_sent { Change::AllSent(resource_version) } else { Change::Bookmark(resource_version) })
        }
        WatchEvent::Error(status) => Err(RequestError::refused(&status)),
    }
}

/// Whether the server has closed its connection, which TLS and chunked encoding report as errors. It ends a watch
/// like any other end.
fn breaks_off(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof)
            || cause.to_string().contains("unexpected EOF during chunk")
    })
}

impl Client {
    /// Watches the objects that the selector matches. The server ends the watch after `limit`.
    ///
    /// # Errors
    ///
    /// As for every request; [`RequestError::is_expired`] requires a new list.
    pub async fn watch(
        &self,
        resource: Resource,
        selector: &Selector,
        from: WatchFrom<'_>,
        limit: Duration,
    ) -> Result<Watch, RequestError> {
        let request = Request::watch(resource, selector, from, limit.as_secs());
        let request = request.into_http().map_err(|error| RequestError::Unreadable(error.to_string()))?;
        let begun = tokio::time::timeout(DEADLINE, self.begin(request)).await;
        let (head, body) = begun.map_err(|_| RequestError::Deadline(DEADLINE))??.into_parts();
        if head.status.is_client_error() || head.status.is_server_error() {
            let bytes = self.whole(body, MAX_REFUSAL).await?;
            return Err(refusal(&head, &bytes));
        }
        Ok(Watch { lines: Lines::new(body), received_count: Arc::clone(&self.received_count) })
    }
}
