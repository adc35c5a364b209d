//! Exits and kills: reports of the kernel and containerd about a container's first process. Part of [`super`].

use std::collections::BTreeMap;
use std::sync::Arc;

use limpet_core::adopt::{observed_exit, unknown_exit};
use limpet_core::outcome::{self, Outcome};
use limpet_core::state::{ContainerSlot, Now};
use limpet_model::container::{ContainerId, Task};
use limpet_model::process::{ProcessName, Sender};

use super::PodWorker;
use crate::jobs::JobKind;
use crate::process_watch::{Answer, ProcessKey};

impl PodWorker {
    /// A process has exited without a TaskExit event; `answer` is containerd's view of its task.
    pub(super) fn missed_exit(&mut self, (id, pid): ProcessKey, answer: Answer) {
        let now = self.context.executor.now();
        if self.current.as_ref().is_some_and(|pod| pod.exits_being_recorded.contains(&id)) {
            // The event was not missed: containerd is slow to record the exit.
            return;
        }
        match answer {
            Ok(Some(Task::Stopped { code, at })) => {
                tracing::warn!(pod = %self.key, container = %id, "missed TaskExit event");
                self.exited(&id, pid, code, at, now);
            }
            Ok(None) => {
                let Some(pod) = &mut self.current else { return };
                outcome::exited(pod, &id, pid, unknown_exit(now), now);
            }
            // Its shim hangs, and may continue.
            Ok(Some(_)) => {}
            // The whole state is read when containerd returns.
            Err(error) => tracing::debug!(container = %id, %error, "reading the container's state failed"),
        }
    }

    /// Stores the kernel's report of a kill until the exit that may follow.
    pub(super) fn note_kills(
        &mut self,
        mut victims: BTreeMap<ContainerId, ProcessName>,
        mut signals: BTreeMap<ContainerId, Sender>,
        now: Now,
    ) {
        if victims.is_empty() && signals.is_empty() {
            return;
        }
        let slots = self.current.iter_mut().flat_map(|pod| &mut pod.containers);
        for instance in slots.filter_map(|slot| slot.instance.as_mut()).filter(|instance| instance.is_running()) {
            let victim = victims.remove(&instance.id).map(|victim| (victim, now.mono));
            instance.oom_victim = victim.or(instance.oom_victim.take());
            instance.signalled_by = signals.remove(&instance.id).or(instance.signalled_by.take());
        }
    }

    /// Handles containerd's report that a container is out of memory, which precedes the exit that may follow.
    pub(super) fn note_out_of_memory(&mut self, id: &ContainerId, now: Now) {
        let slots = self.current.iter_mut().flat_map(|pod| &mut pod.containers);
        let mut instances = slots.filter_map(|slot| slot.instance.as_mut());
        if let Some(instance) = instances.find(|instance| instance.id == *id) {
            instance.oom_reported = Some(now.mono);
        }
    }

    /// Handles a process's exit: collects its details first, so that it is never shown without them.
    pub(super) fn exited(&mut self, id: &ContainerId, pid: u32, code: i32, at: jiff::Timestamp, now: Now) {
        let Some(pod) = &mut self.current else { return };
        let running =
            |slot: &ContainerSlot| slot.instance.as_ref().filter(|instance| instance.is_process(id, pid)).cloned();
        let ended = pod.containers.iter().enumerate().find_map(|(index, slot)| Some((index, running(slot)?)));
        let Some((index, instance)) = ended else {
            // Its start was not reported yet, so its exit is stored until then.
            outcome::exited(pod, id, pid, observed_exit(code, at), now);
            return;
        };
        let exit = observed_exit(code, at);
        pod.exits_being_recorded.push(instance.id.clone());
        let (executor, pod, id) = (Arc::clone(&self.context.executor), pod.clone(), instance.id.clone());
        self.jobs.spawn(JobKind::Call, async move {
            let exit = executor.record_exit(pod, index, instance, exit).await;
            Outcome::Ended { id, exit }
        });
    }
}
