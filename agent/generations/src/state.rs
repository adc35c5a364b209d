//! What is remembered of one source's generations. It is on disk before it takes effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::content::Content;

/// How a generation turned out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is", content = "why")]
pub enum Outcome {
    /// It runs, and is not known to be good yet.
    OnTrial,
    /// It has passed its trial, so that a later one may return to it.
    Good,
    /// It was undone for this reason, and is not tried again.
    Refused(String),
}

/// What a source had at a moment, and how that turned out.
#[derive(Debug, Clone)]
pub struct Generation {
    /// Grows by one with each.
    pub number: u64,
    pub content: Content,
    /// When it was made, by the node's clock.
    pub made: Timestamp,
    pub outcome: Outcome,
    /// When that was known, by the node's clock.
    pub decided: Option<Timestamp>,
}

/// The trial of the generation that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    /// The generation to return to; `None`: there is none that was good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u64>,
    /// The boot in which its time counts.
    pub boot: String,
    /// Since when it counts, after the start of the kernel, in milliseconds.
    pub began_ms: u64,
    /// How often the node was started during the trial.
    #[serde(default)]
    pub boots: u32,
    /// What had not worked before, and is not changed by this generation: it is not judged.
    #[serde(default)]
    pub exempt: BTreeSet<String>,
    /// How often the containers of a pod had been restarted before: by the pod, its UID and the number.
    #[serde(default)]
    pub restarts: BTreeMap<String, (String, u32)>,
}

impl Trial {
    /// Since when its time counts.
    pub(crate) fn began(&self) -> Duration {
        Duration::from_millis(self.began_ms)
    }

    pub(crate) fn set_began(&mut self, uptime: Duration) {
        self.began_ms = u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX);
    }
}

/// What is remembered of one source.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The generations that are kept, the oldest first.
    pub generations: Vec<Arc<Generation>>,
    /// The number of the one in effect; `None`: there is none yet.
    pub running: Option<u64>,
    /// The trial of the generation in effect; `None`: it is over.
    pub trial: Option<Trial>,
    /// Pods that may have read what was undone, and whose containers were not restarted yet: by the pod, its UID and the
    /// number of its restarts.
    pub restarts: BTreeMap<String, (String, u32)>,
    /// The highest number that was given.
    pub last_number: u64,
}

impl State {
    /// The generation of that number.
    pub fn generation(&self, number: u64) -> Option<&Arc<Generation>> {
        self.generations.iter().find(|generation| generation.number == number)
    }

    pub fn running(&self) -> Option<&Arc<Generation>> {
        self.generation(self.running?)
    }

    /// The newest good generation before that number.
    pub fn good_before(&self, number: u64) -> Option<&Arc<Generation>> {
        self.generations
            .iter()
            .rev()
            .find(|generation| generation.number < number && generation.outcome == Outcome::Good)
    }

    /// The refused generation with that content.
    pub fn refused(&self, content: &Content) -> Option<&Arc<Generation>> {
        let is_refused = |generation: &&Arc<Generation>| matches!(generation.outcome, Outcome::Refused(_));
        self.generations.iter().rev().filter(is_refused).find(|generation| generation.content.same(content))
    }

    /// Adds a generation, and returns its number.
    pub(crate) fn add(&mut self, content: Content, outcome: Outcome, now: Timestamp) -> u64 {
        self.last_number += 1;
        let (number, decided) = (self.last_number, (outcome != Outcome::OnTrial).then_some(now));
        self.generations.push(Arc::new(Generation { number, content, made: now, outcome, decided }));
        number
    }

    /// Notes how a generation turned out.
    pub(crate) fn decide(&mut self, number: u64, outcome: Outcome, now: Timestamp) {
        for generation in self.generations.iter_mut().filter(|generation| generation.number == number) {
            let decided = Some(now);
            *generation = Arc::new(Generation { outcome: outcome.clone(), decided, ..Generation::clone(generation) });
        }
    }

    /// Forgets what nobody returns to: good and refused generations beyond `limit` of each, and those that were on trial
    /// when another one took their place. The one in effect and the one it returns to stay, and a refused one with the
    /// content that the source has: forgotten, it would be tried again.
    pub(crate) fn trim(&mut self, limit: usize, content: &Content) {
        let base = self.trial.as_ref().and_then(|trial| trial.base);
        let (mut good, mut refused) = (0, 0);
        let mut kept = Vec::with_capacity(self.generations.len());
        for generation in self.generations.iter().rev() {
            let is_needed = Some(generation.number) == self.running || Some(generation.number) == base;
            let is_kept = match generation.outcome {
                Outcome::OnTrial => is_needed,
                Outcome::Good => {
                    good += 1;
                    is_needed || good <= limit.max(1)
                }
                Outcome::Refused(_) => {
                    refused += 1;
                    is_needed || refused <= limit.max(1) || generation.content.same(content)
                }
            };
            if is_kept {
                kept.push(Arc::clone(generation));
            }
        }
        kept.reverse();
        self.generations = kept;
    }
}
