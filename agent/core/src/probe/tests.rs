//! kubelet's cases of its probe worker, and limpet's own cases of the grid and of what is recorded.

#![allow(clippy::unwrap_used)]

use super::*;
use ProbeKind::{Liveness, Readiness, Startup};

const SECOND: Duration = Duration::from_secs(1);

fn spec(success: i32, failure: i32) -> v1::Probe {
    v1::Probe {
        period_seconds: Some(10),
        success_threshold: Some(success),
        failure_threshold: Some(failure),
        ..v1::Probe::default()
    }
}

fn container(kinds: &[ProbeKind], spec: &v1::Probe) -> Container {
    let probe = |kind| kinds.contains(&kind).then(|| spec.clone());
    Container {
        liveness_probe: probe(Liveness),
        readiness_probe: probe(Readiness),
        startup_probe: probe(Startup),
        ..Container::default()
    }
}

fn probes(kinds: &[ProbeKind], spec: &v1::Probe) -> Box<Probes> {
    Probes::begin(&container(kinds, spec), Duration::ZERO, Instant::now()).unwrap()
}

fn kinds(probes: &Probes, stops: bool) -> Vec<ProbeKind> {
    probes.due(stops).map(|(kind, _)| kind).collect()
}

#[test]
fn a_container_without_probes_has_no_state_of_them() {
    assert_eq!(Probes::begin(&Container::default(), Duration::ZERO, Instant::now()), None);
    assert!(size_of::<Option<Box<Probes>>>() <= 8 && size_of::<Probes>() <= 512);
}

#[test]
fn the_first_values_are_success_failure_and_unknown() {
    let all = probes(&ProbeKind::ALL, &spec(1, 3));
    assert_eq!((all.is_started(), all.is_ready(), all.failed()), (false, false, None));
    let live = probes(&[Liveness], &spec(1, 3));
    assert_eq!((live.is_started(), live.is_ready(), live.failed()), (true, true, None));
    let ready = probes(&[Readiness], &spec(1, 3));
    assert_eq!((ready.is_started(), ready.is_ready(), ready.failed()), (true, false, None));
}

#[test]
fn a_probe_is_due_after_its_initial_delay() {
    let now = Instant::now();
    let delayed = v1::Probe { initial_delay_seconds: Some(10), ..spec(1, 1) };
    for (since, due) in [(0, 10), (4, 6), (10, 0), (100, 0)] {
        let container = container(&[Liveness, Readiness], &delayed);
        let probes = Probes::begin(&container, SECOND * since, now).unwrap();
        let at = now + SECOND * due;
        assert_eq!(probes.due(false).collect::<Vec<_>>(), [(Liveness, at), (Readiness, at)], "{since}");
    }
}

#[test]
fn failures_count_once_there_are_as_many_in_a_row_as_the_threshold() {
    let mut probes = probes(&[Readiness], &spec(1, 3));
    for _ in 0..2 {
        for _ in 0..3 {
            probes.apply_result(Readiness, Some(true));
            assert!(probes.is_ready());
        }
        for failures in 1..6 {
            probes.apply_result(Readiness, Some(false));
            assert_eq!(probes.is_ready(), failures < 3, "{failures}");
        }
    }
}

#[test]
fn successes_count_once_there_are_as_many_in_a_row_as_the_threshold() {
    let mut probes = probes(&[Readiness], &spec(3, 1));
    for _ in 0..2 {
        for successes in 1..6 {
            probes.apply_result(Readiness, Some(true));
            assert_eq!(probes.is_ready(), successes >= 3, "{successes}");
        }
        probes.apply_result(Readiness, Some(false));
        assert!(!probes.is_ready());
    }
}

#[test]
fn a_failure_in_between_restarts_the_count_and_an_error_does_not() {
    let mut probes = probes(&[Liveness], &spec(1, 3));
    let results = [Some(false), Some(false), Some(true), Some(false), None, Some(false), None];
    results.into_iter().for_each(|result| probes.apply_result(Liveness, result));
    assert_eq!(probes.failed(), None);
    probes.apply_result(Liveness, Some(false));
    assert_eq!(probes.failed(), Some((Liveness, None)));
}

#[test]
fn a_verdict_on_its_life_puts_the_probe_on_hold_and_readiness_goes_on() {
    for kind in [Liveness, Startup] {
        let grace = v1::Probe { termination_grace_period_seconds: Some(7), ..spec(1, 1) };
        let mut probes = probes(&[kind, Readiness], &grace);
        probes.apply_result(kind, Some(false));
        assert_eq!(probes.failed(), Some((kind, Some(SECOND * 7))));
        let goes_on: &[ProbeKind] = if kind == Liveness { &[Readiness] } else { &[] };
        assert_eq!(kinds(&probes, false), goes_on);
    }
}

#[test]
fn the_startup_probe_holds_back_the_others_and_ends_once_it_has_succeeded() {
    let mut probes = probes(&ProbeKind::ALL, &spec(1, 2));
    assert_eq!(kinds(&probes, false), [Startup]);
    probes.apply_result(Startup, Some(false));
    assert_eq!((kinds(&probes, false), probes.is_started()), (vec![Startup], false));
    probes.apply_result(Startup, Some(true));
    assert_eq!((kinds(&probes, false), probes.is_started()), (vec![Liveness, Readiness], true));
    assert!(!probes.is_ready());
    probes.apply_result(Readiness, Some(true));
    assert!(probes.is_ready());
}

#[test]
fn while_the_container_is_stopped_readiness_alone_goes_on() {
    let probes = probes(&[Liveness, Readiness], &spec(1, 1));
    assert_eq!((kinds(&probes, false), kinds(&probes, true)), (vec![Liveness, Readiness], vec![Readiness]));
    assert_eq!(kinds(&super::tests::probes(&[Startup, Readiness], &spec(1, 1)), true), []);
}

#[test]
fn a_probe_in_progress_is_not_due() {
    let mut probes = probes(&[Liveness, Readiness], &spec(1, 1));
    let next = Instant::now() + SECOND;
    probes.run(Liveness, next);
    assert_eq!(kinds(&probes, false), [Readiness]);
    probes.apply_result(Liveness, None);
    assert_eq!(probes.due(false).find(|(kind, _)| *kind == Liveness), Some((Liveness, next)));
}

#[test]
fn due_times_meet_on_a_grid_within_a_tenth_of_the_period() {
    let origin = Instant::now();
    let grid = ProbeGrid { origin: Some(origin), slack_percent: 10 };
    let at = |millis| origin + Duration::from_millis(millis);
    // The period in seconds, when the probe was due, the current time, and when it is due again.
    let cases: [(u64, u64, u64, u64); 12] = [
        (10, 0, 0, 10_000),
        (10, 1, 1, 11_000),
        (10, 999, 1_003, 11_000),
        (10, 11_000, 11_002, 21_000), // once on the grid, exactly a period later
        (10, 11_000, 20_999, 21_000),
        (10, 11_000, 21_000, 31_000), // missed: not made up for
        (10, 11_000, 95_000, 101_000),
        (1, 50, 50, 1_100),
        (3, 50, 50, 3_200),
        (5, 250, 250, 5_500),
        (25, 1_500, 1_500, 27_000), // 2 s do not divide it
        (60, 1, 1, 65_000),
    ];
    for (period, due, now, expected) in cases {
        let next = grid.next(at(due), Duration::from_secs(period), at(now));
        assert_eq!(next - origin, Duration::from_millis(expected), "{period} {due} {now}");
        let again = grid.next(next, Duration::from_secs(period), next);
        assert_eq!(again - next, Duration::from_secs(period), "{period}: rounded once");
    }
    for exact in [ProbeGrid::default(), ProbeGrid { slack_percent: 0, ..grid }] {
        assert_eq!(exact.next(at(7), Duration::from_secs(10), at(9)), at(10_007));
    }
}

#[test]
fn what_changed_is_recorded_once() {
    let now = Instant::now();
    let mut probes = probes(&[Liveness, Readiness], &spec(1, 1));
    assert_eq!(probes.unrecorded(), None, "nothing has happened");
    probes.apply_result(Liveness, Some(true));
    assert_eq!(probes.unrecorded(), None);
    probes.apply_result(Readiness, Some(true));
    let ready = ProbeRecord { ready: true, ..ProbeRecord::default() };
    assert_eq!(probes.unrecorded(), Some((ready, None)));
    probes.record(ready);
    assert_eq!(probes.unrecorded(), None, "under way");
    probes.recorded(false, now);
    assert_eq!(probes.unrecorded(), Some((ready, Some(now + RECORD_RETRY_DELAY))));
    probes.record(ready);
    probes.recorded(true, now);
    probes.apply_result(Readiness, Some(true));
    assert_eq!(probes.unrecorded(), None, "the same result");
    probes.apply_result(Liveness, Some(false));
    assert_eq!(probes.unrecorded(), Some((ProbeRecord { failed: Some(Liveness), ..ready }, None)));
}

#[test]
fn an_agent_that_starts_goes_on_with_what_is_recorded() {
    let now = Instant::now();
    let container = container(&ProbeKind::ALL, &spec(1, 1));
    let resume = |record, place| Probes::resume(&container, record, SECOND * 100, place, now).unwrap();
    let seen = |record| {
        let probes = resume(record, 0);
        (probes.is_started(), probes.is_ready(), probes.failed().map(|(kind, _)| kind), kinds(&probes, false))
    };
    let nothing = ProbeRecord::default();
    let started = ProbeRecord { started: true, ..nothing };
    let ready = ProbeRecord { ready: true, ..started };
    assert_eq!(seen(nothing), (false, false, None, vec![Startup]));
    assert_eq!(seen(started), (true, false, None, vec![Liveness, Readiness]));
    assert_eq!(seen(ready), (true, true, None, vec![Liveness, Readiness]));
    assert_eq!(seen(ProbeRecord { failed: Some(Liveness), ..ready }), (true, true, Some(Liveness), vec![Readiness]));
    assert_eq!(resume(ready, 0).unrecorded(), None);

    // A container that is not ready is probed at once, the others at some time within their period.
    let due = |record, place| resume(record, place).due(false).map(|(_, due)| due - now).collect::<Vec<_>>();
    assert_eq!(due(started, u32::MAX / 2 + 1), [SECOND * 5, Duration::ZERO]);
    assert_eq!(due(ready, u32::MAX / 4 + 1), [SECOND * 10 / 4; 2]);
    assert!(due(ready, u32::MAX).iter().all(|due| *due < SECOND * 10));
}
