//! What the simulated node has of a pod besides containers: a sandbox, a cgroup, directories.

use std::collections::HashSet;

use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::pod::{PodRecord, PodUid};

use super::World;

impl World {
    pub(in crate::fake) fn create_sandbox(&mut self, record: &PodRecord) -> String {
        self.next_sandbox += 1;
        let next = self.next_sandbox.to_string();
        self.directories.insert(record.uid.to_string());
        let id = self.sandboxes.entry(record.uid.to_string()).or_insert(next).clone();
        self.set_cgroup(&record.uid, record.cgroup_limits);
        id
    }

    /// Sets a pod's limits.
    pub(in crate::fake) fn set_cgroup(&mut self, uid: &PodUid, limits: CgroupLimits) {
        self.cgroups.insert(uid.to_string(), limits);
        self.refused_limits.remove(uid.as_str());
        self.note(|| format!("cgroup of {uid} {limits:?}"));
        self.check_cgroup(uid, &limits);
    }

    /// Records that the kernel refused a pod's limits.
    pub(in crate::fake) fn refuse_limits(&mut self, uid: &PodUid) {
        self.refused_limits.insert(uid.to_string());
    }

    /// The limits of a pod's cgroup.
    pub fn cgroup(&self, uid: &PodUid) -> Option<CgroupLimits> {
        self.cgroups.get(uid.as_str()).copied()
    }

    pub(in crate::fake) fn remove_sandbox(&mut self, uid: &PodUid) {
        self.ends.remove(uid.as_str());
        self.sandboxes.remove(uid.as_str());
        self.cgroups.remove(uid.as_str());
        self.refused_limits.remove(uid.as_str());
        self.check_sandbox_removal(uid);
    }

    /// Removes everything of a pod except its containers.
    pub(in crate::fake) fn remove_pod(&mut self, uid: &PodUid) {
        self.remove_sandbox(uid);
        self.ephemeral.retain(|(owner, _)| owner != uid.as_str());
        self.directories.remove(uid.as_str());
    }

    pub(in crate::fake) fn sandbox(&self, uid: &PodUid) -> Option<String> {
        self.sandboxes.get(uid.as_str()).cloned()
    }

    pub(in crate::fake) fn traces(&self) -> HashSet<PodUid> {
        let with_any = self.sandboxes.keys().chain(self.cgroups.keys()).chain(&self.directories);
        with_any.filter_map(|uid| PodUid::parse(uid.as_str()).ok()).collect()
    }
}
