//! The stop of a container: its hook, its signal, and SIGKILL, each as the plan asks for it. An exit whose event was lost
//! is noticed here.

use limpet_core::adopt::{observed_exit, unknown_exit};
use limpet_core::outcome::{Failure, Outcome};
use limpet_core::plan::KillCause;
use limpet_core::state::{Instance, PodState, StopPhase, Stopping};
use limpet_host::clock;
use limpet_model::container::{Exit, Task};
use limpet_model::process::SIGKILL;

use super::{ContainerdExecutor, failure};

impl ContainerdExecutor {
    /// The action of one phase of a container's stop.
    pub(super) async fn stop(&self, pod: &PodState, index: usize, stopping: Stopping, cause: KillCause) -> Outcome {
        let (slot, phase) = (&pod.containers[index], stopping.phase);
        let Some(instance) = &slot.instance else {
            return Outcome::Stopped { index, id: None, phase, result: Ok(None) };
        };
        let result = match phase {
            StopPhase::PreStop => {
                self.reporter.report_killing(pod, slot, cause);
                self.pre_stop(pod, slot, &instance.id, stopping.grace_over.into()).await
            }
            StopPhase::Signal => {
                if stopping.hook_over.is_none() {
                    self.reporter.report_killing(pod, slot, cause);
                }
                self.signal(pod, instance, instance.stop_signal.number(), false).await
            }
            StopPhase::Kill => {
                tracing::info!(pod = %pod.record.key, container = slot.name, "the grace period has expired; sending SIGKILL");
                let again = slot.stopping().is_some_and(|before| before.phase == StopPhase::Kill);
                match self.signal(pod, instance, SIGKILL, true).await {
                    Ok(None) if again => self.exit_without_event(pod, instance, SIGKILL).await,
                    result => result,
                }
            }
        };
        Outcome::Stopped { index, id: Some(instance.id.clone()), phase, result }
    }

    /// Checks for an exit after a signal that met no process, or a SIGKILL that had no effect, because the process
    /// may have ended and its event was lost. A process that lives on without a task is killed with its cgroup, once
    /// SIGKILL is due.
    async fn exit_without_event(
        &self,
        pod: &PodState,
        instance: &Instance,
        signal: u32,
    ) -> Result<Option<Exit>, Failure> {
        let task = self.containers.task(&instance.id).await.map_err(|error| failure("FailedKillPod", &error))?;
        let lives = || self.cgroups.process_of(&pod.record.uid, instance.id.as_str()).is_some();
        match task {
            None if lives() && signal == SIGKILL => self.clear_cgroup(pod, &instance.id).await,
            None => {}
            Some(Task::Stopped { code, at }) => return Ok(Some(observed_exit(code, at))),
            Some(Task::Created | Task::Running { .. } | Task::Unknown { .. }) => return Ok(None),
        }
        Ok((!lives()).then(|| unknown_exit(clock::now())))
    }

    async fn signal(
        &self,
        pod: &PodState,
        instance: &Instance,
        signal: u32,
        all: bool,
    ) -> Result<Option<Exit>, Failure> {
        let sent = self.timed("stop_container", self.containers.kill(&instance.id, signal, all)).await;
        match sent.map_err(|error| failure("FailedKillPod", &error))? {
            true => Ok(None),
            false => self.exit_without_event(pod, instance, signal).await,
        }
    }
}
