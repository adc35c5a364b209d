//! The key pair of a node, to which Secrets of bundles are sealed: X25519, in the PEM of `openssl genpkey -algorithm X25519`
//! and `openssl pkey -pubout`.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use limpet_model::hex::hex;
use pem::{EncodeConfig, LineEnding, Pem, encode_config};
use ring::rand::{SecureRandom as _, SystemRandom};
use sha2::{Digest as _, Sha256};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use crate::hpke::KEY_BYTES;

/// The most bytes of a key file.
const MAX_FILE: u64 = 4 << 10;
const PRIVATE_TAG: &str = "PRIVATE KEY";
const PUBLIC_TAG: &str = "PUBLIC KEY";
/// What precedes the bytes of a private key of X25519 in PKCS #8 (RFC 8410).
const PRIVATE_PREFIX: [u8; 16] = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x6e\x04\x22\x04\x20";
/// What precedes those of a public key in a SubjectPublicKeyInfo.
const PUBLIC_PREFIX: [u8; 12] = *b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x6e\x03\x21\x00";
/// How many bytes of its hash name a key.
const ID_BYTES: usize = 8;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeKeyError {
    /// The file cannot be read.
    #[error("cannot read the key {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    /// The file has no private key.
    #[error(
        "{0} has no private key of X25519: restore it; or remove it and restart limpet, which makes another one, and create \
         the bundles again for that"
    )]
    NoPrivateKey(PathBuf),
    /// The file has no public key.
    #[error("{0} has no public key of X25519: use what limpet bundle node-key prints on the node")]
    NoPublicKey(PathBuf),
}

/// The private key of a node.
pub struct NodeKey(StaticSecret);

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeKey").field(&self.public()).finish()
    }
}

impl NodeKey {
    /// A new key; `None`: the kernel has no random numbers.
    pub fn generate() -> Option<Self> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        SystemRandom::new().fill(bytes.as_mut_slice()).ok()?;
        Some(Self(StaticSecret::from(*bytes)))
    }

    /// Reads the file of a key.
    ///
    /// # Errors
    /// It cannot be read, or has something else.
    pub fn read(path: &Path) -> Result<Self, NodeKeyError> {
        let text = Zeroizing::new(text(path)?);
        let key = contents(&text, PRIVATE_TAG, &PRIVATE_PREFIX).map(|key| Self(StaticSecret::from(*key)));
        key.ok_or_else(|| NodeKeyError::NoPrivateKey(path.to_owned()))
    }

    /// The text of its file.
    pub fn pem(&self) -> Zeroizing<String> {
        Zeroizing::new(encoded(PRIVATE_TAG, &PRIVATE_PREFIX, self.0.as_bytes()))
    }

    /// The half that seals to this node, and may be known to all.
    pub fn public(&self) -> NodePublicKey {
        NodePublicKey(PublicKey::from(&self.0))
    }

    pub(crate) fn secret(&self) -> &StaticSecret {
        &self.0
    }
}

/// The public key of a node.
#[derive(Clone, PartialEq, Eq)]
pub struct NodePublicKey(PublicKey);

impl fmt::Debug for NodePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodePublicKey").field(&self.id()).finish()
    }
}

impl NodePublicKey {
    /// Reads the file of a key.
    ///
    /// # Errors
    /// It cannot be read, or has something else.
    pub fn read(path: &Path) -> Result<Self, NodeKeyError> {
        let key = contents(&text(path)?, PUBLIC_TAG, &PUBLIC_PREFIX).map(|key| Self(PublicKey::from(*key)));
        key.ok_or_else(|| NodeKeyError::NoPublicKey(path.to_owned()))
    }

    /// The text of its file.
    pub fn pem(&self) -> String {
        encoded(PUBLIC_TAG, &PUBLIC_PREFIX, self.0.as_bytes())
    }

    /// What names it: the beginning of its SHA-256 hash.
    pub fn id(&self) -> String {
        hex(Sha256::digest(self.0.as_bytes()).get(..ID_BYTES).unwrap_or_default())
    }

    pub(crate) fn key(&self) -> &PublicKey {
        &self.0
    }
}

fn text(path: &Path) -> Result<String, NodeKeyError> {
    let read = || {
        let mut text = String::new();
        File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|source| NodeKeyError::Read { path: path.to_owned(), source })
}

fn contents(text: &str, tag: &str, prefix: &[u8]) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    let pem = pem::parse(text).ok().filter(|pem| pem.tag() == tag)?;
    let whole = Zeroizing::new(pem.into_contents());
    whole.strip_prefix(prefix)?.try_into().ok().map(Zeroizing::new)
}

fn encoded(tag: &str, prefix: &[u8], key: &[u8]) -> String {
    let pem = Pem::new(tag, [prefix, key].concat());
    encode_config(&pem, EncodeConfig::new().set_line_ending(LineEnding::LF))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A key pair as `openssl genpkey -algorithm x25519` writes it.
    const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VuBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VuAyEAj0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8=\n-----END PUBLIC KEY-----\n";
    /// An Ed25519 key, which signs and cannot be sealed to.
    const SIGNING: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAj0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8=\n-----END PUBLIC KEY-----\n";

    #[test]
    fn keys_are_those_of_openssl_and_nothing_else_is_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write(PRIVATE);
        let key = NodeKey::read(&path).unwrap();
        assert_eq!((key.pem().as_str(), key.public().pem().as_str()), (PRIVATE, PUBLIC));
        assert!(NodePublicKey::read(&path).unwrap_err().to_string().contains("no public key of X25519"));
        assert!(!format!("{key:?}").contains("AAEC"));
        write(PUBLIC);
        assert_eq!(NodePublicKey::read(&path).unwrap(), key.public());
        assert!(NodeKey::read(&path).unwrap_err().to_string().contains("no private key of X25519"));
        for text in [SIGNING, "", "404", &PUBLIC[..60]] {
            write(text);
            assert!(NodePublicKey::read(&path).is_err() && NodeKey::read(&path).is_err(), "{text}");
        }
        let gone = NodeKey::read(&dir.path().join("gone")).unwrap_err();
        assert!(gone.to_string().starts_with("cannot read the key"), "{gone}");
        assert_ne!(NodeKey::generate().unwrap().public(), NodeKey::generate().unwrap().public());
    }
}
