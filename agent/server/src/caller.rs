//! Identifies who makes a request. The listener does this once per connection, before it reads the first request.
//!
//! A process in a pod's cgroup may have got the local socket by a `hostPath`; as root it passes every check of users
//! and file modes. A process that cannot be identified is treated as a pod's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::{Instant, timeout};

use super::gate::NetworkClient;
use super::{ActorOfProcess, ServerState};
use crate::settings::ServedNode;
use limpet_core::status::observed::Observed;
use limpet_host::peer::Peer;
use limpet_model::actor::{Actor, ActorPod};
use limpet_model::attribution::WatchObserver;
use limpet_model::pod::identity;
use limpet_telemetry::event::{EventType, Events};

/// The deadline for reading a process from `/proc`.
const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// A pod's refused connections are reported at most once in this time.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// The most pods with a report in that time.
const MAX_REPORTED: usize = 256;

/// Who makes a request; an extension of each request.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    /// A process of this machine, over the local socket.
    Local { peer: Peer, origin: Origin },
    /// A client of the loopback listener, or of the health port.
    Anonymous,
    /// A client of the read-only port.
    ReadOnly,
    /// A client of CRI's streaming server, which also needs a URL that opens one connection.
    Streaming,
    /// A client of kubelet's API on the network.
    Network(Arc<NetworkClient>),
}

/// Where a process that has connected to the local socket belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// Root, or the user the agent runs as, outside of any pod.
    Host,
    /// A pod that `socketAllowedPods` lists.
    AllowedPod(ActorPod),
    /// Any other pod.
    Pod(ActorPod),
    /// A user other than root and the agent's.
    OtherUser,
    /// The process could not be identified.
    Unknown,
}

impl Caller {
    /// The process as an actor, for the history of what it pushes.
    pub(super) async fn actor(&self, observer: Arc<dyn WatchObserver>, describe: ActorOfProcess) -> Actor {
        let Self::Local { peer, .. } = self else { return Actor::default() };
        let (pid, uid) = (peer.pid, Some(peer.uid));
        let peer = peer.clone();
        let read = tokio::task::spawn_blocking(move || {
            let (pid, pidfd) = peer.pid.zip(peer.pidfd())?;
            // The kernel recorded PID and user at connect time. The PID may have been reused since.
            Some(describe(pid, pidfd, &*observer)).filter(|actor| actor.uid == Some(peer.uid))
        });
        Actor { pid, uid, ..read.await.ok().flatten().unwrap_or_default() }
    }
}

/// Identifies the processes that connect to the local socket.
pub(super) struct CallerLookup {
    observer: Arc<dyn WatchObserver>,
    observed: Observed,
    config: Arc<ServedNode>,
    node_name: Arc<str>,
    agent_uid: u32,
    events: Events,
    reported: Mutex<Reported>,
}

impl CallerLookup {
    pub(super) fn new(state: &ServerState) -> Self {
        Self {
            observer: Arc::clone(&state.observer),
            observed: state.observed.clone(),
            config: Arc::clone(&state.settings),
            node_name: Arc::clone(&state.node_name),
            agent_uid: rustix::process::geteuid().as_raw(),
            events: state.events.clone(),
            reported: Mutex::default(),
        }
    }

    /// Identifies the caller behind a connection. Reads `/proc` on a blocking thread.
    pub(super) async fn caller(self: Arc<Self>, peer: Peer) -> Caller {
        let (lookup, asked) = (Arc::clone(&self), peer.clone());
        let reading = tokio::task::spawn_blocking(move || lookup.origin(&asked));
        let origin = match timeout(IDENTIFY_TIMEOUT, reading).await {
            Ok(Ok(origin)) => origin,
            Ok(Err(_)) | Err(_) => Origin::Unknown,
        };
        Caller::Local { peer, origin }
    }

    fn origin(&self, peer: &Peer) -> Origin {
        if peer.uid != 0 && peer.uid != self.agent_uid {
            return Origin::OtherUser;
        }
        match peer.cgroups() {
            Ok(cgroups) => self.origin_in(&cgroups),
            Err(error) => {
                tracing::debug!(%error, pid = peer.pid, "a process on the local socket cannot be identified");
                Origin::Unknown
            }
        }
    }

    /// The origin of a process with these cgroups, one for each hierarchy.
    fn origin_in(&self, cgroups: &[String]) -> Origin {
        match cgroups.iter().find_map(|path| self.observer.resident(path)) {
            None => Origin::Host,
            Some(pod) if self.is_allowed(&pod) => Origin::AllowedPod(pod),
            Some(pod) => Origin::Pod(pod),
        }
    }

    /// Whether `socketAllowedPods` lists the pod by its name on the node or, for a static pod, by the name in its
    /// manifest. A pod whose name is unknown is not listed.
    fn is_allowed(&self, pod: &ActorPod) -> bool {
        let Some((key, uid)) = pod.pod_identity() else { return false };
        let observed = self.observed.load();
        let Some(observed) = observed.pods.get(&key).filter(|observed| observed.record.uid == uid) else {
            return false;
        };
        let is_static = observed.record.source.traits().is_mirrored;
        self.config.socket_allowed_pods.iter().any(|listed| {
            *listed == key
                || is_static
                    && identity::key(Some(listed.namespace()), listed.name(), &self.node_name).as_ref() == Ok(&key)
        })
    }

    /// Writes one log line and one event per pod and minute. The process chooses nothing in them.
    fn report(&self, peer: &Peer, origin: &Origin) {
        let pod = if let Origin::Pod(pod) = origin { Some(pod) } else { None };
        let subject = pod.map_or_else(|| format!("{origin:?}"), |pod| pod.uid.clone());
        if !self.reported.lock().unwrap_or_else(PoisonError::into_inner).is_due(subject, Instant::now()) {
            return;
        }
        match origin {
            Origin::Pod(pod) => {
                tracing::warn!(pid = peer.pid, %pod, "refused a process of a pod on the local socket");
                let message = format!("a process of {pod} connected to limpet's socket and was refused");
                self.events.emit(pod.pod_identity(), None, EventType::Warning, "LocalSocketRefused", message);
            }
            Origin::OtherUser => {
                tracing::warn!(uid = peer.uid, pid = peer.pid, "refused a connection to the local socket: root only");
            }
            _ => {
                tracing::warn!(uid = peer.uid, pid = peer.pid, "refused an unknown process on the local socket");
                let message = "a process that cannot be identified connected to limpet's socket and was refused";
                self.events.emit(None, None, EventType::Warning, "LocalSocketRefused", message.to_owned());
            }
        }
    }
}

/// The layer of the local socket that reports requests from refused callers.
pub(super) async fn report_refused(State(lookup): State<Arc<CallerLookup>>, request: Request, next: Next) -> Response {
    if let Some(Caller::Local { peer, origin }) = request.extensions().get()
        && origin.admitted().is_err()
    {
        lookup.report(peer, origin);
    }
    next.run(request).await
}

/// The time of each subject's last report.
#[derive(Debug, Default)]
struct Reported(BTreeMap<String, Instant>);

impl Reported {
    /// Whether the subject is due for a report. If so, its next one is due after [`REPORT_INTERVAL`].
    fn is_due(&mut self, subject: String, now: Instant) -> bool {
        self.0.retain(|_, last| now.duration_since(*last) < REPORT_INTERVAL);
        if self.0.contains_key(&subject) || self.0.len() >= MAX_REPORTED {
            return false;
        }
        self.0.insert(subject, now);
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests;
