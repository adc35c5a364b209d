//! Checks which images may be used: the keys of `imagePolicy`, and containerd's image verifiers.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::Finding;
use crate::config::Config;
use limpet_containerd::image_verifier::{self, VerifierSettings};
use limpet_image_policy::key::{MAX_KEY_FILE, VerificationKey};

pub(super) fn examine(config: &Config) -> Vec<Finding> {
    let policy = config.images.policy.iter().flat_map(|policy| {
        let rules = policy.rules.len();
        let summary = format!("{rules} rules; every other image: {}", policy.default.as_str());
        let keys: Vec<Finding> = policy.key_files().into_iter().filter_map(key).collect();
        if keys.is_empty() { vec![Finding::ok("imagePolicy", summary)] } else { keys }
    });
    let verifiers =
        image_verifier::settings(&config.runtime.containerd_config).and_then(|settings| verifiers(&settings));
    policy.chain(verifiers).collect()
}

/// What is wrong with a key.
fn key(file: &Path) -> Option<Finding> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(MAX_KEY_FILE).read_to_end(&mut bytes));
    let cause = match read {
        Ok(_) => VerificationKey::from_pem(&bytes).err()?.to_string(),
        Err(error) => format!("cannot be read: {error}"),
    };
    let remedy = "Images that need this key are refused. Restore the file, or change imagePolicy and restart limpet";
    Some(Finding::degraded("imagePolicy", format!("{} {cause}", file.display()), remedy))
}

/// The programs that are asked before each pull; `None` if there are none.
fn verifiers(settings: &VerifierSettings) -> Option<Finding> {
    let entries = std::fs::read_dir(&settings.directory).ok()?.flatten();
    let programs: Vec<_> = entries.map(|entry| entry.path()).collect();
    let broken = programs.iter().find(|path| {
        !std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    });
    let directory = settings.directory.display();
    match (programs.len(), broken) {
        (0, _) => None,
        (_, Some(broken)) => {
            let text = format!("{} is not executable: every pull is refused", broken.display());
            Some(Finding::degraded("image verifiers", text, "Remove the file, or make it executable"))
        }
        (1, None) => {
            Some(Finding::ok("image verifiers", format!("1 program in {directory} is asked before each pull")))
        }
        (count, None) => {
            Some(Finding::ok("image verifiers", format!("{count} programs in {directory} are asked before each pull")))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Level;
    use super::*;
    use limpet_image_policy::policy::{ImagePolicy, Requirement};

    #[test]
    fn what_refuses_every_image_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let settings = VerifierSettings { directory: directory.path().to_owned(), ..VerifierSettings::default() };
        assert_eq!(verifiers(&settings), None);
        let program = directory.path().join("cosign");
        std::fs::write(&program, "").unwrap();
        let finding = verifiers(&settings).unwrap();
        assert_eq!(finding.level, Level::Degraded);
        assert!(finding.text.starts_with(&program.display().to_string()), "{finding:?}");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let finding = verifiers(&settings).unwrap();
        assert!(finding.level == Level::Ok && finding.text.starts_with("1 program in "), "{finding:?}");
    }

    #[test]
    fn a_key_that_cannot_verify_is_reported_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("plant.pub");
        let containerd_config = directory.path().join("config.toml");
        let examined = |requirement| {
            let policy = Some(ImagePolicy { rules: Vec::new(), default: requirement });
            let directory = directory.path().join("verifiers");
            let text = format!("[plugins.'io.containerd.image-verifier.v1.bindir']\nbin_dir = {directory:?}\n");
            std::fs::write(&containerd_config, text).unwrap();
            let mut config = Config::default();
            (config.images.policy, config.runtime.containerd_config) = (policy, containerd_config.clone());
            examine(&config)
        };
        let finding = examined(Requirement::Cosign(vec![file.clone()])).remove(0);
        assert!(finding.level == Level::Degraded && finding.text.contains("plant.pub cannot be read"), "{finding:?}");
        std::fs::write(&file, "no key").unwrap();
        let finding = examined(Requirement::Cosign(vec![file.clone()])).remove(0);
        assert!(finding.text.contains("plant.pub is not PEM"), "{finding:?}");
        let finding = examined(Requirement::Digest).remove(0);
        assert_eq!((finding.level, finding.text.as_str()), (Level::Ok, "0 rules; every other image: digest"));
    }
}
