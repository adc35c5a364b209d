//! The guard's links in the BPF file system: they outlive a restart and a crash of the agent.
//!
//! Each arming is a directory of its own, `<mode>-<number>`. A new one is complete and proven before older ones are
//! removed, so an upgrade leaves no gap. Only links are pinned: they hold programs and maps.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::loaded_programs;

use crate::guard::Guarded;
use crate::table::{PROGRAMS, Program};
use crate::{GuardError, GuardState, InodeId, Loaded, Purpose};

/// `BPF_FS_MAGIC`, statfs(2).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// The mode in the name of an incomplete arming.
const INCOMPLETE: &str = "making";
/// How long the kernel may take to detach unpinned programs.
const DETACH_TIMEOUT: Duration = Duration::from_secs(10);
/// The name that the trial creates in a guarded directory.
const TRIAL: &str = ".limpet-guard-trial";

fn guard_programs() -> impl Iterator<Item = &'static Program> {
    PROGRAMS.iter().filter(|program| program.purpose == Purpose::Guard)
}

/// Proves that the attached guard refuses changes: every hook is attached, and a change of each guarded path is tried. One that
/// is guarded from pods alone is only warned of.
///
/// # Errors
/// A hook is missing, or a path is not guarded by the attached programs.
pub fn prove(loaded: &mut Loaded) -> Result<(), GuardError> {
    let missing: Vec<_> = loaded
        .programs()
        .iter()
        .filter(|program| program.purpose == Purpose::Guard)
        .filter_map(|program| Some(format!("{}: {}", program.hook, program.failure.as_ref()?)))
        .collect();
    if !missing.is_empty() {
        return Err(GuardError::Hooks(missing));
    }
    let rules = loaded.guard.clone().ok_or(GuardError::NotAsked)?;
    for guarded in &rules.guarded {
        match attempt(loaded, guarded) {
            // The node may have these on any file system; the others are worth more than none.
            Err(error) if guarded.is_from_pods() => tracing::warn!(%error, "path is not guarded from pods"),
            tried => tried?,
        }
    }
    Ok(())
}

/// Proves the attached guard, and pins it below `root`, replacing an earlier one.
///
/// # Errors
/// As [`prove`], or `root` is not on a BPF file system; then an earlier guard stays pinned, and dropping `loaded` detaches
/// the new programs.
pub fn arm(loaded: &mut Loaded, root: &Path) -> Result<(), GuardError> {
    prove(loaded)?;
    let mode = loaded.guard.as_ref().map(|rules| rules.mode).ok_or(GuardError::NotAsked)?;
    let pin = |source| GuardError::Pin { path: root.to_owned(), source };
    on_bpf_file_system(root).map_err(pin)?;
    fs::create_dir_all(root).map_err(pin)?;
    let number = 1 + armings(root).map_err(pin)?.iter().map(|arming| arming.number).max().unwrap_or(0);
    let making = root.join(format!("{INCOMPLETE}-{number}"));
    fs::create_dir(&making).map_err(pin)?;
    // Unlinking a pin needs no capability: it would turn the hook off.
    for directory in [root, &making] {
        loaded.guard_pins(InodeId::read(directory).map_err(pin)?)?;
    }
    for program in guard_programs() {
        let Some(link) = loaded.links.remove(program.name) else { continue };
        pin_link(link, &making.join(program.name)).map_err(pin)?;
    }
    let complete = root.join(format!("{}-{number}", mode.name()));
    fs::rename(&making, complete).map_err(pin)?;
    remove(root, |arming| arming.number < number).map_err(pin)
}

/// Pins a link, so that dropping the descriptor does not detach it.
fn pin_link(link: FdLink, path: &Path) -> io::Result<PinnedLink> {
    link.pin(path).map_err(|error| io::Error::other(error.to_string()))
}

/// Tries a forbidden change, with the calling thread refused whatever the mode: only a refusal proves the guard.
fn attempt(loaded: &mut Loaded, guarded: &Guarded) -> Result<(), GuardError> {
    if guarded.is_place() {
        return Ok(());
    }
    let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    let trial = guarded.path.join(TRIAL);
    loaded.set_on_trial(thread, true)?;
    let tried = match guarded.is_directory() {
        true => fs::create_dir(&trial),
        false => fs::OpenOptions::new().append(true).open(&guarded.path).map(drop),
    };
    loaded.set_on_trial(thread, false)?;
    let path = guarded.path.clone();
    match tried {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error()) => Ok(()),
        // A running program, and what is on a read-only file system: the kernel does not get as far as the hook.
        Err(error)
            if guarded.is_from_pods()
                && matches!(error.kind(), ErrorKind::ExecutableFileBusy | ErrorKind::ReadOnlyFilesystem) =>
        {
            Ok(())
        }
        Err(source) => Err(GuardError::Trial { path, source }),
        Ok(()) => {
            fs::remove_dir(trial).ok();
            Err(GuardError::NotGuarded { path })
        }
    }
}

fn on_bpf_file_system(root: &Path) -> io::Result<()> {
    let parent = root.ancestors().find(|path| path.exists()).unwrap_or(root);
    let magic = rustix::fs::statfs(parent)?.f_type;
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)] // its type differs by architecture
    if magic as u64 & 0xffff_ffff != BPF_FS_MAGIC {
        let remedy = format!("{} is not a BPF file system; mount one: mount -t bpf bpf /sys/fs/bpf", parent.display());
        return Err(io::Error::other(remedy));
    }
    Ok(())
}

/// One directory of pinned links.
struct Arming {
    path: PathBuf,
    mode: String,
    number: u64,
}

fn armings(root: &Path) -> io::Result<Vec<Arming>> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut armings = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some((mode, number)) = name.rsplit_once('-')
            && let Ok(number) = number.parse()
        {
            armings.push(Arming { mode: mode.to_owned(), number, path });
        }
    }
    armings.sort_by_key(|arming| arming.number);
    Ok(armings)
}

/// Removes armings, and returns when their programs are detached.
fn remove(root: &Path, which: impl Fn(&Arming) -> bool) -> io::Result<()> {
    let mut programs = BTreeSet::new();
    for arming in armings(root)?.iter().filter(|arming| which(arming)) {
        for entry in fs::read_dir(&arming.path)? {
            let pin = entry?.path();
            programs.extend(program_of(&pin));
            fs::remove_file(pin)?;
        }
        fs::remove_dir(&arming.path)?;
    }
    wait_until_unloaded(&programs);
    Ok(())
}

/// The id of the program that a pinned link holds.
fn program_of(pin: &Path) -> Option<u32> {
    FdLink::from(PinnedLink::from_pin(pin).ok()?).info().ok().map(|link| link.program_id())
}

/// Waits until none of `programs` is loaded any more: the kernel detaches unpinned programs later, without a notification.
fn wait_until_unloaded(programs: &BTreeSet<u32>) {
    let start = Instant::now();
    while loaded_programs().flatten().any(|program| programs.contains(&program.id())) {
        if start.elapsed() > DETACH_TIMEOUT {
            return tracing::warn!(
                "another process still holds an earlier guard's programs; they may still refuse changes"
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What is pinned below `root`.
///
/// # Errors
/// The directory cannot be read.
pub fn state(root: &Path) -> io::Result<GuardState> {
    let newest = armings(root)?.into_iter().rfind(|arming| arming.mode != INCOMPLETE);
    let Some(arming) = newest else { return Ok(GuardState::Off) };
    let is_pinned = |program: &&Program| arming.path.join(program.name).exists();
    let (pinned, missing): (Vec<_>, Vec<_>) = guard_programs().partition(is_pinned);
    let hooks = |programs: Vec<&Program>| programs.iter().map(|program| program.attachment.hook()).collect();
    // A hook that this kernel does not have is not missed.
    let missing = missing.into_iter().filter(|program: &&Program| program.only_with.is_none()).collect();
    Ok(GuardState::Pinned { mode: arming.mode, hooks: hooks(pinned), missing: hooks(missing) })
}

/// Removes the guard. Returns whether there was one.
///
/// # Errors
/// A link cannot be removed.
pub fn disarm(root: &Path) -> io::Result<bool> {
    let was = !armings(root)?.is_empty();
    remove(root, |_| true)?;
    if was {
        fs::remove_dir(root)?;
    }
    Ok(was)
}
