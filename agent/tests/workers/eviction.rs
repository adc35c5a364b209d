//! Evictions: which pods run again, and when; what an agent that is killed meanwhile leaves to the next one.

use std::time::Duration;

use limpet_model::node::Pressure;

use super::{Behaviour, Node, SECOND};

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_runs_again_when_the_pressure_is_over_and_an_edited_one_at_once() {
    let mut node = Node::new(Behaviour { exits: None, obeys: None });
    node.write("web", "app:1");
    node.write("other", "app:1");
    node.pass(SECOND).await;
    node.set_pressure(&[Pressure::Disk, Pressure::Memory]);
    let mut ended = node.evict("web").await;
    node.pass(SECOND * 5).await;
    assert_eq!(ended.try_recv(), Ok(()), "it has 2 s to end, not its own seven");
    assert_eq!((node.reason("web").as_deref(), node.running().len(), node.starts()), (Some("Evicted"), 1, 2));
    let mut again = node.evict("web").await;
    node.pass(SECOND * 60).await;
    assert!(again.try_recv().is_err() && node.starts() == 2, "nothing of it runs that could be ended");

    node.set_pressure(&[Pressure::Memory]);
    node.pass(SECOND).await;
    assert_eq!((node.reason("web"), node.running().len(), node.starts()), (None, 2, 3));

    node.set_pressure(&[Pressure::Disk]);
    let _ended = node.evict("web").await;
    node.pass(SECOND * 5).await;
    node.write("web", "app:2");
    node.pass(SECOND * 5).await;
    assert_eq!((node.reason("web"), node.running().len()), (None, 2), "a new version runs, as under kubelet");
    let _ended = node.evict("web").await;
    node.pass(SECOND * 5).await;
    node.remove("web");
    node.pass(SECOND * 5).await;
    assert_eq!((node.reason("web"), node.running().len()), (None, 1), "and a removed one is gone");
    node.assert_no_violation();
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_killed_in_the_middle_of_an_eviction_goes_on_with_it() {
    let mut node = Node::new(Behaviour { exits: None, obeys: Some(SECOND * 3) });
    node.write("web", "app:1");
    node.pass(SECOND).await;
    node.set_pressure(&[Pressure::Disk]);
    let _ended = node.evict("web").await;
    // SIGKILL has come, its exit is recorded with the reason, and what is left of it is not removed yet.
    while node.running().len() == 1 {
        node.pass(Duration::from_millis(1)).await;
    }
    node.kill_agent().await;
    node.start_agent();
    node.set_pressure(&[Pressure::Disk]);
    node.pass(SECOND * 20).await;
    let starts = node.starts();
    node.set_pressure(&[]);
    node.pass(SECOND * 5).await;
    assert_eq!((node.reason("web"), node.running().len()), (None, 1));
    assert!(starts <= 2 && node.starts() == 2, "{starts}");
    node.assert_no_violation();
}
