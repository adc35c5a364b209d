//! An idle agent does not call containerd, and after an interruption reads only once what it may have missed.

use std::time::Duration;

use anyhow::{Result, ensure};
use limpet_tests::{TestNode, suite, wait};

use crate::proxy::Call;
use crate::rig::Rig;

/// How long the agent is observed. Whatever wakes it shows within the shorter time, except for what it does every few
/// minutes.
fn window() -> Duration {
    Duration::from_secs(if suite::is_long() { 600 } else { 20 })
}

pub(crate) fn an_idle_agent_makes_no_calls(node: &mut TestNode) -> Result<()> {
    let mut rig = Rig::new(node, None)?;
    stays_silent(&mut rig)?;
    // The stream of events breaks when containerd ends. The agent then reads the state once, and is silent again.
    rig.reset()?;
    rig.start_containerd()?;
    let subscribed = || rig.proxy.calls().iter().any(|call| call.method == "Events.Subscribe");
    wait::until_true(wait::SOON, "the new stream of events", subscribed)?;
    rig.settle(&[], None)?;
    let calls = rig.proxy.calls();
    for method in ["Tasks.List", "Containers.ListStream"] {
        let count = calls.iter().filter(|call| call.method == method).count();
        ensure!(count == 1, "{method} was called {count} times: {}", words(&calls));
    }
    stays_silent(&mut rig)
}

fn stays_silent(rig: &mut Rig<'_>) -> Result<()> {
    // The last calls of the start may come late on a busy machine, once.
    wait::until_true(wait::SOON, "calm", || {
        let before = rig.proxy.calls().len();
        std::thread::sleep(Duration::from_secs(2));
        rig.proxy.calls().len() == before
    })?;
    rig.reset()?;
    let window = window();
    std::thread::sleep(window);
    let calls = rig.proxy.calls();
    ensure!(calls.is_empty(), "within {window:?} of idleness: {}", words(&calls));
    eprintln!("no call within {window:?}");
    Ok(())
}

fn words(calls: &[Call]) -> String {
    calls.iter().map(|call| format!("{}#{}", call.method, call.number)).collect::<Vec<_>>().join(", ")
}
