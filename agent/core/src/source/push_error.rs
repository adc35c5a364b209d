//! Why a push is rejected.

use std::sync::Arc;

use crate::source::resource::Resource;
use limpet_model::pod::{Fault, PodKey, Severity};
use limpet_model::source::SourceKind;

/// Why a push was rejected. Nothing has changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PushError {
    /// The body is not a single document of the path's kind and name.
    #[error("{0}")]
    BadRequest(String),
    /// The document has faults, including at least one error.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Fault>),
    /// No object has that name.
    #[error("{} \"{name}\" not found", resource.plural())]
    NotFound { resource: Resource, name: String },
    /// The pod was deleted and has not terminated yet.
    #[error("pod {key} is being deleted; push it again once it has terminated")]
    BeingDeleted { key: PodKey },
    /// A source with precedence has a pod of that name.
    #[error(
        "pod {key} is already defined by {by} {origin}, which takes precedence; remove it there or choose another name"
    )]
    Claimed {
        key: PodKey,
        /// The source that has it.
        by: SourceKind,
        /// Where in the source.
        origin: Arc<str>,
    },
    /// The object to delete belongs to another source.
    #[error("{what} comes from {by} {origin}; remove it there")]
    NotPushed {
        /// Kind, namespace and name.
        what: String,
        /// The source that has it.
        by: SourceKind,
        /// Where in the source.
        origin: Arc<str>,
    },
    /// It cannot be written to disk.
    #[error("the change cannot be persisted: {reason}")]
    NotPersisted {
        /// The I/O error.
        reason: String,
    },
    /// The agent is shutting down.
    #[error("limpet is stopping")]
    Stopping,
}

impl PushError {
    /// The faults of the document itself, as a source that reads files would report them; empty if there are none.
    pub fn faults(&self) -> Vec<Fault> {
        match self {
            Self::Invalid(faults) => faults.iter().filter(|fault| fault.severity == Severity::Error).cloned().collect(),
            Self::BadRequest(message) => vec![Fault::error("", message)],
            Self::Claimed { .. } => vec![Fault::error("metadata.name", self.to_string())],
            Self::NotFound { .. }
            | Self::BeingDeleted { .. }
            | Self::NotPushed { .. }
            | Self::NotPersisted { .. }
            | Self::Stopping => Vec::new(),
        }
    }
}
