//! Kernel features beyond what pods need: file notification, pidfds, BTF, security modules, BPF programs. Each is
//! tried: a file is written and its event awaited, and programs are loaded, attached and detached.

use std::{fs, io};

use limpet_bpf::{Kernel, LoadError, Loaded, ProgramState, Purpose, Request};

use super::kernel_events::{EVENT_TIMEOUT, refused};
use super::scratch::Scratch;
use super::{Finding, attribution};
use crate::config::Config;
use limpet_host::process;
use limpet_watch::{DirectoryWatch, WatchEvent};

/// The kernel's BTF type information.
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// The magic number of BTF (linux/btf.h).
const BTF_MAGIC: [u8; 2] = 0xeb9f_u16.to_ne_bytes();

pub(super) async fn examine(config: &Config) -> Vec<Finding> {
    let loaded = tokio::task::spawn_blocking(load).await;
    let mut loaded = loaded.unwrap_or_else(|panicked| Err(LoadError::Maps(panicked.to_string())));
    let read = |path: &str| fs::read_to_string(path).ok();
    let guarded = config.guard.mode.is_some();
    vec![
        notification(watch_a_file().await),
        process_exits(process::probe()),
        types(BTF),
        lockdown(read("/sys/kernel/security/lockdown").as_deref()),
        security_modules(read("/sys/kernel/security/lsm").as_deref(), guarded),
        container_exits(loaded.as_ref().map(Loaded::programs)),
        attribution::fanotify(config.sources.watch, config.sources.manifest_path.as_deref()).await,
        attribution::programs(config.sources.watch, loaded.as_mut()).await,
    ]
}

/// Loads and attaches the programs that the agent uses without a guard.
fn load() -> Result<Loaded, LoadError> {
    Kernel::read().load(&Request { lifecycle: true, watch: true, guard: None })
}

/// Writes a file into a new directory and waits for its event.
async fn watch_a_file() -> io::Result<()> {
    let directory = Scratch::new()?;
    let mut watch = DirectoryWatch::new(directory.path()).await?;
    fs::write(directory.path().join("file"), "")?;
    let event = async {
        loop {
            match watch.next().await? {
                WatchEvent::Hint(names) if names.iter().any(|name| name == "file") => return Ok(()),
                WatchEvent::Hint(_) | WatchEvent::Rescan(_) => {}
            }
        }
    };
    tokio::time::timeout(EVENT_TIMEOUT, event).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn notification(tried: io::Result<()>) -> Finding {
    match tried {
        Ok(()) => Finding::ok("notification", "inotify reports a written file"),
        Err(error) => Finding::degraded(
            "notification",
            format!("inotify: {error}; manifests are read every 20 s"),
            "Raise fs.inotify.max_user_instances and fs.inotify.max_user_watches",
        ),
    }
}

/// Whether processes can be watched by pidfd.
fn process_exits(probed: io::Result<()>) -> Finding {
    let name = "process exits";
    match probed {
        Ok(()) => Finding::ok(name, "reported by the kernel (pidfd)"),
        Err(error) => Finding::degraded(
            name,
            format!("pidfd_open: {error}; {}", process::WITHOUT_PIDFDS),
            "Use Linux 5.3 or newer, and a seccomp profile that allows pidfd_open",
        ),
    }
}

fn types(path: &str) -> Finding {
    let name = "kernel types";
    let remedy = "Use a kernel with CONFIG_DEBUG_INFO_BTF";
    match fs::read(path) {
        Ok(types) if types.starts_with(&BTF_MAGIC) => Finding::ok(name, format!("{path}, {} KiB", types.len() >> 10)),
        Ok(_) => Finding::degraded(name, format!("{path} is invalid; no BPF programs"), remedy),
        Err(error) => Finding::degraded(name, format!("{path}: {error}; no BPF programs"), remedy),
    }
}

/// The file lists all modes, the active one in brackets.
fn lockdown(modes: Option<&str>) -> Finding {
    let mode = modes.and_then(|modes| modes.split_once('[')?.1.split_once(']')).map_or("none", |(mode, _)| mode);
    match mode {
        "none" => Finding::ok("lockdown", "none"),
        mode => Finding::degraded(
            "lockdown",
            format!("{mode}: BPF programs may be rejected"),
            "It comes with Secure Boot; without it, lockdown=none on the kernel's command line",
        ),
    }
}

/// `guarded`: a manifest guard is configured.
fn security_modules(list: Option<&str>, guarded: bool) -> Finding {
    let name = "security modules";
    match list.map(str::trim) {
        Some(list) if list.split(',').any(|module| module == "bpf") => Finding::ok(name, list),
        list if !guarded => {
            Finding::ok(name, format!("{}; a manifest guard would need bpf", list.unwrap_or("unknown")))
        }
        list => Finding::degraded(
            name,
            format!("{}; bpf is not among them: the manifest guard cannot work", list.unwrap_or("unknown")),
            "Add bpf to lsm= on the kernel's command line",
        ),
    }
}

/// Whether OOM kills and signal senders can be reported.
fn container_exits(programs: Result<&[ProgramState], &LoadError>) -> Finding {
    let name = "container exits";
    let refused = match programs {
        Ok(programs) => refused(programs, Purpose::Lifecycle),
        Err(error) => Some(error.to_string()),
    };
    match refused {
        None => Finding::ok(name, "BPF programs name victims of OOM kills and senders of signals"),
        Some(refused) => {
            let text = format!("{refused}; not all victims of OOM kills and senders of signals are named");
            Finding::degraded(name, text, "")
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn kernel_features_are_judged() {
        assert_eq!(lockdown(None).level, Level::Ok);
        assert_eq!(lockdown(Some("[none] integrity confidentiality\n")).level, Level::Ok);
        let locked = lockdown(Some("none [integrity] confidentiality\n"));
        assert!(locked.level == Level::Degraded && locked.text.starts_with("integrity"), "{locked:?}");
        for (list, guarded, level) in [
            (Some("lockdown,capability,bpf\n"), true, Level::Ok),
            (Some("lockdown,bpfx"), true, Level::Degraded),
            (Some("lockdown,bpfx"), false, Level::Ok),
            (None, true, Level::Degraded),
        ] {
            assert_eq!(security_modules(list, guarded).level, level, "{list:?}");
        }
        assert_eq!(types("/proc/self/status").level, Level::Degraded);
    }

    #[test]
    fn rejected_programs_are_named_with_their_reason() {
        let program = |hook, failure: Option<&str>| ProgramState {
            name: "a program",
            purpose: Purpose::Lifecycle,
            hook,
            failure: failure.map(str::to_owned),
        };
        assert_eq!(container_exits(Ok(&[program("mark_victim", None)])).level, Level::Ok);
        let programs =
            [program("a", None), program("b", Some("no")), program("c", Some("why")), program("d", Some("no"))];
        assert_eq!(refused(&programs, Purpose::Watch), None);
        let finding = container_exits(Ok(&programs));
        assert!(finding.level == Level::Degraded && finding.text.starts_with("b, d refused: no; c refused: why; not"));
        assert_eq!(container_exits(Err(&LoadError::NotBuilt)).level, Level::Degraded);
    }

    #[test]
    fn processes_can_be_watched() {
        assert_eq!(process_exits(process::probe()).level, Level::Ok);
        let refused = process_exits(Err(io::ErrorKind::PermissionDenied.into()));
        assert!(refused.level == Level::Degraded && refused.text.contains("containerd alone"), "{refused:?}");
    }

    #[tokio::test]
    async fn a_file_event_is_received() {
        watch_a_file().await.unwrap();
        assert_eq!(notification(Err(io::ErrorKind::StorageFull.into())).level, Level::Degraded);
    }
}
