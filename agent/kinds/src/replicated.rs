//! A number of equal pods, and how those of a new template replace the others: Deployment, ReplicaSet, DaemonSet.
//!
//! It follows `pkg/controller/deployment` (`rolling.go`, `recreate.go`, `sync.go`), with the revisions of one
//! workload in place of ReplicaSets: the size of a revision is the number of its wanted pods. A pod that ended for
//! good is replaced after a pause.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use limpet_model::object::workload::{Replicated, Update};

use crate::clock::earlier;
use crate::facts::{Facts, Phase};
use crate::memory::{Memory, WantedPod};
use crate::pace::Pace;
use crate::pods::replica_name;
use crate::situation;
use crate::victims::choose;

type Situation<'a> = situation::Situation<'a, Replicated, BTreeMap<&'a str, Facts>>;

/// What follows from a step, apart from the pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Next {
    /// When the next step is due, if nothing is observed before.
    pub(crate) at: Option<Timestamp>,
    /// The update has just missed its deadline.
    pub(crate) overdue: bool,
}

/// Brings `memory` in line with the situation, as far as it is time to.
pub(crate) fn step(memory: &mut Memory, pace: &mut Pace, situation: &Situation<'_>) -> Next {
    let mut step = ReplicaStep { memory, situation };
    let mut at = step.replace_ended(pace);
    // Each turn makes or removes pods, and none does both for one revision.
    let turns = step.memory.pods.len() + usize_of(situation.spec.replicas) + 2;
    for _ in 0..2 * turns {
        if !step.turn() {
            break;
        }
    }
    let (spec, now) = (situation.spec, situation.clock.now);
    let available = step.count(|_, facts| facts.is_available(spec.min_ready_seconds, now));
    let (updated, all) = (step.size(situation.hash), step.memory.pods.len());
    let names: BTreeSet<&str> = step.memory.pods.iter().map(|pod| pod.name.as_str()).collect();
    pace.retain(|name| names.contains(name), available > 0);
    let is_complete = spec.paused || (updated == all && available == all && all == usize_of(spec.replicas));
    let (deadline, overdue) =
        pace.progress((updated, available, all - updated), is_complete, spec.progress_deadline_seconds, now);
    at = earlier(at, deadline);
    at = earlier(at, step.next_available());
    memory.trim_revisions(spec.history_limit);
    Next { at, overdue }
}

struct ReplicaStep<'a> {
    memory: &'a mut Memory,
    situation: &'a Situation<'a>,
}

impl ReplicaStep<'_> {
    /// One change of the sizes. False: there is nothing to change now.
    fn turn(&mut self) -> bool {
        let Situation { spec, hash, .. } = *self.situation;
        let replicas = usize_of(spec.replicas);
        let (size, all) = (self.size(hash), self.memory.pods.len());
        let surge = match spec.update {
            Update::Rolling { surge, .. } => usize_of(surge),
            Update::Recreate | Update::Manual => 0,
        };
        let scale = (spec.replicas, u32::try_from(replicas + surge).unwrap_or(u32::MAX));
        if self.memory.scaled_for != scale {
            let before = std::mem::replace(&mut self.memory.scaled_for, scale);
            if before != (0, 0) && before.0 != spec.replicas && !matches!(spec.update, Update::Manual) {
                return self.scale(before.1) || self.turn();
            }
        }
        if spec.paused {
            return false;
        }
        match spec.update {
            Update::Manual if all < replicas => self.grow(hash, replicas - all),
            Update::Manual if all > replicas => self.shrink(|_| true, all - replicas),
            Update::Manual => false,
            _ if size > replicas => self.shrink(|pod| pod.hash == hash, size - replicas),
            Update::Recreate if all > size => self.shrink(|pod| pod.hash != hash, all - size),
            Update::Recreate if self.others_remain() => false,
            Update::Recreate => self.grow(hash, replicas - size),
            Update::Rolling { surge, unavailable } => self.roll(usize_of(surge), usize_of(unavailable)),
        }
    }

    /// One step of a rolling update: first new pods, then old ones.
    fn roll(&mut self, surge: usize, unavailable: usize) -> bool {
        let Situation { spec, hash, clock, .. } = *self.situation;
        let (replicas, all, size) = (usize_of(spec.replicas), self.memory.pods.len(), self.size(hash));
        let room = (replicas + surge).saturating_sub(all).min(replicas - size);
        if room > 0 {
            return self.grow(hash, room);
        }
        if all == size {
            return false;
        }
        let is_available = |facts: &Facts| facts.is_available(spec.min_ready_seconds, clock.now);
        let least = replicas.saturating_sub(unavailable);
        let new_available = self.count(|pod, facts| pod.hash == hash && is_available(facts));
        let spare = all.saturating_sub(least + (size - new_available));
        if spare == 0 {
            return false;
        }
        // Old pods that serve nobody go first.
        let idle = self.names(|pod, facts| pod.hash != hash && !is_available(facts));
        if !idle.is_empty() {
            return self.shrink(|pod| idle.contains(&pod.name), spare.min(idle.len()));
        }
        let spare = self.count(|_, facts| is_available(facts)).saturating_sub(least).min(all - size);
        let Some(oldest) = self.oldest_but(hash) else { return false };
        let spare = spare.min(self.size(&oldest));
        self.shrink(|pod| pod.hash == oldest, spare)
    }

    /// Shares a new number of replicas among the revisions in the proportion that they have (`scale` in `sync.go`).
    fn scale(&mut self, most_before: u32) -> bool {
        let Situation { spec, hash, .. } = *self.situation;
        let sizes = self.sizes();
        let revisions: Vec<(&str, usize)> = sizes.iter().map(|(hash, size)| (hash.as_str(), *size)).collect();
        if let [(only, size)] = revisions[..] {
            // The one that has pods, unless a new one takes over.
            if !spec.paused && only != hash {
                return false;
            }
            return self.resize(only, size, usize_of(spec.replicas));
        }
        let most = if spec.replicas == 0 { 0 } else { usize_of(self.memory.scaled_for.1) };
        let all = self.memory.pods.len();
        let grows = most > all;
        let mut open = most.abs_diff(all);
        // The largest first; of equal ones the newest if there are more to come, else the oldest.
        let mut ordered: Vec<(&str, usize, u64)> = revisions
            .iter()
            .map(|(hash, size)| (*hash, *size, self.memory.revision(hash).map_or(0, |revision| revision.number)))
            .collect();
        ordered.sort_by_key(|(_, size, number)| {
            (std::cmp::Reverse(*size), if grows { u64::MAX - *number } else { *number })
        });
        let mut targets: Vec<(String, usize, usize)> = Vec::new();
        for (hash, size, _) in &ordered {
            let share = (*size * most + usize_of(most_before) / 2).checked_div(usize_of(most_before)).unwrap_or(0);
            let change = share.abs_diff(*size).min(open) * usize::from((share > *size) == grows);
            open -= change;
            targets.push(((*hash).to_owned(), *size, if grows { size + change } else { size - change }));
        }
        // What rounding leaves concerns the largest, and the next one if that has too few pods: Kubernetes keeps those of a
        // paused Deployment, more than its surge allows.
        for (_, _, target) in &mut targets {
            let change = if grows { open } else { open.min(*target) };
            *target = if grows { *target + change } else { *target - change };
            open -= change;
        }
        targets.into_iter().fold(false, |changed, (hash, size, target)| self.resize(&hash, size, target) || changed)
    }

    fn resize(&mut self, hash: &str, size: usize, target: usize) -> bool {
        match target > size {
            true => self.grow(hash, target - size),
            false => self.shrink(|pod| pod.hash == hash, size - target),
        }
    }

    /// Replaces pods that have ended for good and whose pause is over. Returns when the next one is due.
    fn replace_ended(&mut self, pace: &mut Pace) -> Option<Timestamp> {
        let ended = self.names(|_, facts| facts.phase == Phase::Ended);
        let mut next = None;
        for name in ended {
            let at = pace.replace_at(&name, self.situation.clock.now);
            if at > self.situation.clock.now {
                next = earlier(next, Some(at));
                continue;
            }
            pace.replaced(&name);
            let Some(index) = self.memory.pods.iter().position(|pod| pod.name == name) else { continue };
            let pod = self.memory.pods.remove(index);
            // What is not wanted any more needs no successor.
            if pod.hash == self.situation.hash || self.situation.spec.paused {
                self.grow_except(&pod.hash, 1, Some(&name));
            }
        }
        next
    }

    fn grow(&mut self, hash: &str, count: usize) -> bool {
        self.grow_except(hash, count, None)
    }

    /// Adds pods of that revision, with the lowest numbers whose names are free: so names repeat where memory was lost.
    fn grow_except(&mut self, hash: &str, count: usize, except: Option<&str>) -> bool {
        let Situation { node_name, key, observed: facts, clock, .. } = *self.situation;
        let mut taken: BTreeSet<String> = self.memory.pods.iter().map(|pod| pod.name.clone()).collect();
        taken.extend(except.map(str::to_owned));
        let mut serial = 0;
        for _ in 0..count {
            let name = loop {
                let name = replica_name(node_name, key, hash, serial);
                if !taken.contains(&name) && !facts.contains_key(name.as_str()) {
                    break name;
                }
                serial += 1;
            };
            taken.insert(name.clone());
            self.memory.pods.push(WantedPod { name, hash: hash.to_owned(), serial, made: clock.now, task: None });
        }
        count > 0
    }

    fn shrink(&mut self, is_candidate: impl Fn(&WantedPod) -> bool, count: usize) -> bool {
        let victims = choose(self.memory.pods.iter().filter(|pod| is_candidate(pod)), self.situation.observed, count);
        self.memory.pods.retain(|pod| !victims.contains(&pod.name));
        !victims.is_empty()
    }

    /// Whether pods of other revisions have not gone yet.
    fn others_remain(&self) -> bool {
        let is_wanted = |name: &str| self.memory.pods.iter().any(|pod| pod.name == name);
        self.situation.observed.iter().any(|(name, facts)| !is_wanted(name) && facts.phase != Phase::Ended)
    }

    /// When the next pod becomes available by the passing of time.
    fn next_available(&self) -> Option<Timestamp> {
        let Situation { spec, clock, .. } = *self.situation;
        let times = self.memory.pods.iter().filter_map(|pod| self.facts(pod).available_at(spec.min_ready_seconds));
        times.filter(|at| *at > clock.now && spec.min_ready_seconds > 0).min()
    }

    fn facts(&self, pod: &WantedPod) -> Facts {
        self.situation.observed.get(pod.name.as_str()).copied().unwrap_or_default()
    }

    fn count(&self, is_counted: impl Fn(&WantedPod, &Facts) -> bool) -> usize {
        self.memory.pods.iter().filter(|pod| is_counted(pod, &self.facts(pod))).count()
    }

    fn names(&self, is_named: impl Fn(&WantedPod, &Facts) -> bool) -> Vec<String> {
        let pods = self.memory.pods.iter().filter(|pod| is_named(pod, &self.facts(pod)));
        pods.map(|pod| pod.name.clone()).collect()
    }

    fn size(&self, hash: &str) -> usize {
        self.memory.pods.iter().filter(|pod| pod.hash == hash).count()
    }

    fn sizes(&self) -> BTreeMap<String, usize> {
        let mut sizes = BTreeMap::new();
        self.memory.pods.iter().for_each(|pod| *sizes.entry(pod.hash.clone()).or_default() += 1);
        sizes
    }

    /// The oldest revision with pods that is not the one of that hash.
    fn oldest_but(&self, hash: &str) -> Option<String> {
        let others = self.memory.revisions.iter().filter(|revision| revision.hash != hash);
        others.map(|revision| &revision.hash).find(|other| self.size(other) > 0).cloned()
    }
}

fn usize_of(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
