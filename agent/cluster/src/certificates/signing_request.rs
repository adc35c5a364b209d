//! CertificateSigningRequests as documents: the request and its result. Pure.

use crate::certificate_files::Purpose;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use limpet_telemetry::metrics::NodeCertificate;

impl Purpose {
    fn signer(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// The certificate's label in metrics.
    pub(super) fn metric(self) -> NodeCertificate {
        match self {
            Self::Client => NodeCertificate::Client,
            Self::Serving => NodeCertificate::Serving,
        }
    }

    /// The object that requests the certificate; `request` is PEM.
    pub(super) fn object(self, name: &str, request: &str) -> Value {
        let usage = match self {
            Self::Client => "client auth",
            Self::Serving => "server auth",
        };
        json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": { "name": name },
            "spec": {
                "request": BASE64_STANDARD.encode(request),
                "signerName": self.signer(),
                // Elliptic curve keys do not support key encipherment.
                "usages": ["digital signature", usage],
            },
        })
    }
}

/// The state of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request is undecided, or approved and not signed yet.
    Pending,
    Issued(String),
    /// The reason for the refusal.
    Refused(String),
}

/// Reads the state from a request's status.
pub(super) fn verdict(request: &Value) -> Verdict {
    let conditions = request["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let refusal = conditions.iter().find(|condition| matches!(condition["type"].as_str(), Some("Denied" | "Failed")));
    if let Some(refusal) = refusal {
        let part = |name: &str| refusal[name].as_str().unwrap_or_default();
        return Verdict::Refused(format!("{}: {} {}", part("type"), part("reason"), part("message")).trim().to_owned());
    }
    let Some(encoded) = request["status"]["certificate"].as_str().filter(|text| !text.is_empty()) else {
        return Verdict::Pending;
    };
    match BASE64_STANDARD.decode(encoded).map(String::from_utf8) {
        Ok(Ok(pem)) => Verdict::Issued(pem),
        _ => Verdict::Refused("the issued certificate is not PEM".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signer_gets_what_it_insists_on() {
        let object = Purpose::Serving.object("csr-1", "PEM");
        assert_eq!(object["spec"]["signerName"], "kubernetes.io/kubelet-serving");
        assert_eq!(object["spec"]["usages"], json!(["digital signature", "server auth"]));
        assert_eq!(object["spec"]["request"], "UEVN");
    }

    #[test]
    fn what_an_answer_means() {
        let refused = |text: &str| Verdict::Refused(text.to_owned());
        let table = [
            (json!({}), Verdict::Pending),
            (json!({"conditions": [{"type": "Approved"}]}), Verdict::Pending),
            (json!({"conditions": [{"type": "Approved"}], "certificate": "UEVN"}), Verdict::Issued("PEM".to_owned())),
            (
                json!({"conditions": [{"type": "Denied", "reason": "No", "message": "not here"}], "certificate": "UEVN"}),
                refused("Denied: No not here"),
            ),
            (json!({"conditions": [{"type": "Failed"}]}), refused("Failed:")),
            (json!({"certificate": "!"}), refused("the issued certificate is not PEM")),
        ];
        for (status, expected) in table {
            assert_eq!(verdict(&json!({ "status": status })), expected, "{status}");
        }
    }
}
