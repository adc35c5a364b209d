//! What processes cost while they run, according to the kernel.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::process;

/// One process, or several together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// How many processes.
    pub processes: u64,
    /// Proportional set size, in KiB: shared memory counts in parts.
    pub pss: u64,
    /// Private memory that the machine cannot reclaim, in KiB.
    pub private: u64,
    /// How often its threads have gone to sleep, which is how often they woke.
    pub wakes: u64,
    /// How many bytes it has caused to be written to disks.
    pub written: u64,
    pub threads: u64,
    /// Open file descriptors.
    pub descriptors: u64,
}

impl Footprint {
    /// The footprint of the process `pid`; all zero once it has ended.
    pub fn measure(pid: u32) -> Self {
        let dir = Path::new("/proc").join(pid.to_string());
        let text = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
        let (memory, io) = (text("smaps_rollup"), text("io"));
        let threads = entries(&dir.join("task"));
        let wakes = threads.iter().map(|thread| {
            let status = fs::read_to_string(dir.join("task").join(thread).join("status")).unwrap_or_default();
            field(&status, "voluntary_ctxt_switches")
        });
        Self {
            processes: u64::from(!threads.is_empty()),
            pss: field(&memory, "Pss"),
            private: field(&memory, "Private_Dirty"),
            wakes: wakes.sum(),
            written: field(&io, "write_bytes").saturating_sub(field(&io, "cancelled_write_bytes")),
            threads: threads.len() as u64,
            descriptors: entries(&dir.join("fd")).len() as u64,
        }
    }

    /// The footprint of all of them together.
    pub fn measure_all(pids: &[u32]) -> Self {
        Self::sum(&pids.iter().map(|pid| Self::measure(*pid)).collect::<Vec<_>>())
    }

    /// What several processes use together.
    pub fn sum(all: &[Self]) -> Self {
        all.iter().fold(Self::default(), |sum, process| Self {
            processes: sum.processes + process.processes,
            pss: sum.pss + process.pss,
            private: sum.private + process.private,
            wakes: sum.wakes + process.wakes,
            written: sum.written + process.written,
            threads: sum.threads + process.threads,
            descriptors: sum.descriptors + process.descriptors,
        })
    }
}

/// The processor time that the processes have used, in the kernel's unit of hundredths of a second.
pub fn processor(pids: &[u32]) -> Duration {
    let processor_time = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
    };
    Duration::from_millis(10 * pids.iter().filter_map(processor_time).sum::<u64>())
}

/// The processes called `name` (its beginning) that were started for files below `dir`.
pub fn pids(dir: &Path, name: &str) -> Vec<u32> {
    let mut pids = process::mentioning(&format!("{}/", dir.display()));
    pids.retain(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with(name)));
    pids
}

/// The number in the line `key: number …`; 0 if there is none.
fn field(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn entries(dir: &Path) -> Vec<std::ffi::OsString> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "Pss:                1234 kB\nPss_Dirty: 7 kB\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n";
        assert_eq!((field(text, "Pss"), field(text, "write_bytes"), field(text, "Rss")), (1234, 4096, 0));
    }

    #[test]
    fn this_process_costs_something() {
        let footprint = Footprint::measure(std::process::id());
        assert!(
            footprint.processes == 1
                && footprint.private > 0
                && footprint.pss >= footprint.private
                && footprint.threads > 0,
            "{footprint:?}"
        );
    }
}
