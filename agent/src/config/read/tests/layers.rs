//! Files, drop-ins and kubelet's flags that override each other.

use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;

use clap::Parser as _;

use super::*;
use crate::config::KubeletFlags;
use limpet_core::eviction::{Amount, DEFAULT_HARD, Signal};

/// Loads with these files and this command line, in which `DIR` is their directory; messages are without it.
fn load_all(files: &[(&str, &str)], line: &str) -> (Result<Config, Vec<String>>, Vec<String>) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().display().to_string();
    for (name, text) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let words = line.split_whitespace().map(|word| OsString::from(word.replace("DIR", &dir)));
    let (left, kubelet) = KubeletFlags::take(["limpet", "run"].map(OsString::from).into_iter().chain(words));
    let flags = Command::try_parse_from(left.into_iter().filter(|word| word != "run")).unwrap().flags;
    let messages = |faults: Vec<Fault>| faults.iter().map(|fault| fault.to_string().replace(&dir, "")).collect();
    match load(&RunFlags { kubelet, ..flags }) {
        Ok((config, warnings)) => (Ok(config), messages(warnings)),
        Err(ConfigError::Faults(faults)) => (Err(messages(faults)), Vec::new()),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn drop_ins_count_over_the_file_and_flags_over_both() {
    let base = format!(
        "{KUBELET_HEAD}staticPodPath: manifests\nmaxPods: 20\nclusterDNS: [10.0.0.1]\nallowedUnsafeSysctls: [net.*]\n\
         evictionHard: {{memory.available: 100Mi}}\nkubeReserved: {{cpu: '1', memory: 1Gi}}\n"
    );
    let first = format!("{KUBELET_HEAD}maxPods: 30\nclusterDNS: [10.0.0.2]\nkubeReserved: {{cpu: '2'}}\n");
    let second =
        format!("{KUBELET_HEAD}maxPods: 31\nclusterDomain: edge.local\nevictionHard: {{nodefs.available: 5%}}\n");
    let below = format!("{KUBELET_HEAD}maxPods: 29\nclusterDomain: below.local\nseccompDefault: true\n");
    let files = [
        ("config.yaml", base.as_str()),
        ("d/10-a.conf", &first),
        ("d/15-below/1.conf", &below),
        ("d/20-b.conf", &second),
        ("d/30-not.yaml", "no: configuration"),
    ];
    let config = load_all(&files, "--config DIR/config.yaml --config-dir DIR/d").0.unwrap();
    assert_eq!((config.node.max_pods, &*config.volumes.cluster.domain), (31, "edge.local"));
    assert!(config.containers.seccomp_default, "a directory below is read in its place");
    assert_eq!(config.volumes.cluster.nameservers, ["10.0.0.2".parse::<IpAddr>().unwrap()]);
    assert_eq!(config.workers.allowed_unsafe_sysctls, ["net.*"]);
    assert_eq!(config.node.reserved.kube.resources, amounts("2", "1Gi", "0"));
    assert_eq!(config.eviction.thresholds.len(), 2, "maps grow");
    let line = "--config DIR/config.yaml --config-dir DIR/d --max-pods=40 --eviction-hard=memory.available<1Gi";
    let config = load_all(&files, line).0.unwrap();
    assert_eq!((config.node.max_pods, config.eviction.thresholds.len()), (40, 1), "a flag replaces a map");
    let alone = load_all(&files[1..], "--config-dir DIR/d").0.unwrap();
    assert_eq!(alone.node.max_pods, 31);
}

/// kubelet's `loadConfigFile` sets the defaults before the drop-ins are merged, but not if there are only drop-ins.
#[test]
fn thresholds_of_a_drop_in_count_beside_the_defaults_of_a_file_that_names_none() {
    let base = format!("{KUBELET_HEAD}staticPodPath: manifests\n");
    let drop_in = format!("{KUBELET_HEAD}evictionHard: {{imagefs.available: 5%, pid.available: 10%}}\n");
    let limpet = format!("{LIMPET_HEAD}snapshotter: native\n");
    let files = [("config.yaml", base.as_str()), ("limpet.yaml", &limpet), ("d/10-k3s.conf", &drop_in)];
    let hard = |line: &str| -> Vec<(Signal, Amount)> {
        let thresholds = load_all(&files, line).0.unwrap().eviction.thresholds;
        thresholds.into_iter().map(|threshold| (threshold.signal, threshold.value)).collect()
    };
    let changed = [(Signal::ImagefsAvailable, Amount::Share(0.05)), (Signal::PidAvailable, Amount::Share(0.1))];
    let mut all: Vec<_> =
        DEFAULT_HARD.into_iter().filter(|(signal, _)| *signal != changed[0].0).chain(changed).collect();
    all.sort_by_key(|(signal, _)| *signal);
    assert_eq!(hard("--config DIR/config.yaml --config-dir DIR/d"), all);
    assert_eq!(hard("--config-dir DIR/d"), changed);
    assert_eq!(hard("--config DIR/limpet.yaml --config-dir DIR/d"), changed);
}

#[test]
fn faults_name_the_file_or_the_flag_they_are_of() {
    let wrong = format!("{KUBELET_HEAD}maxPods: -1\nnoSuchKey: 1\n");
    let (config, _) = load_all(
        &[("d/10-a.conf", &wrong)],
        "--config-dir DIR/d --oom-score-adj=x --pod-max-pids=7 --cgroup-driver=none",
    );
    assert_eq!(
        config.unwrap_err(),
        [
            "/d/10-a.conf:4:1: noSuchKey: no such key",
            "flags: --oom-score-adj: expected a whole number, found text",
            "flags: --cgroup-driver: \"none\" is neither cgroupfs nor systemd",
            "/d/10-a.conf:3:10: maxPods: -1 is not a valid number of pods",
        ]
    );
}

#[test]
fn flags_that_nothing_corresponds_to_are_named_in_one_warning() {
    let line =
        "--pod-manifest-path=/m --pod-infra-container-image=pause --container-runtime remote --runtime-cgroups=/a";
    let (config, warnings) = load_all(&[], line);
    config.unwrap();
    let names = "--pod-infra-container-image, --container-runtime, --runtime-cgroups";
    assert_eq!(warnings, [format!("flags: {names}: are ignored: limpet has no such settings")]);
}
