//! Whether the key is available with which Secrets on disk are encrypted.

use super::Finding;
use crate::config::Config;
use limpet_model::error_chain::error_chain;
use limpet_store::{KeyError, KeyLocation, Sealer};

/// Reports nothing about a key that systemd passes only to the unit.
pub(super) async fn examine(config: &Config) -> Option<Finding> {
    let key = config.secret_key.as_ref().filter(|key| !matches!(key, KeyLocation::Credential(_)))?;
    Some(finding(key, Sealer::open(key, None).await.err().as_ref()))
}

fn finding(key: &KeyLocation, failure: Option<&KeyError>) -> Finding {
    let remedy = "Secrets are neither loaded from disk nor saved: pods that need them wait, unless a file or an apiserver \
                  provides them. Restore the key, or create a new one, and restart limpet";
    match failure {
        None => Finding::ok("secretEncryptionKey", key.to_string()),
        Some(failure) => Finding::degraded("secretEncryptionKey", error_chain(failure), remedy),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::Level;
    use super::*;

    #[tokio::test]
    async fn a_key_that_cannot_be_had_is_reported_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret.key");
        let with_key = async |key| examine(&Config { secret_key: key, ..Config::default() }).await;
        assert_eq!(with_key(None).await, None);
        assert_eq!(with_key(Some(KeyLocation::Credential("limpet".to_owned()))).await, None);
        let missing = with_key(Some(KeyLocation::File(path.clone()))).await.unwrap();
        assert!(missing.level == Level::Degraded && missing.text.contains("secret.key"), "{missing:?}");
        std::fs::write(&path, [7; 32]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(with_key(Some(KeyLocation::File(path))).await.unwrap().level, Level::Ok);
    }
}
