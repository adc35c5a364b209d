//! Moves running containers when their processors have changed. Woken only by a change, or by a timer while a
//! container could not be moved.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use limpet_containerd::container::Containers;
use limpet_containerd::error::RuntimeError;
use limpet_containerd::spec::ContainerCpus;
use limpet_model::container::{ContainerId, Task};
use limpet_model::cpu_set::CpuSet;
use limpet_model::pod::PodUid;
use oci_spec::runtime::{LinuxCpu, LinuxResources};
use tokio_util::sync::CancellationToken;

use super::ExclusiveCpus;

/// The processors that this agent has given to running containers.
#[derive(Debug, Default)]
pub(super) struct Applied(BTreeMap<ContainerId, CpuSet>);

impl Applied {
    /// The containers that need other processors than they have. Forgets those that no longer run.
    fn outdated(&mut self, wanted: &BTreeMap<ContainerId, CpuSet>) -> Vec<(ContainerId, CpuSet)> {
        self.0.retain(|id, _| wanted.contains_key(id));
        let differ = |(id, cpus): &(&ContainerId, &CpuSet)| self.0.get(*id) != Some(cpus) && !cpus.is_empty();
        wanted.iter().filter(differ).map(|(id, cpus)| (id.clone(), cpus.clone())).collect()
    }
}

impl ExclusiveCpus {
    fn applied(&self) -> MutexGuard<'_, Applied> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a container was started with these processors; `None` if they are unknown. Changes meanwhile are
    /// applied later.
    pub fn started(&self, id: &ContainerId, uid: &PodUid, container: &str, with: Option<&ContainerCpus>) {
        if let Some(with) = with {
            self.applied().0.insert(id.clone(), with.cpus.clone());
        }
        if with != Some(&self.container_cpus(uid, container)) {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Keeps running containers on their processors until the agent stops, at first those of an earlier agent.
    pub async fn follow(self: Arc<Self>, containers: Containers, stop: CancellationToken) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let is_done = self.move_running(&containers).await;
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = changes.changed() => {}
                () = tokio::time::sleep(self.retry_period), if !is_done => {}
            }
        }
    }

    /// Returns whether every container runs on its processors.
    async fn move_running(&self, containers: &Containers) -> bool {
        let wanted = match self.wanted(containers).await {
            Ok(wanted) => wanted,
            Err(error) => {
                tracing::debug!(%error, "the running containers cannot be listed; retried later");
                return false;
            }
        };
        let outdated = self.applied().outdated(&wanted);
        let mut is_done = true;
        for (id, cpus) in outdated {
            match containers.resize_task(&id, &resources(&cpus)).await {
                Ok(true) => drop(self.applied().0.insert(id, cpus)),
                // It has ended meanwhile.
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(container = %id, %cpus, %error, "moving a container to other processors failed; retried later");
                    is_done = false;
                }
            }
        }
        is_done
    }

    /// The processors that each running container should have.
    async fn wanted(&self, containers: &Containers) -> Result<BTreeMap<ContainerId, CpuSet>, RuntimeError> {
        let (containers, _) = containers.list().await?;
        let assignments = self.assignments();
        let running = containers.into_iter().filter(|container| matches!(container.task, Some(Task::Running { .. })));
        let wanted = running.map(|container| {
            let identity = &container.recorded.identity;
            (container.id, assignments.cpus(&identity.uid, &identity.container).clone())
        });
        Ok(wanted.collect())
    }
}

/// Only the processors, so that an update changes nothing else.
fn resources(cpus: &CpuSet) -> LinuxResources {
    let mut cpu = LinuxCpu::default();
    cpu.set_cpus(Some(cpus.to_string()));
    let mut resources = LinuxResources::default();
    resources.set_cpu(Some(cpu));
    resources
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn sets(pairs: &[(&str, &str)]) -> BTreeMap<ContainerId, CpuSet> {
        pairs.iter().map(|(id, text)| (ContainerId::new(*id), CpuSet::parse(text).unwrap())).collect()
    }

    #[test]
    fn those_alone_are_moved_that_are_elsewhere() {
        let mut applied = Applied(sets(&[("a", "0-1"), ("b", "0"), ("gone", "0")]));
        let outdated = applied.outdated(&sets(&[("a", "0"), ("b", "0"), ("new", "0"), ("none", "")]));
        assert_eq!(outdated.into_iter().collect::<BTreeMap<_, _>>(), sets(&[("a", "0"), ("new", "0")]));
        assert!(!applied.0.contains_key(&ContainerId::new("gone")));
    }

    #[test]
    fn an_update_has_processors_alone() {
        let update = serde_json::to_value(resources(&CpuSet::parse("0-1").unwrap())).unwrap();
        assert_eq!(update, serde_json::json!({"cpu": {"cpus": "0-1"}}));
    }
}
