//! How a worker handles the supervisor's messages: commands, objects, images, containerd's view. Part of [`super`].

use std::sync::Arc;
use std::time::Duration;

use limpet_core::plan::recreate;
use limpet_core::state::{ContainerSlot, Now, OngoingAction, PodState};
use limpet_model::container::{ContainerId, FoundContainer};
use limpet_model::pod::{PodRecord, PodUid};

use super::PodWorker;
use crate::adoption::take_over;
use crate::inbox::{MOST_PASSED_OVER, Messages, PodCommand};
use crate::jobs::JobKind;
use limpet_telemetry::event::EventType;

impl PodWorker {
    /// Applies all messages since the last call.
    pub(super) fn read(&mut self, messages: Messages, now: Now) {
        if let Some(containers) = messages.containers {
            self.take_found(containers, now);
        }
        if let (Some(pod), Some(hanging)) = (&mut self.current, messages.hanging) {
            pod.hanging = Some(hanging);
        }
        if let Some(pod) = &self.current {
            for (container, message) in messages.loggers {
                tracing::warn!(pod = %pod.record.key, container, message, "logger killed");
                self.context.reporter.event(pod, Some(&container), EventType::Warning, "LoggerKilled", message);
            }
        }
        self.note_kills(messages.victims, messages.signals, now);
        for id in messages.out_of_memory {
            self.note_out_of_memory(&id, now);
            self.count_kills(id, now);
        }
        for ((id, pid), (code, at)) in messages.exits {
            self.exited(&id, pid, code, at, now);
        }
        if messages.objects.is_some() {
            self.wanted.objects = messages.objects;
        }
        if let (Some(pod), Some(images)) = (&mut self.current, messages.images) {
            pod.take_images(&images);
        }
        messages.evictions.into_values().for_each(|order| self.evict(order));
        messages.shutdowns.into_iter().for_each(|order| self.shut_down(order, now));
        // A version that still waits for its turn is replaced as well.
        let waiting = messages.command.as_ref().and_then(|_| self.wanted.next.take());
        if let Some(command) = &messages.command {
            for record in waiting.into_iter().chain(messages.passed_over) {
                self.pass_over(record, command, now);
            }
        }
        match messages.command {
            Some(PodCommand::Run(record)) => {
                self.wanted.ends = false;
                self.wanted.grace = None;
                self.wanted.next = Some(record);
                self.settle(now);
            }
            Some(PodCommand::End { grace }) => {
                self.wanted.ends = true;
                self.wanted.grace = grace.or(self.wanted.grace);
                self.settle(now);
            }
            None => {}
        }
        messages.debug.into_iter().for_each(|order| self.add_debug(order));
        messages.restarts.into_iter().for_each(|order| self.restart(order, now));
        self.hand_over_objects();
    }

    /// Handles an incarnation that was desired and never begun here. An earlier agent may have begun it: its remains
    /// are removed, because the search for orphans skips what was desired at that time.
    fn pass_over(&mut self, record: Arc<PodRecord>, command: &PodCommand, now: Now) {
        let is_known = |uid: &PodUid| {
            let others = self.current.iter().chain(&self.others);
            command.uid() == Some(uid) || others.into_iter().any(|pod| pod.record.uid == *uid)
        };
        if is_known(&record.uid) || self.others.len() >= MOST_PASSED_OVER {
            return;
        }
        let stays = |pod: &PodState| pod.ending.is_none() && command.uid() == Some(&pod.record.uid);
        match &self.current {
            None => self.current = Some(self.incarnation(record, now)),
            // It began after everything else of the pod was gone.
            Some(pod) if stays(pod) => {}
            Some(_) => self.others.push_back(self.incarnation(record, now)),
        }
    }

    /// Reconciles the current incarnation with the command: the same one is updated in place, another one ends.
    pub(super) fn settle(&mut self, now: Now) {
        let others = !self.others.is_empty();
        match (&mut self.current, &self.wanted.next) {
            (Some(pod), Some(next)) if !others && pod.ending.is_none() && recreate::takes_in_place(pod, next) => {
                let next = Arc::clone(next);
                self.wanted.next = None;
                self.take_in_place(next);
            }
            (Some(pod), Some(_)) => pod.end(Duration::from_secs(pod.record.grace_seconds()), now),
            (Some(pod), None) if others || self.wanted.ends => {
                let authored = Duration::from_secs(pod.record.grace_seconds());
                pod.end(self.wanted.grace.unwrap_or(authored), now)
            }
            (None, Some(next)) => {
                self.current = Some(self.incarnation(Arc::clone(next), now));
                self.wanted.next = None;
            }
            _ => {}
        }
        self.hand_over_objects();
    }

    /// A new incarnation without containers.
    pub(super) fn incarnation(&self, record: Arc<PodRecord>, now: Now) -> PodState {
        let mut pod = PodState::new(record, now.wall);
        pod.id_seed = self.context.executor.id_seed();
        pod.static_cpus = self.context.executor.has_static_cpus();
        pod.outlived_connection = self.reconnected;
        pod
    }

    /// Gives the objects to the incarnation for which they are: the desired one, once it is the current one.
    pub(super) fn hand_over_objects(&mut self) {
        if let (Some(pod), Some(objects), None) = (&mut self.current, &self.wanted.objects, &self.wanted.next)
            && pod.ending.is_none()
        {
            pod.take_objects(Arc::clone(objects));
        }
    }

    /// Reconciles the current incarnation with containerd's view of its containers.
    fn take_found(&mut self, containers: Vec<FoundContainer>, now: Now) {
        self.reconnected = true;
        let Some(pod) = &mut self.current else { return };
        let never_ran = take_over(&*self.context.executor, pod, containers, now);
        self.discard(never_ran);
    }

    /// Removes containers that were created and never started.
    pub fn discard(&mut self, never_ran: Vec<ContainerId>) {
        let Some(pod) = &mut self.current else { return };
        for id in never_ran {
            let is_next = |slot: &ContainerSlot| pod.next_id(slot) == id && slot.busy.is_none();
            let Some(index) = pod.containers.iter().position(is_next) else { continue };
            pod.containers[index].busy = Some(OngoingAction::Reaping);
            self.jobs.spawn(JobKind::Call, Arc::clone(&self.context.executor).discard(index, id));
        }
    }
}
