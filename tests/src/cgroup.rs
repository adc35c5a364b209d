//! The cgroups of a pod and of its container `main`, found from the container's process, in both versions of cgroups.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::node::{TestNode, container_id};

/// A cgroup file of the process `pid`: `v1` in the hierarchy of `controller`, or `v2`.
pub fn file(pid: u32, controller: &str, v1: &str, v2: &str) -> Result<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let path_in = |wanted: &str| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers
                .split(',')
                .any(|controller| controller == wanted)
                .then(|| path.trim_start_matches('/').to_owned())
        })
    };
    Ok(match path_in(controller) {
        Some(path) => Path::new("/sys/fs/cgroup").join(controller).join(path).join(v1),
        None => Path::new("/sys/fs/cgroup").join(path_in("").context("no cgroup")?).join(v2),
    })
}

/// The value of a cgroup file of the process `pid`.
pub fn value(pid: u32, controller: &str, v1: &str, v2: &str) -> Result<String> {
    read(&file(pid, controller, v1, v2)?)
}

fn read(path: &Path) -> Result<String> {
    Ok(fs::read_to_string(path).with_context(|| format!("{}", path.display()))?.trim().to_owned())
}

/// The process of the container `main` of a pod.
pub fn main_process(node: &TestNode, pod: &Value) -> Result<u32> {
    let id = container_id(pod, "main")?;
    Ok(node.containerd.tasks()?.iter().find(|task| task.id == id).context("no task")?.pid)
}

/// Memory limit and CPU quota of the pod's own cgroup.
pub fn pod_limits(node: &TestNode, pod: &Value) -> Result<(String, String)> {
    limits(node, pod, 2)
}

/// Memory limit and CPU quota of the cgroup of all pods, found from a best-effort pod.
pub fn limits_of_all_pods(node: &TestNode, best_effort: &Value) -> Result<(String, String)> {
    limits(node, best_effort, 4)
}

/// Memory limit and CPU quota of the cgroup of the container `main`.
pub fn main_limits(node: &TestNode, pod: &Value) -> Result<(String, String)> {
    limits(node, pod, 1)
}

/// The limits of the cgroup that is so many levels above a file of the container's.
fn limits(node: &TestNode, pod: &Value, above: usize) -> Result<(String, String)> {
    let pid = main_process(node, pod)?;
    let read = |controller, v1, v2| {
        let file = file(pid, controller, v1, v2)?;
        let group = file.ancestors().nth(above).context("no such cgroup")?;
        read(&group.join(file.file_name().unwrap_or_default()))
    };
    let memory = read("memory", "memory.limit_in_bytes", "memory.max")?;
    let quota = read("cpu", "cpu.cfs_quota_us", "cpu.max")?;
    Ok((memory, quota.split(' ').next().unwrap_or_default().to_owned()))
}
