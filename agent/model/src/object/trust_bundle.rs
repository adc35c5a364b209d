//! ClusterTrustBundles: which ones a projected volume requires, and their certificates as an object of its pod.
//!
//! These are kubelet's rules (`pkg/kubelet/clustertrustbundle`): one bundle by its name, or all of a signer that a
//! label selector matches, as one file of certificates without duplicates. kubelet shuffles them at each start; here
//! they are sorted, so that a file changes only with its certificates.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use pem::{EncodeConfig, LineEnding, Pem};

use crate::object::{ObjectKey, ObjectRecord, SecretBytes};

/// The key of the certificates among the object's data.
const ANCHORS: &str = "anchors";
/// The type of a block with a certificate.
const CERTIFICATE: &str = "CERTIFICATE";

/// The bundles that a projection requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustBundleDemand {
    /// The bundle of that name.
    Named(String),
    /// All bundles of a signer whose labels match.
    Signer {
        /// The signer's name, which contains a slash, unlike the name of any object.
        signer: String,
        /// The label selector in the form of a query; empty if all match.
        labels: String,
    },
}

impl TrustBundleDemand {
    /// The bundles that the projection requires; `None` for a signer without a selector, which matches no bundle.
    pub fn from_projection(projection: &ClusterTrustBundleProjection) -> Option<Self> {
        match (&projection.name, &projection.signer_name) {
            (Some(name), _) => Some(Self::Named(name.clone())),
            (None, Some(signer)) => {
                let labels = selector(projection.label_selector.as_ref()?);
                Some(Self::Signer { signer: signer.clone(), labels })
            }
            (None, None) => None,
        }
    }

    /// The name of the object.
    pub fn name(&self) -> String {
        match self {
            Self::Named(name) => name.clone(),
            Self::Signer { signer, labels } if labels.is_empty() => signer.clone(),
            Self::Signer { signer, labels } => format!("{signer}?{labels}"),
        }
    }

    /// The reverse of [`Self::name`].
    pub fn from_name(name: &str) -> Self {
        if !name.contains('/') {
            return Self::Named(name.to_owned());
        }
        let (signer, labels) = name.split_once('?').unwrap_or((name, ""));
        Self::Signer { signer: signer.to_owned(), labels: labels.to_owned() }
    }
}

/// A label selector in the form of a query.
fn selector(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(requirement);
    labels.chain(expressions).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(",")
}

fn requirement(requirement: &LabelSelectorRequirement) -> String {
    let LabelSelectorRequirement { key, operator, values } = requirement;
    let values = || values.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(",");
    match operator.as_str() {
        "In" => format!("{key} in ({})", values()),
        "NotIn" => format!("{key} notin ({})", values()),
        "DoesNotExist" => format!("!{key}"),
        // `Exists`; validation has refused all others.
        _ => key.clone(),
    }
}

/// The certificates of these bundles as an object.
pub fn record<'a>(key: ObjectKey, origin: &str, bundles: impl IntoIterator<Item = &'a str>) -> ObjectRecord {
    ObjectRecord::of_texts(key, origin, [(ANCHORS, anchors(bundles))])
}

/// The certificates themselves, in PEM.
pub fn value(record: &ObjectRecord) -> Option<&SecretBytes> {
    record.data.get(ANCHORS).map(|entry| &entry.bytes)
}

/// All certificates, each once. An apiserver refuses bundles with anything else, and what is unreadable nevertheless
/// is left out.
fn anchors<'a>(bundles: impl IntoIterator<Item = &'a str>) -> String {
    let blocks = bundles.into_iter().flat_map(|bundle| pem::parse_many(bundle).unwrap_or_default());
    let unique: BTreeSet<Vec<u8>> = blocks.map(Pem::into_contents).collect();
    let encoding = EncodeConfig::new().set_line_ending(LineEnding::LF);
    unique.into_iter().map(|bytes| pem::encode_config(&Pem::new(CERTIFICATE, bytes), encoding)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn demand(projection: Value) -> Option<TrustBundleDemand> {
        TrustBundleDemand::from_projection(&serde_json::from_value(projection).unwrap())
    }

    #[test]
    fn a_projection_asks_for_one_bundle_or_those_of_a_signer() {
        let expressions = json!([
            {"key": "zone", "operator": "In", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"},
            {"key": "live", "operator": "Exists"}, {"key": "tier", "operator": "NotIn", "values": ["x"]},
        ]);
        let table = [
            (json!({"name": "ca", "path": "p"}), Some("ca")),
            (json!({"name": "k8s.io:signer:ca", "path": "p"}), Some("k8s.io:signer:ca")),
            (json!({"signerName": "k8s.io/s", "path": "p"}), None),
            (json!({"signerName": "k8s.io/s", "labelSelector": {}, "path": "p"}), Some("k8s.io/s")),
            (
                json!({"signerName": "k8s.io/s", "path": "p",
                    "labelSelector": {"matchLabels": {"live": "yes"}, "matchExpressions": expressions}}),
                Some("k8s.io/s?!old,live,live=yes,tier notin (x),zone in (a,b)"),
            ),
        ];
        for (projection, wanted) in table {
            let demand = demand(projection.clone());
            assert_eq!(demand.as_ref().map(TrustBundleDemand::name).as_deref(), wanted, "{projection}");
            assert_eq!(wanted.map(TrustBundleDemand::from_name), demand, "{projection}");
        }
    }

    #[test]
    fn each_certificate_is_there_once() {
        let block = |text: &str| format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        let (a, b) = (block("YQ=="), block("Yg=="));
        assert_eq!(anchors([format!("{b}\ntext\n{a}").as_str(), &a]), format!("{a}{b}"));
        assert_eq!(anchors([]), "");
        assert_eq!(anchors(["-----BEGIN CERTIFICATE-----\n?"]), "");
    }
}
