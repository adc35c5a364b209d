//! The simulator: supervisor, workers, merge and a source's view over the fake executor, on one thread with a virtual
//! clock. A seed decides manifests, edits, exits, faults and crashes, and reproduces a run exactly.
//!
//! With `--kinds` its sources define workloads, whose controllers work under the same faults. With `--link` the node is part of a simulated cluster, and what befalls it is the line to its apiserver.
//!
//! `cargo xtask simulate --seeds A..B` runs many; `--seed N --trace` prints the steps of one.
#![allow(clippy::unwrap_used, missing_docs)]

mod agent;
mod expected;
mod kinds;
mod link;
mod manifests;
mod places;
mod run;
mod server;

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use run::Report;

/// What an ordinary test run tries.
const EVERYDAY: Range<u64> = 0..10_000;
/// What it tries of lines.
const EVERYDAY_LINKS: Range<u64> = 0..500;
/// What it tries of workloads.
const EVERYDAY_KINDS: Range<u64> = 0..500;
/// One seed in so many runs twice more: its steps have to be the same.
const REPEAT_EVERY: u64 = 64;
/// Failures after which no further seed is tried.
const MAX_FAILURES: usize = 5;
/// A run of minutes of virtual time takes a fraction of a second: one that takes this long goes round without waiting.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).map(String::as_str)
    };
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let is_link = arguments.iter().any(|argument| argument == "--link");
    let node: (Run, bool) = (run::run, true);
    // Whom of those that wait for one change tokio wakes first is not the seed's.
    let link: (Run, bool) = (link::run, false);
    let kinds: (Run, bool) = (kinds::run, true);
    let is_kinds = arguments.iter().any(|argument| argument == "--kinds");
    let chosen = if is_link {
        link
    } else if is_kinds {
        kinds
    } else {
        node
    };
    if let Some(seed) = value("--seed") {
        let Ok(seed) = seed.parse() else { return usage() };
        return run_seed(chosen.0, seed, arguments.iter().any(|argument| argument == "--trace"));
    }
    match value("--seeds").map(range) {
        Some(Some(seeds)) => many(chosen, seeds),
        Some(None) => usage(),
        None if is_link => many(link, EVERYDAY_LINKS),
        None if is_kinds => many(kinds, EVERYDAY_KINDS),
        None => {
            let all = [many(node, EVERYDAY), many(link, EVERYDAY_LINKS), many(kinds, EVERYDAY_KINDS)];
            if all == [ExitCode::SUCCESS; 3] { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

/// Runs a seed, and keeps its steps where that is wanted.
type Run = fn(u64, bool) -> Report;

fn usage() -> ExitCode {
    eprintln!("usage: simulate [--link | --kinds] [--seeds A..B | --seed N [--trace]]");
    ExitCode::from(2)
}

fn range(text: &str) -> Option<Range<u64>> {
    let (begin, end) = text.split_once("..")?;
    Some(begin.parse().ok()?..end.parse().ok()?)
}

fn run_seed(run: Run, seed: u64, trace: bool) -> ExitCode {
    let report = bounded(run, seed, trace);
    report.trace.iter().for_each(|line| println!("{line}"));
    match report.violations.as_slice() {
        [] => {
            println!("seed {seed}: ok, {} starts, {} virtual s", report.starts, report.virtual_seconds);
            ExitCode::SUCCESS
        }
        violations => {
            violations.iter().for_each(|violation| println!("seed {seed}: {violation}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs the seed, and ends the process if that does not end: virtual time is paused while anything is ready.
fn bounded(run: Run, seed: u64, trace: bool) -> Report {
    let (over, watched) = mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if watched.recv_timeout(RUN_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            println!("seed {seed}: no end after {} s: a task runs without waiting", RUN_TIMEOUT.as_secs());
            println!("test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out");
            std::process::exit(1);
        }
    });
    let report = run(seed, trace);
    drop(over);
    // It has nothing to say but that it ended.
    let _ = watch.join();
    report
}

/// Runs all seeds on as many threads as there are cores, each run on one of them.
fn many((run, repeats): (Run, bool), seeds: Range<u64>) -> ExitCode {
    let (next, failed, begun) = (AtomicU64::new(seeds.start), AtomicUsize::new(0), Instant::now());
    let (starts, seconds) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        while failed.load(Ordering::Relaxed) < MAX_FAILURES {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let mut report = bounded(run, seed, false);
            let steps = || bounded(run, seed, true).trace;
            if repeats && seed % REPEAT_EVERY == 0 && steps() != steps() {
                report.violations.push("two runs differ".to_owned());
            }
            starts.fetch_add(report.starts, Ordering::Relaxed);
            seconds.fetch_add(report.virtual_seconds, Ordering::Relaxed);
            if !report.violations.is_empty() {
                failed.fetch_add(1, Ordering::Relaxed);
                report.violations.iter().for_each(|violation| println!("seed {seed}: {violation}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let runs = next.load(Ordering::Relaxed).min(seeds.end) - seeds.start;
    let failed = failed.load(Ordering::Relaxed);
    println!(
        "{runs} runs in {:.1} s: {} container starts, {} virtual hours",
        begun.elapsed().as_secs_f64(),
        starts.load(Ordering::Relaxed),
        seconds.load(Ordering::Relaxed) / 3_600
    );
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "test result: {verdict}. {} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out",
        runs - failed as u64
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
