//! Verifies that a file of a release was signed by the holder of a key: detached Ed25519 signatures in minisign's
//! format, as `cargo xtask release --key` creates them. A file is read in pieces, so its size does not matter.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use minisign_verify::{Error, PublicKey, Signature};

/// The suffix of the signature file.
const EXTENSION: &str = "minisig";
/// Keys and signatures have some 100 and 300 bytes.
const MAX_TEXT_BYTES: u64 = 4 << 10;
/// The size of a read in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Why a file is not accepted.
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
    let public = public_key(&text(key)?).ok_or_else(|| SignatureError::NoKey { path: key.to_owned() })?;
    let signature_path = signature_path(file);
    let no_signature = || SignatureError::NoSignature { path: signature_path.clone() };
    let signature = Signature::decode(&text(&signature_path)?).map_err(|_| no_signature())?;
    let mut verifier = public.verify_stream(&signature).map_err(|error| match error {
        Error::UnexpectedKeyId => SignatureError::OtherKey { path: file.to_owned(), key: key.to_owned() },
        // The signature covers the file itself instead of its hash; minisign makes none since 2015.
        _ => no_signature(),
    })?;
    let unreadable = |source| SignatureError::Read { path: file.to_owned(), source };
    let mut opened = File::open(file).map_err(unreadable)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match opened.read(&mut piece).map_err(unreadable)? {
            0 => break,
            length => verifier.update(&piece[..length]),
        }
    }
    verifier.finalize().map_err(|_| SignatureError::Changed { path: file.to_owned() })?;
    Ok(signature.trusted_comment().to_owned())
}

/// The path of the signature of `file`.
fn signature_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(EXTENSION);
    name.into()
}

/// A key as in minisign's file, or its base64 alone.
fn public_key(text: &str) -> Option<PublicKey> {
    PublicKey::decode(text).or_else(|_| PublicKey::from_base64(text.trim())).ok()
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
    fn a_key_may_be_its_base64_alone_and_files_may_be_missing() {
        let base64 = KEY.lines().nth(1).unwrap();
        assert_eq!(outcome("limpet\n", SIGNATURE, base64), "limpet 0.1.0 file:f");
        let error = verify(Path::new("/no/such/file"), Path::new("/no/such/key")).unwrap_err();
        assert!(error.to_string().starts_with("cannot read /no/such/key: "), "{error}");
    }
}
