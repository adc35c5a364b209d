//! Keys and signatures for tests: some generated, and some from openssl.

#![allow(clippy::unwrap_used)]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::signature::{Signature, SignatureForm};

/// The SubjectPublicKeyInfo that precedes the key's own bytes.
const P256_INFO: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const ED25519_INFO: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Who signs.
pub(crate) enum Signer {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    pub(crate) fn p256() -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
        Self::P256(EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random).unwrap())
    }

    pub(crate) fn ed25519() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    pub(crate) fn public_pem(&self) -> String {
        let der = match self {
            Self::P256(pair) => [P256_INFO, pair.public_key().as_ref()].concat(),
            Self::Ed25519(pair) => [ED25519_INFO, pair.public_key().as_ref()].concat(),
        };
        pem::encode(&pem::Pem::new("PUBLIC KEY", der))
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::P256(pair) => pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
            Self::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// What `cosign sign` of cosign 2 uploads for an image.
    pub(crate) fn simple(&self, digest: &str) -> Signature {
        let payload = json!({
            "critical": {
                "identity": { "docker-reference": "registry.example/plant/pump" },
                "image": { "docker-manifest-digest": digest },
                "type": "cosign container image signature"
            },
            "optional": null
        });
        self.simple_of(&payload)
    }

    pub(crate) fn simple_of(&self, payload: &Value) -> Signature {
        let blob = payload.to_string().into_bytes();
        let form = SignatureForm::SimpleSigning { signature: STANDARD.encode(self.sign(&blob)) };
        Signature { place: "sha256-….sig".to_owned(), form, blob }
    }

    /// What `cosign sign` of cosign 3 uploads for an image.
    pub(crate) fn bundle(&self, digest: &str) -> Signature {
        let hex = digest.trim_start_matches("sha256:");
        self.bundle_of(&json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{ "digest": { "sha256": hex } }],
            "predicateType": "https://sigstore.dev/cosign/sign/v1",
            "predicate": {}
        }))
    }

    pub(crate) fn bundle_of(&self, statement: &Value) -> Signature {
        let (kind, payload) = ("application/vnd.in-toto+json", statement.to_string());
        let encoded = format!("DSSEv1 {} {kind} {} {payload}", kind.len(), payload.len());
        let bundle = json!({
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": { "publicKey": { "hint": "abc" } },
            "dsseEnvelope": {
                "payload": STANDARD.encode(&payload),
                "payloadType": kind,
                "signatures": [{ "sig": STANDARD.encode(self.sign(encoded.as_bytes())) }]
            }
        });
        let blob = bundle.to_string().into_bytes();
        Signature { place: "referrer".to_owned(), form: SignatureForm::SigstoreBundle, blob }
    }
}

/// Name, public key and signature of `limpet\n`, as openssl has made them.
pub(crate) fn foreign_keys() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let all = [
        ("P-256", include_str!("fixtures/p256.pub"), include_str!("fixtures/p256.sig")),
        ("P-384", include_str!("fixtures/p384.pub"), include_str!("fixtures/p384.sig")),
        ("RSA", include_str!("fixtures/rsa.pub"), include_str!("fixtures/rsa.sig")),
        ("Ed25519", include_str!("fixtures/ed25519.pub"), include_str!("fixtures/ed25519.sig")),
    ];
    all.into_iter().map(|(name, key, signature)| (name, key, STANDARD.decode(signature).unwrap())).collect()
}
