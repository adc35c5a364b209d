//! Exits of containers: their details are collected and written to the container before its task is deleted, so that they
//! are not lost whatever happens next.

use k8s_openapi::api::core::v1::Container;
use limpet_core::exit_cause::judge;
use limpet_core::outcome::Outcome;
use limpet_core::state::{ContainerSlot, Instance, PodState};
use limpet_host::clock;
use limpet_model::container::Exit;
use limpet_model::image_name::normalize;

use super::start::START_ERROR;
use super::{ContainerdExecutor, ended_state, failure};

impl ContainerdExecutor {
    /// Collects the details of an exit that was just seen, and writes them to the container at once, so that they are
    /// not lost whatever happens next.
    pub(super) async fn write_exit(
        &self,
        pod: &PodState,
        slot: &ContainerSlot,
        instance: &Instance,
        exit: Exit,
    ) -> Exit {
        let exit = self.complete_exit(pod, slot, instance, exit).await;
        let state = ended_state(pod, instance.started_at, &exit);
        if let Err(error) = self.containers.write_state(&instance.id, &state).await {
            // Its task still exists, and reports the same until the exit is written when it is reaped.
            tracing::debug!(pod = %pod.record.key, %error, "an exit could not be recorded yet");
        }
        exit
    }

    /// Adds what the kernel and the container itself report about an exit: OOM and termination message.
    async fn complete_exit(&self, pod: &PodState, slot: &ContainerSlot, instance: &Instance, mut exit: Exit) -> Exit {
        let counted = self.cgroups.ended_out_of_memory(&pod.record, instance.id.as_str(), instance.oom_kills_survived);
        let killing = judge(&mut exit, instance, counted, clock::now().mono);
        if exit.message.is_empty()
            && let Some(container) = pod.container_spec(&slot.name)
        {
            exit.message = self.termination_message(pod, slot, instance).await;
            let fall_back = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
            if exit.message.is_empty() && fall_back && exit.code != 0 {
                let log = instance.log_path.clone();
                exit.message =
                    limpet_containerd::log::reader::tail_for_termination_message(&log).await.unwrap_or_default();
            }
        }
        if let Some(killing) = killing.filter(|_| exit.message.is_empty()) {
            exit.message = killing;
        }
        exit
    }

    async fn termination_message(&self, pod: &PodState, slot: &ContainerSlot, instance: &Instance) -> String {
        let read = self.volumes.termination_message(&pod.record.uid, &slot.name, instance.id.as_str()).await;
        read.unwrap_or_else(|error| {
            tracing::debug!(pod = %pod.record.key, container = slot.name, %error, "the termination message cannot be read");
            String::new()
        })
    }

    /// Records an exit, then deletes task and snapshot. The record stays.
    pub(super) async fn reap(&self, pod: &PodState, index: usize, instance: Option<&Instance>) -> Outcome {
        let Some((instance, exit)) = instance.and_then(|instance| Some((instance, instance.exit()?))) else {
            return Outcome::Forgotten { index, ids: Vec::new() };
        };
        let exit = self.complete_exit(pod, &pod.containers[index], instance, exit.clone()).await;
        let state = ended_state(pod, instance.started_at, &exit);
        let reaped = async {
            self.containers.write_state(&instance.id, &state).await?;
            self.containers.delete_task(&instance.id).await?;
            if exit.reason == START_ERROR {
                self.clear_cgroup(pod, &instance.id).await;
            }
            self.containers.remove_snapshot(&instance.id).await
        };
        let result = self.timed("remove_task", reaped).await;
        if pod.container_spec(&pod.containers[index].name).and_then(image_name) != Some(instance.image.clone()) {
            self.images.released();
        }
        let result = result.map(|()| exit).map_err(|error| failure("FailedToReap", &error));
        Outcome::Reaped { index, id: instance.id.clone(), result }
    }
}

/// The normalized name of a container's image.
fn image_name(container: &Container) -> Option<String> {
    normalize(container.image.as_deref()?).ok()
}
