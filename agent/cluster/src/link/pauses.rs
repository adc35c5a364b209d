//! Pauses between tries, and what ends them early: another address of the node's, other credentials, a clock that is set.

use std::time::Duration;

use super::Link;
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
        let longest = self.0.view.longest_pause(failures, self.0.connection.runs_program());
        let pause = connectivity::pause(failures, asked, longest, fastrand::u64(..));
        let pause = connectivity::rest_of_pause(pause, longest, asked, took);
        tokio::select! {
            biased;
            () = tokio::time::sleep(pause) => false,
            () = self.network_changed() => true,
            () = self.0.connection.credentials_changed() => true,
            // A simulated cluster has a time of its own.
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
