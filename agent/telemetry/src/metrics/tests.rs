#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::fixtures::page;
use limpet_core::fixtures::observed;
use limpet_core::source::Health;
use limpet_core::status::observed::{Observed, ObservedPod};

/// Checks a page as a parser would, and returns its samples.
fn parse(page: &str) -> Vec<(String, f64)> {
    let mut declared = BTreeSet::new();
    let mut samples = Vec::new();
    for line in page.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ');
            assert!(matches!(words.next(), Some("HELP" | "TYPE")), "{line}");
            declared.insert(words.next().unwrap().to_owned());
            continue;
        }
        let (name, value) = line.rsplit_once(' ').expect("a sample is a name and a value");
        let family = name.split('{').next().unwrap();
        assert!(declared.iter().any(|known| family.starts_with(known.as_str())), "{line} is not declared");
        samples.push((name.to_owned(), value.parse().expect("a number")));
    }
    samples
}

fn value(samples: &[(String, f64)], name: &str) -> f64 {
    samples.iter().find(|(sample, _)| sample == name).unwrap_or_else(|| panic!("no {name} in {samples:#?}")).1
}

#[test]
fn a_scrape_contains_counters_and_current_state() {
    let metrics = Metrics::new("edge1");
    metrics.pod_start_begun();
    metrics.pod_started(Duration::from_millis(80));
    metrics.container_start_begun(ContainerType::InitContainer);
    metrics.container_start_failed(ContainerType::Container, "ErrImagePull");
    metrics.runtime_operation("create_task", Duration::from_millis(40), true);
    metrics.runtime_operation("create_task", Duration::from_millis(40), false);
    metrics.set_containerd_connected(true);
    metrics.merge_change(MergeChange::Added);
    metrics.merged(Duration::from_micros(3));

    let all = Observed::default();
    let pod = observed(json!({
        "metadata": {"name": "web-edge1"},
        "status": {"containerStatuses": [
            {"name": "up", "ready": true, "restartCount": 0, "image": "", "imageID": "", "state": {"running": {}}},
            {"name": "off", "ready": false, "restartCount": 0, "image": "", "imageID": "",
             "state": {"terminated": {"exitCode": 0}}},
            {"name": "pulling", "ready": false, "restartCount": 0, "image": "", "imageID": "",
             "state": {"waiting": {"reason": "ErrImagePull"}}},
        ]},
    }));
    all.publish(&pod.record.key, Some(Arc::clone(&pod)));
    let mut file = SourceSnapshot { health: Health::Good, ready: true, ..SourceSnapshot::default() };
    file.pods.insert(pod.record.key.clone(), Arc::clone(&pod.record));
    let http = SourceSnapshot { health: Health::Unavailable("timeout".into()), ..SourceSnapshot::default() };

    let twice = limpet_model::pod::Fault::error("metadata.name", "pod default/web is defined in a.yaml already");
    metrics.manifest_rejected(SourceKind::File, RejectionReason::fault(&twice), 1);

    let page = metrics.render(
        &all.load(),
        [
            (SourceKind::File, &file, Some(jiff::Timestamp::constant(1_700_000_000, 500_000_000))),
            (SourceKind::Http, &http, None),
        ],
    );
    let samples = parse(&page);
    for (name, expected) in [
        ("kubelet_running_pods", 1.0),
        ("kubelet_running_containers{container_state=\"running\"}", 1.0),
        ("kubelet_running_containers{container_state=\"exited\"}", 1.0),
        ("kubelet_running_containers{container_state=\"created\"}", 0.0),
        ("kubelet_desired_pods{static=\"true\"}", 1.0),
        ("kubelet_desired_pods{static=\"\"}", 0.0),
        ("kubelet_started_pods_total", 1.0),
        ("kubelet_started_pods_errors_total", 0.0),
        ("kubelet_started_containers_total{container_type=\"init_container\"}", 1.0),
        ("kubelet_started_containers_errors_total{container_type=\"container\",code=\"ErrImagePull\"}", 1.0),
        ("kubelet_pod_start_duration_seconds_count", 1.0),
        ("kubelet_runtime_operations_total{operation_type=\"create_task\"}", 2.0),
        ("kubelet_runtime_operations_errors_total{operation_type=\"create_task\"}", 1.0),
        ("kubelet_runtime_operations_duration_seconds_count{operation_type=\"create_task\"}", 2.0),
        ("kubelet_node_name{node=\"edge1\"}", 1.0),
        ("limpet_manifests_rejected", 0.0),
        ("limpet_manifest_rejected_total{source=\"file\",reason=\"duplicate\"}", 1.0),
        ("limpet_source_last_success_timestamp_seconds{source=\"file\"}", 1_700_000_000.5),
        ("limpet_source_healthy{source=\"file\"}", 1.0),
        ("limpet_source_healthy{source=\"http\"}", 0.0),
        ("limpet_containerd_connected", 1.0),
        ("limpet_merge_changes_total{change=\"added\"}", 1.0),
        ("limpet_merge_duration_seconds_count", 1.0),
    ] {
        assert_eq!(value(&samples, name), expected, "{name}");
    }
    assert!(value(&samples, "process_resident_memory_bytes") > 0.0);
    assert!(value(&samples, "process_start_time_seconds") > 1e9);
    assert!(value(&samples, "process_open_fds") > 2.0);
    let build = samples.iter().find(|(name, _)| name.starts_with("kubernetes_build_info{")).map(|(name, _)| &**name);
    let (version, architecture) = (limpet_model::kubelet_version(), limpet_model::node::architecture());
    let labels = format!("git_version=\"{version}\",major=\"1\",minor=\"37\",platform=\"linux/{architecture}\"");
    assert_eq!(build, Some(&*format!("kubernetes_build_info{{{labels}}}")));
    assert!(version.starts_with("v1.37.") && matches!(architecture, "amd64" | "arm64" | "arm" | "riscv64"));
}

#[tokio::test(start_paused = true)]
async fn the_time_without_a_connection_is_counted_and_a_certificate_says_how_long_it_lasts() {
    let metrics = Metrics::new("edge1");
    let absent = page(&metrics);
    assert!(!absent.contains("limpet_offline_seconds") && !absent.contains("certificate_manager"), "{absent}");
    let apiserver = metrics.apiserver();
    let seconds = || value(&parse(&page(&metrics)), "limpet_offline_seconds_total");
    apiserver.set_connected("https://a", false);
    tokio::time::advance(Duration::from_secs(7)).await;
    assert_eq!(seconds(), 7.0, "while it lasts, too");
    apiserver.set_connected("https://a", true);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(seconds(), 7.0);
    apiserver.set_connected("https://a", false);
    apiserver.set_connected("https://a", false);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(seconds(), 9.0);

    assert!(!page(&metrics).contains("limpet_token_ttl_seconds"));
    apiserver.set_first_token_expiry(Some(Timestamp::now() + Duration::from_secs(600)));
    let left = value(&parse(&page(&metrics)), "limpet_token_ttl_seconds");
    assert!((500.0..=600.0).contains(&left), "{left}");
    apiserver.certificate_held(NodeCertificate::Client, Some(Timestamp::now() + Duration::from_secs(3_600)));
    apiserver.certificate_held(NodeCertificate::Serving, None);
    apiserver.renewal_failed(NodeCertificate::Serving);
    let samples = parse(&page(&metrics));
    let left = value(&samples, "kubelet_certificate_manager_client_ttl_seconds");
    assert!((3_500.0..=3_600.0).contains(&left), "{left}");
    assert_eq!(value(&samples, "kubelet_certificate_manager_server_ttl_seconds"), f64::INFINITY);
    assert_eq!(value(&samples, "kubelet_server_expiration_renew_errors"), 1.0);
    assert_eq!(value(&samples, "kubelet_certificate_manager_client_expiration_renew_errors"), 0.0);
}

#[test]
fn volumes_are_counted_by_plugin_as_they_are_wanted_and_as_they_are_there() {
    let metrics = Metrics::new("edge1");
    let all = Observed::default();
    let pod = |name: &str, phase: &str, ready: &str| {
        observed(json!({
            "metadata": {"name": name},
            "spec": {
                "containers": [{"name": "main", "image": "a", "volumeMounts": [
                    {"name": "tmp", "mountPath": "/tmp"}, {"name": "data", "mountPath": "/data"},
                    {"name": "driver", "mountPath": "/driver"},
                ], "volumeDevices": [{"name": "disk", "devicePath": "/dev/x"}]}],
                "volumes": [
                    {"name": "tmp", "emptyDir": {}}, {"name": "unused", "emptyDir": {}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
                    {"name": "driver", "csi": {"driver": "csi.example"}},
                ],
            },
            "status": {"phase": phase, "conditions": [{"type": "PodReadyToStartContainers", "status": ready}]},
        }))
    };
    let count = |state: &str, plugin: &str| {
        let page = metrics.render(&all.load(), []);
        let name = format!("volume_manager_total_volumes{{plugin_name=\"{plugin}\",state=\"{state}\"}}");
        parse(&page).into_iter().find(|(sample, _)| *sample == name).map(|(_, value)| value)
    };
    let publish = |pod: Arc<ObservedPod>| all.publish(&pod.record.key, Some(Arc::clone(&pod)));
    publish(pod("up", "Running", "True"));
    publish(pod("starting", "Pending", "False"));
    publish(pod("done", "Succeeded", "False"));
    let plugins = [
        ("kubernetes.io/empty-dir", 1.0),
        ("kubernetes.io/persistent-claim", 2.0),
        ("kubernetes.io/csi:csi.example", 1.0),
    ];
    for (plugin, each) in plugins {
        assert_eq!(count("desired_state_of_world", plugin), Some(2.0 * each), "{plugin}");
        assert_eq!(count("actual_state_of_world", plugin), Some(each), "{plugin}");
    }
    ["up", "starting", "done"].into_iter().for_each(|name| _ = all.publish(&pod(name, "", "").record.key, None));
    assert_eq!(count("desired_state_of_world", "kubernetes.io/empty-dir"), None);
}
