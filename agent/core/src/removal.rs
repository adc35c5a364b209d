//! Which resources of a pod are removed when it has finished, when it is deleted, and when nothing else is left of
//! it; and what is kept if one of them cannot be removed.
//!
//! There is one list for all three: a resource that cannot be removed keeps only those that must not go before it.
//! The executor removes them, and is asked again later for what is left.

use crate::outcome::Failure;

/// What a pod has on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Its containers, including those of failed starts.
    Containers,
    /// Shims that containerd no longer knows.
    Shims,
    /// Its attachment to the pod network.
    Network,
    /// Its pinned namespaces and `/dev/shm`.
    Namespaces,
    Cgroup,
    /// Disks of iSCSI targets that are attached for it.
    Disks,
    /// Volumes that CSI drivers have mounted.
    DriverVolumes,
    /// Everything else that is mounted for it.
    Mounts,
    /// The images that it uses as volumes.
    ImageVolumes,
    Logs,
    /// Its directory, with the other volumes.
    Directory,
}

use Resource::{
    Cgroup, Containers, Directory, Disks, DriverVolumes, ImageVolumes, Logs, Mounts, Namespaces, Network, Shims,
};

/// How much of a pod is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// It has finished: what others may need is removed; records, logs and its own volumes stay.
    Sandbox,
    /// It is deleted.
    Pod,
    /// It no longer exists, and neither do its containers.
    Orphan,
}

const POD_STAGES: &[&[Resource]] = &[
    &[Containers],
    &[Shims],
    &[Network],
    &[Namespaces],
    &[Cgroup],
    &[Mounts],
    &[ImageVolumes],
    &[DriverVolumes],
    &[Logs],
    &[Directory],
];

impl Extent {
    /// The resources in the order of their removal. Those of one stage are removed at the same time, so that none
    /// waits for the deadline of another.
    pub fn stages(self) -> &'static [&'static [Resource]] {
        match self {
            Self::Sandbox => &[&[Network], &[Namespaces], &[Cgroup], &[DriverVolumes, Disks]],
            Self::Pod => POD_STAGES,
            // Its containers are already gone.
            Self::Orphan => &POD_STAGES[1..],
        }
    }
}

impl Resource {
    /// What must be gone before it.
    fn requires(self) -> &'static [Self] {
        match self {
            // A process that is left of a failed start may still write to them.
            Mounts | ImageVolumes | DriverVolumes | Disks | Logs | Shims => &[Containers],
            // The directory tells what is still mounted, and that the logs are limpet's.
            Directory => &[Mounts, ImageVolumes, DriverVolumes, Logs],
            Containers | Network | Namespaces | Cgroup => &[],
        }
    }
}

/// What is left after a removal.
#[derive(Debug, Default)]
pub struct Remains {
    kept: Vec<Resource>,
    failures: Vec<Failure>,
}

impl Remains {
    /// The resources of a stage that can be removed. The others stay until what they wait for is gone.
    pub fn removable(&mut self, stage: &[Resource]) -> Vec<Resource> {
        let may_go = |resource: &Resource| !resource.requires().iter().any(|needed| self.kept.contains(needed));
        let (removable, kept): (Vec<_>, Vec<_>) = stage.iter().partition(|resource| may_go(resource));
        self.kept.extend(kept);
        removable
    }

    /// Records that a resource could not be removed.
    pub fn add(&mut self, resource: Resource, failure: Failure) {
        self.kept.push(resource);
        self.failures.push(failure);
    }

    /// Whether all is gone. Otherwise the failure has the first reason and all messages, and is transient only if
    /// each of them is.
    ///
    /// # Errors
    ///
    /// Something is left.
    pub fn result(self) -> Result<(), Failure> {
        let Some(first) = self.failures.first() else { return Ok(()) };
        let messages: Vec<&str> = self.failures.iter().map(|failure| failure.message.as_str()).collect();
        let transient = self.failures.iter().all(|failure| failure.transient);
        Err(Failure { reason: first.reason, message: messages.join("; "), transient })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENTS: [Extent; 3] = [Extent::Sandbox, Extent::Pod, Extent::Orphan];

    fn failure(message: &str, transient: bool) -> Failure {
        Failure { reason: "FailedKillPod", message: message.to_owned(), transient }
    }

    /// What is removed if `failing` cannot be.
    fn removed(extent: Extent, failing: &[Resource]) -> Vec<Resource> {
        let (mut remains, mut removed) = (Remains::default(), Vec::new());
        for stage in extent.stages() {
            for resource in remains.removable(stage) {
                match failing.contains(&resource) {
                    true => remains.add(resource, failure("no", false)),
                    false => removed.push(resource),
                }
            }
        }
        assert_eq!(remains.result().is_err(), !failing.is_empty());
        removed
    }

    #[test]
    fn a_resource_goes_after_those_that_must_be_gone_before_it() {
        for extent in EXTENTS {
            let order: Vec<Resource> = extent.stages().concat();
            for (index, resource) in order.iter().enumerate() {
                let later = &order[index..];
                assert!(!resource.requires().iter().any(|needed| later.contains(needed)), "{extent:?}: {resource:?}");
            }
        }
    }

    #[test]
    fn what_cannot_be_removed_keeps_only_what_needs_it_gone() {
        for extent in EXTENTS {
            let all = extent.stages().concat();
            assert_eq!(removed(extent, &[]), all);
            for failing in [Network, Namespaces, Cgroup].map(|resource| [resource]) {
                let others = all.iter().filter(|resource| !failing.contains(resource));
                assert_eq!(removed(extent, &failing), others.copied().collect::<Vec<_>>(), "{extent:?}: {failing:?}");
            }
        }
        assert_eq!(removed(Extent::Pod, &[Containers]), [Network, Namespaces, Cgroup]);
        for mounted in [Mounts, ImageVolumes, DriverVolumes, Logs].map(|resource| [resource]) {
            for extent in [Extent::Pod, Extent::Orphan] {
                let gone = removed(extent, &mounted);
                assert!(!gone.contains(&Directory), "{extent:?}: {mounted:?}");
                assert_eq!(gone.len() + 2, extent.stages().concat().len(), "{extent:?}: {mounted:?}");
            }
        }
        assert_eq!(removed(Extent::Sandbox, &[DriverVolumes]), [Network, Namespaces, Cgroup, Disks]);
    }

    #[test]
    fn every_failure_is_told_and_only_passing_ones_pass_soon() {
        let result = |failures: &[(&str, bool)]| {
            let mut remains = Remains::default();
            failures.iter().for_each(|(message, transient)| remains.add(Network, failure(message, *transient)));
            remains.result()
        };
        assert_eq!(result(&[]), Ok(()));
        assert_eq!(result(&[("network: a", false), ("cgroup: b", true)]), Err(failure("network: a; cgroup: b", false)));
        assert_eq!(result(&[("cgroup: b", true), ("cgroup: c", true)]), Err(failure("cgroup: b; cgroup: c", true)));
    }
}
