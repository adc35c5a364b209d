//! Reports of workers and the executor to people and machines: status, events, log lines, counts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::watch;

use crate::event::{EventType, Events};
use crate::health::Health;
use crate::metrics::{ContainerType, MergeChange, Metrics};
use limpet_core::admission::{self, Refusal, pending_message};
use limpet_core::merge::{DesiredPods, Duplicate, PodChange};
use limpet_core::node_state::NodeState;
use limpet_core::plan::awaits::Awaited;
use limpet_core::plan::{self, KillCause};
use limpet_core::state::{ContainerSlot, ImageState, Instance, Life, Now, PodState, RefusedResize, ResizeRefusal};
use limpet_core::status::generate::generate;
use limpet_core::status::observed::{Observed, ObservedContainer, ObservedPod};
use limpet_core::status::retired::DroppedStatus;
use limpet_host::network::NetworkStatus;
use limpet_model::container::ContainerId;
use limpet_model::pod::{PodKey, PodRecord, Role};
use limpet_model::verdict::PodVerdict;

/// Reports about pods and the runtime.
#[derive(Debug)]
pub struct Reporter {
    /// containerd's socket, for messages.
    pub runtime_endpoint: PathBuf,
    pub node_name: String,
    /// Whether pods can have a pod network.
    pub network: watch::Receiver<NetworkStatus>,
    pub events: Events,
    pub metrics: Metrics,
    pub observed: Observed,
    pub health: Health,
    /// The devices of plugins that containers have.
    pub devices: Arc<dyn DeviceHealth>,
}

/// The health of containers' plugin devices, as far as a pod's status shows it.
pub trait DeviceHealth: fmt::Debug + Send + Sync {
    /// Writes the health of the devices that the pod's containers have into its status, as kubelet does.
    fn show_health(&self, record: &PodRecord, status: &mut PodStatus);
}

impl Reporter {
    /// Publishes the pod's status for readers, if it has changed.
    pub fn publish(&self, pod: &PodState, node: NodeState, now: Now) {
        let known = self.observed.load().pods.get(&pod.record.key).cloned();
        let same_pod = known.as_ref().filter(|known| known.record.uid == pod.record.uid);
        let before = same_pod.map(|known| &known.status);
        let mut status = match pod.is_remains {
            true => before.or(pod.record.pod.status.as_ref()).cloned().unwrap_or_default(),
            false => generate(pod, node, pod.record.qos_class.as_str(), now, before),
        };
        self.devices.show_health(&pod.record, &mut status);
        let observed = ObservedPod {
            record: Arc::clone(pod.refused_resize.as_ref().map_or(&pod.record, |refused| &refused.desired)),
            allocated: pod.refused_resize.is_some().then(|| Arc::clone(&pod.record)),
            static_cpus: pod.static_cpus,
            status,
            note: note(pod),
            terminating_since: pod.ending.map(|ending| ending.since),
            containers: containers(pod),
        };
        if same_pod.is_some_and(|known| **known == observed) {
            return;
        }
        if before.and_then(|status| status.phase.as_deref()) == Some("Pending")
            && observed.status.phase.as_deref() == Some("Running")
        {
            self.metrics.pod_started(now.wall.duration_since(pod.start_time).try_into().unwrap_or_default());
        }
        self.report_overdue(self.observed.publish(&pod.record.key, Some(Arc::new(observed))));
    }

    /// Shows a note on the pod until its worker publishes the next status.
    pub fn publish_note(&self, record: &PodRecord, note: String) {
        let known = self.observed.load().pods.get(&record.key).cloned();
        if let Some(known) = known.filter(|known| known.record.uid == record.uid) {
            let noted = ObservedPod { note: Some(note), ..(*known).clone() };
            self.observed.publish(&record.key, Some(Arc::new(noted)));
        }
    }

    /// Reports that the node already runs as many pods as it may, so this one waits for a slot, or fails.
    pub fn report_out_of_pods(&self, record: &Arc<PodRecord>, verdict: PodVerdict, node: NodeState, now: Now) {
        let known = self.observed.load().pods.get(&record.key).cloned();
        let known = known.filter(|known| known.record.uid == record.uid);
        let is_shown = |known: &ObservedPod| {
            Arc::ptr_eq(&known.record, record) && known.status.message.as_ref() == Some(&verdict.message)
        };
        if known.as_deref().is_some_and(is_shown) {
            // Otherwise each freed slot would report all but one of ten thousand waiting manifests again.
            return;
        }
        let start = known.and_then(|known| known.status.start_time.clone());
        let mut pod = PodState::new(Arc::clone(record), start.map_or(now.wall, |start| start.0));
        self.report_not_admitted(&pod, &verdict);
        pod.refuse(verdict);
        self.publish(&pod, NodeState { runtime_ready: true, network_ready: true, ..node }, now);
    }

    /// Whether this node has rejected this pod and its source does not show that yet.
    pub fn has_refused(&self, record: &PodRecord) -> bool {
        let observed = self.observed.load();
        let known = observed.pods.get(&record.key).filter(|known| known.record.uid == record.uid);
        let failed = |known: &Arc<ObservedPod>| known.status.phase.as_deref() == Some("Failed");
        record.source.traits().is_replaced && known.is_some_and(failed)
    }

    /// Reports that the pod's deadline has passed.
    pub fn report_deadline(&self, pod: &PodState, verdict: &PodVerdict) {
        let PodVerdict { reason, message, .. } = verdict;
        tracing::info!(pod = %pod.record.key, uid = %pod.record.uid, %reason, message, "the node terminates the pod");
        let key = Some((pod.record.key.clone(), pod.record.uid.clone()));
        self.events.emit(key, None, EventType::Normal, "DeadlineExceeded", message.clone());
    }

    /// Reports that the pod is evicted because the node is short of a resource.
    pub fn report_eviction(&self, pod: &PodState, verdict: &PodVerdict) {
        let PodVerdict { reason, message, .. } = verdict;
        tracing::warn!(pod = %pod.record.key, uid = %pod.record.uid, %reason, message, "pod evicted");
        self.event(pod, None, EventType::Warning, reason.clone(), message.clone());
    }

    /// Reports that the reason for the pod's eviction no longer applies, so it runs again.
    pub fn report_eviction_over(&self, pod: &PodState) {
        let eviction = pod.verdict.as_ref().and_then(|verdict| verdict.eviction);
        let message = match eviction.map(|eviction| eviction.pressure.as_str()) {
            Some(pressure) => format!("The node's condition {pressure} is over: the pod runs again"),
            None if pod.exceeded_limit() => "What the pod took of the disk is free: the pod runs again".to_owned(),
            None => return,
        };
        tracing::info!(pod = %pod.record.key, uid = %pod.record.uid, message, "an evicted pod is created again");
        self.event(pod, None, EventType::Normal, "EvictionOver", message);
    }

    /// Reports that the node is shutting down, and ends the pod within `grace` at most.
    pub fn report_shutdown(&self, pod: &PodState, grace: Duration) {
        tracing::info!(pod = %pod.record.key, uid = %pod.record.uid, ?grace, "pod terminated: the node is shutting down");
    }

    /// Reports that the node does not shut down after all, so the pod runs again.
    pub fn report_shutdown_over(&self, pod: &PodState) {
        tracing::info!(pod = %pod.record.key, uid = %pod.record.uid, "the shutdown was cancelled: the pod runs again");
    }

    /// Retires a pod that is gone; its last status stays for registered consumers.
    pub fn retire(&self, key: &PodKey) {
        if let Some(known) = self.observed.load().pods.get(key) {
            self.metrics.forget_probes(&known.record);
        }
        self.report_overdue(self.observed.publish(key, None));
    }

    /// Whether the pod's last status waits for its consumers.
    pub fn is_retired(&self, record: &PodRecord) -> bool {
        self.observed.load().is_awaited(&record.uid)
    }

    /// Retires a pod that ends without ever having been started here, so that consumers of last statuses learn that
    /// it is gone.
    pub fn retire_unstarted(&self, record: &Arc<PodRecord>) {
        if self.is_retired(record) {
            return;
        }
        let pod = ObservedPod {
            status: record.pod.status.clone().unwrap_or_default(),
            record: Arc::clone(record),
            allocated: None,
            static_cpus: false,
            note: None,
            terminating_since: None,
            containers: BTreeMap::new(),
        };
        self.report_overdue(self.observed.publish(&record.key, Some(Arc::new(pod))));
        self.retire(&record.key);
    }

    fn report_overdue(&self, overdue: Option<DroppedStatus>) {
        if let Some(DroppedStatus { pod, consumers }) = overdue {
            tracing::warn!(pod = %pod.record.key, uid = %pod.record.uid, ?consumers, "a final status was dropped before every consumer had read it");
        }
    }

    /// Reports that the node does not admit the pod, now or at all.
    pub fn report_not_admitted(&self, pod: &PodState, verdict: &PodVerdict) {
        if !verdict.is_final() {
            let when = if admission::waits(pod) { "The pod starts when that is over" } else { "" };
            return self.report_wait(pod, None, verdict.reason.clone(), format!("{}{when}", verdict.message));
        }
        tracing::warn!(pod = %pod.record.key, reason = %verdict.reason, message = verdict.cause(), "pod rejected");
        self.event(pod, None, EventType::Warning, verdict.reason.clone(), verdict.cause().to_owned());
    }

    /// Reports that the host lacks something that the pod names: it was refused for that, or is retried.
    pub fn report_host_lack(&self, pod: &PodState, refusal: &Refusal) {
        let Refusal { reason, message } = refusal;
        if let Some(verdict) = pod.verdict.as_ref().filter(|verdict| verdict.is_final()) {
            return self.report_not_admitted(pod, verdict);
        }
        tracing::warn!(pod = %pod.record.key, reason, message, "the node cannot run the pod yet");
        self.event(pod, None, EventType::Warning, reason.clone(), message.clone());
    }

    /// The pod does not get the resources of a newer version: kubelet's events.
    pub fn report_refused_resize(&self, pod: &PodState, desired: &PodRecord, refusal: ResizeRefusal, cause: &Refusal) {
        let (what, event) = match refusal {
            ResizeRefusal::Deferred => ("resize deferred", "ResizeDeferred"),
            ResizeRefusal::Infeasible => ("resize infeasible", "ResizeInfeasible"),
        };
        tracing::warn!(pod = %pod.record.key, reason = cause.reason, message = cause.message, "{what}");
        self.event(pod, None, EventType::Warning, event, pending_message(desired, cause));
    }

    /// Reports that the pod waits for a CNI configuration.
    pub fn report_network_wait(&self, pod: &PodState) {
        let message = format!("network is not ready: {}", *self.network.borrow());
        self.report_wait(pod, None, plan::NETWORK_NOT_READY, message);
    }

    /// Reports that a container waits for a missing object to which its pod refers.
    pub fn report_awaited(&self, pod: &PodState, slot: &ContainerSlot, awaited: &Awaited) {
        self.report_wait(pod, Some(&slot.name), "Failed", awaited.to_string());
    }

    /// Reports once per pod what it waits for.
    fn report_wait(
        &self,
        pod: &PodState,
        container: Option<&str>,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        if !self.events.has((&pod.record.key, &pod.record.uid), &message) {
            tracing::warn!(pod = %pod.record.key, message, "pod is waiting");
            self.event(pod, container, EventType::Warning, reason, message);
        }
    }

    /// Reports that a container is being ended, and why.
    pub fn report_killing(&self, pod: &PodState, slot: &ContainerSlot, cause: KillCause) {
        let message = match cause {
            KillCause::PodEnds => format!("Stopping container {}", slot.name),
            KillCause::DefinitionChanged if slot.role == Role::Sidecar => {
                format!("Init container {} definition changed", slot.name)
            }
            KillCause::DefinitionChanged => format!("Container {} definition changed, will be restarted", slot.name),
            KillCause::PostStartFailed => "FailedPostStartHook".to_owned(),
            KillCause::ProbeFailed(kind) => {
                let probe = kind.to_string().to_ascii_lowercase();
                let own_policy =
                    pod.container_spec(&slot.name).and_then(|container| container.restart_policy.as_deref());
                let restarts = own_policy.unwrap_or(plan::restart_policy(pod)) != "Never";
                match slot.role {
                    Role::Sidecar => format!("Init container {} failed {probe} probe", slot.name),
                    _ if restarts => format!("Container {} failed {probe} probe, will be restarted", slot.name),
                    _ => format!("Container {} failed {probe} probe", slot.name),
                }
            }
            KillCause::AllRestart => format!("Container {} is restarted with all containers of its pod", slot.name),
            KillCause::RestartAsked => format!("Container {} is restarted on request", slot.name),
            KillCause::ValuesChanged => {
                format!("Container {} is restarted: values that it has read at its start have changed", slot.name)
            }
            KillCause::SandboxLost => "Pod sandbox changed, it will be killed and re-created.".to_owned(),
        };
        let signal = slot.instance.as_ref().map(|instance| instance.stop_signal).unwrap_or_default();
        tracing::info!(pod = %pod.record.key, uid = %pod.record.uid, container = slot.name, cause = message, "{signal}");
        self.event(pod, Some(&slot.name), EventType::Normal, "Killing", message);
    }

    /// Reports that the OOM killer killed a process of a container other than its first one.
    pub fn report_survived(&self, pod: &PodState, id: &ContainerId, kills: u64) {
        let mut instances = pod.containers.iter().filter_map(|slot| Some((slot, slot.instance.as_ref()?)));
        let Some((slot, instance)) = instances.find(|(_, instance)| instance.id == *id && instance.is_running()) else {
            return;
        };
        let new = kills.saturating_sub(instance.oom_kills_survived);
        if new > 0 {
            let message =
                format!("Memory limit reached: {new} processes of container {} were killed; it runs on", slot.name);
            tracing::warn!(pod = %pod.record.key, container = slot.name, kills = new, "a process was OOM-killed; the container keeps running");
            self.event(pod, Some(&slot.name), EventType::Warning, "OOMKilling", message);
        }
    }

    /// Reports that the container's image was already present.
    pub fn report_image_present(&self, pod: &PodState, slot: &ContainerSlot, image: &str) {
        let message = format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
        self.event(pod, Some(&slot.name), EventType::Normal, "Pulled", message);
    }

    /// Reports that a container runs.
    pub fn report_start(&self, pod: &PodState, slot: &ContainerSlot) {
        let name = &slot.name;
        self.event(pod, Some(name), EventType::Normal, "Created", format!("Created container: {name}"));
        self.event(pod, Some(name), EventType::Normal, "Started", format!("Started container {name}"));
    }

    /// Reports that a container could not be started.
    pub fn report_start_failure(&self, pod: &PodState, slot: &ContainerSlot, reason: &str, message: &str) {
        tracing::warn!(pod = %pod.record.key, container = slot.name, reason, message, "container not started");
        self.event(pod, Some(&slot.name), EventType::Warning, "Failed", format!("Error: {message}"));
    }

    /// Reports a container's end: a log line, and an event if a pause follows.
    pub fn report_exit(&self, pod: &PodState, index: usize, now: Now) {
        let slot = &pod.containers[index];
        let Some(Instance { life: Life::Exited { exit, retry_at, .. }, attempt, .. }) = &slot.instance else { return };
        tracing::info!(
            pod = %pod.record.key, uid = %pod.record.uid, container = slot.name, attempt, code = exit.code,
            reason = exit.reason, "container exited"
        );
        self.metrics.container_terminated(ContainerType::role(slot.role), exit.code, &exit.reason);
        if pod.ending.is_none() && *retry_at > now.mono {
            let message = format!(
                "Back-off restarting failed container {} in pod {}_{}({})",
                slot.name,
                pod.record.key.name(),
                pod.record.key.namespace(),
                pod.record.uid
            );
            self.event(pod, Some(&slot.name), EventType::Warning, "BackOff", message);
        }
    }

    /// Reports pods that claim the same key or UID, to the one that runs and to the one that does not, once per pair.
    pub fn report_duplicates(&self, desired: &DesiredPods, contested: &[PodKey]) {
        let duplicates = contested.iter().filter_map(|key| desired.duplicates.get(key));
        for duplicate in duplicates.flat_map(|duplicates| duplicates.iter()) {
            let Duplicate { winner, loser } = duplicate;
            let reference = |record: &PodRecord| Some((record.key.clone(), record.uid.clone()));
            let to_loser = duplicate.loser_message();
            self.events.emit(reference(winner), None, EventType::Warning, "DuplicatePod", duplicate.winner_message());
            if self.events.emit(reference(loser), None, EventType::Warning, "DuplicatePod", to_loser.clone()) == 1 {
                tracing::warn!(pod = %loser.key, source = %loser.source, file = %loser.origin, "{to_loser}");
            }
        }
        if !contested.is_empty() {
            self.observed.touch();
        }
    }

    /// Counts the changes of a merge.
    pub fn count_merge(&self, changes: &[PodChange], took: Duration) {
        self.metrics.merged(took);
        for change in changes {
            self.metrics.merge_change(match change {
                PodChange::Added(_) => MergeChange::Added,
                PodChange::Updated { .. } => MergeChange::Updated,
                PodChange::Deleting { .. } => MergeChange::Deleting,
                PodChange::Removed(_) => MergeChange::Removed,
                PodChange::Reconciled { .. } => MergeChange::Reconciled,
            });
        }
    }

    /// Reports that containerd is connected and its state was read.
    pub fn runtime_ready(&self, containers: usize, adopted: usize) {
        self.connected(true);
        let socket = self.runtime_endpoint.display();
        tracing::info!(%socket, containers, adopted, "connected to containerd");
    }

    fn connected(&self, connected: bool) {
        self.metrics.set_containerd_connected(connected);
        self.health.set_containerd(connected);
    }

    /// Reports that containerd is gone.
    pub fn runtime_gone(&self, pods: usize) {
        self.connected(false);
        let socket = self.runtime_endpoint.display();
        tracing::warn!(%socket, "containerd gone; {pods} pods keep running, waiting for it");
    }

    /// Reports that containerd was away when the agent started.
    pub fn runtime_absent(&self) {
        self.connected(false);
        let socket = self.runtime_endpoint.display();
        tracing::warn!(%socket, "containerd is not reachable, waiting for it; see: limpet doctor");
    }

    /// Emits an event of the pod.
    pub fn event(
        &self,
        pod: &PodState,
        container: Option<&str>,
        kind: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        let key = Some((pod.record.key.clone(), pod.record.uid.clone()));
        self.events.emit(key, field_path(pod, container), kind, reason, message);
    }
}

/// The path of the container with this name in the Pod.
fn field_path(pod: &PodState, container: Option<&str>) -> Option<String> {
    let slot = pod.containers.iter().find(|slot| Some(slot.name.as_str()) == container)?;
    Some(slot.role.field_path(&slot.name))
}

fn containers(pod: &PodState) -> BTreeMap<String, ObservedContainer> {
    let observed = |slot: &ContainerSlot| {
        let instance = slot.instance.as_ref()?;
        let pid = match instance.life {
            Life::Running { pid, .. } => Some(pid),
            Life::Exited { .. } => None,
        };
        Some((
            slot.name.clone(),
            ObservedContainer {
                id: instance.id.to_string(),
                pid,
                log_path: instance.log_path.parent().unwrap_or(&instance.log_path).to_owned(),
                restart_count: instance.attempt,
            },
        ))
    };
    pod.containers.iter().filter_map(observed).collect()
}

/// The most important remark about the pod that its status column does not show.
fn note(pod: &PodState) -> Option<String> {
    if pod.hanging.is_some() {
        return pod.hanging.clone();
    }
    if let Some(verdict) = &pod.verdict {
        return Some(verdict.message.clone());
    }
    if let Some(retry) = pod.retry.as_ref().or(pod.volumes.retry.as_ref()) {
        return Some(retry.message.clone());
    }
    let failing = pod.containers.iter().find_map(|slot| match (&slot.retry, &slot.image) {
        (Some(retry), _) => Some(retry.message.clone()),
        (None, ImageState::Failed(retry)) => Some(retry.message.clone()),
        _ => None,
    });
    let refused = || {
        let RefusedResize { refusal, message, .. } = &**pod.refused_resize.as_ref()?;
        Some(format!("resize {}: {message}", refusal.reason().to_lowercase()))
    };
    failing.or_else(refused).or_else(|| debugged_by(pod))
}

/// The ephemeral containers that run in the pod, which no other column shows.
fn debugged_by(pod: &PodState) -> Option<String> {
    let running = pod.containers.iter().filter(|slot| slot.role == Role::Ephemeral && slot.is_running());
    let names: Vec<&str> = running.map(|slot| slot.name.as_str()).collect();
    (!names.is_empty()).then(|| format!("debugged by {}", names.join(", ")))
}
