//! The signature of a bundle. It is the first member of the tar and has a fixed place and size; all bytes after it are
//! signed. So nothing of a bundle is interpreted before it is known to be whole and from the holder of a key.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use limpet_signature::{PublicKeys, SecretKey};

use crate::error::BundleError;

/// The name of the first member.
const NAME: &str = "limpet-bundle.minisig";
/// Its header, a block of tar.
const HEADER_BYTES: usize = 512;
/// Its content: a signature, filled up with empty lines.
const SIGNATURE_BYTES: usize = 1024;
/// Where that begins which is signed.
pub(crate) const SIGNED_FROM: u64 = (HEADER_BYTES + SIGNATURE_BYTES) as u64;

/// The first bytes of every bundle.
fn header() -> [u8; HEADER_BYTES] {
    let mut header = tar::Header::new_ustar();
    // The name is short and has no characters that tar refuses.
    let _ = header.set_path(NAME);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(SIGNATURE_BYTES as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    *header.as_bytes()
}

/// The first bytes of a bundle whose signature is not valid, for tests and fuzz targets.
pub(crate) fn unsigned() -> Vec<u8> {
    let mut first = header().to_vec();
    first.resize(HEADER_BYTES + SIGNATURE_BYTES, b'\n');
    first
}

/// Signs a file whose first [`SIGNED_FROM`] bytes are kept free.
pub(crate) fn sign(file: &mut File, path: &Path, key: &SecretKey, comment: &str) -> Result<(), BundleError> {
    file.seek(SeekFrom::Start(SIGNED_FROM)).map_err(BundleError::io("read", path))?;
    let signature = key.sign(&mut *file, comment).map_err(BundleError::io("read", path))?;
    let mut first = header().to_vec();
    first.extend_from_slice(signature.as_bytes());
    if first.len() as u64 > SIGNED_FROM {
        return Err(BundleError::content(path, "name and version are too long for the comment of a signature"));
    }
    first.resize(HEADER_BYTES + SIGNATURE_BYTES, b'\n');
    file.rewind().and_then(|()| file.write_all(&first)).map_err(BundleError::io("write", path))
}

/// Checks size and signature, and returns the file of the key. `path` names the bundle in errors.
pub(crate) fn verify(file: &mut File, path: &Path, keys: &PublicKeys, limit: u64) -> Result<PathBuf, BundleError> {
    let signature = read_signature(file, path, limit)?;
    let key = keys.verify(&signature, path, &mut *file)?;
    Ok(key.to_owned())
}

/// The text of the signature, unchecked; what is signed follows in the file.
pub(crate) fn read_signature(file: &mut File, path: &Path, limit: u64) -> Result<String, BundleError> {
    let size = file.metadata().map_err(BundleError::io("read", path))?.len();
    if size > limit {
        return Err(BundleError::TooLarge { path: path.to_owned(), size, limit });
    }
    let none = |cause: String| BundleError::NotABundle { path: path.to_owned(), cause };
    if size <= SIGNED_FROM {
        return Err(none("it is too short".to_owned()));
    }
    let mut first = [0; HEADER_BYTES + SIGNATURE_BYTES];
    file.rewind().and_then(|()| file.read_exact(&mut first)).map_err(BundleError::io("read", path))?;
    signature(&first).map_err(none)
}

/// The text of the signature in the first [`SIGNED_FROM`] bytes, unchecked; `Err`: why there is none.
pub(crate) fn signature(first: &[u8]) -> Result<String, String> {
    let Some((begin, signature)) = first.split_at_checked(HEADER_BYTES) else {
        return Err("it is too short".to_owned());
    };
    if begin != header() {
        return Err(format!("it does not begin with {NAME}"));
    }
    let text = std::str::from_utf8(signature).map_err(|_| "its signature is not text")?;
    Ok(format!("{}\n", text.trim_end()))
}
