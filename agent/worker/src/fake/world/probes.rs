//! The probes of the simulated node: their results, and what the agent may and must do about them.

use std::time::Duration;

use limpet_core::plan::KillCause;
use limpet_core::state::{ContainerSlot, PodState};
use limpet_model::container::ContainerId;
use limpet_model::probe::{ProbeKind, ProbeRecord};
use tokio::time::Instant;

use super::{World, is_running, short};

/// How late the stop of a container with a failed probe may begin.
const MAX_STOP_DELAY: Duration = Duration::from_secs(1);

/// The state of a container's probes.
#[derive(Debug, Default)]
pub(super) struct Probed {
    kinds: [Tally; 3],
    /// When the agent must have begun to stop it, unless something goes away before.
    must_stop: Option<(Instant, u32)>,
    /// Whether it was stopped for a probe.
    pub(super) ended: bool,
}

/// The runs of one probe.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    /// In this run of the agent: how many, since when, and the length of the last series of equal results.
    life: u32,
    runs: u32,
    since: Option<Instant>,
    in_life: u32,
    /// The last result in any run of the agent.
    last: Option<bool>,
    in_row: u32,
    /// Whether there were as many failures in a row as its threshold requires.
    failed: bool,
}

/// The drawn course of a probe.
#[derive(Debug, Clone, Copy)]
pub(in crate::fake) struct ProbeRun {
    pub(in crate::fake) takes: Duration,
    passed: Option<bool>,
    quiet: u32,
}

impl World {
    /// Draws a probe that begins.
    pub(in crate::fake) fn draw_probe(
        &mut self,
        pod: &PodState,
        slot: &ContainerSlot,
        id: &ContainerId,
        kind: ProbeKind,
    ) -> ProbeRun {
        let spec = pod.container_spec(&slot.name).and_then(|container| kind.probe_of(container));
        let seconds = |value: Option<i32>| u64::try_from(value.unwrap_or(1)).unwrap_or(1);
        let (timeout, period) =
            spec.map_or((1, 1), |spec| (seconds(spec.timeout_seconds), seconds(spec.period_seconds)));
        let quick = Duration::from_millis(self.rng.u64(0..40));
        let script = self.containers.get(id).and_then(|container| container.script);
        let (takes, passed) = match (script, self.rng.u32(0..20)) {
            (Some(script), _) => (quick, Some(kind != ProbeKind::Readiness || script.is_ready)),
            _ if self.calm => (quick, Some(kind != ProbeKind::Readiness || is_healthy(id))),
            (_, 0) => (Duration::from_secs(timeout), Some(false)),
            (_, 1) => (quick, None),
            (_, 2..=6) => (quick, Some(false)),
            _ => (quick, Some(true)),
        };
        self.probe_runs += 1;
        self.note(|| format!("probe {} {kind} {passed:?} takes {takes:?}", short(id)));
        let (life, now) = (self.life, Instant::now());
        let Some(tally) = self.containers.get_mut(id).map(|container| &mut container.probed.kinds[kind as usize])
        else {
            return ProbeRun { takes, passed: None, quiet: self.quiet };
        };
        if tally.life != life {
            *tally = Tally { life, runs: 0, since: Some(now), in_life: 0, ..*tally };
        }
        let since = *tally.since.get_or_insert(now);
        tally.runs += 1;
        let most = now.saturating_duration_since(since).as_secs() / period + 3;
        if u64::from(tally.runs) > most {
            self.violate(format!("{} has had more than {most} {kind} probes", short(id)));
        }
        ProbeRun { takes, passed, quiet: self.quiet }
    }

    /// Records a probe's result, as the agent sees it.
    pub(in crate::fake) fn probed(
        &mut self,
        pod: &PodState,
        slot: &ContainerSlot,
        id: &ContainerId,
        kind: ProbeKind,
        drawn: ProbeRun,
    ) -> Option<bool> {
        let (now, quiet, connected) = (Instant::now(), self.quiet, self.connected);
        let container = self.containers.get_mut(id).filter(|container| connected && is_running(container))?;
        let passed = drawn.passed?;
        let tally = &mut container.probed.kinds[kind as usize];
        let again = tally.last == Some(passed);
        tally.in_row = if again { tally.in_row + 1 } else { 1 };
        tally.in_life = if again { tally.in_life + 1 } else { 1 };
        tally.last = Some(passed);
        let spec = pod.container_spec(&slot.name).and_then(|container| kind.probe_of(container));
        let threshold = spec.and_then(|spec| spec.failure_threshold).and_then(|value| u32::try_from(value).ok());
        let reached = |count: u32| !passed && kind.restarts() && threshold.is_some_and(|threshold| count >= threshold);
        tally.failed |= reached(tally.in_row);
        if reached(tally.in_life) && container.stop.is_none() && drawn.quiet == quiet {
            container.probed.must_stop.get_or_insert((now + MAX_STOP_DELAY, quiet));
        }
        Some(passed)
    }

    /// Checks that a container is stopped for a probe only after the probe has failed, and soon after.
    pub(super) fn check_stop_for_probe(&mut self, id: &ContainerId, cause: KillCause) {
        let (now, quiet) = (Instant::now(), self.quiet);
        let Some(container) = self.containers.get_mut(id) else { return };
        let late = container.probed.must_stop.take().is_some_and(|(by, since)| since == quiet && now > by);
        let early = match cause {
            KillCause::ProbeFailed(kind) => {
                container.probed.ended = true;
                !container.probed.kinds[kind as usize].failed
            }
            _ => false,
        };
        for (wrong, how) in [(late, "late"), (early, "without as many failures as its threshold asks")] {
            if wrong {
                self.violate(format!("{} is stopped {how} for {cause:?}", short(id)));
            }
        }
    }

    /// Checks for containers whose probe has failed and that were never stopped for it.
    pub fn check_unstopped(&mut self) {
        let (now, quiet) = (Instant::now(), self.quiet);
        let overdue = self.containers.iter().filter(|(_, container)| {
            is_running(container) && container.probed.must_stop.is_some_and(|(by, since)| since == quiet && now > by)
        });
        let overdue: Vec<String> = overdue.map(|(id, _)| short(id)).collect();
        overdue.into_iter().for_each(|id| self.violate(format!("{id} runs on although its probe has failed")));
    }

    pub(in crate::fake) fn record_probes(&mut self, id: &ContainerId, record: ProbeRecord) {
        self.note(|| format!("record {} {record:?}", short(id)));
        if let Some(container) = self.containers.get_mut(id) {
            container.recorded.probes = record;
        }
    }

    /// The last result of the readiness probe of each container that runs and has one: pod UID, container, result.
    pub fn last_readiness(&self) -> Vec<(String, String, bool)> {
        let running = self.containers.values().filter(|container| is_running(container));
        let last = running.filter_map(|container| {
            let identity = &container.recorded.identity;
            let last = container.probed.kinds[ProbeKind::Readiness as usize].last?;
            Some((identity.uid.clone(), identity.container.clone(), last))
        });
        last.collect()
    }
}

/// The readiness of a container once nothing happens any more.
fn is_healthy(id: &ContainerId) -> bool {
    id.as_str().as_bytes().first().is_some_and(|digit| digit % 3 != 0)
}
