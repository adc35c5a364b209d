//! A pod worker's inbox: the newest command, and what became of its containers. Nothing queues up: a newer command
//! replaces an older one, and there is at most one end per container.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, oneshot};

use limpet_core::debug_order::DebugOrder;
use limpet_core::node_shutdown::ShutdownOrder;
use limpet_core::pod_order::RestartOrder;
use limpet_model::container::{ContainerId, FoundContainer};
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::object::PodObjects;
use limpet_model::pod::{PodKey, PodRecord, PodUid};
use limpet_model::process::{ProcessName, Sender};
use limpet_model::verdict::PodVerdict;

/// Incarnations of one pod that wait for their end side by side. What exceeds it is removed at the agent's next start.
pub const MOST_PASSED_OVER: usize = 64;

/// What is wanted of a pod.
#[derive(Debug, Clone)]
pub enum PodCommand {
    /// It shall run, in this version.
    Run(Arc<PodRecord>),
    /// It shall end.
    End {
        /// Within this time, instead of its own.
        grace: Option<Duration>,
    },
}

impl PodCommand {
    /// The incarnation that shall run.
    pub fn uid(&self) -> Option<&PodUid> {
        match self {
            Self::Run(record) => Some(&record.uid),
            Self::End { .. } => None,
        }
    }
}

/// A pod has to end, because the node is short of something.
#[derive(Debug)]
pub struct EvictionOrder {
    /// The pod's name.
    pub key: PodKey,
    /// Of that incarnation.
    pub uid: PodUid,
    /// Why.
    pub verdict: PodVerdict,
    /// Sent once nothing is left of it; dropped if it was not ended for this.
    pub done: oneshot::Sender<()>,
}

/// Everything that came since the worker looked last.
#[derive(Debug, Default)]
pub struct Messages {
    /// The newest command.
    pub command: Option<PodCommand>,
    /// Incarnations that newer commands have replaced before the worker looked: an earlier agent may have begun them.
    pub passed_over: Vec<Arc<PodRecord>>,
    /// First processes of containers that ended: code and time.
    pub exits: BTreeMap<(ContainerId, u32), (i32, Timestamp)>,
    /// Containers in which the OOM killer killed a process.
    pub out_of_memory: BTreeSet<ContainerId>,
    /// The process that was killed there last, where the kernel says which.
    pub victims: BTreeMap<ContainerId, ProcessName>,
    /// Who sent the last signal that ends to a container's first process, where the kernel says who.
    pub signals: BTreeMap<ContainerId, Sender>,
    /// The objects that the desired version refers to, as they are now.
    pub objects: Option<Arc<PodObjects>>,
    /// Images that have come by archives, by their normalized names, since the agent runs.
    pub images: Option<Arc<HashSet<String>>>,
    /// The node is short of what the pod takes: the newest order for each incarnation.
    pub evictions: BTreeMap<PodUid, EvictionOrder>,
    /// The node shuts down, and the pod is to end. There is at most one for each shutdown.
    pub shutdowns: Vec<ShutdownOrder>,
    /// Containers that are to be added to it. Each has a connection that waits for the answer, so there are not many.
    pub debug: Vec<DebugOrder>,
    /// Restarts that are asked for. Each has a connection that waits for the answer, too.
    pub restarts: Vec<RestartOrder>,
    /// What an action has been waiting for, for long.
    pub hanging: Option<String>,
    /// What became of the loggers of its containers, by their names: the last of each.
    pub loggers: BTreeMap<String, String>,
    /// containerd's whole view of the pod's containers, just read.
    pub found: Option<Vec<FoundContainer>>,
}

impl Messages {
    /// Replaces the command, and the objects that its version refers to.
    pub fn take_command(&mut self, command: PodCommand, objects: Option<Arc<PodObjects>>) {
        if let Some(PodCommand::Run(before)) = self.command.take()
            && command.uid() != Some(&before.uid)
            && self.passed_over.len() < MOST_PASSED_OVER
        {
            self.passed_over.push(before);
        }
        (self.command, self.objects) = (Some(command), objects);
    }

    /// Takes in an event of one of the pod's containers.
    pub fn take_event(&mut self, event: LifecycleEvent) {
        match event {
            LifecycleEvent::Exited { id, pid, code, at } => drop(self.exits.insert((id, pid), (code, at))),
            LifecycleEvent::OutOfMemory { id } => drop(self.out_of_memory.insert(id)),
            LifecycleEvent::OutOfMemoryVictim { id, victim } => drop(self.victims.insert(id, victim)),
            LifecycleEvent::Signalled { id, sender } => drop(self.signals.insert(id, sender)),
            // Of the connection, not of a pod.
            LifecycleEvent::Connected | LifecycleEvent::Disconnected => {}
        }
    }
}

/// Passes messages from the supervisor to one worker.
#[derive(Debug, Default)]
pub struct Inbox {
    messages: Mutex<Messages>,
    arrival: Notify,
}

impl Inbox {
    /// Changes the pending messages and wakes the worker.
    pub fn put(&self, change: impl FnOnce(&mut Messages)) {
        change(&mut self.messages.lock().unwrap_or_else(PoisonError::into_inner));
        self.arrival.notify_one();
    }

    /// Wakes the worker without a message.
    pub fn wake(&self) {
        self.arrival.notify_one();
    }

    /// Empties the box.
    pub fn take(&self) -> Messages {
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Resolves when something was put in since the last time; never misses one.
    pub async fn arrived(&self) {
        self.arrival.notified().await;
    }
}
