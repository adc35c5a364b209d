//! A pod worker's inbox: the newest command, and events of its containers. Nothing queues up: a newer command
//! replaces an older one, and there is at most one exit per container.

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

/// The most incarnations of a pod that wait for their end. Further ones are removed at the agent's next start.
pub const MOST_PASSED_OVER: usize = 64;

/// The desired state of a pod.
#[derive(Debug, Clone)]
pub enum PodCommand {
    /// It should run in this version.
    Run(Arc<PodRecord>),
    /// It should end.
    End {
        /// The grace period to use instead of its own.
        grace: Option<Duration>,
    },
}

impl PodCommand {
    /// The UID of the incarnation that should run.
    pub fn uid(&self) -> Option<&PodUid> {
        match self {
            Self::Run(record) => Some(&record.uid),
            Self::End { .. } => None,
        }
    }
}

/// An order to end a pod because the node is short of something.
#[derive(Debug)]
pub struct EvictionOrder {
    pub key: PodKey,
    /// The incarnation's UID.
    pub uid: PodUid,
    pub verdict: PodVerdict,
    /// Sent once nothing is left of the pod; dropped if it was not ended for this.
    pub done: oneshot::Sender<()>,
}

/// Everything since the worker last read its inbox.
#[derive(Debug, Default)]
pub struct Messages {
    /// The newest command.
    pub command: Option<PodCommand>,
    /// Incarnations that newer commands have replaced before the worker saw them; an earlier agent may have started
    /// them.
    pub passed_over: Vec<Arc<PodRecord>>,
    /// The exits of containers' first processes: code and time.
    pub exits: BTreeMap<(ContainerId, u32), (i32, Timestamp)>,
    /// Containers in which the OOM killer killed a process.
    pub out_of_memory: BTreeSet<ContainerId>,
    /// The process that was last killed there, if the kernel reports it.
    pub victims: BTreeMap<ContainerId, ProcessName>,
    /// Who sent the last fatal signal to a container's first process, if the kernel reports it.
    pub signals: BTreeMap<ContainerId, Sender>,
    /// The current objects to which the desired version refers.
    pub objects: Option<Arc<PodObjects>>,
    /// All images that were imported from archives, by normalized name, since the agent started.
    pub images: Option<Arc<HashSet<String>>>,
    /// The newest eviction order for each incarnation.
    pub evictions: BTreeMap<PodUid, EvictionOrder>,
    /// Orders to end for the node's shutdown, at most one per shutdown.
    pub shutdowns: Vec<ShutdownOrder>,
    /// Containers to be added. A connection waits for each answer, so there are few.
    pub debug: Vec<DebugOrder>,
    /// Requested restarts. A connection waits for each answer, too.
    pub restarts: Vec<RestartOrder>,
    /// The call for which an action has been waiting too long.
    pub hanging: Option<String>,
    /// The last report about each container's logger, by container name.
    pub loggers: BTreeMap<String, String>,
    /// containerd's complete view of the pod's containers, just read.
    pub containers: Option<Vec<FoundContainer>>,
}

impl Messages {
    /// Replaces the command, and the objects to which its version refers.
    pub fn take_command(&mut self, command: PodCommand, objects: Option<Arc<PodObjects>>) {
        if let Some(PodCommand::Run(before)) = self.command.take()
            && command.uid() != Some(&before.uid)
            && self.passed_over.len() < MOST_PASSED_OVER
        {
            self.passed_over.push(before);
        }
        (self.command, self.objects) = (Some(command), objects);
    }

    /// Adds an event of one of the pod's containers.
    pub fn take_event(&mut self, event: LifecycleEvent) {
        match event {
            LifecycleEvent::Exited { id, pid, code, at } => drop(self.exits.insert((id, pid), (code, at))),
            LifecycleEvent::OutOfMemory { id } => drop(self.out_of_memory.insert(id)),
            LifecycleEvent::OutOfMemoryVictim { id, victim } => drop(self.victims.insert(id, victim)),
            LifecycleEvent::Signalled { id, sender } => drop(self.signals.insert(id, sender)),
            // These concern the connection, not a pod.
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

    /// Takes all messages.
    pub fn take(&self) -> Messages {
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Resolves when something was added since the last call; never misses anything.
    pub async fn arrived(&self) {
        self.arrival.notified().await;
    }
}
