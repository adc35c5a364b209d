//! Reads the PersistentVolumeClaims of the apiserver's pods, and the volumes they are bound to; what else a CSI driver
//! or an iSCSI target needs is read by `csi` and `iscsi`.
//!
//! A node may read those of its pods by name and may not watch them, so a claim that is not bound yet is read again.
//! One that was is not: as long as the pod refers to it, it stays bound to its volume. For the same reason a volume
//! that has to be attached is awaited in the Node's status, which is watched, and its VolumeAttachment is read then, as
//! by kubelet.

mod csi;
mod expand;
mod iscsi;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec};
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

/// How often the cause is read of a volume that is not attached: a node may not watch VolumeAttachments of others.
const ATTACHING_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// What a claim on a volume waits for that has to be attached to the node.
#[derive(Debug, Clone)]
pub(super) struct Attachments {
    /// The Node, with the volumes that a controller has attached to it.
    pub(super) seen: watch::Receiver<NodeFromApiserver>,
    /// The volumes that it must not detach.
    pub(super) in_use: VolumesInUse,
    /// What drivers have mounted.
    pub(super) volumes: Arc<CsiVolumes>,
    /// What is reported about pods.
    pub(super) events: Events,
}

/// The result of reading a claim.
struct ClaimLookup {
    /// The object of the claim; `None`: there is no such claim.
    object: Option<ObjectRecord>,
    /// The volume that a controller has to attach to the node, by its name in the Node's status.
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
    let found = loop {
        link.online().await;
        let Some(pod) = user(desired, key) else { return };
        let asked = match Box::pin(look_up(link, key, &pod, &attachments, &mut in_use)).await {
            Ok(ClaimLookup { object, attaching }) => {
                let object = object.map(Arc::new);
                let _ = source.send(cluster_update::Update::Object(key.clone(), object.clone())).await;
                if let Some(found) = object.filter(|object| claim::source(object).is_ok()) {
                    break found;
                }
                if let Some(name) = attaching {
                    failures = 0;
                    tokio::select! {
                        Ok(_) = attachments.seen.wait_for(|seen| is_attached(seen, &name)) => {}
                        () = link.lost() => {}
                        // Why it takes so long may be known by then.
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
    maintain(link, desired, key, source, found, &attachments, in_use).await;
}

/// Keeps the volume named in the Node's status, its driver's tokens valid, and has it expanded, for as long as the pod
/// needs it.
async fn maintain(
    link: &Link,
    desired: &Desired,
    key: &ObjectKey,
    source: &mpsc::Sender<cluster_update::Update>,
    found: Arc<ObjectRecord>,
    attachments: &Attachments,
    in_use: Option<InUse>,
) {
    let expanded = expand::follow(link, desired, key, attachments, &found);
    let held = async {
        if let Some(in_use) = in_use {
            hold(desired, key, in_use).await;
        }
    };
    tokio::join!(held, csi::keep_tokens(link, desired, key, source, Arc::clone(&found)), expanded);
}

/// Keeps the volume named in the Node's status until the pod has run to its end; what is mounted then is named on.
async fn hold(desired: &Desired, key: &ObjectKey, in_use: InUse) {
    let mut changes = desired.changes();
    while user(desired, key).is_some_and(|pod| !pod.has_ended()) && changes.changed().await.is_ok() {}
    drop(in_use);
}

/// Whether a controller has attached the volume, after the node reported that it uses it.
fn is_attached(seen: &NodeFromApiserver, name: &str) -> bool {
    seen.node().is_some_and(|node| node.volumes_in_use.contains(name) && node.volumes_attached.contains(name))
}

/// The pod that refers to the claim.
fn user(desired: &Desired, key: &ObjectKey) -> Option<Arc<PodRecord>> {
    let desired = desired.load();
    let pods = desired.demand(SOURCE);
    desired.pods.get(pods.get(key)?.get_min()?).cloned()
}

/// What the claim, or the volume of the pod's own, currently refers to.
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
    let mut found = of_kind(link, key, pod, (&claim, &volume), attachments, in_use).await?;
    found.object = found.object.map(|object| claim::group::added(object, &volume));
    Ok(found)
}

/// What a claim that is bound to that volume refers to.
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
    let found = claim::record(key.clone(), ORIGIN, claim, volume);
    Ok(found.map_or_else(
        |why| ClaimLookup::refused(key, why),
        |object| ClaimLookup { object: Some(object), attaching: None },
    ))
}

/// Name and spec of the volume that the claim is bound to.
///
/// # Errors
/// Why the pod cannot have it.
fn bound_volume(
    key: &ObjectKey,
    (claim, volume): (&PersistentVolumeClaim, &PersistentVolume),
) -> Result<(String, PersistentVolumeSpec), String> {
    claim::check_bound(key, claim, volume)?;
    Ok((volume.metadata.name.clone().unwrap_or_default(), volume.spec.clone().unwrap_or_default()))
}

/// Whether the volume's node affinity, if it has one, names the pod's node.
async fn is_for_node(link: &Link, volume: &PersistentVolume, pod: &PodRecord) -> Result<bool, RequestError> {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let Some(wanted) = affinity.and_then(|affinity| affinity.required.as_ref()) else { return Ok(true) };
    let name = pod.spec().node_name.clone().unwrap_or_default();
    let node: Node = decoded(link.send(Request::get(Resource::Node(name.clone()))).await?)?;
    Ok(node_selector::matches(wanted, &name, &node.metadata.labels.unwrap_or_default()))
}

fn decoded<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, RequestError> {
    serde_json::from_value(value).map_err(|error| RequestError::Unreadable(error.to_string()))
}
