//! The statistics of a container's cgroups, as containerd's runc shim reports them: `io.containerd.cgroups.v1.Metrics` and
//! `io.containerd.cgroups.v2.Metrics`.

use std::fs;
use std::path::Path;

use prost::Message;
use prost_types::Any;

use crate::cgroup::{Cgroup, MAX_FILE};

/// The statistics of a container.
pub(crate) fn read(cgroup: &Cgroup) -> Any {
    match cgroup {
        Cgroup::V1(_) => {
            Any { type_url: "io.containerd.cgroups.v1.Metrics".to_owned(), value: v1(cgroup).encode_to_vec() }
        }
        Cgroup::V2(directory) => {
            Any { type_url: "io.containerd.cgroups.v2.Metrics".to_owned(), value: v2(directory).encode_to_vec() }
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct MetricsV1 {
    #[prost(message, repeated, tag = "1")]
    hugetlb: Vec<HugetlbV1>,
    #[prost(message, optional, tag = "2")]
    pids: Option<Pids>,
    #[prost(message, optional, tag = "3")]
    cpu: Option<CpuV1>,
    #[prost(message, optional, tag = "4")]
    memory: Option<MemoryV1>,
    #[prost(message, optional, tag = "5")]
    blkio: Option<BlkioV1>,
    #[prost(message, optional, tag = "9")]
    memory_oom_control: Option<OomControlV1>,
}

#[derive(Clone, PartialEq, Message)]
struct HugetlbV1 {
    #[prost(uint64, tag = "1")]
    usage: u64,
    #[prost(uint64, tag = "2")]
    max: u64,
    #[prost(uint64, tag = "3")]
    failcnt: u64,
    #[prost(string, tag = "4")]
    pagesize: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Pids {
    #[prost(uint64, tag = "1")]
    current: u64,
    #[prost(uint64, tag = "2")]
    limit: u64,
}

#[derive(Clone, PartialEq, Message)]
struct CpuV1 {
    #[prost(message, optional, tag = "1")]
    usage: Option<CpuUsageV1>,
    #[prost(message, optional, tag = "2")]
    throttling: Option<ThrottleV1>,
}

#[derive(Clone, PartialEq, Message)]
struct CpuUsageV1 {
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
struct ThrottleV1 {
    #[prost(uint64, tag = "1")]
    periods: u64,
    #[prost(uint64, tag = "2")]
    throttled_periods: u64,
    #[prost(uint64, tag = "3")]
    throttled_time: u64,
}

/// The entries of `memory.stat` have the tags 1 to 32, in the order of [`MEMORY_STAT_V1`].
#[derive(Clone, PartialEq, Message)]
struct MemoryV1 {
    #[prost(message, optional, tag = "33")]
    usage: Option<MemoryEntryV1>,
    #[prost(message, optional, tag = "34")]
    swap: Option<MemoryEntryV1>,
    #[prost(message, optional, tag = "35")]
    kernel: Option<MemoryEntryV1>,
    #[prost(message, optional, tag = "36")]
    kernel_tcp: Option<MemoryEntryV1>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct MemoryEntryV1 {
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
struct OomControlV1 {
    #[prost(uint64, tag = "1")]
    oom_kill_disable: u64,
    #[prost(uint64, tag = "2")]
    under_oom: u64,
    #[prost(uint64, tag = "3")]
    oom_kill: u64,
}

#[derive(Clone, PartialEq, Message)]
struct BlkioV1 {
    #[prost(message, repeated, tag = "1")]
    service_bytes: Vec<BlkioEntryV1>,
    #[prost(message, repeated, tag = "2")]
    serviced: Vec<BlkioEntryV1>,
}

#[derive(Clone, PartialEq, Message)]
struct BlkioEntryV1 {
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
const MEMORY_STAT_V1: [&str; 32] = [
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

/// The same of cgroup v2.
const MEMORY_STAT_V2: [&str; 31] = [
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

/// Encoded fields, of which prost knows some and a table the others: protobuf merges what is concatenated.
#[derive(Clone, Debug, Default)]
struct Encoded(Vec<u8>);

impl Encoded {
    fn table(text: &str, names: &[&str]) -> Self {
        let mut bytes = Vec::new();
        for (tag, name) in (1..).zip(names) {
            prost::encoding::uint64::encode(tag, &keyed(text, name), &mut bytes);
        }
        Self(bytes)
    }

    fn with(mut self, message: &impl Message) -> Self {
        self.0.extend(message.encode_to_vec());
        self
    }
}

fn v1(cgroup: &Cgroup) -> Encoded {
    let file = |controller: &str, name: &str| {
        cgroup.directory(controller).map(|directory| text(&directory.join(name))).unwrap_or_default()
    };
    let number = |controller: &str, name: &str| parsed(&file(controller, name));
    let entry = |prefix: &str| MemoryEntryV1 {
        limit: number("memory", &format!("{prefix}limit_in_bytes")),
        usage: number("memory", &format!("{prefix}usage_in_bytes")),
        max: number("memory", &format!("{prefix}max_usage_in_bytes")),
        failcnt: number("memory", &format!("{prefix}failcnt")),
    };
    let (throttling, usage) = (file("cpu", "cpu.stat"), file("cpuacct", "cpuacct.usage_percpu"));
    let times = file("cpuacct", "cpuacct.stat");
    let oom = file("memory", "memory.oom_control");
    let memory = Encoded::table(&file("memory", "memory.stat"), &MEMORY_STAT_V1).with(&MemoryV1 {
        usage: Some(entry("memory.")),
        swap: Some(entry("memory.memsw.")),
        kernel: Some(entry("memory.kmem.")),
        kernel_tcp: Some(entry("memory.kmem.tcp.")),
    });
    let metrics = MetricsV1 {
        hugetlb: cgroup.directory("hugetlb").map(|directory| hugetlb_v1(&directory)).unwrap_or_default(),
        pids: Some(Pids { current: number("pids", "pids.current"), limit: number("pids", "pids.max") }),
        cpu: Some(CpuV1 {
            usage: Some(CpuUsageV1 {
                total: number("cpuacct", "cpuacct.usage"),
                kernel: keyed(&times, "system") * TICK,
                user: keyed(&times, "user") * TICK,
                per_cpu: usage.split_whitespace().filter_map(|number| number.parse().ok()).collect(),
            }),
            throttling: Some(ThrottleV1 {
                periods: keyed(&throttling, "nr_periods"),
                throttled_periods: keyed(&throttling, "nr_throttled"),
                throttled_time: keyed(&throttling, "throttled_time"),
            }),
        }),
        memory: None,
        blkio: Some(BlkioV1 {
            service_bytes: blkio_v1(&file("blkio", "blkio.throttle.io_service_bytes_recursive")),
            serviced: blkio_v1(&file("blkio", "blkio.throttle.io_serviced_recursive")),
        }),
        memory_oom_control: Some(OomControlV1 {
            oom_kill_disable: keyed(&oom, "oom_kill_disable"),
            under_oom: keyed(&oom, "under_oom"),
            oom_kill: keyed(&oom, "oom_kill"),
        }),
    };
    Encoded::default().with(&metrics).field(4, &memory)
}

/// Nanoseconds of the unit of `cpuacct.stat`, which is the same on every Linux.
const TICK: u64 = 10_000_000;

impl Encoded {
    /// Appends another message as the field `tag`.
    fn field(mut self, tag: u32, message: &Self) -> Self {
        prost::encoding::bytes::encode(tag, &message.0, &mut self.0);
        self
    }

    fn encode_to_vec(self) -> Vec<u8> {
        self.0
    }
}

fn hugetlb_v1(directory: &Path) -> Vec<HugetlbV1> {
    page_sizes(directory, ".usage_in_bytes")
        .map(|pagesize| {
            let number = |name: &str| parsed(&text(&directory.join(format!("hugetlb.{pagesize}.{name}"))));
            HugetlbV1 {
                usage: number("usage_in_bytes"),
                max: number("max_usage_in_bytes"),
                failcnt: number("failcnt"),
                pagesize: pagesize.clone(),
            }
        })
        .collect()
}

/// The page sizes in the names of a cgroup's files: `hugetlb.2MB.current`.
fn page_sizes(directory: &Path, suffix: &'static str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let name = entry.file_name().into_string().ok()?;
        let size = name.strip_prefix("hugetlb.")?.strip_suffix(suffix)?;
        (!size.contains('.')).then(|| size.to_owned())
    })
}

/// `8:0 Read 4096`.
fn blkio_v1(text: &str) -> Vec<BlkioEntryV1> {
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let (major, minor) = words.next()?.split_once(':')?;
        let op = words.next()?.to_owned();
        let value = words.next()?.parse().ok()?;
        Some(BlkioEntryV1 { op, device: String::new(), major: major.parse().ok()?, minor: minor.parse().ok()?, value })
    };
    text.lines().filter_map(entry).collect()
}

#[derive(Clone, PartialEq, Message)]
struct MetricsV2 {
    #[prost(message, optional, tag = "1")]
    pids: Option<Pids>,
    #[prost(message, optional, tag = "2")]
    cpu: Option<CpuV2>,
    #[prost(message, optional, tag = "6")]
    io: Option<IoV2>,
    #[prost(message, repeated, tag = "7")]
    hugetlb: Vec<HugetlbV2>,
    #[prost(message, optional, tag = "8")]
    memory_events: Option<MemoryEventsV2>,
}

#[derive(Clone, PartialEq, Message)]
struct CpuV2 {
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
    psi: Option<PressureV2>,
}

#[derive(Clone, PartialEq, Message)]
struct MemoryV2 {
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
    psi: Option<PressureV2>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct MemoryEventsV2 {
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
struct IoV2 {
    #[prost(message, repeated, tag = "1")]
    usage: Vec<IoEntryV2>,
    #[prost(message, optional, tag = "2")]
    psi: Option<PressureV2>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct IoEntryV2 {
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
struct HugetlbV2 {
    #[prost(uint64, tag = "1")]
    current: u64,
    #[prost(uint64, tag = "2")]
    max: u64,
    #[prost(string, tag = "3")]
    pagesize: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PressureV2 {
    #[prost(message, optional, tag = "1")]
    some: Option<PressureLineV2>,
    #[prost(message, optional, tag = "2")]
    full: Option<PressureLineV2>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PressureLineV2 {
    #[prost(double, tag = "1")]
    avg10: f64,
    #[prost(double, tag = "2")]
    avg60: f64,
    #[prost(double, tag = "3")]
    avg300: f64,
    #[prost(uint64, tag = "4")]
    total: u64,
}

fn v2(directory: &Path) -> Encoded {
    let file = |name: &str| text(&directory.join(name));
    let number = |name: &str| parsed(&file(name));
    let (cpu, events) = (file("cpu.stat"), file("memory.events"));
    let memory = Encoded::table(&file("memory.stat"), &MEMORY_STAT_V2).with(&MemoryV2 {
        usage: number("memory.current"),
        usage_limit: number("memory.max"),
        swap_usage: number("memory.swap.current"),
        swap_limit: number("memory.swap.max"),
        max_usage: number("memory.peak"),
        swap_max_usage: number("memory.swap.peak"),
        psi: pressure(&file("memory.pressure")),
    });
    let metrics = MetricsV2 {
        pids: Some(Pids { current: number("pids.current"), limit: number("pids.max") }),
        cpu: Some(CpuV2 {
            usage_usec: keyed(&cpu, "usage_usec"),
            user_usec: keyed(&cpu, "user_usec"),
            system_usec: keyed(&cpu, "system_usec"),
            nr_periods: keyed(&cpu, "nr_periods"),
            nr_throttled: keyed(&cpu, "nr_throttled"),
            throttled_usec: keyed(&cpu, "throttled_usec"),
            psi: pressure(&file("cpu.pressure")),
        }),
        io: Some(IoV2 { usage: io_v2(&file("io.stat")), psi: pressure(&file("io.pressure")) }),
        hugetlb: page_sizes(directory, ".current")
            .map(|pagesize| HugetlbV2 {
                current: number(&format!("hugetlb.{pagesize}.current")),
                max: number(&format!("hugetlb.{pagesize}.max")),
                pagesize,
            })
            .collect(),
        memory_events: Some(MemoryEventsV2 {
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
fn io_v2(text: &str) -> Vec<IoEntryV2> {
    let entry = |line: &str| {
        let (device, rest) = line.split_once(' ')?;
        let (major, minor) = device.split_once(':')?;
        let value = |key: &str| {
            let mut pairs = rest.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.find(|(name, _)| *name == key).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
        };
        Some(IoEntryV2 {
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

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`; `None`: the kernel does not count it.
fn pressure(text: &str) -> Option<PressureV2> {
    let line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let value = |key: &str| line.split_whitespace().find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        let average = |key: &str| value(key).and_then(|value| value.parse().ok()).unwrap_or(0.0);
        let total = value("total").and_then(|value| value.parse().ok()).unwrap_or(0);
        Some(PressureLineV2 { avg10: average("avg10"), avg60: average("avg60"), avg300: average("avg300"), total })
    };
    line("some ").map(|some| PressureV2 { some: Some(some), full: line("full ") })
}

/// A file of a cgroup; empty when it does not exist.
fn text(path: &Path) -> String {
    use std::io::Read as _;
    let mut text = String::new();
    if let Ok(file) = fs::File::open(path) {
        // What cannot be read counts as nothing.
        let _ = file.take(MAX_FILE as u64).read_to_string(&mut text);
    }
    text
}

/// A file's only number; `max` is the highest one, as containerd has it.
fn parsed(text: &str) -> u64 {
    let text = text.trim();
    if text == "max" { u64::MAX } else { text.parse().unwrap_or(0) }
}

/// The number after a key at the beginning of a line.
fn keyed(text: &str, key: &str) -> u64 {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    values.next().unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The message's first field with the tag, as a whole number.
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
        cpu: Option<CpuV2>,
        #[prost(message, optional, tag = "4")]
        memory: Option<MemoryFields>,
        #[prost(message, optional, tag = "6")]
        io: Option<IoV2>,
        #[prost(message, repeated, tag = "7")]
        hugetlb: Vec<HugetlbV2>,
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
        let any = read(&Cgroup::V2(directory.path().to_owned()));
        assert_eq!(any.type_url, "io.containerd.cgroups.v2.Metrics");
        let read = Read::decode(&*any.value).unwrap();
        assert_eq!(read.pids.unwrap(), Pids { current: 3, limit: u64::MAX });
        let cpu = read.cpu.unwrap();
        assert_eq!((cpu.usage_usec, cpu.system_usec), (12, 4));
        let some = cpu.psi.unwrap().some.unwrap();
        assert_eq!((some.avg10, some.total), (1.5, 77));
        assert_eq!(read.memory.unwrap(), MemoryFields { anon: 4096, inactive_file: 5, usage: 8192, limit: u64::MAX });
        let entry = IoEntryV2 { major: 8, minor: 16, rbytes: 10, wbytes: 20, rios: 1, wios: 2 };
        assert_eq!(read.io.unwrap().usage, [entry]);
        assert_eq!(read.hugetlb, [HugetlbV2 { current: 0, max: u64::MAX, pagesize: "2MB".into() }]);
    }

    #[test]
    fn entries_of_cgroup_v1_are_read() {
        let entry = BlkioEntryV1 { op: "Read".into(), device: String::new(), major: 8, minor: 0, value: 4096 };
        assert_eq!(blkio_v1("8:0 Read 4096\nTotal 4096\n"), [entry]);
        assert_eq!(keyed("user 12\nsystem 3\n", "system"), 3);
        let table = Encoded::table("cache 5\ntotal_unevictable 7\n", &MEMORY_STAT_V1);
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
