//! The cost of detecting a manifest change: each backend of limpet's watch, and kubelet's way (inotify and a scan of
//! every file each 20 s), in one run. From the writer's rename to the event in the watcher; processor time per change;
//! wake-ups while idle.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use limpet_attribution::bpf_feed::{self, FeedEnd};
use limpet_attribution::feed::Feed;
use limpet_bpf::{Events, Kernel, Loaded, Request};
use limpet_model::attribution::{Backend, ManifestWatch, WatchSettings};
use limpet_tests::measure;
use limpet_watch::{DirectoryWatch, WatchEvent};

/// Manifests in the directory.
const FILES: usize = 50;
/// kubelet's `fileCheckFrequency`.
const RESCAN: Duration = Duration::from_secs(20);
/// Between two renames, so that each is one wake-up.
const PAUSE: Duration = Duration::from_millis(2);

/// One way to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Limpet(ManifestWatch),
    Kubelet,
}

/// The cost of one way to watch.
struct Figures {
    latencies: Vec<Duration>,
    /// Processor time of the watcher's thread per change.
    per_change: Duration,
    /// Wake-ups of the watcher's thread a second, while idle.
    wakes: f64,
}

fn main() {
    let runs = measure::setting(measure::RUNS_VARIABLE, 50).unwrap().max(10) * 10;
    let window = Duration::from_secs(measure::setting(measure::SECONDS_VARIABLE, 60).unwrap() as u64);
    println!("{runs} renames each, {FILES} manifests; then {window:?} of idleness");
    println!(
        "{:<26} {:>10} {:>10} {:>10} {:>12} {:>10}",
        "", "median us", "p90 us", "p99 us", "CPU us each", "wakes/s"
    );
    let ways = [
        ("limpet, inotify", Way::Limpet(ManifestWatch::Inotify)),
        ("limpet, fanotify", Way::Limpet(ManifestWatch::Fanotify)),
        ("limpet, ebpf", Way::Limpet(ManifestWatch::Ebpf)),
        ("kubelet's way, every 20 s", Way::Kubelet),
    ];
    for (name, way) in ways {
        match measure_way(way, runs, window) {
            Ok(figures) => print(name, figures),
            Err(reason) => println!("{name:<26} does not work here: {reason}"),
        }
    }
}

fn print(name: &str, mut figures: Figures) {
    figures.latencies.sort_unstable();
    let at =
        |percent: usize| figures.latencies[(figures.latencies.len() * percent / 100).min(figures.latencies.len() - 1)];
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!(
        "{name:<26} {:>10.0} {:>10.0} {:>10.0} {:>12.0} {:>10.2}",
        micros(at(50)),
        micros(at(90)),
        micros(at(99)),
        micros(figures.per_change),
        figures.wakes
    );
}

/// Measures one backend; the error is why it does not work.
fn measure_way(way: Way, runs: usize, window: Duration) -> Result<Figures, String> {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("manifests");
    std::fs::create_dir(&directory).unwrap();
    let text = "apiVersion: v1\nkind: Pod\n".repeat(40);
    (0..FILES).for_each(|file| std::fs::write(directory.join(format!("{file}.yaml")), &text).unwrap());
    let (sender, receiver) = mpsc::channel();
    let watcher = std::thread::spawn({
        let directory = directory.clone();
        move || watch(&directory, way, &sender)
    });
    let before = match receiver.recv().unwrap() {
        Report::Ready { cpu, .. } => cpu,
        Report::Refused(reason) => return Err(reason),
        Report::Changed { .. } => panic!("nothing has changed yet"),
    };
    let mut latencies = Vec::with_capacity(runs);
    let mut cpu = before;
    for run in 0..runs {
        let beside = root.path().join("beside");
        std::fs::write(&beside, &text).unwrap();
        std::thread::sleep(PAUSE);
        std::fs::rename(&beside, directory.join(format!("{}.yaml", run % FILES))).unwrap();
        let done = Instant::now();
        if let Report::Changed { at, cpu: now } = receiver.recv().unwrap() {
            // The event may arrive before the writer returns from its call.
            latencies.push(at.saturating_duration_since(done));
            cpu = now;
        }
    }
    let per_change = (cpu - before) / u32::try_from(runs).unwrap();
    std::fs::write(directory.join("last.yaml"), "last").unwrap();
    let Report::Ready { thread, .. } = receiver.recv().unwrap() else { panic!("no number") };
    let first = switches(&thread);
    std::thread::sleep(window);
    let wakes = (switches(&thread) - first) as f64 / window.as_secs_f64();
    std::fs::write(directory.join("end.yaml"), "").unwrap();
    watcher.join().unwrap();
    Ok(Figures { latencies, per_change, wakes })
}

/// A message of the watcher's thread.
enum Report {
    /// It watches, or is idle from now on.
    Ready {
        thread: PathBuf,
        cpu: Duration,
    },
    Changed {
        at: Instant,
        cpu: Duration,
    },
    /// The backend does not work.
    Refused(String),
}

/// Loaded BPF programs, their events, and the feed these go to.
struct Programs {
    loaded: Loaded,
    events: Events,
    end: FeedEnd,
}

impl Programs {
    fn load() -> Result<(Self, Feed), String> {
        let request = Request { watch: true, ..Request::default() };
        let mut loaded = Kernel::read().load(&request).map_err(|error| error.to_string())?;
        let (feed, end) = bpf_feed::feed(&loaded)?;
        let events = loaded.events().map_err(|error| error.to_string())?.ok_or("no events")?;
        Ok((Self { loaded, events, end }, feed))
    }

    /// As in the agent, on the same thread.
    async fn run(mut self) {
        loop {
            tokio::select! {
                () = self.end.changed() => self.end.align(&mut self.loaded),
                event = self.events.next() => {
                    self.end.forward_all(event.unwrap(), &mut self.events, &self.loaded).await;
                }
            }
        }
    }
}

/// Watches until `end.yaml` exists.
fn watch(directory: &Path, way: Way, sender: &mpsc::Sender<Report>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let wanted = if let Way::Limpet(wanted) = way { wanted } else { ManifestWatch::Inotify };
        let settings = WatchSettings { wanted, ..WatchSettings::default() };
        let (offer, offered) = tokio::sync::mpsc::channel(1);
        let mut watch = DirectoryWatch::with_attribution(directory, settings, Some(offered)).await.unwrap();
        if wanted == ManifestWatch::Ebpf {
            match Programs::load() {
                Ok((programs, feed)) => {
                    tokio::spawn(programs.run());
                    offer.send(feed).await.unwrap();
                }
                Err(reason) => return sender.send(Report::Refused(reason)).unwrap(),
            }
        }
        watch.next().await.unwrap();
        while wanted == ManifestWatch::Ebpf && watch.backend() != Backend::Ebpf {
            watch.next().await.unwrap();
        }
        if watch.backend().as_str() != wanted.as_str() {
            return sender.send(Report::Refused("another backend took its place".to_owned())).unwrap();
        }
        let thread = PathBuf::from(format!("/proc/self/task/{}", rustix::thread::gettid().as_raw_nonzero()));
        let ready = || Report::Ready { thread: thread.clone(), cpu: cpu() };
        sender.send(ready()).unwrap();
        let mut rescan = tokio::time::interval(RESCAN);
        rescan.tick().await;
        loop {
            tokio::select! {
                event = watch.next() => {
                    let WatchEvent::Hint(names) = event.unwrap() else { continue };
                    let at = Instant::now();
                    std::hint::black_box(watch.actors());
                    let is_there = |name: &str| names.iter().any(|named| named == name);
                    if is_there("end.yaml") {
                        return;
                    }
                    let report = if is_there("last.yaml") { ready() } else { Report::Changed { at, cpu: cpu() } };
                    sender.send(report).unwrap();
                }
                _ = rescan.tick(), if way == Way::Kubelet => {
                    for entry in directory.read_dir().unwrap() {
                        std::hint::black_box(std::fs::read(entry.unwrap().path()).unwrap());
                    }
                }
            }
        }
    });
}

/// Processor time of this thread.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// The number of voluntary context switches of a thread.
fn switches(thread: &Path) -> u64 {
    let status = std::fs::read_to_string(thread.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}
