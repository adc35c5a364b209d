use std::time::Duration;

use limpet_core::eviction::{Amount, EvictionPolicy, Signal, Threshold};

use super::super::tests::{KUBELET_HEAD, load_text};

fn policy(text: &str) -> Result<EvictionPolicy, Vec<String>> {
    load_text(&format!("{KUBELET_HEAD}{text}"), &[]).0.map(|config| config.eviction)
}

/// The policy in the test of every key.
pub(crate) fn tried() -> EvictionPolicy {
    let threshold = |signal, value| Threshold { signal, value, grace: Duration::ZERO, min_reclaim: None };
    let memory = threshold(Signal::MemoryAvailable, Amount::Absolute(1 << 30));
    let pids = threshold(Signal::PidAvailable, Amount::Share(0.1));
    EvictionPolicy {
        thresholds: vec![
            Threshold { min_reclaim: Some(Amount::Absolute(2 << 30)), ..memory },
            Threshold { grace: Duration::from_secs(60), ..pids },
        ],
        transition: Duration::from_secs(120),
        max_pod_grace: Duration::from_secs(9),
    }
}

fn hard(policy: &EvictionPolicy) -> Vec<(&'static str, Amount)> {
    let hard = policy.thresholds.iter().filter(|threshold| threshold.is_hard());
    hard.map(|threshold| (threshold.signal.as_str(), threshold.value)).collect()
}

#[test]
fn thresholds_replace_kubelets_defaults_or_are_merged_with_them() {
    assert_eq!(policy("evictionPressureTransitionPeriod: 0s\n"), Ok(EvictionPolicy::default()));
    let given = "evictionHard: {nodefs.available: 1Gi, pid.available: 10%, imagefs.available: 0%}\n";
    let replaced = policy(given).unwrap();
    let mine = [("nodefs.available", Amount::Absolute(1 << 30)), ("pid.available", Amount::Share(0.1))];
    assert_eq!(hard(&replaced), mine);
    let merged = policy(&format!("{given}mergeDefaultEvictionSettings: true\n")).unwrap();
    let names: Vec<&str> = hard(&merged).into_iter().map(|(name, _)| name).collect();
    let expected = ["memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.inodesFree", "pid.available"];
    assert_eq!((names, hard(&merged)[1]), (expected.to_vec(), mine[0]));
    let off = "evictionHard: {memory.available: 0%}\n";
    assert!(policy(off).unwrap().thresholds.is_empty(), "kubelet's way to have none");
}

#[test]
fn soft_thresholds_have_a_grace_period_and_all_a_minimum_to_reclaim() {
    let policy = policy(
        "evictionHard: {memory.available: 100Mi}\nevictionSoft: {memory.available: 300Mi}\n\
         evictionSoftGracePeriod: {memory.available: 1m30s}\nevictionMinimumReclaim: {memory.available: 0, }\n",
    );
    assert_eq!(policy.unwrap_err().len(), 1, "a number is no text, as for kubelet");
    let policy = self::policy(
        "evictionHard: {memory.available: 100Mi}\nevictionSoft: {memory.available: 300Mi}\n\
         evictionSoftGracePeriod: {memory.available: 1m30s}\nevictionMinimumReclaim: {memory.available: 5%}\n\
         evictionPressureTransitionPeriod: 30s\nevictionMaxPodGracePeriod: 60\n",
    )
    .unwrap();
    let threshold = |value, grace| Threshold {
        signal: Signal::MemoryAvailable,
        value: Amount::Absolute(value),
        grace: Duration::from_secs(grace),
        min_reclaim: Some(Amount::Share(0.05)),
    };
    assert_eq!(policy.thresholds, [threshold(100 << 20, 0), threshold(300 << 20, 90)]);
    assert_eq!((policy.transition, policy.max_pod_grace), (Duration::from_secs(30), Duration::from_secs(60)));
}

#[test]
fn mistakes_name_key_and_remedy() {
    let cases = [
        (
            "evictionHard: {memory.free: 1Mi}",
            "config.yaml:3:16: evictionHard.memory.free: is not an eviction signal; use one of memory.available, ",
        ),
        (
            "evictionHard: {memory.available: lots}",
            "evictionHard.memory.available: \"lots\" is neither a quantity above zero, such as 100Mi, nor a share, such as 10%",
        ),
        ("evictionHard: {memory.available: \"0\"}", "evictionHard.memory.available: \"0\" is neither"),
        (
            "evictionHard: {memory.available: 101%}",
            "evictionHard.memory.available: \"101%\" is not a share from 0% to 100%",
        ),
        ("evictionHard: {memory.available: -1%}", "\"-1%\" is not a share"),
        ("evictionHard: {memory.available: NaN%}", "\"NaN%\" is not a share"),
        ("evictionHard: {memory.available: 100}", "expected text, found a whole number; write it in quotes"),
        (
            "evictionSoft: {memory.available: 1Gi}",
            "evictionSoft.memory.available: has no grace period; add memory.available to evictionSoftGracePeriod",
        ),
        (
            "evictionSoftGracePeriod: {memory.available: soon}",
            "evictionSoftGracePeriod.memory.available: \"soon\" is not a duration such as 1m30s",
        ),
        (
            "evictionPressureTransitionPeriod: soon",
            "evictionPressureTransitionPeriod: \"soon\" is not a duration such as 5m",
        ),
        ("evictionMaxPodGracePeriod: -1", "evictionMaxPodGracePeriod: -1 is not a number of seconds from 0 on"),
    ];
    for (text, expected) in cases {
        let errors = policy(&format!("{text}\n")).unwrap_err();
        assert!(errors.len() == 1 && errors[0].contains(expected), "{text}: {errors:?}");
    }
    let (config, warnings, _) = load_text(&format!("{KUBELET_HEAD}evictionHard: {{containerfs.available: 5%}}\n"), &[]);
    config.unwrap();
    assert!(
        warnings[0].contains(
            "containerfs.available: has no effect: the layers of containers lie with the images; use imagefs.available"
        ),
        "{warnings:?}"
    );
}
