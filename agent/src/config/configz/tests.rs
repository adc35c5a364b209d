#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use super::*;
use crate::config::{RunFlags, kubelet_names, load};

const KUBEADM: &str = include_str!("../read/tests/kubeadm.yaml");
const SUPPORTED: &str = include_str!("../read/tests/supported.yaml");

fn keys(document: &Value) -> BTreeSet<&str> {
    document["kubeletconfig"].as_object().unwrap().keys().map(String::as_str).collect()
}

/// Go's encoder leaves these out if nothing is set, and its decoder treats missing ones as not set.
const UNSET: &[&str] = &[
    "staticPodPath",
    "staticPodURL",
    "staticPodURLHeader",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "enableContentionProfiling",
    "kubeletCgroups",
    "systemCgroups",
    "cpuManagerPolicyOptions",
    "topologyManagerPolicyOptions",
    "qosReserved",
    "podCIDR",
    "runOnce",
    "podsPerCore",
    "protectKernelDefaults",
    "featureGates",
    "reservedSystemCPUs",
    "showHiddenMetricsForVersion",
    "systemReservedCgroup",
    "kubeReservedCgroup",
    "providerID",
    "kernelMemcgNotification",
    "shutdownGracePeriodByPodPriority",
    "reservedMemory",
    "memoryThrottlingFactor",
    "tracing",
    "imageServiceEndpoint",
    "userNamespaces",
];

#[test]
fn every_key_has_a_value_as_in_kubelets_document() {
    let document = document(&Config::default());
    let missing: Vec<_> = kubelet_names().filter(|key| !keys(&document).contains(key)).collect();
    assert_eq!(missing, UNSET);
}

#[test]
fn the_default_thresholds_are_shown_as_in_kubelets_document() {
    let document = document(&Config::default());
    let expected = json!({
        "imagefs.available": "15%", "imagefs.inodesFree": "5%", "memory.available": "104857600",
        "nodefs.available": "10%", "nodefs.inodesFree": "5%",
    });
    assert_eq!(document["kubeletconfig"]["evictionHard"], expected);
    let percent = |percent: u32| {
        let config = read(&kubelet_text(&format!("evictionHard: {{nodefs.available: {percent}%}}")));
        super::document(&config)["kubeletconfig"]["evictionHard"]["nodefs.available"].clone()
    };
    (1..100).for_each(|number| assert_eq!(percent(number), json!(format!("{number}%"))));
}

fn read(text: &str) -> Config {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config");
    std::fs::write(&file, text).unwrap();
    load(&RunFlags { config: Some(file), ..RunFlags::default() }).unwrap().0
}

fn kubelet_text(more: &str) -> String {
    format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{more}\n")
}

/// The node tests of Kubernetes change the document, and give the agent the whole document as its configuration.
#[test]
fn a_configuration_survives_a_round_trip() {
    let off = kubelet_text("evictionHard: {memory.available: 0%, nodefs.available: 0%}");
    let partly_off = kubelet_text("evictionHard: {memory.available: 1Gi, nodefs.available: 0%}");
    let without_effect = kubelet_text("syncFrequency: 5s\nmemoryThrottlingFactor: 0.8\nkubeAPIQPS: 0");
    let (supported, _) = SUPPORTED.split_once("---").unwrap();
    for text in [kubelet_text("maxPods: 7"), KUBEADM.to_owned(), supported.to_owned(), off, partly_off, without_effect]
    {
        let first = read(&text);
        let shown = document(&first)["kubeletconfig"].clone();
        let mut again = read(&shown.to_string());
        assert_eq!(document(&again)["kubeletconfig"], shown, "{text}");
        again.files = first.files.clone();
        // Without an apiserver no token is valid.
        again.server.tokens = first.server.tokens;
        // The headers may be secret.
        if let (Some(url), Some(shown)) = (&first.sources.manifest_url, &mut again.sources.manifest_url) {
            shown.headers = url.headers.clone();
        }
        assert_eq!(again, first, "{text}");
    }
}

#[test]
fn keys_without_effect_are_shown_as_they_are_given() {
    let text =
        "fileCheckFrequency: 30s\nlogging: {flushFrequency: 1s}\nfeatureGates: {A: true}\nmemoryThrottlingFactor: 0.8";
    let document = &document(&read(&kubelet_text(text)))["kubeletconfig"];
    assert_eq!(
        (&document["fileCheckFrequency"], &document["logging"]["flushFrequency"]),
        (&json!("30s"), &json!("1s"))
    );
    assert_eq!((&document["logging"]["format"], &document["logging"]["verbosity"]), (&json!("text"), &json!(2)));
    assert_eq!((&document["featureGates"]["A"], &document["cpuCFSQuota"]), (&json!(true), &json!(true)));
    assert_eq!(document["memoryThrottlingFactor"], json!(0.8));
    assert_eq!((&document["runtimeRequestTimeout"], &document["authentication"]["x509"]), (&json!("2m0s"), &json!({})));
}

/// kubelet's own document of the same file has these.
#[test]
fn zeros_in_kubeadms_file_are_shown_as_defaults() {
    let document = &document(&read(KUBEADM))["kubeletconfig"];
    let shown = ["syncFrequency", "fileCheckFrequency", "httpCheckFrequency", "cpuManagerReconcilePeriod"];
    assert_eq!(shown.map(|key| &document[key]), [&json!("1m0s"), &json!("20s"), &json!("20s"), &json!("10s")]);
    assert_eq!(
        (&document["logging"]["flushFrequency"], &document["streamingConnectionIdleTimeout"]),
        (&json!("5s"), &json!("4h0m0s"))
    );
    let given = kubelet_text("kubeAPIQPS: 0\nkubeAPIBurst: 0\nreservedSystemCPUs: '0'");
    let document = &super::document(&read(&given))["kubeletconfig"];
    let shown = ["kubeAPIQPS", "kubeAPIBurst", "reservedSystemCPUs"];
    assert_eq!(shown.map(|key| &document[key]), [&json!(0), &json!(100), &json!("0")]);
}
