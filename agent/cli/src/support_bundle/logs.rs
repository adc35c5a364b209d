//! The ends of logs: the agent's, the kernel's, and those of containers.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::archive::Archive;
use crate::program_output::output_of;
use limpet_host::blocking::{self, DEADLINE};

/// The number of the agent's newest lines that are included.
const AGENT_LINES: &str = "5000";
/// Where `install.sh` has OpenRC and init keep the agent's log, and the part of it that is included, in bytes.
const AGENT_FILE: &str = "/var/log/limpet.log";
const AGENT_BYTES: u64 = 1 << 20;
/// journalctl's output for an unknown unit.
const NO_ENTRIES: &str = "-- No entries --";
/// The part of the kernel's messages that is included, in bytes.
const KERNEL_BYTES: usize = 256 << 10;
/// The most bytes of one record of `/dev/kmsg`.
const MAX_KMSG_RECORD: usize = 8 << 10;
/// Audit records with the arguments of commands: EXECVE and PROCTITLE.
const WITH_ARGUMENTS: [&str; 2] = ["audit: type=1309", "audit: type=1327"];
/// The most instances of a container whose logs are included: the newest ones.
const MAX_INSTANCES: usize = 2;

/// Adds the agent's own log, from systemd's journal or else from its file.
pub(super) async fn add_agents<W: Write>(archive: &mut Archive<W>) -> io::Result<()> {
    let arguments = ["--unit=limpet", "--no-pager", "--output=short-iso", "--lines", AGENT_LINES];
    let log = match output_of("journalctl", &arguments).await.filter(|log| !log.starts_with(NO_ENTRIES)) {
        Some(log) => Ok(log),
        None => agents_file(Path::new(AGENT_FILE)).await,
    };
    archive.text_or_why("logs/agent.txt", log.map(|log| without_hooks(&log)))
}

async fn agents_file(path: &Path) -> Result<String, String> {
    let subject = path.to_owned();
    let log = blocking::run(path.to_owned(), DEADLINE, move |_| tail(&subject, AGENT_BYTES)).await.flatten();
    log.map_err(|error| {
        format!(
            "journalctl has no log of limpet.service, and {}: {error}; add what its supervisor keeps",
            path.display()
        )
    })
}

/// Removes the output of hooks' commands, which may contain secrets.
fn without_hooks(log: &str) -> String {
    let line = |line: &str| match line.find("Hook failed") {
        Some(at) => format!("{}Hook failed <redacted>\n", &line[..at]),
        None => format!("{line}\n"),
    };
    log.lines().map(line).collect()
}

/// Adds the kernel's newest messages.
pub(super) async fn add_kernels<W: Write>(archive: &mut Archive<W>) -> io::Result<()> {
    let messages = blocking::run("/dev/kmsg".into(), DEADLINE, |_| kernel_messages()).await.flatten();
    archive.text_or_why("logs/kernel.txt", messages.map_err(|error| format!("/dev/kmsg: {error}")))
}

fn kernel_messages() -> io::Result<String> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut kmsg = File::options().read(true).custom_flags(flags).open("/dev/kmsg")?;
    let mut records: std::collections::VecDeque<String> = Default::default();
    let (mut record, mut size) = (vec![0; MAX_KMSG_RECORD], 0);
    loop {
        match kmsg.read(&mut record) {
            Ok(0) => break,
            Ok(length) => {
                let Some(line) = message(&String::from_utf8_lossy(&record[..length])) else { continue };
                size += line.len();
                records.push_back(line);
                while size > KERNEL_BYTES {
                    size -= records.pop_front().map_or(size, |oldest| oldest.len());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // The record was overwritten during the read. The next read returns its successor.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(records.into_iter().collect())
}

/// `[seconds.micros] text` of a record of `/dev/kmsg` (Documentation/ABI/testing/dev-kmsg); `None` if it is left out.
fn message(record: &str) -> Option<String> {
    let (prefix, rest) = record.split_once(';')?;
    let micros: u64 = prefix.split(',').nth(2)?.parse().ok()?;
    let text = rest.lines().next().unwrap_or_default();
    if WITH_ARGUMENTS.iter().any(|audit| text.contains(audit)) {
        return None;
    }
    Some(format!("[{}.{:06}] {text}\n", micros / 1_000_000, micros % 1_000_000))
}

/// Adds the last `bytes` of each container's log below `podLogsDir`, unparsed.
pub(super) async fn add_containers<W: Write>(archive: &mut Archive<W>, pod_logs: &Path, bytes: u64) -> io::Result<()> {
    let directory = pod_logs.to_owned();
    let listing = blocking::run(directory.clone(), DEADLINE, move |_| files(&directory)).await.flatten();
    let listing = match listing {
        Ok(listing) => listing,
        Err(error) => {
            archive.lacks("the logs of containers", &format!("{}: {error}", pod_logs.display()));
            return Ok(());
        }
    };
    for path in listing {
        let name = format!("logs/containers/{}", path.strip_prefix(pod_logs).unwrap_or(&path).display());
        let subject = path.clone();
        archive.text_or_why(&name, blocking::run(path, DEADLINE, move |_| tail(&subject, bytes)).await.flatten())?;
    }
    Ok(())
}

/// The log files of the newest instances of each container: `POD/CONTAINER/N.log`.
fn files(pod_logs: &Path) -> io::Result<Vec<PathBuf>> {
    let mut newest = Vec::new();
    for pod in std::fs::read_dir(pod_logs)? {
        for container in std::fs::read_dir(pod?.path()).into_iter().flatten().flatten() {
            let logs = std::fs::read_dir(container.path()).into_iter().flatten().flatten();
            let mut logs: Vec<(u64, PathBuf)> =
                logs.filter_map(|log| Some((instance(&log.path())?, log.path()))).collect();
            logs.sort_unstable_by(|left, other| other.cmp(left));
            newest.extend(logs.into_iter().take(MAX_INSTANCES).map(|(_, path)| path));
        }
    }
    newest.sort_unstable();
    Ok(newest)
}

fn instance(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_suffix(".log")?.parse().ok()
}

/// The last `bytes` of a file, from the beginning of a line.
fn tail(path: &Path, bytes: u64) -> io::Result<String> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32;
    let mut file = File::options().read(true).custom_flags(flags).open(path)?;
    let begin = file.seek(SeekFrom::End(0))?.saturating_sub(bytes);
    let mut text = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    let mut read = 0;
    while let count @ 1.. = file.read_at(&mut text[read..], begin + read as u64)? {
        read += count;
    }
    text.truncate(read);
    let whole = match text.iter().position(|byte| *byte == b'\n') {
        Some(end) if begin > 0 => &text[end + 1..],
        _ => &text[..],
    };
    Ok(String::from_utf8_lossy(whole).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_record_is_one_line_and_shows_no_command() {
        let oom = "6,339,5140900,-;Out of memory: Killed process 7 (web)\n SUBSYSTEM=x\n";
        assert_eq!(message(oom).unwrap(), "[5.140900] Out of memory: Killed process 7 (web)\n");
        assert_eq!(message("5,1,2,-;audit: type=1309 audit(1:2): argc=2 a0=\"x\" a1=\"hunter2\"\n"), None);
        assert_eq!(message("no record"), None);
    }

    #[test]
    fn a_hooks_output_is_left_out_of_the_agents_log() {
        let log = "one\nPostStartHook failed: \"hunter2\" pod=web\nlast\n";
        assert_eq!(without_hooks(log), "one\nPostStartHook failed <redacted>\nlast\n");
    }

    #[tokio::test]
    async fn without_a_journal_the_agents_log_is_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limpet.log");
        let error = agents_file(&path).await.unwrap_err();
        assert!(error.contains("journalctl has no log") && error.contains("limpet.log"), "{error}");
        std::fs::write(&path, "ready\n").unwrap();
        assert_eq!(agents_file(&path).await.unwrap(), "ready\n");
    }

    #[test]
    fn the_newest_instances_end_with_whole_lines() {
        let directory = tempfile::tempdir().unwrap();
        let container = directory.path().join("a_web_1/main");
        std::fs::create_dir_all(&container).unwrap();
        for name in ["2.log", "9.log", "10.log", "10.log.20260101", "x.log"] {
            std::fs::write(container.join(name), "first\nsecond\nthird\n").unwrap();
        }
        let logs = files(directory.path()).unwrap();
        assert_eq!(logs, [container.join("10.log"), container.join("9.log")]);
        assert_eq!(tail(&logs[0], 9).unwrap(), "third\n");
        assert_eq!(tail(&logs[0], 1_000).unwrap(), "first\nsecond\nthird\n");
    }
}
