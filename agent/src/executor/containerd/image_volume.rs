//! Image volumes: a read-only view of the image, mounted at the volume's path before the first container that uses it
//! starts, and removed with the pod. The image itself is made available together with the container's own.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Container;

use super::start::map_layers;
use super::{ContainerdExecutor, sandbox_of};
use limpet_containerd::image::ImagePlatform;
use limpet_containerd::snapshot_mount::{SnapshotMount, mount_read_only};
use limpet_core::outcome::Failure;
use limpet_core::state::PodState;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::mount_table::is_mount_point;
use limpet_model::pod::PodUid;
use limpet_model::pod::images::image_volumes;

fn failed(volume: &str, error: impl std::fmt::Display) -> Failure {
    let message = format!("MountVolume.SetUp failed for volume {volume:?} : {error}");
    Failure { reason: "CreateContainerError", message, transient: false }
}

impl ContainerdExecutor {
    /// Mounts the images that the container has as volumes, unless that is done.
    pub(super) async fn mount_image_volumes(&self, pod: &PodState, container: &Container) -> Result<(), Failure> {
        let uid = &pod.record.uid;
        for (volume, source) in image_volumes(pod.record.spec(), container) {
            let target = self.volumes.image_volume(uid, volume);
            if self.is_mounted(uid, target.clone()).await.map_err(|error| failed(volume, error))? {
                continue;
            }
            let reference = source.reference.as_deref().unwrap_or_default();
            let image =
                self.images.find(reference, ImagePlatform::Node).await.map_err(|error| failed(volume, error))?;
            let image = image.ok_or_else(|| failed(volume, format!("image {reference:?} is not there any more")))?;
            let view =
                self.containers.view(uid, volume, &image.chain_id).await.map_err(|error| failed(volume, error))?;
            let view: Vec<SnapshotMount> = view.iter().map(SnapshotMount::from).collect();
            let sandbox = sandbox_of(pod).ok_or_else(|| failed(volume, "the pod has no sandbox"))?;
            let mounted = blocking::run(self.volumes.pod_dir(uid), DEADLINE, move |progress| {
                progress.at(&target);
                let view = map_layers(&sandbox.sandbox, view)?;
                // Another container of the pod may have mounted it meanwhile.
                if is_mount_point(&target)? { Ok(()) } else { mount_read_only(&view, &target) }
            });
            mounted.await.and_then(|mounted| mounted).map_err(|error| failed(volume, error))?;
        }
        Ok(())
    }

    async fn is_mounted(&self, uid: &PodUid, target: PathBuf) -> std::io::Result<bool> {
        let look = blocking::run(self.volumes.pod_dir(uid), DEADLINE, move |progress| {
            progress.at(&target);
            is_mount_point(&target)
        });
        look.await?
    }

    /// Removes the views of a pod of which nothing runs any more.
    pub(super) async fn remove_image_volumes(&self, uid: &PodUid) -> Result<(), Failure> {
        let stays = |error: &dyn std::fmt::Display| Failure {
            reason: "FailedKillPod",
            message: format!("image volumes: {error}"),
            transient: false,
        };
        for volume in self.volumes.detach_images(uid).await.map_err(|error| stays(&error))? {
            self.containers.remove_view(uid, &volume).await.map_err(|error| stays(&error))?;
        }
        Ok(())
    }
}
