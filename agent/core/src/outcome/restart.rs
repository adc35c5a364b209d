//! `limpet restart`: running containers are ended within their grace period and start again at once, whatever their
//! restart policy. Those that wait for their next start do so no longer. The pod keeps its UID, sandbox and volumes.
//! Part of [`super`].

use crate::plan::{is_finished, wants_restart};
use crate::pod_order::RestartError;
use crate::state::{ContainerSlot, ImageState, Instance, Life, Now, PodState};
use limpet_model::pod::Role;

/// Takes a request to restart one container, or all that run or wait for their next start. Returns their names.
///
/// # Errors
///
/// Why nothing is restarted.
pub fn request_restart(pod: &mut PodState, container: Option<&str>, now: Now) -> Result<Vec<String>, RestartError> {
    let key = pod.record.key.clone();
    if pod.ending.is_some() || pod.is_failed() || is_finished(pod) {
        return Err(RestartError::Over(key));
    }
    if let Some(name) = container {
        match pod.containers.iter().find(|slot| slot.name == name) {
            None => return Err(RestartError::NoContainer(key, name.to_owned())),
            Some(slot) if !is_restartable(slot) => return Err(RestartError::RunsOnce(key, name.to_owned())),
            Some(_) => {}
        }
    }
    let mut names = Vec::new();
    for index in 0..pod.containers.len() {
        let slot = &pod.containers[index];
        let is_asked = is_restartable(slot) && container.is_none_or(|name| name == slot.name);
        let waits = slot.retry.is_some() || matches!(slot.image, ImageState::Failed(_)) || wants_restart(pod, slot);
        if !is_asked || !(slot.is_running() || waits) {
            continue;
        }
        names.push(slot.name.clone());
        let slot = &mut pod.containers[index];
        match slot.instance.as_mut() {
            Some(Instance { life: Life::Running { .. }, restart_asked, .. }) => *restart_asked = true,
            Some(Instance { life: Life::Exited { retry_at, .. }, pause, .. }) => {
                *retry_at = now.mono;
                *pause = std::time::Duration::ZERO;
            }
            None => {}
        }
        (slot.retry, slot.pull_retry) = (None, None);
        if let ImageState::Failed(_) = slot.image {
            slot.image = ImageState::Unknown;
        }
    }
    if names.is_empty() { Err(RestartError::NothingRuns(key)) } else { Ok(names) }
}

/// Init containers and ephemeral ones run only once, so they are not restarted alone.
fn is_restartable(slot: &ContainerSlot) -> bool {
    matches!(slot.role, Role::Main | Role::Sidecar)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fixtures::{READY, exit, image, instance, now, pod, ready};
    use crate::outcome::begin;
    use crate::plan::{Action, KillCause, Step, plan};

    /// A pod with two running containers.
    fn running(policy: &str) -> PodState {
        let mut pod = ready(pod(policy, &[], &["a", "b"]));
        for index in 0..2 {
            let first = instance(&pod.containers[index], 0);
            pod.containers[index].succeed(first);
            pod.containers[index].image = image();
        }
        pod
    }

    fn actions(pod: &PodState, now: Now) -> Vec<Action> {
        match plan(pod, READY, now.mono) {
            Step::Do(actions) => actions,
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_container_is_stopped_with_its_grace_and_starts_at_once_whatever_its_policy() {
        for policy in ["Always", "OnFailure", "Never"] {
            let (mut pod, now) = (running(policy), now());
            assert_eq!(request_restart(&mut pod, Some("b"), now).unwrap(), ["b"]);
            let stops = actions(&pod, now);
            let [Action::Stop(1, stopping, KillCause::RestartAsked)] = stops[..] else { panic!("{stops:?}") };
            assert!(stopping.grace_over >= now.mono + Duration::from_secs(30), "{stopping:?}");
            begin(&mut pod, &stops[0]);
            pod.containers[1].instance.as_mut().unwrap().end(exit(0), now);
            assert!(wants_restart(&pod, &pod.containers[1]), "{policy}");
            pod.containers[1].image = image();
            let starts = actions(&pod, now);
            assert!(starts.contains(&Action::Start(1)), "{policy}: {starts:?}");
            assert!(!starts.iter().any(|action| matches!(action, Action::Stop(..))), "{policy}: {starts:?}");
        }
    }

    #[test]
    fn without_a_name_everything_that_runs_is_restarted_and_what_waits_starts_at_once() {
        let (mut pod, now) = (running("Always"), now());
        let second = pod.containers[1].instance.as_mut().unwrap();
        second.pause = Duration::from_secs(300);
        second.end(exit(1), now);
        pod.containers[1].image = image();
        assert!(!actions(&pod, now).contains(&Action::Start(1)), "it waits for its back-off");
        assert_eq!(request_restart(&mut pod, None, now).unwrap(), ["a", "b"]);
        let planned = actions(&pod, now);
        assert!(planned.contains(&Action::Start(1)), "{planned:?}");
        assert!(
            planned.iter().any(|action| matches!(action, Action::Stop(0, _, KillCause::RestartAsked))),
            "{planned:?}"
        );
    }

    #[test]
    fn what_cannot_be_restarted_is_named() {
        let now = now();
        let mut pod = ready(pod("Never", &["i"], &["a"]));
        let key = pod.record.key.clone();
        assert_eq!(request_restart(&mut pod, Some("x"), now), Err(RestartError::NoContainer(key.clone(), "x".into())));
        assert_eq!(request_restart(&mut pod, Some("i"), now), Err(RestartError::RunsOnce(key.clone(), "i".into())));
        assert_eq!(request_restart(&mut pod, None, now), Err(RestartError::NothingRuns(key.clone())));
        let mut done = running("Never");
        for slot in &mut done.containers {
            slot.instance.as_mut().unwrap().end(exit(0), now);
        }
        assert_eq!(request_restart(&mut done, None, now), Err(RestartError::Over(key)));
    }
}
