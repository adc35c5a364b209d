//! The containers of a pod. A copy shares each slot until one of the two changes it, because every action is given
//! the pod from which it was planned, and most actions change at most one container. Part of [`super`].

use std::iter::Map;
use std::ops::{Index, IndexMut};
use std::slice;
use std::sync::Arc;

use super::ContainerSlot;

/// Init containers and sidecars in order, then the others in order.
#[derive(Debug, Clone, Default)]
pub struct ContainerSlots(Vec<Arc<ContainerSlot>>);

/// The slots in order.
pub(super) type Iter<'a> = Map<slice::Iter<'a, Arc<ContainerSlot>>, fn(&'a Arc<ContainerSlot>) -> &'a ContainerSlot>;
/// The slots in order, for changes. A slot that a copy of the pod shares becomes the pod's own.
pub(super) type IterMut<'a> =
    Map<slice::IterMut<'a, Arc<ContainerSlot>>, fn(&'a mut Arc<ContainerSlot>) -> &'a mut ContainerSlot>;

impl ContainerSlots {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, index: usize) -> Option<&ContainerSlot> {
        self.0.get(index).map(Arc::as_ref)
    }

    pub fn iter(&self) -> Iter<'_> {
        self.0.iter().map(Arc::as_ref)
    }

    pub fn iter_mut(&mut self) -> IterMut<'_> {
        self.0.iter_mut().map(Arc::make_mut)
    }

    pub fn push(&mut self, slot: ContainerSlot) {
        self.0.push(Arc::new(slot));
    }
}

impl Index<usize> for ContainerSlots {
    type Output = ContainerSlot;

    fn index(&self, index: usize) -> &ContainerSlot {
        &self.0[index]
    }
}

impl IndexMut<usize> for ContainerSlots {
    fn index_mut(&mut self, index: usize) -> &mut ContainerSlot {
        Arc::make_mut(&mut self.0[index])
    }
}

impl FromIterator<ContainerSlot> for ContainerSlots {
    fn from_iter<I: IntoIterator<Item = ContainerSlot>>(slots: I) -> Self {
        Self(slots.into_iter().map(Arc::new).collect())
    }
}

impl<'a> IntoIterator for &'a ContainerSlots {
    type Item = &'a ContainerSlot;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut ContainerSlots {
    type Item = &'a mut ContainerSlot;
    type IntoIter = IterMut<'a>;

    fn into_iter(self) -> IterMut<'a> {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use allocation_counter::measure;

    use crate::fixtures::{instance, pod, ready, sandbox};
    use crate::outcome::{Outcome, apply, begin};
    use crate::plan::Action;
    use crate::state::{Now, PodState, SandboxState};
    use limpet_model::probe::ProbeKind;

    fn running() -> PodState {
        let mut pod = ready(pod("Always", &[], &["a", "b", "c", "d", "e", "f", "g", "h"]));
        pod.sandbox = SandboxState::Ready(sandbox(&["10.0.0.2"]));
        for index in 0..pod.containers.len() {
            pod.containers[index].instance = Some(instance(&pod.containers[index], 0));
        }
        pod
    }

    #[test]
    fn a_probe_copies_no_container_and_a_start_copies_its_own() {
        let (mut pod, mono) = (running(), Instant::now());
        let now = Now { mono, wall: jiff::Timestamp::UNIX_EPOCH };
        let id = instance(&pod.containers[0], 0).id;
        let probe = measure(|| {
            begin(&mut pod, &Action::Probe(0, ProbeKind::Liveness, mono));
            drop(pod.clone());
            apply(&mut pod, Outcome::Probed { index: 0, id, kind: ProbeKind::Liveness, passed: Some(true) }, now);
        });
        let start = measure(|| {
            let given = pod.clone();
            begin(&mut pod, &Action::Start(1));
            drop(given);
        });
        let copied = measure(|| drop(pod.containers.iter().cloned().collect::<Vec<_>>())).bytes_total;
        let (probe, start) = (probe.bytes_total, start.bytes_total);
        println!("bytes: {probe} for a probe, {start} for a start, {copied} with all containers copied");
        assert!(probe < copied / 16, "{probe} of {copied}");
        assert!(start < copied / 4, "{start} of {copied}");
    }
}
