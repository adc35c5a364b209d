//! The machine: kernel, rights, clock, disk, inotify.

use std::path::Path;
use std::{fs, io};

use super::{Finding, Level};
use crate::config::Config;
use limpet_cli::program_output::output_of;
use limpet_host::user_namespace;
use limpet_node::capabilities::{self, Need};

/// pidfds that can be polled, by which container exits are detected.
const KERNEL_NEEDED: (u32, u32) = (5, 3);
/// With less free space than the first, nothing starts; with less than the second, pulls soon fail.
const DISK_NEEDED: u64 = 100 << 20;
const DISK_WANTED: u64 = 1 << 30;
/// Enough for a node with a hundred pods and their programs.
const INSTANCES_WANTED: u64 = 128;
const WATCHES_WANTED: u64 = 8_192;

/// Programs that synchronize the clock.
const TIME_DAEMONS: [&str; 4] = ["chronyd", "ntpd", "openntpd", "ptp4l"];

pub(super) fn examine(config: &Config) -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let uname = rustix::system::uname();
    let number = |path: &str| read(path).trim().parse().unwrap_or(0);
    let seccomp = Path::new("/proc/sys/kernel/seccomp/actions_avail").exists();
    let uid = rustix::process::geteuid().as_raw();
    vec![
        kernel(&uname.release().to_string_lossy(), &uname.machine().to_string_lossy()),
        rights(uid, capabilities::lacking(config.uses())),
        if seccomp {
            Finding::ok("seccomp", "profiles can be used")
        } else {
            Finding::degraded(
                "seccomp",
                "the kernel has no seccomp; pods that request a profile will fail",
                "Use a kernel with CONFIG_SECCOMP_FILTER",
            )
        },
        inotify(number("/proc/sys/fs/inotify/max_user_instances"), number("/proc/sys/fs/inotify/max_user_watches")),
        disk(&config.root_dir),
        user_namespaces(user_namespace::missing_support(&config.runtime.snapshotter)),
    ]
}

fn user_namespaces(lacking: Option<String>) -> Finding {
    match lacking {
        None => Finding::ok("user namespaces", "pods with hostUsers: false can run"),
        Some(why) => Finding::degraded("user namespaces", why, "Pods with hostUsers: false do not run until then"),
    }
}

fn kernel(release: &str, machine: &str) -> Finding {
    let text = format!("Linux {release}, {machine}");
    if version(release) < KERNEL_NEEDED {
        let (major, minor) = KERNEL_NEEDED;
        return Finding::failed("kernel", text, format!("Use {major}.{minor} or newer"));
    }
    Finding::ok("kernel", text)
}

/// The first two numbers of a kernel's release.
pub(super) fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether this command has the agent's capabilities: both run as root.
fn rights(uid: u32, lacking: io::Result<Vec<&Need>>) -> Finding {
    if uid != 0 {
        return Finding::failed("rights", format!("user id {uid}; the agent needs root"), "Run this as root");
    }
    let remedy = "Start limpet outside a container, or give the container these capabilities";
    match lacking {
        Err(error) => Finding::degraded("rights", format!("capabilities are unknown: {error}"), ""),
        Ok(lacking) if lacking.is_empty() => Finding::ok("rights", "root with all capabilities that are needed"),
        Ok(lacking) => {
            let each: Vec<String> = lacking.iter().map(|need| format!("{} ({})", need.name, need.lost)).collect();
            let level = if lacking.iter().any(|need| need.vital) { Level::Failed } else { Level::Degraded };
            Finding::new(level, "rights", format!("root lacks {}", each.join(", ")), remedy)
        }
    }
}

fn inotify(instances: u64, watches: u64) -> Finding {
    let text = format!("{instances} instances, {watches} watches a user");
    let mut settings = Vec::new();
    if instances < INSTANCES_WANTED {
        settings.push(format!("fs.inotify.max_user_instances={INSTANCES_WANTED}"));
    }
    if watches < WATCHES_WANTED {
        settings.push(format!("fs.inotify.max_user_watches={WATCHES_WANTED}"));
    }
    if settings.is_empty() {
        return Finding::ok("inotify", text);
    }
    Finding::degraded(
        "inotify",
        format!("{text}: programs in pods may run out"),
        format!("sysctl -w {}", settings.join(" ")),
    )
}

fn disk(root: &Path) -> Finding {
    // The directory is created at the first start. Until then, its nearest existing parent is checked.
    let there = root.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(there) {
        Ok(space) if space.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) => {
            let text = format!("{} is on a read-only file system", root.display());
            Finding::failed("disk", text, "Mount it writable, or choose another --root-dir")
        }
        Ok(space) => free(root, space.f_bavail.saturating_mul(space.f_frsize), space.f_favail, space.f_files),
        Err(error) => Finding::failed("disk", format!("{}: {error}", there.display()), "Choose another --root-dir"),
    }
}

fn free(root: &Path, bytes: u64, inodes: u64, inodes_at_all: u64) -> Finding {
    let text = format!("{} MiB free for {}", bytes >> 20, root.display());
    let remedy = "Free some, or choose another --root-dir";
    match bytes {
        bytes if bytes < DISK_NEEDED => Finding::failed("disk", text, remedy),
        bytes if bytes < DISK_WANTED => Finding::degraded("disk", format!("{text}: pulls may fail"), remedy),
        // Some file systems report no inodes.
        _ if inodes_at_all > 0 && inodes < 1_000 => {
            Finding::failed("disk", format!("{inodes} inodes free for {}", root.display()), remedy)
        }
        _ => Finding::ok("disk", text),
    }
}

/// Whether the clock is right, which TLS and leases need, but running pods do not.
pub(super) async fn clock() -> Vec<Finding> {
    if Path::new("/run/systemd/timesync/synchronized").exists() {
        return vec![Finding::ok("clock", "synchronised")];
    }
    let says = output_of("timedatectl", &["show", "--property=NTPSynchronized", "--value"]).await;
    vec![judge_clock(jiff::Timestamp::now(), says.as_deref(), time_daemon().as_deref())]
}

/// A running time daemon, if any.
fn time_daemon() -> Option<String> {
    let names =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).find(|name| TIME_DAEMONS.contains(&name.as_str()))
}

fn judge_clock(now: jiff::Timestamp, systemd: Option<&str>, daemon: Option<&str>) -> Finding {
    // 2025-01-01: before the agent was written.
    if now.as_second() < 1_735_689_600 {
        return Finding::degraded("clock", format!("shows {now}; TLS will fail"), "Set it, or start a time service");
    }
    match (systemd.map(str::trim), daemon) {
        (Some("yes"), _) => Finding::ok("clock", "synchronised"),
        (_, Some(daemon)) => Finding::ok("clock", format!("synchronised by {daemon}")),
        (Some("no"), None) => {
            Finding::degraded("clock", "not synchronised; TLS may fail", "Start systemd-timesyncd or chronyd")
        }
        _ => Finding::degraded(
            "clock",
            "nothing on this machine reports that it is synchronised",
            "Start systemd-timesyncd or chronyd, unless the host synchronizes it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpet_node::capabilities::NEEDS;

    #[test]
    fn the_machine_is_judged() {
        let lacking = |name: &str| Ok(NEEDS.iter().filter(|need| need.name == name).collect::<Vec<_>>());
        let root = Path::new("/var/lib/limpet");
        let (boot, today) = (jiff::Timestamp::UNIX_EPOCH, jiff::Timestamp::constant(1_800_000_000, 0));
        for (finding, level, part) in [
            (kernel("6.1.0-18-arm64", "aarch64"), Level::Ok, "Linux 6.1.0-18-arm64, aarch64"),
            (kernel("5.3.0", "x86_64"), Level::Ok, ""),
            (kernel("4.19.0", "x86_64"), Level::Failed, "4.19"),
            (rights(1000, lacking("")), Level::Failed, "user id 1000"),
            (rights(0, lacking("")), Level::Ok, ""),
            (rights(0, lacking("CAP_SYS_ADMIN")), Level::Failed, "CAP_SYS_ADMIN (no new pod starts"),
            (rights(0, lacking("CAP_SYS_RESOURCE")), Level::Degraded, "CAP_SYS_RESOURCE (containers get no"),
            (rights(0, Err(io::ErrorKind::PermissionDenied.into())), Level::Degraded, "unknown"),
            (inotify(128, 8_192), Level::Ok, ""),
            (inotify(16, 8_192), Level::Degraded, "16 instances"),
            (free(root, 1 << 40, 0, 0), Level::Ok, "1048576 MiB free"),
            (free(root, 1 << 29, 0, 0), Level::Degraded, "512 MiB"),
            (free(root, 1 << 20, 0, 0), Level::Failed, "1 MiB"),
            (free(root, 1 << 40, 5, 1_000_000), Level::Failed, "5 inodes"),
            (judge_clock(boot, Some("yes"), None), Level::Degraded, "1970"),
            (judge_clock(today, Some("yes\n"), None), Level::Ok, "synchronised"),
            (judge_clock(today, Some("no\n"), None), Level::Degraded, "not synchronised"),
            (judge_clock(today, Some("no\n"), Some("chronyd")), Level::Ok, "chronyd"),
            (judge_clock(today, None, None), Level::Degraded, "nothing"),
        ] {
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.text.contains(part), "{finding:?}");
        }
    }
}
