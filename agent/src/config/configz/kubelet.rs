//! The fields of a KubeletConfiguration that have an effect.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::Config;
use limpet_cluster::settings::ClusterSettings;
use limpet_core::cpu_allocation::{NONE, STATIC};
use limpet_core::eviction::{Amount, DEFAULT_HARD, EvictionPolicy};
use limpet_core::node_object::NodeTaint;
use limpet_core::node_shutdown::{ShutdownGroup, ShutdownPolicy};
use limpet_core::pull_rate::PullRate;
use limpet_host::cgroup::CgroupDriver;
use limpet_model::go_duration;
use limpet_model::pod::compute_resources::{CPU_PERIOD, CpuQuotas};
use limpet_node::settings::{Reservation, ReservedCgroup};
use limpet_server::settings::ServerSettings;

/// The document in parts, which together have every field once.
pub(super) fn parts(config: &Config) -> [Value; 6] {
    [
        node(config),
        kernel(config),
        shutdown(config),
        cluster(&config.cluster),
        listeners(&config.server),
        images(config),
    ]
}

/// kubelet's maps of thresholds.
#[derive(Default)]
struct Eviction {
    hard: BTreeMap<&'static str, String>,
    soft: BTreeMap<&'static str, String>,
    grace: BTreeMap<&'static str, String>,
    reclaim: BTreeMap<&'static str, String>,
}

impl Eviction {
    fn from_policy(policy: &EvictionPolicy) -> Self {
        let text = |amount: Amount| match amount {
            Amount::Absolute(amount) => amount.to_string(),
            // The number as it was written, because in 32 bits 0.15 is 15.000001%.
            Amount::Share(share) => format!("{}%", (f64::from(share) * 1e6).round() / 1e4),
        };
        let mut maps = Self::default();
        for threshold in &policy.thresholds {
            let signal = threshold.signal.as_str();
            if threshold.is_hard() {
                maps.hard.insert(signal, text(threshold.value));
            } else {
                maps.soft.insert(signal, text(threshold.value));
                maps.grace.insert(signal, go_duration::show(threshold.grace));
            }
            maps.reclaim.extend(threshold.min_reclaim.map(|amount| (signal, text(amount))));
        }
        if maps.hard.is_empty() {
            // If there were no hard threshold, the default ones would be assumed.
            maps.hard = DEFAULT_HARD.iter().map(|(signal, _)| (signal.as_str(), "0%".to_owned())).collect();
        }
        maps
    }
}

/// The settings of how many pods there are, and of what the kernel does for them.
fn kernel(config: &Config) -> Value {
    json!({
        "maxPods": config.node.max_pods,
        "podsPerCore": config.node.pods_per_core,
        "podPidsLimit": config.cgroups.pod_pids_limit.unwrap_or(-1),
        "cpuCFSQuota": config.cgroups.cpu_quotas != CpuQuotas::Off,
        "cpuCFSQuotaPeriod": cpu_period(config.cgroups.cpu_quotas),
        "cpuManagerPolicy": if config.cpus.policy.is_some() { STATIC } else { NONE },
        "cpuManagerPolicyOptions": cpu_policy_options(config),
        "cpuManagerReconcilePeriod": go_duration::show(config.cpus.reconcile_period),
        "reservedSystemCPUs": config.cpus.reserved.as_ref().map(ToString::to_string),
        "failSwapOn": config.node.kernel.fail_swap_on,
        "protectKernelDefaults": config.node.kernel.protect_defaults,
    })
}

/// How long pods have when the node shuts down.
fn shutdown(config: &Config) -> Value {
    let periods = config.shutdown.as_ref().map_or(Some(Default::default()), ShutdownPolicy::periods);
    let (total, critical) = periods.unwrap_or_default();
    let group = |group: &ShutdownGroup| {
        let seconds = group.grace.unwrap_or_default().as_secs();
        json!({ "priority": group.priority, "shutdownGracePeriodSeconds": seconds })
    };
    let groups = config.shutdown.as_ref().filter(|_| periods.is_none());
    json!({
        "shutdownGracePeriod": go_duration::show(total),
        "shutdownGracePeriodCriticalPods": go_duration::show(critical),
        "shutdownGracePeriodByPodPriority": groups.map(|policy| policy.groups().iter().map(group).collect::<Vec<_>>()),
    })
}

/// The fields that belong to no other part.
fn node(config: &Config) -> Value {
    let driver = match config.cgroups.driver {
        CgroupDriver::Cgroupfs => "cgroupfs",
        CgroupDriver::Systemd => "systemd",
    };
    let eviction = Eviction::from_policy(&config.eviction);
    json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "staticPodPath": config.sources.manifest_path,
        "staticPodURL": config.sources.manifest_url.as_ref().map(|url| url.address.to_string()),
        "httpCheckFrequency": config.sources.manifest_url.as_ref().map(|url| go_duration::show(url.frequency)),
        "containerRuntimeEndpoint": format!("unix://{}", config.runtime.endpoint.display()),
        "podLogsDir": config.logs.pods_dir,
        "volumePluginDir": config.volumes.plugin_dir,
        "cgroupDriver": driver,
        "cgroupRoot": config.cgroups.root,
        "crashLoopBackOff": { "maxContainerRestartPeriod": go_duration::show(config.restarts.max_pause) },
        "kubeReserved": quantities(&config.node.reserved.kube),
        "systemReserved": quantities(&config.node.reserved.system),
        "enforceNodeAllocatable": enforced(config),
        "kubeReservedCgroup": config.node.reserved.kube_cgroup.as_ref().map(|limited| &limited.group),
        "systemReservedCgroup": config.node.reserved.system_cgroup.as_ref().map(|limited| &limited.group),
        "runtimeRequestTimeout": go_duration::show(config.runtime.request_timeout),
        "seccompDefault": config.containers.seccomp_default,
        "memorySwap": { "swapBehavior": config.containers.swap_behavior.as_str() },
        "singleProcessOOMKill": config.containers.single_process_oom_kill,
        "memoryReservationPolicy":
            if config.cgroups.memory_qos.keeps_requests { "TieredReservation" } else { "None" },
        "memoryThrottlingFactor": config.cgroups.memory_qos.throttling,
        "containerLogMaxSize": config.logs.rotation.max_size.to_string(),
        "containerLogMaxFiles": config.logs.rotation.max_files,
        "resolvConf": config.volumes.resolv_conf.clone().unwrap_or_default(),
        "clusterDNS": config.volumes.cluster.nameservers,
        "clusterDomain": config.volumes.cluster.domain,
        "allowedUnsafeSysctls": config.workers.allowed_unsafe_sysctls,
        "evictionHard": eviction.hard,
        "evictionSoft": eviction.soft,
        "evictionSoftGracePeriod": eviction.grace,
        "evictionMinimumReclaim": eviction.reclaim,
        "evictionPressureTransitionPeriod": go_duration::show(config.eviction.transition),
        "evictionMaxPodGracePeriod": config.eviction.max_pod_grace.as_secs(),
        "volumeStatsAggPeriod": go_duration::show(config.volumes.stats_period),
        "logging": { "verbosity": config.verbosity },
    })
}

/// `None` if none is set; Go's encoder then leaves out the map.
fn cpu_policy_options(config: &Config) -> Option<BTreeMap<&'static str, &'static str>> {
    let options: BTreeMap<_, _> = config.cpus.policy?.names().map(|name| (name, "true")).collect();
    Some(options).filter(|options| !options.is_empty())
}

/// `cpuCFSQuotaPeriod`, or kubelet's default if there are no quotas.
fn cpu_period(quotas: CpuQuotas) -> String {
    let period = if let CpuQuotas::InPeriods(period) = quotas { period } else { CPU_PERIOD };
    go_duration::show(Duration::from_micros(period))
}

/// `enforceNodeAllocatable`, whose words name the cgroups that are limited.
fn enforced(config: &Config) -> Vec<&'static str> {
    let reserved = &config.node.reserved;
    let word = |cgroup: &Option<ReservedCgroup>, [all, part]: [&'static str; 2]| {
        cgroup.as_ref().map(|limited| if limited.compressible_only { part } else { all })
    };
    let words: Vec<_> = config
        .node
        .limit_all_pods
        .then_some("pods")
        .into_iter()
        .chain(word(&reserved.system_cgroup, ["system-reserved", "system-reserved-compressible"]))
        .chain(word(&reserved.kube_cgroup, ["kube-reserved", "kube-reserved-compressible"]))
        .collect();
    if words.is_empty() { vec!["none"] } else { words }
}

/// The amounts other than zero, by resource name.
fn quantities(reservation: &Reservation) -> BTreeMap<Cow<'static, str>, String> {
    let requests = &reservation.resources;
    let some = requests.resources().filter(|resource| !requests[*resource].is_zero());
    let pids = (reservation.pids > 0).then(|| (Cow::Borrowed("pid"), reservation.pids.to_string()));
    some.map(|resource| (resource.name(), requests[resource].to_string())).chain(pids).collect()
}

/// The settings of a node of a cluster.
fn cluster(cluster: &ClusterSettings) -> Value {
    let taint = |taint: &NodeTaint| json!({ "key": taint.key, "value": taint.value, "effect": taint.effect });
    json!({
        "rotateCertificates": cluster.rotate_certificates,
        "registerNode": cluster.register,
        "providerID": cluster.provider_id,
        "registerWithTaints": cluster.taints.iter().map(taint).collect::<Vec<_>>(),
        "nodeStatusUpdateFrequency": go_duration::show(cluster.frequencies.correction),
        "nodeStatusReportFrequency": go_duration::show(cluster.frequencies.report),
        "nodeStatusMaxImages": cluster.max_images.and_then(|most| i32::try_from(most).ok()).unwrap_or(-1),
        "nodeLeaseDurationSeconds": cluster.lease_duration.as_secs(),
    })
}

/// The settings of images: their pulls, who may use them, and when they are removed.
fn images(config: &Config) -> Value {
    json!({
        "registryPullQPS": config.pulls.rate.map_or(0, |rate| rate.per_second),
        "registryBurst": config.pulls.rate.unwrap_or(PullRate::DEFAULT).burst,
        "serializeImagePulls": config.pulls.max_parallel == 1,
        "maxParallelImagePulls": config.pulls.max_parallel,
        "imageGCHighThresholdPercent": config.image_gc.high_percent,
        "imageGCLowThresholdPercent": config.image_gc.low_percent,
        "imageMinimumGCAge": go_duration::show(config.image_gc.min_age),
        "imageMaximumGCAge": go_duration::show(config.image_gc.max_age.unwrap_or_default()),
        "imagePullCredentialsVerificationPolicy": config.pulls.verification.as_str(),
        "preloadedImagesVerificationAllowlist": config.pulls.verification.allowlist(),
    })
}

/// The settings of the listeners on the network.
fn listeners(server: &ServerSettings) -> Value {
    json!({
        "enableServer": server.enabled,
        "address": server.address,
        "port": server.port,
        "readOnlyPort": server.read_only_port,
        "healthzPort": server.healthz_port,
        "healthzBindAddress": server.healthz_address,
        "tlsCertFile": server.certificate.as_ref().map(|(certificate, _)| certificate),
        "tlsPrivateKeyFile": server.certificate.as_ref().map(|(_, key)| key),
        "tlsCipherSuites": server.cipher_suites.iter().filter_map(|suite| suite.as_str()).collect::<Vec<_>>(),
        "tlsCurvePreferences": server.key_exchanges.iter().map(|group| u16::from(*group)).collect::<Vec<_>>(),
        "streamingConnectionIdleTimeout": go_duration::show(server.stream_idle_timeout.unwrap_or_default()),
        "enableDebuggingHandlers": server.debug.enabled,
        "enableSystemLogHandler": server.debug.system_logs,
        "enableSystemLogQuery": server.debug.system_log_query,
        "enableProfilingHandler": server.debug.profiling,
        "enableDebugFlagsHandler": server.debug.flags,
        "serverTLSBootstrap": server.certificate_by_request,
        "tlsMinVersion": if server.tls13_only { "VersionTLS13" } else { "VersionTLS12" },
        "authentication": {
            "x509": { "clientCAFile": server.client_ca },
            "anonymous": { "enabled": server.anonymous },
            "webhook": { "enabled": server.takes_tokens(), "cacheTTL": go_duration::show(server.token_lifetime) },
        },
        "authorization": {
            "mode": server.mode.as_str(),
            "webhook": {
                "cacheAuthorizedTTL": go_duration::show(server.allowed_lifetime),
                "cacheUnauthorizedTTL": go_duration::show(server.denied_lifetime),
            },
        },
    })
}
