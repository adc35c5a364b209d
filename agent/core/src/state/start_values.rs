//! The values of objects that a container has read at its start, where a change of them restarts it. Part of [`super`].

use limpet_model::object::StartValues;
use limpet_model::pod::Role;
use limpet_model::pod::restart_on_change::RestartOnChange;

use super::{ContainerSlot, PodState};

impl PodState {
    /// Notes what its containers would read now, if its pod wants to be restarted for that.
    pub(super) fn note_start_values(&mut self) {
        let is_wanted = RestartOnChange::from_pod(&self.record).is_wanted();
        for index in 0..self.containers.len() {
            let container = self.container_spec(&self.containers[index].name).filter(|_| is_wanted);
            let values = container.map(|container| StartValues::new(&self.record, container, &self.objects));
            self.containers[index].start_values = values.unwrap_or_default();
        }
    }

    /// Whether a container has read values at its start that have changed since, and is restarted for that. Init containers and
    /// ephemeral ones run once. A file that it mounts by `subPath` has to be written before it starts again.
    pub fn has_stale_values(&self, slot: &ContainerSlot) -> bool {
        let Some(instance) = slot.instance.as_ref().filter(|_| matches!(slot.role, Role::Main | Role::Sidecar)) else {
            return false;
        };
        let wanted = || RestartOnChange::from_pod(&self.record);
        !slot.start_values.is_empty()
            && slot.start_values.demand_restart(instance.start_values, wanted())
            && self.volumes_are_current()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use jiff::Timestamp;
    use limpet_model::object::{ObjectKind, PodObjects};
    use limpet_model::pod::{Fingerprint, PodRecord};
    use limpet_model::source::SourceKind;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{READY, exit, image, instance, now, ready};
    use crate::outcome::{self, Outcome, begin};
    use crate::plan::{Action, KillCause, Step, plan};
    use crate::state::Now;

    /// A running pod whose container `env` has the ConfigMap in its environment, and `file` as a whole volume.
    fn pod(policy: &str, annotation: &str) -> PodState {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "annotations": {"limpet.dev/restart-on-change": annotation}},
            "spec": {"restartPolicy": policy,
                "initContainers": [{"name": "init", "image": "app:1", "envFrom": [{"configMapRef": {"name": "m"}}]}],
                "containers": [
                    {"name": "env", "image": "app:1", "envFrom": [{"configMapRef": {"name": "m"}}]},
                    {"name": "file", "image": "app:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
                ],
                "volumes": [{"name": "v", "configMap": {"name": "m"}}]}});
        let record = limpet_model::manifest::restore(pod.to_string().as_bytes(), "w.yaml", SourceKind::File, "node");
        let mut pod = ready(PodState::new(Arc::new(record.unwrap()), Timestamp::UNIX_EPOCH));
        give(&mut pod, "one");
        for index in 0..3 {
            start(&mut pod, index);
        }
        pod.containers[0].instance.as_mut().unwrap().end(exit(0), now());
        pod
    }

    /// Starts a container with what its pod has now.
    fn start(pod: &mut PodState, index: usize) {
        let container = pod.container_spec(&pod.containers[index].name).unwrap().clone();
        let attempt = pod.containers[index].next_attempt();
        let mut first = instance(&pod.containers[index], attempt);
        first.start_values = StartValues::new(&pod.record, &container, &pod.objects);
        pod.containers[index].succeed(first);
        pod.containers[index].image = image();
    }

    /// Gives the pod the ConfigMap with that value, and writes its volume.
    fn give(pod: &mut PodState, value: &str) {
        let map = json!({"metadata": {"name": "m"}, "data": {"k": value}});
        let map = Arc::new(limpet_model::object::decode(&map, ObjectKind::ConfigMap, Arc::from("m.yaml")).0.unwrap());
        pod.take_objects(Arc::new(PodObjects::collect(&pod.record, |key| (*key == map.key).then(|| Arc::clone(&map)))));
    }

    fn write_volumes(pod: &mut PodState, now: Now) {
        begin(pod, &Action::UpdateVolumes);
        outcome::apply(pod, Outcome::VolumesUpdated(Ok(())), now);
    }

    fn stops(pod: &PodState, now: Now) -> Vec<Action> {
        let Step::Do(actions) = plan(pod, READY, now.mono) else { return Vec::new() };
        actions.into_iter().filter(|action| matches!(action, Action::Stop(..))).collect()
    }

    #[test]
    fn a_container_is_restarted_once_per_change_whatever_its_policy() {
        for policy in ["Always", "Never"] {
            let (mut pod, now) = (pod(policy, "configmaps"), now());
            write_volumes(&mut pod, now);
            assert_eq!(stops(&pod, now), [], "{policy}: nothing has changed");
            give(&mut pod, "two");
            assert_eq!(stops(&pod, now), [], "{policy}: the volume is not written yet");
            write_volumes(&mut pod, now);
            let stops_now = stops(&pod, now);
            let [Action::Stop(1, stopping, KillCause::ValuesChanged)] = stops_now[..] else { panic!("{stops_now:?}") };
            assert!(stopping.grace_over >= now.mono + Duration::from_secs(30), "its own grace: {stopping:?}");
            begin(&mut pod, &stops_now[0]);
            pod.containers[1].instance.as_mut().unwrap().pause = Duration::from_secs(300);
            pod.containers[1].instance.as_mut().unwrap().end(exit(0), now);
            let Step::Do(actions) = plan(&pod, READY, now.mono) else { panic!("nothing starts") };
            assert!(actions.contains(&Action::Start(1)), "{policy}, at once: {actions:?}");
            start(&mut pod, 1);
            assert_eq!(stops(&pod, now), [], "{policy}: it has the new value");
        }
    }

    #[test]
    fn without_the_annotation_nothing_is_restarted_and_with_it_what_is_outdated_is() {
        let (mut pod, now) = (pod("Always", "secrets"), now());
        give(&mut pod, "two");
        write_volumes(&mut pod, now);
        assert_eq!(stops(&pod, now), [], "only Secrets count");
        let mut edited = pod.record.pod.clone();
        edited.metadata.annotations =
            Some([("limpet.dev/restart-on-change".to_owned(), "configmaps,secrets".to_owned())].into());
        pod.update(Arc::new(PodRecord { pod: edited, fingerprint: Fingerprint([7; 16]), ..(*pod.record).clone() }));
        write_volumes(&mut pod, now);
        assert!(
            matches!(stops(&pod, now)[..], [Action::Stop(1, _, KillCause::ValuesChanged)]),
            "{:?}",
            stops(&pod, now)
        );
    }

    #[test]
    fn what_an_earlier_version_started_or_what_is_gone_restarts_nothing() {
        let (mut pod, now) = (pod("Always", "configmaps"), now());
        pod.take_objects(Arc::new(PodObjects::collect(&pod.record, |_| None)));
        write_volumes(&mut pod, now);
        assert_eq!(stops(&pod, now), [], "it could not start without the ConfigMap");
        pod.containers[1].instance.as_mut().unwrap().start_values = StartValues::default();
        give(&mut pod, "two");
        write_volumes(&mut pod, now);
        assert_eq!(stops(&pod, now), [], "nobody knows what it has read");
    }
}
