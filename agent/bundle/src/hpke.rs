//! HPKE (RFC 9180) in its base mode, for one message: `DHKEM(X25519, HKDF-SHA256)`, HKDF-SHA256 and ChaCha20-Poly1305.
//!
//! `ring` does all of it but X25519 with a key that is kept.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use ring::hmac::{self, HMAC_SHA256};
use x25519_dalek::{PublicKey, SharedSecret, StaticSecret};
use zeroize::Zeroizing;

/// Bytes of a key of X25519, and of the secrets and keys derived from one.
pub(crate) const KEY_BYTES: usize = 32;
const VERSION: &[u8] = b"HPKE-v1";
/// `KEM`, and the number of `DHKEM(X25519, HKDF-SHA256)`.
const KEM_SUITE: &[u8] = b"KEM\x00\x20";
/// `HPKE`, and the numbers of the KEM, of HKDF-SHA256 and of ChaCha20-Poly1305.
const SUITE: &[u8] = b"HPKE\x00\x20\x00\x01\x00\x03";
/// The mode without a pre-shared key and without a sender's key.
const MODE_BASE: u8 = 0;

/// Encrypts a message to the holder of `recipient`. Returns the encapsulated key, and the sealed message. `ephemeral` must be
/// random, and of this message alone. `None`: the recipient's key is none that can be used.
pub(crate) fn seal(
    recipient: &PublicKey,
    ephemeral: &StaticSecret,
    info: &[u8],
    message: &[u8],
) -> Option<([u8; KEY_BYTES], Vec<u8>)> {
    let encapsulated = PublicKey::from(ephemeral);
    let shared = ephemeral.diffie_hellman(recipient);
    let (key, nonce) = schedule(&shared, &encapsulated, recipient, info)?;
    let mut sealed = message.to_vec();
    key.seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed).ok()?;
    Some((encapsulated.to_bytes(), sealed))
}

/// Opens what [`seal`] made for the holder of `private`; `None`: it was made for another one, or has changed.
pub(crate) fn open(
    private: &StaticSecret,
    encapsulated: [u8; KEY_BYTES],
    info: &[u8],
    sealed: &[u8],
) -> Option<Zeroizing<Vec<u8>>> {
    let encapsulated = PublicKey::from(encapsulated);
    let shared = private.diffie_hellman(&encapsulated);
    let (key, nonce) = schedule(&shared, &encapsulated, &PublicKey::from(private), info)?;
    let mut message = Zeroizing::new(sealed.to_vec());
    let length = key.open_in_place(nonce, Aad::empty(), &mut message).ok()?.len();
    message.truncate(length);
    Some(message)
}

/// The key of the message and its nonce: the key schedule of section 5.1, after the decapsulation of section 4.1.
fn schedule(
    shared: &SharedSecret,
    encapsulated: &PublicKey,
    recipient: &PublicKey,
    info: &[u8],
) -> Option<(LessSafeKey, Nonce)> {
    if !shared.was_contributory() {
        return None;
    }
    let context = [encapsulated.as_bytes().as_slice(), recipient.as_bytes()].concat();
    let extracted = extract(KEM_SUITE, &[], b"eae_prk", shared.as_bytes());
    let shared: Zeroizing<[u8; KEY_BYTES]> = expand(KEM_SUITE, &extracted, b"shared_secret", &context)?;
    let (psk_id, info) = (extract(SUITE, &[], b"psk_id_hash", &[]), extract(SUITE, &[], b"info_hash", info));
    let context = [&[MODE_BASE], psk_id.as_slice(), info.as_slice()].concat();
    let secret = extract(SUITE, shared.as_slice(), b"secret", &[]);
    let key: Zeroizing<[u8; KEY_BYTES]> = expand(SUITE, &secret, b"key", &context)?;
    let nonce: Zeroizing<[u8; NONCE_LEN]> = expand(SUITE, &secret, b"base_nonce", &context)?;
    let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_slice()).ok()?;
    Some((LessSafeKey::new(key), Nonce::assume_unique_for_key(*nonce)))
}

/// `LabeledExtract` of section 4. HKDF's extraction is an HMAC, whose result `ring` shows only so.
fn extract(suite: &[u8], salt: &[u8], label: &[u8], material: &[u8]) -> Zeroizing<Vec<u8>> {
    let labeled = Zeroizing::new([VERSION, suite, label, material].concat());
    Zeroizing::new(hmac::sign(&hmac::Key::new(HMAC_SHA256, salt), &labeled).as_ref().to_vec())
}

/// `LabeledExpand` of section 4, to the size of the result.
fn expand<const BYTES: usize>(
    suite: &[u8],
    secret: &[u8],
    label: &[u8],
    info: &[u8],
) -> Option<Zeroizing<[u8; BYTES]>> {
    let size = u16::try_from(BYTES).ok()?.to_be_bytes();
    let mut expanded = Zeroizing::new([0; BYTES]);
    let prk = Prk::new_less_safe(HKDF_SHA256, secret);
    prk.expand(&[&size, VERSION, suite, label, info], Size(BYTES)).ok()?.fill(expanded.as_mut_slice()).ok()?;
    Some(expanded)
}

/// How many bytes are derived.
struct Size(usize);

impl KeyType for Size {
    fn len(&self) -> usize {
        self.0
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// What OpenSSL made, by way of Python's cryptography 48, of `content key` with the info `limpet`, for the private key of
    /// the bytes 0 to 31: the encapsulated key, then the sealed message.
    const ENCAPSULATED: &str = "7d812985172f97da8139fe3e519778dac4eb024a4c32cd08fd0616e77722f21f";
    const SEALED: &str = "22e744208944f01b015c562e558e30241eb6e139511f43c52f1dc1";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digits).collect()
    }

    fn private(first: u8) -> StaticSecret {
        StaticSecret::from(std::array::from_fn::<u8, KEY_BYTES, _>(|at| first.wrapping_add(at as u8)))
    }

    #[test]
    fn what_another_implementation_sealed_is_opened() {
        let encapsulated = bytes(ENCAPSULATED).try_into().unwrap();
        let opened = open(&private(0), encapsulated, b"limpet", &bytes(SEALED)).unwrap();
        assert_eq!(opened.as_slice(), b"content key");
    }

    #[test]
    fn only_the_recipient_opens_what_is_unchanged_and_of_that_purpose() {
        let (recipient, ephemeral) = (private(0), private(100));
        let (encapsulated, sealed) = seal(&PublicKey::from(&recipient), &ephemeral, b"a", b"message").unwrap();
        assert_eq!(open(&recipient, encapsulated, b"a", &sealed).unwrap().as_slice(), b"message");
        assert!(open(&private(1), encapsulated, b"a", &sealed).is_none());
        assert!(open(&recipient, encapsulated, b"b", &sealed).is_none());
        assert!(open(&recipient, [9; KEY_BYTES], b"a", &sealed).is_none());
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(open(&recipient, encapsulated, b"a", &changed).is_none(), "byte {at}");
        }
        // A key of small order gives every sender the same secret.
        assert!(seal(&PublicKey::from([0; KEY_BYTES]), &ephemeral, b"a", b"message").is_none());
    }
}
