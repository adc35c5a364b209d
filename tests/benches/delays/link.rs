//! Situations with a link that swallows what is sent over it: connections stay open, and nothing answers.

use std::time::{Duration, Instant};

use anyhow::Result;
use limpet_tests::contender::Contender;
use serde_json::{Value, json};

use super::scene::{Pod, Scene, Took, after, all_after, is_running, kill, runs, until, wait_runs};

/// How long the link is away before it comes back: longer than any of the contenders needs to notice.
const OUTAGE_DURATION: Duration = Duration::from_secs(60);
/// How many pods change their status during the outage.
const PODS: usize = 5;

/// A static pod starts and is edited, right after the link has begun to swallow.
pub(crate) fn static_pods(scene: &Scene<'_>, _: &mut dyn Contender) -> Result<Vec<Took>> {
    let pod = scene.pod("own");
    scene.wire.swallow()?;
    let mut took = Vec::new();
    for version in ["1", "2"] {
        let cause = Instant::now();
        scene.apply(&pod, version)?;
        took.push(after(cause, || runs(&pod, version))?);
    }
    scene.recover()?;
    scene.wait_mirror(&pod)?;
    scene.end(&pod, "2")?;
    Ok(took)
}

/// Manifests are edited and removed, and a container is killed, while the agent is stopped; then it starts without a
/// server.
pub(crate) fn restarted_agent(scene: &Scene<'_>, contender: &mut dyn Contender) -> Result<Vec<Took>> {
    let [edited, removed, bound] = ["edited", "removed", "bound"].map(|name| scene.pod(name));
    for pod in [&edited, &removed] {
        scene.apply(pod, "1")?;
        scene.wait_mirror(pod)?;
    }
    scene.create(&bound, "1")?;
    scene.wait_shown(&scene.path(&bound))?;
    scene.wire.swallow()?;
    contender.stop()?;
    scene.apply(&edited, "2")?;
    scene.remove(&removed)?;
    kill(&bound, "1")?;
    until("the end of a process that was killed", || !runs(&bound, "1"))?;
    let cause = Instant::now();
    contender.spawn()?;
    let took = all_after(
        cause,
        [&|| runs(&edited, "2") && !runs(&edited, "1"), &|| !runs(&removed, "1"), &|| runs(&bound, "1")],
    )?;
    scene.recover()?;
    until("the end of a pod without a manifest", || !runs(&removed, "1"))?;
    wait_runs(&edited, "2")?;
    scene.end(&edited, "2")?;
    scene.delete(&bound)?;
    Ok(took.to_vec())
}

/// Containers are restarted while the link is away, and the cluster takes the node for lost; then the link is back.
pub(crate) fn link_comes_back(scene: &Scene<'_>, _: &mut dyn Contender) -> Result<Vec<Took>> {
    let pods: Vec<_> = (0..PODS).map(|number| scene.pod(&format!("restarted-{number}"))).collect();
    pods.iter().try_for_each(|pod| scene.create(pod, "1"))?;
    pods.iter().try_for_each(|pod| scene.wait_shown(&scene.path(pod)).map(drop))?;
    scene.wire.swallow()?;
    for pod in &pods {
        kill(pod, "1")?;
    }
    scene.pass(OUTAGE_DURATION)?;
    pods.iter().try_for_each(|pod| wait_runs(pod, "1"))?;
    take_for_lost(scene)?;
    let restarted =
        |pod: &Pod| scene.at(&scene.path(pod)).is_some_and(|shown| is_running(&shown) && restarts(&shown) == 1);
    let cause = Instant::now();
    scene.wire.join();
    let took = all_after(cause, [&|| scene.is_ready(), &|| pods.iter().all(restarted)])?;
    pods.iter().try_for_each(|pod| scene.cluster.delete(&scene.path(pod)))?;
    until("the end of pods", || pods.iter().all(|pod| scene.at(&scene.path(pod)).is_none()))?;
    Ok(took.to_vec())
}

/// Does what the cluster's controller does with a node whose lease has expired.
fn take_for_lost(scene: &Scene<'_>) -> Result<()> {
    let unknown = json!({ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status." });
    let path = format!("{}/status", scene.node());
    scene.cluster.patch_items(&path, &json!({ "status": { "conditions": [unknown] } }))
}

fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0)
}

/// A pod is deleted and created again under its name while the link is away. Measured is how long both ran once it was
/// back, and when the new one ran.
pub(crate) fn replaced_pod(scene: &Scene<'_>, _: &mut dyn Contender) -> Result<Vec<Took>> {
    let pod = scene.pod("replaced");
    scene.create(&pod, "1")?;
    let path = scene.path(&pod);
    scene.wait_shown(&path)?;
    scene.wire.swallow()?;
    scene.cluster.delete(&format!("{path}?gracePeriodSeconds=0"))?;
    scene.create(&pod, "2")?;
    scene.pass(OUTAGE_DURATION)?;
    let cause = Instant::now();
    scene.wire.join();
    let [started, ended] = all_after(cause, [&|| runs(&pod, "2"), &|| !runs(&pod, "1")])?;
    scene.wait_shown(&path)?;
    scene.delete(&pod)?;
    let together = started.zip(ended).map(|(started, ended)| ended.saturating_sub(started));
    Ok(vec![together, started])
}
