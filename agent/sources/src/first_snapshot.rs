//! Waiting for a snapshot, for the tests of several sources.

use std::sync::Arc;

use limpet_tests::wait;
use tokio::sync::watch;

use limpet_core::source::SourceSnapshot;

/// The first snapshot that satisfies `wanted`; the time limit only ends a test that would hang.
///
/// # Panics
/// When there is none in time.
pub(super) async fn first_snapshot(
    receiver: &mut watch::Receiver<Arc<SourceSnapshot>>,
    wanted: impl Fn(&SourceSnapshot) -> bool,
) -> Arc<SourceSnapshot> {
    let last = receiver.clone();
    let waited = tokio::time::timeout(wait::soon(), receiver.wait_for(|now| wanted(now))).await;
    match waited {
        Ok(snapshot) => Arc::clone(&snapshot.unwrap()),
        Err(_) => panic!("not reached; last: {:#?}", last.borrow()),
    }
}
