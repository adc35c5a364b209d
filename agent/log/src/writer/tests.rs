//! Tests of the logger as containerd uses it: two pipes in, a log file out.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use limpet_tests::need::need;

use super::*;
use crate::LogRotation;
use crate::config::{Writer, uri, value};
use crate::container_log::MAX_PART;
use crate::container_log::stamp::STAMP_LENGTH;

/// A logger on its own thread, with input from the test.
struct Logger {
    stdout: std::io::PipeWriter,
    stderr: std::io::PipeWriter,
    thread: JoinHandle<()>,
}

impl Logger {
    fn start(path: &Path, max_size: u64, max_files: u32) -> Self {
        Self::with_terminal(path, max_size, max_files, None)
    }

    fn with_terminal(path: &Path, max_size: u64, max_files: u32, terminal: Option<PathBuf>) -> Self {
        let (out_reader, stdout) = std::io::pipe().unwrap();
        let (err_reader, stderr) = std::io::pipe().unwrap();
        let config = WriterConfig {
            rotation: LogRotation { max_size, max_files },
            path: path.to_owned(),
            terminal,
            owner: None,
        };
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread =
            std::thread::spawn(move || run(out_reader.into(), err_reader.into(), config, |_| ready.send(()).unwrap()));
        is_ready.recv().unwrap();
        Self { stdout, stderr, thread }
    }

    fn finish(self) {
        let Self { stdout, stderr, thread } = self;
        drop((stdout, stderr));
        thread.join().unwrap();
    }
}

/// Stream, tag and text of each line of a file. Panics for an invalid line.
fn entries(path: &Path) -> Vec<(String, String, Vec<u8>)> {
    fs::read(path).unwrap().split_inclusive(|byte| *byte == b'\n').map(entry).collect()
}

fn entry(line: &[u8]) -> (String, String, Vec<u8>) {
    let line = line.strip_suffix(b"\n").unwrap();
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let time = std::str::from_utf8(parts.next().unwrap()).unwrap();
    time.parse::<jiff::Timestamp>().unwrap();
    let mut text = || String::from_utf8(parts.next().unwrap().to_owned()).unwrap();
    (text(), text(), parts.next().unwrap().to_owned())
}

fn rotated(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "0.log")
        .collect();
    names.sort();
    names
}

#[test]
fn the_uri_is_safe_for_gos_parser_and_contains_the_configuration() {
    let rotation = LogRotation { max_size: 10 << 20, max_files: 5 };
    let value_with = |terminal: Option<&Path>| {
        uri(
            Writer::Process(Path::new("/usr/bin/limpet")),
            rotation,
            Path::new("/var/log/pods/a_b_c/d e+f&g;%#?=é/0.log"),
            terminal,
            None,
        )
    };
    let log = "/var/log/pods/a_b_c/d%20e%2Bf%26g%3B%25%23%3F%3D%C3%A9/0.log";
    assert_eq!(value_with(None), format!("binary:///usr/bin/limpet?logger=10485760:5:0:{log}"));
    let owned = uri(Writer::Process(Path::new("/limpet")), rotation, Path::new("/0.log"), None, Some(65_536));
    assert_eq!(owned, "binary:///limpet?logger=%4065536%4010485760:5:0:/0.log");
    let terminal = Path::new("/run/é/c1");
    assert_eq!(
        value_with(Some(terminal)),
        format!("binary:///usr/bin/limpet?logger=10485760:5:10:/run/%C3%A9/c1{log}")
    );
}

#[test]
fn the_configuration_is_parsed_from_the_uri() {
    let rotation = LogRotation { max_size: 7, max_files: 2 };
    let config = |terminal: Option<&str>| {
        Some(WriterConfig { rotation, path: "/a:b/0.log".into(), terminal: terminal.map(PathBuf::from), owner: None })
    };
    assert_eq!(WriterConfig::parse(OsStr::new("7:2:0:/a:b/0.log")), config(None));
    assert_eq!(WriterConfig::parse(OsStr::new("7:2:6:/run:1/a:b/0.log")), config(Some("/run:1")));
    let owned = config(None).map(|config| WriterConfig { owner: Some(65_536), ..config });
    assert_eq!(WriterConfig::parse(OsStr::new("@65536@7:2:0:/a:b/0.log")), owned);
    for bad in [
        "",
        "7",
        "7:2",
        "7:2:/a",
        "7:2:0:relative",
        "7:2:3:run/a",
        "7:2:9:/a",
        "x:2:0:/a",
        "7:-1:0:/a",
        "7:2:0:",
        "@1:2:0:/a",
        "@x@7:2:0:/a",
    ] {
        assert_eq!(WriterConfig::parse(OsStr::new(bad)), None, "{bad}");
    }
}

#[test]
fn the_value_in_a_uri_is_what_the_logger_is_given() {
    let (rotation, log) = (LogRotation { max_size: 7, max_files: 2 }, Path::new("/var/log/d e+f&g;%#?=é/0.log"));
    let uri = uri(Writer::Process(Path::new("/usr/bin/lim pet")), rotation, log, None, Some(65_536));
    assert_eq!(value(&uri).unwrap(), OsStr::new("@65536@7:2:0:/var/log/d e+f&g;%#?=é/0.log"));
    for other in [
        "",
        "/run/fifo/out",
        "file:///x?logger=1",
        "binary:///x?id=1",
        "binary:///x?logger=%4",
        "binary:///x?logger=%zz",
    ] {
        assert_eq!(value(other), None, "{other}");
    }
}

#[test]
fn a_logger_is_known_by_its_arguments() {
    let parse = |arguments: &[&str]| Invocation::parse(arguments.iter().map(OsString::from));
    let logger = |replaces| Invocation { value: "7:2:0:/0.log".into(), replaces };
    for (arguments, invocation) in [
        (&["logger", "7:2:0:/0.log"][..], Some(logger(false))),
        (&["logger", "7:2:0:/0.log", "replacement"], Some(logger(true))),
        (&["logger", "7:2:0:/0.log", "other"], None),
        (&["logger", "7:2:0:/0.log", "replacement", "more"], None),
        (&["logger"], None),
        (&["logs", "web"], None),
        (&[], None),
    ] {
        assert_eq!(parse(arguments), invocation, "{arguments:?}");
        if let Some(invocation) = invocation {
            assert!(invocation.arguments().eq(arguments.iter().map(OsStr::new)), "{arguments:?}");
        }
    }
}

#[test]
fn cri_lines_and_the_last_partial_one_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pod/container/0.log");
    let mut logger = Logger::start(&path, 1 << 20, 5);
    // A carriage return belongs to a line's end only right before it.
    logger.stdout.write_all(b"one\r\n\nthr\ree").unwrap();
    logger.stderr.write_all(b"oops\n").unwrap();
    logger.finish();
    let (out, err): (Vec<_>, Vec<_>) = entries(&path).into_iter().partition(|(stream, ..)| stream == "stdout");
    assert_eq!(out.iter().map(|(_, tag, _)| tag.as_str()).collect::<Vec<_>>(), ["F", "F", "P"]);
    let texts: Vec<_> = out.into_iter().map(|(_, _, text)| text).collect();
    assert_eq!(texts, [b"one".to_vec(), b"".to_vec(), b"thr\ree".to_vec()]);
    assert_eq!(err, [("stderr".to_owned(), "F".to_owned(), b"oops".to_vec())]);
}

#[test]
fn clients_see_output_as_it_comes_and_hold_up_nothing_once_they_are_gone() {
    let directory = tempfile::tempdir().unwrap();
    let terminal = directory.path().join("a".repeat(120));
    fs::create_dir(&terminal).unwrap();
    let path = directory.path().join("0.log");
    let mut logger = Logger::with_terminal(&path, 1 << 20, 5, Some(terminal.clone()));
    let connect = || {
        let (_directory, socket) = crate::output_socket::path(&terminal).unwrap();
        UnixStream::connect(socket).unwrap()
    };
    let gone: Vec<_> = (0..20).map(|_| connect()).collect();
    drop(gone);
    let mut client = connect();
    let mut byte = [0];
    // Waits until it is accepted, because the logger drops disconnected clients at the first output.
    while client.set_nonblocking(true).is_ok() && client.read(&mut byte).is_err() {
        logger.stdout.write_all(b"?").unwrap();
    }
    client.set_nonblocking(false).unwrap();
    logger.stdout.write_all(b"$ ").unwrap();
    let mut shown = Vec::new();
    while !shown.ends_with(b"$ ") {
        client.read_exact(&mut byte).unwrap();
        shown.push(byte[0]);
    }
    logger.finish();
    assert_eq!(client.read(&mut byte).unwrap(), 0, "the end");
    assert!(entries(&path)[0].2.ends_with(b"?$ "));
}

#[test]
fn long_lines_are_split_into_parts_of_16_kib() {
    let directory = tempfile::tempdir().unwrap();
    for length in [MAX_PART - 1, MAX_PART, MAX_PART + 1, 2 * MAX_PART, 3 * MAX_PART + 5, 200_000] {
        let path = directory.path().join(format!("{length}.log"));
        let text: Vec<u8> = (0..length).map(|index| b'a' + (index % 26) as u8).collect();
        let mut logger = Logger::start(&path, 1 << 20, 5);
        logger.stdout.write_all(&text).unwrap();
        logger.stdout.write_all(b"\nnext\n").unwrap();
        logger.finish();
        let mut entries = entries(&path);
        assert_eq!(entries.pop().unwrap().2, b"next");
        assert_eq!(entries.last().unwrap().1, "F");
        assert!(entries.iter().rev().skip(1).all(|(_, tag, text)| tag == "P" && text.len() == MAX_PART));
        assert_eq!(entries.into_iter().flat_map(|(_, _, text)| text).collect::<Vec<_>>(), text);
    }
}

#[test]
fn no_two_lines_have_the_same_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let mut logger = Logger::start(&path, 1 << 20, 5);
    logger.stdout.write_all(&b"same\n".repeat(2_000)).unwrap();
    logger.finish();
    let text = fs::read_to_string(&path).unwrap();
    let times: std::collections::HashSet<_> = text.lines().map(|line| &line[..STAMP_LENGTH]).collect();
    assert_eq!(times.len(), 2_000);
}

#[test]
fn rotation_retains_the_newest_files_and_loses_no_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let mut logger = Logger::start(&path, 10_000, 4);
    for number in 0..1_000 {
        writeln!(logger.stdout, "line {number} of many").unwrap();
    }
    logger.finish();
    let rotated = rotated(directory.path());
    assert_eq!(rotated.len(), 3, "{rotated:?}");
    let mut lines = Vec::new();
    for name in rotated.iter().map(String::as_str).chain(["0.log"]) {
        let path = directory.path().join(name);
        assert!(fs::metadata(&path).unwrap().len() < 10_100, "{name}");
        lines.extend(entries(&path).into_iter().map(|(_, _, text)| String::from_utf8(text).unwrap()));
    }
    let expected: Vec<_> = (1_000 - lines.len()..1_000).map(|number| format!("line {number} of many")).collect();
    assert!(lines.len() > 400, "{}", lines.len());
    assert!(lines == expected, "from {:?} to {:?}", lines.first(), lines.last());
}

#[test]
fn max_files_of_one_leaves_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    let mut logger = Logger::start(&path, 1_000, 1);
    logger.stdout.write_all(&b"something\n".repeat(200)).unwrap();
    logger.finish();
    assert!(rotated(directory.path()).is_empty());
}

#[test]
fn an_existing_file_is_appended_and_its_torn_line_completed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("0.log");
    fs::write(&path, "2026-01-02T03:04:05.678901234Z stdout F whole\n2026-01-02T03:04").unwrap();
    let mut logger = Logger::start(&path, 1 << 20, 5);
    logger.stdout.write_all(b"new\n").unwrap();
    logger.finish();
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[1], "2026-01-02T03:04");
    assert_eq!(entry(format!("{}\n", lines[2]).as_bytes()).2, b"new");
}

#[test]
fn a_removed_directory_is_created_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pod/container/0.log");
    let mut logger = Logger::start(&path, 1 << 20, 5);
    fs::remove_dir_all(directory.path().join("pod")).unwrap();
    logger.stdout.write_all(b"still here\n").unwrap();
    logger.finish();
    assert_eq!(entries(&path).len(), 1);
}

#[test]
fn a_symlink_instead_of_the_file_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let victim = directory.path().join("victim");
    fs::write(&victim, "").unwrap();
    symlink(&victim, directory.path().join("0.log")).unwrap();
    let mut logger = Logger::start(&directory.path().join("0.log"), 1 << 20, 5);
    logger.stdout.write_all(b"text\n").unwrap();
    logger.finish();
    assert_eq!(fs::read(&victim).unwrap(), b"");
}

#[test]
fn the_logger_survives_a_full_disk() {
    let Some(disk) = SmallDisk::mount() else { return };
    let path = disk.0.path().join("0.log");
    let mut logger = Logger::start(&path, 1 << 30, 5);
    // More than the disk holds; every write returns, so the container never blocks. What remains in the pipe fits
    // after space is freed.
    let line = [b"x".repeat(99).as_slice(), b"\n"].concat();
    for _ in 0..3_000 {
        logger.stdout.write_all(&line.repeat(10)).unwrap();
    }
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    logger.stdout.write_all(b"after\n").unwrap();
    logger.finish();
    let entries = fs::read_to_string(&path).unwrap();
    assert!(entries.contains(" stderr F limpet: lost "));
    assert!(entries.contains(" lines of this log: no space left on device\n"));
    assert!(entries.ends_with(" stdout F after\n"));
}

/// A file system of 1 MiB that is unmounted with the test.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Returns `None`, and prints why, if mounting is not allowed.
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let options = c"size=1m";
        let flags = rustix::mount::MountFlags::empty();
        let mounted = rustix::mount::mount("tmpfs", directory.path(), "tmpfs", flags, Some(options));
        need(mounted.map_err(|error| format!("mounting a small tmpfs: {error}")))?;
        Some(Self(directory))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}
