//! The lines that a scenario leaves, and the table that they make: who was ended, in which order, when, and what is left.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};

/// The begin of the line that a hog prints when it has allocated everything. It stands where other lines name a pod.
pub(super) const FILLED: &str = "filled";

/// The record of one contender in a scenario.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) scenario: String,
    /// Who ran the pods.
    pub(super) who: String,
    pub(super) lines: String,
}

/// The contents of the lines. Times are seconds from the moment when the hog began.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    /// When the hog had allocated everything.
    filled: Option<f64>,
    /// Pods that ended, in the order of their ends.
    ended: Vec<(String, f64)>,
    /// Containers that ran again.
    again: Vec<(String, f64)>,
    /// Images that were removed, in the order of their removal.
    removed: Vec<(String, f64)>,
    /// Pods that run at the end.
    run: Vec<String>,
    /// Images that are present at the end.
    kept: Vec<String>,
    /// What is left of what was short.
    left: Vec<String>,
    /// The reason in the status of a pod that did not end by an eviction.
    reasons: BTreeMap<String, String>,
}

impl Outcome {
    /// Reads the lines of a record. Any other line is an error: `began|ended POD MS`, `removed IMAGE MS`, `kept IMAGE`,
    /// `reason POD TEXT`, `left TEXT`, `over MS`.
    fn read(lines: &str) -> Result<Self> {
        let mut outcome = Self::default();
        for line in lines.lines().filter(|line| !line.is_empty()) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            let timed = || {
                let (name, ms) = rest.split_once(' ')?;
                Some((name.to_owned(), f64::from(ms.parse::<u32>().ok()?) / 1e3))
            };
            let timed = || timed().with_context(|| format!("a name and milliseconds are missing in {line:?}"));
            match word {
                "began" => outcome.begin(timed()?),
                "ended" => outcome.end(timed()?),
                "removed" => outcome.removed.push(timed()?),
                "kept" => outcome.kept.push(rest.to_owned()),
                "left" => outcome.left.push(rest.to_owned()),
                "reason" => {
                    let (name, reason) = rest.split_once(' ').with_context(|| format!("no reason in {line:?}"))?;
                    outcome.reasons.insert(name.to_owned(), reason.to_owned());
                }
                "over" => {}
                _ => bail!("not a line of a scenario: {line:?}"),
            }
        }
        outcome.run.sort();
        outcome.kept.sort();
        Ok(outcome)
    }

    fn begin(&mut self, (name, at): (String, f64)) {
        if name == FILLED {
            self.filled.get_or_insert(at);
            return;
        }
        if at > 0.0 {
            self.again.push((name.clone(), at));
        }
        self.run.push(name);
    }

    fn end(&mut self, (name, at): (String, f64)) {
        if name != FILLED {
            self.run.retain(|other| *other != name);
            self.ended.push((name, at));
        }
    }

    /// The rows of the table, each with its heading; empty if there is nothing to show.
    fn rows(&self) -> [(&'static str, String); 7] {
        let timed = |all: &[(String, f64)]| {
            all.iter().map(|(name, at)| format!("{name} {at:.0}")).collect::<Vec<_>>().join(", ")
        };
        let with_reason = |(name, at): &(String, f64)| match self.reasons.get(name) {
            Some(reason) => format!("{name} {at:.0} ({reason})"),
            None => format!("{name} {at:.0}"),
        };
        [
            ("the hog has all it wants, s", self.filled.map(|at| format!("{at:.0}")).unwrap_or_default()),
            ("ended, in this order, s", self.ended.iter().map(with_reason).collect::<Vec<_>>().join(", ")),
            ("run again, s", timed(&self.again)),
            ("run in the end", self.run.join(", ")),
            ("images removed, in this order, s", timed(&self.removed)),
            ("images kept", self.kept.join(", ")),
            ("left", self.left.join(", ")),
        ]
    }
}

/// A block for each scenario, the contenders side by side, in the order of their first records.
///
/// # Errors
/// A line that no scenario writes.
pub(super) fn table(records: &[Record]) -> Result<String> {
    let mut text = String::new();
    let whos = unique(records.iter().map(|record| record.who.as_str()));
    for scenario in unique(records.iter().map(|record| record.scenario.as_str())) {
        let record_of = |who: &&str| records.iter().find(|record| record.scenario == scenario && record.who == *who);
        let outcomes = whos.iter().map(|who| record_of(who).map(|record| Outcome::read(&record.lines)).transpose());
        let rows: Vec<_> = outcomes
            .map(|outcome| Ok(outcome?.map(|outcome| outcome.rows()).unwrap_or_default()))
            .collect::<Result<_>>()
            .with_context(|| scenario.to_owned())?;
        // Writing to a string cannot fail.
        writeln!(text, "\n| {scenario} | {} |\n|---{}|", whos.join(" | "), "|---".repeat(whos.len())).ok();
        for (index, (heading, _)) in Outcome::default().rows().iter().enumerate() {
            let cells: Vec<_> = rows.iter().map(|rows| rows[index].1.as_str()).collect();
            if cells.iter().any(|cell| !cell.is_empty()) {
                let cells: Vec<_> = cells.into_iter().map(|cell| if cell.is_empty() { "none" } else { cell }).collect();
                writeln!(text, "| {heading} | {} |", cells.join(" | ")).ok();
            }
        }
    }
    Ok(text)
}

/// Each text once, in the order of first appearance.
fn unique<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    all.fold(Vec::new(), |mut seen, name| {
        if !seen.contains(&name) {
            seen.push(name);
        }
        seen
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn record(scenario: &str, who: &str, lines: &str) -> Record {
        Record { scenario: scenario.to_owned(), who: who.to_owned(), lines: lines.to_owned() }
    }

    #[test]
    fn who_ended_and_what_is_left_stand_side_by_side() {
        let start = "began hog 0\nbegan low 0\nbegan static 0\n";
        let limpet = format!(
            "{start}began filled 9100\nended low 12400\nended hog 15600\nleft 190 MiB of the disk\nover 60000\n"
        );
        let kubelet = format!("{start}ended low 21000\nended hog 30000\nbegan hog 31000\nreason hog OOMKilled\n");
        let records = [record("full disk", "limpet", &limpet), record("full disk", "kubelet", &kubelet)];
        let expected = "
| full disk | limpet | kubelet |
|---|---|---|
| the hog has all it wants, s | 9 | none |
| ended, in this order, s | low 12, hog 16 | low 21, hog 30 (OOMKilled) |
| run again, s | none | hog 31 |
| run in the end | static | hog, static |
| left | 190 MiB of the disk | none |
";
        assert_eq!(table(&records).unwrap(), expected);
    }

    #[test]
    fn images_are_in_the_order_of_their_removal() {
        let lines = "removed old:1 2400\nremoved new:1 2400\nkept b:1\nkept a:1\nleft 40 % used\nover 9000";
        let table = table(&[record("images", "limpet", lines), record("other", "kubelet", "")]).unwrap();
        let rows: Vec<_> = table.lines().skip(1).take(5).collect();
        assert_eq!(
            rows,
            [
                "| images | limpet | kubelet |",
                "|---|---|---|",
                "| images removed, in this order, s | old:1 2, new:1 2 | none |",
                "| images kept | a:1, b:1 | none |",
                "| left | 40 % used | none |",
            ]
        );
    }

    #[test]
    fn a_line_that_no_scenario_writes_is_an_error() {
        for lines in ["ended hog", "ended hog soon", "reason hog", "what is this"] {
            let error = table(&[record("full disk", "limpet", lines)]).unwrap_err();
            assert!(format!("{error:#}").starts_with("full disk: "), "{error:#}");
        }
    }
}
