//! Follows what a selector matches: a list, then the changes, for as long as the agent runs.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::link::Link;
use limpet_apiserver::watch::Change;
use limpet_apiserver::{Request, RequestError, Resource};

/// The server ends a watch after this long, and up to twice of it, as client-go asks for.
const LIMIT: Duration = Duration::from_secs(300);
/// A server that does not end it is left so much later.
const OVERDUE: Duration = Duration::from_secs(30);
/// A watch that ended sooner counts as a failure, so that a server that ends each at once is not asked without pause.
const SHORTEST: Duration = Duration::from_secs(1);

/// What is followed.
#[derive(Debug, Clone)]
pub(super) struct Followed {
    /// What to list and watch.
    pub(super) resource: Resource,
    /// The field selector.
    pub(super) fields: String,
    /// It is this one that finds out whether there is a connection; the others wait for it.
    pub(super) leads: bool,
}

/// A change of the objects that are followed.
#[derive(Debug)]
pub(super) enum Update {
    /// All there are, after which nothing that was known counts, and the version of the list.
    Listed(Vec<Value>, String),
    /// One is new or was changed.
    Stored(Value),
    /// One is gone.
    Deleted(Value),
    /// Nothing has changed up to this version.
    Bookmark(String),
}

/// Sends every update; ends once the receiver is dropped.
pub(super) async fn follow(link: Link, what: Followed, updates: mpsc::Sender<Update>) {
    let (mut failures, mut version) = (0_u32, None);
    while !updates.is_closed() {
        if !what.leads {
            link.online().await;
        }
        let begun = Instant::now();
        let ended = session(&link, &what, &updates, &mut version).await;
        let lasted = begun.elapsed() >= SHORTEST;
        if lasted {
            failures = 0;
        }
        let asked = match &ended {
            Ok(()) if lasted => continue,
            Ok(()) => None,
            // Too old a version: the next session begins with a list.
            Err(error) if error.is_expired() => {
                version = None;
                None
            }
            Err(error) => {
                tracing::debug!(resource = what.resource.kind(), %error, "not followed");
                if what.leads {
                    link.leader_failed(error);
                }
                error.retry_after()
            }
        };
        failures += 1;
        if link.pause(failures, asked).await {
            failures = 0;
        }
    }
}

/// Lists when there is no version to go on from, then watches until the server or the connection ends it.
async fn session(
    link: &Link,
    what: &Followed,
    updates: &mpsc::Sender<Update>,
    version: &mut Option<String>,
) -> Result<(), RequestError> {
    let from = match version.clone() {
        Some(version) => version,
        None => {
            let mut list = link.send(Request::list(what.resource.clone(), &what.fields)).await?;
            let at = list["metadata"]["resourceVersion"].as_str().map(str::to_owned);
            let at = at.ok_or_else(|| RequestError::Unreadable("a list without a version".to_owned()))?;
            let items = match list["items"].take() {
                Value::Array(items) => items,
                _ => Vec::new(),
            };
            if what.leads {
                link.succeeded();
            }
            let _ = updates.send(Update::Listed(items, at.clone())).await;
            version.insert(at).clone()
        }
    };
    let limit = LIMIT + Duration::from_secs(fastrand::u64(0..LIMIT.as_secs()));
    let mut watch = link.watch(what.resource.clone(), &what.fields, &from, limit).await?;
    if what.leads {
        link.succeeded();
    }
    let mut lost = std::pin::pin!(link.lost());
    let mut overdue = std::pin::pin!(tokio::time::sleep(limit + OVERDUE));
    loop {
        let change = tokio::select! {
            change = watch.next() => change,
            // Its connection may be one that swallows packets.
            () = &mut lost => return Ok(()),
            () = &mut overdue => return Ok(()),
        };
        let Some(change) = change.transpose()? else { return Ok(()) };
        if let Some(at) = change.version() {
            *version = Some(at.to_owned());
        }
        let update = match change {
            Change::Stored(object) => Update::Stored(object),
            Change::Deleted(object) => Update::Deleted(object),
            Change::Bookmark(version) => Update::Bookmark(version),
        };
        let _ = updates.send(update).await;
    }
}
