//! A generation on trial: when it is good, when it is not, and what returns then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use limpet_model::object::{ObjectKey, references};
use limpet_model::pod::{PodKey, PodRecord};

use super::{SourceGenerations, Step};
use crate::Moment;
use crate::content::{Content, ItemKey, same_pod};
use crate::notice::Notice;
use crate::readiness::{Facts, Judge, Readiness, restarts_of};
use crate::settings::Settings;
use crate::state::{Outcome, State};

/// So many starts of the node during a trial, and the generation before returns.
const MAX_BOOTS: u32 = 2;
/// How long a trial that cannot be judged waits for the reason to pass.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// The pause before a check that failed is run again.
const CHECK_PAUSE: Duration = Duration::from_secs(5);

/// What is seen of a trial. Another agent begins anew.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Since when all pods have been ready.
    good_since: Option<Duration>,
    /// The deadline does not count until then: it was not judged before.
    pub(super) postponed: Option<Duration>,
    /// The check is to be run, or runs.
    pub(super) check_is_due: bool,
    /// It failed, and is run again at this moment.
    check_again: Option<Duration>,
    check_failure: Option<String>,
    /// The check has succeeded during this trial, and is not run again.
    check_passed: bool,
    /// When to judge again though nothing happens.
    pub(super) due: Option<Duration>,
    /// What the generation waits for to be good, as it is shown.
    pub(super) unready: Option<Arc<str>>,
    /// How long all pods have to be ready, once it is known.
    settling_time: Option<Duration>,
    /// That it is not good, and nothing returns, was reported.
    is_reported: bool,
}

impl SourceGenerations {
    /// Another boot may have begun within a trial.
    pub(super) fn begin_boot(&self, now: Moment) -> Option<Step> {
        let mut state = self.state.clone();
        let trial = state.trial.as_mut().filter(|trial| *trial.boot != *self.boot)?;
        trial.boot = self.boot.to_string();
        trial.boots += 1;
        trial.set_began(now.uptime);
        if trial.boots < MAX_BOOTS || trial.base.is_none() {
            return Some(Step { state, notices: Vec::new() });
        }
        self.undone(format!("the node was started {MAX_BOOTS} times before it was good"), BTreeMap::new(), now)
    }

    /// Judges the generation on trial.
    pub(super) fn judge(&mut self, facts: &Facts<'_>, settings: &Settings, now: Moment) -> Option<Step> {
        let trial = self.state.trial.clone()?;
        let running = Arc::clone(self.state.running()?);
        if facts.is_paused {
            self.watch.postponed = Some(now.uptime);
            (self.watch.good_since, self.watch.due) = (None, Some(now.uptime + PAUSE));
            return None;
        }
        let deadline = trial.began().max(self.watch.postponed.unwrap_or_default()) + settings.progress_deadline;
        let judge = Judge {
            source: self.source,
            content: &running.content,
            facts,
            trial: Some(&trial),
            max_restarts: settings.max_restarts,
            is_boot: false,
        };
        let waits_for = match judge.all() {
            Readiness::Failed(why) if trial.base.is_some() => return self.undo(why, facts, now),
            Readiness::Failed(why) | Readiness::Waiting(why) => {
                self.watch.good_since = None;
                why
            }
            Readiness::Good => {
                let since = *self.watch.good_since.get_or_insert(now.uptime);
                let settled = since + self.settling_time(settings);
                if now.uptime < settled {
                    self.watch.unready = Some(Arc::from("its pods have to stay ready for a while"));
                    self.watch.due = Some(settled);
                    return None;
                }
                match self.passes_check(settings, now) {
                    Ok(()) => return self.committed(running.number, now),
                    Err(why) => why,
                }
            }
        };
        self.wait(waits_for, deadline, trial.base, facts, now)
    }

    /// How long all pods have to be ready. A pod that reads a changed ConfigMap or Secret is not restarted for it: its probes
    /// need their time to fail.
    fn settling_time(&mut self, settings: &Settings) -> Duration {
        if let Some(known) = self.watch.settling_time {
            return known;
        }
        let objects = self.changed_objects();
        let running = self.state.running().filter(|_| !objects.is_empty()).map(|running| running.content.clone());
        let pods = running.iter().flat_map(|content| content.samples(content.subjects(), &self.node_name));
        let readers = pods.filter(|pod| references(pod).iter().any(|object| objects.contains(object)));
        let probes = readers.map(|pod| time_to_fail(&pod)).max().unwrap_or_default();
        let time = settings.min_ready.max(probes.min(settings.progress_deadline));
        *self.watch.settling_time.insert(time)
    }

    /// The ConfigMaps and Secrets that the generation on trial has changed.
    fn changed_objects(&self) -> BTreeSet<ObjectKey> {
        let base = self.state.trial.as_ref().and_then(|trial| trial.base);
        let base = base.and_then(|base| self.state.generation(base));
        let Some((base, running)) = base.zip(self.state.running()) else { return BTreeSet::new() };
        let changed = base.content.differences(&running.content).filter_map(|item| match item {
            ItemKey::Object(key) if !key.kind.is_workload() => Some(key),
            _ => None,
        });
        changed.collect()
    }

    /// The generation is not good yet: it waits, or its time is over.
    fn wait(
        &mut self,
        why: String,
        deadline: Duration,
        base: Option<u64>,
        facts: &Facts<'_>,
        now: Moment,
    ) -> Option<Step> {
        self.watch.unready = Some(Arc::from(why.as_str()));
        // A check that runs is waited for: it has a deadline of its own.
        let is_over = now.uptime >= deadline && !self.watch.check_is_due;
        if is_over && base.is_some() {
            return self.undo(why, facts, now);
        }
        let moments = [Some(deadline), self.watch.check_again].into_iter().flatten();
        self.watch.due = moments.filter(|at| now.uptime < *at).min();
        if is_over && !self.watch.is_reported {
            self.watch.is_reported = true;
            let number = self.state.running?;
            let message =
                format!("generation {number} of {} is not good, and there is none to return to: {why}", self.source);
            self.notices.push(Notice::warning(self.source, "GenerationNotReady", message));
        }
        None
    }

    /// Whether the user's own check was passed; `Err`: what is waited for.
    fn passes_check(&mut self, settings: &Settings, now: Moment) -> Result<(), String> {
        if settings.check.is_none() || self.watch.check_passed {
            return Ok(());
        }
        let is_due = self.watch.check_again.is_none_or(|at| at <= now.uptime);
        if is_due && !self.watch.check_is_due {
            (self.watch.check_is_due, self.watch.check_again) = (true, None);
        }
        Err(self.watch.check_failure.clone().unwrap_or_else(|| "the check runs".to_owned()))
    }

    /// The check of that generation was run.
    pub(crate) fn checked(&mut self, number: u64, result: Result<(), String>, now: Moment) {
        if self.state.running != Some(number) || !self.watch.check_is_due {
            return;
        }
        self.watch.check_is_due = false;
        match result {
            Ok(()) => self.watch.check_passed = true,
            Err(failure) => {
                self.watch.check_failure = Some(format!("the check failed: {failure}"));
                self.watch.check_again = Some(now.uptime + CHECK_PAUSE);
            }
        }
    }

    fn committed(&self, number: u64, now: Moment) -> Option<Step> {
        let mut state = self.state.clone();
        state.decide(number, Outcome::Good, now.wall);
        state.trial = None;
        let message = format!("generation {number} of {} is good", self.source);
        Some(self.step(state, Notice::normal(self.source, "GenerationCommitted", message)))
    }

    fn undo(&self, why: String, facts: &Facts<'_>, now: Moment) -> Option<Step> {
        let restarts = self.misled_pods(facts);
        self.undone(why, restarts, now)
    }

    /// The generation before is in effect again; `restarts`: pods that have to begin anew with it, as in the state.
    fn undone(&self, why: String, restarts: BTreeMap<String, (String, u32)>, now: Moment) -> Option<Step> {
        let mut state: State = self.state.clone();
        state.restarts.extend(restarts);
        let base = state.trial.take()?.base?;
        let number = state.running.replace(base)?;
        state.decide(number, Outcome::Refused(why.clone()), now.wall);
        let message = format!("generation {number} of {} was undone, generation {base} runs again: {why}", self.source);
        let notice = Notice::warning(self.source, "GenerationUndone", message);
        Some(Step { state, notices: vec![notice] })
    }

    /// Pods of the generation before that this one has not changed, but whose objects it has, and that are not ready: their
    /// processes may hold what is undone. By the pod, its UID and the number of its restarts.
    fn misled_pods(&self, facts: &Facts<'_>) -> BTreeMap<String, (String, u32)> {
        let trial = self.state.trial.as_ref();
        let base = trial.and_then(|trial| trial.base).and_then(|base| self.state.generation(base));
        let (Some(base), Some(running)) = (base, self.state.running()) else { return BTreeMap::new() };
        let changed = self.changed_objects();
        if changed.is_empty() {
            return BTreeMap::new();
        }
        let judge = Judge {
            source: self.source,
            content: &running.content,
            facts,
            trial: None,
            max_restarts: u32::MAX,
            is_boot: false,
        };
        let observed = facts.observed.pods.values().filter(|pod| pod.record.source == self.source);
        let is_misled = |key: &PodKey, record| {
            let refers = references(record).iter().any(|object| changed.contains(object));
            let is_same = match (base.content.pods.get(key), running.content.pods.get(key)) {
                (Some(before), Some(now)) => same_pod(before, now),
                // A workload's: the controller replaces those of another template.
                (None, None) => true,
                _ => false,
            };
            refers && is_same
        };
        let pods = observed.filter(|pod| is_misled(&pod.record.key, &pod.record));
        let unready = pods.filter(|pod| judge.observed(pod) != Readiness::Good);
        unready.map(|pod| (pod.record.key.to_string(), (pod.record.uid.to_string(), restarts_of(pod)))).collect()
    }

    /// What does not work at present and is not changed by the new version: it says nothing about that. What the one on
    /// trial has broken is not among it.
    pub(super) fn exempt(&self, content: &Content, facts: &Facts<'_>) -> BTreeSet<String> {
        let trial = self.state.trial.as_ref();
        let base = trial.and_then(|trial| trial.base).and_then(|base| self.state.generation(base));
        let Some(before) = base.or_else(|| self.state.running()) else { return BTreeSet::new() };
        let changed = content.changed_subjects(&before.content, &self.node_name);
        let judge = Judge { source: self.source, content, facts, trial: None, max_restarts: u32::MAX, is_boot: false };
        let unchanged = content.subjects().filter(|subject| !changed.contains(subject));
        let failing = unchanged.filter(|subject| judge.subject(subject) != Readiness::Good);
        let failing = failing.map(|subject| subject.to_string());
        failing.filter(|subject| trial.is_none_or(|trial| base.is_none() || trial.exempt.contains(subject))).collect()
    }
}

/// How long a pod's probes of readiness and liveness need to fail, at most.
fn time_to_fail(pod: &PodRecord) -> Duration {
    let containers = pod.containers();
    let probes = containers.flat_map(|container| [&container.readiness_probe, &container.liveness_probe]).flatten();
    let seconds = |value: Option<i32>, default: u64| {
        value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0).unwrap_or(default)
    };
    let times = probes.map(|probe| {
        let each = seconds(probe.period_seconds, 10) + seconds(probe.timeout_seconds, 1);
        Duration::from_secs(each.saturating_mul(seconds(probe.failure_threshold, 3)))
    });
    times.max().unwrap_or_default()
}
