//! Selects what a request is about: by filters of lists, and by ids, which users shorten.

use std::collections::HashMap;

use tonic::Status;

use super::container::Run;
use super::sandbox;
use limpet_core::status::observed::{ObservedPod, ObservedPods};
use limpet_node_api::runtime as cri;

/// The pods that pass a filter.
pub(super) fn pods<'a>(
    observed: &'a ObservedPods,
    filter: Option<&cri::PodSandboxFilter>,
) -> impl Iterator<Item = &'a ObservedPod> {
    let fits = move |pod: &&ObservedPod| {
        let Some(cri::PodSandboxFilter { id, state, label_selector }) = filter else { return true };
        super::identity::sandbox_id(pod).starts_with(id)
            && state.is_none_or(|wanted| wanted.state == sandbox::state(pod) as i32)
            && has_labels(label_selector, || sandbox::labels(&pod.record))
    };
    observed.pods.values().map(AsRef::as_ref).filter(fits)
}

/// The container runs that pass a filter.
pub(super) fn containers<'a>(
    observed: &'a ObservedPods,
    filter: Option<&cri::ContainerFilter>,
) -> impl Iterator<Item = Run<'a>> {
    let fits = move |run: &Run<'_>| {
        let Some(cri::ContainerFilter { id, state, pod_sandbox_id, label_selector }) = filter else { return true };
        run.id.starts_with(id)
            && super::identity::sandbox_id(run.pod).starts_with(pod_sandbox_id)
            && state.is_none_or(|wanted| wanted.state == run.state() as i32)
            && has_labels(label_selector, || run.labels())
    };
    observed.pods.values().flat_map(|pod| Run::all(pod)).filter(fits)
}

/// The pod with this id, or the only one whose id begins with it.
///
/// # Errors
///
/// `NOT_FOUND`, with containerd's message.
pub(super) fn pod<'a>(observed: &'a ObservedPods, id: &str) -> Result<&'a ObservedPod, Status> {
    let pods = observed.pods.values().map(AsRef::as_ref);
    only(pods.filter(|pod| super::identity::sandbox_id(pod).starts_with(id)), "sandbox", id)
}

/// The run with this id, or the only one whose id begins with it.
///
/// # Errors
///
/// `NOT_FOUND`, with containerd's message.
pub(super) fn container<'a>(observed: &'a ObservedPods, id: &str) -> Result<Run<'a>, Status> {
    let runs = observed.pods.values().flat_map(|pod| Run::all(pod));
    only(runs.filter(|run| run.id.starts_with(id)), "container", id)
}

fn only<T>(mut matching: impl Iterator<Item = T>, kind: &str, id: &str) -> Result<T, Status> {
    let missing = |why: &str| Status::not_found(format!("an error occurred when try to find {kind} {id:?}: {why}"));
    let first = matching.next().filter(|_| !id.is_empty()).ok_or_else(|| missing("not found"))?;
    match matching.next() {
        None => Ok(first),
        Some(_) => Err(missing("more than one has an id that begins so")),
    }
}

fn has_labels(wanted: &HashMap<String, String>, labels: impl Fn() -> HashMap<String, String>) -> bool {
    if wanted.is_empty() {
        return true;
    }
    let labels = labels();
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}
