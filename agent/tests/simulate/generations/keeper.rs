//! What generations have of a simulated node: a clock since its start, a disk whose writes take time, images that take time,
//! and a user's check.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use limpet_generations::{Moment, Save};
use limpet_model::source::SourceKind;
use limpet_worker::fake::world::World;
use limpet_worker::trials::{PrepareResult, PrepareWork, TrialKeeper};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::disk::Disk;
use super::version::{behaviour, signature_of};

/// The uptime at which an agent starts first.
const START_OF_AGENT: Duration = Duration::from_secs(20);

/// The node as its generations see it.
pub(super) struct Keeper {
    pub(super) world: Arc<Mutex<World>>,
    pub(super) disk: Arc<Mutex<Disk>>,
    pub(super) rng: Mutex<fastrand::Rng>,
    pub(super) booted: Instant,
    /// Notified when a write begins.
    pub(super) writes: Arc<Notify>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("booted", &self.booted).finish_non_exhaustive()
    }
}

impl Keeper {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    pub(super) fn violate(&self, wrong: impl IntoIterator<Item = String>) {
        let mut world = self.world.lock().unwrap();
        for what in wrong {
            world.note(|| format!("VIOLATION {what}"));
            world.violations.push(what);
        }
    }

    fn draw(&self, up_to: Duration) -> Duration {
        Duration::from_millis(self.rng.lock().unwrap().u64(0..=u64::try_from(up_to.as_millis()).unwrap()))
    }
}

impl TrialKeeper for Keeper {
    fn now(&self) -> Moment {
        Moment { uptime: START_OF_AGENT + self.booted.elapsed(), wall: self.world.lock().unwrap().now().wall }
    }

    fn is_able(&self) -> bool {
        self.world.lock().unwrap().is_connected()
    }

    fn save(self: Arc<Self>, saves: Vec<Save>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.disk().is_writing = true;
            self.writes.notify_one();
            // A busy flash takes seconds now and then.
            let longest = Duration::from_millis(if self.rng.lock().unwrap().u32(0..8) == 0 { 3_000 } else { 50 });
            sleep(self.draw(longest)).await;
            for save in saves {
                let (document, wrong) = {
                    let document = String::from_utf8_lossy(&save.document).into_owned();
                    (document, self.disk().write(save))
                };
                self.world.lock().unwrap().note(|| format!("on disk: {document}"));
                self.violate(wrong);
            }
            sleep(self.draw(longest)).await;
            let wrong = self.disk().confirm();
            self.violate(wrong);
        })
    }

    fn prepare(self: Arc<Self>, _: SourceKind, mut work: Box<PrepareWork>) -> BoxFuture<'static, PrepareResult> {
        Box::pin(async move {
            // Until a window for downloads is open, and one for applying.
            sleep(self.draw(Duration::from_secs(10))).await;
            work().await?;
            sleep(self.draw(Duration::from_secs(20))).await;
            Ok(())
        })
    }

    fn check(self: Arc<Self>, _: SourceKind, number: u64) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async move {
            sleep(self.draw(Duration::from_secs(8))).await;
            let disk = self.disk();
            let generation = disk.generations().iter().find(|generation| generation.number == number);
            let images = generation.map(|generation| signature_of(&generation.content)).unwrap_or_default();
            match images.values().any(|image| behaviour(image) == "refused") {
                true => Err("an image is refused".to_owned()),
                false => Ok(()),
            }
        })
    }

    fn report_boot(self: Arc<Self>, _: Result<(), String>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn keep_images(&self, images: HashSet<String>) {
        self.disk().kept = images;
    }
}
