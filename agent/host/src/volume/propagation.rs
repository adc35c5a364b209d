//! How mounts propagate between the node and a container (`mountPropagation`): only from and to a mount that is shared.
//!
//! The pod's own volumes are made shared for the first container that requires it; kubelet does it with its whole root
//! directory. A private mount of the node stays private: as with containerd's CRI the propagation is refused, since
//! otherwise it would silently not work.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::VolumeMount;
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};

use super::{Propagation, VolumeError};
use crate::mount_table::{self, Mount};

/// Containers of one pod start concurrently: a volume is made shared once.
static SHARING_LOCK: Mutex<()> = Mutex::new(());

/// The propagation of a mount.
pub(super) fn propagation_of(wanted: &VolumeMount) -> Propagation {
    match wanted.mount_propagation.as_deref() {
        Some("HostToContainer") => Propagation::HostToContainer,
        Some("Bidirectional") => Propagation::Bidirectional,
        _ => Propagation::Private,
    }
}

/// Makes a volume of the pod's own, at `path`, a shared mount if `propagation` needs one. What is removed with the pod
/// takes the mount along.
pub(super) fn prepare(propagation: Propagation, path: &Path) -> Result<(), VolumeError> {
    if propagation == Propagation::Private {
        return Ok(());
    }
    // It guards no data.
    let _guard = SHARING_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let (real, source) = source(path)?;
    let Some(source) = source.filter(|source| missing_propagation(propagation, source).is_some()) else {
        return Ok(());
    };
    if source.point != real {
        mount_bind(&real, &real).map_err(|errno| VolumeError::io("bind onto itself", &real)(errno.into()))?;
    }
    mount_change(&real, MountPropagationFlags::SHARED)
        .map_err(|errno| VolumeError::io("make shared", &real)(errno.into()))
}

/// Whether a mount of the node's `path` can propagate as required.
pub(super) fn check(volume: &str, propagation: Propagation, path: &Path) -> Result<(), VolumeError> {
    if propagation == Propagation::Private {
        return Ok(());
    }
    let (_, source) = source(path)?;
    let Some(source) = source else { return Ok(()) };
    let Some(lacking) = missing_propagation(propagation, &source) else { return Ok(()) };
    let point = source.point.display();
    let reason = format!(
        "mountPropagation {lacking} needs a shared mount, and {point} is none; mount --make-rshared {point} changes that"
    );
    Err(VolumeError::Unsupported { volume: volume.to_owned(), reason })
}

/// The path without symlinks, and the mount that it is on.
fn source(path: &Path) -> Result<(PathBuf, Option<Mount>), VolumeError> {
    let real = path.canonicalize().map_err(VolumeError::io("stat", path))?;
    let mounts = mount_table::mounts().map_err(VolumeError::io("read", "/proc/self/mountinfo"))?;
    let source = mount_table::holding(&mounts, &real).cloned();
    Ok((real, source))
}

/// The propagation that a mount cannot have.
fn missing_propagation(propagation: Propagation, source: &Mount) -> Option<&'static str> {
    let is = |kind: &str| source.propagation.iter().any(|tag| tag.starts_with(kind));
    match propagation {
        Propagation::Bidirectional if !is("shared:") => Some("Bidirectional"),
        Propagation::HostToContainer if !is("shared:") && !is("master:") => Some("HostToContainer"),
        Propagation::Private | Propagation::HostToContainer | Propagation::Bidirectional => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_tests::need;
    use rustix::mount::{UnmountFlags, unmount};

    use super::*;

    #[test]
    fn a_volume_of_the_pod_is_shared_once_and_what_is_private_of_the_node_is_refused() {
        if need::root("mounts").is_none() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let [private, node] = ["own", "node"].map(|name| directory.path().join(name));
        for path in [&private, &node] {
            std::fs::create_dir(path).unwrap();
            mount_bind(path, path).unwrap();
            mount_change(path, MountPropagationFlags::PRIVATE).unwrap();
        }
        let volume = private.join("volume");
        std::fs::create_dir(&volume).unwrap();
        let refused = check("v", Propagation::HostToContainer, &node);
        let prepared = [(); 2].map(|()| prepare(Propagation::Bidirectional, &volume));
        let checked = check("v", Propagation::Bidirectional, &volume);
        let points = mount_table::mount_points().unwrap();
        let count = points.iter().filter(|point| **point == volume.canonicalize().unwrap()).count();
        for path in [&volume, &private, &node] {
            unmount(path, UnmountFlags::DETACH).unwrap();
        }
        assert!(prepared.iter().chain([&checked]).all(Result::is_ok), "{prepared:?} {checked:?}");
        assert_eq!(count, 1);
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("HostToContainer needs a shared mount"), "{message}");
    }

    #[test]
    fn only_shared_mounts_propagate() {
        use Propagation::{Bidirectional, HostToContainer, Private};
        let cases = [
            (Private, "", true),
            (HostToContainer, "", false),
            (HostToContainer, "master:1", true),
            (HostToContainer, "shared:1", true),
            (Bidirectional, "", false),
            (Bidirectional, "master:1", false),
            (Bidirectional, "shared:1 master:2", true),
        ];
        for (propagation, fields, wanted) in cases {
            let line =
                format!("22 27 0:21 / /data rw {fields}{}- ext4 disk rw\n", if fields.is_empty() { "" } else { " " });
            let mounts = mount_table::parse(line.as_bytes());
            let missing = missing_propagation(propagation, &mounts[0]);
            assert_eq!(missing.is_none(), wanted, "{propagation:?} {fields}: {missing:?}");
        }
    }
}
