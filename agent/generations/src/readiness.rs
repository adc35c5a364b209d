//! Whether what a generation wants works: of its pods, and of the pods of its workloads.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus};
use limpet_core::status::observed::{ObservedPod, ObservedPods};
use limpet_kinds::Progress;
use limpet_model::image_name::normalize;
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;

use crate::content::{Content, ItemKey, same_object, same_pod};
use crate::state::Trial;

/// What is known of the node.
pub struct Facts<'a> {
    pub observed: &'a ObservedPods,
    /// How far the workload of a source has come; `None`: its controller does not know it yet.
    pub rollout: &'a dyn Fn(SourceKind, &ObjectKey) -> Option<Progress>,
    /// Nothing is judged: containerd does not answer, or the node shuts down.
    pub is_paused: bool,
}

/// The condition of a subject, or of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Readiness {
    Good,
    /// It may still become good. The text says what it waits for.
    Waiting(String),
    /// It will not become good.
    Failed(String),
}

/// What the pods of one generation are judged by.
pub(crate) struct Judge<'a> {
    pub(crate) source: SourceKind,
    pub(crate) content: &'a Content,
    pub(crate) facts: &'a Facts<'a>,
    /// The trial; `None`: restarts do not count.
    pub(crate) trial: Option<&'a Trial>,
    pub(crate) max_restarts: u32,
    /// A boot is judged: that a Job has failed is the result of its work.
    pub(crate) is_boot: bool,
}

impl Judge<'_> {
    /// The condition of all subjects but those that are exempt: the worst one.
    pub(crate) fn all(&self) -> Readiness {
        let mut all = Readiness::Good;
        for subject in self.content.subjects() {
            if self.trial.is_some_and(|trial| !trial.exempt.is_empty() && trial.exempt.contains(&subject.to_string())) {
                continue;
            }
            match self.subject(&subject) {
                Readiness::Good => {}
                failed @ Readiness::Failed(_) => return failed,
                waiting @ Readiness::Waiting(_) if all == Readiness::Good => all = waiting,
                Readiness::Waiting(_) => {}
            }
        }
        all
    }

    /// The condition of one subject.
    pub(crate) fn subject(&self, subject: &ItemKey) -> Readiness {
        match subject {
            ItemKey::Pod(key) => match self.content.pods.get(key) {
                Some(record) => self.pod(record),
                None => Readiness::Good,
            },
            ItemKey::Object(key) => match self.content.objects.get(key) {
                Some(object) => self.workload(object),
                None => Readiness::Good,
            },
        }
    }

    fn pod(&self, record: &PodRecord) -> Readiness {
        let key = &record.key;
        let Some(observed) = self.facts.observed.pods.get(key) else {
            return Readiness::Waiting(format!("pod {key} has not started"));
        };
        if observed.record.source != self.source {
            // A source with precedence has a pod of this name: it runs, and not this one.
            return Readiness::Good;
        }
        if !same_pod(&observed.record, record) || observed.terminating_since.is_some() {
            return Readiness::Waiting(format!("pod {key} is not replaced yet"));
        }
        self.running_pod(observed, false)
    }

    /// The condition of a pod, as it is.
    pub(crate) fn observed(&self, pod: &ObservedPod) -> Readiness {
        self.running_pod(pod, false)
    }

    fn workload(&self, object: &ObjectRecord) -> Readiness {
        let key = &object.key;
        let Some(rollout) = (self.facts.rollout)(self.source, key) else {
            return Readiness::Waiting(format!("{key} is not rolled out yet"));
        };
        if !same_object(&rollout.object, object) {
            return Readiness::Waiting(format!("{key} is not rolled out yet"));
        }
        if let Some(failure) = rollout.failure.filter(|_| !self.is_boot) {
            return Readiness::Failed(format!("{key} has failed: {failure}"));
        }
        for pod in &rollout.pods {
            let readiness = match self.facts.observed.pods.get(pod) {
                Some(observed) if observed.terminating_since.is_none() => {
                    self.running_pod(observed, rollout.runs_to_end)
                }
                _ => Readiness::Waiting(format!("pod {pod} of {key} has not started")),
            };
            match readiness {
                Readiness::Good => {}
                other => return other,
            }
        }
        match rollout.is_complete {
            true => Readiness::Good,
            false => Readiness::Waiting(format!("{key} is not rolled out yet")),
        }
    }

    /// The condition of a pod that is there in its wanted version. `runs_to_end`: it is good once it runs, and a controller
    /// counts its failures.
    fn running_pod(&self, pod: &ObservedPod, runs_to_end: bool) -> Readiness {
        let (key, status) = (&pod.record.key, &pod.status);
        let is_replaced = pod.record.pod.metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
        match status.phase.as_deref() {
            Some("Succeeded") => return Readiness::Good,
            Some("Failed") if is_replaced || runs_to_end => {
                return Readiness::Waiting(format!("pod {key} has failed{}", reason_of_pod(pod)));
            }
            Some("Failed") => return Readiness::Failed(format!("pod {key} has failed{}", reason_of_pod(pod))),
            _ => {}
        }
        if let Some(trial) = self.trial {
            let grown = restarts_of(pod).saturating_sub(restarts_before(trial, pod));
            if grown > self.max_restarts.saturating_add(trial.boots) {
                let why = pod.status.container_statuses.iter().flatten().find_map(end_of_container).unwrap_or_default();
                return Readiness::Failed(format!("pod {key} was restarted {grown} times{why}"));
            }
        }
        if let Some(container) = outdated_container(pod) {
            return Readiness::Waiting(format!("container {container} of pod {key} is not replaced yet"));
        }
        let is_ready = has_condition(pod, "Ready") || runs_to_end && status.phase.as_deref() == Some("Running");
        match is_ready {
            true => Readiness::Good,
            false => Readiness::Waiting(format!("pod {key} is not ready{}", reason_of_pod(pod))),
        }
    }
}

/// How often the containers of a pod were restarted, all together.
pub(crate) fn restarts_of(pod: &ObservedPod) -> u32 {
    pod.containers.values().map(|container| container.restart_count).fold(0, u32::saturating_add)
}

/// The restarts of all pods before a trial of that content, as far as there were any, and those that it needs itself.
pub(crate) fn restarts_at(
    observed: &ObservedPods,
    source: SourceKind,
    content: &Content,
) -> BTreeMap<String, (String, u32)> {
    let pods = observed.pods.values().filter(|pod| pod.record.source == source);
    let count = |pod: &ObservedPod| restarts_of(pod).saturating_add(edited_containers(pod, content));
    let restarted = pods.map(|pod| (count(pod), pod)).filter(|(count, _)| *count > 0);
    restarted.map(|(count, pod)| (pod.record.key.to_string(), (pod.record.uid.to_string(), count))).collect()
}

/// How many containers of a pod another version of it changes in place.
fn edited_containers(pod: &ObservedPod, content: &Content) -> u32 {
    let next = content.pods.get(&pod.record.key).filter(|next| next.uid == pod.record.uid);
    let Some(next) = next else { return 0 };
    let is_edited = |container: &&Container| next.container(&container.name).is_some_and(|other| other != *container);
    u32::try_from(pod.record.containers().filter(is_edited).count()).unwrap_or(u32::MAX)
}

fn restarts_before(trial: &Trial, pod: &ObservedPod) -> u32 {
    let before = trial.restarts.get(&pod.record.key.to_string());
    before.filter(|(uid, _)| uid == pod.record.uid.as_str()).map_or(0, |(_, count)| *count)
}

fn has_condition(pod: &ObservedPod, name: &str) -> bool {
    pod.status.conditions.iter().flatten().any(|condition| condition.type_ == name && condition.status == "True")
}

/// A container that still runs another image than the pod's newest version has.
fn outdated_container(pod: &ObservedPod) -> Option<&str> {
    let statuses = pod.status.container_statuses.as_deref().unwrap_or_default();
    let image =
        |name: &str| pod.record.spec().containers.iter().find(|container| container.name == name)?.image.as_deref();
    let is_outdated = |status: &&ContainerStatus| {
        let wanted = image(&status.name).and_then(|image| normalize(image).ok());
        wanted.is_some_and(|wanted| normalize(&status.image).ok() != Some(wanted))
    };
    statuses.iter().find(is_outdated).map(|status| status.name.as_str())
}

/// `: reason: message`, as far as they are known.
fn reason_of_pod(pod: &ObservedPod) -> String {
    let status = &pod.status;
    let of_pod = [&status.reason, &status.message].into_iter().flatten().filter(|text| !text.is_empty());
    let of_pod: Vec<&str> = of_pod.map(String::as_str).collect();
    if !of_pod.is_empty() {
        return format!(": {}", of_pod.join(": "));
    }
    let statuses = [&status.init_container_statuses, &status.container_statuses];
    let mut statuses = statuses.into_iter().flatten().flatten();
    let waiting = statuses.find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let parts = [&waiting.reason, &waiting.message].into_iter().flatten().filter(|text| !text.is_empty());
        let parts: Vec<&str> = parts.map(String::as_str).collect();
        Some(format!(": container {}: {}", container.name, parts.join(": ")))
    });
    let note = || pod.note.as_ref().map(|note| format!(": {note}"));
    waiting.or_else(note).unwrap_or_default()
}

/// How a container ended last.
fn end_of_container(status: &ContainerStatus) -> Option<String> {
    let states = [&status.state, &status.last_state];
    let ended = states.into_iter().flatten().find_map(|state| state.terminated.as_ref())?;
    let reason = ended.reason.as_deref().unwrap_or("Error");
    Some(format!(": container {} ended with {}, {reason}", status.name, ended.exit_code))
}
