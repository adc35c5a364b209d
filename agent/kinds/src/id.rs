//! What identifies a workload on a node.

use std::fmt;

use limpet_model::object::ObjectKey;
use limpet_model::source::SourceKind;

/// A workload of a source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadId {
    /// The source that defines it.
    pub source: SourceKind,
    /// Which object it is.
    pub key: ObjectKey,
}

impl fmt::Display for WorkloadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.key, self.source)
    }
}
