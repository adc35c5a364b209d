//! How the volumes of each plugin are undone, once their pod has finished or is removed.
//!
//! The pod's manifest may be gone by then. What has to be undone is found in the mount table, in a record, or in the
//! pod's directory.

use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use limpet_model::pod::PodUid;
use limpet_model::pod::volume_kind::VolumePlugin;

use super::{DEADLINE, VolumeError, Volumes, blocking, flex, local, nfs};

/// When and by whom the volumes of a plugin are undone.
enum Undoing<'a> {
    /// Before anything else of a pod that is removed, because calls on its other files may wait for this.
    First(BoxFuture<'a, Result<(), VolumeError>>),
    /// As soon as the pod has finished, because another pod or node may need them.
    AtEnd(BoxFuture<'a, Result<(), VolumeError>>),
    /// By the executor, which has mounted them, as resources of their own (`limpet_core::removal`).
    ByExecutor,
    /// With the pod's directory: a mount is detached, and the files are deleted ([`super::removal`]).
    WithDirectory,
}

impl Volumes {
    /// Detaches the iSCSI disks of a pod that no longer runs, and has drivers unmount its flexVolumes, because
    /// another pod or node may need them. Its other volumes stay.
    ///
    /// # Errors
    ///
    /// One is still in use, or its target or driver fails; a further call retries.
    pub async fn give_back(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let undoings = VolumePlugin::ALL.into_iter().filter_map(|plugin| match self.undoing(plugin, uid) {
            Undoing::AtEnd(work) => Some(work),
            Undoing::First(_) | Undoing::ByExecutor | Undoing::WithDirectory => None,
        });
        join_all(undoings).await.into_iter().collect()
    }

    /// Unmounts a pod's volumes of servers, drivers and targets before it is removed. Exports go first, by force if
    /// their server does not respond.
    ///
    /// # Errors
    ///
    /// As [`Self::give_back`].
    pub async fn unmount(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let undoings = VolumePlugin::ALL.into_iter().filter_map(|plugin| match self.undoing(plugin, uid) {
            Undoing::First(work) => Some(work),
            Undoing::AtEnd(_) | Undoing::ByExecutor | Undoing::WithDirectory => None,
        });
        join_all(undoings).await.into_iter().collect::<Result<(), VolumeError>>()?;
        self.give_back(uid).await
    }

    fn undoing<'a>(&'a self, plugin: VolumePlugin, uid: &'a PodUid) -> Undoing<'a> {
        let pod_dir = self.settings.pod_dir(uid);
        match plugin {
            VolumePlugin::Nfs => Undoing::First(async move { nfs::unmount_all(&pod_dir).await }.boxed()),
            VolumePlugin::Iscsi => Undoing::AtEnd(async move { self.disks.tear_down(&pod_dir, uid).await }.boxed()),
            VolumePlugin::FlexVolume => {
                let drivers = &self.settings.configured.plugin_dir;
                Undoing::AtEnd(async move { flex::unmount_all(&pod_dir, drivers).await }.boxed())
            }
            // Not serialized with the pod's other files, on which a call may hang until exports are unmounted.
            VolumePlugin::Claim => {
                let records = local::records(&pod_dir);
                Undoing::AtEnd(blocking(records, DEADLINE, move |_| local::give_back(&pod_dir)).boxed())
            }
            VolumePlugin::Csi | VolumePlugin::Image => Undoing::ByExecutor,
            VolumePlugin::EmptyDir
            | VolumePlugin::HostPath
            | VolumePlugin::ConfigMap
            | VolumePlugin::Secret
            | VolumePlugin::Projected
            | VolumePlugin::DownwardApi => Undoing::WithDirectory,
        }
    }
}
