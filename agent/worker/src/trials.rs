//! Drives the generations of sources within the merge loop: gives them what has changed and the time, has what they remember
//! written before it takes effect, gets the images of what is new, runs checks, and wakes them when they are due.
//!
//! Without a source that has generations there is none of it.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use limpet_core::outcome::Outcome;
use limpet_core::plan::Action;
use limpet_core::pod_order::{PodOrder, RestartOrder};
use limpet_core::source::Snapshots;
use limpet_core::state::PodState;
use limpet_core::status::observed::{Changes, Observed};
use limpet_generations::{
    Facts, Generations, Moment, Notice, OrderError, Preparation, RollbackOrder, Save, SourceGenerationsView,
};
use limpet_kinds::Progress;
use limpet_model::object::{ObjectKey, PodObjects};
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;
use limpet_telemetry::event::{EventType, Events};
use limpet_telemetry::metrics::Metrics;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::executor::Executor;

/// The pause after images could not be got; it doubles with each further time, as kubelet's.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Whether the images of a generation are there, or why not.
pub type PrepareResult = Result<(), String>;
/// Gets the images of a generation; each call begins anew.
pub type PrepareWork = dyn FnMut() -> BoxFuture<'static, PrepareResult> + Send;

/// What generations need of the node.
pub trait TrialKeeper: Debug + Send + Sync {
    /// This moment.
    fn now(&self) -> Moment;

    /// Whether pods can be judged: containerd answers, and the node does not shut down.
    fn is_able(&self) -> bool;

    /// Writes what is remembered from now on. Resolves when it is on disk, or cannot be written in reasonable time: then it
    /// takes effect all the same.
    fn save(self: Arc<Self>, saves: Vec<Save>) -> BoxFuture<'static, ()>;

    /// Has the images of a source's newest version got when updates may be downloaded, and resolves when it may take effect.
    fn prepare(self: Arc<Self>, source: SourceKind, work: Box<PrepareWork>) -> BoxFuture<'static, PrepareResult>;

    /// Runs the user's check of a generation of a source.
    fn check(self: Arc<Self>, source: SourceKind, number: u64) -> BoxFuture<'static, Result<(), String>>;

    /// Reports whether the node works after this boot to the programs that ask for it.
    fn report_boot(self: Arc<Self>, verdict: Result<(), String>) -> BoxFuture<'static, ()>;

    /// Keeps these images from being removed.
    fn keep_images(&self, images: std::collections::HashSet<String>);
}

/// How the generations are connected to the node.
pub struct TrialParts {
    pub keeper: Arc<dyn TrialKeeper>,
    /// Gets the images.
    pub executor: Arc<dyn Executor>,
    pub observed: Observed,
    pub events: Events,
    pub metrics: Metrics,
    /// What users order.
    pub orders: mpsc::Receiver<RollbackOrder>,
    /// To the supervisor: restarts of pods.
    pub pod_orders: mpsc::Sender<PodOrder>,
    /// Receives what people see.
    pub views: watch::Sender<Vec<SourceGenerationsView>>,
}

/// What a job reports.
#[derive(Debug)]
enum Report {
    Prepared { source: SourceKind, attempt: u64, result: Result<(), String> },
    Checked { source: SourceKind, number: u64, result: Result<(), String> },
    BootReported,
}

/// A preparation under way.
struct PreparingJob {
    attempt: u64,
    /// How often it has failed.
    failures: u32,
    /// `None`: it is to begin again.
    job: Option<AbortHandle>,
}

/// An answer for when the order is in effect.
type Answer = (oneshot::Sender<Result<(SourceKind, u64), OrderError>>, (SourceKind, u64));

/// The generations and what they are driven by.
pub struct Trials {
    generations: Generations,
    parts: TrialParts,
    changes: Changes,
    saving: Option<BoxFuture<'static, ()>>,
    jobs: JoinSet<Report>,
    preparing: HashMap<SourceKind, PreparingJob>,
    checking: HashMap<SourceKind, u64>,
    answers: Vec<Answer>,
    /// Pods that are to be restarted once the supervisor has what is in effect now.
    restarts: Vec<PodKey>,
}

impl Trials {
    /// Drives `generations`.
    pub fn new(generations: Generations, parts: TrialParts) -> Self {
        let changes = parts.observed.changes();
        Self {
            generations,
            parts,
            changes,
            saving: None,
            jobs: JoinSet::new(),
            preparing: HashMap::new(),
            checking: HashMap::new(),
            answers: Vec::new(),
            restarts: Vec::new(),
        }
    }

    /// Resolves when generations may decide otherwise than before, although no source has published. Cancel safe.
    pub(crate) async fn woken(&mut self) {
        if let Some(saving) = &mut self.saving {
            saving.await;
            self.saving = None;
            self.take_effect();
            return;
        }
        // The next turn begins when the supervisor has taken what is in effect.
        if !self.restarts.is_empty() {
            return;
        }
        let due = self.generations.due();
        let (keeper, awaits_pods) = (Arc::clone(&self.parts.keeper), self.generations.awaits_pods());
        tokio::select! {
            true = self.changes.next(), if awaits_pods => {}
            Some(order) = self.parts.orders.recv() => self.follow(order),
            Some(report) = self.jobs.join_next() => match report {
                Ok(report) => self.take_report(report),
                // It was aborted, or has panicked: then what it did is not done.
                Err(error) => tracing::debug!(%error, "a job of a generation has ended"),
            },
            () = reached(&*keeper, due) => {}
            else => std::future::pending().await,
        }
    }

    /// The snapshots in effect. `progress`: how far the controllers of workloads have come.
    pub(crate) fn expand(
        &mut self,
        snapshots: Snapshots,
        progress: impl Fn(SourceKind, &ObjectKey) -> Option<Progress>,
    ) -> Snapshots {
        self.restart_pods();
        if self.saving.is_none() {
            let observed = self.parts.observed.load();
            let is_paused = !self.parts.keeper.is_able();
            let facts = Facts { observed: &observed, rollout: &progress, is_paused };
            let now = self.parts.keeper.now();
            let saves = self.generations.turn(&snapshots, &facts, now);
            let verdict = self.generations.boot_verdict(&facts, now);
            if let Some(verdict) = verdict {
                let report = Arc::clone(&self.parts.keeper).report_boot(verdict);
                self.jobs.spawn(async move {
                    report.await;
                    Report::BootReported
                });
            }
            self.restarts.extend(self.generations.take_restarts());
            if !saves.is_empty() {
                self.saving = Some(Arc::clone(&self.parts.keeper).save(saves));
            }
            self.begin_jobs();
            self.show();
        }
        self.generations.expand(snapshots)
    }

    /// The sources whose generation in effect may be replaced by the one before it.
    pub(crate) fn on_trial(&self) -> Vec<SourceKind> {
        self.generations.on_trial().collect()
    }

    /// What was decided is on disk.
    fn take_effect(&mut self) {
        self.generations.remembered();
        for (done, reached) in self.answers.drain(..) {
            // Who asked may have left.
            let _ = done.send(Ok(reached));
        }
    }

    /// Has the containers of pods begin anew that may have read what was undone. Each turn begins when the supervisor has taken
    /// the merge of the turn before; so a worker has the objects that are in effect before its
    /// order arrives.
    fn restart_pods(&mut self) {
        for key in std::mem::take(&mut self.restarts) {
            // Nobody waits for the answer.
            let order = RestartOrder { key: key.clone(), container: None, done: oneshot::channel().0 };
            if self.parts.pod_orders.try_send(PodOrder::Restart(order)).is_err() {
                tracing::warn!(pod = %key, "a pod that may have read what was undone is not restarted: too many orders wait");
            }
        }
    }

    fn follow(&mut self, RollbackOrder { order, done }: RollbackOrder) {
        match self.generations.order(order, self.parts.keeper.now()) {
            Ok(reached) => self.answers.push((done, reached)),
            Err(error) => {
                // Who asked may have left.
                let _ = done.send(Err(error));
            }
        }
    }

    fn take_report(&mut self, report: Report) {
        match report {
            Report::Prepared { source, attempt, result } => {
                if let Some(job) = self.preparing.get_mut(&source).filter(|job| job.attempt == attempt) {
                    (job.job, job.failures) = (None, job.failures + 1);
                }
                self.generations.prepared(source, attempt, result);
            }
            Report::Checked { source, number, result } => {
                self.checking.remove(&source);
                self.generations.checked(source, number, result, self.parts.keeper.now());
            }
            Report::BootReported => {}
        }
    }

    /// Begins what is to be done, and ends what is not any more.
    fn begin_jobs(&mut self) {
        let wanted: HashMap<SourceKind, Arc<Preparation>> =
            self.generations.preparations().map(|(source, preparation)| (source, Arc::clone(preparation))).collect();
        self.preparing.retain(|source, job| {
            let is_wanted = wanted.get(source).is_some_and(|wanted| wanted.attempt == job.attempt);
            if !is_wanted {
                job.job.iter().for_each(AbortHandle::abort);
            }
            is_wanted
        });
        for (source, preparation) in wanted {
            let attempt = preparation.attempt;
            let job = self.preparing.entry(source).or_insert(PreparingJob { attempt, failures: 0, job: None });
            if job.job.is_some() {
                continue;
            }
            let (keeper, pause) = (Arc::clone(&self.parts.keeper), pause(job.failures));
            let executor = Arc::clone(&self.parts.executor);
            let work = move || prepare(Arc::clone(&executor), Arc::clone(&preparation)).boxed();
            job.job = Some(self.jobs.spawn(async move {
                tokio::time::sleep(pause).await;
                Report::Prepared { source, attempt, result: keeper.prepare(source, Box::new(work)).await }
            }));
        }
        let checks: Vec<(SourceKind, u64)> = self.generations.checks().collect();
        for (source, number) in checks {
            if self.checking.insert(source, number).is_some() {
                continue;
            }
            let check = Arc::clone(&self.parts.keeper).check(source, number);
            self.jobs.spawn(async move { Report::Checked { source, number, result: check.await } });
        }
    }

    /// Reports what has happened, and what is.
    fn show(&mut self) {
        for Notice { source, is_warning, reason, message } in self.generations.take_notices() {
            let event_type = match is_warning {
                true => {
                    tracing::warn!(%source, "{reason}: {message}");
                    EventType::Warning
                }
                false => {
                    tracing::info!(%source, "{reason}: {message}");
                    EventType::Normal
                }
            };
            self.parts.metrics.generation_changed(source, reason);
            self.parts.events.emit(None, None, event_type, reason, message);
        }
        let views = self.generations.views();
        let is_new = *self.parts.views.borrow() != views;
        if is_new {
            self.parts.keeper.keep_images(self.generations.images());
            self.parts.metrics.set_generations(views.iter().filter_map(|view| Some((view.source, view.running?))));
            self.parts.views.send_replace(views);
        }
    }
}

/// Resolves at that time after the start of the kernel; never without one. Cancel safe.
async fn reached(keeper: &dyn TrialKeeper, due: Option<Duration>) {
    match due {
        // A moment later: what is due at a time is due only once it has passed.
        Some(due) => {
            let pause = due.saturating_sub(keeper.now().uptime) + Duration::from_millis(1);
            tokio::time::sleep(pause).await;
        }
        None => std::future::pending().await,
    }
}

/// How long to wait before images are got again.
fn pause(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        failures => FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(10)).min(LONGEST_PAUSE),
    }
}

/// Gets the images of a generation, as the starts of its pods would.
async fn prepare(executor: Arc<dyn Executor>, preparation: Arc<Preparation>) -> PrepareResult {
    let pods = preparation.pods.iter().map(|record| prepare_pod(Arc::clone(&executor), &preparation, record));
    join_all(pods).await.into_iter().collect()
}

async fn prepare_pod(
    executor: Arc<dyn Executor>,
    preparation: &Preparation,
    record: &Arc<PodRecord>,
) -> Result<(), String> {
    let mut pod = PodState::new(Arc::clone(record), executor.now().wall);
    pod.objects = Arc::new(PodObjects::collect(record, |key| preparation.objects.get(key).cloned()));
    let ensure = |index| Arc::clone(&executor).perform(pod.clone(), Action::EnsureImage(index));
    let outcomes = join_all((0..pod.containers.len()).map(ensure)).await;
    let failure = outcomes.into_iter().find_map(|outcome| match outcome {
        Outcome::ImageEnsured { result: Err(failure), .. } => Some(failure),
        _ => None,
    });
    failure.map_or(Ok(()), |failure| Err(format!("pod {}: {}", record.key, failure.message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_five_minutes() {
        let seconds: Vec<u64> = (0..8).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(seconds, [0, 10, 20, 40, 80, 160, 300, 300]);
    }
}
