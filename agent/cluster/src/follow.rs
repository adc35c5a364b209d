//! Follows the objects that a selector matches: a list, then the changes, while the agent runs.
//!
//! The list of Pods is the beginning of their watch, which costs the server less and saves a request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::followed::Update;
use super::lease::Lease;
use super::link::{BUSY, Link};
use super::own_change::OwnChangesSeen;
use limpet_apiserver_client::watch::{Change, Watch};
use limpet_apiserver_client::{Request, RequestError, Resource, Selector, WatchFrom};

/// After this to twice this time the server ends a watch, as client-go requests.
const WATCH_TIMEOUT: Duration = Duration::from_secs(300);
/// The same for objects that pods refer to, as kubelet requests it for ConfigMaps and Secrets: a node has many such
/// watches.
const LONG_WATCH_TIMEOUT: Duration = Duration::from_secs(1800);
/// How much longer a watch runs before the agent ends it itself.
const WATCH_TIMEOUT_MARGIN: Duration = Duration::from_secs(30);
/// A shorter watch counts as a failure, so that a server that ends every watch immediately does not get requests
/// without pause.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct WatchTarget {
    pub(super) resource: Resource,
    pub(super) selector: Selector,
    /// Set for the one watch that detects whether there is a connection; the others wait for it.
    pub(super) leads: Option<Leader>,
}

/// What the leading watch has in addition.
#[derive(Debug)]
pub(super) struct Leader {
    /// The lease that is checked when the connection is back.
    pub(super) lease: Arc<Lease>,
    /// The agent's own changes of the followed objects.
    pub(super) own_changes: OwnChangesSeen,
}

/// The objects of a streaming list received so far, by UID.
type Listing = BTreeMap<String, Value>;

impl WatchTarget {
    /// Whether its list may be the beginning of its watch. This needs bookmarks, which only watches of Pods request.
    fn may_stream(&self) -> bool {
        self.resource.has_bookmarks()
    }

    fn shortest_limit(&self) -> Duration {
        match self.leads.is_some() || self.resource.has_bookmarks() {
            true => WATCH_TIMEOUT,
            false => LONG_WATCH_TIMEOUT,
        }
    }

    /// Resolves once the agent begins to change a followed object.
    async fn own_change_begins(&mut self) {
        match &mut self.leads {
            Some(leader) => leader.own_changes.begins().await,
            None => std::future::pending().await,
        }
    }

    /// Whether the agent has changed a followed object since the watch began, or is changing it.
    fn has_own_change(&self) -> bool {
        self.leads.as_ref().is_some_and(|leader| leader.own_changes.is_new())
    }

    /// Waits until the agent is not changing a followed object; see [`OwnChangesSeen::end`].
    async fn own_change_ends(&mut self) -> Option<String> {
        self.leads.as_mut()?.own_changes.end().await
    }
}

/// How the next session begins.
#[derive(Debug, Clone, PartialEq)]
enum Start {
    /// With the newest list.
    Newest,
    /// With a list of this version or a later one. It costs the server less, as many nodes may list at once.
    Since(String),
    /// With a watch from this version.
    Watch(String),
}

impl Start {
    /// The streaming list to request; `None` if the session needs no list.
    fn as_streaming_list(&self) -> Option<WatchFrom<'_>> {
        match self {
            Self::Newest => Some(WatchFrom::All(None)),
            Self::Since(version) => Some(WatchFrom::All(Some(version))),
            Self::Watch(_) => None,
        }
    }

    /// Skips over the agent's own change, which need not be watched.
    fn skip_own_change(&mut self, made: Option<String>) {
        if let (Self::Watch(version), Some(made)) = (self, made) {
            *version = made;
        }
    }

    /// The start after the server has refused the version. If a list at a version is refused too, the server has lost
    /// that version.
    fn refused(self) -> Self {
        match self {
            Self::Watch(version) => Self::Since(version),
            Self::Since(_) | Self::Newest => Self::Newest,
        }
    }
}

/// Sends every update until the receiver is dropped.
pub(super) async fn follow(link: Link, mut what: WatchTarget, updates: mpsc::Sender<Update>) {
    let (mut failures, mut start, mut unanswered) = (0_u32, Start::Newest, false);
    let mut beginnings = link.beginnings();
    while !updates.is_closed() {
        if what.leads.is_none() {
            link.online().await;
        }
        start.skip_own_change(what.own_change_ends().await);
        if beginnings.has_changed().unwrap_or(false) {
            beginnings.mark_unchanged();
            start = Start::Newest;
        }
        let begun = Instant::now();
        let (ended, watched) = session(&link, &mut what, &updates, &mut start).await;
        if beginnings.has_changed().unwrap_or(false) {
            continue;
        }
        let lasted = watched.is_some_and(|watched| watched >= MIN_WATCH_DURATION);
        let asked = match &ended {
            Ok(()) if lasted || what.has_own_change() => {
                (failures, unanswered) = (0, false);
                continue;
            }
            Ok(()) => None,
            // The version is too old, or newer than the server's, so the next session begins with a list.
            Err(error) if error.is_expired() => {
                start = start.refused();
                None
            }
            Err(error) => {
                tracing::debug!(resource = what.resource.kind(), %error, "watching a resource failed");
                if what.leads.is_some() {
                    link.leader_failed(error);
                }
                error.retry_after()
            }
        };
        let code = ended.map_or_else(|error| error.code(), |()| None);
        // A server that answers again but is busy starts a new series of failures.
        failures = if unanswered && code == Some(BUSY) { 1 } else { failures_after(failures, watched) };
        unanswered = code.is_none();
        let took = if watched.is_none() { begun.elapsed() } else { Duration::ZERO };
        if link.pause_after(failures, asked, took).await {
            failures = 0;
        }
    }
}

/// The number of failures in a row after one more, of a session that watched for this long; `None` if no watch began.
/// An answer that does not arrive takes long too, and is a failure like others.
fn failures_after(failures: u32, watched: Option<Duration>) -> u32 {
    match watched {
        Some(watched) if watched >= MIN_WATCH_DURATION => 1,
        _ => failures.saturating_add(1),
    }
}

/// Begins a watch and passes on its updates until the server or the connection ends it. Returns how long it watched.
async fn session(
    link: &Link,
    what: &mut WatchTarget,
    updates: &mpsc::Sender<Update>,
    start: &mut Start,
) -> (Result<(), RequestError>, Option<Duration>) {
    // Subscribed before the first answer, which may show that the cluster was restored.
    let beginnings = link.beginnings();
    let shortest = what.shortest_limit();
    let limit = shortest + Duration::from_secs(fastrand::u64(0..shortest.as_secs()));
    let mut streams = what.may_stream() && link.streams_lists();
    loop {
        let (ended, watched) = match begin(link, what, updates, (start, streams), limit).await {
            Ok(None) => (Ok(()), None),
            Ok(Some((watch, list))) => {
                let begun = Instant::now();
                let ended = pass_on((link, what, beginnings.clone()), (watch, list), updates, start, limit).await;
                (ended, Some(begun.elapsed()))
            }
            Err(error) => (Err(error), None),
        };
        let is_incomplete = streams && start.as_streaming_list().is_some();
        let is_ended_here = beginnings.has_changed().unwrap_or(false) || !link.is_online();
        if !is_incomplete || is_ended_here || !wants_list(&ended) {
            return (ended, watched);
        }
        if ended.is_err_and(|error| lacks_streaming_lists(&error)) {
            link.set_no_streaming_lists();
        }
        streams = false;
    }
}

/// Begins a watch. Without a version to watch from, it lists first or streams the list; the objects received of a
/// streaming list belong into the map that is returned with the watch. `None` if the connection was lost before the
/// list was passed on.
async fn begin(
    link: &Link,
    what: &WatchTarget,
    updates: &mpsc::Sender<Update>,
    (start, streams): (&mut Start, bool),
    limit: Duration,
) -> Result<Option<(Watch, Option<Listing>)>, RequestError> {
    if let Some(from) = start.as_streaming_list().filter(|_| streams) {
        let watch = link.watch(what.resource.clone(), &what.selector, from, limit).await?;
        return Ok(Some((watch, Some(Listing::new()))));
    }
    let request = match start {
        Start::Watch(_) => None,
        Start::Newest => Some(Request::list(what.resource.clone(), &what.selector)),
        Start::Since(version) => Some(Request::list_since(what.resource.clone(), &what.selector, version)),
    };
    if let Some(request) = request {
        list(link, what, updates, start, request).await?;
    }
    let Start::Watch(from) = start.clone() else { return Ok(None) };
    let watch = link.watch(what.resource.clone(), &what.selector, WatchFrom::Version(&from), limit).await?;
    answered(link, what).await?;
    Ok(Some((watch, None)))
}

/// Applies a change to the received part of a streaming list.
fn add(list: &mut Listing, change: Change) {
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    match change {
        Change::Stored(object) => drop(list.insert(uid(&object), object)),
        Change::Deleted(object) => drop(list.remove(&uid(&object))),
        Change::Bookmark(_) | Change::AllSent(_) => {}
    }
}

/// Whether a normal list should replace a streaming list that ended like this before it was complete: it was refused,
/// or the server cannot determine the watch's progress, or does not mark the end of the list.
fn wants_list(ended: &Result<(), RequestError>) -> bool {
    match ended {
        Ok(()) => true,
        Err(error) => matches!(error.code(), Some(400 | 422 | 500 | 504)),
    }
}

/// Whether this refusal means that the server has no streaming lists: it does not know them, or its etcd is older
/// than 3.4.31.
fn lacks_streaming_lists(error: &RequestError) -> bool {
    match error {
        RequestError::Refused { code: 500, message, .. } => message.contains("required storage feature"),
        error => matches!(error.code(), Some(400 | 422)),
    }
}

/// Passes on the watch's updates until the server or the connection ends it. `list` has the received part of a
/// streaming list.
async fn pass_on(
    (link, what, mut beginnings): (&Link, &mut WatchTarget, watch::Receiver<u64>),
    (mut watch, mut list): (Watch, Option<Listing>),
    updates: &mpsc::Sender<Update>,
    start: &mut Start,
    limit: Duration,
) -> Result<(), RequestError> {
    let mut lost = std::pin::pin!(link.lost());
    let mut overdue = std::pin::pin!(tokio::time::sleep(limit + WATCH_TIMEOUT_MARGIN));
    loop {
        let change = tokio::select! {
            biased;
            // A restored server sends nothing before it has reached the version at which the watch began.
            Ok(()) = beginnings.changed() => return Ok(()),
            // The connection may swallow packets.
            () = &mut lost => return Ok(()),
            () = &mut overdue => return Ok(()),
            () = what.own_change_begins() => return Ok(()),
            change = watch.next() => change,
        };
        let Some(change) = change.transpose()? else { return Ok(()) };
        if let Some(list) = list.as_mut().filter(|_| !matches!(change, Change::AllSent(_))) {
            // Changes are collected until the list is complete.
            add(list, change);
            continue;
        }
        let at = change.version().map(str::to_owned);
        let update = match change {
            Change::Stored(object) => Update::Stored(object),
            Change::Deleted(object) => Update::Deleted(object),
            Change::Bookmark(version) => Update::Bookmark(version),
            Change::AllSent(version) => match list.take() {
                Some(list) => Update::Listed(list.into_values().collect(), version),
                None => Update::Bookmark(version),
            },
        };
        if let Some(at) = &at {
            reached(link, what, at);
        }
        if !pass(link, what, updates, update).await {
            return Ok(());
        }
        if let Some(at) = at {
            *start = Start::Watch(at);
        }
    }
}

/// Passes an update on and returns true. While the queue is full, the leading watch still notices that the connection
/// is lost, because it has to find the next one; it then returns false.
async fn pass(link: &Link, what: &WatchTarget, updates: &mpsc::Sender<Update>, update: Update) -> bool {
    tokio::select! {
        biased;
        // The caller notices a receiver that is gone.
        _ = updates.send(update) => true,
        () = link.lost(), if what.leads.is_some() => false,
    }
}

/// Records the version that the Pods have reached.
fn reached(link: &Link, what: &WatchTarget, version: &str) {
    if what.resource == Resource::AllPods {
        link.pods_reached(version.parse().unwrap_or_default());
    }
}

/// Passes on a list. The next session watches from the list's version.
async fn list(
    link: &Link,
    what: &WatchTarget,
    updates: &mpsc::Sender<Update>,
    start: &mut Start,
    request: Request,
) -> Result<(), RequestError> {
    let mut list = link.send(request).await?;
    let at = list["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    let at = at.ok_or_else(|| RequestError::Unreadable("a list without a version".to_owned()))?;
    let items = match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    answered(link, what).await?;
    reached(link, what, &at);
    if pass(link, what, updates, Update::Listed(items, at.clone())).await {
        *start = Start::Watch(at);
    }
    Ok(())
}

/// Records that the server has answered. The leading watch's first answer counts only after the lease was checked.
async fn answered(link: &Link, what: &WatchTarget) -> Result<(), RequestError> {
    if let Some(Leader { lease, .. }) = &what.leads {
        // Without the lease the cluster may be a restored one, on which watches would wait for versions that it has
        // not reached. The leading watch may have listed because its own version was dropped, while other watches
        // still have theirs.
        if !link.is_online() && !lease.check().await? {
            link.list_again();
        }
        link.succeeded();
    }
    Ok(())
}

#[cfg(test)]
mod tests;
