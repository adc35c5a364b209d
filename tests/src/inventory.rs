//! Lists everything that pods need of a node, so that what was left behind shows as a difference between before and
//! after.
//!
//! No list has the owner of a namespace. A namespace lives as long as a process in it, a mount that pins it or a
//! descriptor that holds it, and these are listed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::footprint::{Footprint, pids};
use crate::node::TestNode;
use crate::process::is_alive;

/// What exists at one time, by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    things: BTreeMap<&'static str, BTreeSet<String>>,
    /// The agent's open descriptors by type, and its threads.
    counts: BTreeMap<String, u64>,
}

impl Inventory {
    /// Lists what exists now.
    pub fn take(node: &TestNode) -> Result<Self> {
        let agent = node.agent.pid().filter(|pid| is_alive(*pid)).context("the agent does not run")?;
        let daemons = [Some(agent), node.containerd.pid()];
        let mut things = BTreeMap::new();
        let mut list = |kind, all: Vec<String>| things.insert(kind, BTreeSet::from_iter(all));
        let mounted: Result<Vec<_>> = daemons.into_iter().flatten().map(|pid| mounts(pid, node.dir())).collect();
        list("mount", mounted?.concat());
        list("cgroup", paths(node.cgroups()));
        for (kind, args) in [
            ("task", &["tasks", "ls", "-q"][..]),
            ("container", &["containers", "ls", "-q"]),
            ("lease", &["leases", "ls", "-q"]),
            ("image", &["images", "ls", "-q"]),
            ("blob", &["content", "ls", "-q"]),
            ("ingest", &["content", "active"]),
        ] {
            list(kind, node.containerd.ctr(args)?.lines().map(str::to_owned).collect());
        }
        let snapshots = node.containerd.snapshots()?;
        list("snapshot", snapshots.into_iter().map(|all| format!("{} {}", all.key, all.kind)).collect());
        for (kind, name) in [("shim", "containerd-shim"), ("process of limpet's", "limpet")] {
            list(kind, pids(node.dir(), name).iter().map(u32::to_string).collect());
        }
        list("link", paths(files(&Path::new("/sys/class/net").join(node.bridge()).join("brif"))));
        list("file", node.pod_dirs().iter().flat_map(|dir| paths(files(dir))).collect());
        list("address", node.cni.iter().flat_map(|cni| cni.allocated()).collect());
        list("state of runc's", paths(node.runc_states()));
        let mut counts = descriptors(agent)?;
        counts.insert("thread".to_owned(), Footprint::measure(agent).threads);
        Ok(Self { things, counts })
    }

    /// The differences to a later inventory. Fewer descriptors or threads do not count, because pools shrink.
    pub fn differences(&self, later: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        for (kind, before) in &self.things {
            let after = &later.things[kind];
            differences.extend(after.difference(before).map(|thing| format!("more: {kind} {thing}")));
            differences.extend(before.difference(after).map(|thing| format!("gone: {kind} {thing}")));
        }
        for (what, after) in &later.counts {
            let before = self.counts.get(what).copied().unwrap_or(0);
            if *after > before {
                differences.push(format!("more: {what}: {before} became {after}"));
            }
        }
        differences
    }
}

/// The mounts that the process sees at or below `dir`.
fn mounts(pid: u32, dir: &Path) -> Result<Vec<String>> {
    let path = format!("/proc/{pid}/mountinfo");
    let text = fs::read_to_string(&path).context(path)?;
    let points =
        text.lines().filter_map(|line| line.split(' ').nth(4)).filter(|point| Path::new(point).starts_with(dir));
    Ok(points.map(str::to_owned).collect())
}

/// Everything below `dir`, links not followed.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let mut next = 0;
    while next < paths.len() {
        if paths[next].is_dir() && !paths[next].is_symlink() {
            paths.extend(fs::read_dir(&paths[next]).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        next += 1;
    }
    paths
}

/// The process's descriptors, counted by type: `socket`, `anon_inode:inotify`, a path.
fn descriptors(pid: u32) -> Result<BTreeMap<String, u64>> {
    let path = format!("/proc/{pid}/fd");
    let links = fs::read_dir(&path).context(path)?.flatten().map(|entry| fs::read_link(entry.path()));
    Ok(count_by_type(links.map(|target| target.map(|target| target.display().to_string()).unwrap_or_default())))
}

/// Counts the targets of `/proc/PID/fd` by type. The alarm on the pods' memory is left out: the agent sets it at the
/// next measurement of the node's resources, up to 10 s after the first container has started. It is the second eventfd
/// (the first wakes the runtime), and with cgroup v2 the group's `memory.events.local`.
fn count_by_type(targets: impl Iterator<Item = String>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for target in targets.filter(|target| !target.ends_with("/memory.events.local")) {
        let kind = match target.as_str() {
            "anon_inode:[eventfd]" => "eventfd",
            other => other.split(":[").next().unwrap_or_default(),
        };
        *counts.entry(format!("descriptor of {kind}")).or_insert(0) += 1;
    }
    if let Some(eventfds) = counts.get_mut("descriptor of eventfd") {
        *eventfds = 2.max(*eventfds);
    }
    counts
}

fn paths(paths: Vec<PathBuf>) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(mounts: &[&str], threads: u64) -> Inventory {
        let mounts = mounts.iter().map(|mount| (*mount).to_owned()).collect();
        Inventory { things: [("mount", mounts)].into(), counts: [("thread".to_owned(), threads)].into() }
    }

    #[test]
    fn descriptors_are_counted_but_the_memory_alarm() {
        let counts = |targets: &[&str]| count_by_type(targets.iter().map(|target| (*target).to_owned()));
        let before = ["socket:[7]", "anon_inode:[eventfd]", "anon_inode:inotify", "anon_inode:[timerfd]"];
        let alarms = ["anon_inode:[eventfd]", "/sys/fs/cgroup/kubepods/memory.events.local"];
        assert_eq!(counts(&before), counts(&[&before[..], &alarms].concat()));
        let leaked = counts(&[&before[..], &alarms, &["anon_inode:[eventfd]", "socket:[8]"]].concat());
        assert_eq!((leaked["descriptor of eventfd"], leaked["descriptor of socket"]), (3, 2));
    }

    #[test]
    fn what_came_and_what_went_is_reported() {
        let differences = inventory(&["/a", "/b"], 2).differences(&inventory(&["/b", "/c"], 3));
        assert_eq!(differences, ["more: mount /c", "gone: mount /a", "more: thread: 2 became 3"]);
        assert!(inventory(&["/a"], 2).differences(&inventory(&["/a"], 1)).is_empty());
    }
}
