//! The keys for pods per core, CPU quotas, and what the kernel has to support.

use limpet_model::pod::compute_resources::{CPU_PERIOD, CpuQuotas};

use super::*;

fn loaded(text: &str) -> Result<Config, Vec<String>> {
    load_text(&format!("{KUBELET_HEAD}{text}"), &[]).0
}

#[test]
fn pods_by_the_core_are_at_most_max_pods() {
    let most = |text: &str, cores| loaded(text).unwrap().node.most_pods(cores);
    assert_eq!(most("", 64), 110);
    assert_eq!(most("podsPerCore: 0", 64), 110);
    assert_eq!((most("podsPerCore: 10", 4), most("podsPerCore: 10", 64)), (40, 110));
    assert_eq!(most("podsPerCore: 4000000000\nmaxPods: 7", usize::MAX), 7);
    let config = flags::loaded(&["--max-pods=9", "--pods-per-core=4"]).unwrap();
    assert_eq!((config.node.most_pods(1), config.node.most_pods(8)), (4, 9));
    let error = "config.yaml:3:14: podsPerCore: -1 is not a valid number of pods";
    assert_eq!(loaded("podsPerCore: -1").unwrap_err(), [error]);
}

#[test]
fn quotas_of_cpu_can_be_off_or_have_another_period() {
    let quotas = |text: &str| loaded(text).unwrap().cgroups.cpu_quotas;
    assert_eq!(quotas(""), CpuQuotas::InPeriods(CPU_PERIOD));
    assert_eq!(quotas("cpuCFSQuota: false\ncpuCFSQuotaPeriod: 5ms"), CpuQuotas::Off);
    assert_eq!(quotas("cpuCFSQuotaPeriod: 1ms"), CpuQuotas::InPeriods(1_000));
    assert_eq!(quotas("cpuCFSQuotaPeriod: 1s"), CpuQuotas::InPeriods(1_000_000));
    for text in ["0s", "999us", "1001ms", "x", "''"] {
        let errors = loaded(&format!("cpuCFSQuotaPeriod: {text}")).unwrap_err();
        let text = text.trim_matches('\'');
        assert_eq!(
            errors,
            [format!("config.yaml:3:20: cpuCFSQuotaPeriod: \"{text}\" is not a duration from 1ms to 1s")]
        );
    }
    // A limit of one and a half cores, and one of a thousandth, below which the kernel does not divide.
    assert_eq!(CpuQuotas::InPeriods(10_000).scaled(Some(150_000)), Some((15_000, 10_000)));
    assert_eq!(CpuQuotas::InPeriods(1_000).scaled(Some(1_000)), Some((1_000, 1_000)));
    assert_eq!((CpuQuotas::Off.scaled(Some(150_000)), CpuQuotas::default().scaled(None)), (None, None));
}

#[test]
fn pulls_have_a_rate_unless_it_is_zero() {
    let rate = |text: &str| loaded(text).unwrap().pulls.rate;
    let given = |per_second, burst| Some(PullRate { per_second, burst });
    assert_eq!((rate(""), rate("registryBurst: 0")), (given(5, 10), given(5, 10)));
    assert_eq!((rate("registryPullQPS: 0"), rate("registryPullQPS: 1\nregistryBurst: 2")), (None, given(1, 2)));
    let errors = loaded("registryPullQPS: -1\nregistryBurst: -2").unwrap_err();
    let expected = [
        "config.yaml:3:18: registryPullQPS: -1 is not 0 or more",
        "config.yaml:4:16: registryBurst: -2 is not 0 or more",
    ];
    assert_eq!(errors, expected);
}

#[test]
fn the_kernel_is_checked_only_on_demand() {
    let config = loaded("").unwrap();
    assert_eq!((config.node.kernel.fail_swap_on, config.node.kernel.protect_defaults), (false, None));
    let config = loaded("failSwapOn: true\nprotectKernelDefaults: false").unwrap();
    assert_eq!((config.node.kernel.fail_swap_on, config.node.kernel.protect_defaults), (true, Some(false)));
    let config = flags::loaded(&["--fail-swap-on", "--protect-kernel-defaults=True"]).unwrap();
    assert_eq!((config.node.kernel.fail_swap_on, config.node.kernel.protect_defaults), (true, Some(true)));
}

/// In the form that kubeadm writes, 0 counts as not set.
#[test]
fn the_log_is_as_verbose_as_the_file_says_unless_a_flag_says_otherwise() {
    let verbosity = |text: &str| loaded(text).unwrap().verbosity;
    assert_eq!(["", "logging: {verbosity: 0}", "logging: {verbosity: 4}"].map(verbosity), [2, 2, 4]);
    let text = format!("{KUBELET_HEAD}logging: {{verbosity: 4}}");
    assert_eq!(load_text(&text, &["--v=3"]).0.unwrap().verbosity, 3);
    let errors = loaded("logging: {verbosity: -1}").unwrap_err();
    assert!(errors[0].contains("logging.verbosity: -1 is less than 0"), "{errors:?}");
}

#[test]
fn an_amount_without_a_value_is_named_with_what_to_write() {
    let errors = loaded("kubeReserved: {memory: }").unwrap_err();
    assert!(errors[0].contains("kubeReserved.memory: has no value; write a quantity"), "{errors:?}");
}
