//! Who changes files.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use limpet_bpf::{Event, Events, InodeId, Kernel, Loaded, Operation, Purpose, Request};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::act::{self, Paths};
use crate::{CaseResult, block_on, event, failures, machine, to_text};

const WRITERS: usize = 100;

struct Watched {
    loaded: Loaded,
    events: Events,
    base: PathBuf,
    paths: Paths,
    /// As in the agent: the kernel reports closed files in watched directories.
    watches: OwnedFd,
}

impl Watched {
    fn watch(&mut self, directory: &Path) -> Result<(), String> {
        inotify::add_watch(&self.watches, directory, WatchFlags::CLOSE_WRITE).map_err(to_text)?;
        self.loaded.watch(InodeId::read(directory).map_err(to_text)?).map_err(to_text)
    }
}

/// Must run inside a tokio runtime.
fn watched(kernel: &Kernel, name: &str) -> Result<Watched, String> {
    let mut loaded = kernel.load(&Request { lifecycle: false, watch: true, guard: None }).map_err(to_text)?;
    if let Some(failure) = failures(&loaded, Purpose::Watch).first() {
        return Err(format!("{failure:?}"));
    }
    let events = loaded.events().map_err(to_text)?.ok_or("no events")?;
    let base = Path::new("/tmp").join(name);
    let paths = Paths::below(&base);
    paths.create().map_err(to_text)?;
    let watches = inotify::init(CreateFlags::CLOEXEC).map_err(to_text)?;
    let manifests = paths.manifests.clone();
    let mut watched = Watched { loaded, events, base, paths, watches };
    watched.watch(&manifests)?;
    Ok(watched)
}

/// Every writer's pid, name, user and cgroup, although it has exited before its event is read.
pub(crate) fn short_lived_writers(kernel: &Kernel) -> CaseResult {
    block_on(async {
        let mut watched = watched(kernel, "short-lived")?;
        let cgroup = machine::cgroup("writers")?;
        let this_program = std::env::current_exe().ok().map(|path| path.display().to_string());
        let mut known = 0;
        for _ in 0..WRITERS {
            let mut writer = act::start("writers", "rename within", &watched.base)?;
            writer.wait().map_err(to_text)?;
            let actor = event(&mut watched.events, "the rename", |event| match event {
                Event::Write(change) if change.operation == Operation::MovedTo => {
                    Some((change.actor, change.executable))
                }
                _ => None,
            });
            let (actor, program) = actor.await?;
            let parent = Some(std::process::id());
            let is_known = (actor.pid, actor.parent, actor.uid, actor.cgroup) == (writer.id(), parent, 0, cgroup);
            known += usize::from(is_known && program == this_program);
            std::fs::rename(watched.paths.manifests.join("new"), watched.paths.manifests.join("web.yaml"))
                .map_err(to_text)?;
            event(&mut watched.events, "the way back", |event| match event {
                Event::Write(change) if change.operation == Operation::MovedTo => Some(()),
                _ => None,
            })
            .await?;
        }
        println!("  {known} of {WRITERS} writers known, {} events lost", watched.loaded.lost());
        if known < WRITERS { Err(format!("{} writers not known", WRITERS - known)) } else { Ok(None) }
    })?
}

pub(crate) fn each_change(kernel: &Kernel) -> CaseResult {
    use Operation::{Create, MakeDirectory, MovedFrom, MovedTo, RemoveDirectory, Unlink, Written};
    let expected: [(&str, &[(Operation, &str)]); 10] = [
        ("write", &[(Create, "new"), (Written, "new")]),
        ("open", &[(Written, "web.yaml")]),
        ("rename within", &[(MovedFrom, "web.yaml"), (MovedTo, "new")]),
        ("rename in", &[(MovedTo, "new")]),
        ("rename out", &[(MovedFrom, "web.yaml")]),
        ("symlink", &[(Create, "new")]),
        ("link in", &[(Create, "new")]),
        ("mkdir", &[(MakeDirectory, "new")]),
        ("rmdir", &[(RemoveDirectory, "sub")]),
        ("unlink", &[(Unlink, "web.yaml")]),
    ];
    block_on(async {
        let mut watched = watched(kernel, "each")?;
        for (operation, wanted) in expected {
            // A directory of its own each: its setup is not watched yet.
            let base = Path::new("/tmp").join(format!("each {operation}"));
            let paths = Paths::below(&base);
            paths.create().map_err(to_text)?;
            watched.watch(&paths.manifests)?;
            let mut writer = act::start(act::OUTSIDE, operation, &base)?;
            writer.wait().map_err(to_text)?;
            for (what, name) in wanted {
                let change = event(&mut watched.events, operation, |event| match event {
                    Event::Write(change) => Some(change),
                    _ => None,
                });
                let change = change.await?;
                let is_wanted = change.operation == *what && change.name == name.as_bytes();
                let is_there = InodeId::read(&paths.manifests).is_ok_and(|id| id == change.directory);
                if !is_wanted || !is_there || change.actor.pid != writer.id() {
                    return Err(format!("{operation}: {change:?}, expected {what:?} of {name} by {}", writer.id()));
                }
            }
        }
        Ok(None)
    })?
}
