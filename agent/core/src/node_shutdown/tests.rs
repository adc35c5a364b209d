#![allow(clippy::unwrap_used)]

use limpet_model::source::SourceKind::File;
use serde_json::json;

use super::*;
use crate::eviction::recovery;
use crate::fixtures::{READY, exit, instance, now, ready, record_of};
use crate::node_state::NodeState;
use crate::plan::{Action, Step, plan};
use crate::state::{PodState, SandboxState};

fn pod(name: &str, priority: Option<i32>, class: &str, grace: i64) -> Arc<PodRecord> {
    let class = (!class.is_empty()).then_some(class);
    let spec = json!({
        "containers": [{ "name": "a" }],
        "priority": priority, "priorityClassName": class, "terminationGracePeriodSeconds": grace,
    });
    record_of(name, File, spec)
}

/// `name:seconds` of each pod, and the step's limit.
fn shown(steps: &[ShutdownStep]) -> Vec<(String, Option<u64>)> {
    let pod = |(record, grace): &(Arc<PodRecord>, Duration)| {
        format!("{}:{}", record.pod.metadata.name.as_deref().unwrap(), grace.as_secs())
    };
    let step = |step: &ShutdownStep| {
        let pods: Vec<String> = step.pods.iter().map(pod).collect();
        (pods.join(" "), step.limit.map(|limit| limit.as_secs()))
    };
    steps.iter().map(step).collect()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn critical_pods_end_last_and_each_pod_has_the_shorter_time() {
    let pods = || {
        [
            pod("node", None, "system-node-critical", 30),
            pod("web", None, "", 60),
            pod("low", Some(-5), "", 5),
            pod("cluster", None, "system-cluster-critical", 1),
        ]
    };
    let policy = ShutdownPolicy::of_periods(seconds(30), seconds(10));
    let expected = [("web:20 low:5".to_owned(), Some(20)), ("node:10 cluster:1".to_owned(), Some(10))];
    assert_eq!(shown(&steps(&policy, pods())), expected);
    assert_eq!((policy.period(), policy.periods()), (seconds(30), Some((seconds(30), seconds(10)))));
    // Without a configuration, each pod has its own time.
    let expected = [("web:60 low:5".to_owned(), None), ("node:30 cluster:1".to_owned(), None)];
    assert_eq!(shown(&steps(&ShutdownPolicy::default(), pods())), expected);
}

#[test]
fn groups_are_those_of_kubelet() {
    let group = |priority, grace| ShutdownGroup { priority, grace: Some(seconds(grace)) };
    let policy = ShutdownPolicy::by_priority(vec![group(1_000, 7), group(0, 5), group(100, 6)]).unwrap();
    // The pod's priority, and the time of the group that it is in.
    for (priority, grace) in [(-1, 5), (0, 5), (99, 5), (100, 6), (101, 6), (999, 6), (1_000, 7), (i32::MAX, 7)] {
        let steps = steps(&policy, [pod("a", Some(priority), "", 3_600)]);
        assert_eq!(shown(&steps), [(format!("a:{grace}"), Some(grace))], "{priority}");
    }
    assert_eq!((policy.period(), policy.periods()), (seconds(18), None));
    assert_eq!(ShutdownPolicy::by_priority(Vec::new()), None);
    // All of the time may be for critical pods; the others are then killed at once.
    let policy = ShutdownPolicy::of_periods(seconds(10), seconds(10));
    assert_eq!(shown(&steps(&policy, [pod("a", None, "", 30)])), [("a:0".to_owned(), Some(0))]);
}

/// A pod of which one container runs.
fn running(policy: &str) -> PodState {
    let mut pod = ready(crate::fixtures::pod(policy, &[], &["a"]));
    let first = instance(&pod.containers[0], 0);
    pod.containers[0].succeed(first);
    pod.containers[0].image = crate::fixtures::image();
    pod
}

#[test]
fn a_pod_that_was_shut_down_has_kubelets_status_and_runs_again_after_a_cancellation() {
    for (policy, restarts) in [("Always", true), ("OnFailure", true), ("Never", false)] {
        let (mut pod, now) = (running(policy), now());
        pod.shut_down(seconds(2), now);
        let Step::Do(actions) = plan(&pod, READY, now.mono) else { panic!("{policy}: it is not stopped") };
        let [Action::Stop(0, stopping, _)] = &actions[..] else { panic!("{policy}: {actions:?}") };
        assert_eq!(stopping.grace_over, now.mono + seconds(2), "{policy}");
        pod.containers[0].instance.as_mut().unwrap().end(exit(143), now);
        let status = crate::status::generate::generate(&pod, READY, "BestEffort", now, None);
        assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("Terminated")));
        assert_eq!(status.message.as_deref(), Some("Pod was terminated in response to imminent node shutdown."));
        let target =
            status.conditions.unwrap().into_iter().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
        assert_eq!((&*target.status, target.reason.as_deref()), ("True", Some("TerminationByKubelet")));
        assert_eq!(pod.lasting_verdict(), None, "it runs after the next boot");
        let cancelled = |pod: &PodState| recovery::resumes(pod, READY);
        assert!(!cancelled(&pod), "{policy}: its network is not given back yet");
        pod.set_sandbox(SandboxState::Absent { dirty: false });
        assert!(cancelled(&pod) && !recovery::resumes(&pod, NodeState { shutting_down: true, ..READY }));
        pod.resume(now);
        let starts =
            matches!(plan(&pod, READY, now.mono), Step::Do(actions) if actions.contains(&Action::PrepareSandbox));
        assert_eq!(starts, restarts, "{policy}");
    }
}

#[test]
fn a_pod_that_ends_already_gets_no_longer_than_the_shutdown_gives_it() {
    let (mut pod, now) = (running("Always"), now());
    pod.end(seconds(600), now);
    pod.shut_down(seconds(3), now);
    assert_eq!(pod.ending.map(|ending| ending.grace), Some(seconds(3)));
    assert!(!pod.is_shut_down());
}
