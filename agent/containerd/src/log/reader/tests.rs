//! Logs read whole, from the end and while they are written and rotated.

use std::fs;
use std::io::{PipeWriter, Write as _};
use std::thread::JoinHandle;

use futures_util::StreamExt as _;

use super::*;
use crate::log::LogStream;
use limpet_log::LogRotation;
use limpet_log::config::WriterConfig;
use limpet_log::writer::run;

/// A directory with the files of one log; `Log::path` is the newest.
struct Log(tempfile::TempDir);

impl Log {
    fn new(files: &[(&str, &str)]) -> Self {
        let log = Self(tempfile::tempdir().unwrap());
        for (name, text) in files {
            fs::write(log.0.path().join(name), text).unwrap();
        }
        log
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("0.log")
    }

    fn read(&self, options: &ReadOptions) -> String {
        text(&mut Files::open(self.path(), options).unwrap())
    }
}

fn text(files: &mut Files) -> String {
    let mut all = Vec::new();
    loop {
        match files.next(true).unwrap() {
            ReadOutcome::Text(text) => all.extend_from_slice(&text),
            ReadOutcome::End(text) => {
                all.extend_from_slice(&text);
                return String::from_utf8(all).unwrap();
            }
            ReadOutcome::Wait => unreachable!("reading to the end does not wait"),
        }
    }
}

/// Entries with these numbers, one per second.
fn lines(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|n| format!("2026-01-01T00:{:02}:{:02}.5Z stdout F line {n}\n", n / 60, n % 60)).collect()
}

fn expected(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|n| format!("line {n}\n")).collect()
}

fn tail(lines: u64) -> ReadOptions {
    ReadOptions { tail_lines: Some(lines), ..ReadOptions::default() }
}

fn rotated() -> Log {
    Log::new(&[
        ("0.log.20260101-000010", &lines(0..10)),
        ("0.log.20260101-000020", &lines(10..20)),
        ("0.log.20260101-000020-001", &lines(20..30)),
        ("0.log.20251231-000000.gz", "packed"),
        ("00.log", "another log"),
        ("0.log", &lines(30..35)),
    ])
}

#[test]
fn all_files_are_one_log() {
    assert_eq!(rotated().read(&ReadOptions::default()), expected(0..35));
}

#[test]
fn the_tail_may_span_files() {
    let log = rotated();
    for count in [0, 1, 4, 5, 6, 15, 16, 34, 35, 36, 1_000] {
        assert_eq!(log.read(&tail(count)), expected(35u32.saturating_sub(count as u32)..35), "{count}");
    }
}

#[test]
fn the_tail_is_found_at_every_position_in_a_block() {
    // The lines have all lengths, so that headers and newlines cross block boundaries at every position.
    let text: String =
        (0..800u32).map(|n| format!("2026-01-01T00:00:00Z stdout F {n} {}\n", "x".repeat(n as usize % 211))).collect();
    let log = Log::new(&[("0.log", &text)]);
    let whole = log.read(&ReadOptions::default());
    let whole: Vec<_> = whole.split_inclusive('\n').collect();
    for count in 0..whole.len() {
        assert_eq!(log.read(&tail(count as u64)), whole[whole.len() - count..].concat(), "{count}");
    }
}

#[test]
fn the_tail_counts_lines_not_parts_nor_other_streams_nor_damage() {
    let log = Log::new(&[(
        "0.log",
        "2026-01-01T00:00:00Z stdout F first\n2026-01-01T00:00:00Z stdout P a\n2026-01-01T00:00:00Z stdout F b\n\
         2026-01-01T00:00:0\n2026-01-01T00:00:00Z stderr F x\n2026-01-01T00:00:00Z stdout F last\n2026-01-01T00",
    )]);
    let stdout = |count| ReadOptions { stream: Some(LogStream::Stdout), ..tail(count) };
    assert_eq!(log.read(&tail(2)), "x\nlast\n");
    assert_eq!(log.read(&stdout(2)), "ab\nlast\n");
    assert_eq!(log.read(&stdout(3)), "first\nab\nlast\n");
}

#[test]
fn the_tail_has_whole_lines_where_the_parts_of_both_streams_alternate() {
    let entries =
        |parts: &[&str]| -> String { parts.iter().map(|part| format!("2026-01-01T00:00:00Z {part}\n")).collect() };
    let log = Log::new(&[
        ("0.log.20260101-000010", &entries(&["stdout F old", "stderr F older", "stdout P begins "])),
        (
            "0.log",
            &entries(&[
                "stderr P e1 ",
                "stdout P goes on ",
                "stderr F e2",
                "stderr F between",
                "stdout F ends",
                "stderr F last",
            ]),
        ),
    ]);
    let table = [
        (1, "last\n"),
        (2, "begins goes on ends\nlast\n"),
        (3, "between\nbegins goes on ends\nlast\n"),
        (4, "e1 e2\nbetween\nbegins goes on ends\nlast\n"),
        (5, "older\ne1 e2\nbetween\nbegins goes on ends\nlast\n"),
        (6, "old\nolder\ne1 e2\nbetween\nbegins goes on ends\nlast\n"),
    ];
    for (count, wanted) in table {
        assert_eq!(log.read(&tail(count)), wanted, "{count}");
    }
    let stdout = ReadOptions { stream: Some(LogStream::Stdout), ..tail(1) };
    assert_eq!(log.read(&stdout), "begins goes on ends\n");
}

#[test]
fn a_last_line_without_its_end_counts_as_a_line() {
    let text = "2026-01-01T00:00:00Z stdout F line1\n2026-01-01T00:00:00Z stderr F error\n\
                2026-01-01T00:00:00Z stdout P la\n2026-01-01T00:00:00Z stdout P st\n";
    let log = Log::new(&[("0.log", text)]);
    for (count, wanted) in [(0, ""), (1, "last"), (2, "error\nlast"), (3, "line1\nerror\nlast")] {
        assert_eq!(log.read(&tail(count)), wanted, "{count}");
    }
}

#[test]
fn lines_before_since_are_skipped() {
    let log = rotated();
    for (time, first) in [("00:00:00.5", 0), ("00:00:12", 12), ("00:00:29.5", 29), ("00:00:34.6", 35)] {
        let since = Some(format!("2026-01-01T{time}Z").parse().unwrap());
        assert_eq!(log.read(&ReadOptions { since, ..ReadOptions::default() }), expected(first..35), "{time}");
    }
}

#[test]
fn an_endless_line_is_skipped() {
    let text = format!("{}{}\n{}", lines(0..1), "x".repeat(3 * LINE_LIMIT), lines(1..2));
    assert_eq!(Log::new(&[("0.log", &text)]).read(&ReadOptions::default()), expected(0..2));
}

#[test]
fn a_missing_log_is_not_found() {
    let log = Log::new(&[]);
    assert_eq!(Files::open(log.path(), &tail(3)).map(|_| ()).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[tokio::test]
async fn termination_messages_are_the_last_lines_and_bytes() {
    let log = Log::new(&[("0.log", &lines(0..200))]);
    assert_eq!(tail_for_termination_message(&log.path()).await.unwrap(), expected(120..200));
    let unended = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stdout P DONE\n";
    assert_eq!(tail_for_termination_message(&Log::new(&[("0.log", unended)]).path()).await.unwrap(), "one\nDONE");
    let long: String = (0..100).map(|_| format!("2026-01-01T00:00:00Z stdout F {}\n", "é".repeat(50))).collect();
    let log = Log::new(&[("0.log", &long)]);
    let message = tail_for_termination_message(&log.path()).await.unwrap();
    assert!((2_045..=2_048).contains(&message.len()) && message.starts_with('é') && message.ends_with("é\n"));
}

/// Starts a logger that keeps this many files of 2,000 bytes. Returns its streams, and its thread, which ends once
/// both are closed.
fn logger(log: &Log, max_files: u32) -> (PipeWriter, PipeWriter, JoinHandle<()>) {
    let (out_reader, stdout) = std::io::pipe().unwrap();
    let (err_reader, stderr) = std::io::pipe().unwrap();
    let config = WriterConfig {
        rotation: LogRotation { max_size: 2_000, max_files },
        path: log.path(),
        terminal: None,
        owner: None,
    };
    let (ready, is_ready) = std::sync::mpsc::channel();
    let writer =
        std::thread::spawn(move || run(out_reader.into(), err_reader.into(), config, |_| ready.send(()).unwrap()));
    is_ready.recv().unwrap();
    (stdout, stderr, writer)
}

#[tokio::test]
async fn a_last_line_without_its_end_is_read_while_the_shim_holds_the_streams_open() {
    let log = Log::new(&[]);
    let (mut stdout, stderr, writer) = logger(&log, 5);
    stdout.write_all(b"one\nDONE").unwrap();
    assert_eq!(tail_for_termination_message(&log.path()).await.unwrap(), "one\nDONE");
    stdout.write_all(b" again\n").unwrap();
    drop((stdout, stderr));
    writer.join().unwrap();
    assert_eq!(tail_for_termination_message(&log.path()).await.unwrap(), "one\nDONE again\n");
}

#[tokio::test]
async fn following_through_many_rotations_loses_no_line_and_stops_with_the_container() {
    let log = Log::new(&[]);
    // Enough files that none is removed before it is read.
    let (mut stdout, stderr, writer) = logger(&log, 1_000);
    let (finish, finished) = watch::channel(false);
    let options = ReadOptions { follow: true, ..ReadOptions::default() };
    let mut stream = Box::pin(read(log.path(), options, finished));
    let feeder = std::thread::spawn(move || {
        (0..5_000).for_each(|n| writeln!(stdout, "line {n}").unwrap());
        drop((stdout, stderr));
    });
    let mut text = Vec::new();
    while !text.ends_with(b"line 4999\n") {
        text.extend_from_slice(&stream.next().await.unwrap().unwrap());
    }
    feeder.join().unwrap();
    writer.join().unwrap();
    finish.send(true).unwrap();
    assert!(stream.next().await.is_none());
    assert!(String::from_utf8(text).unwrap() == expected(0..5_000));
}

#[tokio::test]
async fn following_reads_lines_written_after_the_container_has_finished() {
    let log = Log::new(&[]);
    let (out_reader, mut stdout) = std::io::pipe().unwrap();
    let (err_reader, stderr) = std::io::pipe().unwrap();
    let config = WriterConfig {
        rotation: LogRotation { max_size: 1 << 20, max_files: 2 },
        path: log.path(),
        terminal: None,
        owner: None,
    };
    let (ready, is_ready) = std::sync::mpsc::channel();
    let writer =
        std::thread::spawn(move || run(out_reader.into(), err_reader.into(), config, |_| ready.send(()).unwrap()));
    is_ready.recv().unwrap();
    let (_finish, finished) = watch::channel(true);
    let stream = Box::pin(read(log.path(), ReadOptions { follow: true, ..ReadOptions::default() }, finished));
    let text = tokio::spawn(stream.map(|chunk| chunk.unwrap().to_vec()).concat());
    tokio::task::yield_now().await;
    stdout.write_all(b"last words\n").unwrap();
    drop((stdout, stderr));
    assert_eq!(text.await.unwrap(), b"last words\n");
    writer.join().unwrap();
}

#[tokio::test]
async fn following_stops_when_the_directory_is_removed() {
    let log = Log::new(&[("0.log", &lines(0..1))]);
    let (_finish, finished) = watch::channel(false);
    let mut stream = Box::pin(read(log.path(), ReadOptions { follow: true, ..ReadOptions::default() }, finished));
    assert_eq!(stream.next().await.unwrap().unwrap(), expected(0..1));
    drop(log);
    assert!(stream.next().await.is_none());
}
