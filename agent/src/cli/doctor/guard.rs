//! The manifest guard: if one is configured, its programs are attached to a scratch directory, must deny a change in
//! it, and are detached. Pinned programs are left alone.

use std::path::Path;

use limpet_bpf::{GuardError, GuardMode, GuardRules, GuardState, Guarded, InodeId, Kernel, Request};

use super::scratch::Scratch;
use super::{Finding, Level};
use crate::config::Config;
use crate::manifest_guard::{ArmError, PINS};
use crate::node::facts;

const GUARD: &str = "guard";

pub(super) async fn examine(config: &Config) -> Finding {
    // A build without the feature cannot check: it will not arm a guard either.
    let pinned = limpet_bpf::state(Path::new(PINS)).unwrap_or(GuardState::Off);
    let Some(mode) = config.guard.mode else { return not_asked_for(&pinned) };
    let tried = tokio::task::spawn_blocking(move || attempt(mode)).await;
    let tried = tried.unwrap_or_else(|panicked| Err(ArmError::Failed(panicked.into())));
    judge(mode, config.guard.required, &pinned, tried)
}

fn not_asked_for(pinned: &GuardState) -> Finding {
    match pinned {
        GuardState::Off => Finding::ok(GUARD, "off"),
        GuardState::Pinned { mode, .. } => {
            let text = format!("off, and an earlier one is still on ({mode})");
            Finding::degraded(GUARD, text, "Take it away: limpet guard off")
        }
    }
}

/// Attaches all hooks, and checks that they deny a change.
fn attempt(mode: GuardMode) -> Result<(), ArmError> {
    if !facts::cgroup_v2() {
        return Err(ArmError::CgroupVersion);
    }
    let missing = |path: &Path, source| ArmError::Missing { path: path.to_owned(), source };
    // Dropped after the programs attached to it.
    let scratch = Scratch::new().map_err(|source| missing(&std::env::temp_dir(), source))?;
    let own = Path::new("/proc/self/exe");
    let rules = GuardRules {
        mode,
        guarded: vec![Guarded::directory(scratch.path()).map_err(|source| missing(scratch.path(), source))?],
        pod_cgroups: Vec::new(),
        allowed_executables: vec![InodeId::of(own).map_err(|source| missing(own, source))?],
        allowed_cgroups: Vec::new(),
    };
    let mut loaded = Kernel::read().load(&Request { guard: Some(rules), ..Request::default() })?;
    Ok(limpet_bpf::prove(&mut loaded)?)
}

fn judge(mode: GuardMode, required: bool, pinned: &GuardState, tried: Result<(), ArmError>) -> Finding {
    let error = match tried {
        Ok(()) => {
            let now = match pinned {
                GuardState::Off => "none is on now".to_owned(),
                GuardState::Pinned { mode, hooks, .. } => format!("one is on: {mode}, {} hooks", hooks.len()),
            };
            return Finding::ok(GUARD, format!("{}: every hook can be held, and refuses; {now}", mode.name()));
        }
        Err(ArmError::Arm(GuardError::Hooks(hooks))) => {
            format!("the kernel does not take these hooks: {}", hooks.join("; "))
        }
        Err(error) => error.to_string(),
    };
    let (level, lost) = match required {
        true => (Level::Failed, "limpet does not start"),
        false => (Level::Degraded, "manifests are not guarded"),
    };
    Finding::new(level, GUARD, format!("{error}; {lost}"), "See docs/guard.md, \"What it needs\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_is_judged_by_the_attempt() {
        let mode = GuardMode::Containers;
        let pinned = GuardState::Pinned { mode: "strict".to_owned(), hooks: vec!["inode_create"], missing: Vec::new() };
        let hooks = || Err(GuardError::Hooks(vec!["path_truncate: no such hook".to_owned()]).into());
        for (finding, level, part) in [
            (not_asked_for(&GuardState::Off), Level::Ok, "off"),
            (not_asked_for(&pinned), Level::Degraded, "strict"),
            (judge(mode, true, &GuardState::Off, Ok(())), Level::Ok, "none is on now"),
            (judge(mode, true, &pinned, Ok(())), Level::Ok, "strict, 1 hooks"),
            (judge(mode, true, &pinned, hooks()), Level::Failed, "path_truncate"),
            (judge(mode, false, &pinned, hooks()), Level::Degraded, "not guarded"),
            (judge(mode, true, &pinned, Err(ArmError::CgroupVersion)), Level::Failed, "cgroup v1"),
        ] {
            assert!(finding.level == level && finding.text.contains(part), "{finding:?}");
        }
    }

    #[tokio::test]
    async fn a_guard_that_is_not_configured_is_not_tried() {
        let finding = examine(&Config::default()).await;
        assert!(finding.text.starts_with("off"), "{finding:?}");
    }
}
