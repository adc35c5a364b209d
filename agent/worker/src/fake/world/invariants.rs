//! Invariants of the simulated node, which must hold whatever fails. Each violation is added to
//! [`World::violations`].

use std::sync::Arc;
use std::time::Duration;

use limpet_core::outcome::Failure;
use limpet_core::plan::{KillCause, restart_all};
use limpet_core::state::{ContainerSlot, PodState};
use limpet_model::container::ContainerId;
use limpet_model::pod::compute_resources::{CgroupLimits, container_limits};
use limpet_model::pod::{PodUid, Role};
use limpet_model::stop_signal::MIN_GRACE_PERIOD;
use limpet_model::verdict::PodVerdict;
use tokio::time::Instant;

use super::hooks::hook_allowance;
use super::{Container, World, is_running, short};

/// How late a SIGKILL may be.
const MAX_SIGKILL_DELAY: Duration = Duration::from_secs(1);

/// A container's stop and its limits by the pod's grace period.
#[derive(Debug)]
pub(super) struct Stop {
    /// When any agent first began it.
    began: Instant,
    /// The earliest time for SIGKILL: the grace after the first stop by any agent.
    may_kill_at: Instant,
    /// The latest time for SIGKILL: the grace after this agent began to stop it, unless it is disturbed meanwhile.
    must_kill_at: Instant,
    /// The undisturbed period in which the stop began.
    quiet: u32,
    killed: bool,
    /// All containers of its pod are restarted: no hook runs, and the grace period is minimal.
    pub(super) at_once: bool,
}

impl World {
    pub(super) fn violate(&mut self, what: String) {
        self.note(|| format!("VIOLATION {what}"));
        if self.judged {
            self.violations.push(what);
        }
    }

    /// Checks that a pod's limits are not below those of a container with an existing cgroup.
    pub(super) fn check_cgroup(&mut self, uid: &PodUid, limits: &CgroupLimits) {
        let of_pod = self.containers.iter().filter(|(_, container)| container.recorded.identity.uid == uid.as_str());
        let above = of_pod.filter(|(_, container)| container.task.is_some() && exceeds(container.cpu_quota, limits));
        let above: Vec<String> = above.map(|(id, _)| short(id)).collect();
        if !above.is_empty() {
            self.violate(format!("the cgroup of {uid} is below those of {}", above.join(", ")));
        }
    }

    /// Gives a running container the resources of the pod's version. Resources above its pod's limits may be tried
    /// after these were refused, and are then refused too.
    pub(in crate::fake) fn resize(
        &mut self,
        pod: &PodState,
        slot: &ContainerSlot,
        id: &ContainerId,
    ) -> Result<(), Failure> {
        let (quota, uid, now) = (container_quota(pod, slot), pod.record.uid.as_str(), self.now().wall);
        let failure =
            |message: &str, transient| Failure { reason: "Simulated", message: message.to_owned(), transient };
        if self.is_running(id) && self.cgroups.get(uid).is_none_or(|limits| exceeds(quota, limits)) {
            if self.refused_limits.contains(uid) {
                return Err(failure("above the cgroup of its pod", false));
            }
            self.violate(format!("{} is resized above the cgroup of its pod", short(id)));
        }
        let running = self.containers.get_mut(id).filter(|container| is_running(container));
        let Some(container) = running else { return Err(failure("it has ended", true)) };
        let identity = &mut container.recorded.identity;
        let image_differs = identity.image != image_of(pod, slot);
        (identity.fingerprint, identity.resized_at) = (slot.fingerprint.clone(), Some(now));
        (container.recorded.manifest, container.cpu_quota) = (Arc::clone(&pod.record.manifest), quota);
        self.note(|| format!("resized {} {}/{} to {quota:?}", short(id), pod.record.key, slot.name));
        if image_differs {
            self.violate(format!("{} is resized to a version with another image", short(id)));
        }
        Ok(())
    }

    /// Checks that the process of a container is never started under an id that was used before.
    pub(super) fn check_id(&mut self, id: &ContainerId) {
        if !self.ids_used.insert(id.clone()) {
            self.violate(format!("the id of {} is used again", short(id)));
        }
    }

    /// Checks that a sandbox is removed after the processes in it.
    pub(super) fn check_sandbox_removal(&mut self, uid: &PodUid) {
        let mut of_pod =
            self.containers.iter().filter(|(_, container)| container.recorded.identity.uid == uid.as_str());
        if let Some(id) = of_pod.find(|(_, container)| is_running(container)).map(|(id, _)| id.clone()) {
            self.violate(format!("the sandbox of {uid} is removed while {id} runs in it"));
        }
    }

    /// Checks that a running container is neither reaped nor removed.
    pub(super) fn check_not_running(&mut self, id: &ContainerId, done: &str) {
        if self.is_running(id) {
            self.violate(format!("{} is {done} while it runs", short(id)));
        }
    }

    /// Checks the start of a container: a verdict is known by then, or comes while the start is in progress.
    pub(in crate::fake) fn begin_start(&mut self, pod: &PodState, slot: &ContainerSlot) {
        if self.has_failed(&pod.record.uid) {
            self.violate(format!("{}/{} starts after a verdict", pod.record.key, slot.name));
        }
    }

    pub(super) fn check_start(&mut self, pod: &PodState, slot: &ContainerSlot, id: &ContainerId) {
        let uid = pod.record.uid.as_str();
        let restarts = restart_all::pod_restarts(pod);
        let mut faults = self.wrong_restarts(pod, slot, restarts);
        for (other, container) in self.containers.iter().filter(|(other, _)| *other != id) {
            let identity = &container.recorded.identity;
            let same_slot = identity.uid == uid && identity.container == slot.name;
            if is_running(container)
                && (same_slot || (identity.pod_key().as_ref() == Ok(&pod.record.key) && identity.uid != uid))
            {
                faults.push(format!("{} starts beside {} of {}", short(id), short(other), pod.record.key));
            }
            let code = container.exit_code();
            let in_new_sandbox = slot.role == Role::Init && identity.sandbox != self.sandbox(&pod.record.uid)
                || identity.pod_restarts < restarts;
            if same_slot && identity.fingerprint == slot.fingerprint && code.is_some() && !in_new_sandbox {
                let again = match container.restart_policy.as_str() {
                    "Never" => true,
                    "OnFailure" => code == Some(0) && !container.probed.ended,
                    _ => slot.role == Role::Init && code == Some(0),
                };
                if again && !self.restarts_asked.contains(&(uid.to_owned(), slot.name.clone())) {
                    faults.push(format!("{}/{} runs again after exit {code:?}", pod.record.key, slot.name));
                }
            }
        }
        if self.cgroups.get(uid).is_none_or(|limits| exceeds(container_quota(pod, slot), limits)) {
            faults.push(format!("{} starts above the cgroup of its pod", short(id)));
        }
        if slot.role == Role::Ephemeral && !self.ephemeral.insert((uid.to_owned(), slot.name.clone())) {
            faults.push(format!("{}/{} is started twice", pod.record.key, slot.name));
        }
        faults.extend(self.out_of_order(pod, slot, id));
        if slot.role == Role::Main {
            faults.extend(self.hooks_before(pod, slot, id));
        }
        if !self.sandboxes.contains_key(uid) {
            faults.push(format!("{} starts without a sandbox", short(id)));
        }
        faults.into_iter().for_each(|what| self.violate(what));
    }

    /// Whether a start after this many restarts of all containers is one too many, or happens while an earlier
    /// process runs.
    fn wrong_restarts(&self, pod: &PodState, slot: &ContainerSlot, restarts: u32) -> Vec<String> {
        let uid = pod.record.uid.as_str();
        let of_pod = self.containers.values().filter(|container| container.recorded.identity.uid == uid);
        let restartable: Vec<_> = of_pod.filter(|container| container.recorded.identity.ephemeral.is_none()).collect();
        if slot.role == Role::Ephemeral {
            return Vec::new();
        }
        let asked = self.asked_restarts.get(uid).copied();
        let most = restartable.iter().map(|container| container.recorded.identity.pod_restarts).chain(asked).max();
        let mut wrong = Vec::new();
        if restarts > most.unwrap_or_default() {
            wrong.push(format!("{}/{} restarts with all, which none has asked for", pod.record.key, slot.name));
        }
        let runs =
            |container: &&&Container| is_running(container) && container.recorded.identity.pod_restarts < restarts;
        if let Some(container) = restartable.iter().find(runs) {
            let other = &container.recorded.identity.container;
            wrong.push(format!("{}/{} restarts with all while {other} still runs", pod.record.key, slot.name));
        }
        wrong
    }

    /// Checks the stop of a container, or a repetition.
    pub(in crate::fake) fn begin_stop(&mut self, pod: &PodState, slot: &ContainerSlot, cause: KillCause) {
        let quiet = self.quiet;
        let Some(instance) = &slot.instance else { return };
        let id = &instance.id;
        self.check_stop_for_probe(id, cause);
        self.check_asked_restart(id, cause);
        let own_grace = Duration::from_secs(pod.record.grace_seconds());
        let Some(container) = self.containers.get(id).filter(|container| is_running(container)) else { return };
        if cause == KillCause::AllRestart {
            return self.begin_end_of_all(&id.clone());
        }
        if container.stop.as_ref().is_some_and(|stop| stop.quiet == quiet) {
            return;
        }
        let (may_kill_at, must_kill_at) = match cause {
            KillCause::ProbeFailed(_) => {
                let grace = instance.failed_probe().and_then(|(_, grace)| grace).unwrap_or(own_grace);
                let kill_at = Instant::now() + grace.max(MIN_GRACE_PERIOD);
                // The end of the pod may shorten it.
                (kill_at.min(Instant::now() + own_grace.max(MIN_GRACE_PERIOD)), kill_at)
            }
            _ => self.kill_times(pod, slot, cause),
        };
        // An eviction may shorten it, unless the pod is already being ended.
        let may_kill_at = match cause {
            KillCause::PodEnds => may_kill_at,
            _ => may_kill_at.min(Instant::now() + MIN_GRACE_PERIOD),
        };
        let allowance = hook_allowance(slot);
        let is_shortened = pod.verdict.as_ref().and_then(PodVerdict::grace).is_some();
        let Some(container) = self.containers.get_mut(id) else { return };
        match &mut container.stop {
            Some(stop) => {
                // An agent that has started meanwhile may not know that the pod was being ended when it is evicted.
                if is_shortened {
                    stop.may_kill_at = stop.may_kill_at.min(may_kill_at);
                }
                (stop.must_kill_at, stop.quiet) = (must_kill_at + allowance, quiet);
            }
            None => {
                let must_kill_at = must_kill_at + allowance;
                let began = Instant::now();
                container.stop = Some(Stop { began, may_kill_at, must_kill_at, quiet, killed: false, at_once: false });
            }
        }
    }

    /// Records that all containers of a pod are restarted: each gets the minimal grace after its stop signal. The
    /// hook of an earlier stop is cut short, and its signal still gets its time.
    fn begin_end_of_all(&mut self, id: &ContainerId) {
        let (now, quiet) = (Instant::now(), self.quiet);
        let kill_at = now + MIN_GRACE_PERIOD;
        let Some(container) = self.containers.get_mut(id) else { return };
        match &mut container.stop {
            Some(stop) if stop.at_once && stop.quiet == quiet => {}
            Some(stop) => {
                stop.may_kill_at = stop.may_kill_at.min(stop.began + MIN_GRACE_PERIOD);
                (stop.must_kill_at, stop.quiet, stop.at_once) = (kill_at, quiet, true);
            }
            None => {
                let stop = Stop {
                    began: now,
                    may_kill_at: kill_at,
                    must_kill_at: kill_at,
                    quiet,
                    killed: false,
                    at_once: true,
                };
                container.stop = Some(stop);
            }
        }
    }

    /// Checks a SIGKILL that the agent is about to send.
    pub(in crate::fake) fn begin_kill(&mut self, id: &ContainerId, cause: KillCause) {
        if cause == KillCause::AllRestart {
            self.begin_end_of_all(id);
        }
        let (now, quiet) = (Instant::now(), self.quiet);
        let Some(container) = self.containers.get_mut(id).filter(|container| is_running(container)) else { return };
        let wrong = match &mut container.stop {
            Some(stop) if now >= stop.may_kill_at => {
                let first = !std::mem::replace(&mut stop.killed, true);
                let late = now.saturating_duration_since(stop.must_kill_at);
                (first && stop.quiet == quiet && late > MAX_SIGKILL_DELAY)
                    .then(|| format!("{late:?} after its grace is over"))
            }
            _ => Some("before its grace is over".to_owned()),
        };
        if let Some(wrong) = wrong {
            self.violate(format!("SIGKILL to {} {wrong}", short(id)));
        }
    }
}

/// The CPU quota of a container.
pub(super) fn container_quota(pod: &PodState, slot: &ContainerSlot) -> Option<i64> {
    container_limits(pod.record.spec(), pod.container_spec(&slot.name)?).cpu_quota
}

/// The image of a container, as its pod has it.
pub(super) fn image_of(pod: &PodState, slot: &ContainerSlot) -> String {
    pod.container_spec(&slot.name).and_then(|spec| spec.image.clone()).unwrap_or_default()
}

/// Whether the kernel refuses a container's quota in a pod with these limits (cgroup v1).
fn exceeds(quota: Option<i64>, pod: &CgroupLimits) -> bool {
    quota.zip(pod.cpu_quota).is_some_and(|(container, pod)| container > pod)
}
