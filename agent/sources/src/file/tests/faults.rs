//! Faults of disks and mounts: no running pod is stopped, and the reason is reported.

use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use rustix::thread::set_thread_uid;

use limpet_tests::need::{self, need};
use limpet_tests::wait;

use super::*;

/// A mount that is removed with the test.
struct Mount(PathBuf);

impl Mount {
    /// `None`, with a message, if mounting is not permitted.
    fn memory(at: &Path, options: &std::ffi::CStr) -> Option<Self> {
        let mounted = mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(options));
        need(mounted.map_err(|error| format!("the right to mount: {error}")))?;
        Some(Self(at.to_owned()))
    }

    fn bind(from: &Path, at: &Path) -> Self {
        mount_bind(from, at).unwrap();
        Self(at.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Whether both snapshots share the same pods: no consumer would touch them.
fn untouched(before: &SourceSnapshot, after: &SourceSnapshot) -> bool {
    let same = |(a, b): (&Arc<PodRecord>, &Arc<PodRecord>)| Arc::ptr_eq(a, b);
    before.pods.len() == after.pods.len() && before.pods.values().zip(after.pods.values()).all(same)
}

fn is_good(snapshot: &SourceSnapshot) -> bool {
    snapshot.ready && snapshot.health == Health::Good
}

#[tokio::test]
async fn a_card_that_is_removed_and_reinserted_stops_nothing() {
    let mut bench = Bench::new();
    let card = bench.root.path().join("card");
    fs::create_dir(&card).unwrap();
    let Some(_card) = Mount::memory(&card, c"size=1m") else { return };
    fs::write(card.join("a.yaml"), "pod a 1").unwrap();
    fs::write(card.join("b.yaml"), "pod b 1").unwrap();
    let inserted = Mount::bind(&card, &bench.directory);
    bench.start();
    let before = bench.until(|now| now.pods.len() == 2).await;

    // The card is removed, and its empty mount point does not count as an empty directory of manifests.
    drop(inserted);
    let without = bench.until(unavailable("is empty, and not the directory its pods came from; 2 pods are kept")).await;
    assert!(untouched(&before, &without));
    // This is another, empty card.
    let other = Mount::memory(&bench.directory, c"size=1m");
    let inserted = Mount::bind(&card, &bench.directory);
    let back = bench.until(is_good).await;
    assert!(untouched(&before, &back));
    drop((inserted, other));
    bench.until(unavailable("is empty")).await;

    // A boot without the card, then with it.
    bench.stop().await;
    bench.start();
    let boot = bench.until(unavailable("is empty")).await;
    assert_eq!((shape(&boot), boot.ready), (shape(&before), false));
    let _inserted = Mount::bind(&card, &bench.directory);
    let back = bench.until(is_good).await;
    assert_eq!(shape(&back), shape(&before));
    fs::remove_file(card.join("a.yaml")).unwrap();
    bench.until_pods(&["b 1 @ b.yaml"]).await;
    // The same directory as before, emptied on purpose.
    fs::remove_file(card.join("b.yaml")).unwrap();
    bench.until_pods(&[]).await;
    bench.stop().await;
}

#[tokio::test]
async fn a_read_only_directory_is_read() {
    let mut bench = Bench::new();
    let Some(_card) = Mount::memory(&bench.directory, c"size=1m") else { return };
    fs::write(bench.directory.join("a.yaml"), "pod a 1").unwrap();
    mount_remount(&bench.directory, MountFlags::RDONLY, c"").unwrap();
    bench.start();
    let before = bench.until_pods(&["a 1 @ a.yaml"]).await;
    assert!(is_good(&before));
    mount_remount(&bench.directory, MountFlags::empty(), c"").unwrap();
    fs::write(bench.directory.join("b.yaml"), "pod b 1").unwrap();
    bench.until(|now| now.pods.len() == 2 && is_good(now)).await;
    bench.stop().await;
}

/// Root can read everything, so this runs in a thread of another user.
#[test]
fn a_directory_without_read_permission_stops_nothing_and_is_read_again_later() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    const NOBODY: u32 = 65_534;
    let mut bench = Bench::new();
    // A mount elsewhere makes it open the watch again, which fails now.
    bench.periods.blind = Duration::from_millis(50);
    bench.write("a.yaml", "pod a 1");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(bench.root.path(), 0o755);
    let owned = chown(&bench.directory, Some(NOBODY), None);
    let Some(()) = need(owned.map_err(|error| format!("the right to chown: {error}"))) else { return };
    let as_nobody = move || {
        set_thread_uid(rustix::fs::Uid::from_raw(NOBODY)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            bench.start();
            let before = bench.until(is_good).await;
            for closed in [0o000, 0o311] {
                mode(&bench.directory, closed);
                let now = bench.until(unavailable("Permission denied")).await;
                assert!(untouched(&before, &now));
                mode(&bench.directory, 0o755);
                let now = bench.until(is_good).await;
                assert!(untouched(&before, &now) && now.rejected.is_empty());
            }
            fs::write(bench.directory.join("b.yaml"), "pod b 1").unwrap();
            mode(&bench.directory.join("b.yaml"), 0o000);
            let rejected = bench.until(|now| !now.rejected.is_empty()).await;
            assert!(rejected.rejected["b.yaml"].faults[0].message.contains("Permission denied"));
            mode(&bench.directory.join("b.yaml"), 0o644);
            bench.until(|now| now.pods.len() == 2 && now.rejected.is_empty()).await;
            bench.stop().await;
            bench
        })
    };
    std::thread::spawn(as_nobody).join().unwrap();
}

/// An ext4 card in a file. When the file is truncated, every read fails as on a broken card.
fn ext4(image: &Path, content: &Path, at: &Path) -> Option<(Mount, String)> {
    let run = |program: &str, args: &[&Path]| {
        let output = need::program(program)?.args(args).output().unwrap();
        if !output.status.success() {
            need::kernel_lacks(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)));
            return None;
        }
        Some(output)
    };
    let path = Path::new;
    run("mkfs.ext4", &[path("-qF"), path("-b1024"), path("-d"), content, image, path("2048")])?;
    run("mount", &[path("-oloop,errors=continue"), image, at])?;
    let mounted = Mount(at.to_owned());
    let device = run("losetup", &[path("-nOname"), path("-j"), image])?;
    Some((mounted, String::from_utf8_lossy(&device.stdout).trim().to_owned()))
}

#[tokio::test]
async fn a_card_that_cannot_be_read_stops_nothing() {
    let mut bench = Bench::new();
    bench.periods.watched = Duration::from_millis(50);
    let (image, content) = (bench.root.path().join("image"), bench.root.path().join("content"));
    fs::create_dir(&content).unwrap();
    fs::write(content.join("a.yaml"), "pod a 1").unwrap();
    fs::write(content.join("b.yaml"), "pod b 1").unwrap();
    let Some((card, device)) = ext4(&image, &content, &bench.directory) else { return };
    bench.start();
    let before = bench.until(|now| now.pods.len() == 2).await;
    fs::File::options().write(true).open(&image).unwrap().set_len(0).unwrap();
    let Some(mut blockdev) = need::program("blockdev") else { return };
    if !blockdev.args(["--flushbufs", &device]).status().unwrap().success() {
        return need::kernel_lacks(format!("blockdev --flushbufs {device}"));
    }
    // "Input/output error" or, for data read back as zeros, "Bad message".
    let dead = bench.until(unavailable("cannot read")).await;
    assert!(untouched(&before, &dead) && dead.ready);
    bench.stop().await;
    bench.start();
    let boot = bench.until(unavailable("cannot read")).await;
    assert_eq!((shape(&boot), boot.ready), (shape(&before), false));
    // A new card with the same content.
    drop(card);
    let Some((_card, _)) = ext4(&bench.root.path().join("second"), &content, &bench.directory) else { return };
    let back = bench.until(is_good).await;
    assert_eq!(shape(&back), shape(&before));
    bench.stop().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_keeps_its_pod() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 1");
    bench.start();
    let before = bench.until_pods(&["a 1 @ a.yaml"]).await;
    // A kernel file that cannot be read at its start.
    symlink("/proc/self/mem", bench.root.path().join("temporary")).unwrap();
    fs::rename(bench.root.path().join("temporary"), bench.directory.join("a.yaml")).unwrap();
    let rejected = bench.until(|now| !now.rejected.is_empty()).await;
    assert!(untouched(&before, &rejected));
    let fault = &rejected.rejected["a.yaml"].faults[0];
    assert!(fault.message.contains("cannot be read: Input/output error"), "{fault}");
    bench.write("a.yaml", "pod a 2");
    bench.until(|now| shape(now) == ["a 2 @ a.yaml"] && now.rejected.is_empty()).await;
    bench.stop().await;
}

#[tokio::test]
async fn a_full_disk_is_reported_and_manifests_are_saved_later() {
    let mut bench = Bench::new();
    let disk = bench.root.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let Some(_disk) = Mount::memory(&disk, c"size=6m") else { return };
    bench.store = Arc::new(Store::open(&disk.join("limpet.db")).unwrap().0);
    bench.periods.watched = Duration::from_millis(50);
    bench.write("a.yaml", "pod a 1");
    bench.start();
    bench.until_pods(&["a 1 @ a.yaml"]).await;
    assert!(fs::write(disk.join("filler"), vec![0; 8 << 20]).is_err());
    bench.write("b.yaml", &format!("pod b {}", "x".repeat(1 << 20)));
    bench.until(|now| now.pods.len() == 2 && is_good(now)).await;
    let pulse = Arc::clone(&bench.pulse);
    let until = async |met: fn(&Pulse) -> bool| {
        let met = async {
            while !met(&pulse) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(wait::soon(), met).await.unwrap();
    };
    until(|pulse| pulse.persist_error().is_some_and(|why| why.contains("No space left"))).await;
    fs::remove_file(disk.join("filler")).unwrap();
    // Without another change: at the periodic rescan.
    until(|pulse| pulse.persist_error().is_none()).await;
    assert_eq!(bench.store.load::<LastGood>(SourceKind::File).unwrap().records.len(), 2);
    bench.stop().await;
    drop(std::mem::replace(&mut bench.store, Arc::new(Store::open(&bench.root.path().join("other.db")).unwrap().0)));
}

#[tokio::test]
async fn a_file_being_written_is_left_alone_by_a_scan_without_an_event() {
    let mut bench = Bench::new();
    bench.periods.watched = Duration::from_millis(20);
    let path = bench.directory.join("two.yaml");
    fs::write(&path, "pod a 1\npod b 1\n").unwrap();
    bench.start();
    bench.until(|now| now.pods.len() == 2).await;
    // A file read within the timestamp granularity is read again, whichever process writes it.
    rescanned_since(&bench, jiff::Timestamp::now() + 2 * stamp::TIMESTAMP_GRANULARITY, || {}).await;
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(0).unwrap();
    let half = || std::os::unix::fs::FileExt::write_all_at(&file, b"pod a 2\n", 0).unwrap();
    half();
    rescanned_since(&bench, jiff::Timestamp::now() + 2 * stamp::TIMESTAMP_GRANULARITY, half).await;
    assert_eq!(shape(&bench.running.as_ref().unwrap().0.borrow()), ["a 1 @ two.yaml", "b 1 @ two.yaml"]);
    std::os::unix::fs::FileExt::write_all_at(&file, b"pod b 2\n", 8).unwrap();
    drop(file);
    bench.until_pods(&["a 2 @ two.yaml", "b 2 @ two.yaml"]).await;
    bench.stop().await;
}

/// Waits until the source has rescanned everything after `then`, calling `meanwhile` repeatedly.
async fn rescanned_since(bench: &Bench, then: jiff::Timestamp, meanwhile: impl Fn()) {
    while bench.pulse.last_success().is_none_or(|at| at <= then) {
        meanwhile();
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn on_an_overlay_that_hides_changes_it_is_rescanned_more_often() {
    let mut bench = Bench::new();
    bench.periods = RescanPeriods { watched: Duration::from_secs(3_600), blind: Duration::from_millis(50) };
    bench.write("a.yaml", "pod a 1");
    bench.start();
    bench.until_pods(&["a 1 @ a.yaml"]).await;
    let backend = bench.pulse.backend().unwrap();
    assert!(["inotify", "fanotify"].contains(&backend.as_str()), "{backend}");
    bench.stop().await;

    let lower = bench.root.path().join("lower");
    fs::rename(&bench.directory, &lower).unwrap();
    let [upper, work] = ["upper", "work"].map(|name| bench.root.path().join(name));
    for directory in [&upper, &work, &bench.directory] {
        fs::create_dir(directory).unwrap();
    }
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let options = std::ffi::CString::new(options).unwrap();
    if let Err(error) = mount("overlay", &bench.directory, "overlay", MountFlags::empty(), Some(options.as_c_str())) {
        return need::kernel_lacks(format!("no overlay can be mounted: {error}"));
    }
    let _mount = Mount(bench.directory.clone());
    bench.start();
    bench.until(|now| now.ready).await;
    fs::write(lower.join("a.yaml"), "pod a 2").unwrap();
    bench.until_pods(&["a 2 @ a.yaml"]).await;
    let backend = bench.pulse.backend().unwrap();
    assert!(backend.contains("overlay hides changes"), "{backend}");
    bench.stop().await;
}

/// Runs a program in the directory until it exits, and returns its PID.
fn run(bench: &Bench, program: &str, arguments: &[&str]) -> Option<u32> {
    let mut child = Command::new(program).args(arguments).current_dir(&bench.directory).spawn().unwrap();
    assert!(child.wait().unwrap().success(), "{program}");
    Some(child.id())
}

#[tokio::test]
async fn each_change_carries_its_actor() {
    let mut bench = Bench::new();
    bench.settings.wanted = limpet_model::attribution::ManifestWatch::Fanotify;
    bench.write("a.yaml", "pod a 1");
    bench.start();
    bench.until_pods(&["a 1 @ a.yaml"]).await;
    if bench.pulse.backend().unwrap().as_str() != "fanotify" {
        return need::kernel_lacks("fanotify does not work here");
    }
    let edited = run(&bench, "sh", &["-c", "echo pod a 2 > a.yaml"]);
    let snapshot = bench.until_pods(&["a 2 @ a.yaml"]).await;
    let by = |snapshot: &SourceSnapshot| snapshot.changes[0].actor.as_ref().and_then(|actor| actor.pid);
    assert_eq!(by(&snapshot), edited);
    let broken = run(&bench, "sh", &["-c", "echo bad > a.yaml"]);
    let snapshot = bench.until(|now| !now.rejected.is_empty()).await;
    assert_eq!(by(&snapshot), broken);
    let removed = run(&bench, "rm", &["a.yaml"]);
    let snapshot = bench.until(|now| now.pods.is_empty()).await;
    assert_eq!(by(&snapshot), removed, "who removed it, although its absence was scanned twice");
    bench.stop().await;
    let kinds: Vec<String> = (bench.store.history(&PodKey::new("default", "a-edge1")).unwrap().iter())
        .map(|change| change.change.to_string())
        .collect();
    assert_eq!(kinds, ["created", "edited", "rejected", "removed"]);
}
