//! The whole path: a directory of manifests, the file source with its watch, the merge, the channel to the supervisor.
//! One manifest is replaced by rename repeatedly.

use limpet_model::manifest;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use limpet_core::merge::Desired;
use limpet_core::merge::slot::Slots;
use limpet_core::source::Decoder;
use limpet_model::manifest::Manifest;
use limpet_model::source::SourceKind;
use limpet_sources::file::FileSource;
use limpet_store::Store;
use limpet_worker::merge_loop;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Samples;
use super::fixture::manifest;

/// The measurements.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) files: usize,
    /// From the return of the rename to the received change.
    pub(crate) changes: Samples,
    /// The rename itself, which depends on the file system: it may wait for the disk.
    pub(crate) renaming: Samples,
    /// Waking a sleeping thread and being woken by it, which every change needs: measured between the renames.
    pub(crate) waking: Samples,
    /// Files read for all renames together.
    pub(crate) reads: u64,
    pub(crate) renames: usize,
}

static READS: AtomicU64 = AtomicU64::new(0);

fn counted(text: &[u8], origin: &str, source: SourceKind, node: &str) -> Manifest {
    READS.fetch_add(1, Ordering::Relaxed);
    manifest::read(text, origin, source, node)
}

pub(crate) fn measure(files: usize, renames: usize) -> Whole {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("manifests");
    std::fs::create_dir(&directory).unwrap();
    for number in 0..files {
        std::fs::write(directory.join(format!("web-{number:05}.yaml")), manifest(number, "web:1")).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(replace_one(root.path(), &directory, files, renames))
}

async fn replace_one(root: &Path, directory: &Path, files: usize, renames: usize) -> Whole {
    let store = Arc::new(Store::open(&root.join("limpet.db")).unwrap().0);
    let source = FileSource::new(directory, "edge1", store, Decoder::new(counted, manifest::restore_last_good));
    let (slots, stop) = (Arc::<Slots>::default(), CancellationToken::new());
    let (sender, mut merged) = mpsc::channel(1);
    tokio::spawn(merge_loop::run(Arc::clone(&slots), Desired::default(), sender, stop.clone()));
    let reading = tokio::spawn({
        let stop = stop.clone();
        async move { source.run(move |snapshot| slots.publish(SourceKind::File, snapshot), stop).await }
    });
    while merged.recv().await.unwrap().desired.pods.len() < files {}

    let (temporary, place) = (root.join("temporary"), directory.join(format!("web-{:05}.yaml", files / 2)));
    let (mut changes, mut renaming, mut waking, mut reads) =
        (Samples::default(), Samples::default(), Samples::default(), 0);
    const WARM_UP: usize = 20;
    /// Time for the previous last good version to be saved to disk: nobody edits twice in the same millisecond.
    const BETWEEN: Duration = Duration::from_millis(20);
    for run in 1..=WARM_UP + renames {
        std::fs::write(&temporary, manifest(files / 2, &format!("web:edit-{run}"))).unwrap();
        tokio::time::sleep(BETWEEN).await;
        let read_before = READS.load(Ordering::Relaxed);
        let start = Instant::now();
        std::fs::rename(&temporary, &place).unwrap();
        let renamed = start.elapsed();
        let received = merged.recv().await.unwrap().changes;
        let took = start.elapsed() - renamed;
        assert_eq!(received.len(), 1);
        tokio::time::sleep(BETWEEN).await;
        let start = Instant::now();
        tokio::task::spawn_blocking(|| {}).await.unwrap();
        let woke = start.elapsed();
        if run > WARM_UP {
            waking.push(woke);
            changes.push(took);
            renaming.push(renamed);
            reads += READS.load(Ordering::Relaxed) - read_before;
        }
    }
    stop.cancel();
    reading.await.unwrap();
    Whole { files, changes, renaming, waking, reads, renames }
}
