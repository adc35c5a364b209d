//! `/configz`: the configuration in effect, under kubelet's field names where kubelet has the field.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::generations::GenerationSettings;
use limpet_bundle::settings::BundleSettings;
use limpet_cluster::settings::ClusterSettings;
use limpet_containerd::container::runtime::RuntimeClass;
use limpet_containerd::image::WASM;
use limpet_core::cpu_allocation::{NONE, STATIC};
use limpet_core::eviction::{Amount, DEFAULT_HARD, EvictionPolicy};
use limpet_core::node_object::NodeTaint;
use limpet_core::node_shutdown::{ShutdownGroup, ShutdownPolicy};
use limpet_core::pull_rate::PullRate;
use limpet_generations::{CheckAction, Policy};
use limpet_host::cgroup::CgroupDriver;
use limpet_image_policy::policy::{ImagePolicy, Requirement, Rule};
use limpet_model::go_duration;
use limpet_model::node::Device;
use limpet_model::pod::compute_resources::{CPU_PERIOD, CpuQuotas};
use limpet_model::source::SourceKind;
use limpet_node::settings::{Reservation, ReservedCgroup};
use limpet_server::settings::ServerSettings;
use limpet_services::settings::ServiceSettings;
use limpet_sources::http::HttpSettings;
use limpet_updates::{GateSettings, UpdateSettings, Window};

/// kubelet's values of keys without effect, and limpet's if it behaves as with another value (`failSwapOn`). A client
/// that decodes the document into Go's type reads a missing key as zero, which has its own meaning: `cpuCFSQuota:
/// false`.
const WITHOUT_EFFECT: &str = include_str!("configz/without_effect.json");

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

/// The document of a configuration. It contains neither headers of the URL nor keys, and of files only their paths.
pub(crate) fn document(config: &Config) -> Value {
    // The text is constant, and a test parses it.
    let mut kubelet: Map<String, Value> = serde_json::from_str(WITHOUT_EFFECT).unwrap_or_default();
    put_over(&mut kubelet, config.files.without_effect.clone());
    let parts = [
        kubelet_document(config),
        kernel(config),
        shutdown(config),
        cluster(&config.cluster),
        listeners(&config.server),
        images(config),
    ];
    for part in parts {
        put_over(&mut kubelet, part.as_object().cloned().unwrap_or_default());
    }
    json!({ "kubeletconfig": kubelet, "limpetconfig": limpet_document(config) })
}

/// Adds what `later` has. Null removes a key, because Go's clients do not accept null for a duration.
fn put_over(earlier: &mut Map<String, Value>, later: Map<String, Value>) {
    for (key, value) in later {
        match (earlier.get_mut(&key), value) {
            (_, Value::Null) => {}
            (Some(Value::Object(known)), Value::Object(more)) => put_over(known, more),
            (None, Value::Object(more)) => {
                let mut known = Map::new();
                put_over(&mut known, more);
                earlier.insert(key, known.into());
            }
            (_, value) => drop(earlier.insert(key, value)),
        }
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

/// The KubeletConfiguration without what [`kernel`], [`shutdown`], [`cluster`], [`listeners`] and [`images`] add.
fn kubelet_document(config: &Config) -> Value {
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

fn limpet_document(config: &Config) -> Value {
    let class = |(name, class): (&String, &RuntimeClass)| {
        let RuntimeClass { runtime, binary, config, no_pivot_root, no_new_keyring, wasm, devices } = class;
        let fields = json!({
            "runtime": runtime, "binary": binary, "config": config, "noPivotRoot": no_pivot_root,
            "noNewKeyring": no_new_keyring,
            "platform": wasm.then_some(WASM), "devices": devices,
        });
        (name.clone(), fields)
    };
    let device = |(name, device): (&String, &Device)| {
        let Device { paths, cdi, exclusive, permissions } = device;
        (name.clone(), json!({ "paths": paths, "cdi": cdi, "exclusive": exclusive, "permissions": permissions }))
    };
    let devices: serde_json::Map<String, Value> = config.plugins.devices.iter().map(device).collect();
    let classes: serde_json::Map<String, Value> = config.runtime.classes.iter().map(class).collect();
    json!({
        "hostnameOverride": config.node.hostname_override,
        "kubeconfig": config.cluster.kubeconfig,
        "rootDirectory": config.root_dir,
        "runDirectory": config.run_dir,
        "socket": config.socket(),
        "containerLogsDirectory": config.logs.containers_dir,
        "staticPodURLCAFile": config.sources.manifest_url.as_ref().and_then(|url| url.ca_file.clone()),
        "nodeIP": (!config.node.ip.is_empty()).then(|| config.node.ip.to_string()),
        "snapshotter": config.runtime.snapshotter,
        "runtimeBinary": config.runtime.binary,
        "shim": config.runtime.shim.to_string(),
        "shimGroup": config.runtime.shim_group.to_string(),
        "runtimeClasses": classes,
        "devices": devices,
        "persistentVolumesDirectory": config.volumes.claims_dir(&config.root_dir),
        "registryConfigDirectory": config.images.registry_config_dir,
        "containerdConfigFile": config.runtime.containerd_config,
        "imagePolicy": config.images.policy.as_ref().map(image_policy),
        "bundle": config.bundle.as_ref().map(|settings| bundle(settings, config.sources.bundle_url.as_ref())),
        "generations": generations(&config.generations),
        "updates": updates(&config.updates, config.report.as_ref()),
        "services": services(&config.services),
        "cniConfigDirectory": config.network.config_dir,
        "cniBinaryDirectories": config.network.binary_dirs,
        "metricsAddress": config.local.metrics_address,
        "serverAllowedNames": config.server.allowed_names,
        "criSocket": config.cri_socket(),
        "pluginDirectory": config.plugin_dir(),
        "cdiSpecDirectories": config.plugins.cdi_dirs,
        "secretEncryptionKey": config.secret_key.as_ref().map(ToString::to_string),
        "socketAllowedPods": config.local.allowed_pods.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// How bundles come.
fn bundle(bundle: &BundleSettings, url: Option<&HttpSettings>) -> Value {
    json!({ "keys": bundle.keys, "directory": bundle.directory, "image": bundle.image,
        "url": url.map(|url| url.address.to_string()), "urlCAFile": url.and_then(|url| url.ca_file.as_ref()),
        "interval": go_duration::show(bundle.interval), "maxSize": bundle.max_size.to_string() })
}

/// When updates are downloaded and applied.
fn updates(UpdateSettings { gate, bandwidth }: &UpdateSettings, report: Option<&HttpSettings>) -> Value {
    let GateSettings { windows, download, apply } = gate;
    let window = |window: &Window| json!({ "start": window.written, "duration": go_duration::show(window.duration) });
    let list = |all: &[Window]| all.iter().map(window).collect::<Vec<_>>();
    json!({
        "timeZone": windows.zone.iana_name(), "withoutClock": go_duration::show(windows.without_clock),
        "bandwidth": bandwidth.map(|rate| rate.to_string()),
        "download": { "windows": list(&download.windows), "meteredCommand": download.metered_command },
        "report": report.map(|report| {
            json!({ "url": report.address.to_string(), "interval": go_duration::show(report.frequency),
                "caFile": report.ca_file })
        }),
        "apply": { "windows": list(&apply.windows), "lockFile": apply.lock_file, "vetoURL": apply.veto_url },
    })
}

/// Where Services have their addresses and ports.
fn services(services: &ServiceSettings) -> Value {
    let (first, last) = services.node_ports.clone().into_inner();
    let ranges: Vec<String> = services.ranges.iter().map(ToString::to_string).collect();
    json!({ "clusterIPRanges": ranges, "nodePortRange": format!("{first}-{last}") })
}

/// Which sources have generations, and by what they are judged.
fn generations(GenerationSettings { settings, boot_check_dir }: &GenerationSettings) -> Value {
    let policies = SourceKind::ALL.into_iter().map(|source| (source, settings.policies.policy(source)));
    let policies = policies.filter(|(_, policy)| *policy != Policy::Off);
    let policy: serde_json::Map<String, Value> =
        policies.map(|(source, policy)| (source.as_str().to_owned(), policy.as_str().into())).collect();
    let check = settings.check.as_ref().map(|check| match check {
        CheckAction::Command(words) => json!({ "command": words }),
        CheckAction::Url(url) => json!({ "url": url }),
    });
    json!({
        "policy": policy,
        "progressDeadline": go_duration::show(settings.progress_deadline),
        "minReadySeconds": settings.min_ready.as_secs(),
        "maxRestarts": settings.max_restarts,
        "historyLimit": settings.history_limit,
        "check": check,
        "bootCheckDirectory": boot_check_dir,
    })
}

/// The rules, as they are written.
fn image_policy(policy: &ImagePolicy) -> Value {
    let required = |requirement: &Requirement| {
        let mut fields = serde_json::Map::new();
        fields.insert("require".to_owned(), requirement.as_str().into());
        if !requirement.keys().is_empty() {
            fields.insert("keys".to_owned(), json!(requirement.keys()));
        }
        fields
    };
    let rule = |rule: &Rule| {
        let mut fields = required(&rule.requirement);
        fields.insert("images".to_owned(), rule.images.iter().map(ToString::to_string).collect());
        fields
    };
    json!({ "rules": policy.rules.iter().map(rule).collect::<Vec<_>>(), "default": required(&policy.default) })
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::{RunFlags, kubelet_names, load};

    const KUBEADM: &str = include_str!("read/tests/kubeadm.yaml");
    const SUPPORTED: &str = include_str!("read/tests/supported.yaml");

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
        for text in
            [kubelet_text("maxPods: 7"), KUBEADM.to_owned(), supported.to_owned(), off, partly_off, without_effect]
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
        let text = "fileCheckFrequency: 30s\nlogging: {flushFrequency: 1s}\nfeatureGates: {A: true}\nmemoryThrottlingFactor: 0.8";
        let document = &document(&read(&kubelet_text(text)))["kubeletconfig"];
        assert_eq!(
            (&document["fileCheckFrequency"], &document["logging"]["flushFrequency"]),
            (&json!("30s"), &json!("1s"))
        );
        assert_eq!((&document["logging"]["format"], &document["logging"]["verbosity"]), (&json!("text"), &json!(2)));
        assert_eq!((&document["featureGates"]["A"], &document["cpuCFSQuota"]), (&json!(true), &json!(true)));
        assert_eq!(document["memoryThrottlingFactor"], json!(0.8));
        assert_eq!(
            (&document["runtimeRequestTimeout"], &document["authentication"]["x509"]),
            (&json!("2m0s"), &json!({}))
        );
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
}
