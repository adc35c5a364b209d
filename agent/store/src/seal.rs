//! Encrypts Secrets and tokens on disk if the operator has given a key.
//!
//! Their manifests are replaced by a sealed form before they are written, and opened when they are read. Everything
//! else stays readable. The cipher is ChaCha20-Poly1305, which is fast without AES instructions, by `ring`, which TLS
//! needs anyway. The nonce is a keyed digest of the text and its place, so equal texts have equal sealed forms there,
//! and what has not changed is not written again. The place (table, source, name) is authenticated, so nothing that
//! was moved to another record can be opened.
//!
//! Without the configured key none of them is read, and none written: what is on disk stays until the key is
//! available again.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac::{self, HMAC_SHA256};
use serde::Deserialize;
use tokio::process::Command;
use zeroize::Zeroizing;

use limpet_core::last_good::LastGood;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::program;
use limpet_model::object::ObjectKind;
use limpet_model::source::SourceKind;

use super::record::put;

/// The prefix of a sealed manifest. No manifest begins so.
const SEALED: &[u8] = b"limpet-sealed-2\0";
/// The prefix of the form of earlier versions, which is not bound to a place. It is read once, when the agent starts,
/// and written in the current form.
const PLACELESS: &[u8] = b"limpet-sealed-1\0";
/// Bytes of a key.
const KEY_SIZE: usize = 32;
/// The length of a key in hexadecimal digits.
const HEX_KEY_SIZE: usize = 2 * KEY_SIZE;
/// A slow TPM takes some seconds. Pods do not wait longer for one that does not answer.
const TPM_DEADLINE: Duration = Duration::from_secs(30);

/// Where the key is: `secretEncryptionKey`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyLocation {
    /// An absolute path.
    File(PathBuf),
    /// `credential:` and the name of one that systemd passes on (systemd.exec(5), `LoadCredentialEncrypted=`).
    Credential(String),
    /// `systemd-creds:` and the absolute path of what `systemd-creds encrypt` has written (systemd-creds(1)).
    Encrypted(PathBuf),
}

impl fmt::Display for KeyLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Credential(name) => write!(f, "credential:{name}"),
            Self::Encrypted(path) => write!(f, "systemd-creds:{}", path.display()),
        }
    }
}

/// Why the key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The unit passes no credentials.
    #[error("no credential {0:?}: limpet was started without it; add LoadCredentialEncrypted={0} to its unit")]
    NoCredentials(String),
    #[error("cannot read the key {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Other users than its owner can read it.
    #[error("the key {0} can be read by others than its owner: chmod 600 {0}")]
    Open(PathBuf),
    /// `systemd-creds` cannot open it, because its TPM is another one, or in another state.
    #[error("systemd-creds cannot decrypt the key {path}: {reason}")]
    Decrypt {
        path: PathBuf,
        /// The cause, in the program's words.
        reason: String,
    },
    /// It is not a key.
    #[error("{0} is not a key: it must have 32 random bytes, or 64 hexadecimal digits (openssl rand -hex 32)")]
    Form(PathBuf),
}

/// Seals and opens what is confidential.
pub enum Sealer {
    /// No key is configured, so everything is kept as it is.
    Off,
    /// The configured key is not available.
    Locked,
    Ready(Box<Keys>),
}

/// Where a record is stored.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub(super) table: &'static str,
    pub(super) source: SourceKind,
    pub(super) name: &'a str,
}

impl Place<'_> {
    /// What a sealed manifest is bound to.
    fn authenticated(self) -> Vec<u8> {
        let mut bytes = SEALED.to_vec();
        [self.table, self.source.as_str(), self.name].iter().for_each(|part| put(&mut bytes, part.as_bytes()));
        bytes
    }
}

/// Made from the configured key.
pub struct Keys {
    encryption: LessSafeKey,
    nonces: hmac::Key,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "Off",
            Self::Locked => "Locked",
            Self::Ready(_) => "Ready",
        })
    }
}

impl Sealer {
    /// Reads the key. `credentials`: systemd's `$CREDENTIALS_DIRECTORY`.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub async fn open(key: &KeyLocation, credentials: Option<&Path>) -> Result<Self, KeyError> {
        let (path, bytes) = match key {
            KeyLocation::File(path) => (path.clone(), contents(path, true).await?),
            KeyLocation::Credential(name) => {
                let path = credentials.ok_or_else(|| KeyError::NoCredentials(name.clone()))?.join(name);
                // Only systemd decides who may read a credential.
                let bytes = contents(&path, false).await?;
                (path, bytes)
            }
            KeyLocation::Encrypted(path) => (path.clone(), decrypted(path).await?),
        };
        let secret = parsed(&bytes).ok_or(KeyError::Form(path))?;
        Ok(Self::new(&secret))
    }

    fn new(secret: &[u8; KEY_SIZE]) -> Self {
        let secret = hmac::Key::new(HMAC_SHA256, secret);
        let derived = |purpose: &str| hmac::sign(&secret, purpose.as_bytes());
        let Ok(encryption) = UnboundKey::new(&CHACHA20_POLY1305, derived("encryption").as_ref()) else {
            // A SHA-256 digest has the length of a key.
            return Self::Locked;
        };
        let nonces = hmac::Key::new(HMAC_SHA256, derived("nonces").as_ref());
        Self::Ready(Box::new(Keys { encryption: LessSafeKey::new(encryption), nonces }))
    }

    /// The record as it is written; `None` if it must not be written, because something in it cannot be sealed.
    pub(super) fn sealed<'a>(&self, record: &'a LastGood, place: Place<'_>) -> Option<Cow<'a, LastGood>> {
        if matches!(self, Self::Off) || !record.manifests.iter().any(|manifest| is_confidential(manifest)) {
            return Some(Cow::Borrowed(record));
        }
        let Self::Ready(keys) = self else { return None };
        let place = place.authenticated();
        let seal = |manifest: &Arc<[u8]>| match is_confidential(manifest) {
            true => keys.seal(manifest, &place),
            false => Some(Arc::clone(manifest)),
        };
        let manifests = record.manifests.iter().map(seal).collect::<Option<_>>()?;
        Some(Cow::Owned(LastGood { manifests, mark: record.mark.clone(), accepted: record.accepted }))
    }

    /// The record as it was before it was sealed, without what cannot be opened at its place.
    pub(super) fn opened(&self, record: LastGood, place: Place<'_>) -> LastGood {
        let before = record.manifests.len();
        let opened =
            self.open_with(record, |keys, manifest| keys.open(manifest.strip_prefix(SEALED)?, &place.authenticated()));
        if opened.manifests.len() < before {
            tracing::error!(
                source = %place.source,
                name = place.name,
                "a saved Secret cannot be decrypted: restore the key that it was encrypted with"
            );
        }
        opened
    }

    /// The record to write in place of one of an earlier version; `None` if it stays.
    pub(super) fn renewed(&self, record: LastGood) -> Option<LastGood> {
        let is_earlier = |manifest: &Arc<[u8]>| manifest.starts_with(PLACELESS);
        let is_open = |manifest: &Arc<[u8]>| is_confidential(manifest);
        if !record.manifests.iter().any(|manifest| is_earlier(manifest) || is_open(manifest)) {
            return None;
        }
        let before = record.manifests.len();
        let opened = self.open_with(record, |keys, manifest| keys.open(manifest.strip_prefix(PLACELESS)?, PLACELESS));
        // What only another key opens stays as it is.
        (opened.manifests.len() == before).then_some(opened)
    }

    fn open_with(&self, mut record: LastGood, open: impl Fn(&Keys, &[u8]) -> Option<Arc<[u8]>>) -> LastGood {
        record.manifests.retain_mut(|manifest| {
            let is_sealed = manifest.starts_with(SEALED) || manifest.starts_with(PLACELESS);
            let opened = match self {
                _ if !is_sealed => return true,
                Self::Ready(keys) => open(keys, manifest),
                Self::Off | Self::Locked => None,
            };
            let is_opened = opened.is_some();
            opened.into_iter().for_each(|opened| *manifest = opened);
            is_opened
        });
        record
    }
}

impl Keys {
    fn seal(&self, manifest: &[u8], place: &[u8]) -> Option<Arc<[u8]>> {
        // This includes the place, because one nonce must not serve two texts that are authenticated.
        let mut digest = hmac::Context::with_key(&self.nonces);
        [place, manifest].iter().for_each(|part| digest.update(part));
        let digest = digest.sign();
        let nonce = digest.as_ref().first_chunk::<NONCE_LEN>()?;
        let mut text = Zeroizing::new(manifest.to_vec());
        text.reserve_exact(CHACHA20_POLY1305.tag_len());
        self.encryption
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(*nonce), Aad::from(place), &mut *text)
            .ok()?;
        Some([SEALED, nonce, &text].concat().into())
    }

    fn open(&self, sealed: &[u8], place: &[u8]) -> Option<Arc<[u8]>> {
        let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut text = Zeroizing::new(text.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.encryption.open_in_place(nonce, Aad::from(place), &mut text).ok()?;
        Some(Arc::from(&*opened))
    }
}

/// Whether a manifest is of a kind whose values are secret.
fn is_confidential(manifest: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(borrow)]
        kind: Cow<'a, str>,
    }
    // The parameters of a claim's CSI driver contain values of Secrets.
    let secret =
        [ObjectKind::Secret, ObjectKind::ServiceAccountToken, ObjectKind::VolumeClaim, ObjectKind::PodCertificate]
            .map(ObjectKind::as_str);
    serde_json::from_slice(manifest).is_ok_and(|Kind { kind }| secret.contains(&&*kind))
}

/// Reads the file, up to the length that a key may have. `private`: its mode must keep others from reading it.
async fn contents(path: &Path, private: bool) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let failure = |source| KeyError::Read { path: path.to_owned(), source };
    let file = path.to_owned();
    let read = blocking::run(file.clone(), DEADLINE, move |_| read(&file)).await.and_then(|read| read);
    let (mode, bytes) = read.map_err(failure)?;
    if private && mode & 0o077 != 0 { Err(KeyError::Open(path.to_owned())) } else { Ok(bytes) }
}

/// What systemd opens with the node's TPM or its own key.
async fn decrypted(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let failure = |reason: String| KeyError::Decrypt { path: path.to_owned(), reason };
    let mut command = Command::new("systemd-creds");
    command.args(["decrypt", "--name=limpet"]).arg(path).arg("-");
    let output = program::run(command, b"", TPM_DEADLINE).await.map_err(|error| {
        failure(match error.kind() {
            ErrorKind::NotFound => "the program is not there; it is a part of systemd from version 250 on".to_owned(),
            ErrorKind::TimedOut => format!("no answer within {TPM_DEADLINE:?}"),
            _ => error.to_string(),
        })
    })?;
    let text = Zeroizing::new(output.stdout);
    if output.success { Ok(text) } else { Err(failure(String::from_utf8_lossy(&output.stderr).trim().to_owned())) }
}

/// The file's mode, and its content as far as a key may be long.
fn read(path: &Path) -> std::io::Result<(u32, Zeroizing<Vec<u8>>)> {
    let file = File::open(path)?;
    let mode = file.metadata()?.permissions().mode();
    let mut bytes = Zeroizing::new(Vec::with_capacity(HEX_KEY_SIZE + 3));
    file.take(HEX_KEY_SIZE as u64 + 3).read_to_end(&mut bytes)?;
    Ok((mode, bytes))
}

fn parsed(bytes: &[u8]) -> Option<Zeroizing<[u8; KEY_SIZE]>> {
    if let Ok(key) = <[u8; KEY_SIZE]>::try_from(bytes) {
        return Some(Zeroizing::new(key));
    }
    let text = std::str::from_utf8(bytes).ok()?.trim_end();
    let mut key = Zeroizing::new([0; KEY_SIZE]);
    if text.len() != HEX_KEY_SIZE || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(key)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
