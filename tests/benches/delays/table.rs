//! The figures of the contenders side by side: the least, the median and the greatest of all runs.

use std::time::Duration;

use anyhow::{Result, ensure};
use limpet_tests::measure;
use serde_json::{Value, json};

use super::scene::{Took, WAIT_TIMEOUT};

/// How long limpet may take in each respect.
const BUDGET: Duration = Duration::from_secs(2);
/// This one has no budget, because a successor must never run beside its predecessor.
pub(crate) const BOTH_RUN: &str = "the link is back: a replaced pod and its successor both run";

/// The runs of one contender in one respect.
#[derive(Debug)]
pub(crate) struct Row {
    who: &'static str,
    what: &'static str,
    took: Vec<Took>,
}

/// The results so far.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Row>);

impl Table {
    pub(crate) fn add(&mut self, who: &'static str, what: &'static str, took: Took) {
        println!("{who:<8} {what}: {}", took.map_or_else(in_vain, seconds));
        match self.0.iter_mut().find(|row| row.who == who && row.what == what) {
            Some(row) => row.took.push(took),
            None => self.0.push(Row { who, what, took: vec![took] }),
        }
    }

    /// Whether all runs of that contender failed, in all of these respects, and there was one.
    pub(crate) fn is_hopeless(&self, who: &str, whats: &[&str]) -> bool {
        let in_vain = |what: &&str| {
            let row = self.0.iter().find(|row| row.who == who && row.what == *what);
            row.is_some_and(|row| row.took.iter().all(Option::is_none))
        };
        whats.iter().all(in_vain)
    }

    /// A line for each respect, with a column for each contender.
    pub(crate) fn text(&self) -> String {
        let Some(first) = self.0.first().map(|row| row.who) else { return String::new() };
        let (rows_of_first, others): (Vec<_>, Vec<_>) = self.0.iter().partition(|row| row.who == first);
        let who = others.first().map_or("", |row| row.who);
        let mut text = format!("\n{:<62} {first:<30} {who}\n", "s, min / median / max (runs)");
        for row in rows_of_first {
            let other = others.iter().find(|other| other.what == row.what);
            let other = other.map_or_else(String::new, |other| other.text());
            text.push_str(&format!("{:<62} {:<30} {other}\n", row.what, row.text()));
        }
        text
    }

    /// Whether limpet was within its budgets each time.
    pub(crate) fn check_budgets(&self) -> Result<()> {
        for row in self.0.iter().filter(|row| row.who == "limpet") {
            let budget = if row.what == BOTH_RUN { Duration::ZERO } else { BUDGET };
            let slowest = row.took.iter().map(|took| took.unwrap_or(Duration::MAX)).max().unwrap_or_default();
            ensure!(slowest <= budget, "{}: {slowest:?}, of a budget of {budget:?}", row.what);
        }
        Ok(())
    }

    /// Every sample in milliseconds; `null` for one that failed.
    pub(crate) fn json(&self) -> Value {
        let row = |row: &Row| {
            let samples: Vec<_> = row.took.iter().map(|took| took.map(|took| took.as_secs_f64() * 1e3)).collect();
            json!({ "what": row.what, "who": row.who, "unit": "ms", "samples": samples })
        };
        self.0.iter().map(row).collect()
    }

    /// Writes every sample.
    pub(crate) fn write(&self, version: (u32, u32)) -> Result<()> {
        measure::write(env!("CARGO_TARGET_TMPDIR"), "delays", version, self.json())
    }
}

impl Row {
    fn text(&self) -> String {
        let mut took = self.took.clone();
        // A failed run counts as longer than all others.
        took.sort_by_key(|took| took.unwrap_or(Duration::MAX));
        let picked = [took.first(), took.get(took.len() / 2), took.last()];
        let runs = self.took.len();
        if took.iter().all(Option::is_none) {
            return format!("{} ({runs})", in_vain());
        }
        let cell = |took: &Took| took.map_or_else(in_vain, |took| format!("{:.2}", took.as_secs_f64()));
        let cells: Vec<_> = picked.into_iter().flatten().map(cell).collect();
        format!("{} ({runs})", cells.join(" / "))
    }
}

fn seconds(took: Duration) -> String {
    format!("{:.2} s", took.as_secs_f64())
}

fn in_vain() -> String {
    format!("not in {} s", WAIT_TIMEOUT.as_secs())
}
