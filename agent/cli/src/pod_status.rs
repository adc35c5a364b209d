//! READY, STATUS and RESTARTS of a Pod for `limpet pods`, computed as kubectl does (k8s.io/kubernetes,
//! pkg/printers/internalversion, printPod). Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};

use super::screen::Tone;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Summary {
    /// Containers that are ready, sidecars included.
    pub(super) ready: usize,
    /// All regular containers and sidecars.
    pub(super) total: usize,
    /// `Running`, `CrashLoopBackOff`, `Init:0/1`, …
    pub(super) status: String,
    /// Restarts of the counted containers.
    pub(super) restarts: i64,
    /// When the last restarted container exited.
    pub(super) last_restart: Option<Timestamp>,
}

impl Summary {
    pub(super) fn new(pod: &Pod) -> Self {
        let default = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&default);
        let phase = status.phase.clone().unwrap_or_else(|| "Unknown".to_owned());
        let spec_containers = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
        let mut summary = Self {
            ready: 0,
            total: spec_containers + sidecars(pod).count(),
            status: status.reason.clone().filter(|reason| !reason.is_empty()).unwrap_or_else(|| phase.clone()),
            restarts: 0,
            last_restart: None,
        };
        let initializing = summary.add_init_containers(pod, status);
        if !initializing || condition(status, "Initialized") {
            summary.add_containers(pod, status);
        }
        let terminal = phase == "Succeeded" || phase == "Failed";
        if pod.metadata.deletion_timestamp.is_some() && !terminal {
            summary.status = "Terminating".to_owned();
        }
        summary
    }

    /// Processes init containers in order, up to the first unfinished one; true if there is one.
    fn add_init_containers(&mut self, pod: &Pod, status: &PodStatus) -> bool {
        let of_spec = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref()).map_or(0, Vec::len);
        for (index, container) in status.init_container_statuses.iter().flatten().enumerate() {
            self.count_restarts(container);
            let sidecar = sidecars(pod).any(|name| name == container.name);
            let state = container.state.as_ref();
            let terminated = state.and_then(|state| state.terminated.as_ref());
            if terminated.is_some_and(|terminated| terminated.exit_code == 0) {
                continue;
            }
            if sidecar && container.started == Some(true) {
                self.ready += usize::from(container.ready);
                continue;
            }
            let waiting = state.and_then(|state| state.waiting.as_ref()).and_then(|waiting| waiting.reason.as_deref());
            self.status = match (terminated, waiting) {
                (Some(terminated), _) => format!("Init:{}", termination_reason(terminated)),
                (None, Some(reason)) if !reason.is_empty() && reason != "PodInitializing" => format!("Init:{reason}"),
                _ => format!("Init:{index}/{of_spec}"),
            };
            return true;
        }
        false
    }

    /// Processes the regular containers. Restarts of finished init containers are not counted, those of sidecars are.
    fn add_containers(&mut self, pod: &Pod, status: &PodStatus) {
        (self.restarts, self.last_restart) = (0, None);
        for container in status.init_container_statuses.iter().flatten() {
            if sidecars(pod).any(|name| name == container.name) {
                self.count_restarts(container);
            }
        }
        let mut running = false;
        for container in status.container_statuses.iter().flatten().rev() {
            self.count_restarts(container);
            let Some(state) = &container.state else { continue };
            let waiting = state.waiting.as_ref().and_then(|waiting| waiting.reason.as_deref());
            if let Some(reason) = waiting.filter(|reason| !reason.is_empty()) {
                self.status = reason.to_owned();
            } else if let Some(terminated) = &state.terminated {
                self.status = termination_reason(terminated);
            } else if container.ready && state.running.is_some() {
                running = true;
                self.ready += 1;
            }
        }
        if self.status == "Completed" && running {
            self.status = if condition(status, "Ready") { "Running" } else { "NotReady" }.to_owned();
        }
    }

    fn count_restarts(&mut self, container: &ContainerStatus) {
        self.restarts += i64::from(container.restart_count);
        let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        let terminated = last.and_then(|terminated| terminated.finished_at.as_ref()).map(|at| at.0);
        self.last_restart = self.last_restart.max(terminated);
    }

    /// The tone of the status.
    pub(super) fn tone(&self) -> Tone {
        match self.status.as_str() {
            "Running" if self.ready == self.total => Tone::Good,
            "Completed" | "Succeeded" => Tone::Faint,
            "Running" | "Pending" | "ContainerCreating" | "PodInitializing" | "Terminating" | "NotReady" => Tone::Warn,
            status if status.starts_with("Init:") && status.contains('/') => Tone::Warn,
            _ => Tone::Bad,
        }
    }
}

/// The names of sidecars: init containers with `restartPolicy: Always`.
fn sidecars(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    containers.filter(|container| container.restart_policy.as_deref() == Some("Always")).map(|c| c.name.as_str())
}

fn termination_reason(terminated: &ContainerStateTerminated) -> String {
    match (terminated.reason.as_deref().unwrap_or_default(), terminated.signal.unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", terminated.exit_code),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn condition(status: &PodStatus, name: &str) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.type_ == name && condition.status == "True")
}

/// Since when the pod is ready; `None`: it is not.
pub(super) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    Some(ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0))
}

#[cfg(test)]
mod tests;
