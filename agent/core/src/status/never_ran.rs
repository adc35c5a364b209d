//! Containers that never ran, in the status of a pod that has ended: none of them waits any more. Pure; kubelet's
//! `TerminatePod` (`pkg/kubelet/status/status_manager.go`).

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus};

/// Ends the containers that could have run: main containers of a pod that was initialized, and init containers up to
/// the last one that was tried, or the first. `ends_with_sidecar`: the last init container is a sidecar, which counts
/// once it has run.
pub(super) fn set(inits: &mut [ContainerStatus], mains: &mut [ContainerStatus], ends_with_sidecar: bool) {
    let has_succeeded = |status: &ContainerStatus| {
        let ended = status.state.as_ref().and_then(|state| state.terminated.as_ref());
        ended.is_some_and(|ended| ended.exit_code == 0)
    };
    let is_done = |last| if ends_with_sidecar { has_run(last) } else { has_succeeded(last) };
    let initialized = inits.last().is_none_or(is_done) || mains.iter().any(has_run);
    let tried = inits.iter().rposition(has_run).unwrap_or(0) + 1;
    let mains = mains.iter_mut().filter(|_| initialized);
    inits.iter_mut().take(tried).chain(mains).filter(|status| waits(status)).for_each(end);
}

fn waits(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.waiting.is_some())
}

fn has_run(status: &ContainerStatus) -> bool {
    !waits(status) || status.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
}

fn end(status: &mut ContainerStatus) {
    let terminated = ContainerStateTerminated {
        exit_code: 137,
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some("The container could not be located when the pod was terminated".to_owned()),
        ..ContainerStateTerminated::default()
    };
    status.state = Some(ContainerState { terminated: Some(terminated), ..ContainerState::default() });
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// `w`: waits, `0`, `1`: has exited with that code, `r`: waits after a run, `s`: a sidecar that has ended.
    fn statuses(states: &str) -> Vec<ContainerStatus> {
        let status = |state: char| {
            let ended = |code: char| json!({ "terminated": { "exitCode": code.to_digit(10) } });
            let (state, last) = match state {
                'w' => (json!({ "waiting": {} }), Value::Null),
                'r' => (json!({ "waiting": {} }), ended('1')),
                's' => (ended('1'), Value::Null),
                code => (ended(code), Value::Null),
            };
            let status = json!({
                "name": "a", "image": "a", "imageID": "", "ready": false, "restartCount": 0, "state": state, "lastState": last,
            });
            serde_json::from_value(status).unwrap()
        };
        states.chars().map(status).collect()
    }

    #[test]
    fn what_could_have_run_has_ended_as_with_kubelet() {
        let ended = |statuses: &[ContainerStatus]| -> String {
            let code = |status: &ContainerStatus| {
                let ended = status.state.as_ref().unwrap().terminated.as_ref();
                ended.map_or('w', |ended| if ended.exit_code == 137 { 'x' } else { '.' })
            };
            statuses.iter().map(code).collect()
        };
        let table = [
            // Init containers and main ones, before and after.
            ("", "w0", "", "x."),
            ("0", "w", ".", "x"),
            ("1", "w", ".", "w"),
            ("ww", "w", "xw", "w"),
            ("0w", "w", ".w", "w"),
            ("0r", "w", ".x", "w"),
            ("0w", "r", ".w", "x"),
            ("00", "0", "..", "."),
            ("0s", "w", "..", "x"),
        ];
        for (inits, mains, inits_after, mains_after) in table {
            let (mut init_statuses, mut main_statuses) = (statuses(inits), statuses(mains));
            set(&mut init_statuses, &mut main_statuses, inits.ends_with('s'));
            let after = (ended(&init_statuses), ended(&main_statuses));
            assert_eq!(after, (inits_after.to_owned(), mains_after.to_owned()), "{inits} {mains}");
        }
    }
}
