//! The memory usage of pods, containers and the node, and the number of a pod's processes.

use std::fs;
use std::path::Path;

use super::Cgroups;
use super::layout::CLASSES;
use limpet_model::pod::PodUid;
use limpet_model::pod::qos::QosClass;

impl Cgroups {
    /// The bytes that the pod, or one of its containers, uses, without files that were not read lately, which the
    /// kernel can drop. `None` if its cgroup does not exist, or the kernel does not count. Reads small files.
    pub fn memory_in_use(&self, pod: &PodUid, container_id: Option<&str>) -> Option<u64> {
        let (layout, hierarchies) = (&self.shared.layout, &self.shared.hierarchies);
        let v2 = hierarchies.is_v2();
        CLASSES.into_iter().find_map(|class| {
            let group = match container_id {
                Some(id) => layout.container_directory(class, pod, id),
                None => layout.directory(&layout.pod(class, pod)),
            };
            in_use(&hierarchies.path("memory", &group)?, v2)
        })
    }

    /// The same for the whole node, from the root of the hierarchy as in kubelet.
    pub fn node_memory_in_use(&self) -> Option<u64> {
        let hierarchies = &self.shared.hierarchies;
        let root = hierarchies.path("memory", Path::new(""))?;
        if hierarchies.is_v2() { root_in_use(&root) } else { in_use(&root, false) }
    }

    /// The same for all pods together.
    pub fn memory_of_all_pods(&self) -> Option<u64> {
        let (layout, hierarchies) = (&self.shared.layout, &self.shared.hierarchies);
        let level = layout.directory(&layout.level(QosClass::Guaranteed));
        in_use(&hierarchies.path("memory", &level)?, hierarchies.is_v2())
    }

    /// The number of the pod's processes and threads; `None` if its cgroup does not exist, or the kernel does not
    /// count.
    pub fn processes(&self, pod: &PodUid) -> Option<u64> {
        let (layout, hierarchies) = (&self.shared.layout, &self.shared.hierarchies);
        CLASSES.into_iter().find_map(|class| {
            let group = hierarchies.path("pids", &layout.directory(&layout.pod(class, pod)))?;
            fs::read_to_string(group.join("pids.current")).ok()?.trim().parse().ok()
        })
    }
}

/// The root of v2 has no counter, only statistics.
fn root_in_use(root: &Path) -> Option<u64> {
    let stat = fs::read_to_string(root.join("memory.stat")).ok()?;
    let value = |name: &str| -> Option<u64> {
        stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    };
    Some((value("anon")? + value("file")?).saturating_sub(value("inactive_file").unwrap_or(0)))
}

/// The bytes that a group uses, without files that were not read lately; `None` if they are not counted.
pub(super) fn in_use(group: &Path, v2: bool) -> Option<u64> {
    let (usage, idle) =
        if v2 { ("memory.current", "inactive_file") } else { ("memory.usage_in_bytes", "total_inactive_file") };
    let used: u64 = fs::read_to_string(group.join(usage)).ok()?.trim().parse().ok()?;
    let stat = fs::read_to_string(group.join("memory.stat")).ok()?;
    let idle = stat.lines().find_map(|line| line.strip_prefix(idle)?.trim().parse().ok()).unwrap_or(0);
    Some(used.saturating_sub(idle))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn files_that_were_not_read_lately_are_not_in_use() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(group.path().join(name), text).unwrap();
        assert_eq!(in_use(group.path(), true), None);
        write("memory.current", "1000\n");
        write("memory.stat", "anon 300\ninactive_file 600\nactive_file 100\n");
        assert_eq!(in_use(group.path(), true), Some(400));
        write("memory.usage_in_bytes", "1000\n");
        write("memory.stat", "inactive_file 1\ntotal_inactive_file 200\n");
        assert_eq!(in_use(group.path(), false), Some(800));
        write("memory.stat", "anon 300\nfile 500\nfile_mapped 7\nanon_thp 9\ninactive_file 200\n");
        assert_eq!(root_in_use(group.path()), Some(600));
    }
}
