//! How many connections of whom may be open on a listener at once, and how many streams they may have become.
//!
//! A client of kubelet's API of whom nothing is known yet has a place among few others of its kind, until it is admitted
//! to something: a flood of clients who are not takes none of the places of those who are.

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

/// Open connections per listener; further ones wait: of the host in the kernel's accept queue, of a network for
/// [`PLACE_TIMEOUT`].
pub(super) const MAX_CONNECTIONS: usize = 128;
/// Open connections of a network whose clients are not known yet; further ones are closed at once.
pub(super) const MAX_UNKNOWN: usize = 512;
/// How long a client of a network that is known waits for its place.
const PLACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Open connections of callers who may use nothing; further ones are closed at once.
pub(super) const MAX_REFUSED: usize = 8;
/// Open connections of pods that are obeyed: the host always gets in beside them.
pub(super) const MAX_OF_PODS: usize = 32;
/// Open connections of clients who have a certificate, whom the apiserver has not authorized yet.
const MAX_NAMED: usize = 64;
/// Open connections of clients who are yet to bring a token.
pub(super) const MAX_UNNAMED: usize = 16;
/// Connections of a listener that have become streams: commands, terminals, forwarded ports.
pub(super) const MAX_STREAMS: usize = 256;

/// The places of a listener.
#[derive(Clone)]
pub(super) struct Places {
    all: Arc<Semaphore>,
    /// The same places, for anonymous clients.
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
    /// A place for a connection of the host, whose client is yet to be known.
    pub(super) async fn opening(&self) -> Option<SlotPermit> {
        Arc::clone(&self.all).acquire_owned().await.ok().map(SlotPermit::from)
    }

    /// The same for a network; `None`: too many are open, or too many from that source.
    pub(super) fn unknown(&self, source: Source) -> Option<SlotPermit> {
        self.unknown.enter(Some(source))
    }

    /// The place of a connection of that caller's, instead of the one it had while it was opened; `None`: too many of its
    /// kind are open.
    pub(super) async fn of(
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
            // It has a token for each connection.
            Caller::Streaming => (turn(&self.all).await, true),
            Caller::Local { .. } => (opening, true),
            // There is no anonymous client there.
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

/// The place of one connection; an extension of each of its requests.
#[derive(Clone)]
pub(crate) struct ConnectionSlot(Arc<SlotState>);

struct SlotState {
    held: Mutex<Option<SlotPermit>>,
    all: Arc<Semaphore>,
    proven: AtomicBool,
}

impl ConnectionSlot {
    /// Its client's request is admitted: from now on it has a place among such clients, if there is one.
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

    /// Whether its client was admitted to something.
    pub(crate) fn is_proven(&self) -> bool {
        self.0.proven.load(Ordering::Relaxed)
    }

    /// The connection has ended.
    pub(super) fn leave(&self) {
        *self.0.held.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The places of a listener's streams; an extension of each request.
#[derive(Clone)]
pub(crate) struct OpenStreams(Arc<Semaphore>);

/// A stream's place; to be kept until it ends.
pub(crate) type StreamPlace = OwnedSemaphorePermit;

impl Default for OpenStreams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_STREAMS)))
    }
}

impl OpenStreams {
    /// A place for one more; the message says why there is none.
    pub(crate) fn enter(&self) -> Result<StreamPlace, String> {
        let busy = |_| format!("{MAX_STREAMS} other streams are open on this address; try again later");
        Arc::clone(&self.0).try_acquire_owned().map_err(busy)
    }
}
