//! Facts about the machine from the kernel's files: load, memory, pressure, mounts, pods' cgroups, disk space.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::archive::Archive;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::{file_system, mount_table};

/// The most bytes of one of the kernel's files.
const MAX_FILE: u64 = 256 << 10;
/// The most cgroups that are read, and how deep they lie: QoS class, pod, container, and the container's own.
const MAX_GROUPS: usize = 4_096;
const MAX_DEPTH: usize = 5;

/// Files without text from users. The kernel's command line is excluded, because it may contain credentials.
const FILES: [&str; 19] = [
    "/etc/os-release",
    "/proc/version",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/pressure/cpu",
    "/proc/pressure/memory",
    "/proc/pressure/io",
    "/proc/swaps",
    "/proc/cgroups",
    "/proc/self/cgroup",
    "/proc/filesystems",
    "/proc/modules",
    "/proc/diskstats",
    "/proc/net/dev",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/fs/file-nr",
    "/sys/kernel/security/lsm",
];

/// Files of a cgroup, in v2 and v1.
const GROUP_FILES: [&str; 20] = [
    "cgroup.controllers",
    "cgroup.events",
    "cpu.max",
    "cpu.weight",
    "cpu.stat",
    "cpu.pressure",
    "cpu.shares",
    "cpu.cfs_quota_us",
    "memory.min",
    "memory.high",
    "memory.max",
    "memory.current",
    "memory.events",
    "memory.pressure",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.oom_control",
    "io.pressure",
    "pids.max",
    "pids.current",
];

/// The agent's directories.
#[derive(Debug)]
pub(super) struct Places {
    /// `podLogsDir`.
    pub(super) pod_logs: PathBuf,
    cgroup_root: PathBuf,
    /// Directories whose disks may be full.
    directories: Vec<PathBuf>,
}

impl Places {
    /// Reads the directories from `/configz`.
    pub(super) fn from_configuration(configuration: &Value) -> Self {
        let (kubelet, limpet) = (&configuration["kubeletconfig"], &configuration["limpetconfig"]);
        let path = |value: &Value| value.as_str().map(PathBuf::from);
        let pod_logs = path(&kubelet["podLogsDir"]).unwrap_or_default();
        let more = [&limpet["rootDirectory"], &limpet["runDirectory"], &kubelet["staticPodPath"]];
        let directories = ["/", "/var/lib/containerd"].map(PathBuf::from).into_iter().chain([pod_logs.clone()]);
        Self {
            directories: directories.chain(more.into_iter().filter_map(path)).collect(),
            cgroup_root: path(&kubelet["cgroupRoot"]).unwrap_or_else(|| "/".into()),
            pod_logs,
        }
    }
}

pub(super) async fn add<W: Write>(archive: &mut Archive<W>, places: &Places) -> io::Result<()> {
    for path in FILES {
        let name = format!("machine/{}.txt", path.trim_start_matches('/').replace('/', "-"));
        archive.text_or_why(&name, read(path.as_ref()))?;
    }
    archive.text_or_why("machine/mounts.txt", read("/proc/self/mountinfo".as_ref()))?;
    let mut space = String::new();
    for directory in &places.directories {
        let measured = directory.clone();
        let result = blocking::run(directory.clone(), DEADLINE, move |_| file_system::space(&measured)).await.flatten();
        let line = match result {
            Ok(space) => format!(
                "{} of {} bytes available, {} of {} inodes free",
                space.available, space.capacity, space.inodes_free, space.inodes
            ),
            Err(error) => error.to_string(),
        };
        // Writing to memory cannot fail.
        let _ = writeln!(space, "{}: {line}", directory.display());
    }
    archive.text("machine/space.txt", &space)?;
    let root = places.cgroup_root.clone();
    let groups = blocking::run("/sys/fs/cgroup".into(), DEADLINE, move |_| groups(&root)).await.flatten();
    archive.text_or_why("machine/cgroups.txt", groups)
}

/// Reads a kernel file up to the limit.
fn read(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The cgroups of pods in every hierarchy, with their limits and counters.
fn groups(root: &Path) -> io::Result<String> {
    let mut text = String::new();
    let mut left = MAX_GROUPS;
    for mount in mount_table::mounts()?.iter().filter(|mount| mount.file_system.starts_with("cgroup")) {
        let top = mount.point.join(root.strip_prefix("/").unwrap_or(root));
        for group in children(&top).filter(|path| name_starts(path, "kubepods")) {
            add_group(&group, MAX_DEPTH, &mut left, &mut text);
        }
    }
    Ok(text)
}

fn add_group(directory: &Path, depth: usize, left: &mut usize, text: &mut String) {
    if *left == 0 || depth == 0 {
        return;
    }
    *left -= 1;
    // Writing to memory cannot fail.
    let _ = writeln!(text, "{}", directory.display());
    for file in GROUP_FILES {
        if let Ok(value) = read(&directory.join(file)) {
            let _ = writeln!(text, "  {file}: {}", value.trim().replace('\n', ", "));
        }
    }
    children(directory).for_each(|child| add_group(&child, depth - 1, left, text));
}

/// The directories in `directory`; none if it cannot be read.
fn children(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

fn name_starts(path: &Path, start: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
}
