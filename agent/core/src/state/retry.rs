//! Failures that are retried after a pause, or as soon as what they wait for changes. Part of [`super`].

use std::ops::BitOr;
use std::time::{Duration, Instant};

use super::{CONFIG_ERROR, FAILED_MOUNT, FAILED_UNMOUNT, UPDATE_HELD};
use crate::backoff;

/// The pause before an update that is held is looked at again.
const HELD_PAUSE: Duration = Duration::from_secs(60);

/// What may end a pause early.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes(u8);

impl Changes {
    pub const NONE: Self = Self(0);
    /// The node's network.
    pub const NETWORK: Self = Self(1);
    /// A driver of volumes registers, or is gone.
    pub const VOLUME_DRIVERS: Self = Self(2);
    /// The objects that the pod refers to.
    pub const OBJECTS: Self = Self(4);

    /// Whether one of them is among `others`.
    pub fn meet(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// What a failure to prepare or release a sandbox waits for.
    pub fn awaited_by_sandbox(reason: &str, host_network: bool) -> Self {
        let network = if host_network { Self::NONE } else { Self::NETWORK };
        match reason {
            FAILED_MOUNT => network | Self::VOLUME_DRIVERS | Self::OBJECTS,
            FAILED_UNMOUNT => network | Self::VOLUME_DRIVERS,
            _ => network,
        }
    }

    /// What a failure to write volumes waits for.
    pub fn awaited_by_volumes(reason: &str) -> Self {
        if reason == FAILED_MOUNT { Self::OBJECTS | Self::VOLUME_DRIVERS } else { Self::OBJECTS }
    }

    /// What a container that did not start waits for.
    pub fn awaited_by_container(reason: &str) -> Self {
        if reason == CONFIG_ERROR { Self::OBJECTS | Self::VOLUME_DRIVERS } else { Self::NONE }
    }
}

impl BitOr for Changes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A failure that will be retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryState {
    /// kubelet's reason: `ImagePullBackOff`, `CreateContainerError`…
    pub reason: &'static str,
    /// The sentence that people read.
    pub message: String,
    /// The earliest time of the retry.
    pub retry_at: Instant,
    /// The back-off before that retry.
    pub pause: Duration,
    /// What ends the pause early.
    pub awaits: Changes,
}

impl RetryState {
    /// The state after a repeated failure, with twice the back-off of `previous`.
    pub fn after(previous: Option<&Self>, reason: &'static str, message: String, now: Instant) -> Self {
        let pause = backoff::next(previous.map_or(Duration::ZERO, |retry| retry.pause));
        Self { reason, message, retry_at: now + pause, pause, awaits: Changes::NONE }
    }

    /// The state after a transient failure, which is retried after a second.
    pub fn transient(reason: &'static str, message: String, now: Instant) -> Self {
        let pause = Duration::from_secs(1);
        Self { reason, message, retry_at: now + pause, pause: Duration::ZERO, awaits: Changes::NONE }
    }

    /// The state of an update that is held, which is looked at again after a while. It is no failure, and has no back-off.
    pub fn held(message: String, now: Instant) -> Self {
        Self { retry_at: now + HELD_PAUSE, ..Self::transient(UPDATE_HELD, message, now) }
    }

    /// The same, but it also waits for `changes`.
    pub fn awaiting(self, changes: Changes) -> Self {
        Self { awaits: changes, ..self }
    }

    /// Whether it waits for one of `changes`, so that it is retried at once.
    pub fn ends_with(&self, changes: Changes) -> bool {
        self.awaits.meet(changes)
    }

    /// Shortens the back-off to `most`.
    pub fn cap(&mut self, most: Duration) {
        if self.pause > most {
            let excess = self.pause - most;
            self.retry_at = self.retry_at.checked_sub(excess).unwrap_or(self.retry_at);
            self.pause = most;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failure_waits_for() {
        let (network, drivers, objects) = (Changes::NETWORK, Changes::VOLUME_DRIVERS, Changes::OBJECTS);
        let rows = [
            (Changes::awaited_by_sandbox(FAILED_MOUNT, false), [true, true, true]),
            (Changes::awaited_by_sandbox(FAILED_UNMOUNT, false), [true, true, false]),
            (Changes::awaited_by_sandbox("FailedCreatePodSandBox", false), [true, false, false]),
            (Changes::awaited_by_sandbox("FailedKillPod", true), [false, false, false]),
            (Changes::awaited_by_volumes(FAILED_MOUNT), [false, true, true]),
            (Changes::awaited_by_volumes("Failed"), [false, false, true]),
            (Changes::awaited_by_container(CONFIG_ERROR), [false, true, true]),
            (Changes::awaited_by_container("CreateContainerError"), [false, false, false]),
        ];
        for (row, (awaited, expected)) in rows.into_iter().enumerate() {
            let retry = RetryState::after(None, "Failed", String::new(), Instant::now()).awaiting(awaited);
            assert_eq!([network, drivers, objects].map(|change| retry.ends_with(change)), expected, "{row}");
        }
    }
}
