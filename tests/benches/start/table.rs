//! The figures, for people and for programs.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// One thing measured again and again.
pub(crate) struct Row {
    name: &'static str,
    pub(crate) samples: Vec<Duration>,
}

impl Row {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, samples: Vec::new() }
    }

    /// The smallest sample that so many hundredths of all do not exceed, in milliseconds.
    fn percentile(&self, hundredths: usize) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort();
        let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
        sorted.get(rank - 1).map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
    }
}

/// A line for each row; the first is what the others are compared with.
pub(crate) fn print(rows: &[Row]) -> String {
    let mut text = format!("{:<34} {:>9} {:>9} {:>9} {:>9}\n", "ms", "min", "p50", "p99", "p50/floor");
    let floor = rows.first().map_or(f64::NAN, |row| row.percentile(50));
    for row in rows {
        let [min, p50, p99] = [0, 50, 99].map(|hundredths| row.percentile(hundredths));
        let ratio = p50 / floor;
        // Writing to a string cannot fail.
        writeln!(text, "{:<34} {min:>9.1} {p50:>9.1} {p99:>9.1} {ratio:>9.2}", row.name).ok();
    }
    text
}

/// Writes all samples and their percentiles.
pub(crate) fn write_json(rows: &[Row], containerd: &str, file: &Path) -> Result<()> {
    let row = |row: &Row| -> Value {
        let samples: Vec<_> = row.samples.iter().map(|sample| sample.as_secs_f64() * 1e3).collect();
        json!({ "name": row.name, "p50": row.percentile(50), "p99": row.percentile(99), "samples": samples })
    };
    let document = json!({
        "unit": "ms",
        "containerd": containerd,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    });
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
    }
    fs::write(file, serde_json::to_vec_pretty(&document)?).with_context(|| format!("{}", file.display()))
}
