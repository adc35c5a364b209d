//! The self-signed certificate of a node without a configured one, as kubelet creates it, below the root directory.

use std::path::{Path, PathBuf};
use std::{fs, io};

use limpet_host::private_file::write;

#[derive(Debug, thiserror::Error)]
pub(super) enum SelfSignedError {
    #[error(transparent)]
    Make(#[from] rcgen::Error),
    #[error("write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// `kubelet.crt` and `kubelet.key` in `directory`, created for the node's name if they do not exist. Blocks.
pub(super) fn ensure(directory: &Path, node_name: &str) -> Result<(PathBuf, PathBuf), SelfSignedError> {
    let (certificate, key) = (directory.join("kubelet.crt"), directory.join("kubelet.key"));
    if certificate.exists() && key.exists() {
        return Ok((certificate, key));
    }
    let made = rcgen::generate_simple_self_signed(vec![node_name.to_owned(), "localhost".to_owned()])?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| SelfSignedError::Write { path, source }
    };
    fs::create_dir_all(directory).map_err(failed(directory))?;
    // The certificate is written last: after a power cut both are created again.
    write(&key, &made.signing_key.serialize_pem()).map_err(failed(&key))?;
    write(&certificate, &made.cert.pem()).map_err(failed(&certificate))?;
    Ok((certificate, key))
}
