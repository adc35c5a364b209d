//! Expands mounted volumes once the cluster's resizer waits for the node.
//!
//! A node may not watch claims, so those of drivers that can expand volumes are read at about kubelet's interval.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use super::{Attachments, decoded, user};
use crate::claims::csi::secret;
use crate::link::Link;
use limpet_apiserver_client::request::PatchType;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_core::merge::Desired;
use limpet_core::volume_expansion::{self as expansion, Expansion};
use limpet_model::object::claim::{self, ClaimedSource};
use limpet_model::object::csi::CsiVolume;
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::PodRecord;
use limpet_model::pod::quantity::bytes;
use limpet_plugins::csi::ExpandError;
use limpet_telemetry::event::EventType;

/// The shortest time between two checks of a claim, as between kubelet's syncs of a pod. The longest is half as much
/// again.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The delay of the first check: kubelet expands a volume while mounting it.
const FIRST_CHECK_DELAY: Duration = Duration::from_secs(5);
/// kubelet's event reason for a finished expansion.
const DONE: &str = "FileSystemResizeSuccessful";
/// kubelet's event reason for a failed expansion.
const FAILED: &str = "VolumeResizeFailed";

/// Checks the claim until its pod has ended.
pub(super) async fn follow(
    link: &Link,
    desired: &Desired,
    key: &ObjectKey,
    attachments: &Attachments,
    held_claim: &ObjectRecord,
) {
    let Ok(ClaimedSource::Csi(volume)) = claim::source(held_claim).map(|claimed| claimed.source) else { return };
    if volume.ephemeral {
        return;
    }
    let expander = Expander { link, key, attachments, volume: &volume };
    let (mut known, mut pause) = (None, FIRST_CHECK_DELAY);
    loop {
        tokio::time::sleep(pause).await;
        pause = MIN_CHECK_INTERVAL + MIN_CHECK_INTERVAL.mul_f64(fastrand::f64() / 2.0);
        if !attachments.volumes.expands(&volume) {
            continue;
        }
        link.online().await;
        let Some(pod) = user(desired, key).filter(|pod| !pod.has_ended()) else { return };
        if volume.read_only || claim::is_read_only(&pod, &key.name) {
            return;
        }
        match Box::pin(expander.check(&pod, &mut known)).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::debug!(claim = %key, %error, "checking whether the volume has to be expanded failed")
            }
        }
    }
}

struct Expander<'a> {
    link: &'a Link,
    key: &'a ObjectKey,
    attachments: &'a Attachments,
    volume: &'a CsiVolume,
}

impl Expander<'_> {
    fn claim(&self) -> (String, String) {
        (self.key.namespace.to_string(), claim::of_object(&self.key.name).to_owned())
    }

    /// Expands the volume if that is due. Returns false if it needs no further checks.
    async fn check(&self, pod: &PodRecord, known: &mut Option<i64>) -> Result<bool, RequestError> {
        let (namespace, name) = self.claim();
        let request = Request::get(Resource::PersistentVolumeClaim(namespace, name));
        let claim: PersistentVolumeClaim = decoded(self.link.send(request).await?)?;
        let due = expansion::expansion(&claim, *known);
        known.get_or_insert(expansion::capacity(&claim).unwrap_or_default());
        if due == Expansion::None {
            return Ok(true);
        }
        let volume = Request::get(Resource::PersistentVolume(self.volume.name.clone()));
        let volume: PersistentVolume = decoded(self.link.send(volume).await?)?;
        let spec = volume.spec.unwrap_or_default();
        let Some(size) = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage")) else { return Ok(true) };
        let Ok(in_bytes) = bytes(size) else { return Ok(true) };
        if due == Expansion::IfLarger && expansion::capacity(&claim).is_none_or(|capacity| in_bytes <= capacity) {
            return Ok(true);
        }
        let reference = spec.csi.as_ref().and_then(|source| source.node_expand_secret_ref.as_ref());
        let secrets = match secret(self.link, "nodeExpandSecretRef", reference).await? {
            Ok(secrets) => secrets,
            Err(why) => {
                self.report(pod, EventType::Warning, FAILED, why);
                return Ok(true);
            }
        };
        let text = |(name, value): (&String, &limpet_model::object::SecretBytes)| {
            Some((name.clone(), value.expose_text()?.to_owned()))
        };
        let secrets = secrets.iter().filter_map(text).collect();
        let claim = match due {
            Expansion::Due => decoded(self.patch(expansion::began(&claim)).await?)?,
            _ => claim,
        };
        let expanded = self.attachments.volumes.expand(&pod.uid, self.volume, in_bytes, secrets).await;
        if expanded.is_ok() {
            *known = Some(in_bytes);
        }
        match expanded {
            Ok(()) => self.done(pod, &claim, due, size).await.map(|()| true),
            Err(error) => self.failed(pod, due, &error).await,
        }
    }

    async fn done(
        &self,
        pod: &PodRecord,
        claim: &PersistentVolumeClaim,
        due: Expansion,
        size: &Quantity,
    ) -> Result<(), RequestError> {
        let message = format!("MountVolume.NodeExpandVolume succeeded for volume {:?}", self.volume.name);
        tracing::info!(pod = %pod.key, volume = self.volume.name, size = size.0, "volume expanded");
        self.report(pod, EventType::Normal, DONE, message);
        if due != Expansion::Silent {
            self.patch(expansion::finished(claim, size)).await?;
        }
        Ok(())
    }

    async fn failed(&self, pod: &PodRecord, due: Expansion, error: &ExpandError) -> Result<bool, RequestError> {
        let message = match error {
            // The volume was unmounted meanwhile.
            ExpandError::NotPublished => return Ok(true),
            // Several nodes use the volume, and the driver's volumes need no expansion on nodes.
            ExpandError::Call { .. } if due == Expansion::Silent && error.is_unimplemented() => return Ok(false),
            error => error.to_string(),
        };
        tracing::warn!(pod = %pod.key, volume = self.volume.name, message, "volume not expanded");
        let text = format!("NodeExpandVolume failed for volume {:?}: {message}", self.volume.name);
        self.report(pod, EventType::Warning, FAILED, text);
        if due == Expansion::Due && error.is_final() {
            self.patch(expansion::failed(&message, error.is_infeasible(), Timestamp::now())).await?;
        }
        // A driver that cannot expand volumes in use gets no further request.
        Ok(!error.is_of_use())
    }

    async fn patch(&self, patch: Value) -> Result<Value, RequestError> {
        let (namespace, name) = self.claim();
        let status = Resource::PersistentVolumeClaimStatus(namespace, name);
        self.link.send(Request::patch(status, PatchType::Strategic, patch)).await
    }

    fn report(&self, pod: &PodRecord, kind: EventType, reason: &'static str, message: String) {
        let key = Some((pod.key.clone(), pod.uid.clone()));
        self.attachments.events.emit(key, None, kind, reason, message);
    }
}
