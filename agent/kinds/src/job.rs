//! A Job: pods that run until enough of them have succeeded.
//!
//! It follows `syncJob` and `manageJob` of `pkg/controller/job`. What Kubernetes' controller counts with finalizers
//! is counted in [`JobMemory`]: a pod that has ended is counted once, and only then may it be removed.

mod policy;
mod seen;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use limpet_model::object::workload::job::Job;

pub(crate) use seen::Seen;

use crate::clock::{Clock, earlier};
use crate::facts::Facts;
use crate::memory::{End, Failures, IndexFailures, JobMemory, Task, Verdict, WantedPod};
use crate::notice::Notices;
use crate::pods::task_name;
use crate::situation;
use crate::victims::choose;
use policy::Effect;

/// How many ended pods of one Job are kept, with their logs. All are counted anyway.
const MOST_ENDED: usize = 100;

type Situation<'a> = situation::Situation<'a, Job, BTreeMap<&'a str, Seen>>;

/// The result of a step, apart from the pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Next {
    /// When the next step is due, if nothing is observed before.
    pub(crate) at: Option<Timestamp>,
    /// Whether it has finished, and the time for which it is kept is over.
    pub(crate) is_expired: bool,
}

/// Adjusts the pods of a Job to the situation.
pub(crate) fn step(
    memory: &mut JobMemory,
    pods: &mut Vec<WantedPod>,
    situation: &Situation<'_>,
    notices: &mut Notices,
) -> Next {
    let mut step = JobStep { memory, pods, situation, notices, at: None };
    step.count_ended();
    if step.memory.finished.is_none() {
        step.forget_indexes();
        step.set_started();
        step.judge();
        match step.memory.is_decided() {
            true => step.end_active(),
            false => step.go_on(),
        }
        step.finish();
    }
    step.forget_ended();
    let expiry = step.expiry();
    let is_expired = expiry.is_some_and(|at| at <= situation.clock.now);
    let at = earlier(step.at, expiry.filter(|_| !is_expired));
    if is_expired {
        pods.clear();
    }
    Next { at, is_expired }
}

struct JobStep<'a> {
    memory: &'a mut JobMemory,
    pods: &'a mut Vec<WantedPod>,
    situation: &'a Situation<'a>,
    notices: &'a mut Notices,
    at: Option<Timestamp>,
}

impl JobStep<'_> {
    /// Counts the pods that have ended since the last step, in the order of their ends.
    fn count_ended(&mut self) {
        let Situation { spec, observed: seen, clock, .. } = *self.situation;
        let mut ended: Vec<(Timestamp, usize, bool)> = Vec::new();
        for (at, pod) in self.pods.iter().enumerate().filter(|(_, pod)| !pod.has_ended()) {
            let Some(seen) = seen.get(pod.name.as_str()) else { continue };
            let succeeded = match seen.succeeded {
                Some(succeeded) => succeeded,
                None if seen.terminating && !spec.replaces_failed_only => false,
                None => continue,
            };
            ended.push((seen.finished_at.unwrap_or(clock.now), at, succeeded));
        }
        // Of two at the same moment, the one that failed does not count after the success.
        ended.sort_by_key(|(time, at, succeeded)| (*time, *succeeded, *at));
        for (time, at, succeeded) in ended {
            let index = self.pods[at].task.as_ref().and_then(|task| task.index);
            match succeeded {
                true => self.count_success(index),
                false => self.count_failure(at, index, time),
            }
            if let Some(task) = &mut self.pods[at].task {
                task.end = Some(if succeeded { End::Succeeded } else { End::Failed });
            }
        }
    }

    fn count_success(&mut self, index: Option<u32>) {
        self.memory.failures = Failures::default();
        match (self.situation.spec.indexed, index) {
            (true, Some(index)) if self.is_index(index) => {
                self.memory.succeeded_indexes.insert(index);
                self.memory.index_failures.remove(&index);
            }
            (true, _) => {}
            (false, _) => self.memory.succeeded = self.memory.succeeded.saturating_add(1),
        }
    }

    fn count_failure(&mut self, at: usize, index: Option<u32>, time: Timestamp) {
        let Situation { spec, key, observed: seen, .. } = *self.situation;
        let name = self.pods[at].name.as_str();
        let effect = match seen.get(name) {
            Some(seen) if spec.has_failure_policy => policy::judge(&spec.failure_rules, &key.namespace, name, seen),
            _ => Effect::Count,
        };
        let is_counted = effect != Effect::Ignore;
        self.memory.failures.add(is_counted, time);
        if spec.indexed && !index.is_some_and(|index| self.is_index(index)) {
            return;
        }
        self.memory.failed = self.memory.failed.saturating_add(u32::from(is_counted));
        if let (Some(index), Some(limit)) = (index, spec.backoff_limit_per_index) {
            let failures = self.memory.index_failures.entry(index).or_default();
            if effect == Effect::FailIndex || is_counted && failures.counted >= limit {
                self.memory.index_failures.remove(&index);
                self.memory.failed_indexes.insert(index);
            } else {
                failures.add(is_counted, time);
            }
        }
        if let Effect::FailJob(message) = effect {
            self.decide(false, "PodFailurePolicy", message);
        }
    }

    /// Forgets the indexes that a Job does not have any more whose completions were lowered (`calculateSucceededIndexes`).
    fn forget_indexes(&mut self) {
        if let Some(completions) = self.situation.spec.completions.filter(|_| self.situation.spec.indexed) {
            self.memory.succeeded_indexes.truncate(completions);
            self.memory.failed_indexes.truncate(completions);
            self.memory.index_failures.retain(|index, _| *index < completions);
        }
    }

    fn is_index(&self, index: u32) -> bool {
        self.situation.spec.completions.is_some_and(|completions| index < completions)
    }

    /// Decides how it finishes. The first verdict stays.
    fn decide(&mut self, complete: bool, reason: &str, message: String) {
        let verdict = Verdict { complete, reason: reason.to_owned(), message };
        self.memory.verdict.get_or_insert(verdict);
    }

    fn set_started(&mut self) {
        let Situation { spec, clock, .. } = *self.situation;
        match self.memory.started {
            None if !spec.suspend => self.memory.started = Some(clock.now),
            // It was recorded before the clock was set.
            Some(noted) if clock.is_set() && noted < clock.earliest => self.memory.started = Some(clock.now),
            _ => {}
        }
    }

    /// Decides whether it has failed, or enough has succeeded.
    fn judge(&mut self) {
        let Situation { spec, clock, .. } = *self.situation;
        let deadline = self.deadline();
        if self.memory.is_decided() {
            return;
        }
        let message = |text: &str| text.to_owned();
        if self.memory.failed > spec.backoff_limit || self.restarts_exceed() {
            self.decide(false, "BackoffLimitExceeded", message("Job has reached the specified backoff limit"));
        } else if deadline.is_some_and(|deadline| deadline <= clock.now) {
            self.decide(false, "DeadlineExceeded", message("Job was active longer than specified deadline"));
        }
        self.at = earlier(self.at, deadline.filter(|deadline| *deadline > clock.now));
        let Some(completions) = spec.completions.filter(|_| spec.indexed && !self.memory.is_decided()) else { return };
        let (failed, succeeded) = (self.memory.failed_indexes.count(), self.memory.succeeded_indexes.count());
        if spec.max_failed_indexes.is_some_and(|most| failed > most) {
            let text = "Job has exceeded the specified maximal number of failed indexes";
            self.decide(false, "MaxFailedIndexesExceeded", message(text));
        } else if failed > 0 && failed + succeeded >= completions {
            self.decide(false, "FailedIndexes", message("Job has failed indexes"));
        } else if let Some(text) = policy::suffices(&spec.success_rules, &self.memory.succeeded_indexes) {
            self.decide(true, "SuccessPolicy", text);
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        let Situation { spec, clock, .. } = *self.situation;
        let seconds = spec.active_deadline_seconds.filter(|_| !spec.suspend)?;
        Some(Clock::after(self.memory.started?.min(clock.now), seconds))
    }

    /// Whether containers that are restarted in their pods have failed too often (`pastBackoffLimitOnFailure`).
    fn restarts_exceed(&self) -> bool {
        let Situation { spec, observed: seen, .. } = *self.situation;
        let active = self.pods.iter().filter_map(|pod| seen.get(pod.name.as_str()));
        let restarts: u32 = active.filter(|seen| seen.succeeded.is_none()).map(|seen| seen.facts.restarts).sum();
        spec.restarts_in_place && restarts > 0 && restarts >= spec.backoff_limit
    }

    /// Ends the active pods of a Job that finishes. If it has failed, they count as failed, too.
    fn end_active(&mut self) {
        let active = self.active();
        let has_failed = self.memory.verdict.as_ref().is_some_and(|verdict| !verdict.complete);
        if has_failed {
            self.memory.failed = self.memory.failed.saturating_add(u32::try_from(active.len()).unwrap_or(u32::MAX));
        }
        self.remove(&active);
    }

    /// Makes and ends pods of a Job that continues, and determines when it is complete.
    fn go_on(&mut self) {
        match self.situation.spec.suspend {
            true => {
                let active = self.active();
                self.remove(&active);
            }
            false => self.manage(),
        }
        let succeeded = self.succeeded();
        let is_enough = match self.situation.spec.completions {
            None => succeeded > 0,
            Some(completions) => succeeded >= completions,
        };
        if is_enough && self.active().is_empty() {
            return self.decide(true, "CompletionsReached", "Reached expected number of succeeded pods".to_owned());
        }
        self.note_suspension();
    }

    fn note_suspension(&mut self) {
        let Situation { spec, key, clock, .. } = *self.situation;
        match (spec.suspend, self.memory.suspended) {
            (true, None | Some(false)) => {
                self.memory.suspended = Some(true);
                self.memory.started = None;
                self.notices.normal(key, "Suspended", "Job suspended".to_owned());
            }
            (false, Some(true)) => {
                self.memory.suspended = Some(false);
                self.memory.started = Some(clock.now);
                self.notices.normal(key, "Resumed", "Job resumed".to_owned());
            }
            _ => {}
        }
    }

    fn manage(&mut self) {
        let spec = self.situation.spec;
        self.remove_beyond_completions();
        let active = self.active();
        let parallelism = usize_of(spec.parallelism);
        let wanted = match spec.completions {
            None if self.succeeded() > 0 => active.len(),
            None => parallelism,
            Some(completions) => usize_of(completions.saturating_sub(self.succeeded())).min(parallelism),
        };
        if active.len() > wanted {
            let facts: BTreeMap<&str, Facts> =
                self.situation.observed.iter().map(|(name, seen)| (*name, seen.facts)).collect();
            let candidates = self.pods.iter().filter(|pod| active.contains(&pod.name));
            let surplus = choose(candidates, &facts, active.len() - wanted);
            return self.remove(&surplus.into_iter().collect());
        }
        let terminating = if spec.replaces_failed_only { self.terminating().len() } else { 0 };
        let missing = wanted.saturating_sub(active.len() + terminating);
        if missing > 0 {
            self.make(missing);
        }
    }

    /// Ends the pods of indexes that the Job does not have any more: they go before all others
    /// (`appendDuplicatedIndexPodsForRemoval`).
    fn remove_beyond_completions(&mut self) {
        if !self.situation.spec.indexed {
            return;
        }
        let active = self.active();
        let has_index =
            |pod: &WantedPod| pod.task.as_ref().and_then(|task| task.index).is_some_and(|at| self.is_index(at));
        let beyond = self.pods.iter().filter(|pod| active.contains(&pod.name) && !has_index(pod));
        let beyond = beyond.map(|pod| pod.name.clone()).collect();
        self.remove(&beyond);
    }

    /// Makes `count` pods, unless a pause after failures is in progress.
    fn make(&mut self, count: usize) {
        let Situation { spec, clock, .. } = *self.situation;
        if spec.backoff_limit_per_index.is_none()
            && let Some(at) = self.memory.failures.over_at(clock)
        {
            self.at = earlier(self.at, Some(at));
            return;
        }
        if !spec.indexed {
            (0..count).for_each(|_| self.make_one(None));
            return;
        }
        let mut open = self.open_indexes(count);
        if spec.backoff_limit_per_index.is_some() {
            let over_at =
                |index: &u32| self.memory.index_failures.get(index).and_then(|failures| failures.over_at(clock));
            let next = open.iter().filter_map(over_at).min();
            open.retain(|index| over_at(index).is_none());
            self.at = earlier(self.at, next);
        }
        open.into_iter().for_each(|index| self.make_one(Some(index)));
    }

    /// The first indexes that have no pod and need one.
    fn open_indexes(&self, count: usize) -> Vec<u32> {
        let Situation { spec, .. } = *self.situation;
        let mut taken = self.memory.succeeded_indexes.clone();
        let active = self.active();
        let mut busy: BTreeSet<String> = active;
        if spec.replaces_failed_only {
            busy.extend(self.terminating());
        }
        let indexes = self.pods.iter().filter(|pod| busy.contains(&pod.name));
        indexes.filter_map(|pod| pod.task.as_ref()?.index).for_each(|index| taken.insert(index));
        let missing = taken.missing(spec.completions.unwrap_or(0));
        missing.filter(|index| !self.memory.failed_indexes.has(*index)).take(count).collect()
    }

    fn make_one(&mut self, index: Option<u32>) {
        let Situation { node_name, key, hash, observed: seen, clock, .. } = *self.situation;
        let (name, serial) = loop {
            let serial = self.memory.next_serial;
            self.memory.next_serial += 1;
            let name = task_name(node_name, key, index, hash, serial);
            let is_taken = seen.contains_key(name.as_str()) || self.pods.iter().any(|pod| pod.name == name);
            if !is_taken {
                break (name, serial);
            }
        };
        self.notices.normal(key, "SuccessfulCreate", format!("Created pod: {name}"));
        let task = Some(Task { job: key.name.to_string(), index, failures: self.failures_before(index), end: None });
        self.pods.push(WantedPod { name, hash: hash.to_owned(), serial, made: clock.now, task });
    }

    /// How often the index has failed so far, where failures are limited for each index.
    fn failures_before(&self, index: Option<u32>) -> Option<IndexFailures> {
        let index = index.filter(|_| self.situation.spec.backoff_limit_per_index.is_some())?;
        let failures = self.memory.index_failures.get(&index).copied().unwrap_or_default();
        let ignored = failures.count.saturating_sub(failures.counted);
        Some(IndexFailures { counted: failures.counted, ignored })
    }

    fn remove(&mut self, names: &BTreeSet<String>) {
        for name in names {
            self.notices.normal(self.situation.key, "SuccessfulDelete", format!("Deleted pod: {name}"));
        }
        self.pods.retain(|pod| !names.contains(&pod.name));
    }

    fn succeeded(&self) -> u32 {
        match self.situation.spec.indexed {
            true => self.memory.succeeded_indexes.count(),
            false => self.memory.succeeded,
        }
    }

    /// The pods that run, or should.
    fn active(&self) -> BTreeSet<String> {
        let is_active = |pod: &&WantedPod| {
            !pod.has_ended() && self.situation.observed.get(pod.name.as_str()).is_none_or(Seen::is_active)
        };
        self.pods.iter().filter(is_active).map(|pod| pod.name.clone()).collect()
    }

    /// The pods that are being ended.
    fn terminating(&self) -> BTreeSet<String> {
        let is_wanted = |name: &str| self.pods.iter().any(|pod| pod.name == name);
        let seen = self
            .situation
            .observed
            .iter()
            .filter(|(name, seen)| seen.succeeded.is_none() && (seen.terminating || !is_wanted(name)));
        seen.map(|(name, _)| (*name).to_owned()).collect()
    }

    /// Finishes once no pod is left that has not ended.
    fn finish(&mut self) {
        let Some(verdict) = self.memory.verdict.clone() else { return };
        if !self.active().is_empty() || !self.terminating().is_empty() {
            return;
        }
        let Situation { key, clock, .. } = *self.situation;
        self.memory.finished = Some(clock.now);
        self.memory.index_failures.clear();
        match verdict.complete {
            true => self.notices.normal(key, "Completed", "Job completed".to_owned()),
            false => self.notices.warning(key, verdict.reason, verdict.message),
        }
    }

    /// Removes the oldest pods that have ended.
    fn forget_ended(&mut self) {
        let mut excess = self.pods.iter().filter(|pod| pod.has_ended()).count().saturating_sub(MOST_ENDED);
        self.pods.retain(|pod| {
            let goes = pod.has_ended() && excess > 0;
            excess -= usize::from(goes);
            !goes
        });
    }

    /// When the pods of a Job that has finished are removed.
    fn expiry(&mut self) -> Option<Timestamp> {
        let Situation { spec, clock, .. } = *self.situation;
        let finished = clock.since(self.memory.finished?);
        if self.memory.finished.is_some_and(|noted| noted < clock.earliest) && clock.is_set() {
            self.memory.finished = Some(finished);
        }
        Some(Clock::after(finished, u64::from(spec.ttl_seconds_after_finished?)))
    }
}

fn usize_of(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
