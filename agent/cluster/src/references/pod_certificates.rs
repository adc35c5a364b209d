//! Obtains a pod's certificates: generates the key, creates the PodCertificateRequest, waits for its signer, and
//! repeats this when the signer asks for renewal.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodCertificateProjection;
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use zeroize::Zeroizing;

use super::sleep_until;
use crate::SOURCE;
use crate::follow::{WatchTarget, follow};
use crate::followed::Update;
use crate::link::Link;
use crate::seen_node::NodeFromApiserver;
use limpet_apiserver_client::{Request, RequestError, Resource, Selector};
use limpet_core::connectivity;
use limpet_core::merge::Desired;
use limpet_core::source::cluster_update;
use limpet_model::manifest::api::ORIGIN;
use limpet_model::object::pod_certificate::{self, Answer, PodCertificateDemand, Requester};
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::PodRecord;
use limpet_telemetry::event::{EventType, Events};

/// The most seconds by which a renewal is delayed, as in kubelet, so that not all nodes renew at once.
const MAX_RENEWAL_JITTER_SECONDS: u64 = 300;
/// After this time a renewal is overdue, as in kubelet.
const RENEWAL_OVERDUE_AFTER: Duration = Duration::from_secs(600);

/// What a request needs of the node.
#[derive(Debug, Clone)]
pub(crate) struct CertificateContext {
    pub(crate) node_name: String,
    /// The Node at the apiserver.
    pub(crate) node: watch::Receiver<NodeFromApiserver>,
    /// Where refusals and delays are reported.
    pub(crate) events: Events,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("cannot make a key: {0}")]
    Key(#[from] rcgen::Error),
    #[error("the node is not registered")]
    NoNode,
    #[error("the PodCertificateRequest was deleted before its signer answered")]
    Deleted,
}

impl Failure {
    /// The shortest pause after the `failures`th failure in a row: a server without this API, or one that refuses,
    /// gets few requests.
    fn pause(&self, failures: u32) -> Option<Duration> {
        let Self::Request(error) = self else { return None };
        match error.code() {
            Some(400 | 403 | 404 | 422) => Some(connectivity::refusal_pause(failures, fastrand::u64(..))),
            _ => error.retry_after(),
        }
    }
}

/// Keeps one certificate valid while its pod exists.
pub(super) async fn maintain(
    link: &Link,
    desired: &Desired,
    key: &ObjectKey,
    source: &mpsc::Sender<cluster_update::Update>,
    mut asking: CertificateContext,
) {
    let Some(demand) = PodCertificateDemand::from_name(&key.name) else { return };
    let stored = desired.load().objects[SOURCE.index()].get(key).cloned();
    // As in kubelet, a refusal is final until the agent restarts.
    let mut newest = stored.filter(|record| pod_certificate::renewal(record).is_some());
    let (mut failures, mut reported) = (0, 0);
    loop {
        if let Some(issued) = &newest {
            let Some(at) = pod_certificate::renewal(issued) else { return };
            sleep_until(at).await;
        }
        let Some(pod) = pod_of(desired, key) else { return };
        let Some(projection) = demand.projection(&pod) else { return };
        let events = asking.events.clone();
        let issuing = Box::pin(issue(link, key, &pod, projection, &mut asking));
        match late(&pod, newest.as_deref(), &mut reported, &events, issuing).await {
            Ok(record) => {
                (failures, reported) = (0, 0);
                let record = Arc::new(record);
                newest = Some(Arc::clone(&record));
                let _ = source.send(cluster_update::Update::Object(key.clone(), Some(record))).await;
                tokio::time::sleep(super::MIN_RENEWAL_INTERVAL).await;
            }
            Err(error) => {
                failures += 1;
                if failures == 1 {
                    tracing::warn!(pod = %pod.key, signer = projection.signer_name, %error, "requesting a certificate for the pod failed");
                }
                link.pause(failures, error.pause(failures)).await;
            }
        }
    }
}

fn pod_of(desired: &Desired, key: &ObjectKey) -> Option<Arc<PodRecord>> {
    let desired = desired.load();
    let pod = desired.demand(SOURCE).get(key)?.get_min()?.clone();
    desired.pods.get(&pod).cloned()
}

/// Waits for `T`. Meanwhile it reports, once each, that the renewal of an existing certificate is overdue, and that
/// the certificate has expired. `reported` counts these reports.
async fn late<T>(
    pod: &PodRecord,
    issued: Option<&ObjectRecord>,
    reported: &mut usize,
    events: &Events,
    issuing: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let report = async {
        if let Some(record) = issued {
            let overdue = pod_certificate::renewal(record).and_then(|at| at.checked_add(RENEWAL_OVERDUE_AFTER).ok());
            let times = [
                (overdue, "CertificateOverdueForRefresh", "PodCertificate refresh overdue"),
                (pod_certificate::expiry(record), "CertificateExpired", "PodCertificate expired"),
            ];
            for (at, reason, message) in times.into_iter().skip(*reported) {
                sleep_until(at.unwrap_or(Timestamp::MAX)).await;
                *reported += 1;
                events.emit(subject(pod), None, EventType::Warning, reason, message.to_owned());
            }
        }
        std::future::pending::<std::convert::Infallible>().await
    };
    tokio::select! {
        biased;
        issued = issuing => issued,
        never = report => match never {},
    }
}

fn subject(pod: &PodRecord) -> Option<(limpet_model::pod::PodKey, limpet_model::pod::PodUid)> {
    Some((pod.key.clone(), pod.uid.clone()))
}

/// Requests a certificate and waits for its signer's answer.
async fn issue(
    link: &Link,
    key: &ObjectKey,
    pod: &PodRecord,
    projection: &PodCertificateProjection,
    asking: &mut CertificateContext,
) -> Result<ObjectRecord, Failure> {
    link.online().await;
    let namespace = || pod.key.namespace().to_owned();
    let account = Resource::ServiceAccount(namespace(), pod_certificate::account(pod).to_owned());
    let account = link.send(Request::get(account)).await?;
    let node_uid = asking.node.borrow_and_update().node().map(|node| node.uid.clone()).ok_or(Failure::NoNode)?;
    let pair = Zeroizing::new(KeyPair::generate_for(algorithm(&projection.key_type))?);
    let document = {
        let account_uid = account["metadata"]["uid"].as_str().unwrap_or_default();
        let requester = Requester { pod, account_uid, node_name: &asking.node_name, node_uid: &node_uid };
        pod_certificate::request(&requester, projection, &proof(&pair)?)
    };
    let created = link.send(Request::create(Resource::PodCertificateRequests(namespace()), document)).await?;
    let name = created["metadata"]["name"].as_str().unwrap_or_default();
    // A node may watch only its own requests, and has to select them explicitly.
    let fields = format!("metadata.name={name},spec.nodeName={}", asking.node_name);
    let resource = Resource::PodCertificateRequests(namespace());
    let followed = WatchTarget { resource, selector: Selector::of_fields(fields), leads: None };
    let (send, mut updates) = mpsc::channel(1);
    let answer = tokio::select! {
        answer = answer(&mut updates) => answer?,
        () = follow(link.clone(), followed, send) => return Err(Failure::Deleted),
    };
    Ok(match answer {
        Answer::Issued { chain, renewal, expires } => {
            let spread = Duration::from_secs(fastrand::u64(..MAX_RENEWAL_JITTER_SECONDS));
            let renewal = renewal.checked_add(spread).unwrap_or(renewal);
            pod_certificate::record(key.clone(), ORIGIN, pair.serialize_pem(), chain, renewal, expires)
        }
        Answer::Refused(condition, why) => {
            asking.events.emit(subject(pod), None, EventType::Warning, condition, why.clone());
            pod_certificate::refusal(key.clone(), ORIGIN, why)
        }
        Answer::Pending => return Err(Failure::Deleted),
    })
}

/// The signer's answer, from the updates of one request.
async fn answer(updates: &mut mpsc::Receiver<Update>) -> Result<Answer, Failure> {
    while let Some(update) = updates.recv().await {
        let request: Option<Value> = match update {
            Update::Bookmark(_) => continue,
            Update::Listed(list, _) => list.into_iter().next(),
            Update::Stored(request) => Some(request),
            Update::Deleted(_) => None,
        };
        match pod_certificate::answer(&request.ok_or(Failure::Deleted)?) {
            Answer::Pending => {}
            answer => return Ok(answer),
        }
    }
    Err(Failure::Deleted)
}

/// The algorithm of a key type, which validation has accepted.
fn algorithm(key_type: &str) -> &'static rcgen::SignatureAlgorithm {
    match key_type {
        "ECDSAP384" => &PKCS_ECDSA_P384_SHA384,
        "ED25519" => &PKCS_ED25519,
        _ => &PKCS_ECDSA_P256_SHA256,
    }
}

/// A PKCS #10 request without contents, signed with the key.
fn proof(pair: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(pair)?.der().to_vec())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::prelude::FromDer as _;

    use super::*;

    #[test]
    fn a_key_of_each_type_proves_its_possession_and_requests_nothing() {
        for key_type in ["ECDSAP256", "ECDSAP384", "ED25519"] {
            let pair = KeyPair::generate_for(algorithm(key_type)).unwrap();
            assert!(pair.serialize_pem().starts_with("-----BEGIN PRIVATE KEY-----"), "{key_type}");
            let proof = proof(&pair).unwrap();
            let (_, request) = X509CertificationRequest::from_der(&proof).unwrap();
            let info = &request.certification_request_info;
            assert_eq!(info.subject.iter().count(), 0, "{key_type}");
            assert_eq!(info.subject_pki.subject_public_key.data, pair.public_key_raw(), "{key_type}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_gone_is_created_again() {
        let (send, mut updates) = mpsc::channel(4);
        send.send(Update::Listed(vec![serde_json::json!({ "status": {} })], String::new())).await.unwrap();
        send.send(Update::Listed(Vec::new(), String::new())).await.unwrap();
        assert!(matches!(answer(&mut updates).await, Err(Failure::Deleted)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_is_not_renewed_is_reported_once_when_overdue_and_once_when_expired() {
        let manifest = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"a","image":"a:1"}]}}"#;
        let pod = limpet_model::manifest::read(
            manifest.as_bytes(),
            "web.json",
            limpet_model::source::SourceKind::File,
            "edge1",
        )
        .pods
        .remove(0);
        let now = Timestamp::now();
        let seconds = |seconds| now + jiff::SignedDuration::from_secs(seconds);
        let key = ObjectKey {
            kind: limpet_model::object::ObjectKind::PodCertificate,
            namespace: "a".into(),
            name: "b".into(),
        };
        let record = |renewal, expires| {
            pod_certificate::record(
                key.clone(),
                ORIGIN,
                String::new(),
                String::new(),
                seconds(renewal),
                seconds(expires),
            )
        };
        let (overdue, expired) = ("CertificateOverdueForRefresh", "CertificateExpired");
        let table = [
            ("due for five minutes", record(-300, 3_600), 0, vec![]),
            ("due for eleven minutes", record(-660, 3_600), 0, vec![overdue]),
            ("that was reported", record(-660, 3_600), 1, vec![]),
            ("expired", record(-7_200, -1), 0, vec![overdue, expired]),
            ("expired since it was reported as overdue", record(-7_200, -1), 1, vec![expired]),
        ];
        for (what, record, mut reported, expected) in table {
            let events = Events::default();
            let issuing = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Err::<(), _>(Failure::NoNode)
            };
            let late = late(&pod, Some(&record), &mut reported, &events, issuing).await;
            assert!(matches!(late, Err(Failure::NoNode)), "{what}");
            let reasons: Vec<_> = events.snapshot().into_iter().map(|event| event.reason.into_owned()).collect();
            assert_eq!(reasons, expected, "{what}");
        }
    }
}
