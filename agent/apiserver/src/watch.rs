//! Watches: the changes of what a selector matches, as they happen.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use hyper::http;
use kube::core::WatchEvent;
use kube::core::watch::BookmarkMeta;
use serde_json::Value;

use crate::client::{Client, DEADLINE, begin};
use crate::error::RequestError;
use crate::request::{Request, Resource, Selector, WatchFrom};

/// One change.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// An object is new, or was changed: this is how it is now.
    Stored(Value),
    /// An object is gone: this is how it was.
    Deleted(Value),
    /// Nothing changed; the watch has reached this version.
    Bookmark(String),
    /// All that there was has been sent, as of this version: of a watch that began with [`WatchFrom::All`].
    AllSent(String),
}

/// The annotation of the bookmark after all that there was.
const ALL_SENT: &str = "k8s.io/initial-events-end";

impl Change {
    /// The version that a watch may begin at after it.
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Stored(object) | Self::Deleted(object) => object["metadata"]["resourceVersion"].as_str(),
            Self::Bookmark(version) | Self::AllSent(version) => Some(version),
        }
    }
}

/// The changes that a server sends, until it ends the watch.
pub struct Watch(BoxStream<'static, Result<Change, RequestError>>);

impl Watch {
    /// The next change; `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Change, RequestError>> {
        self.0.next().await
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Client {
    /// Watches what matches the selector. The server ends it after `limit`.
    ///
    /// # Errors
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
        let send = |request: http::Request<Vec<u8>>| self.inner.request_events::<Value>(request);
        let begun = tokio::time::timeout(DEADLINE, begin(request, send)).await;
        let events = begun.map_err(|_| RequestError::Deadline(DEADLINE))??;
        let received_count = Arc::clone(&self.received_count);
        let changes = events.inspect(move |_| _ = received_count.fetch_add(1, Ordering::Relaxed));
        let changes = changes.map(|event| match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => Ok(Change::Stored(object)),
            Ok(WatchEvent::Deleted(object)) => Ok(Change::Deleted(object)),
            Ok(WatchEvent::Bookmark(bookmark)) => {
                let BookmarkMeta { resource_version, annotations } = bookmark.metadata;
                let all_sent = annotations.get(ALL_SENT).is_some_and(|value| value == "true");
                Ok(if all_sent { Change::AllSent(resource_version) } else { Change::Bookmark(resource_version) })
            }
            Ok(WatchEvent::Error(status)) => Err(RequestError::refused(&status)),
            Err(error) => Err(error.into()),
        });
        Ok(Watch(changes.boxed()))
    }
}
