//! Many changes, writers without an end, and privileges that are not there: nothing is missed, and memory stays bounded.

use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use limpet_attribution::bpf_feed;
use limpet_bpf::{Kernel, Request};
use rustix::fs::{AtFlags, Mode};
use rustix::process::Pid;
use rustix::thread::CapabilitySet;

use super::attributor::{Listening, follow, load, truth};
use limpet_tests::need;

use super::*;
use limpet_model::attribution::Backend;
use limpet_model::attribution::ManifestWatch;
use limpet_model::attribution::Onlooker;

/// Written when all else is done.
const END: &str = "end.yaml";
/// Written before anything counts.
const PROBE: &str = "probe.yaml";
const WRITERS: usize = 50;
const CHANGES: usize = 200;
/// Files of each writer.
const FILES: usize = 20;

/// Writers that write once and end.
const AT_ONCE: usize = 200;
/// Many times what the kernel queues.
const ENOUGH: usize = 1_000_000;

/// A process that writes its own files again and again and ends. Fifty of them leave one reader little of an emulated
/// processor: it comes first.
fn writer(place: &Place, number: usize) -> Child {
    let script =
        format!("i=0; while [ $i -lt {CHANGES} ]; do echo $i > w{number}-$((i % {FILES})).yaml; i=$((i + 1)); done");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).current_dir(&place.directory).stdin(Stdio::null());
    let child = shell.spawn().unwrap();
    rustix::process::setpriority_process(Some(Pid::from_child(&child)), 19).unwrap();
    child
}

/// How much was known of those who made the changes that were handled.
#[derive(Debug, Default)]
struct Known {
    handled: usize,
    pid: usize,
    uid: usize,
    command: usize,
    executable: usize,
    cgroup: usize,
    /// Changes that the kernel's programs could not tell.
    missed: u64,
}

impl Known {
    fn count(&mut self, actor: Option<&Actor>) {
        self.handled += 1;
        let Some(actor) = actor else { return };
        self.pid += usize::from(actor.pid.is_some());
        self.uid += usize::from(actor.uid.is_some());
        self.command += usize::from(actor.command.is_some());
        self.executable += usize::from(actor.executable.is_some());
        self.cgroup += usize::from(actor.cgroup.is_some());
    }

    fn say(&self, backend: Backend) {
        let percent = |part: usize| 100.0 * part as f64 / self.handled.max(1) as f64;
        println!(
            "{backend}: {} changes handled apart, {} missed by programs; known of them: pid {:.1} %, uid {:.1} %, command {:.1} %, executable {:.1} %, cgroup {:.1} %",
            self.handled,
            self.missed,
            percent(self.pid),
            percent(self.uid),
            percent(self.command),
            percent(self.executable),
            percent(self.cgroup),
        );
    }
}

/// The kernel's own programs, at work until the runtime ends, and how many changes they could not tell; `None`, and told, where
/// it refuses them.
async fn programs() -> Option<(mpsc::Receiver<Feed>, Arc<AtomicU64>)> {
    let mut loaded = match Kernel::read().load(&Request { watch: true, ..Request::default() }) {
        Ok(loaded) => loaded,
        Err(error) => {
            need::kernel_lacks(error);
            return None;
        }
    };
    let (feed, mut end) = match bpf_feed::feed(&loaded) {
        Ok(ends) => ends,
        Err(reason) => {
            need::kernel_lacks(reason);
            return None;
        }
    };
    let mut events = loaded.events().unwrap().unwrap();
    let missed = Arc::<AtomicU64>::default();
    let count = Arc::clone(&missed);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = end.changed() => end.align(&mut loaded),
                event = events.next() => {
                    end.tell_all(event.unwrap(), &mut events, &loaded).await;
                    count.store(loaded.lost() + loaded.skipped(), Ordering::Relaxed);
                }
            }
        }
    });
    let (offer, offered) = mpsc::channel(1);
    offer.send(feed).await.unwrap();
    Some((offered, missed))
}

/// Returns once the programs look at the directory.
async fn is_at_work(watch: &mut DirectoryWatch, place: &Place) {
    while !watch.actors().contains_key(OsStr::new(PROBE)) {
        fs::write(place.directory.join(PROBE), "x").unwrap();
        next(watch).await;
    }
    fs::remove_file(place.directory.join(PROBE)).unwrap();
}

async fn ten_thousand_changes(wanted: ManifestWatch) -> Option<(Backend, Known)> {
    let place = Place::new();
    let settings = WatchSettings { wanted, ..WatchSettings::default() };
    let (feeds, missed) = if wanted == ManifestWatch::Ebpf {
        programs().await.map(|(feeds, missed)| (Some(feeds), missed))?
    } else {
        (None, Arc::default())
    };
    let mut watch = DirectoryWatch::with_attribution(&place.directory, settings, feeds).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Start));
    if wanted == ManifestWatch::Ebpf {
        assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Attributor));
        assert_eq!(watch.backend(), Backend::Ebpf);
        is_at_work(&mut watch, &place).await;
    }
    let writers: Vec<Child> = (0..WRITERS).map(|number| writer(&place, number)).collect();
    let pids: Vec<u32> = writers.iter().map(Child::id).collect();
    let waiting = std::thread::spawn({
        let end = place.directory.join(END);
        move || {
            writers.into_iter().for_each(|mut writer| assert!(writer.wait().unwrap().success()));
            fs::write(end, "x").unwrap();
        }
    });
    let (mut seen, mut known) = (BTreeMap::new(), Known::default());
    while !seen.contains_key(OsStr::new(END)) || seen != truth(&place) {
        let names = follow(&mut watch, &place, &mut seen).await;
        let actors = watch.actors();
        for name in names.into_iter().filter(|name| name != END && name != PROBE) {
            let actor = actors.get(&name);
            known.count(actor.map(|actor| &**actor));
            // Unknown may be; wrong may not.
            let number = name.to_str().unwrap().trim_start_matches('w').split('-').next().unwrap().to_owned();
            let own = pids[number.parse::<usize>().unwrap()];
            assert!(actor.and_then(|actor| actor.pid).is_none_or(|pid| pid == own), "{name:?} is not by {actor:?}");
        }
    }
    waiting.join().unwrap();
    known.missed = missed.load(Ordering::Relaxed);
    Some((watch.backend(), known))
}

#[tokio::test]
async fn of_ten_thousand_changes_by_short_lived_writers_none_is_missed() {
    for wanted in [ManifestWatch::Inotify, ManifestWatch::Fanotify, ManifestWatch::Ebpf] {
        if let Some((backend, known)) = ten_thousand_changes(wanted).await {
            known.say(backend);
            assert!(backend == Backend::Inotify || known.pid > 0, "{backend} knew nobody");
            let all = known.pid.min(known.uid).min(known.command).min(known.executable).min(known.cgroup);
            // A kernel that preempts its own programs skips some, and counts them. A writer among fifty may be interrupted
            // between its close and the program's word for longer than anybody waits.
            let nearly_all = all * 100 >= known.handled * 99;
            assert!(backend != Backend::Ebpf || nearly_all || known.missed > 0, "{known:?}");
        }
    }
}

/// One after the other, each gone as soon as it has written.
#[tokio::test]
async fn who_writes_and_ends_at_once_is_known_as_far_as_it_can_be() {
    let place = Place::new();
    let settings = WatchSettings { wanted: ManifestWatch::Fanotify, ..WatchSettings::default() };
    let mut watch = DirectoryWatch::with_attribution(&place.directory, settings, None).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Start));
    if watch.backend() != Backend::Fanotify {
        need::kernel_lacks("fanotify does not work here");
        return;
    }
    let directory = place.directory.clone();
    let writing = std::thread::spawn(move || {
        for number in 0..AT_ONCE {
            let script = format!("echo {number} > {number}.yaml");
            assert!(
                std::process::Command::new("sh")
                    .args(["-c", &script])
                    .current_dir(&directory)
                    .status()
                    .unwrap()
                    .success()
            );
        }
        fs::write(directory.join(END), "x").unwrap();
    });
    let (mut seen, mut known) = (BTreeMap::new(), Known::default());
    while !seen.contains_key(OsStr::new(END)) {
        let names = follow(&mut watch, &place, &mut seen).await;
        let actors = watch.actors();
        names.iter().for_each(|name| known.count(actors.get(name).map(|actor| &**actor)));
    }
    writing.join().unwrap();
    known.say(Backend::Fanotify);
    assert!(known.pid >= AT_ONCE && seen.len() == AT_ONCE + 1, "{known:?}");
}

#[tokio::test]
async fn a_writer_without_end_holds_nobody_up() {
    let place = Place::new();
    let settings = WatchSettings { wanted: ManifestWatch::Auto, ..WatchSettings::default() };
    let mut watch = DirectoryWatch::with_attribution(&place.directory, settings, None).unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Start));
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let endless = std::thread::spawn({
        let (stop, count, directory) = (Arc::clone(&stop), Arc::clone(&count), place.directory.clone());
        move || {
            let paths = ["a.yaml", "b.yaml", "c.txt"].map(|name| directory.join(name));
            paths.iter().for_each(|path| fs::write(path, "x").unwrap());
            while !stop.load(Ordering::Relaxed) {
                // Events of one kind in a row become one, so the names take turns.
                for path in &paths {
                    rustix::fs::chmodat(rustix::fs::CWD, path, Mode::from_raw_mode(0o600), AtFlags::empty()).unwrap();
                }
                count.fetch_add(3, Ordering::Relaxed);
            }
        }
    });
    while count.load(Ordering::Relaxed) < ENOUGH {
        next(&mut watch).await;
        assert!(watch.hinted.len() <= 3 && watch.actors().len() <= 3);
    }
    // What somebody else does is seen although it never ends.
    fs::write(place.directory.join("late.yaml"), "x").unwrap();
    loop {
        match next(&mut watch).await {
            WatchEvent::Hint(names) if names.contains(OsStr::new("late.yaml")) => break,
            WatchEvent::Rescan(_) if place.directory.join("late.yaml").exists() => break,
            _ => {}
        }
    }
    stop.store(true, Ordering::Relaxed);
    endless.join().unwrap();
}

#[tokio::test]
async fn a_directory_that_is_swapped_again_and_again_under_load_ends_in_its_last_state() {
    let place = Place::new();
    let settings = WatchSettings { wanted: ManifestWatch::Auto, ..WatchSettings::default() };
    let mut watch = DirectoryWatch::with_attribution(&place.directory, settings, None).unwrap();
    let (other, aside) = (place.parent.join("other"), place.parent.join("aside"));
    fs::create_dir(&other).unwrap();
    let swapping = std::thread::spawn({
        let directory = place.directory.clone();
        move || {
            for round in 0..300 {
                fs::write(directory.join("a.yaml"), round.to_string()).unwrap();
                fs::rename(&directory, &aside).unwrap();
                fs::rename(&other, &directory).unwrap();
                fs::rename(&aside, &other).unwrap();
                fs::write(directory.join(format!("{}.yaml", round % 7)), round.to_string()).unwrap();
            }
            fs::write(directory.join(END), "x").unwrap();
        }
    });
    let mut known = BTreeMap::new();
    while !known.contains_key(OsStr::new(END)) || known != truth_if_there(&place) {
        follow(&mut watch, &place, &mut known).await;
        let here = truth_if_there(&place);
        known.retain(|name, _| here.contains_key(name));
    }
    swapping.join().unwrap();
    // It is the directory that is there now which is watched.
    fs::write(place.directory.join("last.yaml"), "x").unwrap();
    while !known.contains_key(OsStr::new("last.yaml")) {
        follow(&mut watch, &place, &mut known).await;
    }
}

/// As [`truth`], of a directory that may be gone in this moment.
fn truth_if_there(place: &Place) -> BTreeMap<OsString, String> {
    let entries = fs::read_dir(&place.directory).into_iter().flatten().flatten();
    entries.map(|entry| (entry.file_name(), fs::read_to_string(entry.path()).unwrap_or_default())).collect()
}

/// Takes the capability from this thread, which is the test's own, for good.
fn drop_capability(capability: CapabilitySet) {
    let mut now = rustix::thread::capabilities(None).unwrap();
    now.effective.remove(capability);
    now.permitted.remove(capability);
    rustix::thread::set_capabilities(None, now).unwrap();
}

#[tokio::test]
async fn without_the_privilege_inotify_watches_alone_and_it_is_told() {
    drop_capability(CapabilitySet::SYS_ADMIN);
    for wanted in [ManifestWatch::Auto, ManifestWatch::Fanotify, ManifestWatch::Ebpf] {
        let (place, onlooker) = (Place::new(), Arc::new(Listening::default()));
        let settings = WatchSettings { wanted, onlooker: Arc::clone(&onlooker) as Arc<dyn Onlooker> };
        let mut watch = DirectoryWatch::with_attribution(&place.directory, settings, None).unwrap();
        assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Start));
        assert_eq!(watch.backend(), Backend::Inotify);
        assert_eq!(*onlooker.backends.lock().unwrap(), [(Backend::Inotify, Some(Backend::Fanotify))]);
        fs::write(place.directory.join("a.yaml"), "x").unwrap();
        assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
        assert!(watch.actors().is_empty());
    }
}

#[tokio::test]
async fn a_privilege_that_is_lost_under_load_loses_no_change() {
    let place = Place::new();
    let settings = WatchSettings { wanted: ManifestWatch::Auto, ..WatchSettings::default() };
    let mut watch = DirectoryWatch::with_attribution(&place.directory, settings, None).unwrap();
    let stop = Arc::default();
    let writing = load(&place, &stop);
    let mut known = BTreeMap::new();
    for round in 0..40 {
        if round == 10 {
            drop_capability(CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH);
        }
        if round == 20 {
            // Marks have to be put anew, without the privilege.
            watch.recheck();
        }
        follow(&mut watch, &place, &mut known).await;
    }
    stop.store(true, Ordering::Relaxed);
    writing.join().unwrap();
    while known != truth(&place) {
        follow(&mut watch, &place, &mut known).await;
    }
}
