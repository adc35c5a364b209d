//! The Secrets of a bundle, sealed to nodes: encrypted once with a key of their own, which is sealed to the key of each node.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

use crate::hpke::{self, KEY_BYTES};
use crate::node_key::{NodeKey, NodePublicKey};

/// The document with the sealed Secrets. Its names can be read, and no value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SealedSecrets {
    /// `namespace/name` of each.
    pub names: Vec<String>,
    /// Who can open it.
    pub recipients: Vec<Recipient>,
    /// A `List` of them in JSON, encrypted with the content key, in base64.
    content: String,
}

/// A node that can open the Secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recipient {
    /// What names its public key.
    pub key: String,
    /// The encapsulated key of HPKE, in base64.
    encapsulated: String,
    /// The content key, sealed by HPKE, in base64.
    content_key: String,
}

/// Why sealed Secrets cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unopened {
    /// They are for other nodes.
    ForOthers,
    /// They are for this node, and something has changed.
    Changed,
}

/// What the Secrets belong to: those of one bundle cannot be put into another.
pub(crate) fn purpose(name: &str, serial: u64) -> Vec<u8> {
    format!("limpet bundle secrets v1\0{name}\0{serial}").into_bytes()
}

/// Seals the `List` in `text` to each recipient; `None`: the kernel has no random numbers, or a key is none that can be used.
pub(crate) fn seal(
    text: &[u8],
    names: Vec<String>,
    recipients: &[NodePublicKey],
    purpose: &[u8],
) -> Option<SealedSecrets> {
    let content_key = random()?;
    let mut content = text.to_vec();
    let (key, nonce) = cipher(content_key.as_slice())?;
    key.seal_in_place_append_tag(nonce, Aad::from(purpose), &mut content).ok()?;
    let recipient = |public: &NodePublicKey| {
        let ephemeral = StaticSecret::from(*random()?);
        let (encapsulated, sealed) = hpke::seal(public.key(), &ephemeral, purpose, content_key.as_slice())?;
        let (encapsulated, content_key) = (STANDARD.encode(encapsulated), STANDARD.encode(sealed));
        Some(Recipient { key: public.id(), encapsulated, content_key })
    };
    let recipients = recipients.iter().map(recipient).collect::<Option<_>>()?;
    Some(SealedSecrets { names, recipients, content: STANDARD.encode(content) })
}

impl SealedSecrets {
    /// The `List` that was sealed.
    pub(crate) fn open(&self, key: &NodeKey, purpose: &[u8]) -> Result<Zeroizing<Vec<u8>>, Unopened> {
        let id = key.public().id();
        let recipient = self.recipients.iter().find(|recipient| recipient.key == id).ok_or(Unopened::ForOthers)?;
        self.open_as(recipient, key, purpose).ok_or(Unopened::Changed)
    }

    fn open_as(&self, recipient: &Recipient, key: &NodeKey, purpose: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let decoded = |text: &str| STANDARD.decode(text).ok();
        let encapsulated: [u8; KEY_BYTES] = decoded(&recipient.encapsulated)?.try_into().ok()?;
        let content_key = hpke::open(key.secret(), encapsulated, purpose, &decoded(&recipient.content_key)?)?;
        let (cipher, nonce) = cipher(&content_key)?;
        let mut content = Zeroizing::new(decoded(&self.content)?);
        let length = cipher.open_in_place(nonce, Aad::from(purpose), &mut content).ok()?.len();
        content.truncate(length);
        Some(content)
    }
}

/// What is read of a `List`: its items, as they are written.
#[derive(Deserialize)]
struct Items<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

/// The `List` of the items of several.
pub(crate) fn merged(lists: &[&[u8]]) -> Result<Zeroizing<Vec<u8>>, serde_json::Error> {
    let size: usize = lists.iter().map(|list| list.len()).sum();
    // It does not grow, so no copy of a part stays behind.
    let mut text = Zeroizing::new(Vec::with_capacity(size + 64));
    text.extend_from_slice(br#"{"apiVersion":"v1","kind":"List","items":["#);
    let mut separator: &[u8] = b"";
    for list in lists {
        for item in serde_json::from_slice::<Items<'_>>(list)?.items {
            text.extend_from_slice(separator);
            text.extend_from_slice(item.get().as_bytes());
            separator = b",";
        }
    }
    text.extend_from_slice(b"]}");
    Ok(text)
}

/// The cipher of a content key. It encrypts one content alone, so its nonce may be a constant.
fn cipher(key: &[u8]) -> Option<(LessSafeKey, Nonce)> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).ok()?;
    Some((LessSafeKey::new(key), Nonce::assume_unique_for_key([0; NONCE_LEN])))
}

fn random() -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    SystemRandom::new().fill(bytes.as_mut_slice()).ok()?;
    Some(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sealed(recipients: &[&NodeKey]) -> SealedSecrets {
        let recipients: Vec<NodePublicKey> = recipients.iter().map(|key| key.public()).collect();
        let names = vec!["default/token".to_owned()];
        seal(br#"{"items":["s3cret"]}"#, names, &recipients, &purpose("plant", 7)).unwrap()
    }

    #[test]
    fn each_recipient_opens_the_secrets_of_that_bundle_and_nobody_else_does() {
        let [first, second, other] = [0; 3].map(|_| NodeKey::generate().unwrap());
        let sealed = sealed(&[&first, &second]);
        for key in [&first, &second] {
            assert_eq!(sealed.open(key, &purpose("plant", 7)).unwrap().as_slice(), br#"{"items":["s3cret"]}"#);
        }
        assert_eq!(sealed.open(&other, &purpose("plant", 7)).unwrap_err(), Unopened::ForOthers);
        for purpose in [purpose("plant", 8), purpose("other", 7)] {
            assert_eq!(sealed.open(&first, &purpose).unwrap_err(), Unopened::Changed);
        }
        let text = serde_json::to_string(&sealed).unwrap();
        assert!(!text.contains("s3cret") && !text.contains("czNjcmV0"), "{text}");
        assert_eq!(serde_json::from_str::<SealedSecrets>(&text).unwrap(), sealed);
    }

    #[test]
    fn a_change_of_any_part_is_found() {
        let key = NodeKey::generate().unwrap();
        let whole = sealed(&[&key]);
        let parts: [fn(&mut SealedSecrets) -> &mut String; 3] = [
            |sealed| &mut sealed.content,
            |sealed| &mut sealed.recipients[0].encapsulated,
            |sealed| &mut sealed.recipients[0].content_key,
        ];
        for part in parts {
            let mut changed = whole.clone();
            let mut bytes = STANDARD.decode(part(&mut changed).as_str()).unwrap();
            bytes[3] ^= 1;
            *part(&mut changed) = STANDARD.encode(&bytes);
            assert_eq!(changed.open(&key, &purpose("plant", 7)).unwrap_err(), Unopened::Changed);
            *part(&mut changed) = "%".to_owned();
            assert_eq!(changed.open(&key, &purpose("plant", 7)).unwrap_err(), Unopened::Changed);
        }
    }

    #[test]
    fn lists_become_one_as_they_are_written() {
        let lists: [&[u8]; 3] =
            [br#"{"kind":"List","items":[{"a":1.50},2]}"#, br#"{"items":[]}"#, br#"{"items":["b"]}"#];
        let text = merged(&lists).unwrap();
        assert_eq!(
            std::str::from_utf8(&text).unwrap(),
            r#"{"apiVersion":"v1","kind":"List","items":[{"a":1.50},2,"b"]}"#
        );
        assert!(merged(&[b"{}"]).is_err());
    }
}
