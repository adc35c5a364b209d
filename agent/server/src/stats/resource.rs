//! kubelet's `/metrics/resource`, which metrics-server reads.

use jiff::Timestamp;

use super::exposition::{Kind, Page, Sample};
use limpet_host::cgroup::usage::GroupUsage;
use limpet_telemetry::usage::{ContainerUsage, NodeUsage, PodUsage};

/// The end of a family's name, its kind, kubelet's help text, and the value of a cgroup.
type Family = (&'static str, Kind, fn(&str) -> String, fn(&GroupUsage) -> Option<f64>);

/// The families of node, pods and containers.
const FAMILIES: [Family; 3] = [
    ("cpu_usage_seconds_total", Kind::Counter, cpu_help, cpu),
    ("memory_working_set_bytes", Kind::Gauge, working_set_help, working_set),
    ("swap_usage_bytes", Kind::Gauge, swap_help, swap),
];

/// The page. After a failed reading it has only the error metric.
pub(super) fn page(usage: Option<&NodeUsage>) -> String {
    let mut page = Page::default();
    if let Some(usage) = usage {
        let of_containers = containers(usage).map(|(pod, container)| (labels(pod, Some(container)), &container.group));
        add(&mut page, "container", &of_containers.collect::<Vec<_>>());
        add_container_families(&mut page, usage);
        add(&mut page, "node", &[(Vec::new(), &usage.group)]);
        let of_pods = usage.pods.iter().filter_map(|pod| Some((labels(pod, None), pod.group.as_ref()?)));
        add(&mut page, "pod", &of_pods.collect::<Vec<_>>());
    }
    let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
    let value = if usage.is_some() { 0.0 } else { 1.0 };
    page.add("resource_scrape_error", Kind::Gauge, help, [Sample { labels: Vec::new(), value, at: None }]);
    page.into_text()
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

fn add(page: &mut Page, what: &str, groups: &[(Labels<'_>, &GroupUsage)]) {
    for (name, kind, help, value) in FAMILIES {
        let samples = groups.iter().filter_map(|(labels, group)| {
            Some(Sample { labels: labels.clone(), value: value(group)?, at: Some(group.taken.at) })
        });
        page.add(&format!("{what}_{name}"), kind, &help(what), samples);
    }
}

/// Adds the families that only containers have.
fn add_container_families(page: &mut Page, usage: &NodeUsage) {
    let started = containers(usage).filter_map(|(pod, container)| {
        Some(Sample { labels: labels(pod, Some(container)), value: seconds(container.started?), at: None })
    });
    let help = "[STABLE] Start time of the container since unix epoch in seconds";
    page.add("container_start_time_seconds", Kind::Gauge, help, started);
    let limits = containers(usage).filter_map(|(pod, container)| {
        let value = container.group.swap?.limit? as f64;
        Some(Sample { labels: labels(pod, Some(container)), value, at: Some(container.group.taken.at) })
    });
    let help = "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems";
    page.add("container_swap_limit_bytes", Kind::Gauge, help, limits);
}

fn containers(usage: &NodeUsage) -> impl Iterator<Item = (&PodUsage, &ContainerUsage)> {
    usage.pods.iter().flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)))
}

fn labels<'a>(pod: &'a PodUsage, container: Option<&'a ContainerUsage>) -> Labels<'a> {
    let key = &pod.record.key;
    let container = container.map(|container| ("container", container.name.as_str()));
    container.into_iter().chain([("namespace", key.namespace()), ("pod", key.name())]).collect()
}

fn cpu_help(what: &str) -> String {
    format!("[STABLE] Cumulative cpu time consumed by the {what} in core-seconds")
}

fn working_set_help(what: &str) -> String {
    format!("[STABLE] Current working set of the {what} in bytes")
}

fn swap_help(what: &str) -> String {
    let of_node = what == "node";
    let amount = if of_node { "swap usage of the node".to_owned() } else { format!("amount of the {what} swap usage") };
    format!("[ALPHA] Current {amount} in bytes. Reported only on non-windows systems")
}

fn cpu(group: &GroupUsage) -> Option<f64> {
    Some(group.cpu.as_ref()?.total as f64 / 1e9)
}

fn working_set(group: &GroupUsage) -> Option<f64> {
    Some(group.memory.as_ref()?.working_set as f64)
}

fn swap(group: &GroupUsage) -> Option<f64> {
    Some(group.swap?.usage as f64)
}

pub(super) fn seconds(time: Timestamp) -> f64 {
    time.as_duration().as_secs_f64()
}
