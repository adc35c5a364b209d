//! Statistics of cgroup v1, from the directories of its controllers.

use std::path::Path;

use prost::Message;

use super::{Encoded, Pids, keyed, page_sizes, parsed, text};
use crate::cgroup::Cgroup;

/// Nanoseconds per unit of `cpuacct.stat`, which is the same on every Linux.
const TICK: u64 = 10_000_000;

/// The entries of `memory.stat` have the tags 1 to 32, in the order of [`MEMORY_STAT`].
#[derive(Clone, PartialEq, Message)]
struct Memory {
    #[prost(message, optional, tag = "33")]
    usage: Option<MemoryEntry>,
    #[prost(message, optional, tag = "34")]
    swap: Option<MemoryEntry>,
    #[prost(message, optional, tag = "35")]
    kernel: Option<MemoryEntry>,
    #[prost(message, optional, tag = "36")]
    kernel_tcp: Option<MemoryEntry>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct MemoryEntry {
    #[prost(uint64, tag = "1")]
    limit: u64,
    #[prost(uint64, tag = "2")]
    usage: u64,
    #[prost(uint64, tag = "3")]
    max: u64,
    #[prost(uint64, tag = "4")]
    failcnt: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct OomControl {
    #[prost(uint64, tag = "1")]
    oom_kill_disable: u64,
    #[prost(uint64, tag = "2")]
    under_oom: u64,
    #[prost(uint64, tag = "3")]
    oom_kill: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Blkio {
    #[prost(message, repeated, tag = "1")]
    service_bytes: Vec<BlkioEntry>,
    #[prost(message, repeated, tag = "2")]
    serviced: Vec<BlkioEntry>,
}

#[derive(Clone, PartialEq, Message)]
struct BlkioEntry {
    #[prost(string, tag = "1")]
    op: String,
    #[prost(string, tag = "2")]
    device: String,
    #[prost(uint64, tag = "3")]
    major: u64,
    #[prost(uint64, tag = "4")]
    minor: u64,
    #[prost(uint64, tag = "5")]
    value: u64,
}

/// The entries of `memory.stat` by the tags of containerd's message, from 1 on.
const MEMORY_STAT: [&str; 32] = [
    "cache",
    "rss",
    "rss_huge",
    "mapped_file",
    "dirty",
    "writeback",
    "pgpgin",
    "pgpgout",
    "pgfault",
    "pgmajfault",
    "inactive_anon",
    "active_anon",
    "inactive_file",
    "active_file",
    "unevictable",
    "hierarchical_memory_limit",
    "hierarchical_memsw_limit",
    "total_cache",
    "total_rss",
    "total_rss_huge",
    "total_mapped_file",
    "total_dirty",
    "total_writeback",
    "total_pgpgin",
    "total_pgpgout",
    "total_pgfault",
    "total_pgmajfault",
    "total_inactive_anon",
    "total_active_anon",
    "total_inactive_file",
    "total_active_file",
    "total_unevictable",
];

#[derive(Clone, PartialEq, Message)]
struct Metrics {
    #[prost(message, repeated, tag = "1")]
    hugetlb: Vec<Hugetlb>,
    #[prost(message, optional, tag = "2")]
    pids: Option<Pids>,
    #[prost(message, optional, tag = "3")]
    cpu: Option<Cpu>,
    #[prost(message, optional, tag = "4")]
    memory: Option<Memory>,
    #[prost(message, optional, tag = "5")]
    blkio: Option<Blkio>,
    #[prost(message, optional, tag = "9")]
    memory_oom_control: Option<OomControl>,
}

#[derive(Clone, PartialEq, Message)]
struct Hugetlb {
    #[prost(uint64, tag = "1")]
    usage: u64,
    #[prost(uint64, tag = "2")]
    max: u64,
    #[prost(uint64, tag = "3")]
    failcnt: u64,
    #[prost(string, tag = "4")]
    pagesize: String,
}

#[derive(Clone, PartialEq, Message)]
struct Cpu {
    #[prost(message, optional, tag = "1")]
    usage: Option<CpuUsage>,
    #[prost(message, optional, tag = "2")]
    throttling: Option<Throttle>,
}

#[derive(Clone, PartialEq, Message)]
struct CpuUsage {
    #[prost(uint64, tag = "1")]
    total: u64,
    #[prost(uint64, tag = "2")]
    kernel: u64,
    #[prost(uint64, tag = "3")]
    user: u64,
    #[prost(uint64, repeated, tag = "4")]
    per_cpu: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Throttle {
    #[prost(uint64, tag = "1")]
    periods: u64,
    #[prost(uint64, tag = "2")]
    throttled_periods: u64,
    #[prost(uint64, tag = "3")]
    throttled_time: u64,
}

pub(super) fn metrics(cgroup: &Cgroup) -> Encoded {
    let file = |controller: &str, name: &str| {
        cgroup.directory(controller).map(|directory| text(&directory.join(name))).unwrap_or_default()
    };
    let number = |controller: &str, name: &str| parsed(&file(controller, name));
    let entry = |prefix: &str| MemoryEntry {
        limit: number("memory", &format!("{prefix}limit_in_bytes")),
        usage: number("memory", &format!("{prefix}usage_in_bytes")),
        max: number("memory", &format!("{prefix}max_usage_in_bytes")),
        failcnt: number("memory", &format!("{prefix}failcnt")),
    };
    let (throttling, usage) = (file("cpu", "cpu.stat"), file("cpuacct", "cpuacct.usage_percpu"));
    let times = file("cpuacct", "cpuacct.stat");
    let oom = file("memory", "memory.oom_control");
    let memory = Encoded::table(&file("memory", "memory.stat"), &MEMORY_STAT).with(&Memory {
        usage: Some(entry("memory.")),
        swap: Some(entry("memory.memsw.")),
        kernel: Some(entry("memory.kmem.")),
        kernel_tcp: Some(entry("memory.kmem.tcp.")),
    });
    let metrics = Metrics {
        hugetlb: cgroup.directory("hugetlb").map(|directory| hugetlb(&directory)).unwrap_or_default(),
        pids: Some(Pids { current: number("pids", "pids.current"), limit: number("pids", "pids.max") }),
        cpu: Some(Cpu {
            usage: Some(CpuUsage {
                total: number("cpuacct", "cpuacct.usage"),
                kernel: keyed(&times, "system") * TICK,
                user: keyed(&times, "user") * TICK,
                per_cpu: usage.split_whitespace().filter_map(|number| number.parse().ok()).collect(),
            }),
            throttling: Some(Throttle {
                periods: keyed(&throttling, "nr_periods"),
                throttled_periods: keyed(&throttling, "nr_throttled"),
                throttled_time: keyed(&throttling, "throttled_time"),
            }),
        }),
        memory: None,
        blkio: Some(Blkio {
            service_bytes: blkio(&file("blkio", "blkio.throttle.io_service_bytes_recursive")),
            serviced: blkio(&file("blkio", "blkio.throttle.io_serviced_recursive")),
        }),
        memory_oom_control: Some(OomControl {
            oom_kill_disable: keyed(&oom, "oom_kill_disable"),
            under_oom: keyed(&oom, "under_oom"),
            oom_kill: keyed(&oom, "oom_kill"),
        }),
    };
    Encoded::default().with(&metrics).field(4, &memory)
}

fn hugetlb(directory: &Path) -> Vec<Hugetlb> {
    page_sizes(directory, ".usage_in_bytes")
        .map(|pagesize| {
            let number = |name: &str| parsed(&text(&directory.join(format!("hugetlb.{pagesize}.{name}"))));
            Hugetlb {
                usage: number("usage_in_bytes"),
                max: number("max_usage_in_bytes"),
                failcnt: number("failcnt"),
                pagesize: pagesize.clone(),
            }
        })
        .collect()
}

/// `8:0 Read 4096`.
fn blkio(text: &str) -> Vec<BlkioEntry> {
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let (major, minor) = words.next()?.split_once(':')?;
        let op = words.next()?.to_owned();
        let value = words.next()?.parse().ok()?;
        Some(BlkioEntry { op, device: String::new(), major: major.parse().ok()?, minor: minor.parse().ok()?, value })
    };
    text.lines().filter_map(entry).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_cgroup_v1_are_read() {
        let entry = BlkioEntry { op: "Read".into(), device: String::new(), major: 8, minor: 0, value: 4096 };
        assert_eq!(blkio("8:0 Read 4096\nTotal 4096\n"), [entry]);
        assert_eq!(keyed("user 12\nsystem 3\n", "system"), 3);
        let table = Encoded::table("cache 5\ntotal_unevictable 7\n", &MEMORY_STAT);
        let mut expected = Vec::new();
        for tag in 1..=32 {
            let value = match tag {
                1 => 5_u64,
                32 => 7,
                _ => 0,
            };
            prost::encoding::uint64::encode(tag, &value, &mut expected);
        }
        assert_eq!(table.0, expected);
    }
}
