//! Pauses between tries, and what ends them early: another address of the node's, other credentials, a clock that is set.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Link, Origin};
use limpet_core::connectivity;
use limpet_host::wall_clock::{self, Wake};

impl Link {
    /// The pause after the `failures`th failure in a row. A change of the node's links or addresses, new credentials
    /// and a clock that is set end it: then true.
    pub(crate) async fn pause(&self, failures: u32, asked: Option<Duration>) -> bool {
        self.pause_after(failures, asked, Duration::ZERO).await
    }

    /// The same after a failure that took so long, which counts as a part of the pause.
    pub(crate) async fn pause_after(&self, failures: u32, asked: Option<Duration>, took: Duration) -> bool {
        let runs_program = self.0.runs_program.load(Ordering::Relaxed);
        let longest = self.0.view.borrow().state.longest_pause(failures, runs_program);
        let pause = connectivity::pause(failures, asked, longest, fastrand::u64(..));
        let pause = connectivity::rest_of_pause(pause, longest, asked, took);
        tokio::select! {
            biased;
            () = tokio::time::sleep(pause) => false,
            () = self.network_changed() => true,
            () = self.credentials_changed() => true,
            // A simulated cluster has a time of its own.
            () = clock_set(), if !matches!(self.0.origin, Origin::Fixed(_)) => true,
        }
    }

    /// Resolves once there are other credentials.
    async fn credentials_changed(&self) {
        // The sender lives as long as this handle.
        let _ = self.0.credentials.subscribe().changed().await;
    }

    /// Resolves at the next change of the node's links or addresses.
    pub(crate) async fn network_changed(&self) {
        let mut network = self.0.node_network.clone();
        network.mark_unchanged();
        if network.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Resolves once the clock is set: certificates may be valid from then on, or no longer.
async fn clock_set() {
    loop {
        match wall_clock::until(None).await {
            Ok(Wake::ClockSet) => return,
            Ok(Wake::Reached) => {}
            // No timer is available: nothing depends on the clock change alone.
            Err(_) => std::future::pending().await,
        }
    }
}
