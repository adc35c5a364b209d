//! Selects what needs attention in a node's status. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{PodCounts, state};
use crate::{age, sources};
use limpet_model::source::SourceKind;
use limpet_wire::pods::SourceDocument;
use limpet_wire::status::{CertificateDocument, StatusDocument};

/// The most pods that are named; the others are counted.
const MAX_NAMED_PODS: usize = 10;

/// One sentence for each problem, causes before their consequences.
pub(super) fn points(
    status: &StatusDocument,
    sources: &[SourceDocument],
    pods: &PodCounts,
    now: Timestamp,
) -> Vec<String> {
    let mut points = Vec::new();
    if !status.containerd {
        points.push(
            "containerd is not connected; pods keep running, none starts. See: systemctl status containerd".to_owned(),
        );
    }
    if status.shutting_down {
        points.push("the node is shutting down: no pod starts. To run pods again: limpet shutdown --cancel".to_owned());
    }
    let last = status.upgrade.as_ref().and_then(|upgrade| upgrade.last.as_ref());
    if let Some(last) = last.filter(|last| last.outcome == "undone") {
        let reason = last.reason.as_deref().unwrap_or("its reason is not known");
        points.push(format!("limpet {} was undone, {} runs: {reason}", last.to, last.from));
    }
    if let Some(apiserver) = status.apiserver.as_ref().filter(|apiserver| apiserver.state == "offline") {
        points.push(format!("the apiserver is {}; pods keep running", state(apiserver, now).0));
    }
    points.extend(status.certificates.iter().filter_map(|held| certificate(held, now)));
    if let Some(Time(at)) = status.tokens.first_expiry.as_ref().filter(|Time(at)| *at < now) {
        points.push(format!("a token of a pod's service account expired {} ago", age::since(*at, now)));
    }
    for condition in status.conditions.iter().flatten() {
        points.push(format!("the node has {}; see: limpet events", condition.as_str()));
    }
    sources.iter().for_each(|source| of_source(source, now, &mut points));
    of_pods(pods, &mut points);
    points
}

/// The problem of a certificate, if any. A certificate that is renewed in time never passes nine tenths of its
/// lifetime.
pub(super) fn certificate(held: &CertificateDocument, now: Timestamp) -> Option<String> {
    let (from, to) = (held.not_before.0, held.not_after.0);
    let purpose = &held.purpose;
    if now < from {
        return Some(format!("the {purpose} certificate is not valid before {from}: the clock is wrong"));
    }
    if now > to {
        return Some(format!("the {purpose} certificate expired {} ago", age::since(to, now)));
    }
    let (whole, left) = (to.duration_since(from), to.duration_since(now));
    let late = left.as_secs() < whole.as_secs() / 10;
    late.then(|| format!("the {purpose} certificate expires in {} and is not renewed", age::since(now, to)))
}

fn of_source(source: &SourceDocument, now: Timestamp, points: &mut Vec<String>) {
    let kind = &source.source;
    // The apiserver's source shows its connection instead.
    let is_connection = SourceKind::from_name(kind).is_some_and(|kind| kind.traits().is_connection);
    if source.health == "unavailable" && !is_connection {
        points.push(format!("source {kind} cannot be read: {}; its pods keep running", sources::state(source, now).0));
    }
    match source.rejected.len() {
        0 => {}
        1 => points.push(format!("source {kind}: 1 manifest is rejected, see: limpet sources")),
        count => points.push(format!("source {kind}: {count} manifests are rejected, see: limpet sources")),
    }
    let remarks = source.remark.iter().flat_map(|all| all.lines());
    for remark in remarks.map(str::to_owned) {
        // Several sources may have the same remark.
        if !points.contains(&remark) {
            points.push(remark);
        }
    }
}

fn of_pods(pods: &PodCounts, points: &mut Vec<String>) {
    for pod in pods.failing.iter().take(MAX_NAMED_PODS) {
        points.push(format!("pod {}/{}: {}, see: limpet describe {}", pod.namespace, pod.name, pod.status, pod.name));
    }
    match pods.failing.len().saturating_sub(MAX_NAMED_PODS) {
        0 => {}
        1 => points.push("and 1 more pod, see: limpet pods".to_owned()),
        more => points.push(format!("and {more} more pods, see: limpet pods")),
    }
}
