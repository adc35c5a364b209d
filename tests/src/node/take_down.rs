//! Removes a node without its agent's help: processes, mounts, cgroups, links and files. Each is found by the node's
//! unique name, so that the next run can remove what a killed run left.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::mount::UnmountFlags;
use rustix::process::Signal;

use super::{NodeLocation, PARENT};
use crate::containerd::NAMESPACE;
use crate::{cni, process, wait};

/// How long the kernel may take to end processes and to release what they held.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Ends and removes everything of the node. Returns what could not be removed.
pub(super) fn take_down(place: &NodeLocation) -> Vec<String> {
    let mut left = lose_power(place);
    if let Err(error) = fs::remove_dir_all(&place.dir) {
        left.push(format!("{}: {error}", place.dir.display()));
    }
    left
}

/// Ends everything of the node at once and removes what a machine has in its kernel. Returns what could not be removed.
pub(super) fn lose_power(place: &NodeLocation) -> Vec<String> {
    let mut left = Vec::new();
    left.extend(end_processes(place));
    remove_shared_state(&place.dir);
    left.extend(unmount_below(&place.dir));
    left.extend(remove_network(place));
    left.extend(remove_cgroups(&place.name));
    left
}

/// Removes the nodes of runs that were killed.
pub(crate) fn sweep() {
    let entries = fs::read_dir(PARENT).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        let place = NodeLocation::named(&name);
        if place.owner().is_some_and(|owner| !process::is_alive(owner)) {
            take_down(&place);
        }
    }
}

/// The programs that a node runs outside its cgroups: daemons, shims, loggers and what they call. A user's pager is
/// not one of them.
const PROGRAMS: [&str; 10] =
    ["conmon", "containerd", "coredns", "crun", "ctr", "docker-registry", "limpet", "peer-kubelet", "podman", "runc"];

/// Ends the node's processes: those in its cgroups, and those of its programs that name its directory.
fn end_processes(place: &NodeLocation) -> Option<String> {
    let find = || {
        let in_cgroups = cgroups_below(&place.name).into_iter().flat_map(|dir| {
            let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<u32>>()
        });
        let mentioning = process::mentioning(&format!("{}/", place.dir.display()));
        let programs = mentioning.into_iter().filter(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            PROGRAMS.iter().any(|program| name.starts_with(program))
        });
        let mut pids: Vec<_> = in_cgroups.chain(programs).collect();
        pids.retain(|pid| *pid != std::process::id() && process::is_alive(*pid));
        pids
    };
    let gone = wait::until_clean(RELEASE_TIMEOUT, "processes to end", || {
        let pids = find();
        pids.iter().for_each(|pid| process::signal_pid(*pid, Signal::KILL));
        pids.is_empty()
    });
    if gone.is_ok() { None } else { Some(format!("processes {:?}", find())) }
}

/// Removes what runc and the shims store in directories that all containerds of a machine share: runc's state of each
/// container, under the container's bare id, and the shims' sockets. Otherwise a container of the same id could not
/// be created again.
fn remove_shared_state(dir: &Path) {
    let bundles = dir.join("ctd/state/io.containerd.runtime.v2.task").join(NAMESPACE);
    for bundle in fs::read_dir(bundles).into_iter().flatten().flatten() {
        for file in ["address", "bootstrap.json"] {
            let text = fs::read_to_string(bundle.path().join(file)).unwrap_or_default();
            let socket = text.split_once("unix://").map(|(_, rest)| rest.split(['"', '\n']).next().unwrap_or(rest));
            socket.map(fs::remove_file).and_then(Result::ok);
        }
    }
    runc_states(dir).iter().for_each(|state| drop(fs::remove_dir_all(state)));
}

/// The states runc keeps of containers whose files lie below `dir`.
pub(super) fn runc_states(dir: &Path) -> Vec<PathBuf> {
    let below = format!("{}/", dir.display());
    let states = fs::read_dir(Path::new("/run/containerd/runc").join(NAMESPACE)).into_iter().flatten().flatten();
    let mut states: Vec<_> = states.map(|state| state.path()).collect();
    states.retain(|state| fs::read_to_string(state.join("state.json")).is_ok_and(|text| text.contains(&below)));
    states
}

/// Unmounts everything at or below `dir`, the latest first.
fn unmount_below(dir: &Path) -> Option<String> {
    for mount in mounts_below(dir).unwrap_or_default().iter().rev() {
        rustix::mount::unmount(mount, UnmountFlags::DETACH).ok();
    }
    match mounts_below(dir) {
        Ok(left) if left.is_empty() => None,
        Ok(left) => Some(format!("mounts {left:?}")),
        Err(error) => Some(format!("{error:#}")),
    }
}

/// The mount points at or below `dir`, in the order they were made.
pub(crate) fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    Ok(points.filter(|point| point.starts_with(dir)).collect())
}

/// The node's cgroup in every hierarchy: one on v2, one for each controller on v1.
pub(super) fn cgroup_dirs(name: &str) -> Vec<PathBuf> {
    cgroup_roots().into_iter().map(|root| root.join(name)).collect()
}

/// Where the machine's cgroup hierarchies are mounted.
pub(crate) fn cgroup_roots() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let hierarchies = text.lines().filter_map(|line| {
        let (point, rest) = line.split_once(" - ")?;
        rest.starts_with("cgroup").then(|| point.split(' ').nth(4))?
    });
    hierarchies.map(PathBuf::from).collect()
}

/// The node's cgroups and all below them, parents first.
pub fn cgroups_below(name: &str) -> Vec<PathBuf> {
    let slices = cgroup_dirs(&slice(name));
    let mut dirs: Vec<_> = cgroup_dirs(name).into_iter().chain(slices).filter(|dir| dir.is_dir()).collect();
    let mut next = 0;
    while next < dirs.len() {
        let entries = fs::read_dir(&dirs[next]).into_iter().flatten().flatten();
        dirs.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
        next += 1;
    }
    dirs
}

/// Removes the network, which is found by its name alone, so that it can be removed after its creator has died.
fn remove_network(place: &NodeLocation) -> Option<String> {
    cni::remove_bridge(&place.bridge());
    cni::remove_cached_answers(&place.bridge());
    cni::bridge_exists(&place.bridge()).then(|| place.bridge())
}

/// The node's cgroup with the systemd driver.
fn slice(name: &str) -> String {
    format!("{}.slice", name.replace('-', "_"))
}

fn remove_cgroups(name: &str) -> Option<String> {
    if cgroup_dirs(&slice(name)).iter().any(|dir| dir.is_dir()) {
        process::output("systemctl", &["stop", &slice(name)]).ok();
    }
    let gone = wait::until_clean(RELEASE_TIMEOUT, "cgroups to empty", || {
        cgroups_below(name).iter().rev().for_each(|dir| drop(fs::remove_dir(dir)));
        cgroups_below(name).is_empty()
    });
    if gone.is_ok() { None } else { Some(format!("cgroups {:?}", cgroups_below(name))) }
}
