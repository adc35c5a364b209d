//! Tracks the call that a task waits for, so that a hanging call can be reported by name.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

tokio::task_local! {
    /// The call that the task waits for, for [`watched`].
    static CALL: Cell<Option<&'static str>>;
}

/// Records the call that the current task is about to wait for: `Tasks.Kill`, `CNI ADD`.
pub fn calling(call: &'static str) {
    // Outside of `watched` nobody reads it.
    let _ = CALL.try_with(|current| current.set(Some(call)));
}

/// Runs `work`, and after each further period of `slow` reports the call that it waits for.
pub async fn watched<T>(slow: Duration, report: impl Fn(&'static str), work: impl Future<Output = T>) -> T {
    let watch = async {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep(slow) => {
                    if let Some(call) = CALL.with(Cell::get) {
                        report(call);
                    }
                }
            }
        }
    };
    CALL.scope(Cell::new(None), watch).await
}
