//! The mounts of a container: kernel file systems and `/dev`, then volumes.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use oci_spec::runtime::Mount;

use super::SpecInput;
use limpet_host::volume::{self, Propagation};
use limpet_model::device_allocation::PluginMount;

/// `spec.mounts`. A volume at a default mount's path replaces it; one at `/dev` replaces everything below it.
pub(super) fn mounts(input: &SpecInput<'_>, privileged: bool) -> Vec<Mount> {
    let shm = volume::Mount {
        host_path: input.sandbox.shm.clone(),
        container_path: "/dev/shm".into(),
        read_only: false,
        propagation: Propagation::Private,
    };
    let given: Vec<volume::Mount> = input.given.iter().flat_map(|device| &device.mounts).map(given).collect();
    let all = || given.iter().chain(input.mounts);
    let taken: BTreeSet<PathBuf> = all().map(|mount| clean(&mount.container_path)).collect();
    let dev = Path::new("/dev");
    let below_taken_dev = |path: &Path| taken.contains(dev) && path != dev && path.starts_with(dev);
    let free = |path: &Path| !taken.contains(path) && !below_taken_dev(path);
    let mut binds: Vec<&volume::Mount> = all().collect();
    // The pod's shm is mounted even on a volume at `/dev`; only a volume at `/dev/shm` itself replaces it.
    if !taken.contains(Path::new("/dev/shm")) {
        binds.push(&shm);
    }
    // Parents first, so that none hides a mount below it.
    binds.sort_by_key(|mount| clean(&mount.container_path).components().count());
    default_mounts(privileged)
        .into_iter()
        .filter(|mount| free(mount.destination()))
        .chain(binds.into_iter().map(bind))
        .collect()
}

/// A mount of a device plugin.
fn given(mount: &PluginMount) -> volume::Mount {
    volume::Mount {
        host_path: mount.host_path.clone(),
        container_path: mount.container_path.clone(),
        read_only: mount.read_only,
        propagation: Propagation::Private,
    }
}

/// `linux.rootfsPropagation`, if a mount has to propagate; `None` means private.
pub(super) fn rootfs_propagation(mounts: &[volume::Mount]) -> Option<String> {
    let strongest = mounts.iter().map(|mount| mount.propagation).max_by_key(|propagation| *propagation as u8)?;
    match strongest {
        Propagation::Private => None,
        Propagation::HostToContainer => Some("rslave".to_owned()),
        Propagation::Bidirectional => Some("rshared".to_owned()),
    }
}

/// containerd's default mounts, without `/run` and `/dev/shm`. Privileged containers may write `/sys` and cgroups.
fn default_mounts(privileged: bool) -> Vec<Mount> {
    let access = if privileged { "rw" } else { "ro" };
    [
        ("/proc", "proc", "proc", vec!["nosuid", "noexec", "nodev"]),
        ("/dev", "tmpfs", "tmpfs", vec!["nosuid", "strictatime", "mode=755", "size=65536k"]),
        (
            "/dev/pts",
            "devpts",
            "devpts",
            vec!["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        ("/dev/mqueue", "mqueue", "mqueue", vec!["nosuid", "noexec", "nodev"]),
        ("/sys", "sysfs", "sysfs", vec!["nosuid", "noexec", "nodev", access]),
        ("/sys/fs/cgroup", "cgroup", "cgroup", vec!["nosuid", "noexec", "nodev", "relatime", access]),
    ]
    .into_iter()
    .map(|(destination, kind, source, options)| mount(Path::new(destination), kind, Path::new(source), &options))
    .collect()
}

fn bind(volume: &volume::Mount) -> Mount {
    let propagation = match volume.propagation {
        Propagation::Private => "rprivate",
        Propagation::HostToContainer => "rslave",
        Propagation::Bidirectional => "rshared",
    };
    let access = if volume.read_only { "ro" } else { "rw" };
    mount(&volume.container_path, "bind", &volume.host_path, &["rbind", propagation, access])
}

fn mount(destination: &Path, kind: &str, source: &Path, options: &[&str]) -> Mount {
    let mut mount = Mount::default();
    mount
        .set_destination(destination.to_owned())
        .set_typ(Some(kind.to_owned()))
        .set_source(Some(source.to_owned()))
        .set_options(Some(options.iter().map(|option| (*option).to_owned()).collect()));
    mount
}

/// A path in the container without `.`, `..` and double slashes.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => _ = clean.pop(),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

#[cfg(test)]
mod tests;
