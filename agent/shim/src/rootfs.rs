//! Mounts and unmounts the container's root file system, as containerd describes it.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_remount, unmount};

use crate::messages::Mount;

/// The longest options that the kernel accepts, minus room for its own.
const MAX_OPTIONS: usize = 4096 - 512;

/// The options of a mount for the system call.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    flags: u32,
    propagation: Option<u32>,
    data: Vec<String>,
}

/// Mounts `mounts` on top of one another at `target`. If one fails, the earlier ones are unmounted.
pub(crate) fn mount_all(mounts: &[Mount], target: &Path) -> io::Result<()> {
    for entry in mounts {
        if let Err(error) = mount_one(entry, target) {
            // If this fails, removing the bundle will report it.
            let _ = unmount_all(target);
            let message =
                format!("mount source: {:?}, target: {target:?}, fstype: {}: {error}", entry.source, entry.kind);
            return Err(io::Error::new(error.kind(), message));
        }
    }
    Ok(())
}

fn mount_one(entry: &Mount, base: &Path) -> io::Result<()> {
    let target = target_of(entry, base);
    let Parsed { flags, propagation, data } = parse(&entry.options)?;
    let flags = MountFlags::from_bits_retain(flags);
    let (directory, data) = match entry.kind == "overlay" && data.join(",").len() >= MAX_OPTIONS {
        true => shortened(data),
        false => (None, data),
    };
    let data = CString::new(data.join(","))?;
    let data = (!data.is_empty()).then_some(&*data);
    // Lower directories become relative to it. The shim has one thread, and uses no relative paths of its own.
    if let Some(directory) = &directory {
        rustix::process::chdir(directory)?;
    }
    let mounted = mount(&*entry.source, &target, &*entry.kind, flags, data);
    if directory.is_some() {
        rustix::process::chdir("/")?;
    }
    mounted?;
    if let Some(propagation) = propagation {
        mount_change(&target, MountPropagationFlags::from_bits_retain(propagation))?;
    }
    if flags.contains(MountFlags::BIND | MountFlags::RDONLY) {
        // A bind mount becomes read-only only by a second call.
        mount_remount(&target, flags, c"")?;
    }
    Ok(())
}

/// The target of a mount, which may be a directory below the root.
fn target_of(entry: &Mount, base: &Path) -> PathBuf {
    let below = Path::new(&entry.target).components().filter(|part| matches!(part, std::path::Component::Normal(_)));
    let mut target = base.to_owned();
    target.extend(below);
    target
}

/// Unmounts everything at `target`. A busy mount disappears with its last user.
pub(crate) fn unmount_all(target: &Path) -> io::Result<()> {
    loop {
        let unmounted = match unmount(target, UnmountFlags::NOFOLLOW) {
            Err(Errno::BUSY) => unmount(target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH),
            other => other,
        };
        match unmounted {
            Ok(()) => {}
            // Nothing is mounted there.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn parse(options: &[String]) -> io::Result<Parsed> {
    let mut parsed = Parsed::default();
    for option in options {
        let flag = |flag: MountFlags| flag.bits();
        let (set, clear) = match option.as_str() {
            "bind" => (flag(MountFlags::BIND), 0),
            "rbind" => (flag(MountFlags::BIND | MountFlags::REC), 0),
            "ro" => (flag(MountFlags::RDONLY), 0),
            "rw" => (0, flag(MountFlags::RDONLY)),
            "nosuid" => (flag(MountFlags::NOSUID), 0),
            "suid" => (0, flag(MountFlags::NOSUID)),
            "nodev" => (flag(MountFlags::NODEV), 0),
            "dev" => (0, flag(MountFlags::NODEV)),
            "noexec" => (flag(MountFlags::NOEXEC), 0),
            "exec" => (0, flag(MountFlags::NOEXEC)),
            "noatime" => (flag(MountFlags::NOATIME), 0),
            "atime" => (0, flag(MountFlags::NOATIME)),
            "nodiratime" => (flag(MountFlags::NODIRATIME), 0),
            "diratime" => (0, flag(MountFlags::NODIRATIME)),
            "relatime" => (flag(MountFlags::RELATIME), 0),
            "norelatime" => (0, flag(MountFlags::RELATIME)),
            "strictatime" => (flag(MountFlags::STRICTATIME), 0),
            "nostrictatime" => (0, flag(MountFlags::STRICTATIME)),
            "sync" => (flag(MountFlags::SYNCHRONOUS), 0),
            "async" => (0, flag(MountFlags::SYNCHRONOUS)),
            "dirsync" => (flag(MountFlags::DIRSYNC), 0),
            "private" | "rprivate" | "shared" | "rshared" | "slave" | "rslave" => {
                parsed.propagation = propagation(option);
                (0, 0)
            }
            "loop" => {
                let message =
                    "loop devices are not supported by this shim; use containerd's runc shim for this snapshotter";
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
            _ => {
                parsed.data.push(option.clone());
                (0, 0)
            }
        };
        parsed.flags = (parsed.flags | set) & !clear;
    }
    Ok(parsed)
}

fn propagation(option: &str) -> Option<u32> {
    let (recursive, name) = option.strip_prefix('r').map_or((false, option), |name| (true, name));
    let flag = match name {
        "private" => MountPropagationFlags::PRIVATE,
        "shared" => MountPropagationFlags::SHARED,
        "slave" => MountPropagationFlags::DOWNSTREAM,
        _ => return None,
    };
    let recursive = if recursive { MountPropagationFlags::REC } else { MountPropagationFlags::empty() };
    Some((flag | recursive).bits())
}

/// Shortens overlay options that exceed a page, by making lower directories relative to their common parent.
fn shortened(mut data: Vec<String>) -> (Option<PathBuf>, Vec<String>) {
    const LOWER: &str = "lowerdir=";
    let Some(lower) = data.iter_mut().find(|option| option.starts_with(LOWER)) else { return (None, data) };
    let directories: Vec<&Path> = lower[LOWER.len()..].split(':').map(Path::new).collect();
    let common = directories.first().and_then(|first| {
        first.ancestors().skip(1).find(|above| directories.iter().all(|directory| directory.starts_with(above)))
    });
    let Some(common) = common.filter(|common| common.parent().is_some()).map(Path::to_owned) else {
        return (None, data);
    };
    let relative =
        directories.iter().map(|directory| directory.strip_prefix(&common).unwrap_or(directory).to_string_lossy());
    *lower = format!("{LOWER}{}", relative.collect::<Vec<_>>().join(":"));
    (Some(common), data)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn strings(options: &[&str]) -> Vec<String> {
        options.iter().map(|option| (*option).to_owned()).collect()
    }

    #[test]
    fn options_become_flags_and_data() {
        let parsed = parse(&strings(&["rbind", "ro", "nosuid", "rprivate", "lowerdir=/a", "userxattr", "rw"])).unwrap();
        let flags = MountFlags::BIND | MountFlags::REC | MountFlags::NOSUID;
        let propagation = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        let data = strings(&["lowerdir=/a", "userxattr"]);
        assert_eq!(parsed, Parsed { flags: flags.bits(), propagation: Some(propagation.bits()), data });
        assert!(parse(&strings(&["loop"])).unwrap_err().to_string().contains("runc shim"));
    }

    #[test]
    fn lower_directories_are_made_relative_to_the_one_above_all() {
        let data = strings(&["workdir=/s/9/work", "lowerdir=/s/snapshots/1/fs:/s/snapshots/22/fs"]);
        let (directory, data) = shortened(data);
        assert_eq!(directory.unwrap(), Path::new("/s/snapshots"));
        assert_eq!(data, strings(&["workdir=/s/9/work", "lowerdir=1/fs:22/fs"]));
        let apart = strings(&["lowerdir=/a/fs:/b/fs"]);
        assert_eq!(shortened(apart.clone()), (None, apart));
    }

    #[test]
    fn a_target_stays_below_the_root() {
        let at = |target: &str| target_of(&Mount { target: target.into(), ..Mount::default() }, Path::new("/b/rootfs"));
        assert_eq!(at(""), Path::new("/b/rootfs"));
        assert_eq!(at("/etc/../x"), Path::new("/b/rootfs/etc/x"));
    }
}
