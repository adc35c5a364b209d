//! The figures of one contender beside those of the other.

use serde_json::{Value, json};

/// One figure.
#[derive(Debug)]
pub(crate) struct Row {
    /// Of whom.
    pub(crate) who: &'static str,
    /// Of what, with its unit.
    pub(crate) what: String,
    /// The figure.
    pub(crate) value: f64,
    /// What it is made of, by kind of request.
    pub(crate) of: Value,
}

impl Row {
    /// As it is kept.
    pub(crate) fn json(&self) -> Value {
        json!({ "who": self.who, "what": self.what, "value": self.value, "of": self.of })
    }
}

/// A line for each figure, with a column for each contender.
pub(crate) fn text(rows: &[Row]) -> String {
    let Some(first) = rows.first().map(|row| row.who) else { return String::new() };
    let (own, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.who == first);
    let mut text = format!("\n{:<54} {first:>12} {:>12}\n", "", others.first().map_or("", |row| row.who));
    for row in own {
        let other = others.iter().find(|other| other.what == row.what);
        let other = other.map_or_else(String::new, |row| format!("{:.1}", row.value));
        text.push_str(&format!("{:<54} {:>12.1} {other:>12}\n", row.what, row.value));
    }
    text
}
