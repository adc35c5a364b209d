//! The emulated machine: what init has to mount, and how to power off.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::mount::{MountFlags, mount};

use crate::to_text;

/// The v2 hierarchy.
pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";
/// The BPF file system.
pub(crate) const BPF: &str = "/sys/fs/bpf";

/// Mounts the kernel's pseudo file systems.
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
    for (kind, path) in mounts {
        // The kernel makes those below /sys; a mount over a missing one says which.
        if !path.starts_with("/sys/") {
            fs::create_dir_all(path).map_err(|error| format!("{path}: {error}"))?;
        }
        mount(kind, path, kind, MountFlags::empty(), None).map_err(|error| format!("{kind} at {path}: {error}"))?;
    }
    println!("kernel {}", fs::read_to_string("/proc/sys/kernel/osrelease").map_err(to_text)?.trim());
    println!("lsm {}", fs::read_to_string("/sys/kernel/security/lsm").map_err(to_text)?.trim());
    fs::write(Path::new(CGROUPS).join("cgroup.subtree_control"), "+memory").map_err(to_text)?;
    set_up_disk()
}

/// Where the kernel's modules are that the machine needs.
const MODULES: &str = "/modules";
/// A file system as nodes have it, where the kernel's tmpfs cannot replace one.
const DISK: &str = "/disk";
const RAM_DISK: &str = "/dev/ram0";

/// Makes that file system where the machine has the module of the RAM disk.
fn set_up_disk() -> Result<(), String> {
    let Ok(module) = fs::File::open(Path::new(MODULES).join("brd.ko")) else { return Ok(()) };
    rustix::system::finit_module(&module, c"rd_nr=1 rd_size=131072", 0).map_err(|error| format!("brd: {error}"))?;
    let made = Command::new("/bin/busybox").args(["mke2fs", RAM_DISK]).output().map_err(to_text)?;
    if !made.status.success() {
        return Err(format!("mke2fs: {}", String::from_utf8_lossy(&made.stderr)));
    }
    fs::create_dir(DISK).map_err(to_text)?;
    mount(RAM_DISK, DISK, "ext4", MountFlags::empty(), None).map_err(|error| format!("{RAM_DISK} at {DISK}: {error}"))
}

/// Where tests make their directories.
pub(crate) fn directory() -> &'static str {
    if Path::new(DISK).is_dir() { DISK } else { "/tmp" }
}

/// Creates a cgroup and returns its id.
pub(crate) fn cgroup(path: &str) -> Result<u64, String> {
    use std::os::unix::fs::MetadataExt as _;
    let path = Path::new(CGROUPS).join(path);
    fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    path.metadata().map(|metadata| metadata.ino()).map_err(to_text)
}

/// Powers the emulator off.
pub(crate) fn power_off() {
    rustix::system::reboot(rustix::system::RebootCommand::PowerOff).ok();
}
