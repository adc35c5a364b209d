//! What happened to a generation, for people: events, the log, metrics.

use limpet_model::source::SourceKind;

/// Something that has happened to a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub source: SourceKind,
    /// Whether it is an event of type Warning, and logged as a warning.
    pub is_warning: bool,
    /// `GenerationStarted`, `GenerationCommitted`, `GenerationUndone`, `GenerationWaiting`, `GenerationNotReady` or
    /// `GenerationRolledBack`.
    pub reason: &'static str,
    pub message: String,
}

impl Notice {
    pub(crate) fn normal(source: SourceKind, reason: &'static str, message: String) -> Self {
        Self { source, is_warning: false, reason, message }
    }

    pub(crate) fn warning(source: SourceKind, reason: &'static str, message: String) -> Self {
        Self { source, is_warning: true, reason, message }
    }
}
