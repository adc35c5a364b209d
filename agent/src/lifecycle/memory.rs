//! When the agent returns memory to the kernel: after bursts of starts and exits.

use std::sync::Arc;

use limpet_host::memory::release_on_the_blocking_pool;
use tokio_util::sync::CancellationToken;

use limpet_worker::watched_processes::WatchedProcesses;

/// Returns memory to the kernel after each burst of container starts or exits, and again once the work that follows
/// is done, until `stop`.
pub async fn release_after_bursts(followed: Arc<WatchedProcesses>, stop: CancellationToken) {
    let (mut bursts, mut pauses) = (followed.changes(), followed.changes());
    let after_bursts = async {
        loop {
            bursts.settled().await;
            release_on_the_blocking_pool().await;
        }
    };
    let when_idle = async {
        loop {
            pauses.idle().await;
            release_on_the_blocking_pool().await;
        }
    };
    stop.run_until_cancelled(async { tokio::join!(after_bursts, when_idle) }).await;
}
