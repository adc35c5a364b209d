//! What the kernel lends beyond what pods need: notification, its own types, security modules, BPF programs. Each is tried:
//! a file is written and its event awaited, a group is made and removed, programs are loaded, attached and let go.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use limpet_bpf::{Kernel, LoadError, ProgramState, Purpose, Request};

use super::Finding;
use crate::watch::{DirectoryWatch, WatchEvent};

/// How long an event may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Where the kernel tells of its types.
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// The first bytes of the kernel's types (linux/btf.h).
const BTF_MAGIC: [u8; 2] = 0xeb9f_u16.to_ne_bytes();

pub(super) async fn examine() -> Vec<Finding> {
    let programs = tokio::task::spawn_blocking(try_programs).await;
    let programs = programs.unwrap_or_else(|panicked| Err(LoadError::Maps(panicked.to_string())));
    let read = |path: &str| fs::read_to_string(path).ok();
    vec![
        notification(watch_a_file().await),
        types(BTF),
        lockdown(read("/sys/kernel/security/lockdown").as_deref()),
        security_modules(read("/sys/kernel/security/lsm").as_deref()),
        ends(&programs),
    ]
}

/// Writes a file into a new directory and waits to be told of it.
async fn watch_a_file() -> io::Result<()> {
    let directory = Scratch::new()?;
    let mut watch = DirectoryWatch::new(&directory.0)?;
    fs::write(directory.0.join("file"), "")?;
    let told = async {
        loop {
            match watch.next().await? {
                WatchEvent::Hint(names) if names.iter().any(|name| name == "file") => return Ok(()),
                WatchEvent::Hint(_) | WatchEvent::Rescan(_) => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, told).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// A directory that goes with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("limpet-doctor-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left of it harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn notification(tried: io::Result<()>) -> Finding {
    match tried {
        Ok(()) => Finding::ok("notification", "inotify tells of a file that is written"),
        Err(error) => Finding::degraded(
            "notification",
            format!("inotify: {error}; manifests are read every 20 s"),
            "Raise fs.inotify.max_user_instances and fs.inotify.max_user_watches",
        ),
    }
}

fn types(path: &str) -> Finding {
    let name = "kernel types";
    let remedy = "Use a kernel with CONFIG_DEBUG_INFO_BTF";
    match fs::read(path) {
        Ok(types) if types.starts_with(&BTF_MAGIC) => Finding::ok(name, format!("{path}, {} KiB", types.len() >> 10)),
        Ok(_) => Finding::degraded(name, format!("{path} is not what it should be; no BPF programs"), remedy),
        Err(error) => Finding::degraded(name, format!("{path}: {error}; no BPF programs"), remedy),
    }
}

/// The file names all modes, the one in force in brackets.
fn lockdown(modes: Option<&str>) -> Finding {
    let mode = modes.and_then(|modes| modes.split_once('[')?.1.split_once(']')).map_or("none", |(mode, _)| mode);
    match mode {
        "none" => Finding::ok("lockdown", "none"),
        mode => Finding::degraded(
            "lockdown",
            format!("{mode}: BPF programs may be refused"),
            "It comes with Secure Boot; without it, lockdown=none on the kernel's command line",
        ),
    }
}

fn security_modules(list: Option<&str>) -> Finding {
    let name = "security modules";
    match list.map(str::trim) {
        Some(list) if list.split(',').any(|module| module == "bpf") => Finding::ok(name, list),
        list => Finding::degraded(
            name,
            format!("{}; bpf is not among them: the guard of manifests cannot work", list.unwrap_or("not told")),
            "Add bpf to lsm= on the kernel's command line",
        ),
    }
}

fn try_programs() -> Result<Vec<ProgramState>, LoadError> {
    let loaded = Kernel::read().load(&Request { lifecycle: true, ..Request::default() })?;
    Ok(loaded.programs().to_vec())
}

/// Whether the kernel says what it killed and who sent a signal.
fn ends(programs: &Result<Vec<ProgramState>, LoadError>) -> Finding {
    let name = "ends of containers";
    let programs = match programs {
        Ok(programs) => programs,
        Err(error) => {
            let text = format!("{error}; victims of OOM kills and senders of signals are not named");
            return Finding::degraded(name, text, "");
        }
    };
    let lifecycle = programs.iter().filter(|program| program.purpose == Purpose::Lifecycle);
    let failed: Vec<String> = lifecycle
        .filter_map(|program| Some(format!("{} is refused: {}", program.hook, program.failure.as_ref()?)))
        .collect();
    if failed.is_empty() {
        return Finding::ok(name, "BPF programs name victims of OOM kills and senders of signals");
    }
    Finding::degraded(name, format!("{}; not all of them are explained", failed.join("; ")), "")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn what_the_kernel_says_is_judged() {
        assert_eq!(lockdown(None).level, Level::Ok);
        assert_eq!(lockdown(Some("[none] integrity confidentiality\n")).level, Level::Ok);
        let locked = lockdown(Some("none [integrity] confidentiality\n"));
        assert!(locked.level == Level::Degraded && locked.text.starts_with("integrity"), "{locked:?}");
        assert_eq!(security_modules(Some("lockdown,capability,bpf\n")).level, Level::Ok);
        assert_eq!(security_modules(Some("lockdown,bpfx")).level, Level::Degraded);
        assert_eq!(security_modules(None).level, Level::Degraded);
        assert_eq!(types("/proc/self/status").level, Level::Degraded);
    }

    #[test]
    fn a_refused_program_is_named_with_its_reason() {
        let program = |failure: Option<&str>| ProgramState {
            name: "oom_victim",
            purpose: Purpose::Lifecycle,
            hook: "mark_victim",
            failure: failure.map(str::to_owned),
        };
        assert_eq!(ends(&Ok(vec![program(None)])).level, Level::Ok);
        let refused = ends(&Ok(vec![program(None), program(Some("Operation not permitted"))]));
        assert!(refused.level == Level::Degraded && refused.text.starts_with("mark_victim is refused: Operation"));
        assert_eq!(ends(&Err(LoadError::NotBuilt)).level, Level::Degraded);
    }

    #[tokio::test]
    async fn a_file_is_told_of() {
        watch_a_file().await.unwrap();
        assert_eq!(notification(Err(io::ErrorKind::StorageFull.into())).level, Level::Degraded);
    }
}
