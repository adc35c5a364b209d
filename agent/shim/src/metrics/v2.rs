//! Statistics of cgroup v2, from a container's directory.

use std::path::Path;

use prost::Message;

use super::{Encoded, Pids, keyed, page_sizes, parsed, text};

/// The entries of `memory.stat` by the tags of containerd's message, from 1 on.
const MEMORY_STAT: [&str; 31] = [
    "anon",
    "file",
    "kernel_stack",
    "slab",
    "sock",
    "shmem",
    "file_mapped",
    "file_dirty",
    "file_writeback",
    "anon_thp",
    "inactive_anon",
    "active_anon",
    "inactive_file",
    "active_file",
    "unevictable",
    "slab_reclaimable",
    "slab_unreclaimable",
    "pgfault",
    "pgmajfault",
    "workingset_refault",
    "workingset_activate",
    "workingset_nodereclaim",
    "pgrefill",
    "pgscan",
    "pgsteal",
    "pgactivate",
    "pgdeactivate",
    "pglazyfree",
    "pglazyfreed",
    "thp_fault_alloc",
    "thp_collapse_alloc",
];

#[derive(Clone, PartialEq, Message)]
struct Metrics {
    #[prost(message, optional, tag = "1")]
    pids: Option<Pids>,
    #[prost(message, optional, tag = "2")]
    cpu: Option<Cpu>,
    #[prost(message, optional, tag = "6")]
    io: Option<Io>,
    #[prost(message, repeated, tag = "7")]
    hugetlb: Vec<Hugetlb>,
    #[prost(message, optional, tag = "8")]
    memory_events: Option<MemoryEvents>,
}

#[derive(Clone, PartialEq, Message)]
struct Cpu {
    #[prost(uint64, tag = "1")]
    usage_usec: u64,
    #[prost(uint64, tag = "2")]
    user_usec: u64,
    #[prost(uint64, tag = "3")]
    system_usec: u64,
    #[prost(uint64, tag = "4")]
    nr_periods: u64,
    #[prost(uint64, tag = "5")]
    nr_throttled: u64,
    #[prost(uint64, tag = "6")]
    throttled_usec: u64,
    #[prost(message, optional, tag = "7")]
    psi: Option<Pressure>,
}

#[derive(Clone, PartialEq, Message)]
struct Memory {
    #[prost(uint64, tag = "32")]
    usage: u64,
    #[prost(uint64, tag = "33")]
    usage_limit: u64,
    #[prost(uint64, tag = "34")]
    swap_usage: u64,
    #[prost(uint64, tag = "35")]
    swap_limit: u64,
    #[prost(uint64, tag = "36")]
    max_usage: u64,
    #[prost(uint64, tag = "37")]
    swap_max_usage: u64,
    #[prost(message, optional, tag = "38")]
    psi: Option<Pressure>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct MemoryEvents {
    #[prost(uint64, tag = "1")]
    low: u64,
    #[prost(uint64, tag = "2")]
    high: u64,
    #[prost(uint64, tag = "3")]
    max: u64,
    #[prost(uint64, tag = "4")]
    oom: u64,
    #[prost(uint64, tag = "5")]
    oom_kill: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Io {
    #[prost(message, repeated, tag = "1")]
    usage: Vec<IoEntry>,
    #[prost(message, optional, tag = "2")]
    psi: Option<Pressure>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct IoEntry {
    #[prost(uint64, tag = "1")]
    major: u64,
    #[prost(uint64, tag = "2")]
    minor: u64,
    #[prost(uint64, tag = "3")]
    rbytes: u64,
    #[prost(uint64, tag = "4")]
    wbytes: u64,
    #[prost(uint64, tag = "5")]
    rios: u64,
    #[prost(uint64, tag = "6")]
    wios: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Hugetlb {
    #[prost(uint64, tag = "1")]
    current: u64,
    #[prost(uint64, tag = "2")]
    max: u64,
    #[prost(string, tag = "3")]
    pagesize: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Pressure {
    #[prost(message, optional, tag = "1")]
    some: Option<PressureLine>,
    #[prost(message, optional, tag = "2")]
    full: Option<PressureLine>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PressureLine {
    #[prost(double, tag = "1")]
    avg10: f64,
    #[prost(double, tag = "2")]
    avg60: f64,
    #[prost(double, tag = "3")]
    avg300: f64,
    #[prost(uint64, tag = "4")]
    total: u64,
}

pub(super) fn metrics(directory: &Path) -> Encoded {
    let file = |name: &str| text(&directory.join(name));
    let number = |name: &str| parsed(&file(name));
    let (cpu, events) = (file("cpu.stat"), file("memory.events"));
    let memory = Encoded::table(&file("memory.stat"), &MEMORY_STAT).with(&Memory {
        usage: number("memory.current"),
        usage_limit: number("memory.max"),
        swap_usage: number("memory.swap.current"),
        swap_limit: number("memory.swap.max"),
        max_usage: number("memory.peak"),
        swap_max_usage: number("memory.swap.peak"),
        psi: pressure(&file("memory.pressure")),
    });
    let metrics = Metrics {
        pids: Some(Pids { current: number("pids.current"), limit: number("pids.max") }),
        cpu: Some(Cpu {
            usage_usec: keyed(&cpu, "usage_usec"),
            user_usec: keyed(&cpu, "user_usec"),
            system_usec: keyed(&cpu, "system_usec"),
            nr_periods: keyed(&cpu, "nr_periods"),
            nr_throttled: keyed(&cpu, "nr_throttled"),
            throttled_usec: keyed(&cpu, "throttled_usec"),
            psi: pressure(&file("cpu.pressure")),
        }),
        io: Some(Io { usage: io(&file("io.stat")), psi: pressure(&file("io.pressure")) }),
        hugetlb: page_sizes(directory, ".current")
            .map(|pagesize| Hugetlb {
                current: number(&format!("hugetlb.{pagesize}.current")),
                max: number(&format!("hugetlb.{pagesize}.max")),
                pagesize,
            })
            .collect(),
        memory_events: Some(MemoryEvents {
            low: keyed(&events, "low"),
            high: keyed(&events, "high"),
            max: keyed(&events, "max"),
            oom: keyed(&events, "oom"),
            oom_kill: keyed(&events, "oom_kill"),
        }),
    };
    Encoded::default().with(&metrics).field(4, &memory)
}

/// `8:0 rbytes=4096 wbytes=0 rios=1 wios=0`.
fn io(text: &str) -> Vec<IoEntry> {
    let entry = |line: &str| {
        let (device, rest) = line.split_once(' ')?;
        let (major, minor) = device.split_once(':')?;
        let value = |key: &str| {
            let mut pairs = rest.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.find(|(name, _)| *name == key).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
        };
        Some(IoEntry {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            rbytes: value("rbytes"),
            wbytes: value("wbytes"),
            rios: value("rios"),
            wios: value("wios"),
        })
    };
    text.lines().filter_map(entry).collect()
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`; `None` if the kernel does not count.
fn pressure(text: &str) -> Option<Pressure> {
    let line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let value = |key: &str| line.split_whitespace().find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        let average = |key: &str| value(key).and_then(|value| value.parse().ok()).unwrap_or(0.0);
        let total = value("total").and_then(|value| value.parse().ok()).unwrap_or(0);
        Some(PressureLine { avg10: average("avg10"), avg60: average("avg60"), avg300: average("avg300"), total })
    };
    line("some ").map(|some| Pressure { some: Some(some), full: line("full ") })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cgroup::Cgroup;
    use crate::metrics;

    /// Decodes the message's first field with the tag as an integer.
    #[derive(Clone, PartialEq, Message)]
    struct MemoryFields {
        #[prost(uint64, tag = "1")]
        anon: u64,
        #[prost(uint64, tag = "13")]
        inactive_file: u64,
        #[prost(uint64, tag = "32")]
        usage: u64,
        #[prost(uint64, tag = "33")]
        limit: u64,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Read {
        #[prost(message, optional, tag = "1")]
        pids: Option<Pids>,
        #[prost(message, optional, tag = "2")]
        cpu: Option<Cpu>,
        #[prost(message, optional, tag = "4")]
        memory: Option<MemoryFields>,
        #[prost(message, optional, tag = "6")]
        io: Option<Io>,
        #[prost(message, repeated, tag = "7")]
        hugetlb: Vec<Hugetlb>,
    }

    #[test]
    fn the_files_of_cgroup_v2_become_containerds_message() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("pids.current", "3\n"),
            ("pids.max", "max\n"),
            ("cpu.stat", "usage_usec 12\nuser_usec 8\nsystem_usec 4\n"),
            ("cpu.pressure", "some avg10=1.50 avg60=0.00 avg300=0.00 total=77\n"),
            ("memory.stat", "anon 4096\nfile 1\ninactive_file 5\n"),
            ("memory.current", "8192\n"),
            ("memory.max", "max\n"),
            ("io.stat", "8:16 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0\n"),
            ("hugetlb.2MB.current", "0\n"),
            ("hugetlb.2MB.max", "max\n"),
            ("hugetlb.2MB.rsvd.current", "0\n"),
        ] {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let any = metrics::read(&Cgroup::V2(directory.path().to_owned()));
        assert_eq!(any.type_url, "io.containerd.cgroups.v2.Metrics");
        let read = Read::decode(&*any.value).unwrap();
        assert_eq!(read.pids.unwrap(), Pids { current: 3, limit: u64::MAX });
        let cpu = read.cpu.unwrap();
        assert_eq!((cpu.usage_usec, cpu.system_usec), (12, 4));
        let some = cpu.psi.unwrap().some.unwrap();
        assert_eq!((some.avg10, some.total), (1.5, 77));
        assert_eq!(read.memory.unwrap(), MemoryFields { anon: 4096, inactive_file: 5, usage: 8192, limit: u64::MAX });
        let entry = IoEntry { major: 8, minor: 16, rbytes: 10, wbytes: 20, rios: 1, wios: 2 };
        assert_eq!(read.io.unwrap().usage, [entry]);
        assert_eq!(read.hugetlb, [Hugetlb { current: 0, max: u64::MAX, pagesize: "2MB".into() }]);
    }
}
