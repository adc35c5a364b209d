//! The stop of one running container: its phases and their deadlines. Part of [`super`].

use std::time::{Duration, Instant};

/// How long after a SIGKILL that ended nothing the next one follows.
pub const KILL_AGAIN: Duration = Duration::from_secs(10);

/// The phases of a stop, in their order.
///
/// Each has one action. A phase ends at its deadline whether or not its action has been answered, so an action that hangs
/// holds back no later phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopPhase {
    /// The stop signal, to the first process.
    Signal,
    /// SIGKILL, to every process in the container.
    Kill,
}

/// How far a container's stop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping {
    /// The phase it is in.
    pub phase: StopPhase,
    /// When it began; the grace period counts from then.
    pub began: Instant,
    /// When SIGKILL follows. Only ever brought forward.
    pub kill_at: Instant,
    /// When the phase's action is repeated; `None`: it is in progress, or has been done.
    pub repeat_at: Option<Instant>,
}

impl Stopping {
    /// A stop that begins now.
    pub fn begin(grace: Duration, now: Instant) -> Self {
        Self { phase: StopPhase::Signal, began: now, kill_at: now + grace, repeat_at: None }
    }

    /// The same with another grace period, if that is shorter.
    pub fn within(self, grace: Duration) -> Self {
        Self { kill_at: self.kill_at.min(self.began + grace), ..self }
    }

    /// The next action: when it is due, and the stop as it is in it. `None`: nothing before the current one's outcome.
    pub fn next(self, now: Instant) -> Option<(Instant, Self)> {
        let entered = |phase| Self { phase, repeat_at: None, ..self };
        let advance = match self.phase {
            StopPhase::Signal => Some((self.kill_at, entered(StopPhase::Kill))),
            StopPhase::Kill => None,
        };
        let repeat = self.repeat_at.map(|at| (at, entered(self.phase)));
        let over = advance.filter(|(deadline, _)| *deadline <= now);
        over.or_else(|| advance.into_iter().chain(repeat).min_by_key(|(at, _)| *at))
    }

    /// The phase's action was done.
    pub fn done(&mut self, now: Instant) {
        self.repeat_at = match self.phase {
            StopPhase::Signal => None,
            StopPhase::Kill => Some(now + KILL_AGAIN),
        };
    }
}
