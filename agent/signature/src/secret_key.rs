//! Signing: a secret key in the file that `minisign -G -W` writes, and signatures that minisign accepts.

use std::io::{self, Read};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use blake2::{Blake2b256, Blake2b512, Digest as _};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use crate::{SignatureError, in_pieces, text};

/// The algorithm of keys, and with `D` that of signatures over a BLAKE2b hash.
const ALGORITHM: [u8; 2] = *b"Ed";
const HASHED: [u8; 2] = *b"ED";
/// Key derivation: none, as the key is not encrypted.
const NO_DERIVATION: [u8; 2] = [0, 0];
/// The algorithm of the checksum: BLAKE2b.
const CHECKSUM_ALGORITHM: &[u8; 2] = b"B2";
/// The algorithms, then salt and limits of the derivation.
const HEAD_BYTES: usize = 6 + 32 + 8 + 8;
const ID_BYTES: usize = 8;
/// The secret seed, then the public key.
const SEED_BYTES: usize = 32;
const PUBLIC_BYTES: usize = 32;

pub struct SecretKey {
    id: [u8; ID_BYTES],
    pair: Ed25519KeyPair,
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The texts of a pair's files, as `minisign -G -W` writes them.
pub struct KeyFiles {
    pub secret: String,
    pub public: String,
}

impl std::fmt::Debug for KeyFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyFiles").field("public", &self.public).finish_non_exhaustive()
    }
}

impl SecretKey {
    /// A new pair, whose secret key is not protected by a password. `None`: the kernel has no random numbers.
    pub fn generate() -> Option<KeyFiles> {
        let random = SystemRandom::new();
        let (mut seed, mut id) = ([0; SEED_BYTES], [0; ID_BYTES]);
        random.fill(&mut seed).ok()?;
        random.fill(&mut id).ok()?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).ok()?;
        let public = pair.public_key().as_ref();
        let head = [&ALGORITHM[..], &NO_DERIVATION, CHECKSUM_ALGORITHM, &[0; HEAD_BYTES - 6]].concat();
        let checksum = Blake2b256::digest([&ALGORITHM[..], &id, &seed, public].concat());
        let secret = STANDARD.encode([&head[..], &id, &seed, public, &checksum].concat());
        let public = STANDARD.encode([&ALGORITHM[..], &id, public].concat());
        Some(KeyFiles {
            secret: format!("untrusted comment: minisign secret key of limpet\n{secret}\n"),
            public: format!("untrusted comment: minisign public key of limpet\n{public}\n"),
        })
    }

    /// Reads a key that is not protected by a password.
    ///
    /// # Errors
    /// There is none in the file.
    pub fn read(path: &Path) -> Result<Self, SignatureError> {
        let text = text(path)?;
        let encoded = text.lines().nth(1).and_then(|line| STANDARD.decode(line.trim()).ok()).unwrap_or_default();
        // A public key begins as a secret one does, and is shorter.
        let is_secret = encoded.starts_with(&ALGORITHM) && encoded.len() > HEAD_BYTES;
        if is_secret && encoded.get(2..4) != Some(&NO_DERIVATION) {
            return Err(SignatureError::Protected { path: path.to_owned() });
        }
        Self::decode(&encoded).ok_or_else(|| SignatureError::NoSecretKey { path: path.to_owned() })
    }

    fn decode(encoded: &[u8]) -> Option<Self> {
        let (head, rest) = encoded.split_at_checked(HEAD_BYTES)?;
        let (id, rest) = rest.split_first_chunk::<ID_BYTES>()?;
        let (seed, rest) = rest.split_at_checked(SEED_BYTES)?;
        let (public, _checksum) = rest.split_at_checked(PUBLIC_BYTES)?;
        // The pair is refused unless the public key is the seed's, which the checksum would only repeat.
        let pair = Ed25519KeyPair::from_seed_and_public_key(seed, public).ok()?;
        head.starts_with(&ALGORITHM).then_some(Self { id: *id, pair })
    }

    /// Signs the rest of `content`, together with a comment of one line. Returns the text of the signature.
    ///
    /// # Errors
    /// The content cannot be read.
    pub fn sign(&self, content: impl Read, comment: &str) -> io::Result<String> {
        let mut hash = Blake2b512::new();
        in_pieces(content, |piece| hash.update(piece))?;
        let signature = self.pair.sign(&hash.finalize());
        let whole = self.pair.sign(&[signature.as_ref(), comment.as_bytes()].concat());
        let signature = STANDARD.encode([&HASHED[..], &self.id, signature.as_ref()].concat());
        let whole = STANDARD.encode(whole);
        Ok(format!("untrusted comment: signature of limpet\n{signature}\ntrusted comment: {comment}\n{whole}\n"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::PublicKeys;

    /// In the format of minisign -G -W.
    fn key_pair() -> (String, String) {
        let seed = [7; SEED_BYTES];
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).unwrap();
        let public = pair.public_key().as_ref();
        let id = *b"12345678";
        let head = [&ALGORITHM[..], &NO_DERIVATION, b"B2", &[0; HEAD_BYTES - 6]].concat();
        let secret = STANDARD.encode([&head[..], &id, &seed, public, &[0; 32]].concat());
        let public = STANDARD.encode([&ALGORITHM[..], &id, public].concat());
        (format!("untrusted comment: x\n{secret}\n"), format!("untrusted comment: x\n{public}\n"))
    }

    #[test]
    fn what_is_signed_is_verified_by_its_own_key_alone() {
        let dir = tempfile::tempdir().unwrap();
        let [secret, public, other] = ["s", "p", "o"].map(|name| dir.path().join(name));
        let (key, text) = key_pair();
        std::fs::write(&secret, key).unwrap();
        std::fs::write(&public, text).unwrap();
        std::fs::write(&other, "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3").unwrap();
        let signature = SecretKey::read(&secret).unwrap().sign(&b"limpet"[..], "1.0").unwrap();
        let keys = PublicKeys::read(&[other.clone(), public.clone()]).unwrap();
        let place = Path::new("bundle");
        assert_eq!(keys.verify(&signature, place, &b"limpet"[..]).unwrap(), public);
        let refused = |keys: &PublicKeys, signature: &str, content: &[u8]| {
            keys.verify(signature, place, content).unwrap_err().to_string()
        };
        assert!(refused(&keys, &signature, b"limpets").contains("not what was signed"));
        assert!(refused(&keys, &signature.replace("1.0", "1.1"), b"limpet").contains("not what was signed"));
        assert!(refused(&keys, "404", b"limpet").contains("no signature"));
        let foreign = PublicKeys::read(&[other]).unwrap();
        assert!(refused(&foreign, &signature, b"limpet").contains("none of the keys"));
    }

    #[test]
    fn a_protected_key_and_anything_else_are_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let (key, public) = key_pair();
        let mut encoded = STANDARD.decode(key.lines().nth(1).unwrap()).unwrap();
        encoded[2..4].copy_from_slice(b"Sc");
        let refused = |text: String| {
            std::fs::write(&path, text).unwrap();
            SecretKey::read(&path).unwrap_err().to_string()
        };
        assert!(refused(format!("x\n{}\n", STANDARD.encode(&encoded))).contains("minisign -C -W"));
        encoded[2..4].copy_from_slice(&NO_DERIVATION);
        encoded[70] ^= 1;
        assert!(refused(format!("x\n{}\n", STANDARD.encode(&encoded))).contains("no secret key"));
        assert!(refused("404".to_owned()).contains("no secret key"));
        assert!(refused(public).contains("no secret key"));
    }
}
