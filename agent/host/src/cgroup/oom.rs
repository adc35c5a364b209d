//! The kernel's counts of OOM kills.
//!
//! A container's count disappears with its cgroup, which systemd removes with the container's last process, before
//! the agent can read it. With cgroup v2 the pod's count includes all groups that ever existed below it: its excess
//! over the counts of the existing groups belongs to exited containers.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use super::layout::CLASSES;
use super::{Cgroups, files, limits};
use limpet_model::pod::{PodRecord, PodUid};

impl Cgroups {
    /// How many processes of a container the OOM killer has killed; `None` if its cgroup was removed or the kernel
    /// does not count. Reads a small file.
    pub fn oom_kills(&self, pod: &PodRecord, container_id: &str) -> Option<u64> {
        let (layout, hierarchies) = (&self.shared.layout, &self.shared.hierarchies);
        let file = if hierarchies.is_v2() { "memory.events" } else { "memory.oom_control" };
        // An edit of the resources may have changed the class since the container started.
        CLASSES.into_iter().find_map(|class| {
            let group = layout.container_directory(class, &pod.uid, container_id);
            kills(&hierarchies.path("memory", &group)?.join(file))
        })
    }

    /// Marks earlier OOM kills in exited containers of the pod as known. Later calls change nothing.
    pub(super) fn begin_oom_account(&self, pod: &PodUid) {
        if let Some(kills) = self.exited_oom_kills(pod, None) {
            let mut known = self.shared.exited_oom_kills.lock().unwrap_or_else(PoisonError::into_inner);
            known.entry(pod.clone()).or_insert(kills);
        }
    }

    /// Whether the OOM killer has killed a process of an exited container, beyond the `survived` kills. Marks all its
    /// kills as known. `None` if they are not counted, as with cgroup v1 once the container's group is removed.
    pub fn ended_out_of_memory(&self, pod: &PodRecord, container_id: &str, survived: u64) -> Option<bool> {
        let counted = self.oom_kills(pod, container_id).map(|kills| kills > survived);
        let Some(kills) = self.exited_oom_kills(&pod.uid, Some(container_id)) else { return counted };
        let mut known = self.shared.exited_oom_kills.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.insert(pod.uid.clone(), kills);
        Some(counted == Some(true) || before.is_some_and(|before| kills > before.saturating_add(survived)))
    }

    pub(super) fn end_oom_account(&self, pod: &PodUid) {
        self.shared.exited_oom_kills.lock().unwrap_or_else(PoisonError::into_inner).remove(pod);
    }

    /// The kills in removed groups of the pod and in the group of `exiting`; `None` without a v2 count of the pod.
    fn exited_oom_kills(&self, pod: &PodUid, exiting: Option<&str>) -> Option<u64> {
        let (layout, hierarchies) = (&self.shared.layout, &self.shared.hierarchies);
        let classes = CLASSES.into_iter().filter(|_| hierarchies.is_v2());
        let existing = |class| -> Option<PathBuf> {
            let path = hierarchies.path("memory", &layout.directory(&layout.pod(class, pod)))?;
            path.is_dir().then_some(path)
        };
        let (class, path) = classes.filter_map(|class| Some((class, existing(class)?))).next()?;
        let exiting = exiting.map(|id| layout.container_directory(class, pod, id));
        let exiting = exiting.as_deref().and_then(Path::file_name);
        let others = files::subdirectories(&path).ok()?.into_iter().filter(|name| Some(name.as_ref()) != exiting);
        // The pod's count is read first, so that a kill meanwhile is not attributed to an exited container.
        let all = kills(&path.join("memory.events"))?;
        let others = others.filter_map(|name| kills(&path.join(name).join("memory.events")));
        Some(all.saturating_sub(others.sum()))
    }
}

fn kills(file: &Path) -> Option<u64> {
    limits::oom_kills(&std::fs::read_to_string(file).ok()?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::super::Shared;
    use super::super::hierarchy::Hierarchies;
    use super::super::layout::Layout;
    use super::*;
    use crate::cgroup::CgroupDriver;
    use limpet_model::fixtures::record_of_spec as record;
    use limpet_model::pod::qos::QosClass;

    /// A directory that looks like cgroup v2.
    struct Tree {
        root: tempfile::TempDir,
        cgroups: Cgroups,
        pod: PodRecord,
    }

    impl Tree {
        fn new() -> Self {
            Self::mounted_as("cgroup2 cgroup2 rw")
        }

        fn mounted_as(file_system: &str) -> Self {
            let root = tempfile::tempdir().unwrap();
            let mountinfo = format!("30 23 0:26 / {} rw - {file_system}\n", root.path().display());
            let shared = Shared {
                hierarchies: Hierarchies::parse(&mountinfo),
                layout: Layout::new(CgroupDriver::Systemd, Path::new("/")),
                pod_pids_limit: None,
                cpu_quotas: limpet_model::pod::compute_resources::CpuQuotas::default(),
                memory_qos: limpet_model::pod::memory_qos::MemoryQos::default(),
                huge_page_sizes: Vec::new(),
                systemd: None,
                requested: Mutex::default(),
                exited_oom_kills: Mutex::default(),
            };
            let mut pod = record(json!({"containers": [{"name": "c"}]}));
            pod.uid = PodUid::new("u1");
            Self { root, cgroups: Cgroups { shared: Arc::new(shared) }, pod }
        }

        fn pod_group(&self) -> PathBuf {
            let layout = &self.cgroups.shared.layout;
            self.root.path().join(layout.directory(&layout.pod(QosClass::BestEffort, &self.pod.uid)))
        }

        fn group(&self, id: &str) -> PathBuf {
            let layout = &self.cgroups.shared.layout;
            self.root.path().join(layout.container_directory(QosClass::BestEffort, &self.pod.uid, id))
        }

        fn count(&self, group: &Path, kills: u64) {
            fs::create_dir_all(group).unwrap();
            fs::write(group.join("memory.events"), format!("oom 9\noom_kill {kills}\n")).unwrap();
        }

        fn ended(&self, id: &str, survived: u64) -> bool {
            self.cgroups.ended_out_of_memory(&self.pod, id, survived).unwrap_or(false)
        }
    }

    #[test]
    fn the_pods_count_includes_a_container_whose_group_was_removed() {
        let tree = Tree::new();
        tree.count(&tree.pod_group(), 0);
        tree.cgroups.begin_oom_account(&tree.pod.uid);
        // One container survives a kill. Another is killed, and its group is removed.
        tree.count(&tree.group("alive"), 1);
        tree.count(&tree.pod_group(), 2);
        assert!(tree.ended("killed", 0));
        assert!(!tree.ended("ended", 0), "that kill is known");
        // A survived kill explains neither the container's own exit nor another container's.
        fs::remove_dir_all(tree.group("alive")).unwrap();
        assert!(!tree.ended("alive", 1));
        assert!(!tree.ended("ended later", 0));
        tree.count(&tree.pod_group(), 3);
        tree.cgroups.begin_oom_account(&tree.pod.uid);
        assert!(tree.ended("killed later", 0));
    }

    #[test]
    fn the_first_version_counts_no_removed_group() {
        let tree = Tree::mounted_as("cgroup cgroup rw,memory");
        let group = tree.group("killed");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n").unwrap();
        let ended = |survived| tree.cgroups.ended_out_of_memory(&tree.pod, "killed", survived);
        assert_eq!((ended(0), ended(1)), (Some(true), Some(false)));
        fs::remove_dir_all(group).unwrap();
        assert_eq!(ended(0), None, "it is unknown");
    }

    #[test]
    fn a_group_that_still_exists_counts_once() {
        let tree = Tree::new();
        tree.count(&tree.pod_group(), 0);
        tree.cgroups.begin_oom_account(&tree.pod.uid);
        tree.count(&tree.group("killed"), 1);
        tree.count(&tree.pod_group(), 1);
        assert!(tree.ended("killed", 0));
        fs::remove_dir_all(tree.group("killed")).unwrap();
        assert!(!tree.ended("other", 0));
    }

    #[test]
    fn kills_before_the_account_began_are_not_reported() {
        let tree = Tree::new();
        tree.count(&tree.pod_group(), 4);
        assert!(!tree.ended("without an account", 0));
        tree.cgroups.end_oom_account(&tree.pod.uid);
        tree.cgroups.begin_oom_account(&tree.pod.uid);
        assert!(!tree.ended("known", 0));
        fs::remove_dir_all(tree.pod_group()).unwrap();
        assert!(!tree.ended("of a pod that is gone", 0));
    }
}
