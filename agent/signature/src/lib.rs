//! Whether a release or a bundle was signed by the holder of a key, and signing: detached Ed25519 signatures in minisign's
//! format, as `cargo xtask release --key` and `limpet bundle create` make them. What is signed is read in pieces, so its size
//! does not matter.

mod comment;
mod secret_key;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use comment::CommentKey;
use minisign_verify::{Error, PublicKey, Signature};
pub use secret_key::{KeyFiles, SecretKey};

/// The suffix of the signature file.
const EXTENSION: &str = "minisig";
/// Keys and signatures have some 100 and 300 bytes.
const MAX_TEXT_BYTES: u64 = 4 << 10;
/// The size of a read in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Why a file is not accepted, or not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    /// The key file has other content.
    #[error("{path} has no public key of minisign's: use the file that minisign -G calls minisign.pub")]
    NoKey { path: PathBuf },
    /// The signature file has other content.
    #[error("{path} has no signature of minisign's: download it again, together with the file that it is for")]
    NoSignature { path: PathBuf },
    /// The signature was made with another key.
    #[error("{path} was signed with another key than {key}")]
    OtherKey {
        /// The signed file.
        path: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The signature is of none of several keys.
    #[error("{path} was signed with none of the keys {}", keys.join(", "))]
    ForeignKey {
        /// What was signed.
        path: PathBuf,
        /// The files of the keys.
        keys: Vec<String>,
    },
    /// The file of the secret key has something else.
    #[error("{path} has no secret key of minisign's: use the file that minisign -G calls minisign.key")]
    NoSecretKey {
        /// The file.
        path: PathBuf,
    },
    /// The secret key is encrypted.
    #[error("{path} is protected by a password: remove it from a copy for this machine with minisign -C -W -s COPY")]
    Protected {
        /// The file.
        path: PathBuf,
    },
    /// The file differs from what was signed.
    #[error("{path} is not what was signed: it was changed or is incomplete; do not install it")]
    Changed { path: PathBuf },
}

/// Verifies `file` by its signature in `<file>.minisig` with the public key in the file `key`. Returns the comment
/// that was signed with it, which names version and file.
///
/// # Errors
///
/// Why the file must not be used.
pub fn verify(file: &Path, key: &Path) -> Result<String, SignatureError> {
    let public = public_key(key)?;
    let signature_path = signature_path(file);
    let no_signature = || SignatureError::NoSignature { path: signature_path.clone() };
    let signature = Signature::decode(&text(&signature_path)?).map_err(|_| no_signature())?;
    let unreadable = |source| SignatureError::Read { path: file.to_owned(), source };
    match check(&public, &signature, || File::open(file)) {
        Ok(Outcome::Signed) => Ok(signature.trusted_comment().to_owned()),
        Ok(Outcome::OtherKey) => Err(SignatureError::OtherKey { path: file.to_owned(), key: key.to_owned() }),
        Ok(Outcome::OtherForm) => Err(no_signature()),
        Ok(Outcome::Changed) => Err(SignatureError::Changed { path: file.to_owned() }),
        Err(error) => Err(unreadable(error)),
    }
}

/// Public keys, any of which may have signed.
pub struct PublicKeys {
    keys: Vec<(PathBuf, PublicKey)>,
    /// The same, for comments alone.
    of_comments: Vec<CommentKey>,
}

impl std::fmt::Debug for PublicKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|(path, _)| path)).finish()
    }
}

impl PublicKeys {
    /// Reads the files of keys.
    ///
    /// # Errors
    /// One cannot be read or has no key.
    pub fn read(paths: &[PathBuf]) -> Result<Self, SignatureError> {
        let (mut keys, mut of_comments) = (Vec::new(), Vec::new());
        for path in paths {
            let text = text(path)?;
            keys.push((path.clone(), parse(&text, path)?));
            of_comments.extend(CommentKey::from_text(&text));
        }
        Ok(Self { keys, of_comments })
    }

    /// The comment of a signature, if one of the keys has signed it. It says nothing of what the signature is of.
    pub fn signed_comment<'a>(&self, signature: &'a str) -> Option<&'a str> {
        self.of_comments.iter().find_map(|key| key.signed_comment(signature))
    }

    /// Checks the rest of `content` against a signature. `place` names it in errors. Returns the file of the key.
    ///
    /// # Errors
    /// Why it is not to be used.
    pub fn verify(&self, signature: &str, place: &Path, mut content: impl Read) -> Result<&Path, SignatureError> {
        let path = || place.to_owned();
        let signature = Signature::decode(signature).map_err(|_| SignatureError::NoSignature { path: path() })?;
        for (key, public) in &self.keys {
            match check(public, &signature, || Ok(&mut content)) {
                Ok(Outcome::Signed) => return Ok(key),
                Ok(Outcome::OtherKey) => {}
                Ok(Outcome::OtherForm) => return Err(SignatureError::NoSignature { path: path() }),
                Ok(Outcome::Changed) => return Err(SignatureError::Changed { path: path() }),
                Err(source) => return Err(SignatureError::Read { path: path(), source }),
            }
        }
        let keys = self.keys.iter().map(|(key, _)| key.display().to_string()).collect();
        Err(SignatureError::ForeignKey { path: path(), keys })
    }
}

/// What a signature says of a content.
enum Outcome {
    Signed,
    OtherKey,
    /// One over the content itself, and not over its hash: minisign makes none since 2015.
    OtherForm,
    Changed,
}

/// Opens and reads the content only if the signature is of the key.
fn check<R: Read>(
    public: &PublicKey,
    signature: &Signature,
    open: impl FnOnce() -> io::Result<R>,
) -> io::Result<Outcome> {
    let mut verifier = match public.verify_stream(signature) {
        Ok(verifier) => verifier,
        Err(Error::UnexpectedKeyId) => return Ok(Outcome::OtherKey),
        Err(_) => return Ok(Outcome::OtherForm),
    };
    in_pieces(open()?, |piece| verifier.update(piece))?;
    Ok(verifier.finalize().map_or(Outcome::Changed, |()| Outcome::Signed))
}

/// Hands all of a content to `take`.
fn in_pieces(mut content: impl Read, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match content.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(length) => take(piece.get(..length).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The path of the signature of `file`.
fn signature_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(EXTENSION);
    name.into()
}

/// A key as in minisign's file, or its base64 alone.
fn public_key(path: &Path) -> Result<PublicKey, SignatureError> {
    parse(&text(path)?, path)
}

fn parse(text: &str, path: &Path) -> Result<PublicKey, SignatureError> {
    let key = PublicKey::decode(text).or_else(|_| PublicKey::from_base64(text.trim()));
    key.map_err(|_| SignatureError::NoKey { path: path.to_owned() })
}

fn text(path: &Path) -> Result<String, SignatureError> {
    let read = || {
        let mut text = String::new();
        File::open(path)?.take(MAX_TEXT_BYTES).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|source| SignatureError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Made by minisign 0.11: `minisign -G -W`, `minisign -S -t "limpet 0.1.0 file:f"` of a file with `limpet\n`.
    const KEY: &str = "untrusted comment: minisign public key E7491C7741AA7028\n\
        RWQocKpBdxxJ5w0jrswsMsL60VQVOckoVknm2FD+QLy/3zPvxQSnjdjb\n";
    const SIGNATURE: &str = "untrusted comment: signature from minisign secret key\n\
        RUQocKpBdxxJ5wd776R9xvntxrvN/uGrobZTK+yQX9kh28kbuYQp28Lg+e2h6jDI1XdiERhHG7ttGoNhsKHQr0Zw2D95m1kUyQE=\n\
        trusted comment: limpet 0.1.0 file:f\n\
        KDW1VrDZL6IkAhTL0U3sgWvFEdnRu3hDllwD6hl1jnGI7Tj1KU+ZCKjVHCqSqAyJipjFiJzTsv6RMc/AGrRKBw==\n";
    /// Another key of the same program, as base64 alone.
    const OTHER_KEY: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";

    fn outcome(content: &str, signature: &str, key: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let [file, key_file] = ["f", "key"].map(|name| dir.path().join(name));
        std::fs::write(&file, content).unwrap();
        std::fs::write(&key_file, key).unwrap();
        std::fs::write(dir.path().join("f.minisig"), signature).unwrap();
        let text = match verify(&file, &key_file) {
            Ok(comment) => comment,
            Err(error) => error.to_string(),
        };
        text.replace(&format!("{}/", dir.path().display()), "")
    }

    #[test]
    fn what_minisign_has_signed_is_accepted_and_nothing_else() {
        assert_eq!(outcome("limpet\n", SIGNATURE, KEY), "limpet 0.1.0 file:f");
        assert!(outcome("limpet", SIGNATURE, KEY).starts_with("f is not what was signed"));
        assert!(outcome("limpet\n", SIGNATURE, OTHER_KEY).starts_with("f was signed with another key than key"));
        let other_comment = SIGNATURE.replace("0.1.0", "0.2.0");
        assert!(outcome("limpet\n", &other_comment, KEY).starts_with("f is not what was signed"));
        assert!(outcome("limpet\n", "404", KEY).starts_with("f.minisig has no signature"));
        assert!(outcome("limpet\n", SIGNATURE, "404").starts_with("key has no public key"));
    }

    #[test]
    fn a_comment_is_believed_only_as_its_key_has_signed_it() {
        let dir = tempfile::tempdir().unwrap();
        let keys = |text: &str| {
            let path = dir.path().join("key");
            std::fs::write(&path, text).unwrap();
            PublicKeys::read(&[path]).unwrap()
        };
        let base64 = KEY.lines().nth(1).unwrap();
        for text in [KEY, base64] {
            assert_eq!(keys(text).signed_comment(SIGNATURE), Some("limpet 0.1.0 file:f"));
        }
        assert_eq!(keys(OTHER_KEY).signed_comment(SIGNATURE), None);
        for changed in [SIGNATURE.replace("0.1.0", "0.2.0"), SIGNATURE.replace("9kh28", "9kh29"), "404".to_owned()] {
            assert_eq!(keys(KEY).signed_comment(&changed), None, "{changed}");
        }
    }

    #[test]
    fn a_key_may_be_its_base64_alone_and_files_may_be_missing() {
        let base64 = KEY.lines().nth(1).unwrap();
        assert_eq!(outcome("limpet\n", SIGNATURE, base64), "limpet 0.1.0 file:f");
        let error = verify(Path::new("/no/such/file"), Path::new("/no/such/key")).unwrap_err();
        assert!(error.to_string().starts_with("cannot read /no/such/key: "), "{error}");
    }
}
