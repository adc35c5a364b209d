//! The series of `/metrics/cadvisor` as CRI's messages. CRI's values are integers, so fractions of a second are
//! dropped.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::super::stats::cadvisor::{Families, LABELS, families};
use super::super::stats::exposition::{Family, Kind, Sample};
use super::identity::nanoseconds;
use limpet_model::container::pod_id;
use limpet_node_api::runtime as cri;
use limpet_telemetry::usage::NodeUsage;

/// The labels with the container's id, the namespace and the pod.
const CONTAINER_ID: &str = "name";
const NAMESPACE: &str = "namespace";
const POD: &str = "pod";

/// Descriptors of all metrics.
pub(super) fn descriptors(usage: &NodeUsage) -> Vec<cri::MetricDescriptor> {
    let mut all = Descriptors(Vec::new());
    families(usage, &mut all);
    all.0
}

/// The values of running pods and their containers.
pub(super) fn pods(usage: &NodeUsage) -> Vec<cri::PodSandboxMetrics> {
    let mut values = Values(BTreeMap::new());
    families(usage, &mut values);
    let of_pod = |pod: &limpet_telemetry::usage::PodUsage| {
        let name = (pod.record.key.namespace().to_owned(), pod.record.key.name().to_owned());
        let PodMetrics { of_pod: metrics, mut containers } = values.0.remove(&name).unwrap_or_default();
        let of_container = |container: &limpet_telemetry::usage::ContainerUsage| cri::ContainerMetrics {
            container_id: container.id.clone(),
            metrics: containers.remove(&container.id).unwrap_or_default(),
        };
        cri::PodSandboxMetrics {
            pod_sandbox_id: pod_id(&pod.record.uid),
            container_metrics: pod.containers.iter().map(of_container).collect(),
            metrics,
        }
    };
    usage.pods.iter().map(of_pod).collect()
}

struct Descriptors(Vec<cri::MetricDescriptor>);

impl Families for Descriptors {
    fn take<'a>(&mut self, head: Family<'_>, _: impl IntoIterator<Item = Sample<'a>>) {
        self.0.push(cri::MetricDescriptor {
            name: head.name.to_owned(),
            help: head.help.to_owned(),
            label_keys: head.labels.iter().chain(&LABELS).map(|label| (*label).to_owned()).collect(),
        });
    }
}

/// The metrics of a pod and of its containers, by their ids.
#[derive(Default)]
struct PodMetrics {
    of_pod: Vec<cri::Metric>,
    containers: BTreeMap<String, Vec<cri::Metric>>,
}

/// Metrics by namespace and name of the pod.
struct Values(BTreeMap<(String, String), PodMetrics>);

impl Families for Values {
    fn take<'a>(&mut self, head: Family<'_>, samples: impl IntoIterator<Item = Sample<'a>>) {
        let kind = match head.kind {
            Kind::Counter => cri::MetricType::Counter,
            Kind::Gauge => cri::MetricType::Gauge,
        };
        for sample in samples {
            let label = |key| sample.labels.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value);
            let (namespace, pod) = (label(NAMESPACE).to_owned(), label(POD).to_owned());
            if pod.is_empty() {
                continue;
            }
            let metric = cri::Metric {
                name: head.name.to_owned(),
                timestamp: sample.at.map_or(0, |at: Timestamp| nanoseconds(at)),
                metric_type: kind as i32,
                label_values: sample.labels.iter().map(|(_, value)| (*value).to_owned()).collect(),
                // No value is negative.
                value: Some(cri::UInt64Value { value: sample.value as u64 }),
            };
            let metrics = self.0.entry((namespace, pod)).or_default();
            match label(CONTAINER_ID) {
                "" => metrics.of_pod.push(metric),
                id => metrics.containers.entry(id.to_owned()).or_default().push(metric),
            }
        }
    }
}
