//! The node's own key, with which its reports are signed. It is made when it is needed for the first time.

use std::path::{Path, PathBuf};

use limpet_bundle::SecretKey;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::private_file;

/// The key in that file; the public one is beside it, with the extension `pub`. A missing pair is made.
///
/// # Errors
/// It cannot be read or written.
pub(super) async fn read_or_make(path: PathBuf) -> Result<SecretKey, String> {
    let place = path.clone();
    let key = blocking::run(place, DEADLINE, move |_| {
        if !path.exists() {
            make(&path)?;
        }
        SecretKey::read(&path).map_err(|error| error.to_string())
    });
    key.await.map_err(|error| error.to_string())?
}

/// The public key is written first: a key that is there has always been announced.
fn make(path: &Path) -> Result<(), String> {
    let pair = SecretKey::generate().ok_or("the kernel has no random numbers")?;
    let unwritten = |path: &Path| {
        let path = path.display().to_string();
        move |error: std::io::Error| format!("cannot write {path}: {error}")
    };
    let public = path.with_extension("pub");
    private_file::write(&public, &pair.public).map_err(unwritten(&public))?;
    private_file::write(path, &pair.secret).map_err(unwritten(path))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_bundle::PublicKeys;

    use super::*;

    #[tokio::test]
    async fn a_key_is_made_once_and_its_public_half_verifies_what_it_signs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.key");
        let first = read_or_make(path.clone()).await.unwrap();
        let again = read_or_make(path.clone()).await.unwrap();
        let keys = PublicKeys::read(&[path.with_extension("pub")]).unwrap();
        for key in [first, again] {
            let signature = key.sign(&b"report"[..], "of edge1").unwrap();
            keys.verify(&signature, Path::new("report"), &b"report"[..]).unwrap();
            assert!(keys.verify(&signature, Path::new("report"), &b"another"[..]).is_err());
        }
        assert!(read_or_make(dir.path().join("none/report.key")).await.is_err());
    }
}
