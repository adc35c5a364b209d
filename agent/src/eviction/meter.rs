//! Measures what is left on the node: memory, disks, process ids.

use std::path::{Path, PathBuf};

use limpet_containerd::image::Images;
use limpet_core::eviction::{Observation, Observations, Signal};
use limpet_host::cgroup::Cgroups;
use limpet_host::file_system::Space;
use limpet_host::proc_files::{MemoryInfo, ProcessIds};
use limpet_host::{blocking, file_system};

/// Measures the node.
#[derive(Debug)]
pub struct NodeMeter {
    /// The agent's root directory: kubelet's nodefs.
    pub root: PathBuf,
    /// The images, which know their directory: kubelet's imagefs.
    pub images: Images,
    /// The directory of images, once containerd has reported it.
    pub image_dir: Option<PathBuf>,
    /// The node's memory in use.
    pub cgroups: Cgroups,
    /// All of the node's memory.
    pub memory: u64,
    /// The memory that all pods may use together; `None` if that is not limited.
    pub memory_of_all_pods: Option<u64>,
    /// Whether some threshold is about disks. Without one, the directory of images is not needed.
    pub disks: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Measured {
    pub seen: Observations,
    /// Whether images, and with them the layers of containers, have their own disk.
    pub own_image_disk: bool,
}

impl Measured {
    /// Whether images use the resource of the signal.
    pub fn images_take(&self, signal: Signal) -> bool {
        match signal {
            Signal::ImagefsAvailable | Signal::ImagefsInodesFree => true,
            Signal::NodefsAvailable | Signal::NodefsInodesFree => !self.own_image_disk,
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => false,
        }
    }
}

impl NodeMeter {
    /// Measures. What cannot be measured is left out.
    pub async fn measure(&mut self) -> Measured {
        let mut measured = if self.disks { self.measure_disks().await } else { Measured::default() };
        let (cgroups, capacity, limit) = (self.cgroups.clone(), self.memory, self.memory_of_all_pods);
        let look = move |_: &_| {
            let set_aside = MemoryInfo::read().unwrap_or_default().huge_pages;
            let of_pods = limit.and_then(|limit| Some(memory(limit, cgroups.memory_of_all_pods()?, 0)));
            (cgroups.node_memory_in_use().map(|used| memory(capacity, used, set_aside)), of_pods, pids())
        };
        let looked = blocking::run(PathBuf::from("/proc"), blocking::DEADLINE, look).await;
        let (memory, of_pods, pids) = looked.unwrap_or_default();
        measured.seen.extend(memory.map(|memory| (Signal::MemoryAvailable, memory)));
        measured.seen.extend(of_pods.map(|memory| (Signal::AllocatableMemoryAvailable, memory)));
        measured.seen.extend(pids.map(|pids| (Signal::PidAvailable, pids)));
        measured
    }

    async fn measure_disks(&mut self) -> Measured {
        let mut measured = Measured::default();
        let node = space(&self.root).await;
        if self.image_dir.is_none() {
            self.image_dir = self.images.directory().await.ok();
        }
        let images = match &self.image_dir {
            Some(directory) => space(directory).await,
            None => None,
        };
        add_disk(&mut measured.seen, node, [Signal::NodefsAvailable, Signal::NodefsInodesFree]);
        add_disk(&mut measured.seen, images, [Signal::ImagefsAvailable, Signal::ImagefsInodesFree]);
        measured.own_image_disk = node.zip(images).is_some_and(|(node, images)| node.device != images.device);
        measured
    }
}

/// What is left of the node's memory. `set_aside` is the memory that no process can have because it is huge pages, as
/// in kubelet's `HugepageAwareEviction`.
fn memory(total: u64, used: u64, set_aside: u64) -> Observation {
    let capacity = total.saturating_sub(set_aside);
    Observation { available: capacity.saturating_sub(used), capacity }
}

/// Adds what is left of a disk. A file system that creates inodes on demand has no number of them.
pub fn add_disk(seen: &mut Observations, space: Option<Space>, [bytes, inodes]: [Signal; 2]) {
    let Some(space) = space else { return };
    seen.insert(bytes, Observation { available: space.available, capacity: space.capacity });
    if space.inodes > 0 {
        seen.insert(inodes, Observation { available: space.inodes_free, capacity: space.inodes });
    }
}

/// Process ids, as kubelet counts them.
pub fn pids() -> Option<Observation> {
    let ProcessIds { limit, used } = ProcessIds::read()?;
    Some(Observation { available: limit.saturating_sub(used), capacity: limit })
}

async fn space(path: &Path) -> Option<Space> {
    let space = file_system::space_of(path.to_owned()).await;
    space.inspect_err(|error| tracing::debug!(path = %path.display(), %error, "measuring a file system failed")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_no_memory_that_is_left() {
        for (used, set_aside, available, capacity) in
            [(30, 0, 70, 100), (30, 50, 20, 50), (60, 50, 0, 50), (30, 120, 0, 0)]
        {
            assert_eq!(memory(100, used, set_aside), Observation { available, capacity }, "{used} {set_aside}");
        }
    }
}
