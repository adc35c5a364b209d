//! Reads the PersistentVolumeClaims of the apiserver's pods, and the volumes they are bound to.
//!
//! A node may read those of its pods by name and may not watch them, so a claim that is not bound yet is asked for again.
//! One that was is not: as long as the pod refers to it, it stays bound to its volume.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use serde_json::Value;
use tokio::sync::mpsc;

use super::link::Link;
use crate::source::api;
use limpet_apiserver::{Request, RequestError, Resource};
use limpet_core::merge::Desired;
use limpet_model::manifest::api::ORIGIN;
use limpet_model::node_selector;
use limpet_model::object::{ObjectKey, ObjectRecord, claim};
use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;

/// Reads the claim until the path that it stands for is known.
pub(super) async fn resolve(link: &Link, desired: &Desired, key: &ObjectKey, source: &mpsc::Sender<api::Update>) {
    let known = desired.load().objects[SourceKind::Api.index()].get(key).cloned();
    if known.is_some_and(|known| claim::source(&known).is_ok()) {
        return;
    }
    let mut failures = 0;
    loop {
        link.online().await;
        let Some(pod) = user(desired, key) else { return };
        let asked = match look_up(link, key, &pod).await {
            Ok(object) => {
                let found = object.as_ref().is_some_and(|object| claim::source(object).is_ok());
                let _ = source.send(api::Update::Object(key.clone(), object.map(Arc::new))).await;
                if found {
                    return;
                }
                None
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(claim = %key, %error, "the claim's volume cannot be read");
                }
                error.retry_after()
            }
        };
        failures += 1;
        if link.pause(failures, asked).await {
            failures = 0;
        }
    }
}

/// The pod that refers to the claim.
fn user(desired: &Desired, key: &ObjectKey) -> Option<Arc<PodRecord>> {
    let desired = desired.load();
    let pods = desired.demand(SourceKind::Api);
    desired.pods.get(pods.get(key)?.get_min()?).cloned()
}

/// The object of the claim as it is now; `None`: there is no such claim.
async fn look_up(link: &Link, key: &ObjectKey, pod: &PodRecord) -> Result<Option<ObjectRecord>, RequestError> {
    let name = claim::of_object(&key.name);
    let resource = Resource::PersistentVolumeClaim(key.namespace.to_string(), name.to_owned());
    let claim: PersistentVolumeClaim = match link.send(Request::get(resource)).await {
        Ok(value) => decoded(value)?,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let volumes = pod.spec().volumes.iter().flatten();
    let mut users = volumes.filter(|volume| claim::name(pod, volume).as_deref() == Some(name));
    let Some(user) = users.next() else { return Ok(None) };
    let found = match claim::volume_name(&claim, pod, user) {
        Ok(name) => {
            let volume: PersistentVolume = decoded(link.send(Request::get(Resource::PersistentVolume(name))).await?)?;
            match is_for_node(link, &volume, pod).await? {
                true => claim::record(key.clone(), ORIGIN, &claim, &volume),
                false => {
                    let volume = volume.metadata.name.unwrap_or_default();
                    Err(format!("PV {volume} is not for this node: no matching NodeSelectorTerms"))
                }
            }
        }
        Err(why) => Err(why),
    };
    Ok(Some(found.unwrap_or_else(|why| claim::refusal(key.clone(), ORIGIN, why))))
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
