//! How far a rollout is, in kubectl's words (`rollout_status.go` of `k8s.io/kubectl`). Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use limpet_core::source::resource::Resource;
use limpet_model::object::ObjectKind;
use limpet_model::object::workload::PodTemplate;
use limpet_model::object::workload::labels::{REVISION_HASH, TEMPLATE_HASH};
use limpet_model::pod::is_terminal_phase;
use serde_json::Value;

use crate::pod_status::ready_since;

/// What a rollout comes to.
#[derive(Debug)]
pub(super) struct Rollout {
    kind: ObjectKind,
    name: String,
    /// The label of pods of the template, and its value.
    label: (&'static str, String),
    replicas: usize,
    min_ready: i64,
    /// The first pods of a StatefulSet keep their template.
    partition: usize,
}

/// How far it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// kubectl's line.
    pub(super) message: String,
    pub(super) is_done: bool,
    /// The passing of so much time may change it.
    pub(super) again: Option<Duration>,
}

impl Rollout {
    /// The rollout of the workload's template.
    ///
    /// # Errors
    ///
    /// Pods get the template only when somebody deletes them.
    pub(super) fn new(resource: Resource, name: &str, manifest: &Value) -> Result<Self, String> {
        let (Resource::Object(kind), spec) = (resource, &manifest["spec"]) else {
            return Err(format!("a {} has no rollouts", resource.kind()));
        };
        if spec["updateStrategy"]["type"] == "OnDelete" {
            return Err("rollout status is only available for RollingUpdate strategy type".to_owned());
        }
        let hash = PodTemplate::new(&spec["template"]).hash();
        let label = match kind {
            ObjectKind::Deployment => (TEMPLATE_HASH, hash),
            ObjectKind::StatefulSet => (REVISION_HASH, format!("{name}-{hash}")),
            _ => (REVISION_HASH, hash),
        };
        let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        let replicas = if kind == ObjectKind::DaemonSet { 1 } else { number(&spec["replicas"]).unwrap_or(1) };
        let partition = number(&spec["updateStrategy"]["rollingUpdate"]["partition"]).unwrap_or(0);
        let min_ready = spec["minReadySeconds"].as_i64().unwrap_or(0);
        Ok(Self { kind, name: name.to_owned(), label, replicas, min_ready, partition })
    }

    /// How far it is with these pods of the workload.
    pub(super) fn progress<'a>(&self, pods: impl Iterator<Item = &'a Pod>, now: Timestamp) -> Progress {
        let (mut all, mut updated, mut available, mut again) = (0, 0, 0, None::<Duration>);
        for pod in pods.filter(|pod| !has_ended(pod)) {
            all += 1;
            let labels = pod.metadata.labels.as_ref();
            let is_updated = labels.and_then(|labels| labels.get(self.label.0)) == Some(&self.label.1);
            updated += usize::from(is_updated);
            let Some(ready) = ready_since(pod).filter(|_| is_updated || self.kind == ObjectKind::StatefulSet) else {
                continue;
            };
            let left = self.min_ready - (now.as_second() - ready.as_second());
            match u64::try_from(left) {
                Ok(left @ 1..) => again = Some(Duration::from_secs(left).min(again.unwrap_or(Duration::MAX))),
                _ => available += 1,
            }
        }
        let (message, is_done) = match self.kind {
            ObjectKind::Deployment => self.deployment(all, updated, available),
            ObjectKind::StatefulSet => self.stateful_set(updated, available),
            _ => self.daemon_set(updated, available),
        };
        Progress { message, is_done, again }
    }

    fn deployment(&self, all: usize, updated: usize, available: usize) -> (String, bool) {
        let (name, replicas) = (&self.name, self.replicas);
        let waiting = |what: String| (format!("Waiting for deployment \"{name}\" rollout to finish: {what}..."), false);
        if updated < replicas {
            return waiting(format!("{updated} out of {replicas} new replicas have been updated"));
        }
        if all > updated {
            return waiting(format!("{} old replicas are pending termination", all - updated));
        }
        if available < updated {
            return waiting(format!("{available} of {updated} updated replicas are available"));
        }
        (format!("deployment \"{name}\" successfully rolled out"), true)
    }

    fn daemon_set(&self, updated: usize, available: usize) -> (String, bool) {
        let (name, wanted) = (&self.name, self.replicas);
        let waiting = |what: String| (format!("Waiting for daemon set \"{name}\" rollout to finish: {what}..."), false);
        if updated < wanted {
            return waiting(format!("{updated} out of {wanted} new pods have been updated"));
        }
        if available < wanted {
            return waiting(format!("{available} of {wanted} updated pods are available"));
        }
        (format!("daemon set \"{name}\" successfully rolled out"), true)
    }

    fn stateful_set(&self, updated: usize, available: usize) -> (String, bool) {
        let (replicas, revision) = (self.replicas, &self.label.1);
        if available < replicas {
            return (format!("Waiting for {} pods to be ready...", replicas - available), false);
        }
        let wanted = replicas.saturating_sub(self.partition);
        if self.partition > 0 {
            return match updated < wanted {
                true => {
                    let message = format!("{updated} out of {wanted} new pods have been updated");
                    (format!("Waiting for partitioned roll out to finish: {message}..."), false)
                }
                false => (format!("partitioned roll out complete: {updated} new pods have been updated..."), true),
            };
        }
        match updated < replicas {
            true => {
                let message = format!("rolling update to complete {updated} pods at revision {revision}");
                (format!("waiting for statefulset {message}..."), false)
            }
            false => (format!("statefulset rolling update complete {updated} pods at revision {revision}..."), true),
        }
    }
}

fn has_ended(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).is_some_and(is_terminal_phase)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_000, 0);

    fn rollout(kind: ObjectKind, spec: Value) -> Rollout {
        Rollout::new(Resource::Object(kind), "web", &json!({"spec": spec})).unwrap()
    }

    fn pod((label, value): (&str, &str), ready_at: Option<i64>) -> Pod {
        let condition = ready_at.map(|at| {
            let at = Timestamp::from_second(at).unwrap().to_string();
            json!({"type": "Ready", "status": "True", "lastTransitionTime": at})
        });
        serde_json::from_value(json!({
            "metadata": {"labels": {label: value}}, "status": {"phase": "Running", "conditions": condition.as_slice()},
        }))
        .unwrap()
    }

    #[test]
    fn a_deployment_is_rolled_out_when_its_new_pods_are_available() {
        let rollout = rollout(ObjectKind::Deployment, json!({"replicas": 2, "minReadySeconds": 10}));
        let new = |ready: Option<i64>| pod((TEMPLATE_HASH, &rollout.label.1), ready);
        let old = pod((TEMPLATE_HASH, "old"), Some(0));
        let table = [
            (vec![new(None), old.clone()], "1 out of 2 new replicas have been updated...", None),
            (vec![new(None), new(None), old], "1 old replicas are pending termination...", None),
            (vec![new(Some(0)), new(Some(997))], "1 of 2 updated replicas are available...", Some(7)),
        ];
        for (pods, message, again) in table {
            let progress = rollout.progress(pods.iter(), NOW);
            let message = format!("Waiting for deployment \"web\" rollout to finish: {message}");
            assert_eq!(progress, Progress { message, is_done: false, again: again.map(Duration::from_secs) });
        }
        let progress = rollout.progress([new(Some(0)), new(Some(990))].iter(), NOW);
        assert_eq!((progress.message.as_str(), progress.is_done), ("deployment \"web\" successfully rolled out", true));
    }

    #[test]
    fn the_lines_of_the_other_kinds() {
        let daemon = rollout(ObjectKind::DaemonSet, json!({}));
        let message = |rollout: &Rollout, pods: &[Pod]| rollout.progress(pods.iter(), NOW).message;
        let new = pod((REVISION_HASH, &daemon.label.1), Some(0));
        assert_eq!(message(&daemon, &[new]), "daemon set \"web\" successfully rolled out");
        let waiting = "Waiting for daemon set \"web\" rollout to finish: 0 out of 1 new pods have been updated...";
        assert_eq!(message(&daemon, &[]), waiting);

        let set = rollout(ObjectKind::StatefulSet, json!({"replicas": 1}));
        let (old, new) = (pod((REVISION_HASH, "web-old"), Some(0)), pod((REVISION_HASH, &set.label.1), Some(0)));
        assert_eq!(message(&set, &[]), "Waiting for 1 pods to be ready...");
        let revision = &set.label.1;
        let waiting = format!("waiting for statefulset rolling update to complete 0 pods at revision {revision}...");
        assert_eq!(message(&set, &[old]), waiting);
        let done = format!("statefulset rolling update complete 1 pods at revision {revision}...");
        assert_eq!(message(&set, &[new]), done);
        let on_delete = json!({"spec": {"updateStrategy": {"type": "OnDelete"}}});
        let refused = Rollout::new(Resource::Object(ObjectKind::StatefulSet), "web", &on_delete).unwrap_err();
        assert_eq!(refused, "rollout status is only available for RollingUpdate strategy type");
    }
}
