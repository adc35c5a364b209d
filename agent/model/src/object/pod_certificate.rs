//! The certificates of pods: which one a projection of kind `podCertificate` requires, the PodCertificateRequest that
//! a signer answers, and the issued certificate as an object of its pod.
//!
//! These are kubelet's rules (`pkg/kubelet/podcertificate`): the node makes the key, each projection makes a request,
//! a denied or failed request is final, and a new one is made at the time that the signer has set. kubelet forgets
//! keys when it exits; here they are kept, sealed like a Secret, for a start without an apiserver.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodCertificateProjection, Volume};
use pem::{EncodeConfig, LineEnding, Pem};
use serde_json::{Value, json};

use crate::object::{ObjectKey, ObjectRecord, SecretBytes};
use crate::pod::PodRecord;

/// The key of the private key among the object's data, in PEM.
const KEY: &str = "key";
/// The key of the certificates, in PEM.
const CHAIN: &str = "chain";
/// The keys of two times, in RFC 3339: its expiry, and when a new one is requested.
const EXPIRY: &str = "expires";
const RENEWAL: &str = "renewal";
/// The key of the reason why no certificate will be issued.
const REFUSED: &str = "refused";
/// The type of a block with a certificate.
const CERTIFICATE: &str = "CERTIFICATE";

/// Which projection of which pod a certificate is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCertificateDemand {
    pub pod_uid: String,
    /// The volume's name.
    pub volume: String,
    /// The index of the projection among the volume's.
    pub source: usize,
}

impl PodCertificateDemand {
    /// The certificate for the projection at the index `source` of a volume of `pod`.
    pub fn new(pod: &PodRecord, volume: &Volume, source: usize) -> Self {
        Self { pod_uid: pod.uid.to_string(), volume: volume.name.clone(), source }
    }

    /// The name of the object.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.pod_uid, self.volume, self.source)
    }

    /// The reverse of [`Self::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        let mut parts = name.splitn(3, '/').map(str::to_owned);
        let (pod_uid, volume) = (parts.next()?, parts.next()?);
        Some(Self { pod_uid, volume, source: parts.next()?.parse().ok()? })
    }

    /// The projection it is for, in the pod it belongs to.
    pub fn projection<'a>(&self, pod: &'a PodRecord) -> Option<&'a PodCertificateProjection> {
        let volume = pod.spec().volumes.iter().flatten().find(|volume| volume.name == self.volume)?;
        let source = volume.projected.as_ref()?.sources.as_ref()?.get(self.source)?;
        source.pod_certificate.as_ref().filter(|_| pod.uid.as_str() == self.pod_uid)
    }
}

/// The requester of a certificate.
#[derive(Debug, Clone, Copy)]
pub struct Requester<'a> {
    pub pod: &'a PodRecord,
    /// The UID of its service account.
    pub account_uid: &'a str,
    pub node_name: &'a str,
    pub node_uid: &'a str,
}

/// The name of the pod's service account.
pub fn account(pod: &PodRecord) -> &str {
    pod.spec().service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default")
}

/// The PodCertificateRequest for a projection, with a PKCS #10 request that proves the possession of the key.
pub fn request(requester: &Requester<'_>, projection: &PodCertificateProjection, proof: &[u8]) -> Value {
    let Requester { pod, account_uid, node_name, node_uid } = requester;
    let (name, uid) = (pod.key.name(), pod.uid.as_str());
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "PodCertificateRequest",
        "metadata": {
            "namespace": pod.key.namespace(),
            "generateName": "req-",
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid }],
        },
        "spec": {
            "signerName": projection.signer_name,
            "podName": name,
            "podUID": uid,
            "serviceAccountName": account(pod),
            "serviceAccountUID": account_uid,
            "nodeName": node_name,
            "nodeUID": node_uid,
            "maxExpirationSeconds": projection.max_expiration_seconds,
            "stubPKCS10Request": STANDARD.encode(proof),
            "unverifiedUserAnnotations": projection.user_annotations,
        },
    })
}

/// What a signer has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nothing yet.
    Pending,
    /// The certificates.
    Issued {
        /// In PEM: the leaf first.
        chain: String,
        /// When a new one is requested.
        renewal: Timestamp,
        /// When it expires.
        expires: Timestamp,
    },
    /// It will never be issued: the condition, `Denied` or `Failed`, and the reason.
    Refused(&'static str, String),
}

/// Reads the answer from the PodCertificateRequest, with kubelet's messages.
pub fn answer(request: &Value) -> Answer {
    let status = &request["status"];
    for condition in status["conditions"].as_array().into_iter().flatten() {
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        let refused = |kind: &'static str, word: &str| {
            let (reason, message) = (text("reason"), text("message"));
            let why = format!("PodCertificateRequest was permanently {word}: reason={reason:?} message={message:?}");
            Answer::Refused(kind, why)
        };
        match text("type") {
            "Denied" => return refused("Denied", "denied"),
            "Failed" => return refused("Failed", "failed"),
            "Issued" => return issued(status).unwrap_or_else(|| refused("Failed", "issued without a certificate")),
            _ => {}
        }
    }
    Answer::Pending
}

fn issued(status: &Value) -> Option<Answer> {
    let time = |field: &str| status[field].as_str()?.parse::<Timestamp>().ok();
    let blocks = pem::parse_many(status["certificateChain"].as_str()?).ok()?;
    let encoding = EncodeConfig::new().set_line_ending(LineEnding::LF);
    // Text between the blocks, and their headers, are left out.
    let block = |block: Pem| pem::encode_config(&Pem::new(CERTIFICATE, block.into_contents()), encoding);
    let chain: String = blocks.into_iter().map(block).collect();
    Some(Answer::Issued { chain, renewal: time("beginRefreshAt")?, expires: time("notAfter")? })
}

/// An issued certificate as an object. `private_key` is in PEM.
pub fn record(
    key: ObjectKey,
    origin: &str,
    private_key: String,
    chain: String,
    renewal: Timestamp,
    expires: Timestamp,
) -> ObjectRecord {
    let texts = [(KEY, private_key), (CHAIN, chain), (RENEWAL, renewal.to_string()), (EXPIRY, expires.to_string())];
    ObjectRecord::of_texts(key, origin, texts)
}

/// The object for a certificate that no signer will issue.
pub fn refusal(key: ObjectKey, origin: &str, why: String) -> ObjectRecord {
    ObjectRecord::of_texts(key, origin, [(REFUSED, why)])
}

/// The private key and the certificates.
///
/// # Errors
///
/// The reason why there are none.
pub fn bundle(record: &ObjectRecord) -> Result<(&SecretBytes, &SecretBytes), String> {
    let bytes = |key: &str| record.data.get(key).map(|entry| &entry.bytes);
    if let Some(why) = bytes(REFUSED) {
        return Err(why.expose_text().unwrap_or_default().to_owned());
    }
    bytes(KEY).zip(bytes(CHAIN)).ok_or_else(|| "credential bundle is not issued yet".to_owned())
}

/// Whether that entry of the object is secret.
pub(super) fn is_secret(entry: &str) -> bool {
    entry == KEY
}

/// When a new one is requested: `None` if the request was refused, and a time in the past if it cannot be read.
pub fn renewal(record: &ObjectRecord) -> Option<Timestamp> {
    (!record.data.contains_key(REFUSED)).then(|| time(record, RENEWAL).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// When it expires.
pub fn expiry(record: &ObjectRecord) -> Option<Timestamp> {
    time(record, EXPIRY)
}

fn time(record: &ObjectRecord, key: &str) -> Option<Timestamp> {
    record.data.get(key)?.bytes.expose_text()?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::object::ObjectKind;
    use crate::source::SourceKind;

    fn pod() -> PodRecord {
        let projection = json!({"signerName": "example.com/s", "keyType": "ED25519", "maxExpirationSeconds": 3600,
            "credentialBundlePath": "b.pem", "userAnnotations": {"example.com/a": "1"}});
        let sources = json!([{"configMap": {"name": "a"}}, {"podCertificate": projection}]);
        let pod = json!({"metadata": {"name": "web", "namespace": "n", "uid": "u-1"}, "spec": {
            "containers": [{"name": "c", "image": "i"}], "serviceAccountName": "builder",
            "volumes": [{"name": "ids", "projected": {"sources": sources}}],
        }});
        crate::manifest::restore(pod.to_string().as_bytes(), "apiserver", SourceKind::Api, "node").unwrap()
    }

    #[test]
    fn a_request_names_the_pod_and_who_asks_for_it() {
        let pod = pod();
        let volume = &pod.spec().volumes.as_ref().unwrap()[0];
        let demand = PodCertificateDemand::new(&pod, volume, 1);
        assert_eq!(PodCertificateDemand::from_name(&demand.name()), Some(demand.clone()));
        assert!(PodCertificateDemand { pod_uid: "u-2".to_owned(), ..demand.clone() }.projection(&pod).is_none());
        let projection = demand.projection(&pod).unwrap();
        let requester = Requester { pod: &pod, account_uid: "a-1", node_name: "edge1", node_uid: "n-1" };
        let request = request(&requester, projection, b"proof");
        let spec = json!({"signerName": "example.com/s", "podName": "web", "podUID": "u-1", "serviceAccountName": "builder",
            "serviceAccountUID": "a-1", "nodeName": "edge1", "nodeUID": "n-1", "maxExpirationSeconds": 3600,
            "stubPKCS10Request": "cHJvb2Y=", "unverifiedUserAnnotations": {"example.com/a": "1"}});
        assert_eq!(request["spec"], spec);
        assert_eq!(request["metadata"]["ownerReferences"][0]["uid"], "u-1");
    }

    #[test]
    fn an_answer_is_final_once_it_has_one_of_three_conditions() {
        assert_eq!(answer(&json!({})), Answer::Pending);
        let answer_of = |kind: &str, rest: Value| {
            let mut status = json!({"conditions": [{"type": kind, "status": "True", "reason": "R", "message": "m"}]});
            status.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            answer(&json!({"status": status}))
        };
        let why = "PodCertificateRequest was permanently denied: reason=\"R\" message=\"m\"";
        assert_eq!(answer_of("Denied", json!({})), Answer::Refused("Denied", why.to_owned()));
        assert!(matches!(answer_of("Failed", json!({})), Answer::Refused("Failed", _)));
        assert!(matches!(answer_of("Issued", json!({})), Answer::Refused("Failed", _)));
        let block = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let times = json!({"certificateChain": format!("# leaf\n{block}"), "beginRefreshAt": "2026-01-01T12:00:00Z",
            "notAfter": "2026-01-02T00:00:00Z"});
        let Answer::Issued { chain, renewal: at, expires } = answer_of("Issued", times) else { panic!("not issued") };
        assert_eq!(chain, block);
        let key = ObjectKey::new(ObjectKind::PodCertificate, "n", "u-1/ids/1");
        let record = record(key.clone(), "apiserver", "private".to_owned(), chain, at, expires);
        let stored: Value = serde_json::from_slice(&record.manifest()).unwrap();
        let restored = super::super::restore(&stored, "apiserver").unwrap().unwrap();
        assert_eq!(restored, record);
        let (private, certificates) = bundle(&restored).unwrap();
        assert_eq!((private.expose_text(), certificates.expose_text()), (Some("private"), Some(block)));
        assert_eq!((renewal(&record), expiry(&record)), (Some(at), Some(expires)));
        let refused = refusal(key, "apiserver", why.to_owned());
        assert_eq!((bundle(&refused), renewal(&refused)), (Err(why.to_owned()), None));
    }
}
