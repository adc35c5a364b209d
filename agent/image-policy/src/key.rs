//! Public keys in PEM, as `cosign generate-key-pair`, `cosign public-key` and `openssl pkey -pubout` write them.

use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA256_ASN1, ED25519, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey,
    VerificationAlgorithm,
};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION, OID_SIG_ED25519, Oid,
};
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

/// The largest key file, in bytes.
pub const MAX_KEY_FILE: u64 = 64 << 10;

/// Why a file is not a usable key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is not PEM.
    #[error("is not PEM: {0}")]
    Pem(String),
    /// It has something else than a public key.
    #[error("has a {0} and not a PUBLIC KEY; write it with: cosign public-key, or openssl pkey -pubout")]
    Label(String),
    /// The key cannot be read.
    #[error("has a public key that cannot be read")]
    Structure,
    /// The key is of another kind.
    #[error("has a key of a kind that is not supported; use ECDSA P-256, P-384, Ed25519 or RSA")]
    Kind,
}

/// A public key, with the algorithm that cosign uses for its type.
pub struct VerificationKey {
    algorithm: &'static dyn VerificationAlgorithm,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerificationKey").finish_non_exhaustive()
    }
}

impl VerificationKey {
    /// Reads a `SubjectPublicKeyInfo` in PEM.
    ///
    /// # Errors
    ///
    /// The file has something else.
    pub fn from_pem(file: &[u8]) -> Result<Self, KeyError> {
        let pem = pem::parse(file).map_err(|error| KeyError::Pem(error.to_string()))?;
        if pem.tag() != "PUBLIC KEY" {
            return Err(KeyError::Label(pem.tag().to_owned()));
        }
        let (rest, key) = SubjectPublicKeyInfo::from_der(pem.contents()).map_err(|_| KeyError::Structure)?;
        if !rest.is_empty() {
            return Err(KeyError::Structure);
        }
        let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
        let algorithm = algorithm(&key.algorithm.algorithm, curve.as_ref()).ok_or(KeyError::Kind)?;
        Ok(Self { algorithm, bytes: key.subject_public_key.data.to_vec() })
    }

    /// Whether the key has signed the message.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(self.algorithm, &self.bytes).verify(message, signature).is_ok()
    }
}

fn algorithm(kind: &Oid<'_>, curve: Option<&Oid<'_>>) -> Option<&'static dyn VerificationAlgorithm> {
    if *kind == OID_SIG_ED25519 {
        return Some(&ED25519);
    }
    if *kind == OID_PKCS1_RSAENCRYPTION {
        return Some(&RSA_PKCS1_2048_8192_SHA256);
    }
    // cosign hashes with SHA-256, whatever the curve.
    let curve = curve.filter(|_| *kind == OID_KEY_TYPE_EC_PUBLIC_KEY)?;
    match curve {
        curve if *curve == OID_EC_P256 => Some(&ECDSA_P256_SHA256_ASN1),
        curve if *curve == OID_NIST_EC_P384 => Some(&ECDSA_P384_SHA256_ASN1),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fixtures::{Signer, foreign_keys};

    #[test]
    fn keys_of_both_kinds_verify_what_they_have_signed_and_nothing_else() {
        for signer in [Signer::p256(), Signer::ed25519()] {
            let key = VerificationKey::from_pem(signer.public_pem().as_bytes()).unwrap();
            let signature = signer.sign(b"message");
            assert!(key.verifies(b"message", &signature));
            assert!(!key.verifies(b"massage", &signature));
            let other = VerificationKey::from_pem(Signer::p256().public_pem().as_bytes()).unwrap();
            assert!(!other.verifies(b"message", &signature));
            let mut cut = signature.clone();
            cut.pop();
            assert!(!key.verifies(b"message", &cut) && !key.verifies(b"message", b""));
        }
    }

    #[test]
    fn signatures_of_openssl_are_verified() {
        for (name, public, signature) in foreign_keys() {
            let key = VerificationKey::from_pem(public.as_bytes()).unwrap();
            assert!(key.verifies(b"limpet\n", &signature), "{name}");
            assert!(!key.verifies(b"limpet", &signature), "{name}");
        }
    }

    #[test]
    fn a_file_without_a_usable_key_is_explained() {
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(
            VerificationKey::from_pem(certificate.as_bytes()).unwrap_err(),
            KeyError::Label("CERTIFICATE".into())
        );
        let private =
            "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n";
        assert!(VerificationKey::from_pem(private.as_bytes()).unwrap_err().to_string().contains("cosign public-key"));
        let curve = include_str!("fixtures/p521.pub");
        assert_eq!(VerificationKey::from_pem(curve.as_bytes()).unwrap_err(), KeyError::Kind);
        let short = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
        assert_eq!(VerificationKey::from_pem(short.as_bytes()).unwrap_err(), KeyError::Structure);
        assert!(matches!(VerificationKey::from_pem(b"").unwrap_err(), KeyError::Pem(_)));
    }
}
