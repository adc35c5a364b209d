//! Sigstore bundles with a DSSE envelope, with which cosign 3 signs an image: an in-toto statement about its digest.
//!
//! Entries for a transparency log or a certificate authority are ignored, because only the key decides.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// The predicate of a signature. Others, such as an SBOM's, describe an image but do not say that it may run.
const SIGNATURE_PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";
/// The type of the envelope's payload.
const IN_TOTO: &str = "application/vnd.in-toto+json";
/// How many signatures of an envelope, and subjects of a statement, are read.
const MAX_ENTRIES: usize = 32;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    dsse_envelope: Option<Envelope>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    subject: Vec<Subject>,
    predicate_type: String,
}

#[derive(Deserialize)]
struct Subject {
    digest: SubjectDigest,
}

#[derive(Deserialize)]
struct SubjectDigest {
    sha256: Option<String>,
}

/// What has been signed, with its signatures.
#[derive(Debug)]
pub(crate) struct SignedStatement {
    /// The bytes that are signed.
    pub(crate) message: Vec<u8>,
    pub(crate) signatures: Vec<Vec<u8>>,
    payload: Vec<u8>,
}

impl SignedStatement {
    /// Parses a bundle, but not its statement, which is not verified yet.
    ///
    /// # Errors
    ///
    /// It is not a bundle with an in-toto statement.
    pub(crate) fn parse(bundle: &[u8]) -> Result<Self, String> {
        let bundle: Bundle = serde_json::from_slice(bundle).map_err(|error| format!("it is no bundle: {error}"))?;
        let envelope = bundle.dsse_envelope.ok_or("its bundle has no DSSE envelope")?;
        if envelope.payload_type != IN_TOTO {
            return Err(format!("its bundle has a payload of type {:?}", envelope.payload_type));
        }
        let decode = |text: &str| STANDARD.decode(text).map_err(|error| format!("its bundle is not base64: {error}"));
        let payload = decode(&envelope.payload)?;
        let mut message = format!("DSSEv1 {} {IN_TOTO} {} ", IN_TOTO.len(), payload.len()).into_bytes();
        message.extend_from_slice(&payload);
        let signatures = envelope.signatures.iter().take(MAX_ENTRIES).map(|signature| decode(&signature.sig));
        Ok(Self { message, signatures: signatures.collect::<Result<_, _>>()?, payload })
    }

    /// Whether the statement is a signature of the image. Only meaningful once a key has verified it.
    ///
    /// # Errors
    ///
    /// It is a statement of another kind.
    pub(crate) fn is_about(&self, digest: &str) -> Result<bool, String> {
        let statement: Statement =
            serde_json::from_slice(&self.payload).map_err(|error| format!("its statement is {error}"))?;
        if statement.predicate_type != SIGNATURE_PREDICATE {
            return Err(format!("it is a statement of type {:?} and no signature", statement.predicate_type));
        }
        let hex = digest.strip_prefix("sha256:");
        let subjects = statement.subject.iter().take(MAX_ENTRIES);
        Ok(hex.is_some() && subjects.into_iter().any(|subject| subject.digest.sha256.as_deref() == hex))
    }
}
