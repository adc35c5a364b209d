//! Where cgroups are mounted, from `/proc/self/mountinfo`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::CgroupError;
use crate::mount_table::{self, Mount};

/// The controllers of v1; everything else in a hierarchy's options is an option.
const V1_CONTROLLERS: [&str; 14] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "debug",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
];

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) mount_point: PathBuf,
    /// Its v1 controllers; empty for a named hierarchy and for v2.
    pub(super) controllers: BTreeSet<String>,
    /// Whether it is the unified one (v2).
    pub(super) unified: bool,
}

/// The mounted hierarchies: v1 with one per controller, v2 alone, or v1 with an unused v2 beside it (hybrid).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchies {
    mounted: Vec<Hierarchy>,
    /// The controllers of the v2 root, if v2 is in use.
    unified_controllers: BTreeSet<String>,
}

impl Hierarchies {
    /// Detects how cgroups are mounted. Blocks.
    pub(super) fn find() -> Result<Self, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let mounts = mount_table::mounts().map_err(|source| CgroupError::file("read", path, source))?;
        let mut hierarchies = Self { mounted: in_use(mounts), unified_controllers: BTreeSet::new() };
        let Some(first) = hierarchies.mounted.first() else { return Err(CgroupError::NotMounted) };
        if hierarchies.is_v2() {
            let path = first.mount_point.join("cgroup.controllers");
            let text = fs::read_to_string(&path).map_err(|source| CgroupError::file("read", &path, source))?;
            hierarchies.unified_controllers = text.split_whitespace().map(str::to_owned).collect();
        }
        Ok(hierarchies)
    }

    /// Whether v2 is in use: no v1 hierarchy has a controller.
    pub(super) fn is_v2(&self) -> bool {
        self.mounted.iter().any(|hierarchy| hierarchy.unified)
            && self.mounted.iter().all(|hierarchy| hierarchy.controllers.is_empty())
    }

    /// The available controllers.
    pub(super) fn controllers(&self) -> BTreeSet<&str> {
        let v1 = self.mounted.iter().flat_map(|hierarchy| &hierarchy.controllers);
        v1.chain(&self.unified_controllers).map(String::as_str).collect()
    }

    /// The hierarchies in which groups are created: all that can hold processes, except an unused v2.
    pub(super) fn active(&self) -> impl Iterator<Item = &Hierarchy> {
        let v2 = self.is_v2();
        self.mounted.iter().filter(move |hierarchy| hierarchy.unified == v2)
    }

    /// A group's directory in the hierarchy of `controller`; `None` without such a hierarchy.
    pub(super) fn path(&self, controller: &str, group: &Path) -> Option<PathBuf> {
        let v2 = self.is_v2();
        let has_controller =
            |hierarchy: &&Hierarchy| if v2 { hierarchy.unified } else { hierarchy.controllers.contains(controller) };
        self.mounted.iter().find(has_controller).map(|hierarchy| hierarchy.mount_point.join(group))
    }

    /// A group's directory in every hierarchy, because the OCI runtime also creates some in an unused v2.
    pub(super) fn all_paths(&self, group: &Path) -> Vec<PathBuf> {
        self.mounted.iter().map(|hierarchy| hierarchy.mount_point.join(group)).collect()
    }
}

/// The hierarchies with pods' groups. If `/sys/fs/cgroup` is v2, only that one: the OCI runtime and systemd decide in
/// the same way, and a v1 hierarchy beside it belongs to a single program, as `net_cls` of VPN clients.
fn in_use(mounts: Vec<Mount>) -> Vec<Hierarchy> {
    // The last mount at a path covers earlier ones.
    let root = mounts.iter().rev().find(|mount| mount.point == Path::new("/sys/fs/cgroup"));
    let v2 = root.filter(|root| root.file_system == "cgroup2").map(|root| root.device.clone());
    match v2 {
        Some(device) => hierarchies(mounts.into_iter().filter(|mount| mount.device == device).collect()),
        None => hierarchies(mounts),
    }
}

/// The cgroup mounts among `mounts`, each hierarchy once.
fn hierarchies(mounts: Vec<Mount>) -> Vec<Hierarchy> {
    let mut seen = BTreeSet::new();
    let hierarchy = |mount: Mount| {
        let unified = match mount.file_system.as_str() {
            "cgroup" => false,
            "cgroup2" => true,
            _ => return None,
        };
        if !seen.insert(mount.device) {
            return None;
        }
        let controllers = mount.options.into_iter();
        let controllers = controllers.filter(|option| !unified && V1_CONTROLLERS.contains(&option.as_str())).collect();
        Some(Hierarchy { mount_point: mount.point, controllers, unified })
    };
    mounts.into_iter().filter_map(hierarchy).collect()
}

#[cfg(test)]
impl Hierarchies {
    /// The hierarchies in a `mountinfo`, for tests.
    pub(super) fn parse(mountinfo: &str) -> Self {
        Self { mounted: in_use(mount_table::parse(mountinfo.as_bytes())), unified_controllers: BTreeSet::new() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const V1: &str = "\
25 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 25 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory,clone_children
33 30 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
";
    const UNIFIED: &str = "34 30 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
    const V2: &str = "\
25 1 254:0 / / rw,relatime - ext4 /dev/vda rw
34 25 0:30 / /sys/fs/cgroup rw,nosuid,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate
35 25 0:30 / /mnt/again rw,relatime - cgroup2 cgroup2 rw
";

    /// The mounts of VPN clients, inside and before the unified one.
    const NET_CLS: [&str; 2] = [
        "36 34 0:31 / /sys/fs/cgroup/net_cls rw,relatime - cgroup net_cls rw,net_cls\n",
        "24 1 0:31 / /run/net_cls rw,relatime - cgroup net_cls rw,net_cls\n",
    ];

    #[test]
    fn a_v1_hierarchy_beside_v2_is_not_used() {
        for mountinfo in [format!("{V2}{}", NET_CLS[0]), format!("{}{V2}", NET_CLS[1])] {
            let hierarchies = Hierarchies::parse(&mountinfo);
            assert!(hierarchies.is_v2(), "{mountinfo}");
            assert_eq!(
                hierarchies.all_paths(Path::new("kubepods")),
                [Path::new("/sys/fs/cgroup/kubepods")],
                "{mountinfo}"
            );
            assert!(hierarchies.controllers().is_empty(), "{mountinfo}");
        }
        // v1 over which nothing else is mounted stays v1.
        assert!(!Hierarchies::parse(&format!("{}{V1}{UNIFIED}", NET_CLS[1])).is_v2());
    }

    #[test]
    fn versions_are_distinguished() {
        for (mountinfo, v2, active) in
            [(V1.to_owned(), false, 3), (format!("{V1}{UNIFIED}"), false, 3), (V2.to_owned(), true, 1)]
        {
            let hierarchies = Hierarchies::parse(&mountinfo);
            assert_eq!((hierarchies.is_v2(), hierarchies.active().count()), (v2, active), "{mountinfo}");
        }
        assert_eq!(Hierarchies::parse("").active().count(), 0);
    }

    #[test]
    fn groups_have_a_path_in_their_controllers_hierarchy() {
        let group = Path::new("kubepods/podx");
        let hybrid = Hierarchies::parse(&format!("{V1}{UNIFIED}"));
        assert_eq!(hybrid.path("cpuacct", group).unwrap(), Path::new("/sys/fs/cgroup/cpu,cpuacct/kubepods/podx"));
        assert_eq!(hybrid.path("memory", group).unwrap(), Path::new("/sys/fs/cgroup/memory/kubepods/podx"));
        assert_eq!(hybrid.path("pids", group), None);
        assert_eq!(hybrid.all_paths(group).len(), 4);
        assert_eq!(hybrid.controllers(), BTreeSet::from(["cpu", "cpuacct", "memory"]));
        let unified = Hierarchies::parse(V2);
        assert_eq!(unified.path("memory", group).unwrap(), Path::new("/sys/fs/cgroup/kubepods/podx"));
    }
}
