//! OOM kills that a container survives: which of the kernel's counts belong to a container that keeps running. Part
//! of [`super`].
//!
//! A kill is reported before the exit that it may cause. So a count is known to have been survived only if the
//! container still runs a moment later. The kernel's report can come before the start of the container is recorded,
//! or be lost, so the count is also checked after each start.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use limpet_core::state::{Instance, Now, PodState};
use limpet_model::container::ContainerId;

use super::PodWorker;

/// A first process that lives this long after a kill in its container was not the victim.
const SURVIVAL_TIME: Duration = Duration::from_secs(2);

/// The counts of running containers that will be checked again.
#[derive(Debug, Default)]
pub(super) struct UnjudgedKills(BTreeMap<ContainerId, Look>);

#[derive(Debug)]
struct Look {
    due: Instant,
    kills: u64,
}

impl UnjudgedKills {
    /// Records that `kills` are counted in a container at `now`. A check that is already due stays.
    fn counted(&mut self, id: ContainerId, kills: u64, now: Instant) {
        self.0.entry(id).or_insert(Look { due: now + SURVIVAL_TIME, kills });
    }

    /// When the next check is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|look| look.due).min()
    }

    /// The containers that are due, each with its earlier count.
    fn take_due(&mut self, now: Instant) -> Vec<(ContainerId, u64)> {
        self.0.extract_if(.., |_, look| look.due <= now).map(|(id, look)| (id, look.kills)).collect()
    }
}

impl PodWorker {
    /// Reads a container's count after a possible kill, to check it again if the container runs.
    pub(super) fn count_kills(&mut self, id: ContainerId, now: Now) {
        let Some(pod) = &self.current else { return };
        if running(pod, &id).is_some() {
            let kills = self.context.executor.oom_kills(&pod.record, &id);
            self.unjudged_kills.counted(id, kills, now.mono);
        }
    }

    /// Reports the kills that were counted a moment ago in containers that still run.
    pub(super) fn judge_kills(&mut self, now: Now) {
        for (id, kills) in self.unjudged_kills.take_due(now.mono) {
            let Some(pod) = &mut self.current else { return };
            if running(pod, &id).is_none() {
                continue;
            }
            self.context.reporter.report_survived(pod, &id, kills);
            let instances = pod.containers.iter_mut().filter_map(|slot| slot.instance.as_mut());
            let survivors = instances.filter(|instance| instance.id == id && instance.oom_kills_survived < kills);
            survivors.for_each(|survivor| survivor.oom_kills_survived = kills);
            let counted = self.context.executor.oom_kills(&pod.record, &id);
            if counted > kills {
                self.unjudged_kills.counted(id, counted, now.mono);
            }
        }
    }
}

/// The instance, if it is running without a known exit.
fn running<'a>(pod: &'a PodState, id: &ContainerId) -> Option<&'a Instance> {
    let instances = pod.containers.iter().filter_map(|slot| slot.instance.as_ref());
    let mut running =
        instances.filter(|instance| instance.is_running() && !pod.exits_being_recorded.contains(&instance.id));
    running.find(|instance| instance.id == *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_looked_at_a_moment_later_and_later_kills_do_not_postpone_it() {
        let id = |name: &str| ContainerId::new(name);
        let (start, mut kills) = (Instant::now(), UnjudgedKills::default());
        kills.counted(id("web"), 0, start);
        kills.counted(id("web"), 1, start + SURVIVAL_TIME / 2);
        kills.counted(id("db"), 3, start + SURVIVAL_TIME / 2);
        assert_eq!(kills.next(), Some(start + SURVIVAL_TIME));
        assert_eq!(kills.take_due(start + SURVIVAL_TIME / 2), []);
        assert_eq!(kills.take_due(start + SURVIVAL_TIME), [(id("web"), 0)]);
        assert_eq!(kills.next(), Some(start + SURVIVAL_TIME / 2 + SURVIVAL_TIME));
        assert_eq!(kills.take_due(start + SURVIVAL_TIME * 2), [(id("db"), 3)]);
        assert_eq!(kills.next(), None);
    }
}
