//! What every executor does, written once against the trait and run over both: the fake in memory, on which the
//! simulator's proofs are based, and the one on a real containerd. Each verb may come again after a lost answer, and finds
//! what it did before.
#![allow(missing_docs)]

mod node;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Failed, Trial};
use limpet_core::adopt::STATUS_UNKNOWN;
use limpet_core::outcome::Outcome;
use limpet_core::plan::Action;
use limpet_core::state::{ImageState, PodState, SandboxState, StopPhase};
use limpet_model::container::{ContainerId, Task};
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_tests::suite::{self, Case};
use serde_json::json;

use node::{IMAGE, MAIN, Node, Process, newest, pid};

/// One case on both executors.
macro_rules! both {
    ($($case:ident),* $(,)?) => {
        fn main() -> ExitCode {
            let real = [$(Case::new(concat!("containerd::", stringify!($case)), |node| {
                node::on_containerd(node, |node| Box::pin($case(node)))
            }).on(|node| node.agent = false)),*];
            let fake = [$(Trial::test(concat!("fake::", stringify!($case)), || {
                node::on_fake(|node| Box::pin($case(node))).map_err(|error| Failed::from(format!("{error:#}")))
            })),*];
            suite::run_with(real, fake)
        }
    };
}

both!(
    a_sandbox_is_made_once,
    an_image_is_found,
    a_started_container_is_listed,
    a_second_start_takes_over_the_first,
    an_unknown_container_has_no_task,
    a_stopped_container_keeps_its_record,
    sigkill_may_come_again,
    a_stop_that_meets_no_process_answers_with_the_exit,
    an_exit_is_recorded_before_anything_is_deleted,
    an_older_instance_is_forgotten,
    a_container_that_was_never_started_is_discarded,
    a_start_without_an_answer_is_discarded_with_its_process,
    a_released_sandbox_leaves_the_records,
    volumes_and_cgroup_are_updated_in_place,
    a_container_is_resized_in_place,
    an_orphan_is_removed,
);

async fn a_sandbox_is_made_once(node: &Node) -> Result<()> {
    let mut pod = node.pod(Process::Obeys)?;
    ensure!(Arc::clone(&node.executor).find_sandbox(Arc::clone(&pod.record)).await == Ok(None));
    let before = pod.clone();
    node.act(&mut pod, Action::PrepareSandbox).await?;
    let mut again = before;
    node.act(&mut again, Action::PrepareSandbox).await?;
    let SandboxState::Ready(first) = &pod.sandbox else { anyhow::bail!("{:?}", pod.sandbox) };
    ensure!(first.sandbox.id.is_some() && pod.sandbox == again.sandbox, "{:?} {:?}", pod.sandbox, again.sandbox);
    let again = Arc::clone(&node.executor).find_sandbox(Arc::clone(&pod.record)).await;
    ensure!(again.as_ref() == Ok(&Some(Arc::clone(first))), "{again:?}");
    ensure!(node.traces().await.contains(&pod.record.uid));
    node.tear_down(&mut pod).await?;
    node.tear_down(&mut pod).await
}

async fn an_image_is_found(node: &Node) -> Result<()> {
    let mut pod = node.pod(Process::Obeys)?;
    node.act(&mut pod, Action::EnsureImage(MAIN)).await?;
    let ImageState::Ready { image, attempt: 0 } = &pod.containers[MAIN].image else {
        anyhow::bail!("{:?}", pod.containers[MAIN].image)
    };
    ensure!(&*image.name == IMAGE && image.digest.starts_with("sha256:"), "{image:?}");
    Ok(())
}

async fn a_started_container_is_listed(node: &Node) -> Result<()> {
    let mut pod = node.running(Process::Obeys).await?;
    let (instance, container) = (newest(&pod)?, node.only().await?);
    let identity = &container.recorded.identity;
    ensure!(
        container.id == instance.id && container.id == ContainerId::derive(&pod.record.uid, "main", 0, pod.id_seed),
        "{container:?}"
    );
    ensure!(
        identity.pod_key().as_ref() == Ok(&pod.record.key) && identity.uid == pod.record.uid.as_str(),
        "{identity:?}"
    );
    ensure!((identity.container.as_str(), identity.attempt, identity.init) == ("main", 0, false), "{identity:?}");
    ensure!(identity.fingerprint == instance.fingerprint && identity.sandbox == instance.sandbox, "{identity:?}");
    ensure!(container.recorded.manifest == pod.record.manifest, "another manifest");
    ensure!(container.recorded.state.exit.is_none() && container.recorded.state.started_at == instance.started_at);
    ensure!(container.task == Some(Task::Running { pid: pid(&pod)? }) && container.has_snapshot, "{container:?}");
    let processes = node.executor.processes();
    ensure!(processes.in_container(&pod.record.uid, &container.id).is_some());
    ensure!(processes.is_in_container(pid(&pod)?, &container.id));
    end(node, &mut pod).await
}

async fn a_second_start_takes_over_the_first(node: &Node) -> Result<()> {
    let mut pod = node.pod(Process::Obeys)?;
    node.prepared(&mut pod).await?;
    let mut again = pod.clone();
    node.act(&mut pod, Action::Start(MAIN)).await?;
    node.act(&mut again, Action::Start(MAIN)).await?;
    ensure!(newest(&pod)?.id == newest(&again)?.id && pid(&pod)? == pid(&again)?, "{pod:?} {again:?}");
    ensure!(node.only().await?.task == Some(Task::Running { pid: pid(&pod)? }));
    end(node, &mut again).await
}

async fn an_unknown_container_has_no_task(node: &Node) -> Result<()> {
    let pod = node.pod(Process::Obeys)?;
    let id = ContainerId::derive(&pod.record.uid, "main", 7, 0);
    ensure!(Arc::clone(&node.executor).task(id.clone()).await?.is_none());
    ensure!(!node.executor.processes().is_in_container(1, &id));
    Ok(())
}

async fn a_stopped_container_keeps_its_record(node: &Node) -> Result<()> {
    let mut pod = node.running(Process::Obeys).await?;
    ensure!(node.stop(&mut pod, StopPhase::Signal).await?.is_none(), "it ran");
    ensure!(node.wait_exit(&mut pod).await? == 143);
    let before = pod.clone();
    node.act(&mut pod, Action::Reap(MAIN)).await?;
    let container = node.only().await?;
    let exit = container.recorded.state.exit.clone().context("its exit is not recorded")?;
    let task = node.shim_records_exits().then_some(Task::Stopped { code: 143, at: exit.finished_at });
    ensure!(exit.code == 143 && container.task == task && !container.has_snapshot, "{container:?}");
    // Its answer may be lost.
    pod = before;
    node.act(&mut pod, Action::Reap(MAIN)).await?;
    ensure!(node.only().await?.recorded.state == container.recorded.state);
    node.tear_down(&mut pod).await
}

async fn sigkill_may_come_again(node: &Node) -> Result<()> {
    let mut pod = node.running(Process::Ignores).await?;
    let id = newest(&pod)?.id.clone();
    ensure!(node.stop(&mut pod, StopPhase::Signal).await?.is_none());
    ensure!(node.stop(&mut pod, StopPhase::Kill).await?.is_none(), "its exit comes as an event");
    ensure!(node.wait_stopped(&id).await?.0 == 137);
    let exit = node.stop(&mut pod, StopPhase::Kill).await?;
    ensure!(exit.as_ref().is_some_and(|exit| exit.code == 137), "{exit:?}");
    node.wait_exit(&mut pod).await?;
    node.tear_down(&mut pod).await
}

async fn a_stop_that_meets_no_process_answers_with_the_exit(node: &Node) -> Result<()> {
    let mut pod = node.running(Process::Exits(3)).await?;
    let id = newest(&pod)?.id.clone();
    node.wait_stopped(&id).await?;
    let mut stopped = pod.clone();
    let exit = node.stop(&mut stopped, StopPhase::Signal).await?;
    ensure!(exit.as_ref().is_some_and(|exit| exit.code == 3), "{exit:?}");
    // containerd reports success for a first SIGKILL without a process; the second one checks.
    node.stop(&mut stopped, StopPhase::Kill).await?;
    let exit = node.stop(&mut stopped, StopPhase::Kill).await?;
    ensure!(exit.as_ref().is_some_and(|exit| exit.code == 3), "{exit:?}");
    let mut unaware = pod.clone();
    node.wait_exit(&mut pod).await?;
    node.act(&mut pod, Action::Reap(MAIN)).await?;
    let exit = node.stop(&mut unaware, StopPhase::Signal).await?;
    let known = if node.shim_records_exits() { (3, "Error") } else { (137, STATUS_UNKNOWN) };
    ensure!(exit.as_ref().is_some_and(|exit| (exit.code, exit.reason.as_str()) == known), "{exit:?}");
    node.tear_down(&mut pod).await
}

async fn an_exit_is_recorded_before_anything_is_deleted(node: &Node) -> Result<()> {
    let mut pod = node.running(Process::Exits(3)).await?;
    let (instance, before) = (newest(&pod)?.clone(), pod.clone());
    let (code, at) = node.wait_stopped(&instance.id).await?;
    let exit = limpet_core::adopt::observed_exit(code, at);
    let recorded = Arc::clone(&node.executor).record_exit(before, MAIN, instance, exit).await;
    ensure!((recorded.code, recorded.finished_at) == (3, at), "{recorded:?}");
    let container = node.only().await?;
    ensure!(container.recorded.state.exit.as_ref() == Some(&recorded), "{:?}", container.recorded.state);
    ensure!(container.task == Some(Task::Stopped { code: 3, at }) && container.has_snapshot, "{container:?}");
    node.wait_exit(&mut pod).await?;
    node.tear_down(&mut pod).await
}

async fn an_older_instance_is_forgotten(node: &Node) -> Result<()> {
    let mut pod = node.running(Process::Exits(3)).await?;
    for _ in 0..2 {
        node.wait_exit(&mut pod).await?;
        node.act(&mut pod, Action::Reap(MAIN)).await?;
        node.act(&mut pod, Action::EnsureImage(MAIN)).await?;
        node.act(&mut pod, Action::Start(MAIN)).await?;
    }
    node.wait_exit(&mut pod).await?;
    ensure!(node.list().await?.len() == 3 && pod.containers[MAIN].stale.len() == 1);
    let stale = pod.containers[MAIN].stale[0].clone();
    ensure!(node.has_log(&stale) != Some(false), "no log of the first attempt");
    node.act(&mut pod, Action::Forget(MAIN)).await?;
    ensure!(pod.containers[MAIN].stale.is_empty());
    let mut attempts: Vec<_> = node.list().await?.iter().map(|container| container.recorded.identity.attempt).collect();
    attempts.sort_unstable();
    ensure!(attempts == [1, 2], "{attempts:?}");
    ensure!(node.has_log(&stale) != Some(true), "the log of the first attempt stays");
    node.tear_down(&mut pod).await
}

async fn a_container_that_was_never_started_is_discarded(node: &Node) -> Result<()> {
    let mut pod = node.pod(Process::Obeys)?;
    node.prepared(&mut pod).await?;
    let id = node.interrupt_start(&pod).await?;
    let container = node.only().await?;
    ensure!(container.id == id && container.recorded.state.started_at.is_none(), "{container:?}");
    ensure!(container.task.is_none() && container.has_snapshot, "{container:?}");
    for _ in 0..2 {
        let outcome = Arc::clone(&node.executor).discard(MAIN, id.clone()).await;
        ensure!(matches!(outcome, Outcome::Discarded { gone: true, .. }), "{outcome:?}");
        ensure!(node.list().await?.is_empty());
    }
    // And a start takes its place without that.
    node.interrupt_start(&pod).await?;
    node.act(&mut pod, Action::Start(MAIN)).await?;
    ensure!(node.only().await?.task == Some(Task::Running { pid: pid(&pod)? }));
    end(node, &mut pod).await
}

async fn a_start_without_an_answer_is_discarded_with_its_process(node: &Node) -> Result<()> {
    let mut pod = node.pod(Process::Ignores)?;
    node.prepared(&mut pod).await?;
    let mut started = pod.clone();
    node.act(&mut started, Action::Start(MAIN)).await?;
    let (id, pid) = (newest(&started)?.id.clone(), pid(&started)?);
    pod.containers[MAIN].possible_orphan = Some(id.clone());
    let mut again = pod.clone();
    node.act(&mut pod, Action::Discard(MAIN)).await?;
    ensure!(node.list().await?.is_empty() && pod.containers[MAIN].possible_orphan.is_none());
    ensure!(!node.executor.processes().is_in_container(pid, &id), "its process lives");
    node.act(&mut again, Action::Discard(MAIN)).await?;
    node.tear_down(&mut pod).await
}

async fn a_released_sandbox_leaves_the_records(node: &Node) -> Result<()> {
    let mut pod = node.running(Process::Exits(0)).await?;
    node.wait_exit(&mut pod).await?;
    node.act(&mut pod, Action::Reap(MAIN)).await?;
    let before = node.only().await?;
    for _ in 0..2 {
        node.act(&mut pod, Action::ReleaseSandbox).await?;
        ensure!(node.only().await?.recorded.state == before.recorded.state);
        ensure!(Arc::clone(&node.executor).find_sandbox(Arc::clone(&pod.record)).await == Ok(None));
        // Its volumes stay with the records.
        ensure!(node.traces().await.contains(&pod.record.uid));
    }
    ensure!(node.has_log(newest(&pod)?) != Some(false), "its log is gone");
    node.tear_down(&mut pod).await
}

async fn volumes_and_cgroup_are_updated_in_place(node: &Node) -> Result<()> {
    let limited = json!({ "resources": { "limits": { "cpu": "200m", "memory": "64Mi" } } });
    let mut pod = node.pod_with(Process::Obeys, limited)?;
    node.prepared(&mut pod).await?;
    ensure!(node.cpu_quota(&pod.record.uid)? == Some(20_000), "{:?}", node.cpu_quota(&pod.record.uid));
    node.act(&mut pod, Action::Start(MAIN)).await?;
    let pid = pid(&pod)?;
    for quota in [30_000, 30_000] {
        let limits = CgroupLimits { cpu_quota: Some(quota), ..limits(&pod) };
        node.act(&mut pod, Action::UpdateCgroup(limits)).await?;
        ensure!(node.cpu_quota(&pod.record.uid)? == Some(quota), "{:?}", node.cpu_quota(&pod.record.uid));
        node.act(&mut pod, Action::UpdateVolumes).await?;
    }
    ensure!(node.only().await?.task == Some(Task::Running { pid }), "it was restarted");
    end(node, &mut pod).await
}

async fn a_container_is_resized_in_place(node: &Node) -> Result<()> {
    let limited = |cpu: &str, memory: &str| json!({ "resources": { "limits": { "cpu": cpu, "memory": memory } } });
    let mut pod = node.pod_with(Process::Obeys, limited("200m", "64Mi"))?;
    node.prepared(&mut pod).await?;
    node.act(&mut pod, Action::Start(MAIN)).await?;
    let (pid, first) = (pid(&pod)?, newest(&pod)?.fingerprint.clone());
    for (cpu, memory, quota, bytes) in [("300m", "96Mi", 30_000, 96 << 20), ("100m", "32Mi", 10_000, 32 << 20)] {
        let next = node.pod_with(Process::Obeys, limited(cpu, memory))?.record;
        pod.update(next);
        // The pod first where it grows, last where it shrinks: the kernel refuses another order.
        let grows = CgroupLimits { cpu_quota: Some(30_000), memory: Some(96 << 20), ..limits(&pod) };
        node.act(&mut pod, Action::UpdateCgroup(grows)).await?;
        let before = pod.clone();
        node.act(&mut pod, Action::Resize(MAIN)).await?;
        // Its answer may be lost.
        pod = before;
        node.act(&mut pod, Action::Resize(MAIN)).await?;
        ensure!(newest(&pod)?.fingerprint == pod.containers[MAIN].fingerprint && newest(&pod)?.fingerprint != first);
        let container = node.only().await?;
        ensure!(container.task == Some(Task::Running { pid }), "it was restarted");
        ensure!(container.recorded.identity.fingerprint == pod.containers[MAIN].fingerprint, "not written down");
        ensure!(container.recorded.manifest == pod.record.manifest && container.recorded.identity.resized_at.is_some());
        let limits = node.limits_of(&container.id)?;
        ensure!(limits.is_none_or(|limits| limits == (quota, bytes)), "{limits:?}");
        let shrunk = self::limits(&pod);
        node.act(&mut pod, Action::UpdateCgroup(shrunk)).await?;
        ensure!(node.cpu_quota(&pod.record.uid)? == Some(quota));
    }
    end(node, &mut pod).await
}

async fn an_orphan_is_removed(node: &Node) -> Result<()> {
    let mut pod = node.pod(Process::Obeys)?;
    node.act(&mut pod, Action::PrepareSandbox).await?;
    for _ in 0..2 {
        Arc::clone(&node.executor).remove_orphan(pod.record.uid.clone()).await;
        ensure!(node.traces().await.is_empty(), "{:?}", node.traces().await);
    }
    Ok(())
}

fn limits(pod: &PodState) -> CgroupLimits {
    limpet_model::pod::compute_resources::pod_limits(pod.record.spec())
}

/// Kills what runs, then takes the pod down.
async fn end(node: &Node, pod: &mut PodState) -> Result<()> {
    node.stop(pod, StopPhase::Signal).await?;
    node.stop(pod, StopPhase::Kill).await?;
    node.wait_exit(pod).await?;
    node.tear_down(pod).await
}
