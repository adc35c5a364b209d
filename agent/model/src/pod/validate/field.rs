//! The current path of validation in a manifest, and the faults found, with Kubernetes' messages.

use std::fmt;

use crate::pod::{Fault, FaultList, Severity};

/// Maximum number of characters of a value in a fault.
const MAX_SHOWN: usize = 64;

/// The path of a field. It costs nothing until a fault is reported.
#[derive(Debug, Clone, Copy)]
pub(super) enum At<'a> {
    /// `metadata` or `spec`.
    Root(&'a str),
    /// A field of the parent.
    Field(&'a At<'a>, &'a str),
    /// An item of a list.
    Index(&'a At<'a>, usize),
    /// An entry of a map.
    Key(&'a At<'a>, &'a str),
}

impl<'a> At<'a> {
    pub(super) fn field(&'a self, name: &'a str) -> At<'a> {
        Self::Field(self, name)
    }

    pub(super) fn index(&'a self, index: usize) -> At<'a> {
        Self::Index(self, index)
    }

    pub(super) fn key(&'a self, key: &'a str) -> At<'a> {
        Self::Key(self, key)
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
            Self::Key(parent, key) => write!(f, "{parent}[{key}]"),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    list: FaultList,
}

impl Faults {
    /// All faults.
    pub(super) fn finish(self) -> FaultList {
        self.list
    }

    /// How many errors were found so far.
    pub(super) fn error_count(&self) -> usize {
        self.list.errors()
    }

    #[cfg_attr(test, track_caller)]
    fn push(&mut self, at: &At<'_>, message: String, remedy: &str) {
        #[cfg(test)]
        fired::note();
        self.list.push_with(Severity::Error, || Fault::error(at.to_string(), message).with_remedy(remedy));
    }

    /// A required value is missing. `detail` may be empty.
    #[cfg_attr(test, track_caller)]
    pub(super) fn required(&mut self, at: &At<'_>, detail: &str) {
        self.push(at, with_detail("Required value", detail), "");
    }

    /// A value breaks a rule.
    #[cfg_attr(test, track_caller)]
    pub(super) fn invalid(&mut self, at: &At<'_>, value: impl fmt::Debug, detail: &str) {
        self.push(at, with_detail(&format!("Invalid value: {}", shown(&value)), detail), "");
    }

    /// A value breaks a rule that `remedy` spells out.
    #[cfg_attr(test, track_caller)]
    pub(super) fn malformed(&mut self, at: &At<'_>, value: &str, detail: &str, remedy: &str) {
        self.push(at, with_detail(&format!("Invalid value: {}", shown(&value)), detail), remedy);
    }

    /// A value is not one of the allowed ones.
    #[cfg_attr(test, track_caller)]
    pub(super) fn unsupported(&mut self, at: &At<'_>, value: &str, allowed: &[&str]) {
        let allowed: Vec<String> = allowed.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("Unsupported value: {}: supported values: {}", shown(&value), allowed.join(", "));
        self.push(at, message, "");
    }

    /// A value that must be unique occurs already.
    #[cfg_attr(test, track_caller)]
    pub(super) fn duplicate(&mut self, at: &At<'_>, value: &str) {
        self.push(at, format!("Duplicate value: {}", shown(&value)), "");
    }

    /// A value refers to something that does not exist; `remedy` names what does.
    #[cfg_attr(test, track_caller)]
    pub(super) fn not_found(&mut self, at: &At<'_>, value: &str, remedy: &str) {
        self.push(at, format!("Not found: {}", shown(&value)), remedy);
    }

    /// A field that may not be set here.
    #[cfg_attr(test, track_caller)]
    pub(super) fn forbidden(&mut self, at: &At<'_>, detail: &str) {
        self.push(at, with_detail("Forbidden", detail), "");
    }

    /// Reports a field that can only be added to an existing object.
    #[cfg_attr(test, track_caller)]
    pub(super) fn cannot_be_created(&mut self, at: &At<'_>, remedy: &str) {
        self.push(at, with_detail("Forbidden", "cannot be set on create"), remedy);
    }

    /// A text longer than `limit` bytes.
    #[cfg_attr(test, track_caller)]
    pub(super) fn too_long(&mut self, at: &At<'_>, limit: usize) {
        self.push(at, format!("Too long: may not be more than {limit} bytes"), "");
    }

    /// A list of more than `limit` items.
    #[cfg_attr(test, track_caller)]
    pub(super) fn too_many(&mut self, at: &At<'_>, count: usize, limit: usize) {
        self.push(at, format!("Too many: {count}: must have at most {limit} items"), "");
    }

    /// A text that must be one of `allowed`; a fault also if absent or empty.
    #[cfg_attr(test, track_caller)]
    pub(super) fn one_of(&mut self, at: &At<'_>, value: Option<&str>, allowed: &[&str]) {
        match value.unwrap_or_default() {
            "" => self.required(at, ""),
            value if allowed.contains(&value) => {}
            value => self.unsupported(at, value, allowed),
        }
    }

    /// A text that, if present, must be one of `allowed`.
    #[cfg_attr(test, track_caller)]
    pub(super) fn if_set_one_of(&mut self, at: &At<'_>, value: Option<&str>, allowed: &[&str]) {
        if let Some(value) = value.filter(|value| !allowed.contains(value)) {
            self.unsupported(at, value, allowed);
        }
    }

    /// A text that must not be empty.
    #[cfg_attr(test, track_caller)]
    pub(super) fn not_empty(&mut self, at: &At<'_>, value: &str) {
        if value.is_empty() {
            self.required(at, "");
        }
    }

    /// A number that must be between two others.
    #[cfg_attr(test, track_caller)]
    pub(super) fn in_range(&mut self, at: &At<'_>, value: i64, from: i64, to: i64) {
        if !(from..=to).contains(&value) {
            self.invalid(at, value, &format!("must be between {from} and {to}, inclusive"));
        }
    }

    /// A number that must not be negative.
    #[cfg_attr(test, track_caller)]
    pub(super) fn not_negative(&mut self, at: &At<'_>, value: i64) {
        if value < 0 {
            self.invalid(at, value, "must be greater than or equal to 0");
        }
    }
}

/// The rules that have reported a fault on this thread, for the test that looks for rules that no case violates.
#[cfg(test)]
pub(super) mod fired {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::panic::Location;

    thread_local! {
        static FIRED: RefCell<BTreeSet<(&'static str, u32)>> = const { RefCell::new(BTreeSet::new()) };
    }

    /// Records the calling rule, outside the methods of `Faults`.
    #[track_caller]
    pub(super) fn note() {
        let rule = Location::caller();
        FIRED.with_borrow_mut(|fired| fired.insert((rule.file(), rule.line())));
    }

    /// Returns file and line of every recorded rule, and clears them.
    pub(in super::super) fn take() -> BTreeSet<(&'static str, u32)> {
        FIRED.take()
    }
}

fn with_detail(message: &str, detail: &str) -> String {
    if detail.is_empty() { message.to_owned() } else { format!("{message}: {detail}") }
}

/// A value as a fault shows it, truncated if long. Nothing beyond the limit is formatted.
fn shown(value: &dyn fmt::Debug) -> String {
    let mut cut = LimitedText { text: String::new(), left: MAX_SHOWN };
    if fmt::write(&mut cut, format_args!("{value:?}")).is_err() {
        cut.text.push('…');
    }
    cut.text
}

/// Writes up to `left` characters and then fails.
struct LimitedText {
    text: String,
    left: usize,
}

impl fmt::Write for LimitedText {
    #[cfg_attr(test, track_caller)]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(c);
        }
        Ok(())
    }
}

/// The text of an optional field; absent and empty are the same.
pub(super) fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

/// The items of an optional list with their indices.
pub(super) fn items<T>(list: &Option<Vec<T>>) -> impl Iterator<Item = (usize, &T)> {
    list.iter().flatten().enumerate()
}

#[cfg(test)]
mod tests {
    use crate::pod::fault::MAX_FAULTS;
    use crate::pod::validate::field::*;

    #[test]
    fn faults_are_written_as_kubernetes_writes_them() {
        let spec = At::Root("spec");
        let containers = spec.field("containers");
        let first = containers.index(0);
        let mut faults = Faults::default();
        faults.required(&first.field("image"), "");
        faults.invalid(&first.field("name"), "A", "must be lower case");
        faults.invalid(&spec.field("x"), 7, "must be 6");
        faults.unsupported(&spec.field("dnsPolicy"), "None?", &["Default", "None"]);
        faults.duplicate(&spec.field("limits").key("cpu"), "1");
        let texts: Vec<String> = faults.finish().finish().iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.containers[0].image: Required value",
                "spec.containers[0].name: Invalid value: \"A\": must be lower case",
                "spec.x: Invalid value: 7: must be 6",
                "spec.dnsPolicy: Unsupported value: \"None?\": supported values: \"Default\", \"None\"",
                "spec.limits[cpu]: Duplicate value: \"1\"",
            ]
        );
    }

    #[test]
    fn many_faults_and_long_values_are_truncated() {
        let mut faults = Faults::default();
        (0..MAX_FAULTS + 5).for_each(|_| faults.invalid(&At::Root("spec"), "ä".repeat(1000).as_str(), ""));
        let listed = faults.finish().finish();
        assert_eq!(listed.len(), MAX_FAULTS + 1);
        assert_eq!(listed[MAX_FAULTS].message, "5 more faults are not shown");
        assert!(listed[0].message.len() < 200, "{}", listed[0].message);
    }
}
