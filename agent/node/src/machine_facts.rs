//! The kernel's facts about the machine, which do not change while the agent runs.

use std::collections::BTreeMap;

use rustix::fs::statfs;
use rustix::thread::CapabilitySet;

/// The lowest `oom_score_adj`; setting it needs `CAP_SYS_RESOURCE`.
const OOM_SCORE_MIN: i32 = -1_000;
/// `CGROUP2_SUPER_MAGIC`, statfs(2).
const CGROUP2_MAGIC: u64 = 0x6367_7270;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFacts {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of swap, at the agent's start.
    pub swap: u64,
    /// The lowest `oom_score_adj` that the agent may set.
    pub oom_score_floor: i32,
    /// Whether only the unified hierarchy of cgroups is mounted.
    pub cgroup_v2: bool,
    /// The agent's own systemd service, if it runs as one.
    pub service: Option<String>,
    /// The number of huge pages that are reserved, by their size in bytes.
    pub huge_pages: BTreeMap<u64, u64>,
    /// Whether cgroups can limit huge pages.
    pub limits_huge_pages: bool,
}

impl MachineFacts {
    /// Reads the facts from the kernel. An unknown fact is logged and replaced by the safer value.
    #[allow(clippy::useless_conversion)] // totalram and totalswap are C longs: 32 bits on 32-bit machines
    pub fn read() -> Self {
        let memory = rustix::system::sysinfo();
        let unit = u64::from(memory.mem_unit);
        Self {
            memory: u64::from(memory.totalram).saturating_mul(unit),
            swap: u64::from(memory.totalswap).saturating_mul(unit),
            oom_score_floor: oom_score_floor(),
            cgroup_v2: cgroup_v2(),
            service: service(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default()),
            huge_pages: limpet_host::huge_pages::pools(),
            limits_huge_pages: limpet_host::cgroup::limits_huge_pages(),
        }
    }
}

/// The agent's own `oom_score_adj` if it may not set a lower one.
fn oom_score_floor() -> i32 {
    let effective = rustix::thread::capabilities(None).map(|sets| sets.effective);
    if effective.is_ok_and(|effective| effective.contains(CapabilitySet::SYS_RESOURCE)) {
        return OOM_SCORE_MIN;
    }
    let inherited = std::fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse().ok());
    inherited.unwrap_or(0)
}

/// Whether only the unified hierarchy is mounted.
pub fn cgroup_v2() -> bool {
    match statfs("/sys/fs/cgroup") {
        Ok(stat) => u64::try_from(stat.f_type) == Ok(CGROUP2_MAGIC),
        Err(error) => {
            tracing::warn!(%error, "cannot detect the cgroup version mounted at /sys/fs/cgroup, assuming v1");
            false
        }
    }
}

/// The systemd service in `/proc/self/cgroup`, of either cgroup version.
fn service(cgroups: &str) -> Option<String> {
    let paths = cgroups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        (controllers.is_empty() || controllers == "name=systemd").then_some(path)
    });
    paths.filter_map(|path| path.rsplit('/').find(|name| name.ends_with(".service"))).next().map(str::to_owned)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn facts_match_proc() {
        let facts = MachineFacts::read();
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
        let kilobytes: u64 = total.trim().trim_end_matches(" kB").parse().unwrap();
        assert_eq!(facts.memory >> 10, kilobytes);
        assert_eq!(facts.cgroup_v2, std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists());
        assert!((OOM_SCORE_MIN..=1_000).contains(&facts.oom_score_floor));
    }

    #[test]
    fn a_service_is_found_on_either_cgroup_version() {
        assert_eq!(service("0::/system.slice/limpet.service\n").as_deref(), Some("limpet.service"));
        let hybrid = "3:cpu:/other.service\n1:name=systemd:/system.slice/edge.service/agent\n0::/\n";
        assert_eq!(service(hybrid).as_deref(), Some("edge.service"));
        assert_eq!(service("0::/user.slice/session-1.scope\n"), None);
    }
}
