//! Pauses between retries, and what ends them early: a changed address of the node, new credentials, a clock that is
//! set.

use std::time::Duration;

use super::Link;
use limpet_core::connectivity;
use limpet_host::wall_clock::{self, Wake};

impl Link {
    /// Pauses after the `failures`th failure in a row. Returns true if a change of the node's links or addresses, new
    /// credentials or a clock that is set ended the pause early.
    pub(crate) async fn pause(&self, failures: u32, asked: Option<Duration>) -> bool {
        self.pause_after(failures, asked, Duration::ZERO).await
    }

    /// The same after a failure that took `took`, which counts as part of the pause.
    pub(crate) async fn pause_after(&self, failures: u32, asked: Option<Duration>, took: Duration) -> bool {
        let longest = self.0.view.longest_pause(failures, self.0.connection.runs_program());
        let pause = connectivity::pause(failures, asked, longest, fastrand::u64(..));
        let pause = connectivity::rest_of_pause(pause, longest, asked, took);
        tokio::select! {
            biased;
            () = tokio::time::sleep(pause) => false,
            () = self.network_changed() => true,
            () = self.0.connection.credentials_changed() => true,
            // A simulated cluster has a clock of its own.
            () = clock_set(), if !self.0.connection.is_simulated() => true,
        }
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

/// Resolves once the clock is set, which changes whether certificates are valid.
async fn clock_set() {
    loop {
        match wall_clock::until(None).await {
            Ok(Wake::ClockSet) => return,
            Ok(Wake::Reached) => {}
            // No timer is available. Nothing depends on this event alone.
            Err(_) => std::future::pending().await,
        }
    }
}
