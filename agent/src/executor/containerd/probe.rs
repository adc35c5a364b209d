//! Runs one probe of a container, and reports the result. Whether that changes anything is decided elsewhere.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::FutureExt as _;
use k8s_openapi::api::core::v1::{self, Container};
use tokio::time::Instant;

use super::ContainerdExecutor;
use super::handler::{Get, HandlerError, Purpose, authority, check_health, port, tcp_connect, within};
use limpet_containerd::spec::expand_probe_command;
use limpet_core::outcome::Outcome;
use limpet_core::state::{Instance, PodState};
use limpet_model::container::ContainerId;
use limpet_model::probe::{ProbeKind, ProbeRecord};
use limpet_telemetry::event::EventType;
use limpet_telemetry::metrics::ProbeResult;

/// How often a probe without a result is tried, as in kubelet.
const MAX_TRIES: usize = 3;

/// The result of a probe, with the output that people read.
#[derive(Debug)]
enum Answer {
    Success,
    /// A success that needs attention.
    Warning(String),
    Failure(String),
}

/// How long one attempt may take.
#[derive(Debug, Clone, Copy)]
struct TimeLimit {
    deadline: Option<Instant>,
    seconds: u64,
}

impl ContainerdExecutor {
    /// Runs the probe of that kind of a container's instance.
    pub(super) async fn probe(&self, pod: &PodState, index: usize, kind: ProbeKind) -> Outcome {
        let slot = &pod.containers[index];
        let id = slot.instance.as_ref().map_or(ContainerId::new(""), |instance| instance.id.clone());
        let container = pod.container_spec(&slot.name);
        let Some((container, spec)) = container.and_then(|container| Some((container, kind.probe_of(container)?)))
        else {
            return Outcome::Probed { index, id, kind, passed: None };
        };
        let mut tries = 1;
        let answer = loop {
            match self.try_probe(pod, container, spec, &id).await {
                Err(_) if tries < MAX_TRIES => tries += 1,
                answer => break answer,
            }
        };
        let (result, event) = match answer {
            Ok(Answer::Success) => (ProbeResult::Successful, None),
            Ok(Answer::Warning(output)) => {
                (ProbeResult::Successful, Some(("ProbeWarning", format!("{kind} probe warning: {output}"))))
            }
            Ok(Answer::Failure(output)) => {
                (ProbeResult::Failed, Some(("Unhealthy", format!("{kind} probe failed: {output}"))))
            }
            Err(error) => {
                let message = format!("{kind} probe errored and resulted in unknown state: {error}");
                (ProbeResult::Unknown, Some(("Unhealthy", message)))
            }
        };
        if let Some((reason, message)) = event {
            let message = pod.objects.redact(message);
            tracing::debug!(pod = %pod.record.key, container = slot.name, message, "probe");
            self.reporter.event(pod, Some(&slot.name), EventType::Warning, reason, message);
        }
        self.reporter.metrics.probed(&pod.record, &slot.name, kind, result);
        let passed = match result {
            ProbeResult::Successful => Some(true),
            ProbeResult::Failed => Some(false),
            ProbeResult::Unknown => None,
        };
        Outcome::Probed { index, id, kind, passed }
    }

    /// One attempt. An error means that the probe itself failed, and says nothing about the container. The larger
    /// futures are boxed, because many probes run at the same time, and most of them open a connection.
    async fn try_probe(
        &self,
        pod: &PodState,
        container: &Container,
        spec: &v1::Probe,
        id: &ContainerId,
    ) -> Result<Answer, HandlerError> {
        let time = Duration::from_secs(spec.timeout_seconds.and_then(|value| value.try_into().ok()).unwrap_or(1));
        let limit = TimeLimit { deadline: Some(Instant::now() + time), seconds: time.as_secs() };
        let address = self.action_address(pod);
        if let Some(action) = &spec.exec {
            return self.probe_by_exec(action, container, id, limit).await;
        }
        if let Some(action) = &spec.http_get {
            return self.probe_by_http(action, container, address, limit).await;
        }
        if let Some(action) = &spec.tcp_socket {
            return probe_by_tcp(action, container, address, limit).await;
        }
        if let Some(action) = &spec.grpc {
            return probe_by_grpc(action, address, limit).await;
        }
        // Validation refuses a probe without an action.
        Ok(Answer::Success)
    }

    async fn probe_by_exec(
        &self,
        action: &v1::ExecAction,
        container: &Container,
        id: &ContainerId,
        limit: TimeLimit,
    ) -> Result<Answer, HandlerError> {
        let (command, env) = (action.command.as_deref(), container.env.as_deref());
        let command = expand_probe_command(command.unwrap_or_default(), env.unwrap_or_default());
        match within(limit.deadline, self.exec(id, &command).boxed()).await {
            Ok(ended) if ended.code == 0 => Ok(Answer::Success),
            Ok(ended) => Ok(Answer::Failure(ended.output)),
            Err(HandlerError::TimedOut) => {
                let (command, seconds) = (command.join(" "), limit.seconds);
                Ok(Answer::Failure(format!("command timed out: {command:?} timed out after {seconds}s")))
            }
            Err(error) => Err(error),
        }
    }

    async fn probe_by_http(
        &self,
        action: &v1::HTTPGetAction,
        container: &Container,
        address: Option<IpAddr>,
        limit: TimeLimit,
    ) -> Result<Answer, HandlerError> {
        let get = Get::new(action, container, address, Purpose::Probe)?;
        let url = get.url().to_string();
        let answered = AtomicBool::new(false);
        match within(limit.deadline, self.getter.send(get, &answered).boxed()).await {
            Ok(answer) if answer.status.is_success() => Ok(Answer::Success),
            Ok(answer) if answer.status.is_redirection() => {
                Ok(Answer::Warning(format!("Probe terminated redirects, Response body: {}", answer.body)))
            }
            Ok(answer) => Ok(Answer::Failure(format!("HTTP probe failed with statuscode: {}", answer.status.as_u16()))),
            // As in kubelet, an answer whose body stalls or breaks off is no result, for example a stream of events.
            Err(error) if answered.load(Ordering::Relaxed) => Err(error),
            Err(HandlerError::TimedOut) => Ok(Answer::Failure(format!(
                "Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            ))),
            Err(error) => Ok(Answer::Failure(error.to_string())),
        }
    }

    /// Records the results of a container's probes.
    pub(super) async fn record_probes(&self, pod: &PodState, index: usize, record: ProbeRecord) -> Outcome {
        let slot = &pod.containers[index];
        let Some(Instance { id, .. }) = &slot.instance else {
            return Outcome::ProbesRecorded { index, id: ContainerId::new(""), done: true };
        };
        let ProbeRecord { started, ready, failed } = record;
        tracing::info!(pod = %pod.record.key, container = slot.name, started, ready, ?failed, "probe results changed");
        let written = self.containers.write_probes(id, &record).await;
        if let Err(error) = &written {
            tracing::warn!(pod = %pod.record.key, container = slot.name, %error, "saving the container's probe results failed");
        }
        Outcome::ProbesRecorded { index, id: id.clone(), done: written.is_ok() }
    }
}

async fn probe_by_tcp(
    action: &v1::TCPSocketAction,
    container: &Container,
    address: Option<IpAddr>,
    limit: TimeLimit,
) -> Result<Answer, HandlerError> {
    match within(limit.deadline, tcp_connect(action, container, address)).await {
        Ok(()) => Ok(Answer::Success),
        Err(error @ HandlerError::Connect { .. }) => Ok(Answer::Failure(error.to_string())),
        Err(HandlerError::TimedOut) => {
            let host = action.host.clone().filter(|host| !host.is_empty());
            let host = host.or(address.map(|ip| ip.to_string())).unwrap_or_default();
            let port = port(&action.port, container)?;
            Ok(Answer::Failure(format!("dial tcp {}: i/o timeout", authority(&host, port))))
        }
        Err(error) => Err(error),
    }
}

async fn probe_by_grpc(
    action: &v1::GRPCAction,
    address: Option<IpAddr>,
    limit: TimeLimit,
) -> Result<Answer, HandlerError> {
    match within(limit.deadline, check_health(action, address).boxed()).await {
        Ok(()) => Ok(Answer::Success),
        Err(error @ HandlerError::Health(_)) => Ok(Answer::Failure(error.to_string())),
        Err(HandlerError::TimedOut) => {
            Ok(Answer::Failure(format!("timeout: health rpc did not complete within {}s", limit.seconds)))
        }
        Err(error) => Err(error),
    }
}
