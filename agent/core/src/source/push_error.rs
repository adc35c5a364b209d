//! Why a push is refused.

use std::sync::Arc;

use crate::source::resource::Resource;
use limpet_model::pod::{Fault, PodKey, Severity};
use limpet_model::source::SourceKind;

/// Why a push was refused. Nothing has changed then.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PushError {
    /// The body is not one document of the path's kind and name.
    #[error("{0}")]
    BadRequest(String),
    /// The document has faults, at least one error among them.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Fault>),
    /// There is none of that name.
    #[error("{} \"{name}\" not found", resource.plural())]
    NotFound {
        /// Its kind.
        resource: Resource,
        /// The name asked for.
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
    /// What is to be deleted is another source's.
    #[error("{what} comes from {by} {origin}; remove it there")]
    NotPushed {
        /// Kind, namespace and name.
        what: String,
        /// The source that has it.
        by: SourceKind,
        /// Where in the source.
        origin: Arc<str>,
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

impl PushError {
    /// What is wrong with the document itself, as a source that reads files would find it; empty when nothing is.
    pub fn faults(&self) -> Vec<Fault> {
        match self {
            Self::Invalid(faults) => faults.iter().filter(|fault| fault.severity == Severity::Error).cloned().collect(),
            Self::BadRequest(message) => vec![Fault::error("", message)],
            Self::Claimed { .. } => vec![Fault::error("metadata.name", self.to_string())],
            Self::NotFound { .. }
            | Self::BeingDeleted { .. }
            | Self::NotPushed { .. }
            | Self::NotKept { .. }
            | Self::Stopping => Vec::new(),
        }
    }
}
