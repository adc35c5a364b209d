//! Fetches what the apiserver's pods refer to: watches their ConfigMaps, Secrets and Services, requests their tokens
//! and certificates, and reads their claims' volumes, their trust bundles and their runtime classes.
//!
//! One task per object runs as long as a pod refers to the object. A node may read only objects that its pods refer
//! to, one at a time, so each is watched by name.

pub(super) mod pod_certificates;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::pod_certificates::CertificateContext;
use super::claims;
use super::follow::{WatchTarget, follow};
use super::followed::Update;
use super::link::Link;
use super::service_accounts::retry_pause;
use super::tokens::{Issued, MIN_RENEWAL_INTERVAL, request_token, sleep_until};
use limpet_apiserver_client::{RequestError, Resource, Selector};
use limpet_core::merge::Desired;
use limpet_core::source::cluster_update;
use limpet_model::manifest::api::ORIGIN;

use crate::SOURCE;
use limpet_model::object::token::{self, TokenDemand};
use limpet_model::object::trust_bundle::{self, TrustBundleDemand};
use limpet_model::object::{ObjectKey, ObjectKind, ObjectRecord, ObjectState, from_apiserver, runtime_class, service};
use limpet_model::pod::strict;

/// The most bytes of the trust bundles in one projection; an apiserver allows 1 MiB for each bundle.
const MAX_BUNDLES: usize = 8 << 20;

struct Fetching {
    stop: CancellationToken,
    /// Whether the source has received the object, or its absence, since the task began.
    was_known: bool,
}

/// Fetches references until it is dropped.
pub(super) async fn fetch(
    link: Link,
    desired: Desired,
    source: mpsc::Sender<cluster_update::Update>,
    attachments: claims::Attachments,
    asking: CertificateContext,
) {
    let mut changes = desired.changes();
    let mut tasks = JoinSet::new();
    let mut running: BTreeMap<ObjectKey, Fetching> = BTreeMap::new();
    loop {
        let pods = desired.load();
        let wanted = pods.demand(SOURCE);
        running.retain(|key, fetching| {
            let is_known = !matches!(pods.object(SOURCE, key), ObjectState::Unknown);
            // The source drops an object with its last pod. A new pod that came before this was noticed needs the
            // object again.
            let stays = wanted.contains_key(key) && (is_known || !fetching.was_known);
            fetching.was_known |= is_known;
            if !stays {
                fetching.stop.cancel();
            }
            stays
        });
        for key in wanted.keys() {
            if running.contains_key(key) {
                continue;
            }
            let stop = CancellationToken::new();
            running.insert(key.clone(), Fetching { stop: stop.clone(), was_known: false });
            let (link, desired, source, key) = (link.clone(), desired.clone(), source.clone(), key.clone());
            let (attachments, asking) = (attachments.clone(), asking.clone());
            tasks.spawn(async move {
                // Boxed one by one: a claim's future is the largest, and every pod has a token's.
                let work: Pin<Box<dyn Future<Output = ()> + Send + '_>> = match key.kind {
                    ObjectKind::ServiceAccountToken => Box::pin(keep_token(&link, &desired, &key, &source)),
                    ObjectKind::ServiceVariables => Box::pin(follow_services(link, &key, &source)),
                    ObjectKind::VolumeClaim => Box::pin(claims::resolve(&link, &desired, &key, &source, attachments)),
                    ObjectKind::PodCertificate => {
                        Box::pin(pod_certificates::maintain(&link, &desired, &key, &source, asking))
                    }
                    ObjectKind::TrustBundle => Box::pin(follow_trust_bundles(link, &key, &source)),
                    ObjectKind::RuntimeClass => Box::pin(follow_runtime_class(link, &desired, &key, &source)),
                    ObjectKind::ConfigMap => Box::pin(follow_object(link, &key, Resource::ConfigMaps, &source)),
                    ObjectKind::Secret => Box::pin(follow_object(link, &key, Resource::Secrets, &source)),
                    // No pod refers to a workload or a Service, and none of an apiserver to a claim of a manifest.
                    ObjectKind::Deployment
                    | ObjectKind::ReplicaSet
                    | ObjectKind::DaemonSet
                    | ObjectKind::StatefulSet
                    | ObjectKind::Job
                    | ObjectKind::PersistentVolumeClaim
                    | ObjectKind::CronJob
                    | ObjectKind::Service => return,
                };
                stop.run_until_cancelled(work).await;
            });
        }
        tokio::select! {
            biased;
            changed = changes.changed() => if changed.is_err() { return },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// Follows a ConfigMap or a Secret; an immutable one only until it has arrived, as in kubelet.
async fn follow_object(
    link: Link,
    key: &ObjectKey,
    resource: fn(String) -> Resource,
    source: &mpsc::Sender<cluster_update::Update>,
) {
    let resource = resource(key.namespace.to_string());
    let followed = WatchTarget { resource, selector: Selector::of_name(&key.name), leads: None };
    let (send, mut updates) = mpsc::channel(1);
    let hand_on = async {
        while let Some(update) = updates.recv().await {
            let object = match update {
                Update::Bookmark(_) => continue,
                Update::Listed(list, _) => list.into_iter().next(),
                Update::Stored(object) => Some(object),
                Update::Deleted(_) => None,
            };
            let is_immutable = object.as_ref().is_some_and(|object| object["immutable"] == true);
            let object = object.map(|object| from_apiserver(&object, key.kind, ORIGIN)).transpose();
            match object {
                Ok(object) if is_immutable => {
                    let _ = source.send(cluster_update::Update::Object(key.clone(), object.map(Arc::new))).await;
                    return;
                }
                Ok(object) => _ = source.send(cluster_update::Update::Object(key.clone(), object.map(Arc::new))).await,
                Err(faults) => {
                    let reason = faults.first().map(ToString::to_string).unwrap_or_default();
                    tracing::warn!(object = %key, reason, "an object cannot be used; its last version stays in effect");
                }
            }
        }
    };
    tokio::select! {
        () = follow(link, followed, send) => {}
        () = hand_on => {}
    }
}

/// Follows the Services of a namespace, or the apiserver's own Service.
async fn follow_services(link: Link, key: &ObjectKey, source: &mpsc::Sender<cluster_update::Update>) {
    let selector = match &*key.name {
        service::KUBERNETES => Selector::of_name(&key.name),
        _ => Selector::default(),
    };
    let followed = WatchTarget { resource: Resource::Services(key.namespace.to_string()), selector, leads: None };
    let (send, mut updates) = mpsc::channel(1);
    let hand_on = async {
        let mut services: BTreeMap<String, Service> = BTreeMap::new();
        let named = |value: Value| {
            let service: Service = strict::read(&value).0.ok()?;
            Some((service.metadata.name.clone()?, service))
        };
        while let Some(update) = updates.recv().await {
            match update {
                Update::Bookmark(_) => continue,
                Update::Listed(list, _) => services = list.into_iter().filter_map(named).collect(),
                Update::Stored(stored) => services.extend(named(stored)),
                Update::Deleted(deleted) => {
                    services.remove(deleted["metadata"]["name"].as_str().unwrap_or_default());
                }
            }
            let record = Arc::new(service::record(key.clone(), ORIGIN, services.values()));
            let _ = source.send(cluster_update::Update::Object(key.clone(), Some(record))).await;
        }
    };
    tokio::join!(follow(link, followed, send), hand_on);
}

/// Watches the ClusterTrustBundles that the key selects.
async fn follow_trust_bundles(link: Link, key: &ObjectKey, source: &mpsc::Sender<cluster_update::Update>) {
    let selector = match TrustBundleDemand::from_name(&key.name) {
        TrustBundleDemand::Named(name) => Selector::of_name(&name),
        TrustBundleDemand::Signer { signer, labels } => {
            Selector { fields: format!("spec.signerName={signer}"), labels }
        }
    };
    let followed = WatchTarget { resource: Resource::ClusterTrustBundles, selector, leads: None };
    let (send, mut updates) = mpsc::channel(1);
    let pass_on = async {
        let mut bundles: BTreeMap<String, String> = BTreeMap::new();
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let named =
            |object: Value| (name(&object), object["spec"]["trustBundle"].as_str().unwrap_or_default().to_owned());
        while let Some(update) = updates.recv().await {
            match update {
                Update::Bookmark(_) => continue,
                Update::Listed(list, _) => bundles = list.into_iter().map(named).collect(),
                Update::Stored(stored) => bundles.extend([named(stored)]),
                Update::Deleted(deleted) => _ = bundles.remove(&name(&deleted)),
            }
            if bundles.values().map(String::len).sum::<usize>() > MAX_BUNDLES {
                tracing::warn!(object = %key, "an object is larger than {} MiB; its last version stays in effect", MAX_BUNDLES >> 20);
                continue;
            }
            let texts = bundles.values().map(String::as_str);
            let record = (!bundles.is_empty()).then(|| Arc::new(trust_bundle::record(key.clone(), ORIGIN, texts)));
            let _ = source.send(cluster_update::Update::Object(key.clone(), record)).await;
        }
    };
    tokio::join!(follow(link, followed, send), pass_on);
}

/// Follows a RuntimeClass. A pod that has started with it keeps it after the class is deleted, so that its containers
/// can be restarted. An apiserver does not allow a handler to change; if the class is deleted and recreated with
/// another one, the new handler counts.
async fn follow_runtime_class(
    link: Link,
    desired: &Desired,
    key: &ObjectKey,
    source: &mpsc::Sender<cluster_update::Update>,
) {
    let selector = Selector::of_name(&key.name);
    let followed = WatchTarget { resource: Resource::RuntimeClasses, selector, leads: None };
    let (send, mut updates) = mpsc::channel(1);
    let pass_on = async {
        let mut is_known = desired.load().objects[SOURCE.index()].contains_key(key);
        while let Some(update) = updates.recv().await {
            let class = match update {
                Update::Bookmark(_) | Update::Deleted(_) => continue,
                Update::Listed(list, _) => list.into_iter().next(),
                Update::Stored(class) => Some(class),
            };
            let handler = class.as_ref().and_then(|class| class["handler"].as_str());
            if handler.is_none() && is_known {
                continue;
            }
            is_known = handler.is_some();
            let record = handler.map(|handler| Arc::new(runtime_class::record(key.clone(), ORIGIN, handler)));
            let _ = source.send(cluster_update::Update::Object(key.clone(), record)).await;
        }
    };
    tokio::join!(follow(link, followed, send), pass_on);
}

/// Requests a token whenever the current one has passed most of its lifetime.
async fn keep_token(link: &Link, desired: &Desired, key: &ObjectKey, source: &mpsc::Sender<cluster_update::Update>) {
    let Some(demand) = TokenDemand::from_name(&key.name) else { return };
    let mut newest = desired.load().objects[SOURCE.index()].get(key).cloned();
    let mut failures = 0;
    loop {
        if let Some(token) = &newest {
            sleep_until(token::renewal(token)).await;
        }
        link.online().await;
        let Some(pod) = desired.load().demand(SOURCE).get(key).and_then(|pods| pods.get_min().cloned()) else {
            return;
        };
        match issue(link, key, &demand, pod.name()).await {
            Ok(token) => {
                failures = 0;
                let token = Arc::new(token);
                newest = Some(Arc::clone(&token));
                let _ = source.send(cluster_update::Update::Object(key.clone(), Some(token))).await;
                tokio::time::sleep(MIN_RENEWAL_INTERVAL).await;
            }
            Err(error) => {
                failures += 1;
                if failures == 1 {
                    let account = &demand.service_account;
                    tracing::warn!(%pod, account, %error, "requesting a token for the pod's service account failed");
                }
                link.pause(failures, retry_pause(&error, failures)).await;
            }
        }
    }
}

async fn issue(link: &Link, key: &ObjectKey, demand: &TokenDemand, pod: &str) -> Result<ObjectRecord, RequestError> {
    let Issued { token, lifetime, at, .. } = request_token(link, &key.namespace, demand, pod).await?;
    let expires = Timestamp::from_second(at.as_second().saturating_add(lifetime));
    let expires = expires.map_err(|error| RequestError::Unreadable(error.to_string()))?;
    Ok(token::record(key.clone(), ORIGIN, token, expires, at))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use limpet_core::merge::slot::Slots;
    use limpet_core::merge::table::MergeTable;
    use limpet_core::source::SourceSnapshot;
    use limpet_model::manifest::api as manifest;
    use serde_json::json;

    use super::super::fake;
    use std::time::Duration;

    use super::*;

    fn of_three<A, B, C, F>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    fn of_four<A, B, C, D, F>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    fn of_five<A, B, C, D, E, F>(_: impl FnOnce(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn what_waits_for_a_change_of_a_reference_takes_little_memory() {
        let table = [
            ("a token", of_four(keep_token)),
            ("Services", of_three(follow_services)),
            ("a claim", of_five(claims::resolve)),
            ("a certificate", of_five(pod_certificates::maintain)),
            ("trust bundles", of_three(follow_trust_bundles)),
            ("a runtime class", of_four(follow_runtime_class)),
            ("a ConfigMap", of_four(follow_object)),
        ];
        for (what, bytes) in table {
            assert!(bytes <= 2_560, "{what}: {bytes} bytes");
        }
    }
    /// A desired state with a pod that mounts a token, and the token's key.
    fn with_token() -> (Desired, ObjectKey) {
        let token = json!({ "serviceAccountToken": { "path": "token" } });
        let pod = json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "u-1" },
            "spec": {
                "containers": [{ "name": "main", "image": "app:1" }],
                "volumes": [{ "name": "token", "projected": { "sources": [token] } }],
            },
        });
        let pod = Arc::new(manifest::read(&pod, "node").unwrap());
        let (slots, desired, mut table) = (Slots::default(), Desired::default(), MergeTable::default());
        let mut snapshot = SourceSnapshot { ready: true, ..SourceSnapshot::default() };
        snapshot.pods.insert(pod.key.clone(), pod);
        slots.publish(SOURCE, Arc::new(snapshot));
        table.absorb(slots.load());
        desired.store(Arc::new(table.desired().clone()));
        let key = desired.load().demand(SOURCE).keys().find(|key| key.kind == ObjectKind::ServiceAccountToken).cloned();
        (desired, key.unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_token_is_requested_at_most_every_two_minutes_and_one_that_fails_soon_again() {
        // The code, and the fewest and most requests in an hour.
        for (code, least, most) in [(404, 30, 60), (403, 30, 60), (422, 30, 60), (500, 360, 800)] {
            let count = Arc::new(AtomicU32::default());
            let counted = Arc::clone(&count);
            let link = fake::link(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                async move { fake::refusal(code) }
            });
            link.succeeded();
            let ((desired, key), (source, _inbox)) = (with_token(), mpsc::channel(1));
            let keeping = keep_token(&link, &desired, &key, &source);
            assert!(tokio::time::timeout(Duration::from_secs(3_600), keeping).await.is_err());
            let count = count.load(Ordering::Relaxed);
            assert!((least..=most).contains(&count), "{code}: {count} requests");
        }
    }
}
