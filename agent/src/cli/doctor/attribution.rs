//! Attribution of manifest changes: fanotify and the BPF programs, each of which must name the process that writes a
//! file.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use limpet_bpf::{Event, InodeId, LoadError, Loaded, Purpose};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::Finding;
use super::kernel_events::{EVENT_TIMEOUT, refused};
use super::scratch::Scratch;
use limpet_model::actor::Actor;
use limpet_model::attribution::ManifestWatch;
use limpet_watch::actors as built;

const FANOTIFY: &str = "fanotify";
const PROGRAMS: &str = "watch programs";
/// The file that the check writes.
const NAME: &str = "file";

/// The finding of a build without attribution.
pub(super) fn left_out() -> Option<Finding> {
    (!built::BUILT).then(|| {
        let text = "not in this build: who changes a manifest is unknown";
        Finding::degraded("attribution", text, "Use a build with the cargo feature attribution, which is on by default")
    })
}

/// The finding of a backend that is not configured.
fn off(name: &'static str, wanted: ManifestWatch) -> Finding {
    Finding::ok(name, format!("off (manifestWatch: {})", wanted.as_str()))
}

pub(super) async fn fanotify(wanted: ManifestWatch, manifests: Option<&Path>) -> Finding {
    match wanted {
        ManifestWatch::Inotify => off(FANOTIFY, wanted),
        _ => judge_fanotify(named_by_fanotify(manifests).await),
    }
}

/// The process that fanotify names as the writer of a file. Also checks that fanotify can mark the manifest
/// directory.
async fn named_by_fanotify(manifests: Option<&Path>) -> io::Result<Arc<Actor>> {
    let scratch = Scratch::new()?;
    let named = tokio::time::timeout(EVENT_TIMEOUT, built::probe_fanotify(scratch.path())).await;
    let actor = named.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "it reports no change")))?;
    if let Some(directory) = manifests.filter(|path| path.is_dir()) {
        let refused = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
        built::can_mark(directory).map_err(refused)?;
    }
    Ok(actor)
}

fn judge_fanotify(named: io::Result<Arc<Actor>>) -> Finding {
    let lost = "unless BPF programs do, who changes a manifest is unknown";
    let actor = match named {
        Ok(actor) => actor,
        Err(error) => {
            let remedy = "Start limpet with CAP_SYS_ADMIN, the manifests on a file system such as ext4; or set manifestWatch: inotify";
            return Finding::degraded(FANOTIFY, format!("{error}; {lost}"), remedy);
        }
    };
    match (actor.pid, &actor.command) {
        (Some(pid), Some(_)) if pid == std::process::id() => {
            Finding::ok(FANOTIFY, format!("names the process that writes a file: {actor}"))
        }
        (Some(pid), None) if pid == std::process::id() => {
            let text = "names only the pid of a process that writes a file";
            Finding::degraded(FANOTIFY, text, "Use Linux 5.15 or newer")
        }
        _ => {
            let text = format!("names {actor} for a file that this process wrote; {lost}");
            Finding::degraded(FANOTIFY, text, "Start limpet in the host's pid namespace")
        }
    }
}

pub(super) async fn programs(wanted: ManifestWatch, loaded: Result<&mut Loaded, &mut LoadError>) -> Finding {
    if matches!(wanted, ManifestWatch::Inotify | ManifestWatch::Fanotify) {
        return off(PROGRAMS, wanted);
    }
    let named = match loaded {
        Err(error) => Err(Unnamed::Refused(error.to_string())),
        Ok(loaded) => match refused(loaded.programs(), Purpose::Watch) {
            Some(refused) => Err(Unnamed::Refused(refused)),
            None => match tokio::time::timeout(EVENT_TIMEOUT, named_by_programs(loaded)).await {
                Ok(named) => named,
                Err(_) => Err(Unnamed::Silent("they report no change".to_owned())),
            },
        },
    };
    judge_programs(wanted, named)
}

/// Why the programs named no process.
#[derive(Debug)]
enum Unnamed {
    /// The kernel rejects some of them.
    Refused(String),
    /// The kernel loads them, but they report nothing.
    Silent(String),
}

/// The PID that the programs name as the writer of a file.
async fn named_by_programs(loaded: &mut Loaded) -> Result<u32, Unnamed> {
    let failed = |error: &dyn std::fmt::Display| Unnamed::Silent(error.to_string());
    let scratch = Scratch::new().map_err(|error| failed(&error))?;
    // The kernel reports closed files only to watchers.
    let watches = inotify::init(CreateFlags::CLOEXEC).map_err(|error| failed(&error))?;
    inotify::add_watch(&watches, scratch.path(), WatchFlags::CLOSE_WRITE).map_err(|error| failed(&error))?;
    let directory = InodeId::read(scratch.path()).map_err(|error| failed(&error))?;
    loaded.watch(directory).map_err(|error| failed(&error))?;
    let events = loaded.events().map_err(|error| failed(&error))?;
    let mut events = events.ok_or_else(|| failed(&"their events have another reader"))?;
    fs::write(scratch.path().join(NAME), "").map_err(|error| failed(&error))?;
    loop {
        match events.next().await.map_err(|error| failed(&error))? {
            Event::Write(change) if change.name == NAME.as_bytes() => return Ok(change.actor.pid),
            _ => {}
        }
    }
}

fn judge_programs(wanted: ManifestWatch, named: Result<u32, Unnamed>) -> Finding {
    let remedy = "Set manifestWatch: auto, or see the remedies for kernel types and lockdown";
    match named {
        Ok(pid) if pid == std::process::id() => Finding::ok(PROGRAMS, "name the process that writes a file"),
        Ok(pid) => Finding::degraded(
            PROGRAMS,
            format!("name process {pid} for a file that this process wrote: fanotify is used instead"),
            "Start limpet in the host's pid namespace, or set manifestWatch: fanotify",
        ),
        Err(Unnamed::Silent(why)) => {
            let text = format!("loaded, and {why}: who changes a manifest may be unknown");
            Finding::degraded(PROGRAMS, text, "Set manifestWatch: fanotify")
        }
        Err(Unnamed::Refused(why)) if wanted == ManifestWatch::Ebpf => {
            let text = format!("{why}; fanotify is used instead where it works, and misses some short-lived writers");
            Finding::degraded(PROGRAMS, text, remedy)
        }
        Err(Unnamed::Refused(why)) => Finding::ok(PROGRAMS, format!("{why}; fanotify names writers where it works")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn fanotify_has_to_name_this_process_whole() {
        let actor = |pid: u32, command: Option<&str>| {
            let command = command.map(str::to_owned);
            Ok(Arc::new(Actor { pid: Some(pid), command, ..Actor::default() }))
        };
        let pid = std::process::id();
        for (named, level, part) in [
            (actor(pid, Some("limpet")), Level::Ok, "limpet"),
            (actor(pid, None), Level::Degraded, "only the pid"),
            (actor(pid + 1, Some("limpet")), Level::Degraded, "this process wrote"),
            (Err(io::ErrorKind::PermissionDenied.into()), Level::Degraded, "is unknown"),
        ] {
            let finding = judge_fanotify(named);
            assert!(finding.level == level && finding.text.contains(part), "{finding:?}");
        }
    }

    #[test]
    fn refused_programs_are_a_fault_only_where_they_are_configured() {
        let refused = || Err(Unnamed::Refused("fsnotify refused: EPERM".to_owned()));
        for (wanted, named, level) in [
            (ManifestWatch::Auto, Ok(std::process::id()), Level::Ok),
            (ManifestWatch::Auto, Ok(std::process::id() + 1), Level::Degraded),
            (ManifestWatch::Auto, refused(), Level::Ok),
            (ManifestWatch::Ebpf, refused(), Level::Degraded),
            (ManifestWatch::Auto, Err(Unnamed::Silent("they report no change".to_owned())), Level::Degraded),
        ] {
            let finding = judge_programs(wanted, named);
            assert_eq!(finding.level, level, "{finding:?}");
        }
    }

    #[tokio::test]
    async fn what_is_not_configured_is_off() {
        assert_eq!(fanotify(ManifestWatch::Inotify, None).await.text, "off (manifestWatch: inotify)");
        let mut error = LoadError::NotBuilt;
        let finding = programs(ManifestWatch::Fanotify, Err(&mut error)).await;
        assert!(finding.level == Level::Ok && finding.text.starts_with("off"), "{finding:?}");
        assert_eq!(programs(ManifestWatch::Ebpf, Err(&mut error)).await.level, Level::Degraded);
    }

    #[tokio::test]
    async fn fanotify_is_tried() {
        let directory = tempfile::tempdir().unwrap();
        let finding = fanotify(ManifestWatch::Auto, Some(directory.path())).await;
        let pid = format!("pid {}", std::process::id());
        assert!(finding.level == Level::Degraded || finding.text.contains(&pid), "{finding:?}");
    }
}
