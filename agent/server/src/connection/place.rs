//! Bounds how many connections each kind of caller may have open on a listener at once, and how many may become
//! streams.
//!
//! An unknown client of kubelet's API has one of few places until one of its requests is admitted, so a flood of
//! clients without credentials takes no place of the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::super::authorization::authorize;
use super::super::bodies::BodyPermits;
use super::super::caller::{Caller, Origin};
use super::super::permission::Standing;
use super::source::{PerSourceLimit, SlotPermit, Source};

/// The most open connections per listener. Further ones wait: those of the host in the kernel's accept queue, those
/// of a network for [`PLACE_TIMEOUT`].
pub(super) const MAX_CONNECTIONS: usize = 128;
/// The most open network connections whose clients are not identified yet. Further ones are closed at once.
pub(super) const MAX_UNKNOWN: usize = 512;
/// How long an identified network client waits for a place.
const PLACE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most open connections of refused callers. Further ones are closed at once.
pub(super) const MAX_REFUSED: usize = 8;
/// The most open connections of allowed pods, so that the host always gets a place.
pub(super) const MAX_OF_PODS: usize = 32;
/// The most open connections of clients with a certificate that the apiserver has not authorized yet.
const MAX_NAMED: usize = 64;
/// The most open connections of clients that have not sent a token yet.
pub(super) const MAX_UNNAMED: usize = 16;
/// The most connections of a listener that are streams: commands, terminals, forwarded ports.
pub(super) const MAX_STREAMS: usize = 256;

#[derive(Clone)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    /// The places of `all`, for anonymous clients, with a limit per source.
    anybody: PerSourceLimit,
    unknown: PerSourceLimit,
    refused: PerSourceLimit,
    pods: Arc<Semaphore>,
    named: Arc<Semaphore>,
    unnamed: PerSourceLimit,
    pub(super) bodies: BodyPermits,
    pub(super) streams: OpenStreams,
}

impl Default for Places {
    fn default() -> Self {
        let [all, pods, named] = [MAX_CONNECTIONS, MAX_OF_PODS, MAX_NAMED].map(|most| Arc::new(Semaphore::new(most)));
        let shared = |most| PerSourceLimit::new(Arc::new(Semaphore::new(most)), most);
        let anybody = PerSourceLimit::new(Arc::clone(&all), MAX_CONNECTIONS);
        let [unknown, refused, unnamed] = [MAX_UNKNOWN, MAX_REFUSED, MAX_UNNAMED].map(shared);
        let (bodies, streams) = (BodyPermits::default(), OpenStreams::default());
        Self { all, anybody, unknown, refused, pods, named, unnamed, bodies, streams }
    }
}

impl Places {
    /// A place for a connection from the host whose client is not identified yet.
    pub(super) async fn opening(&self) -> Option<SlotPermit> {
        Arc::clone(&self.all).acquire_owned().await.ok().map(SlotPermit::from)
    }

    /// A place for a connection from a network; `None` if too many are open in total or from this source.
    pub(super) fn unknown(&self, source: Source) -> Option<SlotPermit> {
        self.unknown.enter(Some(source))
    }

    /// Replaces the place that a connection had while it was opened by the place for its caller; `None` if too many
    /// of its kind are open.
    pub(super) async fn take(
        &self,
        opening: Option<SlotPermit>,
        caller: &Caller,
        source: Option<Source>,
    ) -> Option<ConnectionSlot> {
        let turn = async |places: &Arc<Semaphore>| {
            let turn = timeout(PLACE_TIMEOUT, Arc::clone(places).acquire_owned()).await;
            turn.ok().and_then(Result::ok).map(SlotPermit::from)
        };
        let (held, proven) = match caller {
            Caller::Network(client) => match client.standing() {
                Standing::Admitted => (turn(&self.all).await, true),
                Standing::Refused => (self.refused.enter(source), false),
                Standing::Asked if client.is_named() => (turn(&self.named).await, false),
                Standing::Asked => (self.unnamed.enter(source), false),
            },
            caller if is_refused(caller) => (self.refused.enter(source), false),
            Caller::Local { origin: Origin::AllowedPod(_), .. } => {
                (Arc::clone(&self.pods).try_acquire_owned().ok().map(SlotPermit::from), true)
            }
            // Each connection has needed a token.
            Caller::Streaming => (turn(&self.all).await, true),
            Caller::Local { .. } => (opening, true),
            // Clients of these ports never show credentials, so each source gets a share of the places.
            Caller::Anonymous | Caller::ReadOnly if source.is_some() => (self.anybody.enter(source), false),
            Caller::Anonymous | Caller::ReadOnly => (opening, false),
        };
        let held = Mutex::new(Some(held?));
        Some(ConnectionSlot(Arc::new(SlotState { held, all: Arc::clone(&self.all), proven: AtomicBool::new(proven) })))
    }
}

/// Whether the caller may use no route at all.
pub(super) fn is_refused(caller: &Caller) -> bool {
    match caller {
        Caller::Network(client) => client.standing() == Standing::Refused,
        caller => authorize(caller, None).is_err(),
    }
}

/// One connection's place; an extension of each of its requests.
#[derive(Clone)]
pub(crate) struct ConnectionSlot(Arc<SlotState>);

struct SlotState {
    held: Mutex<Option<SlotPermit>>,
    all: Arc<Semaphore>,
    proven: AtomicBool,
}

impl ConnectionSlot {
    /// Records that a request of the client is admitted. The connection moves to the places of admitted clients if
    /// one is free.
    pub(crate) fn prove(&self) {
        if self.0.proven.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_some()
            && let Ok(better) = Arc::clone(&self.0.all).try_acquire_owned()
        {
            *held = Some(SlotPermit::from(better));
        }
    }

    /// Whether a request of the client was admitted.
    pub(crate) fn is_proven(&self) -> bool {
        self.0.proven.load(Ordering::Relaxed)
    }

    /// Records that the connection has ended.
    pub(super) fn leave(&self) {
        *self.0.held.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The places of a listener's streams; an extension of each request.
#[derive(Clone)]
pub(crate) struct OpenStreams(Arc<Semaphore>);

/// A stream's place, held until the stream ends.
pub(crate) type StreamPlace = OwnedSemaphorePermit;

impl Default for OpenStreams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_STREAMS)))
    }
}

impl OpenStreams {
    /// A place for one more stream; the error message says why there is none.
    pub(crate) fn enter(&self) -> Result<StreamPlace, String> {
        let busy = |_| format!("{MAX_STREAMS} other streams are open on this address; try again later");
        Arc::clone(&self.0).try_acquire_owned().map_err(busy)
    }
}
