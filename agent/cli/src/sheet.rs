//! The page layout of `describe` and `status`: labels in one column, values in the next, sections indented.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::age;
use crate::screen::printable;

/// The column of values, relative to the label's indentation.
const VALUE_COLUMN: usize = 18;

#[derive(Debug)]
pub(super) struct Sheet {
    text: String,
    indent: usize,
    now: Timestamp,
}

impl Sheet {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { text: String::new(), indent: 0, now }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// The time that ages are relative to.
    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// `Label:   value`
    pub(super) fn field(&mut self, label: &str, value: &str) {
        self.painted(label, &printable(value));
    }

    /// The same; `value` is printable and may be coloured.
    pub(super) fn painted(&mut self, label: &str, value: &str) {
        let label = format!("{}:", printable(label));
        let line = format!("{:indent$}{label:<VALUE_COLUMN$}{value}", "", indent = self.indent);
        // A label as long as the column still gets a space.
        let line = if label.len() >= VALUE_COLUMN { line.replacen(&label, &format!("{label} "), 1) } else { line };
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    pub(super) fn optional(&mut self, label: &str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.field(label, value);
        }
    }

    /// A time and how long ago it was.
    pub(super) fn time(&mut self, label: &str, time: Option<&Time>) {
        if let Some(Time(at)) = time {
            let seconds = Timestamp::from_second(at.as_second()).unwrap_or(*at);
            self.field(label, &format!("{seconds} ({} ago)", age::since(*at, self.now)));
        }
    }

    /// One pair per line, the first one next to the label.
    pub(super) fn map(&mut self, label: &str, pairs: &BTreeMap<String, String>, separator: &str) {
        let mut label = label;
        for (key, value) in pairs {
            let pair = format!("{key}{separator}{value}");
            if label.is_empty() {
                let column = self.indent + VALUE_COLUMN;
                self.text.push_str(&format!("{:column$}{}\n", "", printable(&pair)));
            } else {
                self.field(label, &pair);
            }
            label = "";
        }
        if !label.is_empty() {
            self.field(label, "<none>");
        }
    }

    /// Lines below a label; nothing if there are none.
    pub(super) fn list<T: AsRef<str>>(&mut self, label: &str, lines: impl IntoIterator<Item = T>) {
        let mut lines = lines.into_iter().peekable();
        if lines.peek().is_none() {
            return;
        }
        self.field(label, "");
        for line in lines {
            let column = self.indent + 2;
            self.text.push_str(&format!("{:column$}{}\n", "", printable(line.as_ref())));
        }
    }

    /// An unindented heading.
    pub(super) fn section(&mut self, title: &str) {
        self.text.push_str(title);
        self.text.push_str(":\n");
    }

    /// Indents everything that `write` writes by two columns.
    pub(super) fn indented(&mut self, write: impl FnOnce(&mut Self)) {
        self.indent += 2;
        write(self);
        self.indent -= 2;
    }

    /// Adds text unchanged.
    pub(super) fn text(&mut self, text: &str) {
        self.text.push_str(text);
    }
}
