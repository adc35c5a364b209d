//! Figures of benches: collected by what was measured and for whom, shown side by side, and stored as JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// How often each thing is measured, and how long things are watched; `cargo xtask bench` sets both.
pub const RUNS_VARIABLE: &str = "LIMPET_BENCH_RUNS";
/// See [`RUNS_VARIABLE`].
pub const SECONDS_VARIABLE: &str = "LIMPET_BENCH_SECONDS";
/// 1: the executable for nodes is measured (`cargo xtask bench --dist`). Only that one has budgets of memory.
pub const DIST_VARIABLE: &str = "LIMPET_BENCH_DIST";

/// Whether the executable for nodes is measured.
///
/// # Errors
/// The variable is not a number.
pub fn is_dist() -> Result<bool> {
    Ok(setting(DIST_VARIABLE, 0)? != 0)
}

/// The number that the environment sets, or `default`.
pub fn setting(variable: &str, default: usize) -> Result<usize> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable}={text}")),
        Err(_) => Ok(default),
    }
}

/// One repeated measurement, of one contender.
#[derive(Debug)]
struct Row {
    section: String,
    what: &'static str,
    who: &'static str,
    samples: Vec<Duration>,
}

/// All durations of a bench.
#[derive(Debug, Default)]
pub struct Durations(Vec<Row>);

impl Durations {
    /// Adds samples to those of `what` in `section`, of `who`.
    pub fn add(&mut self, section: &str, what: &'static str, who: &'static str, samples: &[Duration]) {
        let known = self.0.iter().position(|row| row.section == section && row.what == what && row.who == who);
        let at = known.unwrap_or_else(|| {
            self.0.push(Row { section: section.to_owned(), what, who, samples: Vec::new() });
            self.0.len() - 1
        });
        self.0[at].samples.extend(samples);
    }

    /// A block of lines for each section: percentiles of each contender, side by side.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for section in unique(self.0.iter().map(|row| row.section.as_str())) {
            let rows: Vec<_> = self.0.iter().filter(|row| row.section == section).collect();
            let whos = unique(rows.iter().map(|row| row.who));
            let columns = |cell: &dyn Fn(&&str) -> String| whos.iter().map(cell).collect::<String>();
            // Writing to a string cannot fail.
            write!(text, "\n{section:<38}{}", columns(&|who| format!(" |{who:>23}"))).ok();
            write!(text, "\n{:<38}{}", "ms", columns(&|_| format!(" |{:>7} {:>7} {:>7}", "p50", "p90", "p99"))).ok();
            for what in unique(rows.iter().map(|row| row.what)) {
                let row = |who: &str| rows.iter().find(|row| row.what == what && row.who == who);
                let cell = |who: &&str| row(who).map_or_else(|| format!(" |{:23}", ""), |row| row.percentiles());
                write!(text, "\n{what:<38}{}", columns(&cell)).ok();
            }
            text.push('\n');
        }
        text
    }

    /// Every sample, in milliseconds.
    pub fn json(&self) -> Value {
        let row = |row: &Row| {
            let samples: Vec<_> = row.samples.iter().map(|sample| sample.as_secs_f64() * 1e3).collect();
            json!({ "section": row.section, "what": row.what, "who": row.who, "unit": "ms", "samples": samples })
        };
        self.0.iter().map(row).collect()
    }
}

impl Row {
    fn percentiles(&self) -> String {
        let [p50, p90, p99] = [50, 90, 99].map(|hundredths| percentile(&self.samples, hundredths));
        format!(" |{p50:>7.1} {p90:>7.1} {p99:>7.1}")
    }
}

/// The smallest sample that so many percent of all do not exceed, in milliseconds.
fn percentile(samples: &[Duration], hundredths: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort();
    let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
    sorted.get(rank - 1).map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
}

/// Each once, in the order of their first appearance.
fn unique<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    all.fold(Vec::new(), |mut seen, name| {
        if !seen.contains(&name) {
            seen.push(name);
        }
        seen
    })
}

/// Writes the results of the bench `name` to `target/bench/<name>-<containerd>.json`; `scratch` is cargo's directory for
/// tests.
pub fn write(scratch: &str, name: &str, (major, minor): (u32, u32), rows: Value) -> Result<()> {
    let document = json!({ "containerd": format!("{major}.{minor}"), "rows": rows });
    write_document(scratch, &format!("{name}-{major}.{minor}"), &document)
}

/// The same of a bench without containerd, to `target/bench/<name>.json`.
pub fn write_document(scratch: &str, name: &str, document: &Value) -> Result<()> {
    let scratch = Path::new(scratch);
    let dir = scratch.parent().unwrap_or(scratch).join("bench");
    fs::create_dir_all(&dir).with_context(|| format!("{}", dir.display()))?;
    let file = dir.join(format!("{name}.json"));
    fs::write(&file, serde_json::to_vec_pretty(document)?).with_context(|| format!("{}", file.display()))?;
    println!("\nwritten to {}", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_stand_side_by_side() {
        let mut durations = Durations::default();
        let samples: Vec<_> = (1..=100).map(Duration::from_millis).collect();
        durations.add("host network", "start", "limpet", &samples[..60]);
        durations.add("host network", "start", "kubelet", &[Duration::from_millis(7)]);
        durations.add("host network", "start", "limpet", &samples[60..]);
        durations.add("host network", "restart", "kubelet", &[Duration::from_millis(8)]);
        let table = durations.table();
        let lines: Vec<_> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[1], "host network | limpet | kubelet");
        assert_eq!(lines[3], "start | 50.0 90.0 99.0 | 7.0 7.0 7.0");
        assert_eq!(lines[4], "restart | | 8.0 8.0 8.0");
    }
}
