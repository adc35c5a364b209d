//! Adopts containers that an earlier agent, or an earlier connection to containerd, has started.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use limpet_core::adopt::adopt;
use limpet_core::outcome::{Outcome, apply};
use limpet_core::state::{Instance, Now, PodState};
use limpet_model::container::{ContainerId, ContainerIdentity, FoundContainer, Recorded};
use limpet_model::manifest;
use limpet_model::pod::{PodKey, PodRecord, PodUid};

use crate::executor::{Executor, ExecutorError};

/// The containers that were found for one pod, and the incarnations restored from them.
#[derive(Debug)]
pub struct FoundPod {
    pub containers: Vec<FoundContainer>,
    /// The pod's incarnations among them; empty for a pod that had a worker when the reading began.
    pub incarnations: Vec<PodState>,
}

/// Reads the runtime's whole state and, for pods that are not among `known`, their sandboxes and manifests.
///
/// # Errors
///
/// The runtime does not answer.
pub async fn read(
    executor: Arc<dyn Executor>,
    node_name: String,
    known: BTreeSet<PodKey>,
    first: bool,
) -> Result<BTreeMap<PodKey, FoundPod>, ExecutorError> {
    let mut pods: BTreeMap<PodKey, FoundPod> = BTreeMap::new();
    for container in Arc::clone(&executor).list(first).await? {
        let key = match container.recorded.identity.pod_key() {
            Ok(key) => key,
            Err(error) => {
                tracing::error!(container = %container.id, %error, "a container's pod has no usable name; left alone");
                continue;
            }
        };
        let pod = pods.entry(key).or_insert_with(|| FoundPod { containers: Vec::new(), incarnations: Vec::new() });
        pod.containers.push(container);
    }
    // Concurrently, because a slow disk must not make the pods wait for each other.
    let unknown = pods.iter_mut().filter(|(key, _)| !known.contains(*key)).map(|(_, pod)| pod);
    let (executor, node_name) = (&executor, &node_name);
    let restored = unknown.map(|pod| async move {
        pod.incarnations = incarnations(executor, &pod.containers, node_name).await;
    });
    join_all(restored).await;
    Ok(pods)
}

async fn incarnations(executor: &Arc<dyn Executor>, listed: &[FoundContainer], node_name: &str) -> Vec<PodState> {
    let mut by_uid: BTreeMap<&str, Vec<FoundContainer>> = BTreeMap::new();
    for container in listed {
        by_uid.entry(&container.recorded.identity.uid).or_default().push(container.clone());
    }
    let mut incarnations = Vec::new();
    for containers in by_uid.into_values() {
        let Some(record) = restore(&containers, node_name).map(Arc::new) else { continue };
        let sandbox = Arc::clone(executor).find_sandbox(Arc::clone(&record)).await;
        let now = executor.now();
        let mut pod = PodState::new(record, now.wall);
        pod.id_seed = executor.id_seed();
        pod.static_cpus = executor.has_static_cpus();
        apply(&mut pod, Outcome::SandboxExamined(sandbox), now);
        // Containers that never ran are found again, and removed, when the worker reads its inbox.
        take_over(&**executor, &mut pod, containers, now);
        incarnations.push(pod);
    }
    incarnations
}

/// Reconciles `pod` with the containers that were found: see [`adopt`]. Returns containers that never ran.
pub fn take_over(
    executor: &dyn Executor,
    pod: &mut PodState,
    containers: Vec<FoundContainer>,
    now: Now,
) -> Vec<ContainerId> {
    let known: HashSet<ContainerId> = instances(pod).map(|instance| instance.id.clone()).collect();
    let never_ran = adopt(pod, containers, executor.processes(), now);
    let record = Arc::clone(&pod.record);
    executor.adopt_pod(&record);
    let running = pod.containers.iter_mut().filter_map(|slot| slot.instance.as_mut());
    for instance in running.filter(|instance| instance.is_running() && !known.contains(&instance.id)) {
        // Kills before the adoption have not ended it.
        instance.oom_kills_survived = executor.oom_kills(&record, &instance.id);
    }
    never_ran
}

fn instances(pod: &PodState) -> impl Iterator<Item = &Instance> {
    pod.containers.iter().filter_map(|slot| slot.instance.as_ref())
}

/// Restores the pod from the newest manifest that is recorded on its containers.
fn restore(containers: &[FoundContainer], node_name: &str) -> Option<PodRecord> {
    let newest = containers.iter().max_by_key(|container| {
        let Recorded { identity, state, .. } = &container.recorded;
        (state.started_at.max(identity.resized_at), identity.attempt)
    })?;
    let identity = &newest.recorded.identity;
    match manifest::restore(&newest.recorded.manifest, &identity.origin, identity.source(), node_name) {
        Ok(mut record) => match (PodUid::parse(identity.uid.as_str()), identity.pod_key()) {
            (Ok(uid), Ok(key)) => {
                (record.uid, record.key) = (uid, key);
                Some(record)
            }
            (Err(error), _) => left_alone(identity, &error),
            (_, Err(error)) => left_alone(identity, &error),
        },
        Err(faults) => left_alone(identity, &faults.first().map(ToString::to_string).unwrap_or_default()),
    }
}

/// Reports that a pod keeps running without a worker.
fn left_alone(identity: &ContainerIdentity, fault: &dyn std::fmt::Display) -> Option<PodRecord> {
    let pod = format!("{}/{}", identity.namespace, identity.pod);
    tracing::error!(pod, %fault, "a running pod's manifest cannot be read; left alone");
    None
}
