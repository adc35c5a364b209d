//! The shims of the simulated node: one serves a pod. If it is killed the runtime ends the pod's containers, once it
//! is there to notice it.

use std::collections::BTreeSet;

use limpet_model::container::{ContainerId, Task};

use super::{World, short};

/// The exit code of a container that was ended with its shim.
const KILLED: i32 = 137;

impl World {
    /// The UIDs of the pods that a shim serves.
    pub fn pods_with_shims(&self) -> Vec<String> {
        let served = self.containers.values().filter(|container| container.task.is_some());
        let uids: BTreeSet<_> = served.map(|container| container.recorded.identity.uid.clone()).collect();
        uids.into_iter().collect()
    }

    /// Kills the shim of a pod.
    pub fn kill_shim(&mut self, uid: &str) {
        self.note(|| format!("the shim of {uid} is killed"));
        self.dead_shims.insert(uid.to_owned());
        if self.connected {
            self.clean_up_shims();
        }
    }

    /// Ends the containers of shims that were killed, and forgets their tasks. What a shim has recorded of an exit stays.
    pub(super) fn clean_up_shims(&mut self) {
        let dead = std::mem::take(&mut self.dead_shims);
        let left = self.containers.iter().filter(|(_, container)| dead.contains(&container.recorded.identity.uid));
        let left: Vec<(ContainerId, Option<Task>)> = left.map(|(id, container)| (id.clone(), container.task)).collect();
        for (id, task) in left {
            if let Some(Task::Running { pid }) = task {
                self.end_with_shim(&id, pid);
            }
            if let Some(container) = self.containers.get_mut(&id) {
                container.task = None;
            }
        }
    }

    fn end_with_shim(&mut self, id: &ContainerId, pid: u32) {
        if self.alive.contains_key(&pid) {
            return self.exit(pid, KILLED);
        }
        // It has ended by itself after its shim, so nobody knows its exit code.
        let at = self.wall();
        self.note(|| format!("exit {} pid {pid} is unknown", short(id)));
        if let Some(container) = self.containers.get_mut(id) {
            container.recorded_exit = Some((KILLED, at));
        }
        self.ask_for_all(id);
    }

    /// Whether the shim of a container was killed, and the runtime has not noticed it.
    pub(super) fn has_dead_shim(&self, id: &ContainerId) -> bool {
        self.containers.get(id).is_some_and(|container| self.dead_shims.contains(&container.recorded.identity.uid))
    }
}
