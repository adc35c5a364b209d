#![allow(clippy::unwrap_used, clippy::expect_used)]

mod editors;
mod faults;
mod limits;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::first_snapshot::first_snapshot;
use limpet_model::manifest::Restored;
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::pod::qos::QosClass;
use limpet_model::pod::{Fault, Fingerprint, PodKey, PodRecord, PodUid};

/// A test format with one pod per line: `pod NAME VALUE`; `bad` is an error, `hint` a warning.
fn read(text: &[u8], origin: &str, source: SourceKind, node: &str) -> Manifest {
    let mut manifest = Manifest::default();
    for line in String::from_utf8_lossy(text).lines() {
        match line.strip_prefix("pod ") {
            Some(pod) => manifest.pods.push(Arc::new(pod_of(pod, origin, source, node))),
            None if line == "hint" => manifest.faults.push(Fault::warning("spec", "hint")),
            None => {
                manifest.unknown_pod_refused = true;
                manifest.faults.push(Fault::error("spec", format!("cannot read {line}")));
            }
        }
    }
    manifest
}

fn restore(canonical: &[u8], origin: &str, source: SourceKind, node: &str) -> Result<Restored, Vec<Fault>> {
    Ok(Restored::Pod(Box::new(pod_of(std::str::from_utf8(canonical).unwrap(), origin, source, node))))
}

pub(super) fn decoder() -> Decoder {
    Decoder::new(read, restore)
}

fn pod_of(text: &str, origin: &str, source: SourceKind, node: &str) -> PodRecord {
    let name = text.split(' ').next().unwrap();
    let mut hash = [0; 16];
    text.bytes()
        .enumerate()
        .for_each(|(index, byte)| hash[index % 16] ^= byte.rotate_left(u32::try_from(index).unwrap() / 16));
    PodRecord {
        ephemeral: Vec::new(),
        qos_class: QosClass::BestEffort,
        cgroup_limits: CgroupLimits::BEST_EFFORT,
        key: PodKey::new("default", format!("{name}-{node}")),
        uid: PodUid::new(name),
        fingerprint: Fingerprint(hash),
        immutable_fingerprint: Fingerprint(hash),
        source,
        origin: Arc::from(origin),
        manifest: Arc::from(text.as_bytes()),
        pod: k8s_openapi::api::core::v1::Pod::default(),
    }
}

/// A running source with its own directory.
struct Bench {
    root: tempfile::TempDir,
    directory: PathBuf,
    store: Arc<Store>,
    periods: RescanPeriods,
    settings: WatchSettings,
    /// The pulse of the latest run: each has its own.
    pulse: Arc<Pulse>,
    running: Option<(watch::Receiver<Arc<SourceSnapshot>>, CancellationToken, JoinHandle<()>)>,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().canonicalize().unwrap().join("manifests");
        fs::create_dir(&directory).unwrap();
        let store = Arc::new(Store::open(&root.path().join("limpet.db")).unwrap().0);
        Self {
            root,
            directory,
            store,
            periods: RescanPeriods::default(),
            settings: WatchSettings::default(),
            pulse: Arc::default(),
            running: None,
        }
    }

    fn start(&mut self) {
        self.start_at(&self.directory.clone());
    }

    fn start_at(&mut self, path: &Path) {
        let (sender, receiver) = watch::channel(Arc::new(SourceSnapshot::default()));
        let stop = CancellationToken::new();
        let source = FileSource::with_periods(path, "edge1", Arc::clone(&self.store), decoder(), self.periods)
            .watched(self.settings.clone(), None);
        self.pulse = source.pulse();
        let publish = move |snapshot| drop(sender.send(snapshot));
        self.running = Some((receiver, stop.clone(), tokio::spawn(source.run(publish, stop))));
    }

    /// Stops the source as SIGTERM would; its published state is in the store.
    async fn stop(&mut self) {
        let (_, stop, task) = self.running.take().unwrap();
        stop.cancel();
        task.await.unwrap();
    }

    fn write(&self, name: &str, text: &str) {
        let temporary = self.directory.parent().unwrap().join("temporary");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.directory.join(name)).unwrap();
    }

    /// The first snapshot as [`first_snapshot`] waits for it.
    async fn until(&mut self, wanted: impl Fn(&SourceSnapshot) -> bool) -> Arc<SourceSnapshot> {
        let (receiver, ..) = self.running.as_mut().unwrap();
        first_snapshot(receiver, wanted).await
    }

    async fn until_pods(&mut self, pods: &[&str]) -> Arc<SourceSnapshot> {
        self.until(|snapshot| shape(snapshot) == pods).await
    }
}

/// `manifest text @ origin` of every pod.
fn shape(snapshot: &SourceSnapshot) -> Vec<String> {
    snapshot.pods.values().map(|pod| format!("{} @ {}", String::from_utf8_lossy(&pod.manifest), pod.origin)).collect()
}

fn is_unavailable(snapshot: &SourceSnapshot) -> bool {
    matches!(snapshot.health, Health::Unavailable(_))
}

/// Whether the source is unavailable for a reason that contains the text.
fn unavailable(text: &str) -> impl Fn(&SourceSnapshot) -> bool {
    move |now| matches!(&now.health, Health::Unavailable(why) if why.contains(text))
}

#[tokio::test]
async fn files_are_added_changed_and_removed() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 1");
    bench.write(".hidden.yaml", "pod hidden 1");
    bench.start();
    let snapshot = bench.until_pods(&["a 1 @ a.yaml"]).await;
    assert!(snapshot.ready && snapshot.health == Health::Good);
    bench.write("b.json", "pod b 1");
    let with_b = bench.until_pods(&["a 1 @ a.yaml", "b 1 @ b.json"]).await;
    assert!(Arc::ptr_eq(snapshot.pods.values().next().unwrap(), with_b.pods.values().next().unwrap()));
    fs::write(bench.directory.join("b.json"), "pod b 2").unwrap();
    bench.until_pods(&["a 1 @ a.yaml", "b 2 @ b.json"]).await;
    fs::rename(bench.directory.join("b.json"), bench.directory.join("c.yml")).unwrap();
    bench.until_pods(&["a 1 @ a.yaml", "b 2 @ c.yml"]).await;
    fs::remove_file(bench.directory.join("a.yaml")).unwrap();
    fs::remove_file(bench.directory.join("c.yml")).unwrap();
    bench.until_pods(&[]).await;
    bench.stop().await;
    assert!(bench.store.load::<LastGood>(SourceKind::File).unwrap().records.is_empty());
}

/// A change through another hard link causes no event in the directory, but a scan of the file would notice it.
#[tokio::test]
async fn an_event_for_one_file_does_not_scan_the_others() {
    let mut bench = Bench::new();
    let elsewhere = bench.directory.parent().unwrap().join("elsewhere");
    fs::write(&elsewhere, "pod b 1").unwrap();
    fs::hard_link(&elsewhere, bench.directory.join("b.yaml")).unwrap();
    bench.write("a.yaml", "pod a 1");
    bench.start();
    bench.until_pods(&["a 1 @ a.yaml", "b 1 @ b.yaml"]).await;
    fs::write(&elsewhere, "pod b 2").unwrap();
    bench.write("a.yaml", "pod a 2");
    bench.until_pods(&["a 2 @ a.yaml", "b 1 @ b.yaml"]).await;
    bench.write("c.yaml", "pod c 1");
    let snapshot = bench.until(|now| now.pods.len() == 3).await;
    assert_eq!(shape(&snapshot), ["a 2 @ a.yaml", "b 1 @ b.yaml", "c 1 @ c.yaml"]);
    let link = bench.directory.join("b.yaml");
    fs::set_permissions(&link, fs::metadata(&link).unwrap().permissions()).unwrap();
    bench.until_pods(&["a 2 @ a.yaml", "b 2 @ b.yaml", "c 1 @ c.yaml"]).await;
}

#[tokio::test]
async fn an_editor_that_renames_the_file_away_first_never_removes_the_pod() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 1");
    bench.start();
    bench.until_pods(&["a 1 @ a.yaml"]).await;
    let (file, backup) = (bench.directory.join("a.yaml"), bench.directory.join("a.yaml~"));
    let seen = bench.running.as_ref().unwrap().0.clone();
    let collect = tokio::spawn(async move {
        let mut seen = seen;
        let mut emptied = false;
        while seen.changed().await.is_ok() {
            emptied |= seen.borrow_and_update().pods.is_empty();
        }
        emptied
    });
    for round in 2..12 {
        fs::write(bench.directory.join("4913"), "").unwrap();
        fs::remove_file(bench.directory.join("4913")).unwrap();
        fs::rename(&file, &backup).unwrap();
        fs::write(&file, format!("pod a {round}")).unwrap();
        fs::remove_file(&backup).unwrap();
        bench.until_pods(&[&format!("a {round} @ a.yaml")]).await;
    }
    bench.stop().await;
    assert!(!collect.await.unwrap());
}

#[tokio::test]
async fn a_broken_manifest_keeps_its_last_good_pod_also_after_a_restart() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 1");
    bench.write("two.yaml", "pod x 1\npod y 1");
    bench.start();
    bench.until_pods(&["a 1 @ a.yaml", "x 1 @ two.yaml", "y 1 @ two.yaml"]).await;
    bench.write("a.yaml", "bad");
    bench.write("two.yaml", "pod x 2\nbad");
    for _ in 0..2 {
        let snapshot = bench.until(|now| now.rejected.len() == 2).await;
        assert_eq!(shape(&snapshot), ["a 1 @ a.yaml", "x 2 @ two.yaml", "y 1 @ two.yaml"]);
        let kept = &snapshot.rejected["a.yaml"].kept;
        assert_eq!(kept, &[PodKey::new("default", "a-edge1")]);
        assert_eq!(snapshot.rejected["two.yaml"].kept, [PodKey::new("default", "y-edge1")]);
        bench.stop().await;
        bench.start();
    }
    bench.write("a.yaml", "pod a 2\nhint");
    bench.write("two.yaml", "pod x 2");
    let snapshot = bench.until_pods(&["a 2 @ a.yaml", "x 2 @ two.yaml"]).await;
    assert!(snapshot.rejected.is_empty());
}

#[tokio::test]
async fn a_file_deleted_while_the_agent_was_down_is_removed() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 1");
    bench.write("b.yaml", "pod b 1");
    bench.start();
    bench.until(|now| now.pods.len() == 2).await;
    bench.stop().await;
    fs::remove_file(bench.directory.join("a.yaml")).unwrap();
    bench.start();
    bench.until_pods(&["b 1 @ b.yaml"]).await;
    bench.stop().await;
    assert_eq!(
        bench.store.load::<LastGood>(SourceKind::File).unwrap().records.keys().map(|name| &**name).collect::<Vec<_>>(),
        ["b.yaml"]
    );
    fs::remove_file(bench.directory.join("b.yaml")).unwrap();
    bench.start();
    let emptied = bench.until(|now| now.ready).await;
    assert!(emptied.pods.is_empty() && emptied.health == Health::Good);
}

#[tokio::test]
async fn a_missing_or_replaced_empty_directory_changes_nothing() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 1");
    bench.start();
    bench.until_pods(&["a 1 @ a.yaml"]).await;
    let aside = bench.root.path().join("aside");
    fs::rename(&bench.directory, &aside).unwrap();
    let snapshot = bench.until(is_unavailable).await;
    assert_eq!(shape(&snapshot), ["a 1 @ a.yaml"]);
    bench.stop().await;

    bench.start();
    let missing = bench.until(is_unavailable).await;
    assert_eq!(shape(&missing), ["a 1 @ a.yaml"]);
    assert!(!missing.ready);
    fs::create_dir(&bench.directory).unwrap();
    let is_empty = |now: &SourceSnapshot| matches!(&now.health, Health::Unavailable(why) if why.contains("is empty"));
    let empty = bench.until(is_empty).await;
    assert_eq!((shape(&empty), empty.ready), (vec!["a 1 @ a.yaml".to_owned()], false));

    fs::remove_dir(&bench.directory).unwrap();
    fs::rename(&aside, &bench.directory).unwrap();
    bench.until(|now| now.ready && now.health == Health::Good && now.pods.len() == 1).await;
    fs::remove_file(bench.directory.join("a.yaml")).unwrap();
    bench.until_pods(&[]).await;
}

#[tokio::test]
async fn a_replaced_directory_is_accepted_once_it_has_a_manifest() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 1");
    bench.start();
    bench.until_pods(&["a 1 @ a.yaml"]).await;
    fs::rename(&bench.directory, bench.root.path().join("aside")).unwrap();
    bench.until(is_unavailable).await;
    fs::create_dir(&bench.directory).unwrap();
    bench.write("b.yaml", "pod b 1");
    bench.until_pods(&["b 1 @ b.yaml"]).await;
}

#[tokio::test]
async fn of_two_files_that_define_a_pod_the_one_that_runs_stays() {
    let mut bench = Bench::new();
    bench.write("b.yaml", "pod a 2");
    bench.start();
    bench.until_pods(&["a 2 @ b.yaml"]).await;
    bench.write("a.yaml", "pod a 1");
    let snapshot = bench.until(|now| !now.rejected.is_empty()).await;
    assert_eq!(shape(&snapshot), ["a 2 @ b.yaml"]);
    assert!(snapshot.rejected["a.yaml"].faults[0].to_string().contains("already defined in b.yaml"));
    fs::remove_file(bench.directory.join("b.yaml")).unwrap();
    let snapshot = bench.until_pods(&["a 1 @ a.yaml"]).await;
    assert!(snapshot.rejected.is_empty());
}

#[tokio::test]
async fn symlinks_are_followed_when_their_targets_change() {
    let mut bench = Bench::new();
    let data = bench.root.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("a.yaml"), "pod a 1").unwrap();
    symlink(data.join("a.yaml"), bench.directory.join("a.yaml")).unwrap();
    symlink(".nowhere", bench.directory.join("lost.yaml")).unwrap();
    for version in ["1", "2"] {
        let version_dir = bench.directory.join(format!("..v{version}"));
        fs::create_dir(&version_dir).unwrap();
        fs::write(version_dir.join("p.yaml"), format!("pod p {version}")).unwrap();
    }
    symlink("..v1", bench.directory.join("..data")).unwrap();
    symlink("..data/p.yaml", bench.directory.join("p.yaml")).unwrap();
    bench.start();
    let snapshot = bench.until_pods(&["a 1 @ a.yaml", "p 1 @ p.yaml"]).await;
    assert!(snapshot.rejected["lost.yaml"].faults[0].message.contains("does not exist"));
    fs::write(data.join("a.yaml"), "pod a 2").unwrap();
    bench.until_pods(&["a 2 @ a.yaml", "p 1 @ p.yaml"]).await;
    symlink("..v2", bench.directory.join("..tmp")).unwrap();
    fs::rename(bench.directory.join("..tmp"), bench.directory.join("..data")).unwrap();
    bench.until_pods(&["a 2 @ a.yaml", "p 2 @ p.yaml"]).await;
    fs::write(bench.directory.join("..v2/p.yaml"), "pod p 3").unwrap();
    bench.until_pods(&["a 2 @ a.yaml", "p 3 @ p.yaml"]).await;
    fs::write(bench.directory.join(".nowhere"), "pod found 1").unwrap();
    bench.until(|now| now.pods.len() == 3 && now.rejected.is_empty()).await;
}

#[tokio::test]
async fn a_burst_of_a_thousand_files_is_complete() {
    let mut bench = Bench::new();
    bench.start();
    bench.until(|now| now.ready).await;
    for n in 0..1_000 {
        bench.write(&format!("{n:04}.yaml"), &format!("pod p{n} 1"));
    }
    bench.until(|now| now.pods.len() == 1_000).await;
    for n in 0..1_000 {
        fs::remove_file(bench.directory.join(format!("{n:04}.yaml"))).unwrap();
    }
    bench.until_pods(&[]).await;
}

#[tokio::test]
async fn unreadable_and_oversized_files_are_rejected() {
    let mut bench = Bench::new();
    bench.write("a.yaml", "pod a 1");
    bench.write("big.yaml", "pod big 1");
    bench.start();
    bench.until(|now| now.pods.len() == 2).await;
    fs::File::options()
        .write(true)
        .open(bench.directory.join("big.yaml"))
        .unwrap()
        .set_len(scan::MAX_FILE + 1)
        .unwrap();
    fs::remove_file(bench.directory.join("a.yaml")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        bench.directory.join("temporary.fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    fs::rename(bench.directory.join("temporary.fifo"), bench.directory.join("a.yaml")).unwrap();
    let snapshot = bench.until(|now| now.rejected.len() == 2).await;
    assert_eq!(shape(&snapshot), ["a 1 @ a.yaml", "big 1 @ big.yaml"]);
    let reason = |name: &str| snapshot.rejected[name].faults[0].message.clone();
    assert!(reason("a.yaml").contains("not a regular file"), "{}", reason("a.yaml"));
    assert!(reason("big.yaml").contains("larger than 10 MiB"), "{}", reason("big.yaml"));
}

#[tokio::test]
async fn a_single_file_is_read_whatever_its_name_and_its_siblings_are_not() {
    let mut bench = Bench::new();
    bench.write("pods", "pod a 1");
    bench.write("b.yaml", "pod b 1");
    bench.start_at(&bench.directory.join("pods"));
    bench.until_pods(&["a 1 @ pods"]).await;
    bench.write("pods", "pod a 2");
    bench.until_pods(&["a 2 @ pods"]).await;
    fs::remove_file(bench.directory.join("pods")).unwrap();
    bench.until_pods(&[]).await;
    bench.write("pods", "pod a 3");
    bench.until_pods(&["a 3 @ pods"]).await;
}

#[tokio::test]
async fn every_file_without_a_leading_dot_is_read_and_no_directory() {
    let mut bench = Bench::new();
    fs::create_dir(bench.directory.join("lost+found")).unwrap();
    fs::write(bench.directory.join("lost+found/x.yaml"), "pod x 1").unwrap();
    bench.write("kube-proxy.manifest", "pod proxy 1");
    bench.write("plain", "pod plain 1");
    bench.write(".hidden.yaml", "pod hidden 1");
    bench.start();
    bench.until_pods(&["plain 1 @ plain", "proxy 1 @ kube-proxy.manifest"]).await;
    fs::create_dir(bench.directory.join("backup")).unwrap();
    bench.write("kube-proxy.manifest", "pod proxy 2");
    let now = bench.until_pods(&["plain 1 @ plain", "proxy 2 @ kube-proxy.manifest"]).await;
    assert!(now.rejected.is_empty(), "{:?}", now.rejected);
}

#[tokio::test]
async fn an_editors_leftover_runs_as_under_kubelet_and_takes_no_pod_of_another_file() {
    let mut bench = Bench::new();
    bench.write("#a.yaml#", "pod a 0");
    bench.write("b.yaml.bak", "pod b 1");
    bench.write("a.yaml", "pod a 1");
    bench.start();
    let now = bench.until_pods(&["a 1 @ a.yaml", "b 1 @ b.yaml.bak"]).await;
    let message = now.rejected["#a.yaml#"].faults[0].to_string();
    assert!(message.contains("already defined in a.yaml"), "{message}");
    // While the file is replaced, the old version beside it does not run.
    let seen = bench.running.as_ref().unwrap().0.clone();
    let collect = tokio::spawn(async move {
        let (mut seen, mut versions) = (seen, BTreeSet::new());
        while seen.changed().await.is_ok() {
            versions.extend(shape(&seen.borrow_and_update()));
        }
        versions
    });
    fs::remove_file(bench.directory.join("a.yaml")).unwrap();
    bench.until_pods(&["a 0 @ #a.yaml#", "b 1 @ b.yaml.bak"]).await;
    bench.write("a.yaml", "pod a 2");
    bench.until_pods(&["a 2 @ a.yaml", "b 1 @ b.yaml.bak"]).await;
    fs::remove_file(bench.directory.join("#a.yaml#")).unwrap();
    bench.until(|now| now.rejected.is_empty()).await;
    fs::write(bench.directory.join("a.yaml~"), "pod a 1").unwrap();
    bench.until(|now| now.rejected.len() == 1).await;
    fs::rename(bench.directory.join("a.yaml"), bench.directory.join(".away")).unwrap();
    bench.write("a.yaml", "pod a 3");
    bench.until_pods(&["a 3 @ a.yaml", "b 1 @ b.yaml.bak"]).await;
    bench.stop().await;
    assert!(!collect.await.unwrap().contains("a 1 @ a.yaml~"), "the backup took over");
}

#[test]
fn a_leftover_is_named_in_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["a.yaml~", "b.yaml"] {
        fs::write(directory.path().join(name), format!("pod {} 1", &name[..1])).unwrap();
    }
    let read = read_all(directory.path(), "edge1", decoder()).unwrap();
    let faults: Vec<String> =
        read.iter().flat_map(|(_, manifest)| manifest.faults.iter().map(ToString::to_string)).collect();
    let [fault] = &faults[..] else { panic!("{faults:?}") };
    assert!(fault.starts_with("a.yaml~: is read as by kubelet"), "{fault}");
}
