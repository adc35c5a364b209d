//! The hooks of a container, `postStart` and `preStop`, performed by [`super::handler`].
//!
//! Events contain no more than kubelet's, because the output of a hook's command may contain a secret. The log and
//! the status have all of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Lifecycle, LifecycleHandler};
use limpet_containerd::error::RuntimeError;
use limpet_containerd::exec::ExecError;
use limpet_core::outcome::{Failure, Outcome};
use limpet_core::state::{ContainerSlot, PodState};
use limpet_model::container::{ContainerId, Exit};
use tokio::time::{Instant, sleep, timeout_at};

use super::ContainerdExecutor;
use super::handler::{Executed, Get, HandlerError, Purpose, tcp_connect};
use limpet_telemetry::event::EventType;

/// Why a hook has failed.
enum HookFailure {
    /// Its container no longer runs, so its result does not matter.
    Ended,
    /// Its deadline has passed.
    Late,
    /// containerd was away, so it is not known whether it has run.
    Unknown(String),
    /// It has failed, with kubelet's message.
    Failed(String),
}

impl ContainerdExecutor {
    /// Runs the `postStart` hook. Like kubelet's, it has no deadline.
    pub(super) async fn post_start(&self, pod: &PodState, index: usize) -> Outcome {
        let slot = &pod.containers[index];
        let Some(id) = slot.instance.as_ref().map(|instance| instance.id.clone()) else {
            return Outcome::PostStarted { index, id: None, result: Ok(()) };
        };
        let failed = |message, transient| Err(Failure { reason: "PostStartHookError", message, transient });
        let result = match self.run_hook(pod, slot, &id, |hooks| hooks.post_start.as_ref(), None).await {
            Ok(()) | Err(HookFailure::Ended | HookFailure::Late) => Ok(()),
            Err(HookFailure::Unknown(message)) => failed(message, true),
            Err(HookFailure::Failed(message)) => {
                self.report_hook(pod, slot, "FailedPostStartHook", "PostStartHook failed", &message);
                failed(message, false)
            }
        };
        Outcome::PostStarted { index, id: Some(id), result }
    }

    /// Runs the `preStop` hook, until `deadline` at the latest. The stop continues whatever its result.
    pub(super) async fn pre_stop(
        &self,
        pod: &PodState,
        slot: &ContainerSlot,
        id: &ContainerId,
        deadline: Instant,
    ) -> Result<Option<Exit>, Failure> {
        match self.run_hook(pod, slot, id, |hooks| hooks.pre_stop.as_ref(), Some(deadline)).await {
            Ok(()) | Err(HookFailure::Ended) => {}
            Err(HookFailure::Late) => {
                tracing::info!(pod = %pod.record.key, container = slot.name, "the grace period expired before the preStop hook returned");
            }
            Err(HookFailure::Unknown(message) | HookFailure::Failed(message)) => {
                self.report_hook(pod, slot, "FailedPreStopHook", "PreStopHook failed", &message);
            }
        }
        Ok(None)
    }

    fn report_hook(&self, pod: &PodState, slot: &ContainerSlot, reason: &'static str, event: &str, message: &str) {
        tracing::warn!(pod = %pod.record.key, container = slot.name, message, "{event}");
        self.reporter.event(pod, Some(&slot.name), EventType::Warning, reason, event.to_owned());
    }

    /// Runs a hook that the container's spec has, until `deadline`.
    async fn run_hook(
        &self,
        pod: &PodState,
        slot: &ContainerSlot,
        id: &ContainerId,
        hook: impl Fn(&Lifecycle) -> Option<&LifecycleHandler>,
        deadline: Option<Instant>,
    ) -> Result<(), HookFailure> {
        let container = pod.container_spec(&slot.name);
        let handler = container.and_then(|container| container.lifecycle.as_ref()).and_then(hook);
        let (Some(container), Some(handler)) = (container, handler) else { return Ok(()) };
        let action = self.act(pod, container, id, handler, deadline.is_some());
        let ended = match deadline {
            Some(deadline) => timeout_at(deadline, action).await.unwrap_or(Err(HookFailure::Late)),
            None => action.await,
        };
        ended.map_err(|failure| match failure {
            HookFailure::Failed(cause) => {
                let (kind, name, pod_name) = (kind(handler), &slot.name, pod_name(pod));
                let message = format!("{kind} for Container {name:?} in Pod {pod_name:?} failed - error: {cause}");
                HookFailure::Failed(pod.objects.redact(message))
            }
            other => other,
        })
    }

    /// Performs what a handler requests, without a time limit. `outlived`: a command that is no longer awaited
    /// continues.
    async fn act(
        &self,
        pod: &PodState,
        container: &Container,
        id: &ContainerId,
        handler: &LifecycleHandler,
        outlived: bool,
    ) -> Result<(), HookFailure> {
        if let Some(exec) = &handler.exec {
            let command = exec.command.as_deref().unwrap_or_default();
            let ran = match outlived {
                true => self.exec_with_container(id, command).await,
                false => self.exec(id, command).await,
            };
            let Executed { code, output } = ran.map_err(|error| judge(error.into()))?;
            let failed = || HookFailure::Failed(format!("command exited with {code}, message: {output:?}"));
            return if code == 0 { Ok(()) } else { Err(failed()) };
        }
        if let Some(action) = &handler.http_get {
            let get = Get::new(action, container, self.action_address(pod), Purpose::Lifecycle).map_err(judge)?;
            return self.hook_get(pod, &container.name, get).await.map_err(judge);
        }
        if let Some(socket) = &handler.tcp_socket {
            return tcp_connect(socket, container, self.action_address(pod)).await.map_err(judge);
        }
        if let Some(pause) = &handler.sleep {
            sleep(Duration::from_secs(u64::try_from(pause.seconds).unwrap_or_default())).await;
        }
        Ok(())
    }

    /// Sends a hook's GET. As in kubelet, any answer will do, and a server without TLS gets plain HTTP.
    async fn hook_get(&self, pod: &PodState, container: &str, get: Get) -> Result<(), HandlerError> {
        let answered = AtomicBool::new(false);
        match self.getter.send(get.clone(), &answered).await {
            Ok(_) => Ok(()),
            // The body does not matter.
            Err(_) if answered.load(Ordering::Relaxed) => Ok(()),
            Err(failure) if failure.without_tls => {
                let message = format!(
                    "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                    get.authority()
                );
                let sent = self.getter.send(get.without_tls(), &answered).await;
                if !answered.load(Ordering::Relaxed) {
                    sent?;
                }
                self.reporter.event(pod, Some(container), EventType::Warning, "LifecycleHTTPFallback", message);
                Ok(())
            }
            Err(failure) => Err(failure.into()),
        }
    }
}

/// The hook as kubelet names it in messages.
fn kind(handler: &LifecycleHandler) -> String {
    if let Some(exec) = &handler.exec {
        format!("Exec lifecycle hook ({})", exec.command.as_deref().unwrap_or_default().join(" "))
    } else if let Some(get) = &handler.http_get {
        format!("HTTP lifecycle hook ({})", get.path.as_deref().unwrap_or_default())
    } else if let Some(pause) = &handler.sleep {
        format!("Sleep lifecycle hook ({})", pause.seconds)
    } else {
        "TCP lifecycle hook".to_owned()
    }
}

/// The pod as kubelet names it in messages.
fn pod_name(pod: &PodState) -> String {
    let key = &pod.record.key;
    format!("{}_{}({})", key.name(), key.namespace(), pod.record.uid)
}

fn judge(error: HandlerError) -> HookFailure {
    match &error {
        HandlerError::Exec(ExecError::NotRunning { .. }) => HookFailure::Ended,
        HandlerError::Exec(ExecError::Runtime(RuntimeError::Unavailable { .. } | RuntimeError::Deadline { .. })) => {
            HookFailure::Unknown(error.to_string())
        }
        _ => HookFailure::Failed(error.to_string()),
    }
}
