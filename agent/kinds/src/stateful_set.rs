//! A StatefulSet: pods with ordinals, each of which is ready before the next one begins.
//!
//! Follows `stateful_set_control.go` of `pkg/controller/statefulset`. A pod that is replaced keeps its name and gets another
//! UID; whoever runs the pods ends the one before its successor begins, so that no ordinal is there twice.

use std::collections::BTreeMap;

use jiff::Timestamp;
use limpet_model::object::workload::stateful_set::{Rolling, StatefulSet};

use crate::clock::earlier;
use crate::facts::{Facts, Phase};
use crate::memory::{Memory, WantedPod};
use crate::notice::Notices;
use crate::pace::Pace;
use crate::pods::{ordinal, set_pod_name};
use crate::situation;

/// What is known of the pod of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Member {
    /// What is observed of it.
    pub(crate) facts: Facts,
    /// It is the one that is wanted, and none that ends before it.
    pub(crate) is_wanted: bool,
    /// It is being ended.
    pub(crate) terminating: bool,
}

type Situation<'a> = situation::Situation<'a, StatefulSet, BTreeMap<&'a str, Member>>;

/// Brings `memory` in line with the situation, as far as it is time to. Returns when the next step is due.
pub(crate) fn step(
    memory: &mut Memory,
    pace: &mut Pace,
    situation: &Situation<'_>,
    notices: &mut Notices,
) -> Option<Timestamp> {
    memory.set.get_or_insert_with(|| situation.hash.to_owned());
    let mut step = SetStep { memory, situation, notices, at: None };
    if step.replicas(pace) && step.condemned() {
        step.update();
    }
    step.complete();
    step.claims();
    let available = step.memory.pods.iter().filter(|pod| step.is_available(pod)).count();
    let at = earlier(step.at, step.next_available());
    pace.retain(|name| memory.pods.iter().any(|pod| pod.name == name), available > 0);
    memory.trim_revisions(situation.spec.history_limit);
    at
}

struct SetStep<'a> {
    memory: &'a mut Memory,
    situation: &'a Situation<'a>,
    notices: &'a mut Notices,
    at: Option<Timestamp>,
}

impl SetStep<'_> {
    /// Makes the pods that are missing, and those anew that have ended. False: the ordinals after one have to wait for it.
    fn replicas(&mut self, pace: &mut Pace) -> bool {
        let Situation { key, spec, .. } = *self.situation;
        let mut goes_on = true;
        for ordinal in spec.start..spec.start.saturating_add(spec.replicas) {
            let name = set_pod_name(key, ordinal);
            let is_settled = match self.memory.pods.iter().position(|pod| pod.name == name) {
                Some(at) => self.renew(at, pace) && self.is_available(&self.memory.pods[at]),
                // Another one of that name has not gone yet.
                None if self.situation.observed.contains_key(name.as_str()) => false,
                None => {
                    self.make(ordinal, name);
                    false
                }
            };
            goes_on &= is_settled;
            if !is_settled && !spec.parallel {
                self.replace_broken(&set_pod_name(key, ordinal), ordinal);
                return false;
            }
        }
        goes_on || spec.parallel
    }

    /// Gives the first pod that does not serve the new template, unless another one has it and does not serve yet.
    /// Kubernetes' controller waits for the pod for ever, until somebody deletes it; here a later edit, or the end of a trial,
    /// is to repair what an edit has broken.
    fn replace_broken(&mut self, name: &str, ordinal: u32) {
        let Situation { spec, hash, .. } = *self.situation;
        let Some(Rolling { partition, .. }) = spec.rolling else { return };
        let Some(at) = self.memory.pods.iter().position(|pod| pod.name == name) else { return };
        // After a start of the agent a pod is not observed yet that may well serve.
        let Some(Member { facts, .. }) = self.member(name) else { return };
        let serves_not = facts.ready_since.is_none() && facts.phase != Phase::Ended;
        let is_outdated = ordinal - spec.start >= partition && self.memory.pods[at].hash != hash;
        let is_settled = self.memory.pods.iter().all(|pod| pod.hash != hash || self.is_available(pod));
        if serves_not && is_outdated && is_settled {
            self.replace(at);
        }
    }

    /// Makes a pod anew that has ended, after a pause. False: it has ended.
    fn renew(&mut self, at: usize, pace: &mut Pace) -> bool {
        let pod = &self.memory.pods[at];
        let has_ended =
            self.member(&pod.name).is_some_and(|member| member.is_wanted && member.facts.phase == Phase::Ended);
        if !has_ended {
            return true;
        }
        let (name, now) = (pod.name.clone(), self.situation.clock.now);
        let due = pace.replace_at(&name, now);
        if due > now {
            self.at = earlier(self.at, Some(due));
            return false;
        }
        pace.replaced(&name);
        let message = format!("StatefulSet {} is recreating failed Pod {name}", self.situation.key);
        self.notices.warning(self.situation.key, "RecreatingFailedPod", message);
        let pod = &mut self.memory.pods[at];
        (pod.serial, pod.made) = (pod.serial + 1, now);
        false
    }

    fn make(&mut self, ordinal: u32, name: String) {
        let Situation { key, spec, hash, clock, .. } = *self.situation;
        // Those below the partition have the template that was complete last.
        let keeps = spec.rolling.is_some_and(|rolling| ordinal - spec.start < rolling.partition);
        let current = self.memory.set.clone().filter(|current| keeps && self.memory.revision(current).is_some());
        let hash = current.unwrap_or_else(|| hash.to_owned());
        let message = format!("create Pod {name} in StatefulSet {} successful", key.name);
        self.notices.normal(key, "SuccessfulCreate", message);
        self.memory.pods.push(WantedPod { name, hash, serial: 0, made: clock.now, task: None });
    }

    /// Ends pods beyond the replicas, the highest ordinal first. False: one of them has to go first.
    fn condemned(&mut self) -> bool {
        let Situation { key, spec, observed: members, .. } = *self.situation;
        let wanted = spec.start..spec.start.saturating_add(spec.replicas);
        let is_over = |name: &str| ordinal(key, name).is_some_and(|ordinal| !wanted.contains(&ordinal));
        let mut condemned: Vec<(u32, String)> = self
            .memory
            .pods
            .iter()
            .filter(|pod| is_over(&pod.name))
            .filter_map(|pod| Some((ordinal(key, &pod.name)?, pod.name.clone())))
            .collect();
        condemned.sort_unstable();
        if spec.parallel {
            condemned.into_iter().for_each(|(_, name)| self.end(&name));
            return true;
        }
        let ends = |name: &&str| is_over(name) && !self.memory.pods.iter().any(|pod| pod.name == **name);
        if members.keys().any(ends) {
            return false;
        }
        let unavailable = condemned.iter().find(|(_, name)| !self.is_available_by_name(name)).cloned();
        let Some((_, last)) = condemned.pop() else { return true };
        // All others serve before one goes, but for the first that does not serve itself.
        if unavailable.is_none_or(|(_, name)| name == last) {
            self.end(&last);
        }
        false
    }

    fn end(&mut self, name: &str) {
        let key = self.situation.key;
        let message = format!("delete Pod {name} in StatefulSet {} successful", key.name);
        self.notices.normal(key, "SuccessfulDelete", message);
        self.memory.pods.retain(|pod| pod.name != name);
    }

    /// Gives pods the new template, the highest ordinal first.
    fn update(&mut self) {
        let Situation { key, spec, hash, .. } = *self.situation;
        let Some(Rolling { partition, unavailable: most }) = spec.rolling else { return };
        let mut pods: Vec<(u32, usize)> = (0..self.memory.pods.len())
            .filter_map(|at| Some((ordinal(key, &self.memory.pods[at].name)?, at)))
            .filter(|(ordinal, _)| *ordinal >= spec.start && *ordinal - spec.start < spec.replicas)
            .collect();
        pods.sort_unstable_by_key(|pod| std::cmp::Reverse(*pod));
        let is_down = |step: &Self, at: usize| !step.is_available(&step.memory.pods[at]);
        let down = pods.iter().filter(|(_, at)| is_down(self, *at)).count();
        let missing = usize::try_from(spec.replicas).unwrap_or(usize::MAX).saturating_sub(pods.len());
        let mut budget = usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(down + missing);
        let old: Vec<usize> = pods
            .iter()
            .filter(|(ordinal, at)| *ordinal - spec.start >= partition && self.memory.pods[*at].hash != hash)
            .map(|(_, at)| *at)
            .collect();
        // In parallel those that serve nobody are free.
        let (free, others): (Vec<usize>, Vec<usize>) =
            old.into_iter().partition(|at| spec.parallel && is_down(self, *at));
        free.into_iter().for_each(|at| self.replace(at));
        for at in others {
            if budget == 0 {
                return;
            }
            budget -= 1;
            self.replace(at);
        }
    }

    fn replace(&mut self, at: usize) {
        let Situation { hash, clock, .. } = *self.situation;
        let pod = &mut self.memory.pods[at];
        pod.serial = if pod.hash == hash { pod.serial + 1 } else { 0 };
        (pod.hash, pod.made) = (hash.to_owned(), clock.now);
    }

    /// Notes that all pods have the new template, and are ready.
    fn complete(&mut self) {
        let Situation { spec, hash, .. } = *self.situation;
        let is_done = |pod: &WantedPod| pod.hash == hash && self.is_available(pod);
        let all = usize::try_from(spec.replicas).unwrap_or(usize::MAX);
        if self.memory.pods.len() == all && self.memory.pods.iter().all(is_done) {
            self.memory.set = Some(hash.to_owned());
        }
    }

    /// Notes which ordinals have claims: from the moment that their pod is wanted, until it has gone if they go with it.
    fn claims(&mut self) {
        let Situation { key, spec, observed, .. } = *self.situation;
        if spec.claims.is_empty() {
            return;
        }
        let wanted: Vec<u32> = self.memory.pods.iter().filter_map(|pod| ordinal(key, &pod.name)).collect();
        self.memory.claims.extend(&wanted);
        let has_pod = |at: &u32| wanted.contains(at) || observed.contains_key(set_pod_name(key, *at).as_str());
        self.memory.claims.retain(|at| !spec.claims_end_with_replica || spec.is_replica(*at) || has_pod(at));
    }

    fn member(&self, name: &str) -> Option<Member> {
        self.situation.observed.get(name).copied()
    }

    fn is_available(&self, pod: &WantedPod) -> bool {
        self.is_available_by_name(&pod.name)
    }

    fn is_available_by_name(&self, name: &str) -> bool {
        let Situation { spec, clock, .. } = *self.situation;
        self.member(name).is_some_and(|member| {
            member.is_wanted && !member.terminating && member.facts.is_available(spec.min_ready_seconds, clock.now)
        })
    }

    /// When the next pod becomes available by the passing of time.
    fn next_available(&self) -> Option<Timestamp> {
        let Situation { spec, clock, .. } = *self.situation;
        let members = self.situation.observed.values().filter(|member| member.is_wanted && spec.min_ready_seconds > 0);
        members
            .filter_map(|member| member.facts.available_at(spec.min_ready_seconds))
            .filter(|at| *at > clock.now)
            .min()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
