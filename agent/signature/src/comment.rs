//! The comment of a signature, which is signed by itself: it can be believed before what the signature is of has arrived.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ED25519, UnparsedPublicKey};

const ID_BYTES: usize = 8;
const KEY_BYTES: usize = 32;
/// The algorithm of a key or a signature.
const ALGORITHM_BYTES: usize = 2;
const PREFIX: &str = "trusted comment: ";

/// A public key, by its bytes.
pub(crate) struct CommentKey {
    id: [u8; ID_BYTES],
    key: [u8; KEY_BYTES],
}

impl CommentKey {
    /// Of the text of a key file, or its base64 alone.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        let bytes = STANDARD.decode(line.trim()).ok()?;
        let (id, key) = bytes.get(ALGORITHM_BYTES..)?.split_first_chunk()?;
        Some(Self { id: *id, key: key.try_into().ok()? })
    }

    /// The comment of a signature of this key; `None`: it is of another one, or was changed.
    pub(crate) fn signed_comment<'a>(&self, signature: &'a str) -> Option<&'a str> {
        let mut lines = signature.lines().skip(1);
        let of_content = STANDARD.decode(lines.next()?.trim()).ok()?;
        let comment = lines.next()?.strip_prefix(PREFIX)?;
        let of_both = STANDARD.decode(lines.next()?.trim()).ok()?;
        let (id, of_content) = of_content.get(ALGORITHM_BYTES..)?.split_first_chunk::<ID_BYTES>()?;
        let key = UnparsedPublicKey::new(&ED25519, self.key);
        let is_signed = *id == self.id && key.verify(&[of_content, comment.as_bytes()].concat(), &of_both).is_ok();
        is_signed.then_some(comment)
    }
}
