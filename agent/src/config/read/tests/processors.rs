//! The keys for exclusive processors.

use limpet_core::cpu_allocation::{CpuPolicyOptions, ReservedCpus};
use limpet_model::cpu_set::CpuSet;

use super::*;

fn loaded(text: &str) -> Result<Config, Vec<String>> {
    load_text(&format!("{KUBELET_HEAD}{text}"), &[]).0
}

#[test]
fn processors_are_shared_unless_the_policy_is_static() {
    let policy = |text: &str| loaded(text).unwrap().cpus.policy;
    let default = CpuPolicyOptions::default();
    assert_eq!(
        (policy(""), policy("cpuManagerPolicy: none"), policy("cpuManagerPolicy: static")),
        (None, None, Some(default))
    );
    let options =
        "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'true', strict-cpu-reservation: 'T'}";
    let both = CpuPolicyOptions { full_cores_only: true, strict_reservation: true };
    assert_eq!(policy(options), Some(both));
    let flags = flags::loaded(&["--cpu-manager-policy=static", "--cpu-manager-policy-options=full-pcpus-only=true"]);
    assert_eq!(flags.unwrap().cpus.policy, Some(CpuPolicyOptions { full_cores_only: true, ..default }));
    for (text, why) in [
        ("cpuManagerPolicy: dynamic", "\"dynamic\" is neither none nor static"),
        ("cpuManagerPolicyOptions: {full-pcpus-only: 'true'}", "set cpuManagerPolicy: static"),
        ("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'maybe'}", "is neither true nor false"),
        ("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {align-by-socket: 'true'}", "limpet does not support it"),
        ("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {other: 'true'}", "unknown CPU Manager Policy option"),
    ] {
        let errors = loaded(text).unwrap_err();
        assert!(errors[0].contains(why), "{text}: {errors:?}");
    }
}

#[test]
fn named_processors_take_the_place_of_reserved_amounts() {
    let config =
        loaded("kubeReserved: {cpu: 500m}\nsystemReserved: {cpu: 700m, memory: 1Mi}\nreservedSystemCPUs: 0,2-3")
            .unwrap();
    assert_eq!(config.node.reserved.kube.resources, amounts("0", "0", "0"));
    assert_eq!(config.node.reserved.system.resources, amounts("3", "1Mi", "0"));
    assert_eq!(config.cpu_settings().reserved, ReservedCpus::These(CpuSet::parse("0,2-3").unwrap()));
    let amounts_alone = loaded("kubeReserved: {cpu: 500m}\nsystemReserved: {cpu: 700m}").unwrap();
    let sum = limpet_model::pod::quantity::parse("1200m").unwrap();
    assert_eq!(amounts_alone.cpu_settings().reserved, ReservedCpus::Amount(sum));
    let flags = flags::loaded(&["--reserved-cpus=1", "--system-reserved=cpu=700m"]).unwrap();
    assert_eq!(flags.node.reserved.system.resources, amounts("1", "0", "0"));
    for (text, why) in [
        ("reservedSystemCPUs: a", "is not a processor"),
        ("reservedSystemCPUs: '0'\nsystemReservedCgroup: /s", "cannot be used with systemReservedCgroup"),
    ] {
        let errors = loaded(text).unwrap_err();
        assert!(errors[0].contains(why), "{text}: {errors:?}");
    }
}
