//! The agent as a service: signals that stop it, and systemd's notifications. Without systemd nothing is sent.

use std::future::Future;
use std::io;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::SharedParts;

/// A task that cancels `stop` at the first SIGTERM or SIGINT. The signals are caught when this returns.
///
/// # Errors
/// The signals cannot be caught.
pub fn stop_on_signals(stop: CancellationToken) -> io::Result<JoinHandle<()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            () = stop.cancelled() => return,
        };
        info!(signal = name, "stopping, pods keep running");
        stop.cancel();
    }))
}

/// Notifies systemd that the agent has started.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Notifies systemd that the agent is stopping.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Notifies systemd's watchdog while the main loop responds.
pub(super) fn start_watchdog(shared: &SharedParts) {
    let health = shared.health.clone();
    let alive = move || {
        let health = health.clone();
        async move { health.is_alive().await }
    };
    shared.tasks.spawn(watchdog(alive, shared.stop.clone()));
}

/// Pings systemd's watchdog until `stop`, each time only after `alive` has said that the agent's loop responds, so
/// that a hanging loop leads to a restart. Returns at once if the unit has no `WatchdogSec`.
async fn watchdog<F: Future<Output = bool>>(alive: impl Fn() -> F, stop: CancellationToken) {
    if let Some(limit) = sd_notify::watchdog_enabled() {
        ping(limit, alive, || notify(&[NotifyState::Watchdog]), stop).await;
    }
}

async fn ping<F: Future<Output = bool>>(
    limit: Duration,
    alive: impl Fn() -> F,
    pong: impl Fn(),
    stop: CancellationToken,
) {
    // Half the limit, as sd_watchdog_enabled(3) recommends.
    let mut beat = interval((limit / 2).max(Duration::from_millis(1)));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = beat.tick() => {}
        }
        if alive().await {
            pong();
        } else {
            warn!("the agent's main loop does not respond; systemd's watchdog is not notified");
        }
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "notifying systemd of the agent's state failed");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn the_watchdog_is_notified_only_when_the_loop_answered() {
        let answers = [true, false, false, true, false, true];
        let stop = CancellationToken::new();
        let (notified, mut seen) = mpsc::unbounded_channel();
        let asked = Arc::new(std::sync::Mutex::new(answers.into_iter()));
        let alive = || {
            let answer = asked.lock().unwrap().next();
            notified.send("asked").unwrap();
            answer.is_none().then(|| stop.cancel());
            async move { answer.unwrap_or(false) }
        };
        ping(Duration::from_millis(2), alive, || notified.send("notified").unwrap(), stop.clone()).await;
        let mut sequence = Vec::new();
        seen.recv_many(&mut sequence, 100).await;
        let expected =
            ["asked", "notified", "asked", "asked", "asked", "notified", "asked", "asked", "notified", "asked"];
        assert_eq!(sequence, expected);
    }

    #[tokio::test]
    async fn the_first_signal_stops() {
        let stop = CancellationToken::new();
        let task = stop_on_signals(stop.clone()).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
        stop.cancelled().await;
        task.await.unwrap();
    }
}
