//! The interface of the push source: requests as values, each with a channel for its result.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::source::Decoder;
use crate::source::push_error::PushError;
use crate::source::resource::Resource;
use limpet_model::actor::Actor;
use limpet_model::manifest::Manifest;
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::{PodKey, PodRecord, Severity, is_dns_label};
use limpet_model::source::SourceKind;

/// How many requests are queued; further senders wait.
const INBOX_SIZE: usize = 32;
/// The origin of pushed manifests, as shown to users.
pub const ORIGIN: &str = "apply";

/// The result of a push, in kubectl's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// It did not exist.
    Created,
    /// It existed in another version.
    Configured,
    /// It existed in this version.
    Unchanged,
}

impl Verb {
    /// The term as kubectl prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

/// A pod or object that is on disk and published.
#[derive(Debug, Clone)]
pub struct Stored<R> {
    pub record: Arc<R>,
    pub verb: Verb,
}

/// An object that was removed from disk and is no longer published.
#[derive(Debug, Clone)]
pub struct DeletedObject {
    /// Its last state.
    pub record: Arc<ObjectRecord>,
    /// Pods that still refer to it.
    pub referred_by: Vec<PodKey>,
}

/// The channel for a request's result.
pub type Answer<T> = oneshot::Sender<Result<T, PushError>>;

/// The process that makes the request, if known.
pub type By = Option<Arc<Actor>>;

#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the methods of Pusher")]
pub enum Request {
    Put { record: Arc<PodRecord>, by: By, answer: Answer<Stored<PodRecord>> },
    Delete { namespace: String, name: String, grace: Option<u64>, by: By, answer: Answer<Arc<PodRecord>> },
    PutObject { record: Arc<ObjectRecord>, answer: Answer<Stored<ObjectRecord>> },
    DeleteObject { key: ObjectKey, answer: Answer<DeletedObject> },
}

/// The source's receiver.
#[derive(Debug)]
pub struct Inbox(mpsc::Receiver<Request>);

impl Inbox {
    /// The next request; `None` once no [`Pusher`] is left.
    pub async fn recv(&mut self) -> Option<Request> {
        self.0.recv().await
    }
}

/// The sender for clients. Clones share the channel.
#[derive(Debug, Clone)]
pub struct Pusher {
    requests: mpsc::Sender<Request>,
    decoder: Decoder,
    node_name: Arc<str>,
    by: By,
}

/// A channel to a push source.
pub fn channel(node_name: &str, decoder: Decoder) -> (Pusher, Inbox) {
    let (requests, inbox) = mpsc::channel(INBOX_SIZE);
    (Pusher { requests, decoder, node_name: Arc::from(node_name), by: None }, Inbox(inbox))
}

impl Pusher {
    /// The same sender, with `actor` recorded for its changes.
    pub fn by(&self, actor: Actor) -> Self {
        Self { by: Some(Arc::new(actor)), ..self.clone() }
    }

    /// Stores the pod, which [`Self::pod`] has decoded. Returns once it is on disk.
    ///
    /// # Errors
    /// It is rejected, and nothing has changed.
    pub async fn put(&self, record: Arc<PodRecord>) -> Result<Stored<PodRecord>, PushError> {
        self.ask(|answer| Request::Put { record, by: self.by.clone(), answer }).await
    }

    /// Deletes the pod `name` of `namespace`; `grace` seconds replace its own grace period. Returns once that is on
    /// disk, before the pod has terminated.
    ///
    /// # Errors
    /// It is rejected, and nothing has changed.
    pub async fn delete(&self, namespace: &str, name: &str, grace: Option<u64>) -> Result<Arc<PodRecord>, PushError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.ask(|answer| Request::Delete { namespace, name, grace, by: self.by.clone(), answer }).await
    }

    /// Stores the object, which [`Self::object`] has decoded. Returns once it is on disk.
    ///
    /// # Errors
    /// It is rejected, and nothing has changed.
    pub async fn put_object(&self, record: Arc<ObjectRecord>) -> Result<Stored<ObjectRecord>, PushError> {
        self.ask(|answer| Request::PutObject { record, answer }).await
    }

    /// Deletes an object, even if pods refer to it. Returns once that is on disk.
    ///
    /// # Errors
    /// It is rejected, and nothing has changed.
    pub async fn delete_object(&self, key: ObjectKey) -> Result<DeletedObject, PushError> {
        self.ask(|answer| Request::DeleteObject { key, answer }).await
    }

    async fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, PushError> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| PushError::Stopping)?;
        answered.await.map_err(|_| PushError::Stopping)?
    }

    /// Reads the only Pod in `text`, YAML or JSON, as the pod `name` of `namespace`. 10 MiB of YAML take a while, so
    /// it must be called on a blocking thread.
    ///
    /// # Errors
    ///
    /// It is rejected.
    pub fn pod(&self, namespace: &str, name: &str, text: &[u8]) -> Result<Arc<PodRecord>, PushError> {
        let record = self.one_pod(text)?;
        let value: Value = serde_json::from_slice(&record.manifest).unwrap_or_default();
        let written = |field: &str| value["metadata"][field].as_str().filter(|text| !text.is_empty());
        if written("name") != Some(name) && record.key.name() != name {
            return Err(mismatch(Resource::Pod, "name", written("name").unwrap_or_default(), name));
        }
        match written("namespace") {
            Some(written) if written != namespace => Err(mismatch(Resource::Pod, "namespace", written, namespace)),
            None if namespace != record.key.namespace() => self.one_pod(&in_namespace(value, namespace)),
            _ => Ok(record),
        }
    }

    /// Reads the only ConfigMap or Secret in `text` as the object of that key. It must be called on a blocking
    /// thread, too.
    ///
    /// # Errors
    ///
    /// It is rejected.
    pub fn object(&self, key: &ObjectKey, text: &[u8]) -> Result<Arc<ObjectRecord>, PushError> {
        let manifest = self.decode(text)?;
        let all = manifest.pods.len() + manifest.objects.len();
        let wanted = manifest.objects.into_iter().filter(|object| object.key.kind == key.kind).collect();
        let resource = Resource::Object(key.kind);
        let record: Arc<ObjectRecord> = only_one(wanted, all, resource)?;
        if record.key.name != key.name {
            return Err(mismatch(resource, "name", &record.key.name, &key.name));
        }
        if record.key.namespace == key.namespace {
            return Ok(record);
        }
        if !manifest.unplaced.contains(&record.key) {
            return Err(mismatch(resource, "namespace", &record.key.namespace, &key.namespace));
        }
        if !is_dns_label(&key.namespace) {
            return Err(PushError::BadRequest(format!("{:?} is not a valid namespace", key.namespace)));
        }
        Ok(Arc::new(record.in_namespace(&key.namespace)))
    }

    fn one_pod(&self, text: &[u8]) -> Result<Arc<PodRecord>, PushError> {
        let manifest = self.decode(text)?;
        let all = manifest.pods.len() + manifest.objects.len();
        only_one(manifest.pods, all, Resource::Pod)
    }

    fn decode(&self, text: &[u8]) -> Result<Manifest, PushError> {
        let manifest = self.decoder.read(text, ORIGIN, SourceKind::Push, &self.node_name);
        match manifest.faults.iter().any(|fault| fault.severity == Severity::Error) {
            true => Err(PushError::Invalid(manifest.faults)),
            false => Ok(manifest),
        }
    }
}

/// The only element of `wanted`, if it is also the only document of `all`.
fn only_one<R>(mut wanted: Vec<R>, all: usize, resource: Resource) -> Result<R, PushError> {
    let kind = resource.kind();
    match wanted.pop() {
        Some(record) if all == 1 => Ok(record),
        Some(_) => Err(PushError::BadRequest(format!("the body holds {all} documents, not one {kind}"))),
        None => Err(PushError::BadRequest(format!("the body holds no {kind}"))),
    }
}

fn mismatch(resource: Resource, field: &str, written: &str, asked: &str) -> PushError {
    let what = resource.kind();
    PushError::BadRequest(format!("the {what}'s {field} is {written}, the request's is {asked}"))
}

fn in_namespace(mut value: Value, namespace: &str) -> Vec<u8> {
    value["metadata"]["namespace"] = Value::from(namespace);
    value.to_string().into_bytes()
}
