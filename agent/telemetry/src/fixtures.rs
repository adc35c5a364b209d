//! Metrics for tests of this crate and, with the feature `fixtures`, of the crates above.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use limpet_core::eviction::Signal;
use limpet_core::fixtures::observed;
use limpet_core::source::{Health, SourceSnapshot};
use limpet_core::status::observed::Observed;
use limpet_model::node::Pressure;
use limpet_model::probe::ProbeKind;
use limpet_model::source::SourceKind;
use serde_json::json;

use crate::metrics::{
    ClaimFigures, ContainerType, GuardVerdict, ImageRemoval, MergeChange, Metrics, NodeCertificate, ProbeResult,
    RejectionReason, RequestKind, ServerType, UpgradeOutcome,
};

/// Metrics with a value in every family.
pub fn filled() -> Metrics {
    let metrics = Metrics::new("edge1");
    metrics.set_cgroup_version(2);
    metrics.set_last_upgrade(UpgradeOutcome::Installed, Timestamp::UNIX_EPOCH);
    metrics.generation_changed(SourceKind::File, "GenerationCommitted");
    metrics.set_generations([(SourceKind::File, 7)]);
    metrics.set_bundle("plant", 12);
    metrics.container_start_begun(ContainerType::Container);
    metrics.container_start_failed(ContainerType::Container, "ErrImagePull");
    metrics.container_terminated(ContainerType::Container, 3, "Error");
    metrics.image_pulled(1, Duration::from_secs(1));
    let request = RequestKind {
        long_running: "false",
        method: "GET",
        path: "metrics".to_owned(),
        server_type: ServerType::ReadOnly,
    };
    metrics.request_answered(&request, Duration::from_millis(1));
    metrics.websocket_opened("exec");
    let pod = observed(json!({ "metadata": { "name": "web-edge1" } }));
    metrics.probed(&pod.record, "main", ProbeKind::Liveness, ProbeResult::Successful);
    metrics.runtime_operation("create_task", Duration::from_millis(40), false);
    let apiserver = metrics.apiserver();
    apiserver.set_connected("https://127.0.0.1:6443", true);
    apiserver.requested("GET", "pods", "200".to_owned());
    apiserver.answered("GET", "pods", Duration::from_millis(3), Some(0), Some(70));
    apiserver.set_unsent(&[("event", 2)]);
    apiserver.set_first_token_expiry(Some(Timestamp::now()));
    for certificate in NodeCertificate::ALL {
        apiserver.certificate_held(certificate, None);
    }
    metrics.merge_change(MergeChange::Added);
    metrics.manifest_rejected(SourceKind::File, RejectionReason::Invalid, 1);
    metrics.manifest_watch("inotify", Some("fanotify"));
    metrics.manifest_written_by_pod(None, None);
    metrics.manifest_guarded(GuardVerdict::Refused, 1);
    metrics.image_removed(ImageRemoval::Age);
    metrics.evicted(Signal::MemoryAvailable);
    metrics.node_pressure(Pressure::Memory, false);
    metrics.cgroup_operation("create", Duration::from_millis(1));
    metrics.volume_mounted("csi.example", Duration::from_millis(1), true);
    metrics.set_claims([(("default".to_owned(), "data".to_owned()), ClaimFigures::default())]);
    metrics
}

/// The page of a node with one source.
pub fn page(metrics: &Metrics) -> String {
    let file = SourceSnapshot { health: Health::Good, ready: true, ..SourceSnapshot::default() };
    let all = Observed::default();
    let spec = json!({
        "containers": [{"name": "main", "image": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    });
    let pod = observed(json!({ "metadata": { "name": "web-edge1" }, "spec": spec }));
    all.publish(&pod.record.key, Some(Arc::clone(&pod)));
    metrics.render(&all.load(), [(SourceKind::File, &file, Some(jiff::Timestamp::UNIX_EPOCH))])
}
