//! Statistics that drivers report about a pod's volumes: bytes and inodes, as kubelet requests them.

use std::time::Duration;

use futures_util::future::join_all;

use super::{CsiVolumes, of_pod};
use crate::csi::files::VolumeData;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::disk_usage::{DiskUsage, Walk};
use limpet_host::file_system::Space;
use limpet_model::object::claim;
use limpet_model::pod::PodRecord;
use limpet_node_api::csi::VolumeUsage;
use limpet_node_api::csi::volume_usage::Unit;
use limpet_telemetry::usage::disks::VolumeDisk;

/// The deadline of a driver, for which requests for usage wait.
const STATS_TIMEOUT: Duration = Duration::from_secs(3);

impl CsiVolumes {
    /// The drivers' statistics of the pod's volumes. As in kubelet, block devices and volumes of drivers that report
    /// nothing, or do not answer, have none.
    pub async fn stats(&self, pod: &PodRecord) -> Vec<VolumeDisk> {
        if !claim::may_need_driver(pod) {
            return Vec::new();
        }
        let (layout, uid) = (self.layout.clone(), pod.uid.clone());
        let volumes = blocking::run(self.layout.pods.clone(), DEADLINE, move |_| layout.volumes_of(&uid)).await;
        let volumes = volumes.and_then(|volumes| volumes).unwrap_or_default();
        let asked = volumes.iter().filter(|data| !data.block).map(|data| self.stats_of(pod, data));
        join_all(asked).await.into_iter().flatten().collect()
    }

    async fn stats_of(&self, pod: &PodRecord, data: &VolumeData) -> Vec<VolumeDisk> {
        let driver = self.drivers.get(&data.driver).ok().filter(|driver| driver.capabilities().stats);
        let (Some(driver), Some(name)) = (driver, data.pod_volume()) else { return Vec::new() };
        if !self.on_files(data, "look for", of_pod(&pod.uid, super::Layout::is_published)).await.unwrap_or_default() {
            return Vec::new();
        }
        let target = self.layout.target(data, &pod.uid);
        let usage = match tokio::time::timeout(STATS_TIMEOUT, driver.stats(&data.handle, &target)).await {
            Ok(Ok(usage)) => usage,
            Ok(Err(error)) => {
                tracing::debug!(pod = %pod.key, driver = data.driver, %error, "reading a volume's usage failed");
                return Vec::new();
            }
            Err(_) => return Vec::new(),
        };
        // Two volumes of a pod may use the same claim.
        let volumes = || pod.spec().volumes.iter().flatten();
        let of_claim = volumes().find(|volume| volume.name == name).and_then(|volume| claim::name(pod, volume));
        let same = volumes().filter(|volume| claim::name(pod, volume) == of_claim && of_claim.is_some());
        same.map(|volume| disk(&volume.name, of_claim.as_deref().filter(|_| volume.csi.is_none()), &usage)).collect()
    }
}

/// The statistics of a volume, and the name of its claim.
fn disk(name: &str, claim: Option<&str>, usage: &[VolumeUsage]) -> VolumeDisk {
    let usage_in = |unit: Unit| usage.iter().find(|usage| usage.unit() == unit).cloned().unwrap_or_default();
    let amount = |value: i64| u64::try_from(value).unwrap_or_default();
    let (bytes, inodes) = (usage_in(Unit::Bytes), usage_in(Unit::Inodes));
    let space = Space {
        capacity: amount(bytes.total),
        available: amount(bytes.available),
        free: amount(bytes.available),
        inodes: amount(inodes.total),
        inodes_free: amount(inodes.available),
        device: 0,
    };
    let seen = DiskUsage { bytes: amount(bytes.used), inodes: amount(inodes.used) };
    VolumeDisk {
        name: name.to_owned(),
        claim: claim.map(str::to_owned),
        used: Some(Walk { seen, complete: true }),
        space: Some(space),
        ephemeral: false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_taken_by_their_unit() {
        let reported = |unit: Unit, total| VolumeUsage { available: 1, total, used: -5, unit: unit as i32 };
        let statistics = disk("data", Some("claim"), &[reported(Unit::Inodes, 7), reported(Unit::Bytes, 9)]);
        let space = statistics.space.unwrap();
        assert_eq!((space.capacity, space.available, space.inodes, space.inodes_free), (9, 1, 7, 1));
        assert_eq!((statistics.used.unwrap().seen, statistics.claim.as_deref()), (DiskUsage::default(), Some("claim")));
    }
}
