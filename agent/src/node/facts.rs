//! Facts about the node that do not change while the agent runs.

use rustix::fs::statfs;
use rustix::thread::CapabilitySet;

use crate::config::Config;
use crate::node::capacity::Capacity;
use limpet_host::cgroup::CgroupDriver;
use limpet_model::node::NodeFacts;

/// The lowest `oom_score_adj`; setting it needs `CAP_SYS_RESOURCE`.
const OOM_SCORE_MIN: i32 = -1_000;
/// `CGROUP2_SUPER_MAGIC`, statfs(2).
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// Reads the facts from the kernel. An unknown fact is logged and replaced by the safer value.
#[allow(clippy::useless_conversion)] // totalram and totalswap are C longs: 32 bits on 32-bit machines
pub fn facts(config: &Config, name: String) -> NodeFacts {
    let memory = rustix::system::sysinfo();
    let memory_capacity = u64::from(memory.totalram).saturating_mul(u64::from(memory.mem_unit));
    let swap_capacity = u64::from(memory.totalswap).saturating_mul(u64::from(memory.mem_unit));
    let huge_pages = limpet_host::huge_pages::pools();
    NodeFacts {
        name,
        memory_capacity,
        limits: Capacity::of(config, memory_capacity, 0, &huge_pages).limits(),
        swap_capacity,
        swap_behavior: config.swap_behavior,
        single_process_oom_kill: config.single_process_oom_kill,
        cpu_quotas: config.cpu_quotas,
        memory_qos: config.memory_qos,
        oom_score_floor: oom_score_floor(),
        cgroup_v2: cgroup_v2(),
        systemd_cgroup: config.cgroup_driver == CgroupDriver::Systemd,
        service: service(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default()),
        seccomp_default: config.seccomp_default,
        seccomp_dir: config.root_dir.join("seccomp"),
        runtime_endpoint: config.runtime_endpoint.clone(),
        devices: config.devices.clone(),
        cdi_dirs: config.cdi_dirs.clone(),
        huge_pages,
        limits_huge_pages: limpet_host::cgroup::limits_huge_pages(),
    }
}

/// The agent's own `oom_score_adj` if it may not set a lower one.
fn oom_score_floor() -> i32 {
    let effective = rustix::thread::capabilities(None).map(|sets| sets.effective);
    if effective.is_ok_and(|effective| effective.contains(CapabilitySet::SYS_RESOURCE)) {
        return OOM_SCORE_MIN;
    }
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").ok().and_then(|text| text.trim().parse().ok());
    own.unwrap_or(0)
}

/// Whether only the unified hierarchy is mounted.
pub(crate) fn cgroup_v2() -> bool {
    match statfs("/sys/fs/cgroup") {
        Ok(found) => u64::try_from(found.f_type) == Ok(CGROUP2_MAGIC),
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
        let facts = facts(&Config { seccomp_default: true, ..Config::default() }, "edge1".to_owned());
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
        let kilobytes: u64 = total.trim().trim_end_matches(" kB").parse().unwrap();
        assert_eq!(facts.memory_capacity >> 10, kilobytes);
        assert_eq!(facts.cgroup_v2, std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists());
        assert!(facts.seccomp_default && facts.seccomp_dir.ends_with("limpet/seccomp"));
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
