//! Checks which other users may read the configuration and the manifests, which may contain Secrets and passwords, or
//! write the agent's state.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Finding;
use crate::config::Config;

/// The bits for reading, writing and searching by others.
const OTHERS_MODE: u32 = 0o007;
/// The bits for writing by the group and by others.
const GROUP_OR_OTHERS_WRITE: u32 = 0o022;

/// A path whose mode matters.
struct CheckedPath {
    what: &'static str,
    path: PathBuf,
    /// The bits it should not have.
    refused: u32,
    /// The mode to give it.
    mode: u32,
}

pub(super) fn examine(config: &Config, config_file: Option<&Path>) -> Vec<Finding> {
    let secret = OTHERS_MODE | GROUP_OR_OTHERS_WRITE;
    let manifests = config.sources.manifest_path.as_deref();
    let manifests = manifests.map(|path| ("manifests", path, secret, if path.is_dir() { 0o700 } else { 0o600 }));
    let places = [
        config_file.map(|path| ("configuration", path, secret, 0o600)),
        manifests,
        Some(("root directory", config.root_dir.as_path(), GROUP_OR_OTHERS_WRITE, 0o750)),
        Some(("run directory", config.run_dir.as_path(), GROUP_OR_OTHERS_WRITE, 0o755)),
    ];
    let places = places.into_iter().flatten();
    let mut places =
        places.map(|(what, path, refused, mode)| CheckedPath { what, path: path.to_owned(), refused, mode });
    places.by_ref().filter_map(|place| judge(&place, &place.path.metadata().ok()?)).collect()
}

/// What is wrong with the mode or the owner of a place.
fn judge(place: &CheckedPath, metadata: &Metadata) -> Option<Finding> {
    let (path, mode) = (place.path.display(), metadata.mode() & 0o777);
    if metadata.uid() != 0 {
        let text = format!("{path} belongs to user {}, who can change files that root uses", metadata.uid());
        return Some(Finding::degraded(place.what, text, format!("Run: chown root {path}")));
    }
    let remedy = format!("Run: chmod {:04o} {path}", place.mode);
    let who = |bits: u32| if bits & 0o007 != 0 { "every user of this machine" } else { "its group" };
    match mode & place.refused {
        0 => None,
        bits if bits & GROUP_OR_OTHERS_WRITE != 0 => {
            let text = format!("{path} ({mode:04o}) can be written by {}", who(bits & GROUP_OR_OTHERS_WRITE));
            Some(Finding::degraded(place.what, text, remedy))
        }
        bits => {
            let text =
                format!("{path} ({mode:04o}) can be read by {}, with the Secrets and passwords in it", who(bits));
            Some(Finding::degraded(place.what, text, remedy))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_others_may_read_or_write_is_reported_with_the_command_that_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let metadata = dir.path().metadata().unwrap();
        if metadata.uid() != 0 {
            let place = CheckedPath { what: "manifests", path: dir.path().to_owned(), refused: 0, mode: 0o700 };
            assert!(judge(&place, &metadata).unwrap().text.contains("belongs to user"));
            return;
        }
        let path = dir.path().display();
        for (mode, refused, expected) in [
            (0o700, OTHERS_MODE | GROUP_OR_OTHERS_WRITE, None),
            (0o750, OTHERS_MODE | GROUP_OR_OTHERS_WRITE, None),
            (
                0o755,
                OTHERS_MODE | GROUP_OR_OTHERS_WRITE,
                Some("(0755) can be read by every user of this machine, with the Secrets"),
            ),
            (0o770, OTHERS_MODE | GROUP_OR_OTHERS_WRITE, Some("(0770) can be written by its group")),
            (0o777, GROUP_OR_OTHERS_WRITE, Some("(0777) can be written by every user of this machine")),
            (0o755, GROUP_OR_OTHERS_WRITE, None),
        ] {
            set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            let place = CheckedPath { what: "manifests", path: dir.path().to_owned(), refused, mode: 0o700 };
            let finding = judge(&place, &dir.path().metadata().unwrap());
            assert_eq!(finding.is_some(), expected.is_some(), "{mode:o}: {finding:?}");
            if let (Some(finding), Some(expected)) = (finding, expected) {
                assert!(finding.text.contains(expected), "{finding:?}");
                assert_eq!(finding.remedy, format!("Run: chmod 0700 {path}"));
            }
        }
    }
}
