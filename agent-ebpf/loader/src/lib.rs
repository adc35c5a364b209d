//! limpet's BPF programs at run time: loads and attaches them, and reads their events.
//!
//! In: which programs are wanted. Out: [`ProgramState`]s, which report for each whether it works here and why not, and
//! [`Event`]s. The object is built by `cargo xtask build-ebpf`, committed and embedded. Each program is loaded and attached
//! on its own, so one that this kernel refuses does not affect the others. An event is a hint, never the truth: the
//! receiver checks.
//!
//! Without the feature `ebpf` [`Kernel::load`] returns [`LoadError::NotBuilt`], and the API is the same.

mod event;
mod guard;
mod program;

#[cfg(feature = "ebpf")]
mod events;
#[cfg(feature = "ebpf")]
mod load;
#[cfg(feature = "ebpf")]
mod offsets;
#[cfg(feature = "ebpf")]
mod pins;
#[cfg(feature = "ebpf")]
mod table;

#[cfg(not(feature = "ebpf"))]
mod absent;

pub use event::{Actor, Event, FileChange, Operation};
pub use guard::{GuardError, GuardMode, GuardRules, GuardSettings, GuardState, Guarded, ancestors};
pub use program::{ProgramState, Purpose};

#[cfg(not(feature = "ebpf"))]
pub use absent::{Events, Kernel, Loaded, arm, disarm, prove, state};
#[cfg(feature = "ebpf")]
pub use events::Events;
#[cfg(feature = "ebpf")]
pub use load::{Kernel, Loaded};
#[cfg(feature = "ebpf")]
pub use pins::{arm, disarm, prove, state};

use std::io;
use std::path::Path;

/// The identity of an inode, as `stat` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

impl InodeId {
    /// The identity of what `path` resolves to.
    ///
    /// # Errors
    /// The path does not exist, or may not be searched.
    pub fn read(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = path.metadata()?;
        Ok(Self { device: metadata.dev(), inode: metadata.ino() })
    }

    /// Converts the kernel's internal device number.
    fn from_kernel(device: u32, inode: u64) -> Self {
        Self { device: rustix::fs::makedev(device >> 20, device & 0xf_ffff), inode }
    }

    /// The key in the programs' maps: inode, then the kernel's internal device number.
    #[cfg_attr(not(feature = "ebpf"), allow(dead_code))]
    fn key(self) -> [u64; 2] {
        let device = u64::from(rustix::fs::major(self.device)) << 20 | u64::from(rustix::fs::minor(self.device));
        [self.inode, device]
    }
}

/// Which programs to load.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// OOM victims and signals.
    pub lifecycle: bool,
    /// Who changes files of watched directories.
    pub watch: bool,
    /// Refuse changes of guarded files.
    pub guard: Option<GuardRules>,
}

/// Why nothing could be loaded at all.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Built without the feature `ebpf`.
    #[error("this limpet was built without eBPF (feature `ebpf`)")]
    NotBuilt,
    /// The kernel refuses the maps, or the object is invalid.
    #[error(
        "create BPF maps: {0} (needs CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN; before Linux 5.11 also enough RLIMIT_MEMLOCK)"
    )]
    Maps(String),
    /// The kernel's BTF is not available.
    #[error("read /sys/kernel/btf/vmlinux: {0} (the kernel needs CONFIG_DEBUG_INFO_BTF)")]
    Btf(String),
    /// A map refused a value.
    #[error("BPF map {map}: {reason}")]
    Map {
        /// Its name.
        map: &'static str,
        /// The kernel's error.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::InodeId;

    #[test]
    fn an_inode_id_converts_to_the_map_key_and_back() {
        for (major, minor) in [(8, 1), (259, 5), (0, 0x1_2345)] {
            let id = InodeId { device: rustix::fs::makedev(major, minor), inode: 77 };
            let [inode, device] = id.key();
            assert_eq!(device, u64::from(major) << 20 | u64::from(minor));
            assert_eq!(InodeId::from_kernel(device as u32, inode), id);
        }
    }
}
