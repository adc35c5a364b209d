//! Creates, configures and removes cgroup directories. Blocks.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::CgroupError;
use super::hierarchy::Hierarchies;
use super::limits::Setting;

/// The most groups below a pod's: those of containers, and groups that these create.
const MAX_GROUPS: usize = 10_000;

/// Creates a group in every active hierarchy, parents first; an existing one is not changed.
pub(super) fn create(hierarchies: &Hierarchies, group: &Path) -> Result<(), CgroupError> {
    for hierarchy in hierarchies.active() {
        let mut path = hierarchy.mount_point.clone();
        for level in group {
            if hierarchy.unified {
                enable_controllers(&path);
            }
            path.push(level);
            make_directory(&path)?;
            if hierarchy.controllers.contains("cpuset") {
                inherit_cpuset(&path)?;
            }
            if hierarchy.controllers.contains("memory") {
                use_hierarchy(&path);
            }
        }
        if hierarchy.unified {
            enable_controllers(&path);
        }
    }
    Ok(())
}

fn make_directory(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::file("make cgroup", path, error))
        }
        _ => Ok(()),
    }
}

/// v2: enables a group's controllers for its children. A failure is noticed when a limit needs the controller.
fn enable_controllers(path: &Path) {
    let words = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
    let (offered, passed) = (words("cgroup.controllers"), words("cgroup.subtree_control"));
    for controller in offered.split_whitespace() {
        if !passed.split_whitespace().any(|other| other == controller) {
            // One at a time, so that one failing controller does not block the others.
            if let Err(error) = write(&path.join("cgroup.subtree_control"), &format!("+{controller}")) {
                tracing::debug!(%controller, %error, "controller is not enabled for child cgroups");
            }
        }
    }
}

/// v1: a new group accepts no task before it has CPUs and memory nodes; it gets its parent's.
fn inherit_cpuset(path: &Path) -> Result<(), CgroupError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let child_file = path.join(file);
        let is_set =
            fs::read_to_string(&child_file).map_err(|source| CgroupError::file("read", &child_file, source))?;
        if !is_set.trim().is_empty() {
            continue;
        }
        let parents = path.parent().unwrap_or(path).join(file);
        let value = fs::read_to_string(&parents).map_err(|source| CgroupError::file("read", &parents, source))?;
        write(&child_file, value.trim())?;
    }
    Ok(())
}

/// v1 before Linux 5.11: memory of children is counted only if `memory.use_hierarchy` was set before they were
/// created.
fn use_hierarchy(path: &Path) {
    let file = path.join("memory.use_hierarchy");
    if fs::read_to_string(&file).is_ok_and(|value| value.trim() == "0") && write(&file, "1").is_err() {
        tracing::debug!(path = %path.display(), "memory of child cgroups is not counted");
    }
}

/// Writes a group's settings.
pub(super) fn set(hierarchies: &Hierarchies, group: &Path, settings: &[Setting]) -> Result<(), CgroupError> {
    for setting in settings {
        let path = hierarchies.path(setting.controller, group).map(|path| path.join(&*setting.file));
        match path.filter(|path| path.exists()) {
            Some(path) => write(&path, &setting.value)?,
            None if setting.optional => {}
            None => {
                return Err(CgroupError::NoController {
                    group: group.to_owned(),
                    controller: setting.controller,
                    file: setting.file.clone(),
                    value: setting.value.clone(),
                });
            }
        }
    }
    Ok(())
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::write(path, value).map_err(|source| CgroupError::file("write", path, source))
}

/// Moves a process into a group. In a hierarchy without the group, the process stays where it is.
pub(super) fn place(path: &Path, pid: u32) -> Result<(), CgroupError> {
    if path.exists() { write(&path.join("cgroup.procs"), &pid.to_string()) } else { Ok(()) }
}

/// Removes a group and everything below it, deepest first. A missing group counts as success.
pub(super) fn remove(path: &Path) -> Result<(), CgroupError> {
    let groups = with_all_below(path)?;
    let mut outcome = Ok(());
    for group in groups.iter().rev() {
        let removed = match fs::remove_dir(group) {
            Ok(()) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => Ok(()),
                Some(Errno::BUSY | Errno::NOTEMPTY) => Err(CgroupError::Busy(group.clone())),
                _ => Err(CgroupError::file("remove", group, error)),
            },
        };
        // The first failure is the deepest, and explains why the groups above cannot be removed.
        outcome = outcome.and(removed);
    }
    outcome
}

/// Kills every process in a group and below it.
pub(super) fn kill(path: &Path) -> Result<(), CgroupError> {
    for pid in processes(path)?.into_iter().filter_map(Pid::from_raw) {
        // A process that has just exited needs no signal.
        let _ = kill_process(pid, Signal::KILL);
    }
    Ok(())
}

/// The processes in a group and below it; none when it does not exist.
pub(super) fn processes(path: &Path) -> Result<Vec<i32>, CgroupError> {
    let mut pids = Vec::new();
    for group in with_all_below(path)? {
        let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    Ok(pids)
}

/// Fails when a process is in a group or below it.
pub(super) fn refuse_busy(path: &Path) -> Result<(), CgroupError> {
    let populated = |group: &PathBuf| {
        fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|processes| !processes.trim().is_empty())
    };
    match with_all_below(path)?.into_iter().find(populated) {
        Some(group) => Err(CgroupError::Busy(group)),
        None => Ok(()),
    }
}

/// A group and all groups below it, parents first.
fn with_all_below(path: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut groups = vec![path.to_owned()];
    let mut next = 0;
    while let Some(group) = groups.get(next).cloned() {
        groups.extend(subdirectories(&group)?.into_iter().map(|name| group.join(name)));
        next += 1;
        if groups.len() > MAX_GROUPS {
            return Err(CgroupError::file("list", path, io::Error::other("too many child cgroups")));
        }
    }
    Ok(groups)
}

/// The groups directly below one; none if it does not exist.
pub(super) fn subdirectories(path: &Path) -> Result<Vec<String>, CgroupError> {
    let failed = |source| CgroupError::file("list", path, source);
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
