//! The lines of workloads with replicas: how many pods there are, and how a new template is rolled out.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use limpet_model::object::ObjectKind;
use limpet_model::object::workload::PodTemplate;
use limpet_model::object::workload::labels::{REVISION_HASH, TEMPLATE_HASH};
use limpet_model::pod::is_terminal_phase;
use limpet_wire::objects::ObjectDocument;
use serde_json::Value;

use super::{optional, text};
use crate::pod_status::ready_since;
use crate::sheet::Sheet;

/// How many pods there are, as the lines of kubectl count them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    total: usize,
    updated: usize,
    available: usize,
    waiting: usize,
    running: usize,
    succeeded: usize,
    failed: usize,
}

impl Counts {
    fn new<'a>(label: (&str, &str), min_ready: i64, pods: impl Iterator<Item = &'a Pod>, now: Timestamp) -> Self {
        let mut counts = Self::default();
        for pod in pods {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
            match phase {
                "Succeeded" => counts.succeeded += 1,
                "Failed" => counts.failed += 1,
                "Running" => counts.running += 1,
                _ => counts.waiting += 1,
            }
            if is_terminal_phase(phase) {
                continue;
            }
            counts.total += 1;
            let labels = pod.metadata.labels.as_ref();
            counts.updated +=
                usize::from(labels.and_then(|labels| labels.get(label.0)).is_some_and(|has| has == label.1));
            let is_available = |since: Timestamp| now.as_second() - since.as_second() >= min_ready;
            counts.available += usize::from(ready_since(pod).is_some_and(is_available));
        }
        counts
    }
}

pub(super) fn describe(sheet: &mut Sheet, kind: ObjectKind, document: &ObjectDocument) {
    let spec = &document.object["spec"];
    let hash = PodTemplate::new(&spec["template"]).hash();
    let set = format!("{}-{hash}", text(&document.object["metadata"]["name"], ""));
    let label = match kind {
        ObjectKind::StatefulSet => (REVISION_HASH, set.as_str()),
        ObjectKind::DaemonSet => (REVISION_HASH, hash.as_str()),
        _ => (TEMPLATE_HASH, hash.as_str()),
    };
    let min_ready = spec["minReadySeconds"].as_i64().unwrap_or(0);
    let counts = Counts::new(label, min_ready, document.pods.iter().map(|entry| &entry.pod), sheet.now());
    let wanted = match kind {
        ObjectKind::DaemonSet => 1,
        _ => spec["replicas"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(1),
    };
    let Counts { total, updated, available, .. } = counts;
    let missing = wanted.saturating_sub(available);
    let replicas = match kind {
        ObjectKind::Deployment => format!(
            "{wanted} desired | {updated} updated | {total} total | {available} available | {missing} unavailable"
        ),
        ObjectKind::ReplicaSet => format!("{total} current / {wanted} desired | {available} available"),
        _ => format!("{wanted} desired | {total} total | {updated} updated | {available} available"),
    };
    sheet.field("Replicas", &replicas);
    statuses(sheet, &counts);
    strategy(sheet, kind, spec);
    optional(sheet, "Min Ready", &spec["minReadySeconds"], "s");
    if kind == ObjectKind::Deployment && spec["paused"] == true {
        sheet.field("Paused", "True: a new template changes no pods until limpet rollout resume");
    }
}

fn statuses(sheet: &mut Sheet, counts: &Counts) {
    let Counts { running, waiting, succeeded, failed, .. } = counts;
    sheet.field(
        "Pods Status",
        &format!("{running} Running / {waiting} Waiting / {succeeded} Succeeded / {failed} Failed"),
    );
}

/// How a new template is rolled out.
fn strategy(sheet: &mut Sheet, kind: ObjectKind, spec: &Value) {
    let (strategy, default) = match kind {
        ObjectKind::Deployment => (&spec["strategy"], "25%"),
        ObjectKind::DaemonSet => (&spec["updateStrategy"], "1"),
        ObjectKind::StatefulSet => (&spec["updateStrategy"], ""),
        _ => return,
    };
    let name = text(&strategy["type"], "RollingUpdate");
    let rolling = &strategy["rollingUpdate"];
    let detail = match (name.as_str(), kind) {
        ("RollingUpdate", ObjectKind::StatefulSet) => format!(", partition {}", text(&rolling["partition"], "0")),
        ("RollingUpdate", _) => {
            let surge = if kind == ObjectKind::DaemonSet { "0" } else { default };
            let (unavailable, surge) = (text(&rolling["maxUnavailable"], default), text(&rolling["maxSurge"], surge));
            format!(", {unavailable} max unavailable, {surge} max surge")
        }
        _ => String::new(),
    };
    sheet.field("Strategy", &format!("{name}{detail}"));
    if kind == ObjectKind::StatefulSet {
        sheet.field("Pod Management", &text(&spec["podManagementPolicy"], "OrderedReady"));
        sheet.optional("Service Name", spec["serviceName"].as_str());
    }
}
