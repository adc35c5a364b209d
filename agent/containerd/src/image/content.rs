//! Calls to containerd's content store and leases, for pulls and imports.
//!
//! Blobs are written through ingests that survive a lost connection and a restart of the agent: an ingest is found
//! again by its `ref`, which is derived from the digest, and reports its offset.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::{
    AbortRequest, CreateRequest, DeleteContentRequest, DeleteRequest, InfoRequest, ListRequest, ReadContentRequest,
    UpdateRequest, WriteAction, WriteContentRequest, WriteContentResponse,
};
use prost_types::FieldMask;
use tokio::sync::{OwnedMutexGuard, mpsc};
use tonic::{Code, Status, Streaming};

use super::document;
use super::error::CallError;
use crate::client::{CALL_DEADLINE, Client};

/// How many bytes are collected before they are sent, because a round trip costs more than a copy.
const CHUNK: usize = 256 << 10;
/// The number of attempts to open an ingest that another connection still holds.
const LOCK_ATTEMPTS: u32 = 8;

/// Labels by key.
pub(super) type Labels = HashMap<String, String>;

/// A digest and its size, from a descriptor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blob<'a> {
    /// `sha256:…`.
    pub(super) digest: &'a str,
    pub(super) size: u64,
}

/// containerd's image services. Clones share the connection and the locks.
#[derive(Debug, Clone)]
pub(super) struct Store {
    pub(super) client: Client,
    pub(super) snapshotter: Arc<str>,
    /// One layer is unpacked at a time: the disk is the limit, and two images may share layers.
    pub(super) unpacking: Arc<tokio::sync::Mutex<()>>,
    /// One writer per ingest; containerd would refuse the second.
    writers: Arc<Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>>,
}

/// The result of opening a blob for writing.
pub(super) enum Opened {
    /// It already exists, and the lease now protects it.
    Present,
    /// It has to be written from `Ingest::offset` on.
    Ingest(Box<Ingest>),
}

/// The result of committing a blob.
pub(super) enum Completed {
    /// It is stored, and the lease protects it.
    Stored,
    /// Another client has stored it meanwhile, so the lease does not protect it.
    Appeared,
}

impl Store {
    /// The store behind `client`.
    pub(super) fn new(client: Client, snapshotter: &str) -> Self {
        let unpacking = Arc::default();
        Self { client, snapshotter: snapshotter.into(), unpacking, writers: Arc::default() }
    }

    fn content(&self) -> ContentClient<tonic::transport::Channel> {
        ContentClient::new(self.client.channel())
    }

    /// Creates a lease that does not expire; an existing one is reused.
    pub(super) async fn create_lease(&self, id: &str, image: &str) -> Result<(), CallError> {
        let labels = Labels::from([("limpet.io/image".to_owned(), image.to_owned())]);
        let request = self.client.request(CreateRequest { id: id.to_owned(), labels });
        match LeasesClient::new(self.client.channel()).create(request).await {
            Err(status) if status.code() != Code::AlreadyExists => Err(CallError::new("Leases.Create", id, &status)),
            _ => Ok(()),
        }
    }

    /// Deletes a lease; content without another reference is collected.
    pub(super) async fn delete_lease(&self, id: &str) -> Result<(), CallError> {
        let request = self.client.request(DeleteRequest { id: id.to_owned(), sync: false });
        match LeasesClient::new(self.client.channel()).delete(request).await {
            Err(status) if status.code() != Code::NotFound => Err(CallError::new("Leases.Delete", id, &status)),
            _ => Ok(()),
        }
    }

    /// Leases whose id starts with `prefix`, and the image of each.
    pub(super) async fn leases(&self, prefix: &str) -> Result<Vec<(String, String)>, CallError> {
        let request = self.client.request(ListRequest { filters: vec![format!("id~=\"^{prefix}\"")] });
        let listed = LeasesClient::new(self.client.channel()).list(request).await;
        let listed = listed.map_err(|status| CallError::new("Leases.List", prefix, &status))?.into_inner();
        let image = |labels: &Labels| labels.get("limpet.io/image").cloned().unwrap_or_default();
        Ok(listed
            .leases
            .into_iter()
            .map(|lease| (image(&lease.labels), lease))
            .map(|(i, lease)| (lease.id, i))
            .collect())
    }

    /// A blob's size and labels; `None` if it is missing.
    pub(super) async fn info(&self, digest: &str) -> Result<Option<(u64, Labels)>, CallError> {
        let request = self.client.request(InfoRequest { digest: digest.to_owned() });
        match self.content().info(request).await {
            Ok(response) => {
                Ok(response.into_inner().info.map(|info| (u64::try_from(info.size).unwrap_or(0), info.labels)))
            }
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(CallError::new("Content.Info", digest, &status)),
        }
    }

    /// Reads a small blob completely. `None` if it is missing, or damaged; a damaged blob is removed, so that it is
    /// fetched again.
    pub(super) async fn read_document(&self, digest: &str) -> Result<Option<Vec<u8>>, CallError> {
        let Some((size, _)) = self.info(digest).await? else { return Ok(None) };
        let failed = |status: Status| CallError::new("Content.Read", digest, &status);
        if size > document::MAX_DOCUMENT {
            return Err(failed(Status::out_of_range(format!("{size} bytes are too large for a document"))));
        }
        let request = self.client.request(ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 });
        let mut stream = match self.content().read(request).await {
            Ok(response) => response.into_inner(),
            Err(status) if status.code() == Code::NotFound => return Ok(None),
            Err(status) => return Err(failed(status)),
        };
        let mut bytes = Vec::new();
        while let Some(part) = stream.message().await.map_err(failed)? {
            bytes.extend_from_slice(&part.data);
            if bytes.len() as u64 > size {
                break;
            }
        }
        let (bytes, actual) = document::examine(bytes, document::sha256).await;
        if actual == digest {
            return Ok(Some(bytes));
        }
        tracing::warn!(digest, "removed content that is damaged on disk; it is downloaded again");
        let request = self.client.request(DeleteContentRequest { digest: digest.to_owned() });
        match self.content().delete(request).await {
            Err(status) if status.code() != Code::NotFound => Err(CallError::new("Content.Delete", digest, &status)),
            _ => Ok(None),
        }
    }

    /// Adds labels to a blob and keeps its others.
    pub(super) async fn label(&self, digest: &str, labels: Labels) -> Result<(), CallError> {
        if labels.is_empty() {
            return Ok(());
        }
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let info = containerd_client::services::v1::Info { digest: digest.to_owned(), labels, ..Default::default() };
        let request = self.client.request(UpdateRequest { info: Some(info), update_mask: Some(FieldMask { paths }) });
        let updated = self.content().update(request).await;
        updated.map(drop).map_err(|status| CallError::new("Content.Update", digest, &status))
    }

    /// Stores a document that is in memory.
    pub(super) async fn put(&self, digest: &str, bytes: &[u8], lease: &str, labels: Labels) -> Result<(), CallError> {
        let blob = Blob { digest, size: bytes.len() as u64 };
        match self.open(blob, lease).await? {
            Opened::Present => self.label(digest, labels).await,
            Opened::Ingest(mut ingest) => {
                ingest.restart();
                ingest.write(bytes).await?;
                match ingest.commit(labels).await? {
                    Completed::Stored => Ok(()),
                    Completed::Appeared => self.protect(blob, lease).await,
                }
            }
        }
    }

    /// Protects a blob that was just found with the lease.
    ///
    /// # Errors
    ///
    /// `Aborted` if it was collected, because its last reference was removed. A retry writes it again.
    pub(super) async fn protect(&self, blob: Blob<'_>, lease: &str) -> Result<(), CallError> {
        match self.open(blob, lease).await? {
            Opened::Present => Ok(()),
            Opened::Ingest(_) => {
                let gone = Status::aborted("containerd removed it before it could be used");
                Err(CallError::new("Content.Write", blob.digest, &gone))
            }
        }
    }

    /// Starts or resumes writing a blob.
    pub(super) async fn open(&self, blob: Blob<'_>, lease: &str) -> Result<Opened, CallError> {
        self.open_ingest(&format!("limpet-{}", blob.digest), blob, lease).await
    }

    /// Starts to write a blob whose digest is known only at its end; `reference` names the ingest.
    pub(super) async fn open_unnamed(&self, reference: &str, size: u64, lease: &str) -> Result<Opened, CallError> {
        self.open_ingest(reference, Blob { digest: "", size }, lease).await
    }

    async fn open_ingest(&self, reference: &str, blob: Blob<'_>, lease: &str) -> Result<Opened, CallError> {
        let guard = self.writer_lock(reference).lock_owned().await;
        let mut pause = Duration::from_millis(100);
        let mut attempts = 1;
        loop {
            match self.open_once(reference, blob, lease).await {
                Ok((requests, responses, status)) => {
                    let offset = u64::try_from(status.offset).unwrap_or(0);
                    let (digest, size, buffer) = (blob.digest.to_owned(), blob.size, BytesMut::new());
                    let ingest = Ingest { requests, responses, digest, size, offset, buffer, _writer: guard };
                    return Ok(Opened::Ingest(Box::new(ingest)));
                }
                Err(error) if error.code == Code::AlreadyExists => return Ok(Opened::Present),
                // An agent that was just killed still holds the connection; containerd releases the ingest when it
                // notices.
                Err(error) if error.is_locked() && attempts < LOCK_ATTEMPTS => {
                    attempts += 1;
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn open_once(
        &self,
        reference: &str,
        blob: Blob<'_>,
        lease: &str,
    ) -> Result<(mpsc::Sender<WriteContentRequest>, Streaming<WriteContentResponse>, WriteContentResponse), CallError>
    {
        let failed = |status: Status| CallError::new("Content.Write", blob.digest, &status);
        let (requests, receiver) = mpsc::channel(1);
        let first = WriteContentRequest {
            action: WriteAction::Stat.into(),
            r#ref: reference.to_owned(),
            total: i64::try_from(blob.size).unwrap_or(i64::MAX),
            expected: blob.digest.to_owned(),
            ..Default::default()
        };
        // The channel is empty and holds one message.
        let _ = requests.try_send(first);
        let stream =
            futures_util::stream::unfold(receiver, |mut r| async move { r.recv().await.map(|message| (message, r)) });
        let mut request = self.client.leased_request(stream, lease);
        // The stream lasts as long as the download; every answer has its own deadline.
        request.metadata_mut().remove("grpc-timeout");
        let begin = async {
            let mut responses = self.content().write(request).await?.into_inner();
            let status = responses.message().await?.ok_or_else(|| Status::unavailable("stream ended"))?;
            Ok((responses, status))
        };
        let (responses, status) = within_deadline(begin).await.map_err(failed)?;
        Ok((requests, responses, status))
    }

    /// Discards an ingest.
    pub(super) async fn abort(&self, digest: &str) -> Result<(), CallError> {
        let request = self.client.request(AbortRequest { r#ref: format!("limpet-{digest}") });
        match self.content().abort(request).await {
            Err(status) if status.code() != Code::NotFound => Err(CallError::new("Content.Abort", digest, &status)),
            _ => Ok(()),
        }
    }

    fn writer_lock(&self, reference: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = writers.get(reference).and_then(Weak::upgrade) {
            return lock;
        }
        writers.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        writers.insert(reference.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

async fn within_deadline<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(CALL_DEADLINE, call).await {
        Ok(result) => result,
        Err(_) => Err(Status::deadline_exceeded(format!("no answer within {} s", CALL_DEADLINE.as_secs()))),
    }
}

/// A blob that is being written. When dropped, the bytes written so far stay in containerd.
pub(super) struct Ingest {
    requests: mpsc::Sender<WriteContentRequest>,
    responses: Streaming<WriteContentResponse>,
    digest: String,
    size: u64,
    /// The number of bytes that containerd has.
    offset: u64,
    buffer: BytesMut,
    _writer: OwnedMutexGuard<()>,
}

impl Ingest {
    /// The next byte to write.
    pub(super) fn offset(&self) -> u64 {
        self.offset + self.buffer.len() as u64
    }

    /// Restarts at the first byte.
    pub(super) fn restart(&mut self) {
        // containerd truncates on a write at offset 0.
        self.offset = 0;
        self.buffer.clear();
    }

    /// Appends bytes; those not sent to containerd yet are buffered until the next call.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        for part in bytes.chunks(CHUNK) {
            self.buffer.extend_from_slice(part);
            if self.buffer.len() >= CHUNK {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Sends all buffered bytes to containerd.
    pub(super) async fn flush(&mut self) -> Result<(), CallError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let data = self.buffer.split().freeze();
        let length = data.len() as u64;
        self.send(WriteAction::Write, data, Labels::new()).await?;
        self.offset += length;
        Ok(())
    }

    /// Completes a blob that was opened without its digest.
    pub(super) async fn commit_as(mut self: Box<Self>, digest: &str) -> Result<Completed, CallError> {
        self.flush().await?;
        digest.clone_into(&mut self.digest);
        self.commit(Labels::new()).await
    }

    /// Completes the blob: containerd checks its size and digest.
    pub(super) async fn commit(mut self: Box<Self>, labels: Labels) -> Result<Completed, CallError> {
        self.flush().await?;
        match self.send(WriteAction::Commit, Bytes::new(), labels).await {
            Ok(_) => Ok(Completed::Stored),
            Err(error) if error.code == Code::AlreadyExists => Ok(Completed::Appeared),
            Err(error) => Err(error),
        }
    }

    async fn send(&mut self, action: WriteAction, data: Bytes, labels: Labels) -> Result<(), CallError> {
        // The digest is sent only with the commit: with every write it would end the stream as soon as another client
        // has stored the blob.
        let expected = if action == WriteAction::Commit { self.digest.clone() } else { String::new() };
        let request = WriteContentRequest {
            action: action.into(),
            offset: i64::try_from(self.offset).unwrap_or(i64::MAX),
            total: i64::try_from(self.size).unwrap_or(i64::MAX),
            expected,
            data: data.into(),
            labels,
            ..Default::default()
        };
        // If the channel is closed the stream has ended, and its status has the reason.
        let _ = self.requests.send(request).await;
        let answer = async { self.responses.message().await?.ok_or_else(|| Status::unavailable("stream ended")) };
        let answer = within_deadline(answer).await;
        answer.map(drop).map_err(|status| CallError::new("Content.Write", &self.digest, &status))
    }
}
