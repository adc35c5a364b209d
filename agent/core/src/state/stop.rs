//! The stop of one running container: its phases and their deadlines. Part of [`super`].

use std::time::{Duration, Instant};

use limpet_model::stop_signal::MIN_GRACE_PERIOD;

/// The interval between SIGKILLs to a container that does not end.
pub const KILL_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// A longer grace period counts as infinite, because no clock has a moment that far away.
const MAX_GRACE_PERIOD: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The phases of a stop, in their order.
///
/// Each has one action. A phase ends at its deadline whether or not its action has been answered, so a hanging action
/// delays no later phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopPhase {
    /// The `preStop` hook of a container that has one. It ends with the hook, or with the grace period.
    PreStop,
    /// The stop signal, to the first process.
    Signal,
    /// SIGKILL, to every process in the container.
    Kill,
}

/// How far a container's stop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping {
    pub phase: StopPhase,
    /// When it began; the grace period counts from then.
    pub began: Instant,
    /// The end of the grace period. It only ever becomes earlier.
    pub grace_over: Instant,
    /// When its hook was over, or was given up; `None` if there was none, or it runs.
    pub hook_over: Option<Instant>,
    /// When the phase's action is repeated; `None` if it is in progress, or has been done.
    pub repeat_at: Option<Instant>,
}

/// The end of a grace period, whose length Kubernetes does not bound.
fn end(grace: Duration, began: Instant) -> Instant {
    began + grace.min(MAX_GRACE_PERIOD)
}

impl Stopping {
    /// A stop that begins now, with the `preStop` hook if the container has one and there is time for it.
    pub fn begin(grace: Duration, hook: bool, now: Instant) -> Self {
        let phase = if hook && !grace.is_zero() { StopPhase::PreStop } else { StopPhase::Signal };
        Self { phase, began: now, grace_over: end(grace, now), hook_over: None, repeat_at: None }
    }

    /// The same with another grace period, if that is shorter.
    pub fn within(self, grace: Duration) -> Self {
        Self { grace_over: self.grace_over.min(end(grace, self.began)), ..self }
    }

    /// When SIGKILL follows.
    pub fn kill_at(self) -> Instant {
        self.grace_over.max(self.hook_over.unwrap_or(self.began) + MIN_GRACE_PERIOD)
    }

    /// When the next action is due, and the stop's state in it; `None` if nothing is due before the current action's
    /// outcome.
    pub fn next(self, now: Instant) -> Option<(Instant, Self)> {
        let entered = |phase| Self { phase, repeat_at: None, ..self };
        let advance = match self.phase {
            StopPhase::PreStop => {
                let over = self.hook_over.unwrap_or(self.grace_over);
                // Its signal has its time even if the agent is late.
                Some((over, Self { hook_over: Some(over.max(now)), ..entered(StopPhase::Signal) }))
            }
            StopPhase::Signal => Some((self.kill_at(), entered(StopPhase::Kill))),
            StopPhase::Kill => None,
        };
        let repeat = self.repeat_at.map(|at| (at, entered(self.phase)));
        let over = advance.filter(|(deadline, _)| *deadline <= now);
        over.or_else(|| advance.into_iter().chain(repeat).min_by_key(|(at, _)| *at))
    }

    /// The phase's action was done, or is not repeated.
    pub fn done(&mut self, now: Instant) {
        self.repeat_at = match self.phase {
            StopPhase::PreStop => {
                self.hook_over = Some(now);
                None
            }
            StopPhase::Signal => None,
            StopPhase::Kill => Some(now + KILL_RETRY_INTERVAL),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_grace_period_has_an_end() {
        let (now, longest) = (Instant::now(), Duration::from_secs(i64::MAX as u64));
        let stop = Stopping::begin(longest, true, now);
        assert!(stop.grace_over > now + Duration::from_secs(86_400) && stop.within(longest) == stop);
        assert_eq!(stop.within(Duration::from_secs(7)).grace_over, now + Duration::from_secs(7));
    }
}
