//! How resizes of running containers begin, continue and end. Part of [`super`].

use std::sync::Arc;

use super::resize::Resize;
use super::{ContainerSlot, Instance, PodState, RetryState};
use limpet_model::container::ContainerId;
use limpet_model::pod::PodRecord;
use limpet_model::pod::authored::Authored;
use limpet_model::pod::resize::{changes_resources_alone, resizes_in_place};

impl ContainerSlot {
    /// The resize that takes the running instance to its desired version.
    pub fn resize(&self) -> Option<&Resize> {
        let running = self.instance.as_ref().filter(|instance| instance.is_running())?;
        let resize = running.resize.as_deref()?;
        (resize.in_place && running.fingerprint != self.fingerprint).then_some(resize)
    }

    /// The version whose resources the newest instance has, while it is replaced only for those of the desired one.
    pub fn restarts_for_resize(&self) -> Option<&Arc<PodRecord>> {
        let instance = self.instance.as_ref()?;
        let resize = instance.resize.as_deref().filter(|resize| resize.restarts)?;
        (instance.fingerprint != self.fingerprint).then_some(&resize.from)
    }

    /// Whether resources of it are being set.
    pub(super) fn is_resizing(&self) -> bool {
        let in_progress = |instance: &Instance| instance.resize.as_ref().is_some_and(|resize| resize.setting.is_some());
        self.instance.iter().chain(&self.previous).any(in_progress)
    }

    /// Determines whether the running instance is resized, now that `desired` is its pod's version. `from` is the
    /// version that it has, if known; a resize knows its own.
    pub fn settle_resize(&mut self, from: Option<&Arc<PodRecord>>, desired: &PodRecord) {
        let Some(instance) = self.instance.as_mut().filter(|instance| instance.is_running()) else { return };
        let begin = |from: &Arc<PodRecord>| {
            Box::new(Resize { from: Arc::clone(from), setting: None, in_place: false, restarts: false, retry: None })
        };
        let Some(mut resize) = instance.resize.take().or_else(|| from.map(begin)) else { return };
        let outdated = instance.fingerprint != self.fingerprint;
        resize.in_place = outdated && resizes_in_place(&resize.from, desired, &self.name);
        resize.restarts = outdated && !resize.in_place && changes_resources_alone(&resize.from, desired, &self.name);
        instance.resize = (resize.in_place || resize.restarts || resize.setting.is_some()).then_some(resize);
    }
}

impl PodState {
    /// Applies the outcome of a resize; a failure has the time of the next attempt.
    pub fn resized(&mut self, index: usize, id: &ContainerId, result: Result<(), RetryState>) {
        let slot = &mut self.containers[index];
        let (name, wanted) = (slot.name.clone(), slot.fingerprint.clone());
        let Some(instance) = slot.instances_mut().find(|instance| instance.id == *id) else { return };
        let Some(set) = instance.resize.as_mut().and_then(|resize| resize.setting.take()) else { return };
        if !instance.is_running() {
            // It may have ended before, so its cgroup may be unchanged until it is reaped.
            instance.resize = None;
            return;
        }
        let reverted = instance.fingerprint == wanted;
        let Some(resize) = instance.resize.as_mut() else { return };
        // A resize that failed may have been done, and an edit back to the previous version does not undo it.
        if result.is_ok() || reverted {
            instance.fingerprint = super::fingerprint(&Authored::parse(&set.manifest), &name);
            resize.from = set;
        }
        resize.retry = result.err();
        slot.settle_resize(None, &self.record);
    }

    /// Whether resources of a container are being set.
    pub(super) fn is_resizing(&self) -> bool {
        self.containers.iter().any(ContainerSlot::is_resizing)
    }
}

#[cfg(test)]
mod tests;
