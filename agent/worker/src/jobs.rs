//! A worker's jobs for its pod: actions beside its loop, including pulls and hooks, and probes. Results of an earlier
//! incarnation are never applied to the current one.

use std::collections::BTreeMap;
use std::time::Duration;

use limpet_core::outcome::Outcome;
use limpet_core::plan::Action;
use limpet_core::state::PodState;
use limpet_model::pod::PodKey;
use tokio::task::{AbortHandle, JoinError, JoinSet};

use super::hook_jobs::HookJobs;

/// The deadline for running actions once the agent stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The jobs of one pod.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    actions: JoinSet<(u64, Outcome)>,
    pulls: BTreeMap<usize, AbortHandle>,
    hooks: HookJobs,
    /// Nothing waits for probes, and they end with the worker.
    probes: JoinSet<(u64, Outcome)>,
    /// Counts incarnations.
    generation: u64,
}

/// How a job is monitored and ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum JobKind {
    /// It has its own timeout, which may be long.
    Probe,
    /// It may take any time.
    Hook(usize),
    /// It is aborted when a newer version has another image.
    Pull(usize),
    Call,
}

impl JobKind {
    /// Whether a call that takes long is worth a report.
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

/// A finished job. Without an outcome it was aborted, or belongs to an earlier incarnation.
#[derive(Debug)]
pub(super) enum Ended {
    Action(Option<Outcome>),
    Probe(Option<Outcome>),
}

impl Jobs {
    /// Starts a job.
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

    /// The next finished job; never resolves while there is none. Cancel safe.
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

    /// Ends the hook for which `action` does not wait any longer.
    pub(super) fn yield_to(&mut self, action: &Action) {
        self.hooks.yield_to(action);
    }

    /// Ends the hooks of containers that no longer run.
    pub(super) fn drop_ended_hooks(&mut self, pod: Option<&PodState>) {
        self.hooks.drop_ended(pod);
    }

    /// Ends the pull for one container, because the previous version's image is no longer needed.
    pub(super) fn abort_pull(&mut self, index: usize) {
        if let Some(pull) = self.pulls.remove(&index) {
            pull.abort();
        }
    }

    /// Ends all pulls; they can be resumed.
    pub(super) fn abort_pulls(&mut self) {
        std::mem::take(&mut self.pulls).into_values().for_each(|pull| pull.abort());
    }

    /// Makes the results of the current incarnation's jobs irrelevant.
    pub(super) fn leave_incarnation(&mut self) {
        self.abort_pulls();
        self.hooks.drop_ended(None);
        self.probes.abort_all();
        self.generation += 1;
    }

    /// Finishes running actions when the agent stops; pulls and probes are aborted.
    pub(super) async fn drain(&mut self, key: &PodKey) {
        self.abort_pulls();
        self.probes.abort_all();
        let finish = async { while self.actions.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, finish).await.is_err() {
            tracing::warn!(pod = %key, actions = self.actions.len(), "the pod's worker stopped before its actions had ended");
        }
    }
}
