//! Faults of a manifest, with all that its author needs to fix them: file, position, field, reason, remedy.

use std::fmt;
use std::sync::Arc;

/// Whether a fault rejects the manifest or only warns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The manifest is rejected.
    Error,
    /// The manifest is accepted; the author should know.
    Warning,
}

/// What kind of rule a manifest breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A document is not valid YAML, or too large.
    Syntax,
    /// A rule of Kubernetes: an unknown field, a wrong type, a value that is not allowed.
    Invalid,
    /// A field limpet does not act on.
    Unsupported,
    /// A field that only an apiserver can serve.
    NeedsApiserver,
    /// A field that has no effect on a node without an apiserver.
    NoEffect,
}

/// One finding about one field of one manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Error or warning.
    pub severity: Severity,
    /// What kind of rule is broken.
    pub reason: Reason,
    /// File name or URL the manifest came from; empty when it is not known.
    pub origin: Arc<str>,
    /// One-based line and column of the field, where known.
    pub position: Option<(u32, u32)>,
    /// The field's path as kubectl writes it: `spec.containers[0].image`; empty for the whole document.
    pub path: String,
    /// What is wrong, without the path.
    pub message: String,
    /// What to do about it, a whole phrase; empty if the message contains it.
    pub remedy: String,
}

impl Fault {
    /// An error at `path`; origin and position are filled in by the reader.
    pub fn error(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            reason: Reason::Invalid,
            origin: Arc::from(""),
            position: None,
            path: path.into(),
            message: message.into(),
            remedy: String::new(),
        }
    }

    /// A warning at `path`.
    pub fn warning(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(path, message) }
    }

    /// An error about a whole document that cannot be read.
    pub(super) fn syntax(message: impl Into<String>) -> Self {
        Self { reason: Reason::Syntax, ..Self::error("", message) }
    }

    /// The same fault for another reason.
    #[must_use]
    pub(super) fn because(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }

    /// The same fault with a remedy.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.origin.is_empty() {
            write!(f, "{}:", self.origin)?;
            if let Some((line, column)) = self.position {
                write!(f, "{line}:{column}:")?;
            }
            f.write_str(" ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}
