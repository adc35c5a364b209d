//! Who changes files.

use std::path::{Path, PathBuf};
use std::process::Command;

use limpet_bpf::{Event, Events, InodeId, Kernel, Loaded, Operation, Purpose, Request};

use crate::act::{self, Places};
use crate::{Outcome, block_on, event, failures, machine, said};

const WRITERS: usize = 100;

struct Watched {
    loaded: Loaded,
    events: Events,
    base: PathBuf,
    places: Places,
}

/// Inside a runtime.
fn watched(kernel: &Kernel, name: &str) -> Result<Watched, String> {
    let mut loaded = kernel.load(&Request { lifecycle: false, watch: true, guard: None }).map_err(said)?;
    if let Some(failure) = failures(&loaded, Purpose::Watch).first() {
        return Err(format!("{failure:?}"));
    }
    let events = loaded.events().map_err(said)?.ok_or("no events")?;
    let base = Path::new("/tmp").join(name);
    let places = Places::of(&base);
    places.make().map_err(said)?;
    loaded.watch(InodeId::of(&places.manifests).map_err(said)?).map_err(said)?;
    Ok(Watched { loaded, events, base, places })
}

/// Every writer's pid, name, user and cgroup, though it is gone before anybody looks.
pub(crate) fn short_lived_writers(kernel: &Kernel) -> Outcome {
    block_on(async {
        let mut watched = watched(kernel, "short-lived")?;
        let cgroup = machine::cgroup("writers")?;
        let own = std::env::current_exe().ok().map(|path| path.display().to_string());
        let mut known = 0;
        for _ in 0..WRITERS {
            let mut writer = act::start("writers", "rename within", &watched.base)?;
            writer.wait().map_err(said)?;
            let actor = event(&mut watched.events, "the rename", |event| match event {
                Event::Write(change) if change.operation == Operation::MovedTo => {
                    Some((change.actor, change.executable))
                }
                _ => None,
            });
            let (actor, program) = actor.await?;
            let parent = Some(std::process::id());
            let is_known = (actor.pid, actor.parent, actor.uid, actor.cgroup) == (writer.id(), parent, 0, cgroup);
            known += usize::from(is_known && program == own);
            std::fs::rename(watched.places.manifests.join("new"), watched.places.manifests.join("web.yaml"))
                .map_err(said)?;
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

pub(crate) fn each_change(kernel: &Kernel) -> Outcome {
    use Operation::{Create, Link, MovedFrom, MovedTo, Symlink, Unlink, Written};
    let expected: [(&str, &[(Operation, &str)]); 8] = [
        ("write", &[(Create, "new"), (Written, "new")]),
        ("open", &[(Written, "web.yaml")]),
        ("rename within", &[(MovedFrom, "web.yaml"), (MovedTo, "new")]),
        ("rename in", &[(MovedTo, "new")]),
        ("rename out", &[(MovedFrom, "web.yaml")]),
        ("symlink", &[(Symlink, "new")]),
        ("link in", &[(Link, "new")]),
        ("unlink", &[(Unlink, "web.yaml")]),
    ];
    block_on(async {
        let mut watched = watched(kernel, "each")?;
        for (operation, wanted) in expected {
            // A directory of its own each: what the setting up does is not watched yet.
            let base = Path::new("/tmp").join(format!("each {operation}"));
            let places = Places::of(&base);
            places.make().map_err(said)?;
            watched.loaded.watch(InodeId::of(&places.manifests).map_err(said)?).map_err(said)?;
            let mut writer = act::start(act::OUTSIDE, operation, &base)?;
            writer.wait().map_err(said)?;
            for (what, name) in wanted {
                let change = event(&mut watched.events, operation, |event| match event {
                    Event::Write(change) => Some(change),
                    _ => None,
                });
                let change = change.await?;
                let is_wanted = change.operation == *what && change.name == name.as_bytes();
                let is_there = InodeId::of(&places.manifests).is_ok_and(|id| id == change.directory);
                if !is_wanted || !is_there || change.actor.pid != writer.id() {
                    return Err(format!("{operation}: {change:?}, expected {what:?} of {name} by {}", writer.id()));
                }
            }
        }
        Ok(None)
    })?
}

/// The agent's own tests of its watch: inotify, fanotify and programs, and what becomes of it when one is taken away.
pub(crate) fn backends(_: &Kernel) -> Outcome {
    let installed = Command::new("/bin/busybox").args(["--install", "-s", "/bin"]).status().map_err(said)?;
    if !installed.success() {
        return Err(format!("busybox: {installed}"));
    }
    let mut tests = Command::new("/bin/agent-tests");
    tests.args(["watch::", "--test-threads=1", "--nocapture"]).env("PATH", "/bin").env("TMPDIR", "/tmp");
    let ended = tests.status().map_err(said)?;
    if ended.success() { Ok(None) } else { Err(format!("the watch's tests: {ended}")) }
}
