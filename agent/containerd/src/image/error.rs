//! Errors between a Pod's `image:` and an unpacked snapshot, with kubelet's reasons.
//!
//! No variant contains credentials: only the host of a URL becomes part of a message.

use std::path::PathBuf;

use tonic::{Code, Status};

use crate::error::effective_code;
use limpet_model::image_name::InvalidImageName;

/// containerd refused or failed a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("containerd: {operation} {subject}: {message}")]
pub struct CallError {
    /// The call, such as `Content.Write`.
    pub operation: &'static str,
    pub subject: String,
    /// gRPC's code.
    pub code: Code,
    /// containerd's message.
    pub message: String,
}

impl CallError {
    /// Turns a gRPC status into an error that names the call.
    pub(super) fn new(operation: &'static str, subject: &str, status: &Status) -> Self {
        Self {
            operation,
            subject: subject.to_owned(),
            code: effective_code(status),
            message: status.message().to_owned(),
        }
    }

    /// Another writer holds the ingest; it is released when that stream ends.
    pub(super) fn is_locked(&self) -> bool {
        self.code == Code::Unavailable && self.message.contains("locked")
    }

    /// The file system below containerd's root has no space or no inodes left.
    pub(super) fn is_disk_full(&self) -> bool {
        self.message.contains("no space left on device") || self.message.contains("disk quota exceeded")
    }

    /// The stored content does not have the expected digest or size.
    pub(super) fn is_corrupt(&self) -> bool {
        self.message.contains("unexpected commit digest")
            || self.message.contains("unexpected commit size")
            || self.message.contains("failed size validation")
    }
}

/// Why an image cannot be used. Cloned for all callers that wait for the same pull.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The reference cannot be parsed. Retrying does not help.
    #[error(transparent)]
    InvalidName(#[from] InvalidImageName),
    /// The registry answered that it has no such image.
    #[error("failed to pull image \"{image}\": {image}: not found ({cause})")]
    NotFound { image: String, cause: String },
    /// The registry requires credentials, or rejected them.
    #[error("failed to pull image \"{image}\": pull access denied: {cause}")]
    Unauthorized { image: String, cause: String },
    /// No registry could be reached.
    #[error("failed to pull image \"{image}\": registry unreachable: {cause}")]
    Unreachable { image: String, cause: String },
    /// The download was interrupted more often than it is retried; the next pull resumes it.
    #[error("failed to pull image \"{image}\": download of {digest} broke off: {cause}")]
    Cut { image: String, digest: String, cause: String },
    /// containerd's disk is full.
    #[error("failed to pull image \"{image}\": no space left on containerd's disk: {cause}")]
    DiskFull { image: String, cause: String },
    /// The content from the registry or archive is not an image this node can run.
    #[error("failed to pull image \"{image}\": {cause}")]
    Content { image: String, cause: String },
    /// The registry answered with an error status, such as 500 or 429, or violated the protocol.
    #[error("failed to pull image \"{image}\": {cause}")]
    Registry { image: String, cause: String },
    /// A file below `certs.d` cannot be used.
    #[error("registry configuration {}: {cause}", path.display())]
    Config { path: PathBuf, cause: String },
    /// A call to containerd failed, or it is not reachable.
    #[error("image \"{image}\": {source}")]
    Runtime { image: String, source: CallError },
    /// The intent to pull the image could not be recorded on disk.
    #[error("Failed to record image pull intent for container image \"{image}\": {cause}")]
    Unrecorded { image: String, cause: String },
    /// `imagePolicy` or an image verifier refuses the image.
    #[error(
        "image pull failed for {image} because the signature validation failed: {cause} \
         (see: limpet images verify {image})"
    )]
    Refused { image: String, cause: String },
    /// An image archive cannot be imported.
    #[error("image archive {}: {cause}", path.display())]
    Archive { path: PathBuf, cause: String },
}

impl ImageError {
    /// kubelet's waiting reason for the error.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidName(_) => "InvalidImageName",
            Self::Unreachable { .. } => "RegistryUnavailable",
            Self::Refused { .. } => "SignatureValidationFailed",
            _ => "ErrImagePull",
        }
    }

    /// Whether the Pod's `image:` is not a valid image name.
    pub fn is_invalid_name(&self) -> bool {
        matches!(self, Self::InvalidName(_))
    }

    /// Whether the image exists and must not be used.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// The cause, without the image's name where callers know it.
    pub(super) fn cause(&self) -> String {
        match self {
            Self::NotFound { cause, .. }
            | Self::Unauthorized { cause, .. }
            | Self::Unreachable { cause, .. }
            | Self::Content { cause, .. }
            | Self::Registry { cause, .. } => cause.clone(),
            other => other.to_string(),
        }
    }

    /// Whether containerd did not answer, so nothing is known about the image.
    pub fn is_runtime_unavailable(&self) -> bool {
        use Code::{Cancelled, DeadlineExceeded, Unavailable};
        matches!(self, Self::Runtime { source, .. } if matches!(source.code, Unavailable | DeadlineExceeded | Cancelled))
    }

    /// Whether the network failed: the registry is not reachable now.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Cut { .. })
    }

    /// Adds `causes` to an error about missing credentials.
    pub(super) fn with_causes(mut self, causes: &[String]) -> Self {
        if let Self::Unauthorized { cause, .. } = &mut self {
            for further in causes {
                cause.push_str("; ");
                cause.push_str(further);
            }
        }
        self
    }

    /// Whether a later attempt can resume this one, so that its lease must not be deleted.
    pub(super) fn keeps_ingests(&self) -> bool {
        matches!(self, Self::Cut { .. } | Self::Unreachable { .. } | Self::Registry { .. } | Self::Runtime { .. })
    }

    /// Whether a retry may succeed without a change of the image or its name.
    pub fn is_transient(&self) -> bool {
        self.keeps_ingests() || matches!(self, Self::DiskFull { .. })
    }

    /// Converts a failed containerd call to an error of this image.
    pub(super) fn call(image: &str, source: CallError) -> Self {
        let image = image.to_owned();
        if source.is_disk_full() {
            Self::DiskFull { image, cause: source.to_string() }
        } else if source.is_corrupt() {
            Self::Content { image, cause: source.to_string() }
        } else {
            Self::Runtime { image, source }
        }
    }

    /// An invalid document or blob of this image.
    pub(super) fn content(image: &str, cause: impl ToString) -> Self {
        Self::Content { image: image.to_owned(), cause: cause.to_string() }
    }
}
