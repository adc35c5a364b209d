//! The usual `process_*` metrics of the agent itself, read from `/proc/self` at each scrape.
//!
//! Reading the own procfs never blocks, so it is done on the serving thread. Unreadable values are omitted rather
//! than reported as zero.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};

use super::{Reading, Seconds};
use limpet_host::blocking;

/// Clock ticks per second in `/proc`: 100 in the ABI of every architecture the agent is built for.
const USER_HZ: f64 = 100.0;

#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let stat = parse_stat(&read("/proc/self/stat"));
        if let Some(stat) = &stat {
            let spent = Seconds::new(stat.cpu_seconds);
            let help = "Total user and system CPU time spent in seconds.";
            spent.encode(encoder.encode_descriptor(
                "process_cpu_seconds",
                &ended(help),
                None,
                spent.metric_type(),
            )?)?;
        }
        let started = stat.zip(boot_time(&read("/proc/stat"))).map(|(stat, boot)| boot + stat.start_seconds);
        let status = read("/proc/self/status");
        let open = std::fs::read_dir("/proc/self/fd").ok().map(|dir| dir.count() as f64 - 1.0);
        let readings = [
            ("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", started),
            ("process_resident_memory_bytes", "Resident memory size in bytes.", kibibytes(&status, "VmRSS:")),
            ("process_virtual_memory_bytes", "Virtual memory size in bytes.", kibibytes(&status, "VmSize:")),
            ("process_open_fds", "Number of open file descriptors.", open),
            ("process_max_fds", "Maximum number of open file descriptors.", soft_limit(&read("/proc/self/limits"))),
            ("limpet_hung_calls", "Calls that a file system does not answer", Some(blocking::hung() as f64)),
        ];
        for (name, help, value) in readings {
            if let Some(value) = value {
                let reading = Reading::new(value);
                reading.encode(encoder.encode_descriptor(name, &ended(help), None, reading.metric_type())?)?;
            }
        }
        Ok(())
    }
}

/// A help text in the registry's style, with a full stop at its end.
fn ended(help: &str) -> String {
    format!("{help}.")
}

#[derive(Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    /// Seconds from boot to the start of the process.
    start_seconds: f64,
}

/// Reads `/proc/<pid>/stat` (proc_pid_stat(5)): fields 14 and 15 are CPU time, 22 is the start time.
fn parse_stat(stat: &str) -> Option<Stat> {
    // Field 2 is the program's name in parentheses and may contain anything, so counting begins after it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some(Stat { cpu_seconds: (ticks(14)? + ticks(15)?) / USER_HZ, start_seconds: ticks(22)? / USER_HZ })
}

/// When the machine booted in seconds since 1970, by the current clock.
fn boot_time(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn kibibytes(status: &str, name: &str) -> Option<f64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024.0)
}

/// The soft limit of open files. It is always a number, because the kernel has no unlimited one.
fn soft_limit(limits: &str) -> Option<f64> {
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    limit.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_proc() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 12345 0 0";
        assert_eq!(parse_stat(stat), Some(Stat { cpu_seconds: 2.0, start_seconds: 123.45 }));
        assert_eq!(parse_stat("42 (short) S 1"), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_000.0));
        assert_eq!(kibibytes("VmSize:\t  10 kB\nVmRSS:\t   4 kB\n", "VmRSS:"), Some(4096.0));
        assert_eq!(kibibytes("", "VmRSS:"), None);
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024    524288   files\n";
        assert_eq!(soft_limit(limits), Some(1024.0));
    }
}
