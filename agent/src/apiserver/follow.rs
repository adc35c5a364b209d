//! Follows what a selector matches: a list, then the changes, for as long as the agent runs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::lease::Lease;
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
#[derive(Debug)]
pub(super) struct Followed {
    /// What to list and watch.
    pub(super) resource: Resource,
    /// The field selector.
    pub(super) fields: String,
    /// It is this one that finds out whether there is a connection, and looks at the lease then; the others wait for it.
    pub(super) leads: Option<Arc<Lease>>,
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
    let mut beginnings = link.beginnings();
    while !updates.is_closed() {
        if what.leads.is_none() {
            link.online().await;
        }
        if beginnings.has_changed().unwrap_or(false) {
            beginnings.mark_unchanged();
            version = None;
        }
        let begun = Instant::now();
        let ended = session(&link, &what, &updates, &mut version).await;
        if beginnings.has_changed().unwrap_or(false) {
            continue;
        }
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
                if what.leads.is_some() {
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
    let mut beginnings = link.beginnings();
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
            answered(link, what).await?;
            let _ = updates.send(Update::Listed(items, at.clone())).await;
            version.insert(at).clone()
        }
    };
    let limit = LIMIT + Duration::from_secs(fastrand::u64(0..LIMIT.as_secs()));
    let mut watch = link.watch(what.resource.clone(), &what.fields, &from, limit).await?;
    answered(link, what).await?;
    let mut lost = std::pin::pin!(link.lost());
    let mut overdue = std::pin::pin!(tokio::time::sleep(limit + OVERDUE));
    loop {
        let change = tokio::select! {
            change = watch.next() => change,
            // Its connection may be one that swallows packets.
            () = &mut lost => return Ok(()),
            () = &mut overdue => return Ok(()),
            // Of an older state the server sends nothing before it has come to the version that the watch began at.
            Ok(()) = beginnings.changed() => return Ok(()),
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

/// The server has answered. The first answer to what leads counts once the lease was looked at.
async fn answered(link: &Link, what: &Followed) -> Result<(), RequestError> {
    if let Some(lease) = &what.leads {
        if !link.is_online() {
            lease.check().await?;
        }
        link.succeeded();
    }
    Ok(())
}
