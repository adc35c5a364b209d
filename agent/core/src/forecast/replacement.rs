//! Predicts which containers a worker restarts or resizes for a new version of its pod, by running the plan on a
//! state that is rebuilt from the observed pod. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus};
use std::time::Instant;

use crate::plan;
use crate::plan::recreate::{self, RecreationCause};
use crate::state::{ContainerSlot, Instance, Life, PodSandbox, PodState, SandboxState};
use crate::status::observed::ObservedPod;
use limpet_model::container::{ContainerId, Exit};
use limpet_model::pod::PodRecord;
use limpet_model::verdict::{PodVerdict, VerdictPhase};

/// What an update in place does to the containers of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replacement {
    /// Recreated, each once its image is present.
    pub restarts: Vec<String>,
    /// Resized while they run.
    pub resizes: Vec<String>,
    /// Keep running as they are.
    pub keeps: Vec<String>,
}

/// What the worker of `observed` does with `new`, which by its manifest can be reached in place.
///
/// # Errors
///
/// The pod is recreated: it has ended, or its exclusive processors change.
pub fn replacement(observed: &ObservedPod, new: Arc<PodRecord>, now: Instant) -> Result<Replacement, RecreationCause> {
    let mut pod = state(observed, now);
    if let Some(cause) = recreate::recreation_cause(&pod, &new) {
        return Err(cause);
    }
    pod.update(new);
    let renewed = plan::renewed(&pod);
    let name = |index: &usize| pod.containers[*index].name.clone();
    let resized = |index: &usize| pod.containers[*index].resize().is_some();
    let kept = |index: &usize| pod.containers[*index].is_running() && !renewed.contains(index) && !resized(index);
    Ok(Replacement {
        restarts: renewed.iter().map(name).collect(),
        resizes: (0..pod.containers.len()).filter(resized).map(|index| name(&index)).collect(),
        keeps: (0..pod.containers.len()).filter(kept).map(|index| name(&index)).collect(),
    })
}

fn state(observed: &ObservedPod, now: Instant) -> PodState {
    let mut pod =
        PodState::new(Arc::clone(observed.allocated.as_ref().unwrap_or(&observed.record)), Timestamp::UNIX_EPOCH);
    pod.static_cpus = observed.static_cpus;
    if let (Some("Failed"), Some(reason)) = (observed.status.phase.as_deref(), &observed.status.reason) {
        let (reason, message) = (reason.clone().into(), observed.status.message.clone().unwrap_or_default());
        pod.verdict = Some(PodVerdict { reason, message, phase: VerdictPhase::Failed, eviction: None });
    }
    // The prediction holds as long as the pod keeps its sandbox.
    pod.sandbox = SandboxState::Ready(Arc::new(PodSandbox::default()));
    let statuses = || {
        let status = &observed.status;
        status.init_container_statuses.iter().chain(&status.container_statuses).flatten()
    };
    for slot in &mut pod.containers {
        let life = statuses().find(|status| status.name == slot.name).and_then(|status| life(status, now));
        slot.instance = life.map(|life| instance(slot, observed, life));
    }
    pod
}

/// The state of a container's newest instance; `None` if it was never started.
fn life(status: &ContainerStatus, now: Instant) -> Option<Life> {
    let state = status.state.as_ref()?;
    if state.running.is_some() {
        return Some(Life::Running { pid: 0, process: None, stopping: None });
    }
    // A container that waits for its next start reports its exit as `lastState`.
    let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    state.terminated.as_ref().or(last).map(|terminated| exited(terminated, now))
}

fn exited(terminated: &ContainerStateTerminated, now: Instant) -> Life {
    let exit = Exit {
        code: terminated.exit_code,
        reason: terminated.reason.clone().unwrap_or_default(),
        message: String::new(),
        finished_at: Timestamp::UNIX_EPOCH,
    };
    Life::Exited { exit, retry_at: now, reaped: true }
}

fn instance(slot: &ContainerSlot, observed: &ObservedPod, life: Life) -> Instance {
    let id = ContainerId::derive(&observed.record.uid, &slot.name, 0, 0);
    Instance { life, ..Instance::new(id, 0, slot.fingerprint.clone()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use limpet_model::manifest::restore;
    use limpet_model::source::SourceKind;

    fn record(policy: &str, images: [&str; 3]) -> Arc<PodRecord> {
        let manifest = json!({ "metadata": { "name": "web" }, "spec": {
            "restartPolicy": policy,
            "initContainers": [{ "name": "init", "image": images[0] }],
            "containers": [{ "name": "a", "image": images[1] }, { "name": "b", "image": images[2] }],
        }});
        Arc::new(restore(manifest.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1").unwrap())
    }

    /// Each container's state is `run`, `wait`, `crash` (waits after an exit), or its exit code.
    fn observed(policy: &str, states: [&str; 3]) -> ObservedPod {
        let status = |(name, state): (&str, &str)| {
            let ended = |code: i32| json!({ "terminated": { "exitCode": code } });
            let (state, last) = match state {
                "run" => (json!({ "running": {} }), Value::Null),
                "wait" => (json!({ "waiting": {} }), Value::Null),
                "crash" => (json!({ "waiting": {} }), ended(1)),
                code => (ended(code.parse().unwrap()), Value::Null),
            };
            let document = json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": state, "lastState": last });
            serde_json::from_value::<ContainerStatus>(document).unwrap()
        };
        let [init, a, b] = states;
        let mut observed = ObservedPod {
            record: record(policy, ["i:1", "a:1", "b:1"]),
            allocated: None,
            static_cpus: false,
            status: Default::default(),
            note: None,
            terminating_since: None,
            containers: BTreeMap::new(),
        };
        observed.status.init_container_statuses = Some(vec![status(("init", init))]);
        observed.status.container_statuses = Some([("a", a), ("b", b)].into_iter().map(status).collect());
        observed
    }

    #[test]
    fn only_containers_the_plan_replaces_are_reported_as_restarts() {
        // Policy, states of init, a and b, which images change, what restarts, what keeps running.
        type Case<'a> = (&'a str, [&'a str; 3], [bool; 3], &'a [&'a str], &'a [&'a str]);
        let cases: &[Case<'_>] = &[
            ("Always", ["0", "run", "run"], [false, true, false], &["a"], &["b"]),
            ("Always", ["0", "run", "run"], [false, true, true], &["a", "b"], &[]),
            ("Always", ["0", "run", "run"], [false, false, false], &[], &["a", "b"]),
            ("Always", ["run", "wait", "wait"], [false, true, false], &[], &["init"]),
            ("Always", ["0", "crash", "run"], [false, true, false], &["a"], &["b"]),
            ("Never", ["0", "1", "run"], [false, false, false], &[], &["b"]),
        ];
        for (policy, states, changed, restarts, keeps) in cases {
            let image = |index: usize| if changed[index] { "new:2" } else { ["i:1", "a:1", "b:1"][index] };
            let new = record(policy, [image(0), image(1), image(2)]);
            let predicted = replacement(&observed(policy, *states), new, Instant::now());
            let names_of = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
            let wanted = Replacement { restarts: names_of(restarts), resizes: Vec::new(), keeps: names_of(keeps) };
            assert_eq!(predicted, Ok(wanted), "{policy} {states:?} {changed:?}");
        }
    }

    #[test]
    fn a_pod_that_has_ended_is_recreated_for_an_image_alone() {
        let mut failed = observed("Always", ["0", "1", "1"]);
        (failed.status.phase, failed.status.reason) = (Some("Failed".into()), Some("DeadlineExceeded".into()));
        let finished = observed("Never", ["0", "0", "0"]);
        for (policy, pod, over) in [
            ("Always", failed, RecreationCause::Failed("DeadlineExceeded".into())),
            ("Never", finished, RecreationCause::Finished),
        ] {
            let edited = record(policy, ["i:1", "a:1", "b:2"]);
            assert_eq!(replacement(&pod, edited, Instant::now()), Err(over));
            let same = record(policy, ["i:1", "a:1", "b:1"]);
            assert_eq!(replacement(&pod, same, Instant::now()), Ok(Replacement::default()));
        }
    }
}
