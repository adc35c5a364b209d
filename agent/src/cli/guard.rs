//! `limpet guard`: shows or removes the manifest guard. It asks the kernel and not the agent, so it works without
//! one.

use std::io;
use std::path::Path;

use limpet_bpf::GuardState;

use crate::manifest_guard::PINS;
use limpet_cli::error::{CliError, EXIT_FAULTS};
use limpet_cli::screen::Screen;

/// Arguments of `limpet guard`.
#[derive(Debug, clap::Args)]
pub(super) struct GuardArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show whether the manifests are guarded; exit code 1 if not
    Status,
    /// Remove the guard until the agent starts again; set manifestGuard: off to keep it off
    Off,
}

pub(super) fn run(args: &GuardArgs, screen: Screen) -> Result<u8, CliError> {
    match args.action {
        Action::Status => status(screen),
        Action::Off => {
            let was = limpet_bpf::disarm(Path::new(PINS)).map_err(failed("remove the guard"))?;
            screen.print(if was { "the guard is off\n" } else { "there was no guard\n" })?;
            Ok(0)
        }
    }
}

fn status(screen: Screen) -> Result<u8, CliError> {
    let state = limpet_bpf::state(Path::new(PINS)).map_err(failed("read the guard's state"))?;
    let (text, code) = describe(&state);
    screen.print(&format!("{text}\n"))?;
    Ok(code)
}

/// A guard with missing hooks is never reported as on.
fn describe(state: &GuardState) -> (String, u8) {
    match state {
        GuardState::Off => ("off".to_owned(), EXIT_FAULTS),
        GuardState::Pinned { mode, hooks, missing } if missing.is_empty() => {
            (format!("on: {mode}, {} hooks", hooks.len()), 0)
        }
        GuardState::Pinned { mode, missing, .. } => {
            let missing = missing.join(", ");
            (format!("not on: {mode}, but these hooks are missing: {missing}; restart limpet to arm it"), EXIT_FAULTS)
        }
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> CliError {
    move |source| CliError::System { what: format!("{what} ({PINS})"), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_with_missing_hooks_is_not_on() {
        let pinned = |missing: Vec<&'static str>| GuardState::Pinned {
            mode: "containers".to_owned(),
            hooks: vec!["inode_create"],
            missing,
        };
        assert_eq!(describe(&GuardState::Off), ("off".to_owned(), 1));
        assert_eq!(describe(&pinned(vec![])), ("on: containers, 1 hooks".to_owned(), 0));
        let (text, code) = describe(&pinned(vec!["file_open"]));
        assert!(text.starts_with("not on") && text.contains("file_open") && code == 1, "{text}");
    }
}
