//! The probes of one running container: when each is due, and what its results mean.
//!
//! These are kubelet's rules (docs/kubelet.md). A new instance starts without results. A result counts once it has
//! occurred as often in a row as its threshold requires; an error of the probe itself is not a result. Due times are
//! put on a grid, so that the timers of many probes fire together: [`ProbeGrid`].

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{self, Container};
use limpet_model::probe::{ProbeKind, ProbeRecord};

/// The steps to which due times are rounded up, in milliseconds.
const TIME_STEPS: [u64; 9] = [60_000, 30_000, 10_000, 5_000, 2_000, 1_000, 500, 200, 100];
/// The delay after a failure before the results are recorded again.
const RECORD_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The moments at which probes run: whole steps since `origin`, the same for all pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProbeGrid {
    /// Any moment, the same for all probes; `None` if due times are not rounded.
    pub origin: Option<Instant>,
    /// How much later than its period a probe may run, in percent of the period.
    pub slack_percent: u32,
}

impl ProbeGrid {
    /// When a probe that was due at `due` is due again: the first time after `now` that is whole periods later,
    /// rounded up to a step that is no longer than the slack and divides the period, so that it is rounded only once.
    fn next(self, due: Instant, period: Duration, now: Instant) -> Instant {
        let missed = now.saturating_duration_since(due).as_millis() / period.as_millis().max(1);
        let exact = due + period * u32::try_from(missed).unwrap_or(u32::MAX).saturating_add(1);
        let Some(origin) = self.origin else { return exact };
        let millis = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        let most = millis / 100 * u64::from(self.slack_percent);
        let Some(step) = TIME_STEPS.into_iter().find(|step| *step <= most && millis % step == 0) else { return exact };
        let since = exact.saturating_duration_since(origin).as_nanos();
        let step = u128::from(step) * 1_000_000;
        let late = u64::try_from(since.next_multiple_of(step) - since).unwrap_or_default();
        exact + Duration::from_nanos(late)
    }
}

/// What a probe's results mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// There are not enough results yet.
    Unknown,
    Success,
    Failure,
}

/// What of its probes is recorded on the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordState {
    As(ProbeRecord),
    /// This, once the write succeeds.
    Writing(ProbeRecord),
    /// Unknown, because the last write failed; it is repeated at this time.
    Unknown(Instant),
}

/// One probe of a running container.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Probe {
    period: Duration,
    success_threshold: u32,
    failure_threshold: u32,
    /// The grace period of a container that it ends, instead of the pod's.
    grace: Option<Duration>,
    verdict: Verdict,
    /// The last result, and how often it occurred in a row.
    last: Option<bool>,
    run: u32,
    due: Instant,
    in_progress: bool,
}

impl Probe {
    fn new(kind: ProbeKind, spec: &v1::Probe, due: Instant) -> Self {
        let count = |value: Option<i32>, default| value.and_then(|value| u32::try_from(value).ok()).unwrap_or(default);
        Self {
            period: Duration::from_secs(count(spec.period_seconds, 10).max(1).into()),
            success_threshold: count(spec.success_threshold, 1),
            failure_threshold: count(spec.failure_threshold, 3),
            grace: spec
                .termination_grace_period_seconds
                .and_then(|value| value.try_into().ok())
                .map(Duration::from_secs),
            verdict: match kind {
                ProbeKind::Liveness => Verdict::Success,
                ProbeKind::Readiness => Verdict::Failure,
                ProbeKind::Startup => Verdict::Unknown,
            },
            last: None,
            run: 0,
            due,
            in_progress: false,
        }
    }

    /// Applies a result; `None` if the probe itself failed.
    fn apply_result(&mut self, passed: Option<bool>) {
        self.in_progress = false;
        let Some(passed) = passed else { return };
        self.run = if self.last == Some(passed) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(passed);
        let (threshold, verdict) = match passed {
            true => (self.success_threshold, Verdict::Success),
            false => (self.failure_threshold, Verdict::Failure),
        };
        if self.run >= threshold {
            self.verdict = verdict;
        }
    }
}

/// The probes of one instance of a container that has any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probes {
    liveness: Option<Probe>,
    readiness: Option<Probe>,
    startup: Option<Probe>,
    recorded: RecordState,
}

impl Probes {
    /// The probes of an instance that was started `since` ago; `None` if the container has none.
    pub fn begin(container: &Container, since: Duration, now: Instant) -> Option<Box<Self>> {
        let probe = |kind: ProbeKind| {
            let spec = kind.probe_of(container)?;
            let delay = spec.initial_delay_seconds.and_then(|value| value.try_into().ok()).unwrap_or_default();
            Some(Probe::new(kind, spec, now + Duration::from_secs(delay).saturating_sub(since)))
        };
        let [liveness, readiness, startup] = ProbeKind::ALL.map(probe);
        let any = liveness.is_some() || readiness.is_some() || startup.is_some();
        any.then(|| Box::new(Self { liveness, readiness, startup, recorded: RecordState::As(ProbeRecord::default()) }))
    }

    /// The probes of an instance that an earlier agent has probed. A success counts until the probe fails. The probes
    /// of many containers that are found at the same time are spread over their periods, by `place`.
    pub fn resume(
        container: &Container,
        record: ProbeRecord,
        since: Duration,
        place: u32,
        now: Instant,
    ) -> Option<Box<Self>> {
        let mut probes = Self::begin(container, since, now)?;
        probes.recorded = RecordState::As(record);
        let succeeded = |kind| match kind {
            ProbeKind::Liveness => true,
            ProbeKind::Readiness => record.ready,
            ProbeKind::Startup => record.started,
        };
        for kind in ProbeKind::ALL {
            let Some(probe) = probes.get_mut(kind) else { continue };
            if record.failed == Some(kind) {
                probe.verdict = Verdict::Failure;
            } else if succeeded(kind) {
                probe.verdict = Verdict::Success;
                probe.due += probe.period.mul_f64(f64::from(place) / (f64::from(u32::MAX) + 1.0));
            }
        }
        Some(probes)
    }

    /// Whether the container counts as started: its startup probe has succeeded, if it has one.
    pub fn is_started(&self) -> bool {
        self.startup.as_ref().is_none_or(|probe| probe.verdict == Verdict::Success)
    }

    /// Whether the container is ready.
    pub fn is_ready(&self) -> bool {
        self.is_started() && self.readiness.as_ref().is_none_or(|probe| probe.verdict == Verdict::Success)
    }

    /// The probe because of whose failures the container has to be ended, and the grace period for that.
    pub fn failed(&self) -> Option<(ProbeKind, Option<Duration>)> {
        [ProbeKind::Liveness, ProbeKind::Startup].into_iter().find_map(|kind| {
            let probe = self.get(kind).filter(|probe| probe.verdict == Verdict::Failure)?;
            Some((kind, probe.grace))
        })
    }

    /// The probes that currently apply, each with its next due time. While the container is being stopped, only
    /// readiness does; after a verdict on its life, none does.
    pub fn due(&self, stops: bool) -> impl Iterator<Item = (ProbeKind, Instant)> {
        let on_hold = stops || self.failed().is_some();
        let runs = move |kind: &ProbeKind| match kind {
            ProbeKind::Readiness => self.is_started(),
            ProbeKind::Liveness => self.is_started() && !on_hold,
            ProbeKind::Startup => !self.is_started() && !on_hold,
        };
        let due = |kind| {
            let probe = self.get(kind).filter(|probe| !probe.in_progress)?;
            Some((kind, probe.due))
        };
        ProbeKind::ALL.into_iter().filter(runs).filter_map(due)
    }

    /// When `kind`, which is due, is due again.
    pub fn next(&self, kind: ProbeKind, grid: ProbeGrid, now: Instant) -> Instant {
        self.get(kind).map_or(now, |probe| grid.next(probe.due, probe.period, now))
    }

    /// Records that `kind` runs; it is due again at `next`.
    pub fn run(&mut self, kind: ProbeKind, next: Instant) {
        if let Some(probe) = self.get_mut(kind) {
            (probe.in_progress, probe.due) = (true, next);
        }
    }

    /// Applies the result of `kind`; `None` if the probe itself failed.
    pub fn apply_result(&mut self, kind: ProbeKind, passed: Option<bool>) {
        if let Some(probe) = self.get_mut(kind) {
            probe.apply_result(passed);
        }
    }

    /// The record to write, and the earliest time for it; `None` if it is written, or being written.
    pub fn unrecorded(&self) -> Option<(ProbeRecord, Option<Instant>)> {
        let succeeds = |probe: &Option<Probe>| probe.as_ref().is_some_and(|probe| probe.verdict == Verdict::Success);
        let record = ProbeRecord {
            started: succeeds(&self.startup),
            ready: succeeds(&self.readiness),
            failed: self.failed().map(|(kind, _)| kind),
        };
        match self.recorded {
            RecordState::As(recorded) => (recorded != record).then_some((record, None)),
            RecordState::Writing(_) => None,
            RecordState::Unknown(again) => Some((record, Some(again))),
        }
    }

    /// Notes that `record` is being written.
    pub fn record(&mut self, record: ProbeRecord) {
        self.recorded = RecordState::Writing(record);
    }

    /// Notes whether the write was done.
    pub fn recorded(&mut self, done: bool, now: Instant) {
        if let RecordState::Writing(record) = self.recorded {
            self.recorded = if done { RecordState::As(record) } else { RecordState::Unknown(now + RECORD_RETRY_DELAY) };
        }
    }

    fn get(&self, kind: ProbeKind) -> Option<&Probe> {
        match kind {
            ProbeKind::Liveness => self.liveness.as_ref(),
            ProbeKind::Readiness => self.readiness.as_ref(),
            ProbeKind::Startup => self.startup.as_ref(),
        }
    }

    fn get_mut(&mut self, kind: ProbeKind) -> Option<&mut Probe> {
        match kind {
            ProbeKind::Liveness => self.liveness.as_mut(),
            ProbeKind::Readiness => self.readiness.as_mut(),
            ProbeKind::Startup => self.startup.as_mut(),
        }
    }
}

#[cfg(test)]
mod tests;
