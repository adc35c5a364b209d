//! Volumes of CSI drivers: mounted before the pod's first container, checked before each further one, and unmounted
//! when the pod has finished.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::ContainerdExecutor;
use limpet_core::outcome::Failure;
use limpet_core::state::{FAILED_UNMOUNT, PodState};
use limpet_host::volume::VolumeError;
use limpet_model::object::claim::{self, CsiCall, tokens};
use limpet_model::object::csi::CsiVolume;
use limpet_model::object::{ObjectRecord, PodObjects};
use limpet_model::pod::{PodRecord, PodUid};
use limpet_plugins::csi::{CsiError, VolumeRequest};
use limpet_telemetry::event::EventType;

/// How long to wait for the driver of an unused volume before it is the turn of others.
const DRIVER_WAIT: Duration = Duration::from_secs(10);

/// A volume of a driver, as the pod has it.
struct Found<'a> {
    /// Its name in the pod.
    volume: &'a str,
    csi: Box<CsiVolume>,
    object: &'a ObjectRecord,
    read_only: bool,
}

/// The pod's volumes of drivers, each once: two volumes of one claim are one mount, read-only if both are. What is
/// missing is reported when the other volumes are prepared.
fn volumes<'a>(record: &'a PodRecord, objects: &'a PodObjects) -> BTreeMap<String, Found<'a>> {
    let mut csi_volumes: BTreeMap<String, Found<'a>> = BTreeMap::new();
    for (volume, csi, object) in claim::csi_volumes(record, objects) {
        let of_claim = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.read_only) == Some(true);
        let read_only = of_claim || csi.read_only;
        let name = csi.name.clone();
        let entry = csi_volumes.entry(name).or_insert(Found { volume: &volume.name, csi, object, read_only });
        entry.read_only &= read_only;
    }
    csi_volumes
}

impl Found<'_> {
    fn wanted(&self) -> VolumeRequest<'_> {
        VolumeRequest {
            name: self.volume,
            volume: &self.csi,
            stage_secret: claim::csi_secret(self.object, CsiCall::Stage),
            publish_secret: claim::csi_secret(self.object, CsiCall::Publish),
            tokens: tokens::for_driver(self.object),
            read_only: self.read_only,
        }
    }

    fn failed(&self, error: &CsiError, objects: &PodObjects) -> VolumeError {
        VolumeError::Claim { volume: self.volume.to_owned(), reason: objects.redact(error.to_string()) }
    }
}

impl ContainerdExecutor {
    /// Has drivers mount the pod's volumes that are not mounted. Different volumes are mounted at the same time.
    pub(super) async fn set_up_csi(&self, record: &PodRecord, objects: &PodObjects) -> Result<(), VolumeError> {
        let csi_volumes = volumes(record, objects);
        let set_up = csi_volumes.values().map(|volume| async move {
            let began = Instant::now();
            let set_up = self.csi.set_up(record, &volume.wanted()).await;
            self.reporter.metrics.volume_mounted(&volume.csi.driver, began.elapsed(), set_up.is_ok());
            set_up.map_err(|error| volume.failed(&error, objects))
        });
        futures_util::future::join_all(set_up).await.into_iter().collect()
    }

    /// Has drivers publish the pod's volumes again that they want republished. What is mounted stays, whatever they
    /// answer.
    pub(super) async fn republish_csi(&self, record: &PodRecord, objects: &PodObjects) -> Result<(), VolumeError> {
        let mut csi_volumes = volumes(record, objects);
        csi_volumes.retain(|_, volume| volume.csi.settings.republish);
        let published = csi_volumes.values().map(|volume| async move {
            let published = self.csi.republish(record, &volume.wanted()).await;
            published.map_err(|error| volume.failed(&error, objects))
        });
        futures_util::future::join_all(published).await.into_iter().collect()
    }

    /// Has drivers unmount the volumes of a pod that no longer runs.
    pub(super) async fn tear_down_csi(&self, pod: &PodState) -> Result<(), Failure> {
        let torn_down = self.unmount_csi(&pod.record.uid).await;
        if let Err(failure) = &torn_down {
            let message = pod.objects.redact(failure.message.clone());
            tracing::warn!(pod = %pod.record.key, message, "unmounting a volume failed; retried later");
            self.reporter.event(pod, None, EventType::Warning, failure.reason, message);
        }
        torn_down
    }

    /// Has drivers unmount the volumes of a pod that has no worker. After a start of the node a driver may take a
    /// while to register; this waits for it without delaying pods.
    pub(super) async fn unmount_orphan(&self, uid: &PodUid) -> Result<(), Failure> {
        let mut changes = self.csi.drivers().subscribe();
        let torn_down = self.unmount_csi(uid).await;
        if torn_down.is_ok() {
            return torn_down;
        }
        let _ = tokio::time::timeout(DRIVER_WAIT, changes.changed()).await;
        let torn_down = self.unmount_csi(uid).await;
        if torn_down.is_err() {
            self.csi.tear_down_later(uid.clone());
        }
        torn_down
    }

    async fn unmount_csi(&self, uid: &PodUid) -> Result<(), Failure> {
        self.csi.tear_down(uid).await.map_err(|error| Failure {
            reason: FAILED_UNMOUNT,
            message: format!("UnmountVolume.TearDown failed: {error}"),
            transient: false,
        })
    }
}
