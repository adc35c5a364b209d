//! Compares limpet's pages of metrics with those of a kubelet 1.37.1, family by family, and with `docs/metrics.md`,
//! which is generated from the same tables: `LIMPET_UPDATE_DOCS=1 cargo test -p limpet-server families` writes it.
//!
//! `kubelet/*.txt` are kubelet's pages without values.
#![allow(clippy::unwrap_used)]

mod exposition;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use self::exposition::{Family, families};
use self::tables::{ABSENT, ABSENT_IN_CLUSTER, DIFFERENT, RULES, UNRECORDED};
use super::tests::usage;
use super::{cadvisor, resource};
use limpet_telemetry::fixtures::{filled, page};

/// The families of a page on both sides.
struct Page {
    path: &'static str,
    kubelet: BTreeMap<String, Family>,
    limpet: BTreeMap<String, Family>,
}

fn pages() -> [Page; 4] {
    let metrics = filled();
    let compared = |path, kubelet, limpet: String| Page { path, kubelet: families(kubelet), limpet: families(&limpet) };
    [
        compared("/metrics", include_str!("kubelet/metrics.txt"), page(&metrics)),
        compared("/metrics/resource", include_str!("kubelet/metrics-resource.txt"), resource::page(Some(&usage()))),
        compared("/metrics/cadvisor", include_str!("kubelet/metrics-cadvisor.txt"), cadvisor::page(Some(&usage()))),
        compared("/metrics/probes", include_str!("kubelet/metrics-probes.txt"), metrics.render_probes()),
    ]
}

/// The entry of [`ABSENT`] for a family of kubelet's: a name, or a prefix before a `*`.
fn absence(path: &str, name: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    ABSENT.iter().find(|(page, pattern, _)| {
        *page == path && pattern.strip_suffix('*').map_or(*pattern == name, |beginning| name.starts_with(beginning))
    })
}

#[test]
fn a_family_of_kubelets_name_is_kubelets() {
    let mut faults = Vec::new();
    for Page { path, kubelet, limpet } in pages() {
        for (name, ours) in &limpet {
            let different = DIFFERENT.iter().any(|(other, _)| other == name);
            let unrecorded = UNRECORDED.iter().any(|(other, _)| other == name);
            match kubelet.get(name) {
                _ if name.starts_with("limpet_") => {}
                Some(theirs) if (ours == theirs) == different => {
                    faults.push(format!("{path} {name}: {ours:?}, kubelet's is {theirs:?}"));
                }
                Some(_) => {}
                None if !unrecorded => faults.push(format!("{path} {name}: kubelet has no such family")),
                None => {}
            }
        }
        for name in kubelet.keys() {
            match (limpet.contains_key(name), absence(path, name)) {
                (true, Some(_)) => faults.push(format!("{path} {name} is there, and in the table of what is not")),
                (false, None) => faults.push(format!("{path} {name} is neither there nor in the table of what is not")),
                _ => {}
            }
        }
        for (pattern, _) in ABSENT_IN_CLUSTER {
            let beginning = pattern.trim_end_matches('*');
            if limpet.keys().any(|name| name.starts_with(beginning)) {
                faults.push(format!("{path} {pattern} is there, and in the table of what is not"));
            }
        }
        for entry in ABSENT.iter().filter(|(page, ..)| *page == path) {
            if !kubelet.keys().any(|name| absence(path, name) == Some(entry)) {
                faults.push(format!("{path} {}: kubelet has none of it", entry.1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn rules_find_nothing_for_what_is_not_there_alone() {
    let pages = pages();
    for (family, rule, _) in RULES {
        assert!(pages.iter().all(|page| !page.limpet.contains_key(*family)), "{rule} finds {family}");
    }
    // The families that kubernetes-mixin's rules and panels query from kubelet and its cAdvisor, and that limpet has.
    let asked = [
        "container_cpu_cfs_throttled_periods_total",
        "container_fs_reads_bytes_total",
        "container_fs_reads_total",
        "container_fs_writes_bytes_total",
        "container_fs_writes_total",
        "container_memory_working_set_bytes",
        "container_network_receive_bytes_total",
        "kubelet_certificate_manager_client_ttl_seconds",
        "kubelet_cgroup_manager_duration_seconds",
        "kubelet_node_name",
        "kubelet_pod_start_duration_seconds",
        "kubelet_running_containers",
        "kubelet_running_pods",
        "kubelet_runtime_operations_errors_total",
        "kubelet_server_expiration_renew_errors",
        "kubelet_volume_stats_available_bytes",
        "kubernetes_build_info",
        "machine_cpu_cores",
        "machine_memory_bytes",
        "process_cpu_seconds_total",
        "rest_client_requests_total",
        "storage_operation_duration_seconds",
        "volume_manager_total_volumes",
    ];
    for family in asked {
        assert!(pages.iter().any(|page| page.limpet.contains_key(family)), "{family} is missing");
    }
}

#[test]
fn the_page_of_families_equals_the_tables() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = page_text();
    if std::env::var_os("LIMPET_UPDATE_DOCS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == text,
        "docs/metrics.md is not what the tables say: LIMPET_UPDATE_DOCS=1 cargo test -p limpet-server families"
    );
}

const INTRODUCTION: &str = "# Metrics

The families of limpet's pages for Prometheus, beside those of a kubelet 1.37.1 that runs static pods. A family under a name of
kubelet's has kubelet's type, labels and help text. A page shows a family once it has a value. Labels are closed sets, or end with
the pod they name. `deploy/prometheus.yml` reads these pages, `deploy/grafana-dashboard.json` shows them.

This page is generated from the tables that a test holds against what kubelet shows.
";

fn page_text() -> String {
    let mut text = INTRODUCTION.to_owned();
    for Page { path, kubelet, limpet } in pages() {
        let _ = write!(text, "\n## {path}\n\n| family | type | labels | |\n|---|---|---|---|\n");
        for (name, family) in &limpet {
            let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            let remark = DIFFERENT.iter().chain(UNRECORDED).find(|(other, _)| other == name).map(|(_, remark)| *remark);
            let remark = remark.unwrap_or(if name.starts_with("limpet_") { &family.help } else { "as kubelet's" });
            let _ = writeln!(text, "| `{name}` | {} | {} | {remark} |", family.kind, labels.join(" "));
        }
        let absent: BTreeSet<_> = kubelet.keys().filter_map(|name| absence(path, name)).collect();
        if !absent.is_empty() {
            let _ = write!(text, "\nOf kubelet's families these are not there:\n\n| family | why |\n|---|---|\n");
        }
        for (_, pattern, why) in absent {
            let _ = writeln!(text, "| `{pattern}` | {why} |");
        }
        if path == "/metrics" {
            let _ =
                write!(text, "\nOf those that a kubelet in a cluster has as well:\n\n| family | why |\n|---|---|\n");
            for (pattern, why) in ABSENT_IN_CLUSTER {
                let _ = writeln!(text, "| `{pattern}` | {why} |");
            }
        }
    }
    text.push_str(RULES_INTRODUCTION);
    for (family, rule, instead) in RULES {
        let _ = writeln!(text, "| `{family}` | {rule} | {instead} |");
    }
    text
}

const RULES_INTRODUCTION: &str = "
## Rules and dashboards of others

These of kubernetes-mixin, kube-prometheus and dotdc's dashboards find nothing. They raise no alert; the other rules and panels
of a kubelet and its cAdvisor have their families above.

| family | rule or panel | in its place |
|---|---|---|
";
