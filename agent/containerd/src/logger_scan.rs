//! Scans all processes once for the loggers of many containers: a replacement logger is not a child of its
//! container's shim. An agent that adopts its pods looks for all of them at the same moment.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use limpet_log::writer::Invocation;
use limpet_model::container::ContainerId;

/// How long a scan is reused. Whoever starts a logger later follows it from its start.
const FRESH: Duration = Duration::from_secs(2);

/// Processes by the container for which they claim to log.
type Loggers = HashMap<String, Vec<u32>>;

/// The last scan, which concurrent searches share.
#[derive(Debug, Default)]
pub(crate) struct LoggerScan(Mutex<Option<(Instant, Loggers)>>);

impl LoggerScan {
    /// The processes that claim to log for the container. Blocks.
    pub(crate) fn candidates(&self, id: &ContainerId) -> Vec<u32> {
        self.candidates_by(id, Instant::now, look)
    }

    /// The same with another scan function. The first caller without a fresh scan performs one while the others wait.
    fn candidates_by(
        &self,
        id: &ContainerId,
        now: impl FnOnce() -> Instant,
        look: impl FnOnce() -> Loggers,
    ) -> Vec<u32> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now();
        let fresh = last.take().filter(|(taken, _)| now.saturating_duration_since(*taken) < FRESH);
        let (taken, loggers) = fresh.unwrap_or_else(|| (now, look()));
        let pids = loggers.get(id.as_str()).cloned().unwrap_or_default();
        *last = Some((taken, loggers));
        pids
    }
}

fn look() -> Loggers {
    let mut loggers = Loggers::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for (pid, container) in processes.filter_map(|pid| Some((pid, container_of(pid)?))) {
        loggers.entry(container).or_default().push(pid);
    }
    loggers
}

/// The container for which a process claims to log.
fn container_of(pid: u32) -> Option<String> {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let arguments = arguments.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    Invocation::parse(arguments.skip(1).map(|argument| OsString::from_vec(argument.to_vec())))?;
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let container = environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(b"CONTAINER_ID="))?;
    String::from_utf8(container.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn those_who_ask_at_one_moment_share_a_look_and_later_ones_take_another() {
        let (scan, looks, start) = (LoggerScan::default(), Cell::new(0), Instant::now());
        let ask = |id: &str, after: u64| {
            let look = || {
                looks.set(looks.get() + 1);
                Loggers::from([("a".to_owned(), vec![7]), ("b".to_owned(), vec![looks.get()])])
            };
            scan.candidates_by(&ContainerId::new(id), || start + Duration::from_secs(after), look)
        };
        assert_eq!((ask("a", 0), ask("b", 1), ask("none", 1)), (vec![7], vec![1], vec![]));
        assert_eq!(looks.get(), 1);
        assert_eq!((ask("b", 3), looks.get()), (vec![2], 2));
    }
}
