//! The simulator: supervisor, workers, merge and a source's view over the fake executor, on one thread with a virtual
//! clock. A seed decides manifests, edits, exits, faults and crashes, and reproduces a run exactly.
//!
//! With `--kinds` its sources define workloads, whose controllers work under the same faults. With `--generations` each
//! version of its source is on trial, and some do not work. With `--link` the node is part of a simulated cluster, and what
//! befalls it is the line to its apiserver.
//!
//! `cargo xtask simulate --seeds A..B` runs many; `--seed N --trace` prints the steps of one.
#![allow(clippy::unwrap_used, missing_docs)]

mod agent;
mod expected;
mod generations;
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

/// The lives of one kind.
struct Lives {
    /// The argument that chooses them; `None`: they are chosen by none.
    argument: Option<&'static str>,
    run: Run,
    /// What an ordinary test run tries.
    everyday: Range<u64>,
    /// Whether a seed always gives the same steps.
    repeats: bool,
}

static LIVES: [Lives; 4] = [
    Lives { argument: None, run: run::run, everyday: 0..10_000, repeats: true },
    // Whom of those that wait for one change tokio wakes first is not the seed's.
    Lives { argument: Some("--link"), run: link::run, everyday: 0..500, repeats: false },
    Lives { argument: Some("--kinds"), run: kinds::run, everyday: 0..500, repeats: true },
    Lives { argument: Some("--generations"), run: generations::run, everyday: 0..200, repeats: true },
];

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
    let has = |argument: &str| arguments.iter().any(|given| given == argument);
    let chosen = LIVES.iter().find(|lives| lives.argument.is_some_and(has));
    let [pods, ..] = &LIVES;
    if let Some(seed) = value("--seed") {
        let Ok(seed) = seed.parse() else { return usage() };
        return run_seed(chosen.unwrap_or(pods).run, seed, has("--trace"));
    }
    match value("--seeds").map(range) {
        Some(Some(seeds)) => many(chosen.unwrap_or(pods), seeds),
        Some(None) => usage(),
        None => {
            let all = LIVES.iter().filter(|lives| chosen.is_none_or(|chosen| chosen.argument == lives.argument));
            let results: Vec<ExitCode> = all.map(|lives| many(lives, lives.everyday.clone())).collect();
            let has_failed = results.contains(&ExitCode::FAILURE);
            if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
    }
}

/// Runs a seed, and keeps its steps where that is wanted.
type Run = fn(u64, bool) -> Report;

fn usage() -> ExitCode {
    eprintln!("usage: simulate [--link | --kinds | --generations] [--seeds A..B | --seed N [--trace]]");
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
fn many(&Lives { run, repeats, .. }: &Lives, seeds: Range<u64>) -> ExitCode {
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
