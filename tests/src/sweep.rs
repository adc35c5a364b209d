//! Removes what killed runs have left on the machine. Everything is named after the process that made it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::UnmountFlags;
use rustix::process::Signal;

use crate::{cni, node, process, tools, wait};

/// Where machines under emulation have their disks and sockets: `limpet-vm-PID` and the like in here.
const PARENT: &str = "/var/tmp";
/// How directories of clusters begin; they end with the process's number.
pub(crate) const CLUSTER: &str = "limpet-cluster-";
/// How directories in the cache begin while something is downloaded, built or queried in them.
const UNFINISHED: [&str; 3] = [".vm-", ".apt-", ".apiserver-"];
/// How the cgroups of limpet-host's tests begin; they end with `-PID`.
const CGROUP: &str = "limpet-test-cgroup-";

/// What machines under emulation are for.
#[derive(Debug, Clone, Copy)]
pub enum Machines {
    /// Installations, boots and power cuts.
    Vm,
    /// Stock kernels.
    Kernels,
    /// Benches.
    Bench,
}

impl Machines {
    /// The directory of this process's machines.
    pub fn dir(self) -> PathBuf {
        Path::new(PARENT).join(format!("{}{}", self.prefix(), std::process::id()))
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Vm => "limpet-vm-",
            Self::Kernels => "limpet-kernels-",
            Self::Bench => "limpet-bench-",
        }
    }
}

/// Removes what processes that no longer exist have left: nodes, machines under emulation, unfinished files in the
/// cache, bridges and cgroups. What belongs to a living process is not touched.
pub fn sweep() {
    node::sweep();
    for machines in [Machines::Vm, Machines::Kernels, Machines::Bench] {
        for dir in left(Path::new(PARENT), |name| name.strip_prefix(machines.prefix())) {
            remove(&dir, &["qemu-system"]);
        }
    }
    for dir in left(Path::new(PARENT), |name| name.strip_prefix(CLUSTER)) {
        remove(&dir, &["etcd", "kube-apiserver", "kube-controller", "kube-scheduler", "metrics-server"]);
    }
    for dir in left(&tools::cache_dir(), |name| UNFINISHED.iter().find_map(|prefix| name.strip_prefix(prefix))) {
        remove(&dir, &["etcd", "kube-apiserver"]);
    }
    for link in left(Path::new("/sys/class/net"), |name| name.strip_prefix(cni::LONE_BRIDGE)) {
        cni::remove_bridge(&link.file_name().unwrap_or_default().to_string_lossy());
    }
    for root in node::cgroup_roots() {
        for group in left(&root, |name| name.strip_prefix(CGROUP)?.rsplit('-').next()) {
            remove_cgroup(&group);
        }
    }
}

/// The entries of `dir` that are named after a process that has ended.
fn left(dir: &Path, owner: impl Fn(&str) -> Option<&str>) -> Vec<PathBuf> {
    let names =
        fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_dead =
        |name: &String| owner(name).and_then(|pid| pid.parse().ok()).is_some_and(|pid| !process::is_alive(pid));
    names.filter(is_dead).map(|name| dir.join(name)).collect()
}

/// Ends the processes of these programs that name `dir`, unmounts what is mounted below it, and removes it.
fn remove(dir: &Path, programs: &[&str]) {
    let holders = || {
        let mut pids = process::mentioning(&format!("{}/", dir.display()));
        pids.retain(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            process::is_alive(*pid) && programs.iter().any(|program| name.starts_with(program))
        });
        pids
    };
    wait::until_clean(Duration::from_secs(10), "processes to end", || {
        let pids = holders();
        pids.iter().for_each(|pid| process::signal_pid(*pid, Signal::KILL));
        pids.is_empty()
    })
    .ok();
    for mount in node::mounts_below(dir).unwrap_or_default().iter().rev() {
        rustix::mount::unmount(mount, UnmountFlags::DETACH).ok();
    }
    fs::remove_dir_all(dir).ok();
}

fn remove_cgroup(dir: &Path) {
    for below in
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir())
    {
        remove_cgroup(&below);
    }
    fs::remove_dir(dir).ok();
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_dead_have_left_goes() {
        let dir = std::env::temp_dir().join(format!("limpet-sweep-{}", std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let (alive, dead) = (format!("x-{}", std::process::id()), format!("x-{}", child.id()));
        for name in [&alive, &dead, "x-", "other"] {
            fs::create_dir_all(dir.join(name).join("below")).unwrap();
        }
        let leftovers = left(&dir, |name| name.strip_prefix("x-"));
        assert_eq!(leftovers, [dir.join(&dead)]);
        remove(&leftovers[0], &["nothing"]);
        assert!(!dir.join(dead).exists() && dir.join(alive).exists());
        fs::remove_dir_all(dir).unwrap();
    }
}
