//! Kills orphaned processes of an agent or a containerd that was killed, identified by environment or arguments.
//! Reads all of `/proc`, so it is only for recovery after a crash.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::blocking::{self, DEADLINE, Progress};
use limpet_model::process::container_in_cgroups;

/// Kills every process with the environment variable `name` set to `value`.
pub async fn end(name: &'static str, value: &str) {
    let value = value.to_owned();
    let wanted = format!("{name}={value}");
    sweep(move |progress| kill_all_with(&wanted, progress)).await;
}

/// Runs `work` on the processes of the host. Reading a process may wait for the file system that the process waits
/// for.
async fn sweep(work: impl FnOnce(&Progress) + Send + 'static) {
    if let Err(error) = blocking::run("/proc".into(), DEADLINE, work).await {
        tracing::warn!(%error, "killing orphaned processes failed");
    }
}

/// The same for blocking callers; never kills the calling process.
pub fn end_others(name: &str, value: &str) {
    kill_all_with(&format!("{name}={value}"), &Progress::new(Path::new("/proc")));
}

/// Kills every process with the variable and value `wanted` in its environment.
fn kill_all_with(wanted: &str, progress: &Progress) {
    kill_all(wanted, progress, |process| values(process, "environ").any(|pair| pair == wanted.as_bytes()));
}

/// Kills the shims that the containerd behind `socket` started for a container whose id ends with `digits`. A
/// containerd that is killed while it starts a shim forgets it, and the shim waits forever for its first task.
pub async fn end_shims(digits: String, socket: &Path) {
    let socket = socket.to_owned();
    sweep(move |progress| kill_all(&digits, progress, |process| is_shim(process, &digits, &socket))).await;
}

/// The same, unless a process runs in a container with such an id other than `starting`.
pub async fn end_idle_shims(digits: String, starting: String, socket: &Path) {
    let socket = socket.to_owned();
    sweep(move |progress| {
        if !another_container_runs(&digits, &starting) {
            kill_all(&digits, progress, |process| is_shim(process, &digits, &socket));
        }
    })
    .await;
}

/// Whether any process is in the cgroup of a container whose id ends with `digits`, other than `starting`.
fn another_container_runs(digits: &str, starting: &str) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut cgroups = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("cgroup")).ok());
    cgroups.any(|cgroups| is_of_another_container(&cgroups, digits, starting))
}

fn is_of_another_container(cgroups: &str, digits: &str, starting: &str) -> bool {
    container_in_cgroups(cgroups).is_some_and(|id| id.pod_part() == digits && id.as_str() != starting)
}

/// Also checks the socket, because another containerd on this machine may have a pod with the same UID.
fn is_shim(process: &Path, digits: &str, socket: &Path) -> bool {
    let arguments: Vec<_> = values(process, "cmdline").collect();
    let value = |flag: &[u8]| arguments.windows(2).find(|pair| pair[0] == flag).map(|pair| &*pair[1]);
    let named = arguments.first().is_some_and(|program| {
        let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        name.starts_with(b"containerd-shim")
    });
    named
        && value(b"-id").is_some_and(|id| id.ends_with(digits.as_bytes()))
        && value(b"-address").is_none_or(|address| is_same_file(Path::new(OsStr::from_bytes(address)), socket))
}

fn is_same_file(left: &Path, other: &Path) -> bool {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    left == other || file(left).is_some_and(|id| file(other) == Some(id))
}

/// The NUL-separated values of one of a process's files in `/proc`; none when it has exited.
fn values(process: &Path, file: &str) -> impl Iterator<Item = Vec<u8>> {
    let text = std::fs::read(process.join(file)).unwrap_or_default();
    text.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter()
}

/// Kills every other process for whose directory in `/proc` `is_wanted` returns true.
fn kill_all(wanted: &str, progress: &Progress, is_wanted: impl Fn(&Path) -> bool) {
    let self_pid = rustix::process::getpid();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|pid| *pid != self_pid) else { continue };
        // The pidfd is opened before the check, so that the PID cannot be reused in between.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        progress.at(&entry.path());
        if is_wanted(&entry.path()) {
            tracing::info!(pid = pid.as_raw_nonzero(), wanted, "killing an orphaned process");
            // It may have exited by itself.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn only_processes_with_the_value_are_killed() {
        let value = format!("orphan-{}", std::process::id());
        let sleeper = |value: &str| Command::new("sleep").arg("1000").env("LIMPET_ORPHAN", value).spawn().unwrap();
        let (mut wanted, mut other) = (sleeper(&value), sleeper(&format!("{value}0")));
        end("LIMPET_ORPHAN", &value).await;
        assert!(!wanted.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn another_container_is_known_by_its_cgroup() {
        let (digits, starting) = ("b".repeat(32), format!("{}{}", "a".repeat(32), "b".repeat(32)));
        let neighbour = format!("{}{digits}", "c".repeat(32));
        for (cgroups, runs) in [
            (format!("0::/kubepods/pod1/{neighbour}\n"), true),
            (format!("5:cpu:/\n1:name=systemd:/kubepods.slice/limpet-{neighbour}.scope/below\n"), true),
            (format!("0::/kubepods/pod1/{starting}\n"), false),
            (format!("0::/kubepods/pod2/{}{}\n", "c".repeat(32), "d".repeat(32)), false),
            ("0::/system.slice/containerd.service\n".to_owned(), false),
        ] {
            assert_eq!(is_of_another_container(&cgroups, &digits, &starting), runs, "{cgroups}");
        }
    }

    #[tokio::test]
    async fn a_shim_is_known_by_its_name_the_end_of_its_id_and_its_containerd() {
        const SHIM: &str = "/usr/bin/containerd-shim-runc-v2";
        let digits = format!("{:032x}", std::process::id());
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let (socket, link, other) = (path("own"), path("link"), path("other"));
        std::fs::write(&socket, "").unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        std::fs::write(&other, "").unwrap();
        let named = |name: &str, id: &str, more: &[&str]| {
            use std::os::unix::process::CommandExt as _;
            let script = "read -r line"; // Exits with its input.
            let mut command = Command::new("sh");
            command.arg0(name).args(["-c", script, "-id", &format!("aa{id}")]).args(more);
            command.stdin(std::process::Stdio::piped()).spawn().unwrap()
        };
        let shims = [named(SHIM, &digits, &[]), named(SHIM, &digits, &["-address", &socket])];
        let mut others = [
            named(SHIM, &format!("{digits}0"), &[]),
            named("sh", &digits, &[]),
            named(SHIM, &digits, &["-address", &other]),
            named(SHIM, &digits, &["-address", &path("gone")]),
        ];
        end_shims(digits, Path::new(&link)).await;
        for mut shim in shims {
            assert!(!shim.wait().unwrap().success());
        }
        for other in &mut others {
            assert!(other.try_wait().unwrap().is_none());
            other.kill().unwrap();
            other.wait().unwrap();
        }
    }
}
