//! The resource usage of the node, pods and containers by the kernel's counters: files of their cgroups, read on
//! request.
//!
//! A value that the kernel does not provide is absent, never zero. All values of a group include the groups below it.

mod io;
mod parse;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};

pub use self::io::DeviceIo;
use super::hierarchy::Hierarchies;
use super::layout::CLASSES;
use super::{Cgroups, files, limits};
use crate::proc_files::{MemoryInfo, Stalls};
use limpet_model::pod::PodUid;
use limpet_model::pod::qos::QosClass;

#[derive(Debug, Clone, Copy)]
pub enum Group<'a> {
    /// All processes of the node.
    Node,
    /// The pods of a QoS class; for `Guaranteed`, all pods.
    Level(QosClass),
    Pod(&'a PodUid),
    /// A container of a pod, by its id in containerd.
    Container(&'a PodUid, &'a str),
}

/// How much to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// CPU time, memory and swap.
    Basic,
    /// Everything.
    Whole,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupUsage {
    /// The group, from the root of its hierarchy: `/kubepods/podX`.
    pub path: String,
    /// When it was read.
    pub taken: SampleTime,
    /// CPU time.
    pub cpu: Option<CpuUsage>,
    pub memory: Option<MemoryUsage>,
    /// Swap space.
    pub swap: Option<SwapUsage>,
    /// How long its tasks stalled on CPU, memory and I/O.
    pub pressure: Pressures,
    /// The number of its processes.
    pub processes: Option<u64>,
    /// The number of its processes and threads.
    pub threads: Option<u64>,
    /// The most processes and threads.
    pub threads_limit: Option<u64>,
    /// The number of its processes that the OOM killer has ended.
    pub oom_kills: Option<u64>,
    /// What it has read and written, by device; only in a whole reading.
    pub io: Vec<DeviceIo>,
}

/// The time of a reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleTime {
    /// By the node's clock, which may be set.
    pub at: Timestamp,
    /// Since boot, without time in suspend; for the time between two readings.
    pub uptime: Duration,
}

impl SampleTime {
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or(0);
        Self { at: Timestamp::now(), uptime: Duration::new(seconds, nanoseconds) }
    }
}

/// CPU time since the group was created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// Nanoseconds on all cores.
    pub total: u64,
    /// Nanoseconds in user mode.
    pub user: u64,
    /// Nanoseconds in the kernel.
    pub system: u64,
    /// The quota, for a group that has one.
    pub quota: Option<CpuQuota>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuQuota {
    /// Microseconds in each period.
    pub quota: u64,
    /// Microseconds of a period.
    pub period: u64,
    /// Periods in which the group ran.
    pub periods: u64,
    /// Periods in which it used up its quota.
    pub throttled_periods: u64,
    /// Nanoseconds for which it was throttled.
    pub throttled: u64,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// All memory, including the files that the kernel caches.
    pub usage: u64,
    /// All memory except files that were not read lately.
    pub working_set: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Cached files.
    pub cache: u64,
    pub mapped_file: u64,
    /// Cached files that were read lately.
    pub active_file: u64,
    /// Cached files that were not.
    pub inactive_file: u64,
    /// How many page faults there were.
    pub page_faults: u64,
    /// How many of them had to read.
    pub major_page_faults: u64,
    /// The limit, if any; for the node, all memory.
    pub limit: Option<u64>,
    /// The peak usage.
    pub peak: Option<u64>,
    /// How often the limit was reached.
    pub limit_hits: Option<u64>,
}

/// Swap space, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SwapUsage {
    /// In use.
    pub usage: u64,
    /// The limit, if any; for the node, all swap space.
    pub limit: Option<u64>,
}

/// How long tasks stalled; only v2 has this for groups.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressures {
    /// For a core.
    pub cpu: Option<Stalls>,
    pub memory: Option<Stalls>,
    /// For I/O.
    pub io: Option<Stalls>,
}

impl Cgroups {
    /// The usage of a group; `None` if it does not exist. Reads small files, none of which waits for a device.
    pub fn usage(&self, group: Group<'_>, depth: Depth) -> Option<GroupUsage> {
        let files = self.group_files(group)?;
        let mut usage = if let Group::Node = group { files.node() } else { files.group() };
        match (depth, group) {
            (Depth::Basic, _) => {}
            (Depth::Whole, Group::Node) => {
                let read = |name: &str| Stalls::read(&Path::new("/proc/pressure").join(name));
                usage.pressure = Pressures { cpu: read("cpu"), memory: read("memory"), io: read("io") };
                usage.io = files.io();
            }
            (Depth::Whole, _) => files.complete(&mut usage),
        }
        Some(usage)
    }

    fn group_files(&self, group: Group<'_>) -> Option<GroupFiles<'_>> {
        let (layout, hierarchies) = (&self.shared.layout, &self.shared.hierarchies);
        // An edit of the resources may have changed the class since the container started.
        let candidates = match group {
            Group::Node => vec![PathBuf::new()],
            Group::Level(class) => vec![layout.directory(&layout.level(class))],
            Group::Pod(uid) => CLASSES.map(|class| layout.directory(&layout.pod(class, uid))).to_vec(),
            Group::Container(uid, id) => CLASSES.map(|class| layout.container_directory(class, uid, id)).to_vec(),
        };
        let any = |group: &PathBuf| {
            ["cpuacct", "memory", "pids"].iter().find_map(|controller| hierarchies.path(controller, group))
        };
        let directory = candidates.into_iter().find(|group| any(group).is_some_and(|path| path.is_dir()))?;
        Some(GroupFiles { hierarchies, v2: hierarchies.is_v2(), directory })
    }
}

struct GroupFiles<'a> {
    hierarchies: &'a Hierarchies,
    v2: bool,
    /// From the root of a hierarchy.
    directory: PathBuf,
}

impl GroupFiles<'_> {
    fn text(&self, controller: &str, file: &str) -> Option<String> {
        fs::read_to_string(self.hierarchies.path(controller, &self.directory)?.join(file)).ok()
    }

    /// A file with a single number; `None` for other content.
    fn number(&self, controller: &str, file: &str) -> Option<u64> {
        self.text(controller, file)?.trim().parse().ok()
    }

    fn node(&self) -> GroupUsage {
        let info = MemoryInfo::read();
        let mut usage =
            GroupUsage { path: "/".to_owned(), taken: SampleTime::now(), cpu: self.cpu(), ..Default::default() };
        usage.memory = self.memory().map(|memory| MemoryUsage { limit: info.map(|info| info.total), ..memory });
        usage.swap =
            info.map(|info| SwapUsage { usage: info.swap_total - info.swap_free, limit: Some(info.swap_total) });
        usage
    }

    fn group(&self) -> GroupUsage {
        let path = format!("/{}", self.directory.display());
        let mut usage = GroupUsage { path, taken: SampleTime::now(), cpu: self.cpu(), ..Default::default() };
        usage.memory = self.memory().map(|memory| MemoryUsage { limit: self.memory_limit(), ..memory });
        usage.swap = self.swap();
        usage
    }

    /// Adds the rest of a whole reading.
    fn complete(&self, usage: &mut GroupUsage) {
        if let Some(cpu) = &mut usage.cpu {
            cpu.quota = self.quota();
        }
        let events = self.text("memory", if self.v2 { "memory.events" } else { "memory.oom_control" });
        let events = events.unwrap_or_default();
        usage.oom_kills = limits::oom_kills(&events);
        if let Some(memory) = &mut usage.memory {
            (memory.peak, memory.limit_hits) = if self.v2 {
                (self.number("memory", "memory.peak"), parse::keyed(&events, "max"))
            } else {
                (self.number("memory", "memory.max_usage_in_bytes"), self.number("memory", "memory.failcnt"))
            };
        }
        let group = self.hierarchies.path("pids", &self.directory);
        usage.processes = group.and_then(|group| Some(files::processes(&group).ok()?.len() as u64));
        usage.threads = self.number("pids", "pids.current");
        usage.threads_limit = self.number("pids", "pids.max");
        usage.pressure = self.pressure();
        usage.io = self.io();
    }

    /// Empty if the group lacks the controller.
    fn io(&self) -> Vec<DeviceIo> {
        let counters = if self.v2 {
            io::v2(&self.text("io", "io.stat").unwrap_or_default())
        } else {
            let read = |file: &str| self.text("blkio", &format!("blkio.throttle.{file}_recursive"));
            io::v1(&read("io_service_bytes").unwrap_or_default(), &read("io_serviced").unwrap_or_default())
        };
        io::named(counters)
    }

    fn cpu(&self) -> Option<CpuUsage> {
        if self.v2 {
            return parse::cpu_v2(&self.text("cpu", "cpu.stat")?);
        }
        parse::cpu_v1(&self.text("cpuacct", "cpuacct.usage")?, &self.text("cpuacct", "cpuacct.stat")?)
    }

    fn quota(&self) -> Option<CpuQuota> {
        let stat = self.text("cpu", "cpu.stat")?;
        if self.v2 {
            return parse::quota_v2(&self.text("cpu", "cpu.max")?, &stat);
        }
        parse::quota_v1(&self.text("cpu", "cpu.cfs_quota_us")?, &self.text("cpu", "cpu.cfs_period_us")?, &stat)
    }

    /// Without the values that only some groups have.
    fn memory(&self) -> Option<MemoryUsage> {
        let stat = self.text("memory", "memory.stat")?;
        if self.v2 {
            // The root has statistics but no counter.
            return parse::memory_v2(self.number("memory", "memory.current"), &stat);
        }
        parse::memory_v1(self.number("memory", "memory.usage_in_bytes")?, &stat)
    }

    fn memory_limit(&self) -> Option<u64> {
        let file = if self.v2 { "memory.max" } else { "memory.limit_in_bytes" };
        self.number("memory", file).filter(|limit| parse::is_limit(*limit))
    }

    fn swap(&self) -> Option<SwapUsage> {
        if self.v2 {
            let usage = self.number("memory", "memory.swap.current")?;
            return Some(SwapUsage { usage, limit: self.number("memory", "memory.swap.max") });
        }
        let usage = parse::keyed(&self.text("memory", "memory.stat")?, "total_swap")?;
        // v1 has one limit for memory and swap together.
        let both = self.number("memory", "memory.memsw.limit_in_bytes").filter(|limit| parse::is_limit(*limit));
        let limit = both.zip(self.memory_limit()).map(|(both, memory)| both.saturating_sub(memory));
        Some(SwapUsage { usage, limit })
    }

    fn pressure(&self) -> Pressures {
        let read = |controller: &str, file: &str| {
            if self.v2 { Stalls::read(&self.hierarchies.path(controller, &self.directory)?.join(file)) } else { None }
        };
        Pressures {
            cpu: read("cpu", "cpu.pressure"),
            memory: read("memory", "memory.pressure"),
            io: read("io", "io.pressure"),
        }
    }
}
