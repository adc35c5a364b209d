//! OOM kills that a container survives: which of the kernel's counts belong to a container that keeps running. Part of
//! [`super`].
//!
//! A kill is reported before the exit that it may cause. So a count is only known to have been survived when the
//! container still runs a moment later. The kernel's report of a kill can come before the start of the container is
//! recorded, or be lost: the count is checked after each start as well.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use limpet_core::state::{Instance, Now, PodState};
use limpet_model::container::ContainerId;

use super::PodWorker;

/// A first process that lives so long after the kernel killed something in its container was not the victim.
const SURVIVAL_TIME: Duration = Duration::from_secs(2);

/// The counts of running containers that are to be checked once more.
#[derive(Debug, Default)]
pub(super) struct UnjudgedKills(BTreeMap<ContainerId, Look>);

#[derive(Debug)]
struct Look {
    due: Instant,
    kills: u64,
}

impl UnjudgedKills {
    /// Takes in that `kills` are counted in a container at `now`. A look that is due already stays.
    fn counted(&mut self, id: ContainerId, kills: u64, now: Instant) {
        self.0.entry(id).or_insert(Look { due: now + SURVIVAL_TIME, kills });
    }

    /// When the next look is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|look| look.due).min()
    }

    /// The containers that are to be checked by now, each with the count of a moment ago.
    fn take_due(&mut self, now: Instant) -> Vec<(ContainerId, u64)> {
        self.0.extract_if(.., |_, look| look.due <= now).map(|(id, look)| (id, look.kills)).collect()
    }
}

impl PodWorker {
    /// The kernel may have killed something in a container, which is checked if it runs.
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

/// The instance, if it runs and no exit of it is known.
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
