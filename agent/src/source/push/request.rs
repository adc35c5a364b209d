//! The way into the push source: requests as values, answered when they are done, and why one is refused.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::pod::{Fault, PodKey, PodRecord, Severity};
use crate::source::{Decoder, SourceKind};

/// Requests that may wait; those who come then wait to be let in.
const INBOX: usize = 32;
/// What pushed pods come from, for people.
pub(super) const ORIGIN: &str = "apply";

/// What became of a pod that was pushed, in kubectl's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// There was none of that name.
    Created,
    /// There was another version of it.
    Configured,
    /// It is there already.
    Unchanged,
}

impl Verb {
    /// kubectl's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

/// A pod that is on disk and published.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The pod.
    pub record: Arc<PodRecord>,
    /// What became of it.
    pub verb: Verb,
}

/// Why a push was refused. Nothing has changed then.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PushError {
    /// The body is not one Pod with the path's name.
    #[error("{0}")]
    BadRequest(String),
    /// The Pod has faults, at least one error among them.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Fault>),
    /// There is no such pod.
    #[error("pods \"{name}\" not found")]
    NotFound {
        /// Namespace asked for.
        namespace: String,
        /// Name asked for.
        name: String,
    },
    /// The pod was deleted and has not ended yet.
    #[error("pod {key} is being deleted; push it again when it has ended")]
    BeingDeleted {
        /// The pod.
        key: PodKey,
    },
    /// A source that comes first has a pod of that name.
    #[error("pod {key} is defined by {by} {origin} already, which comes first; remove it there or choose another name")]
    Claimed {
        /// The pod.
        key: PodKey,
        /// The source that has it.
        by: SourceKind,
        /// Where in the source.
        origin: Arc<str>,
    },
    /// The pod to delete is another source's.
    #[error("pod {} comes from {} {}; remove it there", record.key, record.source, record.origin)]
    NotPushed {
        /// The pod.
        record: Arc<PodRecord>,
    },
    /// It cannot be written to the disk.
    #[error("it cannot be kept: {reason}")]
    NotKept {
        /// The disk's words.
        reason: String,
    },
    /// The agent stops.
    #[error("limpet is stopping")]
    Stopping,
}

/// One request.
#[derive(Debug)]
pub(super) enum Request {
    Put {
        record: Arc<PodRecord>,
        answer: oneshot::Sender<Result<Stored, PushError>>,
    },
    Delete {
        namespace: String,
        name: String,
        grace: Option<u64>,
        answer: oneshot::Sender<Result<Arc<PodRecord>, PushError>>,
    },
}

/// The source's end.
#[derive(Debug)]
pub struct Inbox(mpsc::Receiver<Request>);

impl Inbox {
    pub(super) async fn recv(&mut self) -> Option<Request> {
        self.0.recv().await
    }
}

/// The end of those who push. Clones share it.
#[derive(Debug, Clone)]
pub struct Pusher {
    requests: mpsc::Sender<Request>,
    decoder: Decoder,
    node_name: Arc<str>,
}

/// A way into a push source.
pub fn channel(node_name: &str, decoder: Decoder) -> (Pusher, Inbox) {
    let (requests, inbox) = mpsc::channel(INBOX);
    (Pusher { requests, decoder, node_name: Arc::from(node_name) }, Inbox(inbox))
}

impl Pusher {
    /// Makes the one Pod in `text`, YAML or JSON, the pod `name` of `namespace`. Returns once it is on disk.
    ///
    /// # Errors
    /// It is refused, and nothing has changed.
    pub async fn put(&self, namespace: &str, name: &str, text: Vec<u8>) -> Result<Stored, PushError> {
        let (pusher, namespace, name) = (self.clone(), namespace.to_owned(), name.to_owned());
        let read = move || pusher.read(&namespace, &name, &text);
        let record = tokio::task::spawn_blocking(read).await.map_err(|_| PushError::Stopping)??;
        let (answer, answered) = oneshot::channel();
        self.requests.send(Request::Put { record, answer }).await.map_err(|_| PushError::Stopping)?;
        answered.await.map_err(|_| PushError::Stopping)?
    }

    /// Ends the pod `name` of `namespace`; `grace` seconds instead of its own. Returns once that is on disk, before the
    /// pod has ended.
    ///
    /// # Errors
    /// It is refused, and nothing has changed.
    pub async fn delete(&self, namespace: &str, name: &str, grace: Option<u64>) -> Result<Arc<PodRecord>, PushError> {
        let (answer, answered) = oneshot::channel();
        let request = Request::Delete { namespace: namespace.to_owned(), name: name.to_owned(), grace, answer };
        self.requests.send(request).await.map_err(|_| PushError::Stopping)?;
        answered.await.map_err(|_| PushError::Stopping)?
    }

    /// The pod of a request. Blocks for as long as 10 MiB of YAML take.
    fn read(&self, namespace: &str, name: &str, text: &[u8]) -> Result<Arc<PodRecord>, PushError> {
        let record = self.decode(text)?;
        let value: Value = serde_json::from_slice(&record.manifest).unwrap_or_default();
        let written = |field: &str| value["metadata"][field].as_str().filter(|text| !text.is_empty());
        if written("name") != Some(name) && record.key.name() != name {
            let own = written("name").unwrap_or_default();
            return Err(PushError::BadRequest(format!("the pod's name is {own}, the request's is {name}")));
        }
        match written("namespace") {
            Some(own) if own != namespace => {
                Err(PushError::BadRequest(format!("the pod's namespace is {own}, the request's is {namespace}")))
            }
            None if namespace != record.key.namespace() => self.decode(&in_namespace(value, namespace)),
            _ => Ok(record),
        }
    }

    fn decode(&self, text: &[u8]) -> Result<Arc<PodRecord>, PushError> {
        let mut manifest = (self.decoder.read)(text, ORIGIN, SourceKind::Push, &self.node_name);
        if manifest.faults.iter().any(|fault| fault.severity == Severity::Error) {
            return Err(PushError::Invalid(manifest.faults));
        }
        match (manifest.pods.pop(), manifest.pods.len()) {
            (Some(record), 0) => Ok(record),
            (None, _) => Err(PushError::BadRequest("the body holds no Pod".to_owned())),
            (Some(_), more) => Err(PushError::BadRequest(format!("the body holds {} Pods, not one", more + 1))),
        }
    }
}

fn in_namespace(mut value: Value, namespace: &str) -> Vec<u8> {
    value["metadata"]["namespace"] = Value::from(namespace);
    value.to_string().into_bytes()
}
