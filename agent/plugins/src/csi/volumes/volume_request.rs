//! A volume that a pod requests, and the request to its driver.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::csi::driver::{Driver, Mounting};
use limpet_model::object::csi::{CsiVolume, TOKENS};
use limpet_model::pod::PodRecord;

/// A volume for a pod.
#[derive(Debug)]
pub struct VolumeRequest<'a> {
    /// Its name in the pod.
    pub name: &'a str,
    pub volume: &'a CsiVolume,
    /// The values of the Secret for `NodeStageVolume`.
    pub stage_secret: BTreeMap<String, String>,
    /// The values of the Secret for `NodePublishVolume`.
    pub publish_secret: BTreeMap<String, String>,
    /// The tokens of the pod's service account for `NodePublishVolume`, as the driver gets them.
    pub tokens: Option<String>,
    /// Whether the pod only reads it.
    pub read_only: bool,
}

impl VolumeRequest<'_> {
    /// How its driver should stage it.
    pub(super) fn for_stage(&self, pod: &PodRecord, driver: &Driver) -> Mounting<'_> {
        Mounting {
            volume: self.volume,
            attributes: self.volume.attributes.clone(),
            secrets: self.stage_secret.clone(),
            group: fs_group_of(pod).filter(|_| driver.capabilities().mount_group),
            staging: None,
            read_only: self.read_only,
        }
    }

    /// How its driver should publish it, from the directory where it is staged.
    pub(super) fn for_publish(&self, pod: &PodRecord, driver: &Driver, staging: Option<PathBuf>) -> Mounting<'_> {
        let (mut attributes, mut secrets) = (self.volume.attributes_for(pod), self.publish_secret.clone());
        // As in kubelet, the driver of a device gets none.
        if let Some(tokens) = self.tokens.as_ref().filter(|_| !self.volume.block) {
            let given = if self.volume.settings.tokens_in_secrets { &mut secrets } else { &mut attributes };
            given.insert(TOKENS.to_owned(), tokens.clone());
        }
        Mounting { attributes, secrets, staging, ..self.for_stage(pod, driver) }
    }
}

/// The group to which the pod's volumes are given.
pub(super) fn fs_group_of(pod: &PodRecord) -> Option<u32> {
    u32::try_from(pod.spec().security_context.as_ref()?.fs_group?).ok()
}
