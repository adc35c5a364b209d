//! The file systems of manifests, state and logs, and which of them can change without events on this kernel.

use std::path::Path;

use super::Finding;
use crate::config::Config;
use limpet_host::file_system::hides_changes;
use limpet_host::mount_table::{self, Mount};

pub(super) fn examine(config: &Config) -> Finding {
    let mounts = mount_table::mounts().unwrap_or_default();
    let manifests = config.sources.manifest_path.as_deref().map(|path| ("manifests", path));
    let state = [("state", config.root_dir.as_path()), ("logs", config.logs.pods_dir.as_path())];
    let places: Vec<CheckedDirectory> = manifests
        .into_iter()
        .chain(state)
        .map(|(what, path)| {
            let there = nearest(path);
            CheckedDirectory { what, system: name_of(&mounts, &there).to_owned(), hides: hides_changes(&there) }
        })
        .collect();
    judge(&places)
}

struct CheckedDirectory {
    what: &'static str,
    /// The name of its file system.
    system: String,
    /// The kind of file system that hides changes, if it does.
    hides: Option<&'static str>,
}

/// The path, or its nearest existing parent, because the rest is created at the first start.
fn nearest(path: &Path) -> std::path::PathBuf {
    let there = path.ancestors().find_map(|path| path.canonicalize().ok());
    there.unwrap_or_else(|| "/".into())
}

/// The file system of `path`: the last mount on the longest matching mount point.
fn name_of<'a>(mounts: &'a [Mount], path: &Path) -> &'a str {
    let around = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    // `max_by_key` returns the last of equally long ones, which is mounted over the others.
    around.max_by_key(|mount| mount.point.as_os_str().len()).map_or("unknown", |mount| &mount.file_system)
}

fn judge(places: &[CheckedDirectory]) -> Finding {
    let name = "file systems";
    let each: Vec<String> = places.iter().map(|place| format!("{} {}", place.what, place.system)).collect();
    // The manifests have their own finding.
    let hiding: Vec<String> = places
        .iter()
        .filter(|place| place.what != "manifests")
        .filter_map(|place| Some(format!("{} on {}", place.what, place.hides?)))
        .collect();
    if hiding.is_empty() {
        return Finding::ok(name, each.join(", "));
    }
    let text = format!("{}: changes made elsewhere cause no events ({})", each.join(", "), hiding.join(", "));
    Finding::degraded(name, text, "Keep state and logs on a file system of this machine, such as ext4")
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn the_last_mount_on_the_longest_path_wins() {
        let mounts = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      23 22 0:22 / /var/lib\\040x rw - xfs /dev/sdb rw\n\
                      24 22 0:23 / /mnt rw shared:1 - vfat /dev/mmcblk0p1 rw\n\
                      25 24 0:24 / /mnt rw - fuse.sshfs host: rw\n";
        let mounts = mount_table::parse(mounts);
        for (path, system) in
            [("/var/lib/limpet", "ext4"), ("/var/lib x/limpet", "xfs"), ("/mnt", "fuse.sshfs"), ("/mntx", "ext4")]
        {
            assert_eq!(name_of(&mounts, Path::new(path)), system, "{path}");
        }
        assert_eq!(name_of(&[], Path::new("/")), "unknown");
        assert_eq!(nearest(Path::new("/proc/no/such/place")), Path::new("/proc"));
    }

    #[test]
    fn state_and_logs_that_other_machines_may_change_are_reported() {
        let place = |what, hides: Option<&'static str>| CheckedDirectory {
            what,
            system: hides.unwrap_or("ext4").to_owned(),
            hides,
        };
        let local = judge(&[place("manifests", Some("NFS")), place("state", None), place("logs", None)]);
        assert_eq!((local.level, local.text.as_str()), (Level::Ok, "manifests NFS, state ext4, logs ext4"));
        let remote = judge(&[place("state", Some("NFS")), place("logs", None)]);
        assert!(remote.level == Level::Degraded && remote.text.ends_with("(state on NFS)"), "{remote:?}");
    }
}
