//! Checks the programs that updates ask: without them nothing new stays, or nothing is downloaded.

use std::path::Path;

use limpet_generations::CheckAction;
use rustix::fs::{Access, access};

use super::Finding;
use crate::config::Config;

/// Nothing if no program is configured.
pub(super) fn examine(config: &Config) -> Vec<Finding> {
    let check = match &config.generations.settings.check {
        Some(CheckAction::Command(words)) => words.first(),
        Some(CheckAction::Url(_)) | None => None,
    };
    let metered = config.updates.gate.download.metered_command.as_ref().and_then(|words| words.first());
    let check =
        check.map(|program| program_finding("generations.check", program, "Every change is undone at its deadline"));
    let metered = metered.map(|program| {
        program_finding("updates.download.meteredCommand", program, "The link counts as metered: nothing is downloaded")
    });
    check.into_iter().chain(metered).collect()
}

fn program_finding(key: &'static str, program: &str, effect: &str) -> Finding {
    match access(Path::new(program), Access::EXEC_OK) {
        Ok(()) => Finding::ok(key, program.to_owned()),
        Err(error) => {
            let remedy = format!("{effect}. Install the program, or change {key} and restart limpet");
            Finding::degraded(key, format!("{program} cannot be run: {}", std::io::Error::from(error)), remedy)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::Level;
    use super::*;

    #[test]
    fn a_program_that_cannot_be_run_is_named_with_what_follows_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("plant-check");
        let words = vec![program.display().to_string(), "-v".to_owned()];
        let mut config = Config::default();
        assert_eq!(examine(&config), []);
        config.generations.settings.check = Some(CheckAction::Command(words.clone()));
        config.updates.gate.download.metered_command = Some(words);
        let findings = examine(&config);
        let [check, metered] = &findings[..] else { panic!("{findings:?}") };
        assert!(check.level == Level::Degraded && check.text.contains("plant-check"), "{check:?}");
        assert!(metered.level == Level::Degraded && metered.text.contains("plant-check"), "{metered:?}");
        std::fs::write(&program, "").unwrap();
        let set_mode = |mode| std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o644);
        assert!(examine(&config).iter().all(|finding| finding.level == Level::Degraded));
        set_mode(0o755);
        assert!(examine(&config).iter().all(|finding| finding.level == Level::Ok));
    }
}
