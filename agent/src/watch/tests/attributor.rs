//! fanotify beside inotify: who did it, and what becomes of the watch when the attributor is taken away.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use rustix::thread::CapabilitySet;

use limpet_tests::need;

use super::*;
use limpet_attribution::feed::Sighting;
use limpet_model::actor::Resident;
use limpet_model::attribution::Backend;
use limpet_model::attribution::ManifestWatch;
use limpet_model::attribution::Onlooker;

/// Says who lives where, and remembers what it is told.
#[derive(Debug, Default)]
pub(super) struct Listening {
    /// A cgroup path that is a pod's.
    pods_cgroup: Option<String>,
    pub(super) backends: Mutex<Vec<(Backend, Option<Backend>)>>,
    alarms: Mutex<Vec<String>>,
}

impl Onlooker for Listening {
    fn resident(&self, cgroup: &str) -> Option<Resident> {
        let container = Some("app".to_owned());
        self.pods_cgroup.as_deref().filter(|own| *own == cgroup)?;
        Some(Resident { uid: "u1".to_owned(), pod: Some("default/web".to_owned()), container })
    }

    fn pod_wrote(&self, name: &OsStr, actor: &Actor) {
        self.alarms.lock().unwrap().push(format!("{} by {actor}", name.display()));
    }

    fn watching(&self, backend: Backend, lost: Option<Backend>) {
        self.backends.lock().unwrap().push((backend, lost));
    }
}

impl Place {
    /// A watch with fanotify; `None`, and told, where the machine does not let us.
    async fn witnessed(&self, onlooker: &Arc<Listening>) -> Option<DirectoryWatch> {
        let settings =
            WatchSettings { wanted: ManifestWatch::Fanotify, onlooker: Arc::clone(onlooker) as Arc<dyn Onlooker> };
        let mut watch = DirectoryWatch::with_attribution(&self.directory, settings, None).unwrap();
        assert_eq!(watch.next().await.unwrap(), WatchEvent::Rescan(RescanReason::Start));
        if watch.backend() != Backend::Fanotify {
            need::kernel_lacks("fanotify does not work here");
            return None;
        }
        Some(watch)
    }

    /// A process of its own that runs this, and its number.
    fn shell(&self, script: &str) -> u32 {
        let mut child = Command::new("sh").args(["-c", script]).current_dir(&self.directory).spawn().unwrap();
        let pid = child.id();
        assert!(child.wait().unwrap().success(), "{script}");
        pid
    }
}

/// Who changed `name`, when the watch tells of it.
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
    let place = Place::new();
    let Some(mut watch) = place.witnessed(&Arc::default()).await else { return };
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
            Some((_, last)) if last.starts_with("sleep") => place.shell(script),
            Some((before, last)) => place.shell(&format!("{before}; exec {last}")),
            None => place.shell(&format!("exec {script}")),
        };
        let actor = who(&mut watch, name).await.unwrap_or_else(|| panic!("nobody did {script}"));
        assert_eq!(actor.pid, Some(pid), "{script}: {actor:?}");
    }
}

#[tokio::test]
async fn a_writer_that_lives_is_known_whole_and_its_pod_is_reported() {
    let place = Place::new();
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = cgroups.lines().next().unwrap().splitn(3, ':').nth(2).unwrap().to_owned();
    let onlooker = Arc::new(Listening { pods_cgroup: Some(own), ..Listening::default() });
    let Some(mut watch) = place.witnessed(&onlooker).await else { return };
    fs::write(place.directory.join("a.yaml"), "x").unwrap();
    let actor = who(&mut watch, "a.yaml").await.unwrap();
    assert_eq!(actor.pid, Some(std::process::id()));
    assert_eq!(actor.uid, Some(rustix::process::getuid().as_raw()));
    let executable = std::env::current_exe().unwrap();
    assert_eq!(actor.executable.as_deref(), executable.to_str());
    assert_eq!(actor.resident.as_ref().unwrap().container.as_deref(), Some("app"));
    let alarms = onlooker.alarms.lock().unwrap().join("\n");
    assert!(alarms.contains("a.yaml by ") && alarms.contains("in pod default/web, container app"), "{alarms}");
    assert_eq!(*onlooker.backends.lock().unwrap(), [(Backend::Fanotify, None)]);
}

#[tokio::test]
async fn a_swap_of_linked_data_is_its_actors() {
    let place = Place::new();
    for version in ["..v1", "..v2"] {
        fs::create_dir(place.directory.join(version)).unwrap();
        fs::write(place.directory.join(version).join("a.yaml"), version).unwrap();
    }
    symlink("..v1", place.directory.join("..data")).unwrap();
    symlink("..data/a.yaml", place.directory.join("a.yaml")).unwrap();
    let Some(mut watch) = place.witnessed(&Arc::default()).await else { return };
    watch.follow([OsStr::new("a.yaml")]);
    let pid = place.shell("ln -s ..v2 ..tmp; exec mv -T ..tmp ..data");
    assert_eq!(who(&mut watch, "a.yaml").await.unwrap().pid, Some(pid));
    watch.follow([OsStr::new("a.yaml")]);
    let pid = place.shell("echo 3 > ..v2/a.yaml");
    assert_eq!(who(&mut watch, "a.yaml").await.unwrap().pid, Some(pid), "the directory it leads to now");
}

#[tokio::test]
async fn who_changes_the_mode_has_not_written() {
    let place = Place::new();
    let Some(mut watch) = place.witnessed(&Arc::default()).await else { return };
    let writer = place.shell("echo 1 > a.yaml");
    place.shell("exec chmod 600 a.yaml");
    assert_eq!(who(&mut watch, "a.yaml").await.unwrap().pid, Some(writer));
}

#[tokio::test]
async fn what_was_overtaken_is_not_certain() {
    let place = Place::new();
    let Some(mut watch) = place.witnessed(&Arc::default()).await else { return };
    let first = place.shell("echo 1 > a.yaml");
    next(&mut watch).await;
    let name = OsStr::new("a.yaml");
    let actor = watch.actors().remove(name).unwrap();
    assert_eq!(actor.pid, Some(first));
    assert!(watch.is_certain(name, &actor));
    let second = place.shell("echo 2 > a.yaml");
    assert!(!watch.is_certain(name, &actor), "what was read now may be of either");
    assert_eq!(who(&mut watch, "a.yaml").await.unwrap().pid, Some(second));
}

/// Renames files in until told to stop, then says how many.
pub(super) fn load(place: &Place, stop: &Arc<std::sync::atomic::AtomicBool>) -> std::thread::JoinHandle<usize> {
    let (directory, beside, stop) = (place.directory.clone(), place.parent.join("new"), Arc::clone(stop));
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

/// What the directory holds, read as the watch says, who writes meanwhile being heard; gives the names that were read.
pub(super) async fn follow(
    watch: &mut DirectoryWatch,
    place: &Place,
    known: &mut BTreeMap<OsString, String>,
) -> Vec<OsString> {
    let names: Vec<OsString> = match next(watch).await {
        WatchEvent::Hint(names) => names.into_iter().collect(),
        WatchEvent::Rescan(_) => {
            watch.recheck();
            let entries = fs::read_dir(&place.directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name()).collect()
        }
    };
    let read = |(path, name): (PathBuf, OsString)| Some((name, fs::read_to_string(path).ok()?));
    let files: Vec<_> = names.iter().map(|name| (place.directory.join(name), name.clone())).collect();
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

pub(super) fn truth(place: &Place) -> BTreeMap<OsString, String> {
    let entries = fs::read_dir(&place.directory).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name(), fs::read_to_string(entry.path()).unwrap())).collect()
}

#[tokio::test]
async fn marks_that_are_lost_under_load_are_put_anew_and_nothing_is_missed() {
    let place = Place::new();
    let onlooker = Arc::new(Listening::default());
    let Some(mut watch) = place.witnessed(&onlooker).await else { return };
    let stop = Arc::default();
    let writer = load(&place, &stop);
    let mut known = BTreeMap::new();
    for _ in 0..20 {
        follow(&mut watch, &place, &mut known).await;
    }
    watch.attributor.lose_marks();
    // Silence is noticed after a few changes, and then there are actors again.
    loop {
        follow(&mut watch, &place, &mut known).await;
        if watch.actors().values().any(|actor| actor.pid == Some(std::process::id())) && !watch.attributor.is_silent() {
            break;
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    while known != truth(&place) {
        follow(&mut watch, &place, &mut known).await;
    }
    assert_eq!(watch.backend(), Backend::Fanotify);
}

#[tokio::test]
async fn programs_that_are_detached_under_load_are_replaced_and_nothing_is_missed() {
    let place = Place::new();
    let onlooker = Arc::new(Listening::default());
    let (offer, offered) = mpsc::channel(1);
    let settings = WatchSettings { wanted: ManifestWatch::Auto, onlooker: Arc::clone(&onlooker) as Arc<dyn Onlooker> };
    let mut watch = DirectoryWatch::with_attribution(&place.directory, settings, Some(offered)).unwrap();
    let (directories, mut shown) = tokio::sync::watch::channel(BTreeSet::new());
    let (tell, sightings) = mpsc::channel(64);
    let losses = Arc::new(AtomicU64::new(3));
    offer.send(Feed { directories, sightings, losses: Arc::clone(&losses), progress: Arc::default() }).await.unwrap();
    while watch.backend() != Backend::Ebpf {
        next(&mut watch).await;
    }
    let id = directory_id(&place.directory).unwrap();
    assert_eq!(*shown.borrow_and_update(), BTreeSet::from([id]));

    // The programs tell of a process, which is not the one that wrote.
    let actor = Actor { pid: Some(7), uid: Some(0), ..Actor::default() };
    let sighting = Sighting { directory: id, name: "a.yaml".into(), attributes_only: false, actor, cgroup_id: None };
    tell.send(sighting.clone()).await.unwrap();
    fs::write(place.directory.join("a.yaml"), "x").unwrap();
    let actor = who(&mut watch, "a.yaml").await.unwrap();
    assert_eq!((actor.pid, actor.user.as_deref()), (Some(7), Some("root")));

    // Of modes programs tell nothing, and that is no silence.
    for mode in 0..20 {
        fs::set_permissions(place.directory.join("a.yaml"), fs::Permissions::from_mode(0o600 | mode)).unwrap();
        assert_eq!(next(&mut watch).await, hint(&["a.yaml"]));
        assert!(watch.actors().is_empty());
    }
    assert_eq!(watch.backend(), Backend::Ebpf);

    // One change was told and a further one was not: whose the last one is, nobody knows.
    tell.send(sighting).await.unwrap();
    losses.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    fs::write(place.directory.join("a.yaml"), "y").unwrap();
    while next(&mut watch).await != WatchEvent::Rescan(RescanReason::Attributor) {}
    assert!(watch.actors().is_empty());

    let stop = Arc::default();
    let (writer, mut known) = (load(&place, &stop), BTreeMap::new());
    follow(&mut watch, &place, &mut known).await;
    drop(tell);
    while watch.backend() == Backend::Ebpf {
        follow(&mut watch, &place, &mut known).await;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    while known != truth(&place) {
        follow(&mut watch, &place, &mut known).await;
    }
    let last = *onlooker.backends.lock().unwrap().last().unwrap();
    assert!(last.0 != Backend::Ebpf && last.1.is_some(), "{last:?}");
}

#[tokio::test]
async fn watches_of_inotify_that_end_under_load_are_put_anew_and_nothing_is_missed() {
    let place = Place::new();
    let mut watch = place.watch().await;
    let stop = Arc::default();
    let writer = load(&place, &stop);
    let mut known = BTreeMap::new();
    for _ in 0..5 {
        for _ in 0..5 {
            follow(&mut watch, &place, &mut known).await;
        }
        let (main, _) = watch.main.unwrap();
        watch.queue.remove(main);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    while known != truth(&place) {
        follow(&mut watch, &place, &mut known).await;
    }
}

#[tokio::test]
async fn what_was_refused_for_one_directory_is_tried_for_the_next() {
    let place = Place::new();
    let onlooker = Arc::new(Listening::default());
    if place.witnessed(&onlooker).await.is_none() {
        return;
    }
    // Only this thread lacks the privilege, and only for a while.
    let privileged = rustix::thread::capabilities(None).unwrap();
    let mut without = privileged;
    without.effective.remove(CapabilitySet::SYS_ADMIN);
    rustix::thread::set_capabilities(None, without).unwrap();
    let path = place.parent.join("path");
    std::os::unix::fs::symlink(&place.parent, &path).unwrap();
    let settings = WatchSettings { wanted: ManifestWatch::Auto, ..WatchSettings::default() };
    let mut watch = DirectoryWatch::with_attribution(&path, settings, None).unwrap();
    next(&mut watch).await;
    assert_eq!(watch.backend(), Backend::Inotify);
    rustix::thread::set_capabilities(None, privileged).unwrap();
    let beside = place.parent.join("beside");
    std::os::unix::fs::symlink(&place.directory, &beside).unwrap();
    fs::rename(&beside, &path).unwrap();
    while watch.backend() != Backend::Fanotify {
        next(&mut watch).await;
    }
    let pid = place.shell("echo x > a.yaml");
    assert_eq!(who(&mut watch, "a.yaml").await.unwrap().pid, Some(pid));
}

#[tokio::test]
async fn a_queue_of_fanotify_that_overflows_asks_for_a_rescan() {
    let place = Place::new();
    let Some(mut watch) = place.witnessed(&Arc::default()).await else { return };
    let limit = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").unwrap_or_else(|_| "16384".to_owned());
    let limit: usize = limit.trim().parse().unwrap();
    // inotify's queue is emptied meanwhile, so that it is not the one that overflows.
    for number in 0..=limit {
        fs::write(place.directory.join(number.to_string()), "").unwrap();
        if number % 1_000 == 0 {
            let _ = watch.queue.drain().await.unwrap();
        }
    }
    let mut rescanned = false;
    while !rescanned {
        rescanned =
            matches!(next(&mut watch).await, WatchEvent::Rescan(RescanReason::Attributor | RescanReason::Overflow));
    }
    let pid = place.shell("echo 1 > a.yaml");
    let mut seen = None;
    while seen.is_none() {
        next(&mut watch).await;
        seen = watch.actors().remove(OsStr::new("a.yaml"));
    }
    assert_eq!(seen.unwrap().pid, Some(pid));
}
