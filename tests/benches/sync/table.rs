//! The figures of one contender beside those of the other.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// The budget of the executable for nodes with 50 API pods and a live connection.
const PSS_MIB: f64 = 10.0;
/// limpet's budgets as a part of kubelet's figures: no more requests than kubelet sends, and at most half of its bytes.
const SHARES_OF_KUBELET: [(&str, f64); 2] = [(REQUESTS, 1.0), (KILOBYTES, 0.5)];
/// The figures that have a budget.
pub(crate) const REQUESTS: &str = "idle: requests an hour";
pub(crate) const KILOBYTES: &str = "idle: kB an hour";
pub(crate) const PSS: &str = "idle: PSS MiB";

#[derive(Debug)]
pub(crate) struct Row {
    /// The contender's name.
    pub(crate) who: &'static str,
    /// What was measured, with its unit.
    pub(crate) what: String,
    pub(crate) value: f64,
    /// The figure's parts, by kind of request.
    pub(crate) parts: Value,
}

impl Row {
    /// The form in which it is kept.
    pub(crate) fn json(&self) -> Value {
        json!({ "who": self.who, "what": self.what, "value": self.value, "parts": self.parts })
    }
}

/// A line for each figure, with a column for each contender.
pub(crate) fn text(rows: &[Row]) -> String {
    let Some(first) = rows.first().map(|row| row.who) else { return String::new() };
    let (rows_of_first, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.who == first);
    let mut text = format!("\n{:<54} {first:>12} {:>12}\n", "", others.first().map_or("", |row| row.who));
    for row in rows_of_first {
        let other = others.iter().find(|other| other.what == row.what);
        let other = other.map_or_else(String::new, |row| format!("{:.1}", row.value));
        text.push_str(&format!("{:<54} {:>12.1} {other:>12}\n", row.what, row.value));
    }
    text
}

/// Whether limpet is within its budgets; those beside kubelet's figures where kubelet was measured.
pub(crate) fn check_budgets(rows: &[Row], is_dist: bool) -> Result<()> {
    let value = |who: &str, what: &str| rows.iter().find(|row| row.who == who && row.what == what).map(|row| row.value);
    let limpets = |what: &str| value("limpet", what).with_context(|| format!("{what}: not measured"));
    let pss = limpets(PSS)?;
    ensure!(!is_dist || pss <= PSS_MIB, "PSS is {pss:.1} MiB, of a budget of {PSS_MIB}");
    for (what, share) in SHARES_OF_KUBELET {
        let Some(kubelet) = value("kubelet", what) else { continue };
        let (limpets, budget) = (limpets(what)?, kubelet * share);
        ensure!(limpets <= budget, "{what}: {limpets:.0}, of a budget of {budget:.0}");
    }
    Ok(())
}
