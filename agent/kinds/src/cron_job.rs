//! A CronJob: Jobs that begin by a schedule, each with its own controller.
//!
//! It follows `syncCronJob` of `pkg/controller/cronjob`. The time of the last run is on disk before its Job begins,
//! so that no run happens twice. Without a clock that can be right, none begins.

mod missed;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use limpet_model::object::workload::cron_job::{self, Concurrency, CronJob};
use limpet_model::object::{ObjectKey, ObjectKind};

use crate::clock::{Clock, earlier};
use crate::job::{self, Seen};
use crate::memory::{CronMemory, JobMemory, MadeJob, Memory, WantedPod};
use crate::notice::Notices;
use crate::pace::Pace;
use crate::situation;
use missed::{Missed, last_due};

/// Of the pods of each of its Jobs.
type Situation<'a> = situation::Situation<'a, CronJob, BTreeMap<&'a str, BTreeMap<&'a str, Seen>>>;

/// Adjusts the Jobs to the situation. Returns when the next step is due, if nothing is observed before. `zone` is its time
/// zone, or `None` if the node does not have it.
pub(crate) fn step(
    memory: &mut Memory,
    pace: &mut Pace,
    situation: &Situation<'_>,
    zone: Option<&TimeZone>,
    notices: &mut Notices,
) -> Option<Timestamp> {
    let mut cron = memory.cron.take().unwrap_or_default();
    let mut step = CronStep { memory, cron: &mut cron, situation, notices };
    let mut at = step.run_jobs();
    let (next, begun) = step.schedule(pace, zone);
    if begun {
        at = earlier(at, step.run_jobs());
    }
    step.forget_old();
    memory.cron = Some(cron);
    memory.trim_revisions(0);
    earlier(at, next)
}

struct CronStep<'a> {
    memory: &'a mut Memory,
    cron: &'a mut CronMemory,
    situation: &'a Situation<'a>,
    notices: &'a mut Notices,
}

impl CronStep<'_> {
    /// Has each Job's controller decide. Returns when one of them is due.
    fn run_jobs(&mut self) -> Option<Timestamp> {
        let Situation { node_name, key, observed: seen, clock, .. } = *self.situation;
        let none = BTreeMap::new();
        let (mut at, mut expired) = (None, BTreeSet::new());
        for made in &mut self.cron.jobs {
            let template = self.memory.revision(&made.hash).map(|revision| revision.template());
            let Some(spec) = template.and_then(|template| cron_job::job(&made.spec, &template)) else { continue };
            let of_job = ObjectKey::new(ObjectKind::Job, key.namespace.clone(), made.name.as_str());
            let seen = seen.get(made.name.as_str()).unwrap_or(&none);
            let hash = made.hash.as_str();
            let situation = situation::Situation { node_name, key: &of_job, spec: &spec, hash, observed: seen, clock };
            let (mut pods, others) = take_pods(&mut self.memory.pods, &made.name);
            let next = job::step(&mut made.state, &mut pods, &situation, self.notices);
            self.memory.pods = others;
            self.memory.pods.append(&mut pods);
            at = earlier(at, next.at);
            if let Some(complete) = made.state.outcome().filter(|_| !made.is_reported) {
                made.is_reported = true;
                let condition = if complete { "Complete" } else { "Failed" };
                let message = format!("Saw completed job: {}, condition: {condition}", made.name);
                self.notices.normal(key, "SawCompletedJob", message);
            }
            if next.is_expired {
                expired.insert(made.name.clone());
            }
        }
        self.cron.jobs.retain(|made| !expired.contains(&made.name));
        at
    }

    /// Begins a Job if one is due. Returns when the next one is due, and whether one has begun.
    fn schedule(&mut self, pace: &mut Pace, zone: Option<&TimeZone>) -> (Option<Timestamp>, bool) {
        let Situation { key, spec, clock, .. } = *self.situation;
        if !clock.is_set() {
            // It is woken as soon as the clock is set.
            return (Some(clock.earliest), false);
        }
        let created = *self.cron.created.get_or_insert(clock.now);
        let Some(zone) = zone else {
            let zone = spec.time_zone.as_deref().unwrap_or_default();
            let message = format!("invalid timeZone: {zone:?}: the node has no such zone in /usr/share/zoneinfo");
            if pace.is_news(&message) {
                self.notices.warning(key, "UnknownTimeZone", message);
            }
            return (None, false);
        };
        if spec.suspend {
            return (None, false);
        }
        let since = self.cron.last_schedule.unwrap_or(created);
        if since > clock.now {
            // A clock that shows an earlier time than before is not right.
            return (spec.schedule.next(since, zone), false);
        }
        let deadline = spec.starting_deadline_seconds;
        let earliest = deadline.map_or(since, |seconds| since.max(before(clock.now, seconds)));
        let (due, missed) = last_due(&spec.schedule, earliest, clock.now, zone);
        let next = spec.schedule.next(due.unwrap_or(if missed == Missed::None { since } else { clock.now }), zone);
        let next = next.filter(|next| *next > clock.now).or_else(|| spec.schedule.next(clock.now, zone));
        let Some(due) = due else { return (next, false) };
        if missed == Missed::Many {
            let message =
                "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            if pace.is_news(message) {
                self.notices.warning(key, "TooManyMissedTimes", message.to_owned());
            }
        }
        if deadline.is_some_and(|seconds| Clock::after(due, seconds) < clock.now) {
            let message = format!("Missed scheduled time to start a job: {due}");
            if pace.is_news(&message) {
                self.notices.warning(key, "MissSchedule", message);
            }
            return (next, false);
        }
        (next, self.begin(due, pace))
    }

    /// Begins the Job of that time, unless it has already begun, or another one is active and forbids that.
    fn begin(&mut self, due: Timestamp, pace: &mut Pace) -> bool {
        let Situation { key, spec, hash, .. } = *self.situation;
        let name = job_name(&key.name, due);
        if self.cron.last_schedule == Some(due) || self.cron.jobs.iter().any(|made| made.name == name) {
            return false;
        }
        let is_active = |made: &&MadeJob| made.state.finished.is_none();
        let active: Vec<String> = self.cron.jobs.iter().filter(is_active).map(|made| made.name.clone()).collect();
        match spec.concurrency {
            Concurrency::Forbid if !active.is_empty() => {
                if pace.is_news(&format!("active at {due}")) {
                    let message =
                        "Not starting job because prior execution is running and concurrency policy is Forbid";
                    self.notices.normal(key, "JobAlreadyActive", message.to_owned());
                }
                return false;
            }
            Concurrency::Replace => active.iter().for_each(|name| self.remove(name)),
            Concurrency::Forbid | Concurrency::Allow => {}
        }
        self.notices.normal(key, "SuccessfulCreate", format!("Created job {name}"));
        self.cron.last_schedule = Some(due);
        self.cron.jobs.push(MadeJob {
            name,
            scheduled: due,
            spec: spec.job.clone(),
            hash: hash.to_owned(),
            state: JobMemory::default(),
            is_reported: false,
        });
        true
    }

    fn remove(&mut self, name: &str) {
        self.notices.normal(self.situation.key, "SuccessfulDelete", format!("Deleted job {name}"));
        self.memory.pods = take_pods(&mut self.memory.pods, name).1;
        self.cron.jobs.retain(|made| made.name != name);
    }

    /// Forgets the oldest Jobs that have finished, beyond the limits.
    fn forget_old(&mut self) {
        let spec = self.situation.spec;
        for (complete, limit) in [(true, spec.successful_limit), (false, spec.failed_limit)] {
            let mut finished: Vec<(Option<Timestamp>, String)> = self
                .cron
                .jobs
                .iter()
                .filter(|made| made.state.outcome() == Some(complete))
                .map(|made| (made.state.started, made.name.clone()))
                .collect();
            finished.sort();
            let excess = finished.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
            finished.into_iter().take(excess).for_each(|(_, name)| self.remove(&name));
        }
    }
}

/// The pods of the Job of that name, and the others.
fn take_pods(pods: &mut Vec<WantedPod>, job: &str) -> (Vec<WantedPod>, Vec<WantedPod>) {
    std::mem::take(pods).into_iter().partition(|pod| pod.task.as_ref().is_some_and(|task| task.job == job))
}

/// The name of the Job that was due at that time. It is the same for the same time.
fn job_name(cron_job: &str, due: Timestamp) -> String {
    format!("{cron_job}-{}", due.as_second().div_euclid(60))
}

/// When the Job of that name was due.
pub(crate) fn scheduled(cron_job: &str, job: &str) -> Option<Timestamp> {
    let minutes: i64 = job.strip_prefix(cron_job)?.strip_prefix('-')?.parse().ok()?;
    Timestamp::from_second(minutes.checked_mul(60)?).ok()
}

fn before(time: Timestamp, seconds: u64) -> Timestamp {
    let pause = jiff::SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    time.checked_sub(pause).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
