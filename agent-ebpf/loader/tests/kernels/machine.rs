//! The emulated machine: what its first process has to mount, and how it ends.

use std::fs;
use std::path::Path;

use rustix::mount::{MountFlags, mount};

use crate::said;

/// The v2 hierarchy.
pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";
/// The BPF file system.
pub(crate) const BPF: &str = "/sys/fs/bpf";

/// Mounts what the kernel shows of itself.
pub(crate) fn set_up() -> Result<(), String> {
    let mounts = [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/tmp"),
        ("securityfs", "/sys/kernel/security"),
        ("tracefs", "/sys/kernel/tracing"),
        ("cgroup2", CGROUPS),
        ("bpf", BPF),
    ];
    for (kind, place) in mounts {
        // The kernel makes those below /sys; a mount over a missing one says which.
        if !place.starts_with("/sys/") {
            fs::create_dir_all(place).map_err(|error| format!("{place}: {error}"))?;
        }
        mount(kind, place, kind, MountFlags::empty(), None).map_err(|error| format!("{kind} at {place}: {error}"))?;
    }
    println!("kernel {}", fs::read_to_string("/proc/sys/kernel/osrelease").map_err(said)?.trim());
    println!("lsm {}", fs::read_to_string("/sys/kernel/security/lsm").map_err(said)?.trim());
    fs::write(Path::new(CGROUPS).join("cgroup.subtree_control"), "+memory").map_err(said)
}

/// Makes a cgroup, and says its id.
pub(crate) fn cgroup(path: &str) -> Result<u64, String> {
    use std::os::unix::fs::MetadataExt as _;
    let path = Path::new(CGROUPS).join(path);
    fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    path.metadata().map(|metadata| metadata.ino()).map_err(said)
}

/// Ends the emulator.
pub(crate) fn power_off() {
    rustix::system::reboot(rustix::system::RebootCommand::PowerOff).ok();
}
