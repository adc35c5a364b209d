//! The guard: every change, every hook, every mode, and that it outlives the agent.

use std::path::{Path, PathBuf};

use limpet_bpf::{
    Event, GuardError, GuardMode, GuardRules, GuardState, Guarded, InodeId, Kernel, Loaded, Request, ancestors, arm,
    disarm, state,
};

use crate::act::{self, OUTSIDE, Paths};
use crate::machine::{self, BPF};
use crate::{CaseResult, block_on, event, to_text};

/// A container's cgroup, two levels below what holds the pods.
const POD: &str = "kubepods/burstable/pod1";

/// Each change, and the programs that refuse it.
const CHANGES: [(&str, &[&str]); 32] = [
    ("create", &["guard_create"]),
    ("open", &["guard_open"]),
    ("truncate", &["guard_truncate", "guard_attributes"]),
    ("open truncating", &["guard_truncate", "guard_attributes"]),
    ("chmod", &["guard_attributes"]),
    ("chmod of the directory", &["guard_attributes"]),
    ("xattr", &["guard_xattr"]),
    ("xattr removal", &["guard_xattr_removal"]),
    // Before 6.2 a list is set and removed as an attribute.
    ("acl", &["guard_acl", "guard_xattr"]),
    ("acl removal", &["guard_acl_removal", "guard_xattr_removal"]),
    ("unlink", &["guard_unlink"]),
    ("symlink", &["guard_symlink"]),
    ("link in", &["guard_link"]),
    ("link out", &["guard_link"]),
    ("mkdir", &["guard_mkdir"]),
    ("rmdir", &["guard_rmdir"]),
    ("mknod", &["guard_mknod"]),
    ("rename in", &["guard_rename"]),
    ("rename out", &["guard_rename"]),
    ("rename over", &["guard_rename"]),
    ("rename within", &["guard_rename"]),
    ("rename of the directory", &["guard_rename"]),
    ("rename above", &["guard_rename"]),
    ("mount over", &["guard_mount"]),
    ("mount over a file", &["guard_mount"]),
    ("mount above", &["guard_mount"]),
    ("move mount", &["guard_move_mount"]),
    ("config: open", &["guard_open"]),
    ("config: unlink", &["guard_unlink"]),
    ("config: rename over", &["guard_rename"]),
    ("config: link", &["guard_link"]),
    ("config: chmod", &["guard_attributes"]),
];

pub(crate) fn nothing_guarded() -> GuardRules {
    GuardRules {
        mode: GuardMode::Containers,
        guarded: Vec::new(),
        pod_cgroups: Vec::new(),
        allowed_executables: Vec::new(),
        allowed_cgroups: Vec::new(),
    }
}

/// New paths below `/tmp` for each of `names`, and rules that guard them all.
fn rules_for(mode: GuardMode, names: &[String]) -> Result<(Vec<PathBuf>, GuardRules), String> {
    let (mut bases, mut guarded) = (Vec::new(), Vec::new());
    for name in names {
        let base = Path::new("/tmp").join(name);
        let paths = Paths::below(&base);
        paths.create().map_err(to_text)?;
        guarded.push(Guarded::directory(&paths.manifests).map_err(to_text)?);
        guarded.push(Guarded::file(&paths.config).map_err(to_text)?);
        guarded.extend(ancestors(&paths.manifests).map_err(to_text)?);
        bases.push(base);
    }
    machine::cgroup(POD)?;
    let pods = machine::cgroup("kubepods")?;
    Ok((bases, GuardRules { mode, guarded, pod_cgroups: vec![pods], ..nothing_guarded() }))
}

fn rules(mode: GuardMode, name: &str) -> Result<(PathBuf, GuardRules), String> {
    let (mut bases, rules) = rules_for(mode, &[name.to_owned()])?;
    Ok((bases.pop().unwrap_or_default(), rules))
}

fn guarded(kernel: &Kernel, rules: &GuardRules) -> Result<Loaded, String> {
    kernel.load(&Request { guard: Some(rules.clone()), ..Request::default() }).map_err(to_text)
}

fn expect_refused(cgroup: &str, operation: &str, base: &Path) -> Result<(), String> {
    match act::act(cgroup, operation, base)? {
        answer if answer.is_refused() => Ok(()),
        answer => Err(format!("{operation} in {cgroup} was not refused: {answer:?}")),
    }
}

fn expect_done(cgroup: &str, operation: &str, base: &Path) -> Result<(), String> {
    match act::act(cgroup, operation, base)? {
        answer if answer.is_done() => Ok(()),
        answer => Err(format!("{operation} in {cgroup} failed: {answer:?}")),
    }
}

/// Refused in a pod, done outside one, each refusal reported with its actor.
pub(crate) fn every_change_is_refused(kernel: &Kernel) -> CaseResult {
    let names: Vec<_> = (0..CHANGES.len()).map(|number| format!("every-{number}")).collect();
    let (bases, rules) = rules_for(GuardMode::Containers, &names)?;
    block_on(async {
        let mut loaded = guarded(kernel, &rules)?;
        let mut events = loaded.events().map_err(to_text)?.ok_or("no events")?;
        for ((operation, _), base) in CHANGES.iter().zip(&bases) {
            let mut writer = act::start(POD, operation, base)?;
            let pid = writer.id();
            let status = writer.wait().map_err(to_text)?;
            if status.code() != Some(rustix::io::Errno::PERM.raw_os_error()) {
                return Err(format!("{operation} in a pod ended with {status}"));
            }
            let (change, refused) = event(&mut events, operation, |event| match event {
                Event::Refused { change, refused, .. } => Some((change, refused)),
                _ => None,
            })
            .await?;
            if change.actor.pid != pid || !refused {
                return Err(format!("{operation}: {change:?}, expected process {pid}"));
            }
            let name = String::from_utf8_lossy(&change.name).into_owned();
            println!("  {operation}: refused as {} of {name:?}", change.operation.name());
            expect_done(OUTSIDE, operation, base)?;
        }
        Ok(None)
    })?
}

/// With its programs detached, and no others, the same change succeeds in a pod.
pub(crate) fn each_hook_is_needed(kernel: &Kernel) -> CaseResult {
    let names: Vec<_> = (0..CHANGES.len()).map(|number| format!("each-{number}")).collect();
    let (bases, rules) = rules_for(GuardMode::Containers, &names)?;
    let mut loaded = guarded(kernel, &rules)?;
    for ((operation, programs), base) in CHANGES.iter().zip(&bases) {
        let programs: Vec<_> = programs.iter().filter(|name| is_used(&loaded, operation, name)).collect();
        for program in &programs {
            // Two hooks refuse truncation: the remaining one is enough.
            expect_refused(POD, operation, base)?;
            if !loaded.detach(program) {
                return Err(format!("{program} was not attached"));
            }
        }
        expect_done(POD, operation, base)?;
        println!(
            "  {operation}: done without {}",
            programs.iter().map(|name| **name).collect::<Vec<_>>().join(" and ")
        );
        for program in &programs {
            loaded.attach_again(kernel, program)?;
        }
    }
    Ok(None)
}

/// Whether this kernel calls the program for the operation: it has its hook, and no newer one took its place.
fn is_used(loaded: &Loaded, operation: &str, program: &str) -> bool {
    let has = |name: &str| loaded.programs().iter().any(|state| state.name == name);
    has(program) && !(operation.starts_with("acl") && program.starts_with("guard_xattr") && has("guard_acl"))
}

pub(crate) fn modes(kernel: &Kernel) -> CaseResult {
    let (base, rules_of_audit) = rules(GuardMode::Audit, "audit")?;
    block_on(async {
        let mut loaded = guarded(kernel, &rules_of_audit)?;
        let mut events = loaded.events().map_err(to_text)?.ok_or("no events")?;
        expect_done(OUTSIDE, "open", &base)?;
        expect_done(POD, "rename within", &base)?;
        let first = event(&mut events, "audit", |event| match event {
            Event::Refused { change, refused, .. } => Some((change.operation, refused)),
            _ => None,
        })
        .await?;
        match first {
            (limpet_bpf::Operation::MovedFrom, false) => Ok(()),
            other => Err(format!("audit reported first {other:?}")),
        }
    })??;

    let (base, mut strict) = rules(GuardMode::Strict, "strict")?;
    let loaded = guarded(kernel, &strict)?;
    expect_refused(OUTSIDE, "open", &base)?;
    drop(loaded);
    strict.allowed_cgroups = vec![machine::cgroup("trusted")?];
    let loaded = guarded(kernel, &strict)?;
    expect_refused(OUTSIDE, "open", &base)?;
    expect_done("trusted", "open", &base)?;
    drop(loaded);
    strict.allowed_cgroups.clear();
    strict.allowed_executables = vec![InodeId::read(Path::new("/proc/self/exe")).map_err(to_text)?];
    let loaded = guarded(kernel, &strict)?;
    expect_done(OUTSIDE, "open", &base)?;
    // An allowed executable in a pod is a container's copy of it, or an attack.
    expect_refused(POD, "open", &base)?;
    drop(loaded);
    Ok(None)
}

/// Refused to pods in each mode and never to the host, whose own part of the same directory is refused to all.
pub(crate) fn from_pods(kernel: &Kernel) -> CaseResult {
    for mode in [GuardMode::Containers, GuardMode::Strict] {
        let (base, mut rules) = rules(mode, &format!("host-{}", mode.name()))?;
        let paths = Paths::below(&base);
        rules.guarded = vec![Guarded::directory(&paths.manifests).map_err(to_text)?.from_pods()];
        rules.guarded.extend(ancestors(&paths.manifests).map_err(to_text)?.into_iter().map(Guarded::from_pods));
        rules.guarded.push(Guarded::file(&paths.config).map_err(to_text)?);
        let loaded = guarded(kernel, &rules)?;
        for operation in ["open", "chmod", "rename over", "unlink", "mkdir", "rename above", "config: open"] {
            expect_refused(POD, operation, &base)?;
        }
        for operation in ["open", "chmod", "mkdir"] {
            expect_done(OUTSIDE, operation, &base)?;
        }
        match mode {
            GuardMode::Strict => expect_refused(OUTSIDE, "config: open", &base)?,
            _ => expect_done(OUTSIDE, "config: open", &base)?,
        }
        drop(loaded);
    }
    let (base, mut rules) = rules(GuardMode::Strict, "both")?;
    let manifests = Paths::below(&base).manifests;
    let both = [Guarded::file(&manifests.join("web.yaml")), Guarded::directory(&manifests)];
    for guarded in both {
        rules.guarded.push(guarded.map_err(to_text)?.from_pods());
    }
    let _loaded = guarded(kernel, &rules)?;
    for operation in ["open", "chmod", "rename within", "mkdir"] {
        expect_refused(OUTSIDE, operation, &base)?;
        expect_refused(POD, operation, &base)?;
    }
    Ok(None)
}

/// A handle leads to the inode past every directory. Files of cgroups have handles, and no name until one is looked up.
pub(crate) fn handles(kernel: &Kernel) -> CaseResult {
    let (_, mut rules) = rules(GuardMode::Containers, "handles")?;
    let base = Path::new(machine::CGROUPS).join("guarded");
    machine::cgroup("guarded")?;
    expect_done(POD, "open by handle", &base)?;
    rules.guarded = vec![Guarded::directory(&base).map_err(to_text)?];
    block_on(async {
        let mut loaded = guarded(kernel, &rules)?;
        let mut events = loaded.events().map_err(to_text)?.ok_or("no events")?;
        for (operation, has_directory) in [("open by name", true), ("open by handle", false)] {
            expect_refused(POD, operation, &base)?;
            let refused = event(&mut events, operation, |event| match event {
                Event::Refused { change, .. } => Some(change),
                _ => None,
            });
            let change = refused.await?;
            if (change.directory.inode != 0) != has_directory {
                return Err(format!("{operation}: {change:?}"));
            }
        }
        expect_done(OUTSIDE, "open by handle", &base)?;
        Ok(None)
    })?
}

pub(crate) fn outlives(kernel: &Kernel) -> CaseResult {
    let root = Path::new(BPF).join("limpet-guard");
    let (base, rules) = rules(GuardMode::Containers, "outlives")?;
    let mut first = guarded(kernel, &rules)?;
    let attached = first.programs().len();
    arm(&mut first, &root).map_err(to_text)?;
    drop(first);
    // A pod that has the directory of the pins mounted cannot turn the guard off.
    expect_refused(POD, "remove the guard", &root)?;
    expect_refused(POD, "open", &base)?;
    // Armed again, as a new version would: at no time may a change succeed.
    let mut second = guarded(kernel, &rules)?;
    arm(&mut second, &root).map_err(to_text)?;
    expect_refused(POD, "open", &base)?;
    drop(second);
    expect_refused(POD, "open", &base)?;
    match state(&root).map_err(to_text)? {
        GuardState::Pinned { mode, hooks, missing }
            if mode == "containers" && hooks.len() == attached && missing.is_empty() => {}
        other => return Err(format!("{other:?}")),
    }
    // A guard that is not proven leaves the pinned one in place.
    let mut third = guarded(kernel, &rules)?;
    third.detach("guard_mkdir");
    match arm(&mut third, &root) {
        Err(GuardError::NotGuarded { .. }) => {}
        other => return Err(format!("armed without a hook: {other:?}")),
    }
    drop(third);
    if std::fs::read_dir(Paths::below(&base).manifests).map_err(to_text)?.count() != 2 {
        return Err("the trial left files in the directory".to_owned());
    }
    expect_refused(POD, "mkdir", &base)?;
    if !disarm(&root).map_err(to_text)? || state(&root).map_err(to_text)? != GuardState::Off {
        return Err("not removed".to_owned());
    }
    // At once: `disarm` returns when the programs are detached.
    expect_done(POD, "open", &base)?;
    way_back_from_strict(kernel, &root)?;
    Ok(None)
}

/// Whoever is refused the manifests can still remove the guard, and a new version, another executable, replaces it.
fn way_back_from_strict(kernel: &Kernel, root: &Path) -> Result<(), String> {
    let (base, rules) = rules(GuardMode::Strict, "way-back")?;
    for _ in 0..2 {
        let mut loaded = guarded(kernel, &rules)?;
        arm(&mut loaded, root).map_err(to_text)?;
    }
    expect_refused(OUTSIDE, "open", &base)?;
    expect_refused(POD, "remove the guard", root)?;
    expect_done(OUTSIDE, "remove the guard", root)
}

/// A process that repeats a refused call is reported once a second, with how often.
pub(crate) fn repetitions_are_counted(kernel: &Kernel) -> CaseResult {
    const CALLS: u32 = 50_000;
    let (base, rules) = rules(GuardMode::Containers, "repeated")?;
    block_on(async {
        let mut loaded = guarded(kernel, &rules)?;
        let mut events = loaded.events().map_err(to_text)?.ok_or("no events")?;
        let mut writer = act::start(POD, "mkdir many times", &base)?;
        let (mut reports, mut attempts) = (0, 0);
        while attempts < CALLS {
            let next = event(&mut events, "an attempt", |event| match event {
                Event::Refused { attempts, .. } => Some(attempts),
                _ => None,
            });
            attempts += next.await?;
            reports += 1;
        }
        writer.kill().map_err(to_text)?;
        writer.wait().map_err(to_text)?;
        println!("  {attempts} attempts in {reports} reports, {} lost", loaded.lost());
        if loaded.lost() > 0 || reports > CALLS / 100 {
            return Err(format!("{reports} reports of {attempts} attempts"));
        }
        Ok(None)
    })?
}
