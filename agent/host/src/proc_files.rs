//! The kernel's counters in `/proc`: memory, network interfaces, pressure. Read on request.

use std::fs;
use std::path::Path;

use jiff::Timestamp;

use crate::process;
use limpet_model::container::ContainerId;

/// Clock ticks per second in `/proc` and in cgroups: 100 in the ABI of every architecture the agent is built for.
pub const USER_HZ: u64 = 100;

/// The node's memory and swap space, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    pub total: u64,
    pub swap_total: u64,
    /// The free swap space.
    pub swap_free: u64,
    /// The memory reserved as huge pages.
    pub huge_pages: u64,
}

impl MemoryInfo {
    /// Reads `/proc/meminfo`.
    pub fn read() -> Option<Self> {
        parse_memory(&fs::read_to_string("/proc/meminfo").ok()?)
    }
}

fn parse_memory(text: &str) -> Option<MemoryInfo> {
    let bytes = |name: &str| -> Option<u64> {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
    };
    let swap_total = bytes("SwapTotal").unwrap_or_default();
    Some(MemoryInfo {
        total: bytes("MemTotal")?,
        swap_total,
        swap_free: bytes("SwapFree").unwrap_or_default().min(swap_total),
        huge_pages: bytes("Hugetlb").unwrap_or_default(),
    })
}

/// The number of online processors; this process may be limited to fewer.
pub fn online_cpus() -> u32 {
    let listed = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    let available =
        || std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX));
    listed.and_then(|list| count_cpus(&list)).unwrap_or_else(available)
}

/// The number of processors in a list such as `0-3,6`.
fn count_cpus(list: &str) -> Option<u32> {
    let count = |range: &str| -> Option<u32> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.trim().split(',').try_fold(0_u32, |sum, range| sum.checked_add(count(range)?))
}

/// The node's process ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessIds {
    /// The most process ids: the lower of the kernel's two limits.
    pub limit: u64,
    /// The number of processes and threads.
    pub used: u64,
}

impl ProcessIds {
    /// The kernel's present values.
    pub fn read() -> Option<Self> {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let limits = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
        let limit = limits.into_iter().filter_map(number).min()?;
        let load = fs::read_to_string("/proc/loadavg").ok()?;
        let used = load.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()?;
        Some(Self { limit, used })
    }
}

/// When the node booted, by the current clock.
pub fn boot_time() -> Option<Timestamp> {
    parse_boot_time(&fs::read_to_string("/proc/stat").ok()?)
}

fn parse_boot_time(stat: &str) -> Option<Timestamp> {
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Timestamp::from_second(seconds).ok()
}

/// How long tasks have stalled on a resource (PSI).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stalls {
    /// At least one task stalled.
    pub some: Stall,
    /// All tasks stalled.
    pub full: Stall,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stall {
    /// Microseconds since boot.
    pub total: u64,
    /// Percent of the last 10 s.
    pub avg10: f64,
    /// Percent of the last 60 s.
    pub avg60: f64,
    /// Percent of the last 300 s.
    pub avg300: f64,
}

impl Stalls {
    /// Reads a pressure file; `None` if it does not exist, or the kernel does not count.
    pub fn read(file: &Path) -> Option<Self> {
        parse_stalls(&fs::read_to_string(file).ok()?)
    }
}

fn parse_stalls(text: &str) -> Option<Stalls> {
    let stall = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let value = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let average = |name: &str| value(name)?.parse::<f64>().ok();
        let total = value("total")?.trim().parse().ok()?;
        Some(Stall { total, avg10: average("avg10")?, avg60: average("avg60")?, avg300: average("avg300")? })
    };
    // Older kernels have no `full` line for the CPU.
    Some(Stalls { some: stall("some")?, full: stall("full").unwrap_or_default() })
}

/// A network interface's counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub received: Traffic,
    pub sent: Traffic,
}

/// Counters of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

/// The prefixes of interfaces that kubelet leaves out: loopback, and the node's ends of containers' links.
const EXCLUDED_INTERFACES: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// The interfaces of the agent's network.
pub fn own_interfaces() -> Option<Vec<Interface>> {
    Some(parse_interfaces(&fs::read_to_string("/proc/self/net/dev").ok()?))
}

/// The interfaces of the network in which a container's process runs; `None` also when the process has ended.
pub fn interfaces_of(pid: u32, container: &ContainerId) -> Option<Vec<Interface>> {
    let text = fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?;
    // Checks that the PID was not reused by another process.
    process::is_in_container(pid, container).then(|| parse_interfaces(&text))
}

fn parse_interfaces(text: &str) -> Vec<Interface> {
    let interface = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let name = name.trim();
        let counters: Vec<u64> = counters.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        let traffic = |counters: &[u64]| match counters {
            [bytes, packets, errors, dropped, ..] => {
                Some(Traffic { bytes: *bytes, packets: *packets, errors: *errors, dropped: *dropped })
            }
            _ => None,
        };
        let (received, sent) = (traffic(counters.get(..8)?)?, traffic(counters.get(8..)?)?);
        Some(Interface { name: name.to_owned(), received, sent })
    };
    let shown = |interface: &Interface| {
        !EXCLUDED_INTERFACES.iter().any(|prefix| interface.name.to_ascii_lowercase().starts_with(prefix))
    };
    text.lines().filter_map(interface).filter(shown).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_bytes() {
        let text = "MemTotal:       4000 kB\nMemFree:  7 kB\nSwapTotal:      10 kB\nSwapFree:        4 kB\nHugetlb:  2048 kB\n";
        let expected = MemoryInfo { total: 4_096_000, swap_total: 10_240, swap_free: 4_096, huge_pages: 2_097_152 };
        assert_eq!(parse_memory(text), Some(expected));
        let small = MemoryInfo { total: 1_024, ..MemoryInfo::default() };
        assert_eq!(parse_memory("MemTotal: 1 kB\n"), Some(small), "a kernel without swap and huge pages");
        assert_eq!(parse_memory(""), None);
    }

    #[test]
    fn processors_are_the_machines_and_not_only_those_of_this_process() {
        let stat = fs::read_to_string("/proc/stat").unwrap();
        let all = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
        let bound = std::thread::spawn(|| {
            let mut first = rustix::thread::CpuSet::new();
            let affinity = rustix::thread::sched_getaffinity(None).unwrap();
            first.set((0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| affinity.is_set(*cpu)).unwrap());
            rustix::thread::sched_setaffinity(None, &first).unwrap();
            (std::thread::available_parallelism().unwrap().get(), online_cpus())
        });
        assert_eq!(bound.join().unwrap(), (1, all as u32));
        for (list, count) in [("0\n", Some(1)), ("0-3\n", Some(4)), ("0-1,4,6-7", Some(5)), ("", None), ("3-1", None)] {
            assert_eq!(count_cpus(list), count, "{list:?}");
        }
    }

    #[test]
    fn the_boot_has_a_time() {
        assert_eq!(parse_boot_time("cpu 1 2\nbtime 1700000000\n"), Some(Timestamp::constant(1_700_000_000, 0)));
        assert_eq!(parse_boot_time("cpu 1 2\n"), None);
    }

    #[test]
    fn pressure_has_two_lines_or_one() {
        let some = "some avg10=1.50 avg60=0.30 avg300=0.07 total=1234\n";
        let full = "full avg10=0.00 avg60=0.00 avg300=0.01 total=99\n";
        let waited = Stall { total: 1_234, avg10: 1.5, avg60: 0.3, avg300: 0.07 };
        let both = Stalls { some: waited, full: Stall { total: 99, avg300: 0.01, ..Stall::default() } };
        assert_eq!(parse_stalls(&format!("{some}{full}")), Some(both));
        assert_eq!(parse_stalls(some), Some(Stalls { some: waited, full: Stall::default() }));
        assert_eq!(parse_stalls(""), None);
    }

    #[test]
    fn interfaces_have_both_directions_and_loopback_is_left_out() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0
  eth0:1500 10 1 2 0 0 0 0 700 7 3 4 0 0 0 0
vethab: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0
";
        let eth0 = Interface {
            name: "eth0".to_owned(),
            received: Traffic { bytes: 1_500, packets: 10, errors: 1, dropped: 2 },
            sent: Traffic { bytes: 700, packets: 7, errors: 3, dropped: 4 },
        };
        assert_eq!(parse_interfaces(text), [eth0]);
        assert_eq!(parse_interfaces("eth0: 1 2 3\n"), []);
    }
}
