//! Reads the PersistentVolumeClaims of the apiserver's pods and the volumes they are bound to. `csi` and `iscsi` read
//! what their volumes also need.
//!
//! A node may read its pods' claims by name and may not watch them, so an unbound claim is read repeatedly. A bound
//! claim is not: it stays bound to its volume while the pod refers to it. For the same reason an attachment is
//! awaited in the Node's status, which is watched; its VolumeAttachment is read only then, as in kubelet.

mod csi;
mod expand;
mod iscsi;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::link::Link;
use super::seen_node::NodeFromApiserver;
use crate::SOURCE;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_core::merge::Desired;
use limpet_core::source::cluster_update;
use limpet_model::manifest::api::ORIGIN;
use limpet_model::node_selector;
use limpet_model::object::{ObjectKey, ObjectRecord, claim};
use limpet_model::pod::PodRecord;
use limpet_plugins::csi::{CsiVolumes, InUse, VolumesInUse};
use limpet_telemetry::event::Events;

/// How often to read why a volume is not attached: a node may not watch VolumeAttachments.
const ATTACHING_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// What a claim needs for a volume that has to be attached to the node.
#[derive(Debug, Clone)]
pub(super) struct Attachments {
    /// The Node, with the volumes that a controller has attached to it.
    pub(super) seen: watch::Receiver<NodeFromApiserver>,
    /// The volumes that a controller must not detach.
    pub(super) in_use: VolumesInUse,
    /// The volumes that drivers have mounted.
    pub(super) volumes: Arc<CsiVolumes>,
    pub(super) events: Events,
}

/// The result of reading a claim.
struct ClaimLookup {
    /// The claim's object; `None` if the claim does not exist.
    object: Option<ObjectRecord>,
    /// The volume that a controller has yet to attach to the node, by its name in the Node's status.
    attaching: Option<String>,
}

impl ClaimLookup {
    fn refused(key: &ObjectKey, why: String) -> Self {
        Self { object: Some(claim::refusal(key.clone(), ORIGIN, why)), attaching: None }
    }
}

/// Reads the claim until its volume is known.
pub(super) async fn resolve(
    link: &Link,
    desired: &Desired,
    key: &ObjectKey,
    source: &mpsc::Sender<cluster_update::Update>,
    mut attachments: Attachments,
) {
    let known = desired.load().objects[SOURCE.index()].get(key).cloned();
    if let Some(known) = known
        && let Ok(claimed) = claim::source(&known)
    {
        let in_use = claimed.source.attached_as().map(|name| attachments.in_use.begin(name));
        return maintain(link, desired, key, source, known, &attachments, in_use).await;
    }
    let (mut failures, mut in_use) = (0, None);
    let lookup = loop {
        link.online().await;
        let Some(pod) = user(desired, key) else { return };
        let asked = match Box::pin(look_up(link, key, &pod, &attachments, &mut in_use)).await {
            Ok(ClaimLookup { object, attaching }) => {
                let object = object.map(Arc::new);
                let _ = source.send(cluster_update::Update::Object(key.clone(), object.clone())).await;
                if let Some(lookup) = object.filter(|object| claim::source(object).is_ok()) {
                    break lookup;
                }
                if let Some(name) = attaching {
                    failures = 0;
                    tokio::select! {
                        Ok(_) = attachments.seen.wait_for(|seen| is_attached(seen, &name)) => {}
                        () = link.lost() => {}
                        // By then the cause of the delay may be known.
                        () = tokio::time::sleep(ATTACHING_CHECK_INTERVAL) => {}
                    }
                    continue;
                }
                None
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(claim = %key, %error, "reading the claim's volume failed");
                }
                error.retry_after()
            }
        };
        failures += 1;
        if link.pause(failures, asked).await {
            failures = 0;
        }
    };
    maintain(link, desired, key, source, lookup, &attachments, in_use).await;
}

/// Lists the volume in the Node's status, renews its driver's tokens and has it expanded, as long as the pod needs
/// it.
async fn maintain(
    link: &Link,
    desired: &Desired,
    key: &ObjectKey,
    source: &mpsc::Sender<cluster_update::Update>,
    held_claim: Arc<ObjectRecord>,
    attachments: &Attachments,
    in_use: Option<InUse>,
) {
    let expanded = expand::follow(link, desired, key, attachments, &held_claim);
    let held = async {
        if let Some(in_use) = in_use {
            hold(desired, key, in_use).await;
        }
    };
    tokio::join!(held, csi::keep_tokens(link, desired, key, source, Arc::clone(&held_claim)), expanded);
}

/// Lists the volume in the Node's status until the pod has ended. After that a mounted volume stays listed.
async fn hold(desired: &Desired, key: &ObjectKey, in_use: InUse) {
    let mut changes = desired.changes();
    while user(desired, key).is_some_and(|pod| !pod.has_ended()) && changes.changed().await.is_ok() {}
    drop(in_use);
}

/// Whether a controller has attached the volume after the node reported it as in use.
fn is_attached(seen: &NodeFromApiserver, name: &str) -> bool {
    seen.node().is_some_and(|node| node.volumes_in_use.contains(name) && node.volumes_attached.contains(name))
}

/// The pod that refers to the claim.
fn user(desired: &Desired, key: &ObjectKey) -> Option<Arc<PodRecord>> {
    let desired = desired.load();
    let pods = desired.demand(SOURCE);
    desired.pods.get(pods.get(key)?.get_min()?).cloned()
}

/// Looks up what the claim, or the pod's own volume, currently refers to.
async fn look_up(
    link: &Link,
    key: &ObjectKey,
    pod: &PodRecord,
    attachments: &Attachments,
    in_use: &mut Option<InUse>,
) -> Result<ClaimLookup, RequestError> {
    let name = claim::of_object(&key.name);
    let volumes = pod.spec().volumes.iter().flatten();
    let mut users = volumes.filter(|volume| claim::name(pod, volume).as_deref() == Some(name));
    let Some(user) = users.next() else { return Ok(ClaimLookup { object: None, attaching: None }) };
    if let Some(inline) = &user.csi {
        return csi::inline(link, key, pod, &user.name, inline).await;
    }
    let resource = Resource::PersistentVolumeClaim(key.namespace.to_string(), name.to_owned());
    let claim: PersistentVolumeClaim = match link.send(Request::get(resource)).await {
        Ok(value) => decoded(value)?,
        Err(error) if error.is_not_found() => return Ok(ClaimLookup { object: None, attaching: None }),
        Err(error) => return Err(error),
    };
    let volume: PersistentVolume = match claim::volume_name(&claim, pod, user) {
        Ok(name) => decoded(link.send(Request::get(Resource::PersistentVolume(name))).await?)?,
        Err(why) => return Ok(ClaimLookup::refused(key, why)),
    };
    if !is_for_node(link, &volume, pod).await? {
        let volume = volume.metadata.name.unwrap_or_default();
        let why = format!("PV {volume} is not for this node: no matching NodeSelectorTerms");
        return Ok(ClaimLookup::refused(key, why));
    }
    let mut lookup = of_kind(link, key, pod, (&claim, &volume), attachments, in_use).await?;
    lookup.object = lookup.object.map(|object| claim::group::added(object, &volume));
    Ok(lookup)
}

/// Looks up what a claim that is bound to this volume refers to.
async fn of_kind(
    link: &Link,
    key: &ObjectKey,
    pod: &PodRecord,
    bound: (&PersistentVolumeClaim, &PersistentVolume),
    attachments: &Attachments,
    in_use: &mut Option<InUse>,
) -> Result<ClaimLookup, RequestError> {
    let (claim, volume) = bound;
    let spec = volume.spec.as_ref();
    if spec.is_some_and(|spec| spec.csi.is_some()) {
        return csi::persistent(link, key, pod, bound, attachments, in_use).await;
    }
    if spec.is_some_and(|spec| spec.iscsi.is_some()) {
        return iscsi::persistent(link, key, bound, attachments, in_use).await;
    }
    let record = claim::record(key.clone(), ORIGIN, claim, volume);
    Ok(record.map_or_else(
        |why| ClaimLookup::refused(key, why),
        |object| ClaimLookup { object: Some(object), attaching: None },
    ))
}

/// Name and spec of the volume that the claim is bound to.
///
/// # Errors
///
/// Why the pod cannot have the volume.
fn bound_volume(
    key: &ObjectKey,
    (claim, volume): (&PersistentVolumeClaim, &PersistentVolume),
) -> Result<(String, PersistentVolumeSpec), String> {
    claim::check_bound(key, claim, volume)?;
    Ok((volume.metadata.name.clone().unwrap_or_default(), volume.spec.clone().unwrap_or_default()))
}

/// Whether the volume's node affinity, if any, matches the pod's node.
async fn is_for_node(link: &Link, volume: &PersistentVolume, pod: &PodRecord) -> Result<bool, RequestError> {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let Some(wanted) = affinity.and_then(|affinity| affinity.required.as_ref()) else { return Ok(true) };
    let name = pod.spec().node_name.clone().unwrap_or_default();
    let node = link.send(Request::get(Resource::Node(name.clone()))).await?;
    let labels: Option<BTreeMap<String, String>> = decoded(node["metadata"]["labels"].clone())?;
    Ok(node_selector::matches(wanted, &name, &labels.unwrap_or_default()))
}

fn decoded<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, RequestError> {
    serde_json::from_value(value).map_err(|error| RequestError::Unreadable(error.to_string()))
}
