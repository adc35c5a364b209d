//! What differs in the start of a container in a pod with a user namespace (`hostUsers: false`): its root file
//! system, and the mapped copies of its mounts.

use std::io;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use containerd_client::types::Mount;

use super::Start;
use super::failed::{StartFailure, config_error};
use limpet_containerd::snapshot_mount::SnapshotMount;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::sandbox::id_mapped::IdMapping;
use limpet_model::sandbox::Sandbox;
use limpet_model::user_namespace::IdRange;

/// The mounts of a fresh snapshot as the pod should see them: the image's layers mapped, and the writable layer owned
/// by its root.
pub(super) async fn rootfs(start: &Start<'_>, mounts: Vec<Mount>) -> Result<Vec<Mount>, StartFailure> {
    let Some(ids) = start.sandbox.sandbox.ids else { return Ok(mounts) };
    let sandbox = Arc::clone(start.sandbox);
    let subject = PathBuf::from(format!("the image's layers {}", start.image.chain_id));
    let mapped = blocking::run(subject, DEADLINE, move |_| {
        let read: Vec<_> = mounts.iter().map(SnapshotMount::from).collect();
        for upper in read.iter().filter_map(SnapshotMount::upper) {
            set_owner(upper, ids)?;
        }
        let mapped = map_layers(&sandbox.sandbox, read)?;
        Ok::<_, io::Error>(mounts.into_iter().zip(mapped).map(|(mount, mapped)| with(mount, mapped)).collect())
    });
    mapped.await.and_then(|mapped| mapped).map_err(|error| config_error(format!("map the root file system: {error}")))
}

/// The snapshot's mounts with the image's layers mapped; unchanged for a pod with the host's users. Blocks.
pub(in crate::executor::containerd) fn map_layers(
    sandbox: &Sandbox,
    mounts: Vec<SnapshotMount>,
) -> io::Result<Vec<SnapshotMount>> {
    let Some(mapping) = IdMapping::open(sandbox).map_err(io::Error::other)? else { return Ok(mounts) };
    let map = |mount: SnapshotMount| {
        let directory = mount.layers_directory()?;
        let copy = mapping.layers(directory).map_err(io::Error::other)?;
        Ok(mount.moved(directory, &copy))
    };
    mounts.into_iter().map(map).collect()
}

fn with(mount: Mount, mapped: SnapshotMount) -> Mount {
    Mount { source: mapped.source, options: mapped.options, ..mount }
}

/// Gives the root of the writable layer the owner that the image's root has, as seen from within. A second attempt
/// finds it done.
fn set_owner(upper: &Path, ids: IdRange) -> io::Result<()> {
    let metadata = std::fs::metadata(upper)?;
    let given = |id: u32| if ids.contains(id) { Some(id) } else { ids.on_node(id) };
    chown(upper, given(metadata.uid()), given(metadata.gid()))
}

/// Removes the copies, because the OCI runtime has bound them, or never will. What stays is removed with the sandbox.
pub(super) async fn remove_copies(start: &Start<'_>) {
    let (sandbox, id) = (Arc::clone(start.sandbox), start.id.clone());
    let removed = tokio::task::spawn_blocking(move || match IdMapping::open(&sandbox.sandbox)? {
        Some(mapping) => mapping.remove(id.as_str()),
        None => Ok(()),
    });
    if let Ok(Err(error)) = removed.await {
        tracing::debug!(pod = %start.pod.record.key, container = start.slot.name, %error, "copies of a container's mounts are removed with its pod");
    }
}
