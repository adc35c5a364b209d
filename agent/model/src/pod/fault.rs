//! Faults of a manifest, with all that its author needs to fix them: file, position, field, reason and remedy.

use std::fmt;
use std::sync::Arc;

use crate::pod::FieldValidation;

/// How many errors, and how many warnings, of one document or one file are kept. An author fixes them one by one, and
/// a manifest can have a million.
pub const MAX_FAULTS: usize = 100;
/// The most bytes of a fault's path, and of its message, because a manifest chooses the names in them.
const MAX_TEXT: usize = 512;
/// The end of the message of the fault that stands for those beyond the limit.
const NOT_SHOWN: &str = " more faults are not shown";

/// Whether a fault rejects the manifest or only warns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The manifest is rejected.
    Error,
    /// The manifest is accepted; the fault is shown to its author.
    Warning,
}

/// What kind of rule a manifest breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A document is not valid YAML, or too large.
    Syntax,
    /// A rule of Kubernetes: a wrong type, a value that is not allowed.
    Invalid,
    /// What only Kubernetes' strict decoding refuses: a field that does not exist, or is given twice.
    Strict,
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
    /// What to do about it, as a whole phrase; empty if the message contains it.
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
    pub(crate) fn because(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }

    /// How many faults it stands for.
    pub fn count(&self) -> usize {
        let more = self.message.strip_suffix(NOT_SHOWN).filter(|_| self.path.is_empty());
        more.and_then(|more| more.parse().ok()).unwrap_or(1)
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

/// Faults up to [`MAX_FAULTS`] errors and as many warnings; those beyond are counted.
#[derive(Debug, Default)]
pub struct FaultList {
    kept: Vec<Fault>,
    errors: usize,
    warnings: usize,
}

impl FaultList {
    /// Adds a fault, or counts it.
    pub fn push(&mut self, fault: Fault) {
        self.push_with(fault.severity, || fault);
    }

    /// Adds the fault that `make` returns, or only counts it, without calling `make`.
    pub(crate) fn push_with(&mut self, severity: Severity, make: impl FnOnce() -> Fault) {
        let count = self.count(severity);
        *count += 1;
        if *count <= MAX_FAULTS {
            self.kept.push(make());
        }
    }

    /// Turns the errors that [`FieldValidation::Warn`] accepts into warnings.
    pub(crate) fn relax(&mut self, validation: FieldValidation) {
        if validation == FieldValidation::Strict {
            return;
        }
        let before = self.beyond(Severity::Error);
        let is_relaxed = |fault: &&mut Fault| fault.severity == Severity::Error && fault.reason == Reason::Strict;
        for fault in self.kept.iter_mut().filter(is_relaxed) {
            fault.severity = Severity::Warning;
            (self.errors, self.warnings) = (self.errors - 1, self.warnings + 1);
        }
        // Nothing else is known about the faults that are not kept.
        if before > 0 && self.kept.iter().all(|fault| fault.severity == Severity::Warning) {
            (self.errors, self.warnings) = (self.errors - before, self.warnings + before);
        }
    }

    /// Adds the faults that another list keeps, and the count of the others.
    pub(crate) fn absorb(&mut self, other: Self) {
        let beyond = [Severity::Error, Severity::Warning].map(|severity| (severity, other.beyond(severity)));
        self.extend(other.kept);
        for (severity, more) in beyond {
            self.leave_out(severity, more);
        }
    }

    /// Counts `more` faults that are not shown.
    pub(crate) fn leave_out(&mut self, severity: Severity, more: usize) {
        *self.count(severity) += more;
    }

    /// The number of errors, kept or not.
    pub(crate) fn errors(&self) -> usize {
        self.errors
    }

    /// The faults that are kept.
    pub(crate) fn kept_mut(&mut self) -> &mut [Fault] {
        &mut self.kept
    }

    /// The faults that are kept, by position, and one more each for the errors and the warnings beyond. Overlong
    /// texts are cut.
    pub fn finish(mut self) -> Vec<Fault> {
        self.kept.sort_by_key(|fault| fault.position);
        for fault in &mut self.kept {
            cut(&mut fault.path, MAX_TEXT);
            cut(&mut fault.message, MAX_TEXT);
        }
        let origin = self.kept.first().map(|fault| Arc::clone(&fault.origin)).unwrap_or_default();
        for severity in [Severity::Error, Severity::Warning] {
            let more = self.beyond(severity);
            if more > 0 {
                let note = Fault::error("", format!("{more}{NOT_SHOWN}"));
                self.kept.push(Fault { severity, origin: Arc::clone(&origin), ..note });
            }
        }
        self.kept
    }

    fn count(&mut self, severity: Severity) -> &mut usize {
        match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        }
    }

    fn beyond(&self, severity: Severity) -> usize {
        let count = match severity {
            Severity::Error => self.errors,
            Severity::Warning => self.warnings,
        };
        count - self.kept.iter().filter(|fault| fault.severity == severity).count()
    }
}

impl Extend<Fault> for FaultList {
    fn extend<I: IntoIterator<Item = Fault>>(&mut self, faults: I) {
        faults.into_iter().for_each(|fault| self.push(fault));
    }
}

/// The errors among `faults` in one sentence of at most about `limit` bytes, and how many more there are.
pub fn summary(faults: &[Fault], limit: usize) -> String {
    let errors = || faults.iter().filter(|fault| fault.severity == Severity::Error);
    let mut more: usize = errors().map(Fault::count).sum();
    let mut text = String::new();
    for fault in errors().filter(|fault| fault.count() == 1) {
        let mut next = fault.to_string();
        cut(&mut next, limit);
        if !text.is_empty() && text.len() + next.len() > limit {
            break;
        }
        text.push_str(if text.is_empty() { "" } else { "; " });
        text.push_str(&next);
        more -= 1;
    }
    if more > 0 {
        text.push_str(&format!("; and {more} more faults"));
    }
    text
}

/// Cuts a text after at most `limit` bytes, with a mark that something is missing.
pub fn cut(text: &mut String, limit: usize) {
    const MARK: char = '…';
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit.saturating_sub(MARK.len_utf8())));
        text.push(MARK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_beyond_the_limit_are_counted_and_overlong_ones_cut() {
        let mut part = FaultList::default();
        part.extend((0..MAX_FAULTS + 3).map(|number| Fault::error(format!("spec.x[{number}]"), "ä".repeat(1_000))));
        let mut list = FaultList::default();
        list.push(Fault::warning("spec.y", "has no effect"));
        list.absorb(part);
        list.extend([Fault::error("spec.z", "required")]);
        assert_eq!(list.errors(), MAX_FAULTS + 4);
        let faults = list.finish();
        assert_eq!(faults.len(), MAX_FAULTS + 2);
        assert_eq!(faults[0].severity, Severity::Warning);
        assert!(faults[1].message.ends_with("ä…") && faults[1].message.len() <= MAX_TEXT, "{}", faults[1].message);
        let last = &faults[MAX_FAULTS + 1];
        assert_eq!((last.severity, last.message.as_str()), (Severity::Error, "4 more faults are not shown"));
        assert_eq!(last.count(), 4);
    }

    #[test]
    fn what_strict_decoding_alone_refuses_becomes_warnings() {
        let unknown =
            |number: usize| Fault::error(format!("spec.x[{number}]"), "no such field").because(Reason::Strict);
        let mut list = FaultList::default();
        list.extend((0..MAX_FAULTS + 7).map(unknown));
        list.relax(FieldValidation::Strict);
        assert_eq!(list.errors(), MAX_FAULTS + 7);
        list.relax(FieldValidation::Warn);
        assert_eq!((list.errors(), list.finish().iter().map(Fault::count).sum::<usize>()), (0, MAX_FAULTS + 7));
        let mut list = FaultList::default();
        list.extend([Fault::error("spec", "required"), unknown(0)]);
        list.relax(FieldValidation::Warn);
        assert_eq!((list.errors(), list.finish().len()), (1, 2));
    }

    #[test]
    fn a_summary_is_short_and_counts_what_it_leaves_out() {
        let mut list = FaultList::default();
        list.extend((0..1_000).map(|number| Fault::error(format!("spec.x[{number}]"), "no such field")));
        let text = summary(&list.finish(), 64);
        assert_eq!(text, "spec.x[0]: no such field; spec.x[1]: no such field; and 998 more faults");
        let two = [Fault::error("a", "required"), Fault::warning("b", "has no effect"), Fault::error("c", "required")];
        assert_eq!(summary(&two, 1_000), "a: required; c: required");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        for (limit, expected) in [(9, "abcäöü"), (8, "abcä…"), (7, "abc…"), (6, "abc…"), (3, "…")] {
            let mut text = "abcäöü".to_owned();
            cut(&mut text, limit);
            assert_eq!(text, expected, "{limit}");
        }
    }
}
