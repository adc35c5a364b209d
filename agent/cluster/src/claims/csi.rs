//! Volumes of CSI drivers: reads the driver's settings in the cluster, waits for the attachment and reads the Secrets
//! for the driver's calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{CSIVolumeSource, PersistentVolume, PersistentVolumeClaim, SecretReference};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use tokio::sync::mpsc;

use super::{Attachments, ClaimLookup, bound_volume, decoded, is_attached, user};
use crate::link::Link;
use crate::service_accounts::retry_pause;
use crate::tokens::{Issued, MIN_RENEWAL_INTERVAL, request_token, sleep_until};
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_core::merge::Desired;
use limpet_core::source::cluster_update;
use limpet_model::manifest::api::ORIGIN;
use limpet_model::object::claim::tokens::{self, IssuedToken};
use limpet_model::object::claim::{self, ClaimedSource, ClaimedVolume, CsiCall};
use limpet_model::object::csi::CsiVolume;
use limpet_model::object::{ObjectKey, ObjectKind, ObjectRecord, SecretBytes, from_apiserver};
use limpet_model::pod::PodRecord;
use limpet_plugins::csi::InUse;

/// Looks up a claim's volume for its driver. A volume that has to be attached counts as in use from here on.
pub(super) async fn persistent(
    link: &Link,
    key: &ObjectKey,
    pod: &PodRecord,
    bound: (&PersistentVolumeClaim, &PersistentVolume),
    attachments: &Attachments,
    in_use: &mut Option<InUse>,
) -> Result<ClaimLookup, RequestError> {
    let (name, spec) = match bound_volume(key, bound) {
        Ok(object) => object,
        Err(why) => return Ok(ClaimLookup::refused(key, why)),
    };
    let Some(source) = &spec.csi else { return Ok(ClaimLookup::refused(key, format!("PV {name} is not csi"))) };
    let driver = driver(link, &source.driver).await?;
    let mut volume = match CsiVolume::persistent(&name, &spec, driver.as_ref()) {
        Some(Ok(volume)) => volume,
        Some(Err(why)) => return Ok(ClaimLookup::refused(key, why)),
        None => return Ok(ClaimLookup::refused(key, format!("PV {name} is not csi"))),
    };
    if volume.settings.attach {
        let unique = volume.unique_name();
        in_use.get_or_insert_with(|| attachments.in_use.begin(unique.clone()));
        let node = pod.spec().node_name.clone().unwrap_or_default();
        let attachment = volume.attachment(&node);
        if !is_attached(&attachments.seen.borrow(), &unique) {
            // The driver's controller may have refused, for example because the node has too many volumes.
            let seen = attached(link, &attachment, &volume).await?.err();
            let why = format!(
                "volume {name} of CSI driver {} is not attached to this node yet: the cluster's attach/detach controller and \
                 the driver's external-attacher do that, by VolumeAttachment {attachment}{}",
                volume.driver,
                seen.map(|why| format!("; {why}")).unwrap_or_default()
            );
            return Ok(ClaimLookup { attaching: Some(unique), ..ClaimLookup::refused(key, why) });
        }
        match attached(link, &attachment, &volume).await? {
            Ok(context) => volume.publish_context = context,
            Err(why) => return Ok(ClaimLookup::refused(key, why)),
        }
    }
    let calls = [
        (CsiCall::Stage, "nodeStageSecretRef", &source.node_stage_secret_ref),
        (CsiCall::Publish, "nodePublishSecretRef", &source.node_publish_secret_ref),
    ];
    let mut secrets = Vec::new();
    for (call, field, reference) in calls {
        match secret(link, field, reference.as_ref()).await? {
            Ok(values) => secrets.push((call, values)),
            Err(why) => return Ok(ClaimLookup::refused(key, format!("PV {name}: {why}"))),
        }
    }
    looked(link, key, pod, &volume, secrets).await
}

/// Looks up a pod's inline volume for its driver.
pub(super) async fn inline(
    link: &Link,
    key: &ObjectKey,
    pod: &PodRecord,
    name: &str,
    source: &CSIVolumeSource,
) -> Result<ClaimLookup, RequestError> {
    let driver = driver(link, &source.driver).await?;
    let volume = match CsiVolume::inline(pod, name, source, driver.as_ref()) {
        Ok(volume) => volume,
        Err(why) => return Ok(ClaimLookup::refused(key, why)),
    };
    let reference = source.node_publish_secret_ref.as_ref().map(|reference| SecretReference {
        name: Some(reference.name.clone()),
        namespace: Some(pod.key.namespace().to_owned()),
    });
    match secret(link, "nodePublishSecretRef", reference.as_ref()).await? {
        Ok(values) => looked(link, key, pod, &volume, vec![(CsiCall::Publish, values)]).await,
        Err(why) => Ok(ClaimLookup::refused(key, why)),
    }
}

/// The volume's object, with the tokens for its driver.
async fn looked(
    link: &Link,
    key: &ObjectKey,
    pod: &PodRecord,
    volume: &CsiVolume,
    secrets: Vec<(CsiCall, BTreeMap<String, SecretBytes>)>,
) -> Result<ClaimLookup, RequestError> {
    let object = match claim::csi_record(key.clone(), ORIGIN, volume, secrets) {
        Ok(object) => object,
        Err(why) => return Ok(ClaimLookup::refused(key, why)),
    };
    match with_tokens(link, pod, volume, &object).await {
        Ok(object) => Ok(ClaimLookup { object: Some(object), attaching: None }),
        // The Secret or account does not exist, or may not be read.
        Err(error) if matches!(error.code(), Some(400 | 403 | 404 | 422)) => {
            let account = pod.spec().service_account_name.as_deref().unwrap_or("default");
            let why = format!("no token of service account {account} for CSI driver {}: {error}", volume.driver);
            Ok(ClaimLookup::refused(key, why))
        }
        Err(error) => Err(error),
    }
}

/// The object with new tokens, if the volume's driver gets any.
async fn with_tokens(
    link: &Link,
    pod: &PodRecord,
    volume: &CsiVolume,
    object: &ObjectRecord,
) -> Result<ObjectRecord, RequestError> {
    let mut issued = Vec::new();
    // Lifetimes count from here, since renewing early does no harm.
    let began = Timestamp::now();
    for wanted in &volume.settings.tokens {
        let demand = tokens::demand(pod, wanted);
        let Issued { token, expiry, lifetime, .. } =
            request_token(link, pod.key.namespace(), &demand, pod.key.name()).await?;
        let token = SecretBytes::new(token.into_bytes());
        issued.push(IssuedToken { audience: wanted.audience.clone(), token, expiry, lifetime });
    }
    Ok(tokens::with_tokens(object, issued, began))
}

/// Renews the tokens in the volume's object in time, until the pod has ended.
pub(super) async fn keep_tokens(
    link: &Link,
    desired: &Desired,
    key: &ObjectKey,
    source: &mpsc::Sender<cluster_update::Update>,
    mut object: Arc<ObjectRecord>,
) {
    let mut failures = 0;
    while let Some(at) = tokens::renewal(&object) {
        sleep_until(at).await;
        link.online().await;
        let Some(pod) = user(desired, key).filter(|pod| !pod.has_ended()) else { return };
        let Ok(ClaimedVolume { source: ClaimedSource::Csi(volume), .. }) = claim::source(&object) else { return };
        match with_tokens(link, &pod, &volume, &object).await {
            Ok(renewed) => {
                failures = 0;
                object = Arc::new(renewed);
                let _ = source.send(cluster_update::Update::Object(key.clone(), Some(Arc::clone(&object)))).await;
                tokio::time::sleep(MIN_RENEWAL_INTERVAL).await;
            }
            Err(error) => {
                failures += 1;
                if failures == 1 {
                    tracing::warn!(pod = %pod.key, driver = volume.driver, %error, "requesting a new token for a CSI driver failed");
                }
                link.pause(failures, retry_pause(&error, failures)).await;
            }
        }
    }
}

/// The CSIDriver with this name; `None` if the cluster does not have one, which is allowed.
async fn driver(link: &Link, name: &str) -> Result<Option<CSIDriver>, RequestError> {
    match link.send(Request::get(Resource::CsiDriver(name.to_owned()))).await {
        Ok(object) => decoded(object).map(Some),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the driver's controller reported when it attached the volume, or why the volume is not attached.
async fn attached(
    link: &Link,
    name: &str,
    volume: &CsiVolume,
) -> Result<Result<BTreeMap<String, String>, String>, RequestError> {
    let attachment: VolumeAttachment = match link.send(Request::get(Resource::VolumeAttachment(name.to_owned()))).await
    {
        Ok(object) => decoded(object)?,
        // A node may read only its own attachments, so a missing one is forbidden.
        Err(error) if error.is_not_found() || error.code() == Some(403) => {
            return Ok(Err(format!("volume {} has no VolumeAttachment {name}", volume.name)));
        }
        Err(error) => return Err(error),
    };
    if attachment.metadata.deletion_timestamp.is_some() {
        return Ok(Err("volume attachment is being deleted".to_owned()));
    }
    let status = attachment.status.unwrap_or_default();
    if status.attached {
        return Ok(Ok(status.attachment_metadata.unwrap_or_default()));
    }
    let message = status.attach_error.and_then(|error| error.message).unwrap_or_default();
    let message =
        if message.is_empty() { "the driver's external-attacher has not reported on it".to_owned() } else { message };
    Ok(Err(format!("volume {} is not attached for volume attachment {name}: {message}", volume.name)))
}

/// The values of a Secret, or why they are unavailable.
pub(super) async fn secret(
    link: &Link,
    field: &str,
    reference: Option<&SecretReference>,
) -> Result<Result<BTreeMap<String, SecretBytes>, String>, RequestError> {
    let Some(SecretReference { name: Some(name), namespace: Some(namespace) }) = reference else {
        return Ok(Ok(BTreeMap::new()));
    };
    let failed = |why: &str| Ok(Err(format!("fetching {field} {namespace}/{name} failed: {why}")));
    let secret = match link.send(Request::get(Resource::Secret(namespace.clone(), name.clone()))).await {
        Ok(secret) => secret,
        Err(error) if error.is_not_found() || error.code() == Some(403) => return failed(&error.to_string()),
        Err(error) => return Err(error),
    };
    let Ok(secret) = from_apiserver(&secret, ObjectKind::Secret, ORIGIN) else { return failed("it is not readable") };
    if secret.data.values().any(|entry| entry.bytes.expose_text().is_none()) {
        return failed("a value of it is no UTF-8 text");
    }
    Ok(Ok(secret.data.into_iter().map(|(name, entry)| (name, entry.bytes)).collect()))
}
