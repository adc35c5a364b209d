//! The node's key pair, to which Secrets of bundles are sealed. It is made when the agent starts without one.

use std::io;
use std::path::{Path, PathBuf};

use limpet_bundle::node_key::{NodeKey, NodeKeyError, NodePublicKey};
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::private_file;

/// The public half of the key in that file.
///
/// # Errors
/// It cannot be read.
pub async fn public_node_key(path: PathBuf) -> Result<NodePublicKey, NodeKeyError> {
    let place = path.clone();
    let read = blocking::run(path.clone(), DEADLINE, move |_| NodeKey::read(&path)).await;
    let key = read.unwrap_or_else(|source| Err(NodeKeyError::Read { path: place, source }));
    key.map(|key| key.public())
}

/// Makes the key if there is none. Its public half is beside it, with the extension `pub`.
///
/// # Errors
/// It cannot be written.
pub(super) async fn make_missing(path: PathBuf) -> io::Result<()> {
    blocking::run(path.clone(), DEADLINE, move |_| if path.try_exists()? { Ok(()) } else { make(&path) }).await?
}

/// The public half is written first: a key that is there has always been announced.
fn make(path: &Path) -> io::Result<()> {
    let key = NodeKey::generate().ok_or_else(|| io::Error::other("the kernel has no random numbers"))?;
    let public = path.with_extension("pub");
    if public.exists() {
        tracing::warn!(
            path = %path.display(),
            "the node's key is missing, and another one was made: bundles that are sealed to the one before cannot be opened"
        );
    }
    private_file::write(&public, &key.public().pem())?;
    private_file::write(path, &key.pem())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn a_key_is_made_once_for_root_alone_and_what_is_there_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.key");
        assert!(public_node_key(path.clone()).await.is_err());
        make_missing(path.clone()).await.unwrap();
        let public = public_node_key(path.clone()).await.unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(NodePublicKey::read(&path.with_extension("pub")).unwrap(), public);
        make_missing(path.clone()).await.unwrap();
        assert_eq!(public_node_key(path.clone()).await.unwrap(), public);
        std::fs::write(&path, "damaged").unwrap();
        make_missing(path.clone()).await.unwrap();
        assert!(matches!(public_node_key(path.clone()).await, Err(NodeKeyError::NoPrivateKey(_))));
        assert!(make_missing(dir.path().join("none/node.key")).await.is_err());
    }
}
