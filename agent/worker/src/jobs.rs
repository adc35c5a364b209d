//! What a worker has under way for its pod: actions beside its loop, among them pulls and hooks, and probes. What was begun
//! for an earlier incarnation is never taken for the present one's.

use std::collections::BTreeMap;
use std::time::Duration;

use limpet_core::outcome::Outcome;
use limpet_core::plan::Action;
use limpet_core::state::PodState;
use limpet_model::pod::PodKey;
use tokio::task::{AbortHandle, JoinError, JoinSet};

use super::hook_jobs::HookJobs;

/// How long actions under way may take once the agent stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The jobs of one pod.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    actions: JoinSet<(u64, Outcome)>,
    pulls: BTreeMap<usize, AbortHandle>,
    hooks: HookJobs,
    /// Nothing waits for them, and they end with the worker.
    probes: JoinSet<(u64, Outcome)>,
    /// Counts incarnations.
    generation: u64,
}

/// How a job is watched and ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum JobKind {
    /// It has a timeout of its own, which may be long.
    Probe,
    /// It may take as long as it needs: nothing hangs.
    Hook(usize),
    /// A newer version may be of another image.
    Pull(usize),
    Call,
}

impl JobKind {
    /// Whether a call that does not return for long is worth a report.
    pub(super) fn may_hang(self) -> bool {
        matches!(self, Self::Pull(_) | Self::Call)
    }
}

impl From<&Action> for JobKind {
    fn from(action: &Action) -> Self {
        match action {
            Action::Probe(..) => Self::Probe,
            Action::EnsureImage(index) => Self::Pull(*index),
            action => HookJobs::runs_hook(action).map_or(Self::Call, Self::Hook),
        }
    }
}

/// A job that has ended. Without an outcome it was aborted, or begun for an earlier incarnation.
#[derive(Debug)]
pub(super) enum Ended {
    Action(Option<Outcome>),
    Probe(Option<Outcome>),
}

impl Jobs {
    /// Does `work`.
    pub(super) fn spawn(&mut self, kind: JobKind, work: impl Future<Output = Outcome> + Send + 'static) {
        let generation = self.generation;
        let work = async move { (generation, work.await) };
        match kind {
            JobKind::Probe => drop(self.probes.spawn(work)),
            JobKind::Hook(index) => self.hooks.insert(index, self.actions.spawn(work)),
            JobKind::Pull(index) => drop(self.pulls.insert(index, self.actions.spawn(work))),
            JobKind::Call => drop(self.actions.spawn(work)),
        }
    }

    /// The next job that has ended; never resolves while there is none. Cancel safe.
    pub(super) async fn next_ended(&mut self, key: &PodKey) -> Ended {
        tokio::select! {
            biased;
            Some(joined) = self.actions.join_next() => Ended::Action(self.outcome(key, joined)),
            Some(joined) = self.probes.join_next() => Ended::Probe(self.outcome(key, joined)),
            else => std::future::pending().await,
        }
    }

    fn outcome(&mut self, key: &PodKey, joined: Result<(u64, Outcome), JoinError>) -> Option<Outcome> {
        match joined {
            Ok((generation, outcome)) if generation == self.generation => {
                if let Outcome::ImageEnsured { index, .. } = &outcome {
                    self.pulls.remove(index);
                }
                Some(outcome)
            }
            Ok(_) => None,
            Err(error) => {
                if !error.is_cancelled() {
                    tracing::error!(pod = %key, %error, "an action panicked");
                }
                None
            }
        }
    }

    /// Ends the hook that `action` does not wait for any more.
    pub(super) fn yield_to(&mut self, action: &Action) {
        self.hooks.yield_to(action);
    }

    /// Ends the hooks of containers that do not run any more.
    pub(super) fn drop_ended_hooks(&mut self, pod: Option<&PodState>) {
        self.hooks.drop_ended(pod);
    }

    /// Ends the pull for one container: what is pulled for the version before is of no use any more.
    pub(super) fn abort_pull(&mut self, index: usize) {
        if let Some(pull) = self.pulls.remove(&index) {
            pull.abort();
        }
    }

    /// Ends all pulls; they resume.
    pub(super) fn abort_pulls(&mut self) {
        std::mem::take(&mut self.pulls).into_values().for_each(|pull| pull.abort());
    }

    /// What was begun for the current incarnation is of no use to another one.
    pub(super) fn leave_incarnation(&mut self) {
        self.abort_pulls();
        self.hooks.drop_ended(None);
        self.probes.abort_all();
        self.generation += 1;
    }

    /// The agent stops: what is under way is finished, pulls and probes are cut.
    pub(super) async fn drain(&mut self, key: &PodKey) {
        self.abort_pulls();
        self.probes.abort_all();
        let finish = async { while self.actions.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, finish).await.is_err() {
            tracing::warn!(pod = %key, actions = self.actions.len(), "the pod's worker stopped before its actions had ended");
        }
    }
}
