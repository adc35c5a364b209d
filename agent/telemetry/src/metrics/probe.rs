//! kubelet's count of probes by result. Its labels name pods and containers, so a pod's series end with the pod.

use limpet_model::pod::PodRecord;
use limpet_model::probe::ProbeKind;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::fmt::Write as _;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeResult {
    Successful,
    Failed,
    /// The probe itself could not be run.
    Unknown,
}

impl EncodeLabelValue for ProbeResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(match self {
            Self::Successful => "successful",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Kind(ProbeKind);

impl EncodeLabelValue for Kind {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        write!(encoder, "{}", self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    probe_type: Kind,
    result: ProbeResult,
    container: String,
    pod: String,
    namespace: String,
    pod_uid: String,
}

impl Labels {
    fn new(pod: &PodRecord, container: &str, kind: ProbeKind, result: ProbeResult) -> Self {
        Self {
            probe_type: Kind(kind),
            result,
            container: container.to_owned(),
            pod: pod.key.name().to_owned(),
            namespace: pod.key.namespace().to_owned(),
            pod_uid: pod.uid.to_string(),
        }
    }
}

/// The counters of probes. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct ProbeCounters(Family<Labels, Counter>);

impl ProbeCounters {
    pub(super) fn register(&self, all: &mut Registry) {
        let help = "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.";
        all.register("prober_probe", help, self.0.clone());
    }

    pub(super) fn count(&self, pod: &PodRecord, container: &str, kind: ProbeKind, result: ProbeResult) {
        self.0.get_or_create(&Labels::new(pod, container, kind, result)).inc();
    }

    pub(super) fn forget(&self, pod: &PodRecord) {
        let spec = pod.spec();
        for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
            for kind in ProbeKind::ALL.into_iter().filter(|kind| kind.probe_of(container).is_some()) {
                for result in [ProbeResult::Successful, ProbeResult::Failed, ProbeResult::Unknown] {
                    self.0.remove(&Labels::new(pod, &container.name, kind, result));
                }
            }
        }
    }
}
