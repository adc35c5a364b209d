//! The limits of the pod's cgroup, and when a change of them is due. Part of [`super`].
//!
//! A container never has more than its pod: the pod's cgroup grows before a container gets higher limits, and shrinks
//! once nothing is left of containers with other limits.

use super::{ContainerSlot, Life, OngoingAction, PodState, RetryState, SandboxState};
use limpet_model::pod::Role;
use limpet_model::pod::compute_resources::CgroupLimits;

/// The state of the pod's cgroup.
#[derive(Debug, Clone, Default)]
pub struct CgroupState {
    /// The limits to which it was last set, or the lower ones while that is uncertain; `None` if not known.
    pub set: Option<CgroupLimits>,
    /// Whether the last attempt failed; it may have set its limits nevertheless.
    pub uncertain: bool,
    /// The limits being set.
    pub setting: Option<CgroupLimits>,
    /// Why they could not be set.
    pub retry: Option<RetryState>,
    /// Whether the kernel refused the last attempt; a container may have more than the pod's limits.
    pub refused: bool,
}

impl PodState {
    /// The limits to set now, if the pod's cgroup has others and may have these.
    pub fn due_cgroup_limits(&self) -> Option<CgroupLimits> {
        if !matches!(self.sandbox, SandboxState::Ready(_)) || self.cgroup.setting.is_some() {
            return None;
        }
        let wanted = self.record.cgroup_limits;
        let due = match self.cgroup.set {
            _ if !self.containers.iter().any(has_other_version) => wanted,
            Some(set) => set.raised_to(&wanted),
            None => self.limits_of_resizes(wanted)?,
        };
        (self.cgroup.uncertain || self.cgroup.set != Some(due)).then_some(due)
    }

    /// Whether the limits stay unknown while something may be left of a start whose answer was lost. It may have been
    /// of another version, so nothing is set and nothing starts before it is gone.
    pub fn cgroup_waits_for_unknown_start(&self) -> bool {
        self.cgroup_waits_for_other_versions() && self.containers.iter().any(|slot| slot.unknown_start().is_some())
    }

    /// Whether the limits stay unknown while something of another version is left. Nothing starts before it is gone.
    pub fn cgroup_waits_for_other_versions(&self) -> bool {
        matches!(self.sandbox, SandboxState::Ready(_))
            && self.cgroup.set.is_none()
            && self.cgroup.setting.is_none()
            && self.due_cgroup_limits().is_none()
    }

    /// Limits that allow every container's current and desired resources; `None` if one of another version is not
    /// resized, and what it has is not known.
    fn limits_of_resizes(&self, wanted: CgroupLimits) -> Option<CgroupLimits> {
        let mut others = self.containers.iter().filter(|slot| has_other_version(slot));
        others.try_fold(wanted, |limits, slot| Some(slot.resize()?.from.cgroup_limits.raised_to(&limits)))
    }

    /// Whether a container may be resized, because its pod's cgroup allows its desired resources. If the kernel
    /// refuses the pod's limits after the agent's start, the container's limits may be the reason, and its resize
    /// comes first.
    pub fn cgroup_lets_resize(&self) -> bool {
        self.cgroup_admits() || self.cgroup.set.is_none() && self.cgroup.refused
    }

    /// Whether the pod's cgroup is known to allow the desired resources of its containers, also after the change in progress.
    pub fn cgroup_admits(&self) -> bool {
        let wanted = self.record.cgroup_limits;
        let admits =
            |set: CgroupLimits| set.raised_to(&wanted) == CgroupLimits { cpu_shares: wanted.cpu_shares, ..set };
        self.cgroup.set.is_some_and(admits) && self.cgroup.setting.is_none_or(admits)
    }

    /// Whether a running container may be stopped for its successor, which it may not while the pod's cgroup has no
    /// room for that.
    pub fn cgroup_lets_replace(&self) -> bool {
        self.cgroup.set.is_none() || self.cgroup_admits()
    }

    /// Whether something writes to the pod's cgroup, volumes or records, or signals a container. None is removed
    /// before that is done, because a recreated container may have the id of the one before, and would get its exit
    /// or its signal.
    pub fn is_updating(&self) -> bool {
        self.cgroup.setting.is_some()
            || self.volumes.writing.is_some()
            || !self.exits_being_recorded.is_empty()
            || self.signals_being_sent > 0
            || self.is_resizing()
    }
}

/// Whether something may be left of an instance with other limits. The cgroup of an exited one stays until it is
/// reaped. A start whose answer was lost may have been of an earlier version, and so may the resize in progress.
fn has_other_version(slot: &ContainerSlot) -> bool {
    if slot.role == Role::Ephemeral {
        // It has no limits, and no other version.
        return false;
    }
    let instances = slot.instance.iter().chain(&slot.previous).chain(&slot.stale);
    matches!(slot.busy, Some(OngoingAction::Starting(_)))
        || slot.unknown_start().is_some()
        || slot.is_resizing()
        || instances
            .filter(|instance| instance.fingerprint != slot.fingerprint)
            .any(|instance| !matches!(instance.life, Life::Exited { reaped: true, .. }))
}

#[cfg(test)]
mod tests;
