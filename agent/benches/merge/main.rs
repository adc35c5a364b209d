//! The cost of the merge: a first full merge and one changed pod among 10 to 10,000 of all sources, with and without
//! concurrent readers; compared in the same run with a plain implementation. Then the whole path: from the rename of
//! one manifest among 10,000 to the change received by the supervisor.
#![allow(clippy::unwrap_used, missing_docs)]

mod fixture;
mod limpet_way;
mod plain_way;
mod table;
mod whole_way;

use std::path::Path;
use std::time::{Duration, Instant};

use fixture::Pods;
use table::{Figures, Row};

/// The number of pods, all sources together.
const COUNTS: [usize; 4] = [10, 100, 1_000, 10_000];
/// Measured changes of each kind.
const CHANGES: usize = 2_000;
/// Concurrent reader threads.
const READERS: usize = 2;
/// Manifests in the directory, and the number of replacements of one of them.
const FILES: usize = 10_000;
const RENAMES: usize = 500;

fn main() {
    let mut rows = Vec::new();
    for count in COUNTS {
        let pods = Pods::new(count);
        let firsts = (200_000 / count).clamp(20, 1_000);
        rows.push(Row {
            count,
            limpet: Figures {
                first: limpet_way::first_merge(&pods, firsts),
                change: limpet_way::changes(&pods, CHANGES),
                read_beside: limpet_way::changes_while_read(&pods, CHANGES, READERS),
            },
            plain: Figures {
                first: plain_way::first_merge(&pods, firsts),
                change: plain_way::changes(&pods, CHANGES),
                read_beside: plain_way::changes_while_read(&pods, CHANGES, READERS),
            },
        });
    }
    print!("{}", table::print(&rows));
    let whole = whole_way::measure(FILES, RENAMES);
    print!("{}", table::print_whole(&whole));
    // `target/bench/merge.json`.
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = scratch.parent().unwrap_or(scratch).join("bench/merge.json");
    table::write_json(&rows, &whole, &file);
    println!("written to {}", file.display());
}

/// Durations of repeated measurements.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    /// Measures `work` on the result of `prepare`; preparing and dropping are not measured.
    pub(crate) fn measure<P, R>(
        runs: usize,
        mut prepare: impl FnMut(usize) -> P,
        mut work: impl FnMut(P) -> R,
    ) -> Self {
        let mut samples = Vec::with_capacity(runs);
        for run in 0..runs {
            let prepared = prepare(run);
            let start = Instant::now();
            let done = std::hint::black_box(work(prepared));
            samples.push(start.elapsed());
            drop(done);
        }
        samples.sort_unstable();
        Self(samples)
    }

    pub(crate) fn push(&mut self, sample: Duration) {
        let index = self.0.partition_point(|known| *known <= sample);
        self.0.insert(index, sample);
    }

    /// The smallest sample that is at least as large as so many thousandths of all, in microseconds.
    pub(crate) fn permille(&self, thousandths: usize) -> f64 {
        let rank = (self.0.len() * thousandths).div_ceil(1_000).max(1);
        self.0.get(rank - 1).map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e6)
    }
}

/// Changes with concurrent readers: the duration of each, and the reads per second.
#[derive(Debug)]
pub(crate) struct ReadBeside {
    pub(crate) changes: Samples,
    pub(crate) reads_per_second: f64,
}
