//! Checks what bundles need: the keys that may sign them, and the node's own key, to which Secrets are sealed.

use limpet_bundle::PublicKeys;
use limpet_bundle::node_key::{NodeKey, NodeKeyError};

use super::Finding;
use crate::config::Config;

/// Nothing if the node takes no bundles.
pub(super) fn examine(config: &Config) -> Vec<Finding> {
    let Some(settings) = &config.bundle else { return Vec::new() };
    let refused = |key| PublicKeys::read(std::slice::from_ref(key)).err();
    let remedy = "Every bundle is refused. Restore the file, or change bundle.keys and restart limpet";
    let mut findings: Vec<Finding> = settings
        .keys
        .iter()
        .filter_map(refused)
        .map(|error| Finding::degraded("bundle.keys", error.to_string(), remedy))
        .collect();
    if findings.is_empty() {
        let keys: Vec<String> = settings.keys.iter().map(|key| key.display().to_string()).collect();
        findings.push(Finding::ok("bundle.keys", keys.join(", ")));
    }
    findings.extend(node_key(config));
    findings
}

/// `None`: there is none yet. The agent makes it at its next start.
fn node_key(config: &Config) -> Option<Finding> {
    let path = config.node_key();
    match NodeKey::read(&path) {
        Ok(key) => Some(Finding::ok("node key", format!("{} is {}", path.display(), key.public().id()))),
        Err(NodeKeyError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            let remedy = "Bundles with Secrets that are sealed to this node are refused";
            Some(Finding::degraded("node key", error.to_string(), remedy))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_bundle::settings::BundleSettings;

    use super::super::Level;
    use super::*;

    #[test]
    fn a_key_that_refuses_bundles_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("plant.pub");
        let settings = BundleSettings {
            keys: vec![key.clone()],
            directory: None,
            image: None,
            interval: BundleSettings::DEFAULT_INTERVAL,
            max_size: BundleSettings::DEFAULT_MAX_SIZE,
        };
        assert_eq!(examine(&Config::default()), []);
        let config = Config { bundle: Some(settings), root_dir: dir.path().to_owned(), ..Config::default() };
        let finding = examine(&config).remove(0);
        assert!(finding.level == Level::Degraded && finding.text.contains("plant.pub"), "{finding:?}");
        std::fs::write(&key, "404").unwrap();
        assert!(examine(&config)[0].text.contains("no public key of minisign's"));
        std::fs::write(&key, "RWRsaW1wZXQtYXWOsgqb1QPEBEhgXI40wyfnkK4BHW02ThAsWfOh9zkU").unwrap();
        let findings = examine(&config);
        assert_eq!((findings.len(), findings[0].level), (1, Level::Ok));
        let node_key = NodeKey::generate().unwrap();
        std::fs::write(config.node_key(), &*node_key.pem()).unwrap();
        assert!(examine(&config)[1].text.ends_with(&node_key.public().id()));
        std::fs::write(config.node_key(), "404").unwrap();
        let finding = examine(&config).remove(1);
        assert!(finding.level == Level::Degraded && finding.text.contains("no private key"), "{finding:?}");
    }
}
