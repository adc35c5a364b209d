//! Attribution by fanotify and BPF programs: the actor of each change, and the watch after a backend fails.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use rustix::thread::CapabilitySet;

use limpet_tests::need;

use super::*;
use limpet_attribution::feed::Sighting;
use limpet_host::directory::directory_id;
use limpet_model::actor::ActorPod;
use limpet_model::attribution::{Backend, ManifestWatch, WatchObserver};

/// Resolves one cgroup path to a pod, and records what is reported to it.
#[derive(Debug, Default)]
pub(super) struct RecordingOnlooker {
    /// The cgroup path of a pod.
    pods_cgroup: Option<String>,
    pub(super) backends: Mutex<Vec<(Backend, Option<Backend>)>>,
    alarms: Mutex<Vec<String>>,
}

impl WatchObserver for RecordingOnlooker {
    fn resident(&self, cgroup: &str) -> Option<ActorPod> {
        let container = Some("app".to_owned());
        self.pods_cgroup.as_deref().filter(|known| *known == cgroup)?;
        Some(ActorPod { uid: "u1".to_owned(), pod: Some("default/web".to_owned()), container })
    }

    fn pod_wrote(&self, name: &OsStr, actor: &Actor) {
        self.alarms.lock().unwrap().push(format!("{} by {actor}", name.display()));
    }

    fn watching(&self, backend: Backend, lost: Option<Backend>) {
        self.backends.lock().unwrap().push((backend, lost));
    }
}

impl TestDirectory {
    /// A watch with fanotify. Prints that the test is skipped and returns `None` if fanotify is not available.
    async fn watch_with_fanotify(&self, observer: &Arc<RecordingOnlooker>) -> Option<DirectoryWatch> {
        let settings =
            WatchSettings { wanted: ManifestWatch::Fanotify, observer: Arc::clone(observer) as Arc<dyn WatchObserver> };
        let mut watch = DirectoryWatch::with_attribution(&self.directory, settings, None).await.unwrap();
        assert_eq!(watch.next().await.unwrap(), WatchEvent::Rescan(RescanReason::Start));
        if watch.backend() != Backend::Fanotify {
            need::kernel_lacks("fanotify does not work here");
            return None;
        }
        Some(watch)
    }

    /// Runs `script` in a separate process and returns its pid.
    fn shell(&self, script: &str) -> u32 {
        let mut child = Command::new("sh").args(["-c", script]).current_dir(&self.directory).spawn().unwrap();
        let pid = child.id();
        assert!(child.wait().unwrap().success(), "{script}");
        pid
    }
}

/// The actor of the next reported change of `name`.
async fn who(watch: &mut DirectoryWatch, name: &str) -> Option<Arc<Actor>> {
    loop {
        match next(watch).await {
            WatchEvent::Hint(names) if names.contains(OsStr::new(name)) => break,
            WatchEvent::Hint(_) => {}
            WatchEvent::Rescan(reason) => panic!("{reason:?}"),
        }
    }
    watch.actors().remove(OsStr::new(name))
}

#[tokio::test]
async fn every_kind_of_change_has_its_actor() {
    let test = TestDirectory::new();
    let Some(mut watch) = test.watch_with_fanotify(&Arc::default()).await else { return };
    let scripts = [
        ("a.yaml", "echo 1 > a.yaml; sleep 0.2"),
        ("a.yaml", "echo 2 > ../new; mv ../new a.yaml"),
        ("b.yaml", "ln -s a.yaml b.yaml"),
        ("c.yaml", "ln a.yaml c.yaml"),
        ("d.yaml", "mv a.yaml d.yaml"),
        ("c.yaml", "rm c.yaml"),
        ("d.yaml", "chmod 600 d.yaml"),
    ];
    for (name, script) in scripts {
        // `exec` makes the last command the process that was started here; the first one is the shell's own.
        let pid = match script.rsplit_once("; ") {
            Some((_, last)) if last.starts_with("sleep") => test.shell(script),
            Some((before, last)) => test.shell(&format!("{before}; exec {last}")),
            None => test.shell(&format!("exec {script}")),
        };
        let actor = who(&mut watch, name).await.unwrap_or_else(|| panic!("no actor of {script}"));
        assert_eq!(actor.pid, Some(pid), "{script}: {actor:?}");
    }
}

#[tokio::test]
async fn a_running_writer_is_fully_known_and_its_pod_is_reported() {
    let test = TestDirectory::new();
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let cgroup = cgroups.lines().next().unwrap().splitn(3, ':').nth(2).unwrap().to_owned();
    let observer = Arc::new(RecordingOnlooker { pods_cgroup: Some(cgroup), ..RecordingOnlooker::default() });
    let Some(mut watch) = test.watch_with_fanotify(&observer).await else { return };
    fs::write(test.directory.join("a.yaml"), "x").unwrap();
    let actor = who(&mut watch, "a.yaml").await.unwrap();
    assert_eq!(actor.pid, Some(std::process::id()));
    assert_eq!(actor.uid, Some(rustix::process::getuid().as_raw()));
    let executable = std::env::current_exe().unwrap();
    assert_eq!(actor.executable.as_deref(), executable.to_str());
    assert_eq!(actor.resident.as_ref().unwrap().container.as_deref(), Some("app"));
    let alarms = observer.alarms.lock().unwrap().join("\n");
    assert!(alarms.contains("a.yaml by ") && alarms.contains("in pod default/web, container app"), "{alarms}");
    assert_eq!(*observer.backends.lock().unwrap(), [(Backend::Fanotify, None)]);
}

#[tokio::test]
async fn a_swap_of_linked_data_has_its_actor() {
    let test = TestDirectory::new();
    for version in ["..v1", "..v2"] {
        fs::create_dir(test.directory.join(version)).unwrap();
        fs::write(test.directory.join(version).join("a.yaml"), version).unwrap();
    }
    symlink("..v1", test.directory.join("..data")).unwrap();
    symlink("..data/a.yaml", test.directory.join("a.yaml")).unwrap();
    let Some(mut watch) = test.watch_with_fanotify(&Arc::default()).await else { return };
    watch.follow([OsStr::new("a.yaml")]).await;
    let pid = test.shell("ln -s ..v2 ..tmp; exec mv -T ..tmp ..data");
    assert_eq!(who(&mut watch, "a.yaml").await.unwrap().pid, Some(pid));
    watch.follow([OsStr::new("a.yaml")]).await;
    let pid = test.shell("echo 3 > ..v2/a.yaml");
    assert_eq!(who(&mut watch, "a.yaml").await.unwrap().pid, Some(pid), "the directory it resolves to now");
}

#[tokio::test]
async fn a_chmod_does_not_replace_the_writer() {
    let test = TestDirectory::new();
    let Some(mut watch) = test.watch_with_fanotify(&Arc::default()).await else { return };
    let writer = test.shell("echo 1 > a.yaml");
    test.shell("exec chmod 600 a.yaml");
    assert_eq!(who(&mut watch, "a.yaml").await.unwrap().pid, Some(writer));
}

#[tokio::test]
async fn an_actor_superseded_by_another_is_not_certain() {
    let test = TestDirectory::new();
    let Some(mut watch) = test.watch_with_fanotify(&Arc::default()).await else { return };
    let first = test.shell("echo 1 > a.yaml");
    next(&mut watch).await;
    let name = OsStr::new("a.yaml");
    let actor = watch.actors().remove(name).unwrap();
    assert_eq!(actor.pid, Some(first));
    assert!(watch.is_certain(name, &actor));
    let second = test.shell("echo 2 > a.yaml");
    assert!(!watch.is_certain(name, &actor), "what is read now may be by either");
    assert_eq!(who(&mut watch, "a.yaml").await.unwrap().pid, Some(second));
}

/// Renames files into the directory until `stop`; the thread returns how many.
pub(super) fn load(test: &TestDirectory, stop: &Arc<std::sync::atomic::AtomicBool>) -> std::thread::JoinHandle<usize> {
    let (directory, beside, stop) = (test.directory.clone(), test.parent.join("new"), Arc::clone(stop));
    std::thread::spawn(move || {
        let mut count = 0;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            fs::write(&beside, count.to_string()).unwrap();
            fs::rename(&beside, directory.join(format!("{}.yaml", count % 50))).unwrap();
            count += 1;
        }
        count
    })
}

/// Reads what the next event names into `known`, with attribution events handled meanwhile; returns the names read.
pub(super) async fn follow(
    watch: &mut DirectoryWatch,
    test: &TestDirectory,
    known: &mut BTreeMap<OsString, String>,
) -> Vec<OsString> {
    let names: Vec<OsString> = match next(watch).await {
        WatchEvent::Hint(names) => names.into_iter().collect(),
        WatchEvent::Rescan(_) => {
            watch.recheck().await;
            let entries = fs::read_dir(&test.directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name()).collect()
        }
    };
    let read = |(path, name): (PathBuf, OsString)| Some((name, fs::read_to_string(path).ok()?));
    let files: Vec<_> = names.iter().map(|name| (test.directory.join(name), name.clone())).collect();
    let mut reading = tokio::task::spawn_blocking(move || files.into_iter().filter_map(read).collect::<Vec<_>>());
    let read = loop {
        tokio::select! {
            read = &mut reading => break read.unwrap(),
            () = watch.listen() => {}
        }
    };
    known.extend(read);
    names
}

pub(super) fn truth(test: &TestDirectory) -> BTreeMap<OsString, String> {
    let entries = fs::read_dir(&test.directory).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name(), fs::read_to_string(entry.path()).unwrap())).collect()
}

#[tokio::test]
async fn marks_lost_under_load_are_added_again_and_no_change_is_missed() {
    let test = TestDirectory::new();
    let observer = Arc::new(RecordingOnlooker::default());
    let Some(mut watch) = test.watch_with_fanotify(&observer).await else { return };
    let stop = Arc::default();
    let writer = load(&test, &stop);
    let mut known = BTreeMap::new();
    for _ in 0..20 {
        follow(&mut watch, &test, &mut known).await;
    }
    watch.attributor.lose_marks();
    // Missing events are noticed after a few changes, and then there are actors again.
    loop {
        follow(&mut watch, &test, &mut known).await;
        if watch.actors().values().any(|actor| actor.pid == Some(std::process::id())) && !watch.attributor.is_silent() {
            break;
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    while known != truth(&test) {
        follow(&mut watch, &test, &mut known).await;
    }
    assert_eq!(watch.backend(), Backend::Fanotify);
}

#[tokio::test]
async fn programs_detached_under_load_are_replaced_and_no_change_is_missed() {
    let test = TestDirectory::new();
    let observer = Arc::new(RecordingOnlooker::default());
    let (offer, offered) = mpsc::channel(1);
    let settings =
        WatchSettings { wanted: ManifestWatch::Auto, observer: Arc::clone(&observer) as Arc<dyn WatchObserver> };
    let mut watch = DirectoryWatch::with_attribution(&test.directory, settings, Some(offered)).await.unwrap();
    let (directories, mut requested) = tokio::sync::watch::channel(BTreeSet::new());
    let (sender, sightings) = mpsc::channel(64);
    let losses = Arc::new(AtomicU64::new(3));
    offer.send(Feed { directories, sightings, losses: Arc::clone(&losses), progress: Arc::default() }).await.unwrap();
    while watch.backend() != Backend::Ebpf {
        next(&mut watch).await;
    }
    let id = directory_id(&test.directory).unwrap();
    assert_eq!(*requested.borrow_and_update(), BTreeSet::from([id]));

    // The programs report a process, which is not the one that wrote.
    let actor = Actor { pid: Some(7), uid: Some(0), ..Actor::default() };
    let sighting = Sighting { directory: id, name: "a.yaml".into(), attributes_only: false, actor, cgroup_id: None };
    sender.send(sighting.clone()).await.unwrap();
    fs::write(test.directory.join("a.yaml"), "x").unwrap();
    let actor = who(&mut watch, "a.yaml").await.unwrap();
    assert_eq!((actor.pid, actor.user.as_deref()), (Some(7), Some("root")));

    // One change was reported and a further one was not, so the last actor is not known.
    sender.send(sighting).await.unwrap();
    losses.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    fs::write(test.directory.join("a.yaml"), "y").unwrap();
    while next(&mut watch).await != WatchEvent::Rescan(RescanReason::Attributor) {}
    assert!(watch.actors().is_empty());

    let stop = Arc::default();
    let (writer, mut known) = (load(&test, &stop), BTreeMap::new());
    follow(&mut watch, &test, &mut known).await;
    drop(sender);
    while watch.backend() == Backend::Ebpf {
        follow(&mut watch, &test, &mut known).await;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    while known != truth(&test) {
        follow(&mut watch, &test, &mut known).await;
    }
    let last = *observer.backends.lock().unwrap().last().unwrap();
    assert!(last.0 != Backend::Ebpf && last.1.is_some(), "{last:?}");
}

#[tokio::test]
async fn inotify_watches_removed_under_load_are_added_again_and_no_change_is_missed() {
    let test = TestDirectory::new();
    let mut watch = test.watch().await;
    let stop = Arc::default();
    let writer = load(&test, &stop);
    let mut known = BTreeMap::new();
    for _ in 0..5 {
        for _ in 0..5 {
            follow(&mut watch, &test, &mut known).await;
        }
        let (main, _) = watch.main.unwrap();
        watch.queue.remove(main);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    while known != truth(&test) {
        follow(&mut watch, &test, &mut known).await;
    }
}

#[tokio::test]
async fn fanotify_refused_for_one_directory_is_tried_for_the_next() {
    let test = TestDirectory::new();
    let observer = Arc::new(RecordingOnlooker::default());
    if test.watch_with_fanotify(&observer).await.is_none() {
        return;
    }
    // Only this thread lacks the capability, and only temporarily.
    let privileged = rustix::thread::capabilities(None).unwrap();
    let mut without = privileged;
    without.effective.remove(CapabilitySet::SYS_ADMIN);
    rustix::thread::set_capabilities(None, without).unwrap();
    let path = test.parent.join("path");
    std::os::unix::fs::symlink(&test.parent, &path).unwrap();
    let settings = WatchSettings { wanted: ManifestWatch::Auto, ..WatchSettings::default() };
    let mut watch = DirectoryWatch::with_attribution(&path, settings, None).await.unwrap();
    next(&mut watch).await;
    assert_eq!(watch.backend(), Backend::Inotify);
    rustix::thread::set_capabilities(None, privileged).unwrap();
    let beside = test.parent.join("beside");
    std::os::unix::fs::symlink(&test.directory, &beside).unwrap();
    fs::rename(&beside, &path).unwrap();
    while watch.backend() != Backend::Fanotify {
        next(&mut watch).await;
    }
    let pid = test.shell("echo x > a.yaml");
    assert_eq!(who(&mut watch, "a.yaml").await.unwrap().pid, Some(pid));
}

#[tokio::test]
async fn an_overflow_of_the_fanotify_queue_requests_a_rescan() {
    let test = TestDirectory::new();
    let Some(mut watch) = test.watch_with_fanotify(&Arc::default()).await else { return };
    let limit = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").unwrap_or_else(|_| "16384".to_owned());
    let limit: usize = limit.trim().parse().unwrap();
    // inotify's queue is emptied meanwhile, so that it is not the one that overflows.
    for number in 0..=limit {
        fs::write(test.directory.join(number.to_string()), "").unwrap();
        if number % 1_000 == 0 {
            let _ = watch.queue.drain().await.unwrap();
        }
    }
    let mut rescanned = false;
    while !rescanned {
        rescanned =
            matches!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Attributor | RescanReason::Overflow));
    }
    let pid = test.shell("echo 1 > a.yaml");
    let mut seen = None;
    while seen.is_none() {
        next(&mut watch).await;
        seen = watch.actors().remove(OsStr::new("a.yaml"));
    }
    assert_eq!(seen.unwrap().pid, Some(pid));
}
