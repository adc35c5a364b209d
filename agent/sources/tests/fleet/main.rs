//! A staged roll-out over some nodes: exactly those change that the hash of their names selects. `cargo xtask bench fleet`
//! measures more of them.
#![allow(clippy::unwrap_used, missing_docs)]

mod nodes;

use std::time::Duration;

use limpet_tests::file_server::FileServer;
use nodes::Fleet;

const NODES: usize = 20;
/// The shortest that can be configured.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longer than a busy machine takes.
const DEADLINE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_stage_changes_exactly_the_nodes_that_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let server = FileServer::start().unwrap();
    let mut fleet = Fleet::new(dir.path(), server.url(), INTERVAL);
    server.serve(fleet.bundle(1, None, ""), None);
    fleet.start(NODES);
    assert_eq!(fleet.settled(1, DEADLINE).await.unwrap().len(), NODES);
    let mut sizes = Vec::new();
    for (serial, rollout) in [(2, Some(0)), (3, Some(30)), (4, Some(70)), (5, None)] {
        server.serve(fleet.bundle(serial, rollout, ""), None);
        let changed = fleet.settled(serial, DEADLINE).await.unwrap();
        assert_eq!(changed, fleet.stage(rollout.unwrap_or(100)), "serial {serial}");
        sizes.push(changed.len());
    }
    assert!(sizes.is_sorted() && sizes[0] == 0 && sizes[3] == NODES && sizes[1] > 0, "{sizes:?}");
    // What a stage has given them outlasts a restart, and is not downloaded again.
    fleet.stop().await;
    let requests = server.requests().len();
    fleet.start(NODES);
    assert_eq!(fleet.settled(5, DEADLINE).await.unwrap().len(), NODES);
    // A bounded wait: the server records requests without an event.
    tokio::time::timeout(DEADLINE, async {
        while server.requests().len() < requests + NODES {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap();
    let downloads = server.requests().split_off(requests);
    assert!(downloads.iter().all(|request| request == "0 304"), "{downloads:?}");
    fleet.stop().await;
}
