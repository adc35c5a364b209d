//! The manifest guard: if one is configured, its programs are attached to a scratch directory, must deny a change in
//! it, and are detached. Pinned programs are left alone.

use std::path::Path;

use limpet_bpf::{GuardError, GuardMode, GuardRules, GuardState, Guarded, InodeId, Kernel, Request};

use super::machine::version;
use super::scratch::Scratch;
use super::{Finding, Level};
use crate::config::Config;
use crate::manifest_guard::{ArmError, PINS};
use limpet_node::machine_facts;

const GUARD: &str = "guard";
/// The first kernel that may skip an LSM program while another process is preempted in it, and the first that no
/// longer does.
const SKIPPING: std::ops::Range<(u32, u32)> = (5, 12)..(6, 2);
/// How a kernel with `PREEMPT_DYNAMIC` is preempted: `none (voluntary) full`.
const PREEMPTION: &str = "/sys/kernel/debug/sched/preempt";

pub(super) async fn examine(config: &Config) -> Finding {
    // A build without the feature cannot check, but does not arm a guard either.
    let pinned = limpet_bpf::state(Path::new(PINS)).unwrap_or(GuardState::Off);
    let Some(mode) = config.guard.mode else { return not_configured(&pinned) };
    let tried = tokio::task::spawn_blocking(move || attempt(mode)).await;
    let tried = tried.unwrap_or_else(|panicked| Err(ArmError::Failed(panicked.into())));
    let uname = rustix::system::uname();
    let preemption = std::fs::read_to_string(PREEMPTION).ok();
    let gap = gap(&uname.release().to_string_lossy(), &uname.version().to_string_lossy(), preemption.as_deref());
    judge(mode, config.guard.required, &pinned, tried, gap)
}

/// How this kernel may let a change through by preemption, if it may, according to `uname -r` and `-v` and to
/// [`PREEMPTION`].
fn gap(release: &str, built: &str, preemption: Option<&str>) -> Option<&'static str> {
    if !SKIPPING.contains(&version(release)) {
        return None;
    }
    let built_with = |word: &str| built.split_whitespace().any(|listed| listed == word);
    if built_with("PREEMPT") || built_with("PREEMPT_RT") {
        return Some("it is preemptible");
    }
    match preemption {
        _ if !built_with("PREEMPT_DYNAMIC") => None,
        Some(modes) => modes.contains("(full)").then_some("it is preemptible, preempt=full"),
        None => Some("it is preemptible if it runs with preempt=full"),
    }
}

fn not_configured(pinned: &GuardState) -> Finding {
    match pinned {
        GuardState::Off => Finding::ok(GUARD, "off"),
        GuardState::Pinned { mode, .. } => {
            let text = format!("off, and an earlier one is still on ({mode})");
            Finding::degraded(GUARD, text, "Remove it: limpet guard off")
        }
    }
}

/// Attaches all hooks, and checks that they deny a change.
fn attempt(mode: GuardMode) -> Result<(), ArmError> {
    if !machine_facts::cgroup_v2() {
        return Err(ArmError::CgroupVersion);
    }
    let missing = |path: &Path, source| ArmError::Missing { path: path.to_owned(), source };
    // Declared first, so that it is dropped after the programs that are attached to it.
    let scratch = Scratch::new().map_err(|source| missing(&std::env::temp_dir(), source))?;
    let agent = Path::new("/proc/self/exe");
    let rules = GuardRules {
        mode,
        guarded: vec![Guarded::directory(scratch.path()).map_err(|source| missing(scratch.path(), source))?],
        pod_cgroups: Vec::new(),
        allowed_executables: vec![InodeId::read(agent).map_err(|source| missing(agent, source))?],
        allowed_cgroups: Vec::new(),
    };
    let mut loaded = Kernel::read().load(&Request { guard: Some(rules), ..Request::default() })?;
    Ok(limpet_bpf::prove(&mut loaded)?)
}

fn judge(
    mode: GuardMode,
    required: bool,
    pinned: &GuardState,
    tried: Result<(), ArmError>,
    gap: Option<&str>,
) -> Finding {
    let error = match tried {
        Ok(()) => {
            let now = match pinned {
                GuardState::Off => "none is on now".to_owned(),
                GuardState::Pinned { mode, hooks, .. } => format!("one is on: {mode}, {} hooks", hooks.len()),
            };
            let text = format!("{}: every hook can be held, and refuses; {now}", mode.name());
            let Some(gap) = gap else { return Finding::ok(GUARD, text) };
            let skips =
                "this kernel may skip a hook while another process is preempted in it, and let that change through";
            let remedy = "Use Linux 6.2 or newer, or one that is not preemptible (preempt=voluntary)";
            return Finding::degraded(GUARD, format!("{text}; {skips}: {gap}"), remedy);
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
            (
                judge(mode, true, &GuardState::Off, Ok(()), Some("it is preemptible")),
                Level::Degraded,
                "preempted in it",
            ),
            (judge(mode, true, &GuardState::Off, hooks(), Some("it is preemptible")), Level::Failed, "path_truncate"),
            (not_configured(&GuardState::Off), Level::Ok, "off"),
            (not_configured(&pinned), Level::Degraded, "strict"),
            (judge(mode, true, &GuardState::Off, Ok(()), None), Level::Ok, "none is on now"),
            (judge(mode, true, &pinned, Ok(()), None), Level::Ok, "strict, 1 hooks"),
            (judge(mode, true, &pinned, hooks(), None), Level::Failed, "path_truncate"),
            (judge(mode, false, &pinned, hooks(), None), Level::Degraded, "not guarded"),
            (judge(mode, true, &pinned, Err(ArmError::CgroupVersion), None), Level::Failed, "cgroup v1"),
        ] {
            assert!(finding.level == level && finding.text.contains(part), "{finding:?}");
        }
    }

    #[test]
    fn a_preemptible_kernel_from_5_12_to_6_1_has_a_gap() {
        let full = Some("none voluntary (full)\n");
        let voluntary = Some("none (voluntary) full\n");
        for (release, built, preemption, part) in [
            ("5.11.22-amd64", "#1 SMP PREEMPT Mon", None, None),
            ("5.12.0", "#1 SMP PREEMPT Mon", None, Some("it is preemptible")),
            ("5.15.0-1012-realtime", "#12 SMP PREEMPT_RT Mon", None, Some("it is preemptible")),
            ("5.15.0-91-generic", "#101-Ubuntu SMP Tue", None, None),
            ("6.1.0-41-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.158-1", voluntary, None),
            ("6.1.0-41-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.158-1", full, Some("preempt=full")),
            ("6.1.0-41-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.158-1", None, Some("if it runs with preempt=full")),
            ("6.2.0", "#1 SMP PREEMPT Mon", full, None),
            ("6.12.117+deb13-cloud-amd64", "#1 SMP PREEMPT_DYNAMIC Debian", full, None),
        ] {
            let gap = gap(release, built, preemption);
            assert_eq!(gap.is_some(), part.is_some(), "{release} {built} {preemption:?}: {gap:?}");
            assert!(part.is_none_or(|part| gap.is_some_and(|gap| gap.contains(part))), "{release} {built}: {gap:?}");
        }
    }

    #[tokio::test]
    async fn a_guard_that_is_not_configured_is_not_tried() {
        let finding = examine(&Config::default()).await;
        assert!(finding.text.starts_with("off"), "{finding:?}");
    }
}
