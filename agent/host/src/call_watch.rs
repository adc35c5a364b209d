//! Which call a task waits for: a call that hangs is reported by its name while the task still waits for it.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

tokio::task_local! {
    /// The call that the task waits for, so that [`watched`] can report which one hangs.
    static CALL: Cell<Option<&'static str>>;
}

/// Records the call that the current task is about to wait for: `Tasks.Kill`, `CNI ADD`.
pub fn calling(call: &'static str) {
    // Outside of `watched` the call is not needed.
    let _ = CALL.try_with(|current| current.set(Some(call)));
}

/// Runs `work`, and after each further period of `slow` reports which call it waits for.
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
