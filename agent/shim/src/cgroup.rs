//! The cgroups of a container: their paths, their processes, and reports of memory shortage.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::EventfdFlags;
use rustix::fs::{Mode, OFlags};

/// Where the kernel's hierarchies are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// The magic number of cgroup v2.
const CGROUP2_MAGIC: u64 = 0x6367_7270;
/// How deep a container's own cgroups are searched for processes.
const MAX_DEPTH: usize = 16;
/// The longest file of a cgroup, in bytes.
pub(crate) const MAX_FILE: usize = 256 << 10;

/// The cgroups of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cgroup {
    /// cgroup v1: the controller and path of each hierarchy.
    V1(Vec<(String, String)>),
    /// cgroup v2.
    V2(PathBuf),
}

/// Reports that a container ran out of memory.
#[derive(Debug)]
pub(crate) enum OomWatch {
    /// cgroup v1: an eventfd.
    V1(OwnedFd),
    /// cgroup v2: `memory.events`, for which poll reports an exceptional condition after each change.
    V2(OwnedFd),
}

/// Whether the machine has only cgroup v2.
pub(crate) fn is_unified() -> bool {
    rustix::fs::statfs(ROOT).is_ok_and(|stat| u64::try_from(stat.f_type) == Ok(CGROUP2_MAGIC))
}

impl Cgroup {
    /// The cgroups of a process.
    pub(crate) fn of_process(pid: u32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        parse(&text, is_unified()).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the process is in no cgroup"))
    }

    /// The directory for a controller.
    pub(crate) fn directory(&self, controller: &str) -> Option<PathBuf> {
        match self {
            Self::V2(directory) => Some(directory.clone()),
            Self::V1(paths) => {
                let (_, path) = paths.iter().find(|(name, _)| name == controller)?;
                Some(Path::new(ROOT).join(controller).join(path.trim_start_matches('/')))
            }
        }
    }

    /// All processes, including those of cgroups below.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        let directory =
            ["pids", "memory", "devices", "freezer", "cpu"].into_iter().find_map(|name| self.directory(name));
        if let Some(directory) = directory {
            collect(&directory, MAX_DEPTH, &mut pids);
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// How many of its processes the OOM killer has killed.
    pub(crate) fn oom_kills(&self) -> u64 {
        let file = match self {
            Self::V1(_) => "memory.oom_control",
            Self::V2(_) => "memory.events",
        };
        let text = self.directory("memory").and_then(|directory| fs::read_to_string(directory.join(file)).ok());
        text.map_or(0, |text| oom_kills_in(&text))
    }

    /// Watches for memory shortage.
    pub(crate) fn watch_oom(&self) -> io::Result<OomWatch> {
        let directory = self.directory("memory").ok_or(io::ErrorKind::NotFound)?;
        match self {
            Self::V1(_) => {
                let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                let control = fs::File::open(directory.join("memory.oom_control"))?;
                let line = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
                fs::write(directory.join("cgroup.event_control"), line)?;
                Ok(OomWatch::V1(event))
            }
            Self::V2(_) => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = rustix::fs::open(directory.join("memory.events"), flags, Mode::empty())?;
                // Each report covers changes since the last read.
                let _ = rustix::io::pread(&file, &mut [0; 512], 0);
                Ok(OomWatch::V2(file))
            }
        }
    }
}

impl OomWatch {
    /// Acknowledges a report. `None` means that the cgroup is gone.
    pub(crate) fn take(&self) -> Option<()> {
        match self {
            Self::V1(event) => rustix::io::read(event, &mut [0; 8]).ok().map(|_| ()),
            Self::V2(file) => rustix::io::pread(file, &mut [0; 512], 0).ok().map(|_| ()),
        }
    }
}

fn collect(directory: &Path, depth: usize, pids: &mut Vec<u32>) {
    if let Ok(text) = fs::read_to_string(directory.join("cgroup.procs")) {
        pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    }
    if depth == 0 {
        return;
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), depth - 1, pids);
        }
    }
}

/// Reads `/proc/<pid>/cgroup`.
fn parse(text: &str, unified: bool) -> Option<Cgroup> {
    let lines = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        Some((parts.next()?, parts.next()?, parts.next()?))
    });
    if unified {
        let path = lines.into_iter().find_map(|(number, _, path)| (number == "0").then_some(path))?;
        return Some(Cgroup::V2(Path::new(ROOT).join(path.trim_start_matches('/'))));
    }
    let mut paths = Vec::new();
    for (_, controllers, path) in lines {
        for controller in controllers.split(',').filter(|name| !name.is_empty() && !name.starts_with("name=")) {
            paths.push((controller.to_owned(), path.to_owned()));
        }
    }
    (!paths.is_empty()).then_some(Cgroup::V1(paths))
}

fn oom_kills_in(text: &str) -> u64 {
    let mut counts = text.lines().filter_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
    counts.next().unwrap_or(0)
}

/// Moves process `pid` into the cgroup at `path`, in each hierarchy that has it.
pub(crate) fn join(path: &str, pid: u32) -> io::Result<()> {
    let path = path.trim_start_matches('/');
    if is_unified() {
        return fs::write(Path::new(ROOT).join(path).join("cgroup.procs"), pid.to_string());
    }
    for entry in fs::read_dir(ROOT)?.flatten() {
        let file = entry.path().join(path).join("cgroup.procs");
        if file.exists() {
            fs::write(file, pid.to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_are_found_in_both_versions() {
        let hybrid = "5:cpu,cpuacct:/pod/c\n3:memory:/pod/c\n1:name=systemd:/x\n0::/y\n";
        let v1 = parse(hybrid, false).unwrap();
        assert_eq!(v1.directory("cpuacct").unwrap(), Path::new("/sys/fs/cgroup/cpuacct/pod/c"));
        assert_eq!(v1.directory("systemd"), None);
        let v2 = parse("0::/pod/c:d\n", true).unwrap();
        assert_eq!(v2.directory("memory").unwrap(), Path::new("/sys/fs/cgroup/pod/c:d"));
        assert_eq!(parse("", false), None);
    }

    #[test]
    fn kills_are_counted_in_both_versions() {
        assert_eq!(oom_kills_in("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(oom_kills_in("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 7\n"), 1);
        assert_eq!(oom_kills_in(""), 0);
    }
}
