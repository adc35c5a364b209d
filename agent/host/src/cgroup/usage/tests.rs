//! Usage from files that look like the kernel's, of both versions and both drivers.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use super::super::layout::Layout;
use super::super::{CgroupDriver, Shared};
use super::*;

/// Directories that look like mounted cgroups.
struct Tree {
    root: tempfile::TempDir,
    cgroups: Cgroups,
}

impl Tree {
    fn new(driver: CgroupDriver, v2: bool) -> Self {
        let root = tempfile::tempdir().unwrap();
        let at = root.path().display();
        let mountinfo = if v2 {
            format!("30 23 0:26 / {at} rw - cgroup2 cgroup2 rw\n")
        } else {
            ["cpu,cpuacct", "memory", "pids"]
                .iter()
                .enumerate()
                .map(|(number, name)| format!("3{number} 23 0:2{number} / {at}/{name} rw - cgroup cgroup rw,{name}\n"))
                .collect()
        };
        let shared = Shared {
            hierarchies: Hierarchies::parse(&mountinfo),
            layout: Layout::new(driver, Path::new("/")),
            pod_pids_limit: None,
            cpu_quotas: limpet_model::pod::compute_resources::CpuQuotas::default(),
            memory_qos: limpet_model::pod::memory_qos::MemoryQos::default(),
            huge_page_sizes: Vec::new(),
            systemd: None,
            requested: Mutex::default(),
            exited_oom_kills: Mutex::default(),
        };
        Self { root, cgroups: Cgroups { shared: Arc::new(shared) } }
    }

    /// Writes files, by their paths from the mount points.
    fn write(&self, group: &str, files: &[(&str, &str, &str)]) {
        for (hierarchy, file, text) in files {
            let path = self.root.path().join(hierarchy).join(group);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(file), text).unwrap();
        }
    }

    fn usage(&self, group: Group<'_>, depth: Depth) -> GroupUsage {
        GroupUsage { taken: SampleTime::default(), ..self.cgroups.usage(group, depth).unwrap() }
    }
}

const STAT_V2: &str = "anon 300\nfile 500\nfile_mapped 7\nanon_thp 9\ninactive_file 200\nactive_file 250\npgfault 11\n\
                       pgmajfault 2\n";
const STAT_V1: &str = "cache 1\nrss 1\ninactive_file 1\ntotal_cache 500\ntotal_rss 300\ntotal_mapped_file 7\n\
                       total_swap 40\ntotal_pgfault 11\ntotal_pgmajfault 2\ntotal_inactive_file 200\n\
                       total_active_file 250\n";

fn memory() -> MemoryUsage {
    MemoryUsage {
        usage: 1_000,
        working_set: 800,
        rss: 300,
        cache: 500,
        mapped_file: 7,
        active_file: 250,
        inactive_file: 200,
        page_faults: 11,
        major_page_faults: 2,
        limit: Some(5_000),
        peak: None,
        limit_hits: None,
    }
}

#[test]
fn a_container_has_the_same_usage_in_both_versions() {
    let uid = PodUid::new("u-1");
    let quota = CpuQuota { quota: 50_000, period: 100_000, periods: 8, throttled_periods: 3, throttled: 4_000 };
    let cpu = CpuUsage { total: 7_000_000_000, user: 5_000_000_000, system: 2_000_000_000, quota: None };
    let basic = GroupUsage {
        cpu: Some(cpu.clone()),
        memory: Some(memory()),
        swap: Some(SwapUsage { usage: 40, limit: Some(1_000) }),
        ..GroupUsage::default()
    };
    let whole = |path: &str| GroupUsage {
        path: format!("/{path}"),
        cpu: Some(CpuUsage { quota: Some(quota), ..cpu.clone() }),
        memory: Some(MemoryUsage { peak: Some(2_000), limit_hits: Some(6), ..memory() }),
        processes: Some(2),
        threads: Some(9),
        threads_limit: None,
        oom_kills: Some(1),
        ..basic.clone()
    };

    let path = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice/limpet-c1.scope";
    let tree = Tree::new(CgroupDriver::Systemd, true);
    let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
    let cpu_stat = "usage_usec 7000000\nuser_usec 5000000\nsystem_usec 2000000\nnr_periods 8\nnr_throttled 3\n\
                    throttled_usec 4\n";
    let v2 = [
        ("", "cpu.stat", cpu_stat),
        ("", "cpu.max", "50000 100000\n"),
        ("", "memory.current", "1000\n"),
        ("", "memory.stat", STAT_V2),
        ("", "memory.max", "5000\n"),
        ("", "memory.peak", "2000\n"),
        ("", "memory.events", "low 0\nhigh 0\nmax 6\noom 1\noom_kill 1\n"),
        ("", "memory.swap.current", "40\n"),
        ("", "memory.swap.max", "1000\n"),
        ("", "memory.pressure", pressure),
        ("", "cgroup.procs", "7\n8\n"),
        ("", "pids.current", "9\n"),
        ("", "pids.max", "max\n"),
    ];
    tree.write(path, &v2);
    let container = Group::Container(&uid, "c1");
    assert_eq!(tree.usage(container, Depth::Basic), GroupUsage { path: format!("/{path}"), ..basic.clone() });
    let full = tree.usage(container, Depth::Whole);
    assert_eq!(full.pressure.memory.unwrap().full.total, 5);
    assert_eq!(GroupUsage { pressure: Pressures::default(), ..full }, whole(path));

    let path = "kubepods/besteffort/podu-1/c1";
    let tree = Tree::new(CgroupDriver::Cgroupfs, false);
    let v1 = [
        ("cpu,cpuacct", "cpuacct.usage", "7000000000\n"),
        ("cpu,cpuacct", "cpuacct.stat", "user 500\nsystem 200\n"),
        ("cpu,cpuacct", "cpu.cfs_quota_us", "50000\n"),
        ("cpu,cpuacct", "cpu.cfs_period_us", "100000\n"),
        ("cpu,cpuacct", "cpu.stat", "nr_periods 8\nnr_throttled 3\nthrottled_time 4000\n"),
        ("memory", "memory.usage_in_bytes", "1000\n"),
        ("memory", "memory.stat", STAT_V1),
        ("memory", "memory.limit_in_bytes", "5000\n"),
        ("memory", "memory.memsw.limit_in_bytes", "6000\n"),
        ("memory", "memory.max_usage_in_bytes", "2000\n"),
        ("memory", "memory.failcnt", "6\n"),
        ("memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
        ("pids", "cgroup.procs", "7\n8\n"),
        ("pids", "pids.current", "9\n"),
        ("pids", "pids.max", "max\n"),
    ];
    tree.write(path, &v1);
    assert_eq!(tree.usage(container, Depth::Whole), whole(path));
    assert_eq!(tree.cgroups.usage(Group::Container(&uid, "c2"), Depth::Basic), None);
}

#[test]
fn no_limit_is_no_figure() {
    let uid = PodUid::new("u1");
    let tree = Tree::new(CgroupDriver::Cgroupfs, true);
    let v2 = [
        ("", "cpu.stat", "usage_usec 1\n"),
        ("", "cpu.max", "max 100000\n"),
        ("", "memory.current", "1\n"),
        ("", "memory.stat", STAT_V2),
        ("", "memory.max", "max\n"),
        ("", "memory.swap.current", "0\n"),
        ("", "memory.swap.max", "max\n"),
    ];
    tree.write("kubepods/podu1", &v2);
    let unlimited = |usage: GroupUsage| {
        assert_eq!(usage.cpu.unwrap().quota, None);
        assert_eq!(usage.memory.unwrap().limit, None);
        assert_eq!(usage.swap.unwrap().limit, None);
    };
    unlimited(tree.usage(Group::Pod(&uid), Depth::Whole));
    let tree = Tree::new(CgroupDriver::Cgroupfs, false);
    let v1 = [
        ("cpu,cpuacct", "cpuacct.usage", "1\n"),
        ("cpu,cpuacct", "cpuacct.stat", "user 0\nsystem 0\n"),
        ("cpu,cpuacct", "cpu.cfs_quota_us", "-1\n"),
        ("cpu,cpuacct", "cpu.cfs_period_us", "100000\n"),
        ("cpu,cpuacct", "cpu.stat", "nr_periods 0\n"),
        ("memory", "memory.usage_in_bytes", "1\n"),
        ("memory", "memory.stat", STAT_V1),
        ("memory", "memory.limit_in_bytes", "9223372036854771712\n"),
        ("memory", "memory.memsw.limit_in_bytes", "9223372036854771712\n"),
    ];
    tree.write("kubepods/podu1", &v1);
    unlimited(tree.usage(Group::Pod(&uid), Depth::Whole));
}

#[test]
fn the_root_of_v2_is_counted_by_its_statistics() {
    let tree = Tree::new(CgroupDriver::Cgroupfs, true);
    tree.write("", &[("", "cpu.stat", "usage_usec 5\n"), ("", "memory.stat", STAT_V2)]);
    let node = tree.usage(Group::Node, Depth::Basic);
    let memory = node.memory.unwrap();
    assert_eq!((node.path.as_str(), memory.usage, memory.working_set), ("/", 800, 600));
    assert!(memory.limit.is_some_and(|all| all > 0), "all of the node's memory");
    assert_eq!(node.cpu.unwrap().total, 5_000);
    assert!(tree.cgroups.usage(Group::Level(QosClass::Guaranteed), Depth::Basic).is_none());
}
