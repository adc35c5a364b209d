//! Many changes, endless writers, and missing capabilities: no change is missed, and memory stays bounded.

use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use limpet_attribution::bpf_feed;
use limpet_bpf::{Kernel, Request};
use rustix::fs::{AtFlags, Mode};
use rustix::process::Pid;
use rustix::thread::CapabilitySet;
use tokio::sync::oneshot;

use super::attributor::{RecordingOnlooker, follow, load, truth};
use limpet_tests::need;

use super::*;
use limpet_model::attribution::{Backend, ManifestWatch, WatchObserver};

/// The last file that is written.
const END: &str = "end.yaml";
/// The file that is written until the programs are active.
const PROBE: &str = "probe.yaml";
const WRITERS: usize = 50;
const CHANGES: usize = 200;
/// How many files each writer writes.
const FILES: usize = 20;

/// How many writers write once and exit.
const AT_ONCE: usize = 200;
/// The most events that are caused, which is many times the kernel's queue.
const MAX_EVENTS: usize = 1_000_000;

/// A process that writes its own files repeatedly and exits. Fifty of them leave the reader little of an emulated CPU, so
/// their priority is lower.
fn writer(test: &TestDirectory, number: usize) -> Child {
    let script =
        format!("i=0; while [ $i -lt {CHANGES} ]; do echo $i > w{number}-$((i % {FILES})).yaml; i=$((i + 1)); done");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).current_dir(&test.directory).stdin(Stdio::null());
    let child = shell.spawn().unwrap();
    rustix::process::setpriority_process(Some(Pid::from_child(&child)), 19).unwrap();
    child
}

/// How much was known of the actors of the handled changes.
#[derive(Debug, Default)]
struct Known {
    handled: usize,
    whole: usize,
    pid: usize,
    uid: usize,
    command: usize,
    executable: usize,
    cgroup: usize,
    /// Changes that found no room in the programs' ring.
    lost: u64,
    /// Changes at which the program was skipped.
    skipped: u64,
}

impl Known {
    fn count(&mut self, actor: Option<&Actor>) {
        self.handled += 1;
        let actor = actor.cloned().unwrap_or_default();
        let known = [
            (actor.pid.is_some(), &mut self.pid),
            (actor.uid.is_some(), &mut self.uid),
            (actor.command.is_some(), &mut self.command),
            (actor.executable.is_some(), &mut self.executable),
            (actor.cgroup.is_some(), &mut self.cgroup),
        ];
        self.whole += usize::from(known.iter().all(|(known, _)| *known));
        known.into_iter().for_each(|(known, count)| *count += usize::from(known));
    }

    /// The changes whose process is known completely, and those that were counted as lost or skipped.
    fn accounted(&self) -> usize {
        (self.whole + usize::try_from(self.lost + self.skipped).unwrap()).min(self.handled)
    }

    fn percent(&self, part: usize) -> f64 {
        100.0 * part as f64 / self.handled.max(1) as f64
    }

    fn print(&self, backend: Backend) {
        println!(
            "{backend}: {} changes handled separately; known of them: all {:.1} %, pid {:.1} %, uid {:.1} %, command {:.1} %, executable {:.1} %, cgroup {:.1} %; {} lost, {} skipped",
            self.handled,
            self.percent(self.whole),
            self.percent(self.pid),
            self.percent(self.uid),
            self.percent(self.command),
            self.percent(self.executable),
            self.percent(self.cgroup),
            self.lost,
            self.skipped,
        );
    }
}

/// Asks how many changes found no room, and at how many the program was skipped.
type Losses = mpsc::Sender<oneshot::Sender<(u64, u64)>>;

/// The BPF programs, active until the runtime shuts down, and a channel that tells what they could not report. Prints
/// that the test is skipped and returns `None` if the kernel rejects them.
async fn programs() -> Option<(mpsc::Receiver<Feed>, Losses)> {
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
    let (losses, mut asked): (Losses, _) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = end.changed() => end.align(&mut loaded),
                event = events.next() => end.forward_all(event.unwrap(), &mut events, &loaded).await,
                // This is asked only once, at the end, because the kernel skips the programs on a CPU whose process is
                // preempted while it reads a map.
                Some(answer) = asked.recv() => answer.send((loaded.lost(), loaded.skipped())).unwrap(),
            }
        }
    });
    let (offer, offered) = mpsc::channel(1);
    offer.send(feed).await.unwrap();
    Some((offered, losses))
}

/// Returns once the programs watch the directory.
async fn wait_until_active(watch: &mut DirectoryWatch, test: &TestDirectory) {
    while !watch.actors().contains_key(OsStr::new(PROBE)) {
        fs::write(test.directory.join(PROBE), "x").unwrap();
        next(watch).await;
    }
    fs::remove_file(test.directory.join(PROBE)).unwrap();
}

/// Makes the changes, and returns what was known of their actors; `None` if the kernel refuses the backend.
async fn ten_thousand_changes(wanted: ManifestWatch) -> Option<Known> {
    let test = TestDirectory::new();
    let settings = WatchSettings { wanted, ..WatchSettings::default() };
    let (feeds, losses) = if wanted == ManifestWatch::Ebpf {
        programs().await.map(|(feeds, losses)| (Some(feeds), Some(losses)))?
    } else {
        (None, None)
    };
    let mut watch = DirectoryWatch::with_attribution(&test.directory, settings, feeds).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Start));
    if wanted == ManifestWatch::Ebpf {
        assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Attributor));
        wait_until_active(&mut watch, &test).await;
    }
    if watch.backend().as_str() != wanted.as_str() {
        need::kernel_lacks(format!("{wanted:?} does not work here"));
        return None;
    }
    let writers: Vec<Child> = (0..WRITERS).map(|number| writer(&test, number)).collect();
    let pids: Vec<u32> = writers.iter().map(Child::id).collect();
    let waiting = std::thread::spawn({
        let end = test.directory.join(END);
        move || {
            writers.into_iter().for_each(|mut writer| assert!(writer.wait().unwrap().success()));
            fs::write(end, "x").unwrap();
        }
    });
    let (mut seen, mut known) = (BTreeMap::new(), Known::default());
    // The content of each name when it was last counted.
    let mut counted = BTreeMap::new();
    while !seen.contains_key(OsStr::new(END)) || seen != truth(&test) {
        let names = follow(&mut watch, &test, &mut seen).await;
        let actors = watch.actors();
        for name in names.into_iter().filter(|name| name != END && name != PROBE) {
            let actor = actors.get(&name).map(|actor| &**actor);
            // Unchanged content is not a change. An empty file is still being written, and its writer is not named yet.
            if let Some(content) = seen.get(&name).filter(|content| !content.is_empty())
                && counted.insert(name.clone(), content.clone()).as_ref() != Some(content)
            {
                known.count(actor);
            }
            // An unknown actor is allowed, a wrong one is not.
            let number = name.to_str().unwrap().trim_start_matches('w').split('-').next().unwrap().to_owned();
            let writer = pids[number.parse::<usize>().unwrap()];
            assert!(actor.and_then(|actor| actor.pid).is_none_or(|pid| pid == writer), "{name:?} is not by {actor:?}");
        }
    }
    waiting.join().unwrap();
    if let Some(losses) = losses {
        let (answer, counts) = oneshot::channel();
        losses.send(answer).await.unwrap();
        (known.lost, known.skipped) = counts.await.unwrap();
    }
    known.print(watch.backend());
    assert_eq!(watch.backend().as_str(), wanted.as_str());
    Some(known)
}

#[tokio::test]
async fn none_of_ten_thousand_changes_is_missed_by_inotify() {
    ten_thousand_changes(ManifestWatch::Inotify).await.unwrap();
}

#[tokio::test]
async fn of_ten_thousand_changes_fanotify_knows_each_process() {
    if let Some(known) = ten_thousand_changes(ManifestWatch::Fanotify).await {
        assert!(known.pid * 100 >= known.handled * 99, "{known:?}");
    }
}

/// Others must be counted as lost, because the ring had no room, or as skipped by the kernel.
#[tokio::test]
async fn of_ten_thousand_changes_the_programs_know_each_process_whole() {
    if let Some(known) = ten_thousand_changes(ManifestWatch::Ebpf).await {
        assert!(known.accounted() * 100 >= known.handled * 99, "{known:?}");
        assert!(known.whole * 100 >= known.handled * 90, "{known:?}");
    }
}

/// The writers run one after the other, and each exits as soon as it has written.
#[tokio::test]
async fn a_writer_that_exits_at_once_is_known_at_least_by_pid() {
    let test = TestDirectory::new();
    let settings = WatchSettings { wanted: ManifestWatch::Fanotify, ..WatchSettings::default() };
    let mut watch = DirectoryWatch::with_attribution(&test.directory, settings, None).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Start));
    if watch.backend() != Backend::Fanotify {
        need::kernel_lacks("fanotify does not work here");
        return;
    }
    let directory = test.directory.clone();
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
        let names = follow(&mut watch, &test, &mut seen).await;
        let actors = watch.actors();
        names.iter().for_each(|name| known.count(actors.get(name).map(|actor| &**actor)));
    }
    writing.join().unwrap();
    known.print(Backend::Fanotify);
    assert!(known.pid >= AT_ONCE && seen.len() == AT_ONCE + 1, "{known:?}");
}

#[tokio::test]
async fn an_endless_writer_does_not_delay_other_changes() {
    let test = TestDirectory::new();
    let settings = WatchSettings { wanted: ManifestWatch::Auto, ..WatchSettings::default() };
    let mut watch = DirectoryWatch::with_attribution(&test.directory, settings, None).await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Start));
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let endless = std::thread::spawn({
        let (stop, count, directory) = (Arc::clone(&stop), Arc::clone(&count), test.directory.clone());
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
    while count.load(Ordering::Relaxed) < MAX_EVENTS {
        next(&mut watch).await;
        assert!(watch.hinted.len() <= 3 && watch.actors().len() <= 3);
    }
    // Another change is reported although the writer never stops.
    fs::write(test.directory.join("late.yaml"), "x").unwrap();
    loop {
        match next(&mut watch).await {
            WatchEvent::Hint(names) if names.contains(OsStr::new("late.yaml")) => break,
            WatchEvent::Rescan(_) if test.directory.join("late.yaml").exists() => break,
            _ => {}
        }
    }
    stop.store(true, Ordering::Relaxed);
    endless.join().unwrap();
}

#[tokio::test]
async fn a_directory_swapped_repeatedly_under_load_is_read_in_its_last_state() {
    let test = TestDirectory::new();
    let settings = WatchSettings { wanted: ManifestWatch::Auto, ..WatchSettings::default() };
    let mut watch = DirectoryWatch::with_attribution(&test.directory, settings, None).await.unwrap();
    let (other, aside) = (test.parent.join("other"), test.parent.join("aside"));
    fs::create_dir(&other).unwrap();
    let swapping = std::thread::spawn({
        let directory = test.directory.clone();
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
    while !known.contains_key(OsStr::new(END)) || known != truth_if_there(&test) {
        follow(&mut watch, &test, &mut known).await;
        let here = truth_if_there(&test);
        known.retain(|name, _| here.contains_key(name));
    }
    swapping.join().unwrap();
    // The current directory is the watched one.
    fs::write(test.directory.join("last.yaml"), "x").unwrap();
    while !known.contains_key(OsStr::new("last.yaml")) {
        follow(&mut watch, &test, &mut known).await;
    }
}

/// Like [`truth`], but for a directory that may be missing.
fn truth_if_there(test: &TestDirectory) -> BTreeMap<OsString, String> {
    let entries = fs::read_dir(&test.directory).into_iter().flatten().flatten();
    entries.map(|entry| (entry.file_name(), fs::read_to_string(entry.path()).unwrap_or_default())).collect()
}

/// Drops the capability permanently from this thread, which belongs only to the test.
fn drop_capability(capability: CapabilitySet) {
    let mut now = rustix::thread::capabilities(None).unwrap();
    now.effective.remove(capability);
    now.permitted.remove(capability);
    rustix::thread::set_capabilities(None, now).unwrap();
}

#[tokio::test]
async fn without_the_capability_inotify_watches_alone_and_it_is_reported() {
    drop_capability(CapabilitySet::SYS_ADMIN);
    for wanted in [ManifestWatch::Auto, ManifestWatch::Fanotify, ManifestWatch::Ebpf] {
        let (test, observer) = (TestDirectory::new(), Arc::new(RecordingOnlooker::default()));
        let settings = WatchSettings { wanted, observer: Arc::clone(&observer) as Arc<dyn WatchObserver> };
        let mut watch = DirectoryWatch::with_attribution(&test.directory, settings, None).await.unwrap();
        assert_eq!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Start));
        assert_eq!(watch.backend(), Backend::Inotify);
        assert_eq!(*observer.backends.lock().unwrap(), [(Backend::Inotify, Some(Backend::Fanotify))]);
        fs::write(test.directory.join("a.yaml"), "x").unwrap();
        assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
        assert!(watch.actors().is_empty());
    }
}

#[tokio::test]
async fn a_capability_dropped_under_load_loses_no_change() {
    let test = TestDirectory::new();
    let settings = WatchSettings { wanted: ManifestWatch::Auto, ..WatchSettings::default() };
    let mut watch = DirectoryWatch::with_attribution(&test.directory, settings, None).await.unwrap();
    let stop = Arc::default();
    let writing = load(&test, &stop);
    let mut known = BTreeMap::new();
    for round in 0..40 {
        if round == 10 {
            drop_capability(CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH);
        }
        if round == 20 {
            // Marks have to be added again, without the capability.
            watch.recheck().await;
        }
        follow(&mut watch, &test, &mut known).await;
    }
    stop.store(true, Ordering::Relaxed);
    writing.join().unwrap();
    while known != truth(&test) {
        follow(&mut watch, &test, &mut known).await;
    }
}
