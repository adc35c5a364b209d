//! What a Job's controller remembers besides its pods. A pod that has ended is counted here, on disk, before it is
//! removed.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use limpet_model::object::workload::job::Indexes;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;

/// The pause after a pod that failed; it doubles with each further one (`DefaultJobPodFailureBackOff`).
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// The longest pause (`MaxJobPodFailureBackOff`).
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(600);

/// What is remembered about one Job. It is stored in this JSON form, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobMemory {
    /// Since when it has been active.
    pub started: Option<Timestamp>,
    /// How many pods have succeeded. For an Indexed Job, the indexes count instead.
    pub succeeded: u32,
    /// How many pods have failed, as far as they count.
    pub failed: u32,
    /// The indexes that have succeeded.
    pub succeeded_indexes: Indexes,
    /// The indexes that have failed for good.
    pub failed_indexes: Indexes,
    /// The failures of each index that has neither succeeded nor failed.
    pub index_failures: BTreeMap<u32, Failures>,
    /// The failures since a pod last succeeded.
    pub failures: Failures,
    /// Whether it is suspended; `None` if it never was.
    pub suspended: Option<bool>,
    /// How it is going to finish, once its pods have ended.
    pub verdict: Option<Verdict>,
    /// When it has finished. From then on it makes no pods.
    pub finished: Option<Timestamp>,
    /// The number of its next pod.
    pub next_serial: u64,
}

/// Failures, the last of which delays the next pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Failures {
    pub count: u32,
    /// How many of them count by the policy for failed pods.
    pub counted: u32,
    /// When the last one happened.
    pub last: Option<Timestamp>,
}

impl Failures {
    /// Notes a failure.
    pub(crate) fn add(&mut self, is_counted: bool, at: Timestamp) {
        self.count = self.count.saturating_add(1);
        self.counted = self.counted.saturating_add(u32::from(is_counted));
        self.last = Some(at);
    }

    /// When the next pod may begin; `None` if at once.
    pub(crate) fn over_at(&self, clock: Clock) -> Option<Timestamp> {
        let last = self.last.filter(|_| self.count > 0)?;
        let pause = FIRST_PAUSE * (1 << (self.count - 1).min(6));
        // Setting the clock forward or back does not lengthen it.
        let at = last.min(clock.now).checked_add(pause.min(LONGEST_PAUSE)).ok()?;
        (at > clock.now).then_some(at)
    }
}

/// How a Job finishes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Whether it is complete; otherwise it has failed.
    pub complete: bool,
    /// The reason of the condition.
    pub reason: String,
    /// The message of the condition.
    pub message: String,
}

impl JobMemory {
    /// Whether it finishes, or has.
    pub(crate) fn is_decided(&self) -> bool {
        self.verdict.is_some()
    }

    /// Whether it has completed, if it has finished.
    pub fn outcome(&self) -> Option<bool> {
        self.finished?;
        self.verdict.as_ref().map(|verdict| verdict.complete)
    }
}
