//! Every key of KubeletConfiguration v1beta1 (Kubernetes 1.37), and limpet's own: its type, and whether it is
//! supported.

/// The type a key's value must have.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    Bool,
    Int,
    Float,
    Text,
    /// Text that may be `off`, which YAML parses as false.
    Switch,
    /// A Go duration: `1m30s`.
    Duration,
    /// The same, or a whole number of nanoseconds (`TimeOrMetaDuration`).
    DurationOrInt,
    Texts,
    Ints,
    /// A map to anything: the keys are user-defined.
    Map,
    List,
    Object(&'static [Key]),
}

/// Whether limpet supports a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Support {
    Acts,
    /// It is not supported yet. The value given, if any, is limpet's behaviour and needs no warning.
    NotYet(Option<Plain>),
    /// It is not needed; the text is the reason.
    Needless(&'static str),
}

/// A value that can be written in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plain {
    Bool(bool),
    Text(&'static str),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) support: Support,
}

const fn supported(name: &'static str, shape: Shape) -> Key {
    Key { name, shape, support: Support::Acts }
}

const fn unsupported(name: &'static str, shape: Shape) -> Key {
    Key { name, shape, support: Support::NotYet(None) }
}

const fn unsupported_unless(name: &'static str, shape: Shape, anyway: Plain) -> Key {
    Key { name, shape, support: Support::NotYet(Some(anyway)) }
}

const fn not_needed(name: &'static str, shape: Shape, why: &'static str) -> Key {
    Key { name, shape, support: Support::Needless(why) }
}

use Plain::{Bool as Is, Text as Word};
use Shape::{Bool, Duration, DurationOrInt, Float, Int, Ints, List, Map, Object, Switch, Text, Texts};

const AT_ONCE: &str = "every line of the log is written at once";
const WATCHES: &str = "changes are seen as they happen, without a period";

const AUTHENTICATION: &[Key] = &[
    supported("x509", Object(&[supported("clientCAFile", Text)])),
    supported("webhook", Object(&[supported("enabled", Bool), supported("cacheTTL", Duration)])),
    supported("anonymous", Object(&[supported("enabled", Bool)])),
];
const AUTHORIZATION: &[Key] = &[
    supported("mode", Text),
    supported(
        "webhook",
        Object(&[supported("cacheAuthorizedTTL", Duration), supported("cacheUnauthorizedTTL", Duration)]),
    ),
];
const LOGGING: &[Key] = &[
    unsupported("format", Text),
    not_needed("flushFrequency", DurationOrInt, AT_ONCE),
    supported("verbosity", Int),
    unsupported("vmodule", List),
    unsupported("options", Map),
];

/// KubeletConfiguration, `kubelet.config.k8s.io/v1beta1`.
pub(super) const KUBELET: &[Key] = &[
    supported("apiVersion", Text),
    supported("kind", Text),
    supported("enableServer", Bool),
    supported("staticPodPath", Text),
    supported("podLogsDir", Text),
    not_needed("syncFrequency", Duration, WATCHES),
    not_needed("fileCheckFrequency", Duration, WATCHES),
    supported("httpCheckFrequency", Duration),
    supported("staticPodURL", Text),
    supported("staticPodURLHeader", Map),
    supported("address", Text),
    supported("port", Int),
    supported("readOnlyPort", Int),
    supported("tlsCertFile", Text),
    supported("tlsPrivateKeyFile", Text),
    supported("tlsCipherSuites", Texts),
    supported("tlsCurvePreferences", Ints),
    supported("tlsMinVersion", Text),
    supported("rotateCertificates", Bool),
    supported("serverTLSBootstrap", Bool),
    supported("authentication", Object(AUTHENTICATION)),
    supported("authorization", Object(AUTHORIZATION)),
    supported("registryPullQPS", Int),
    supported("registryBurst", Int),
    supported("imagePullCredentialsVerificationPolicy", Text),
    supported("preloadedImagesVerificationAllowlist", Texts),
    unsupported("eventRecordQPS", Int),
    unsupported("eventBurst", Int),
    supported("enableDebuggingHandlers", Bool),
    not_needed("enableContentionProfiling", Bool, "there is no Go scheduler to sample"),
    supported("healthzPort", Int),
    supported("healthzBindAddress", Text),
    unsupported("oomScoreAdj", Int),
    supported("clusterDomain", Text),
    supported("clusterDNS", Texts),
    supported("streamingConnectionIdleTimeout", Duration),
    supported("nodeStatusUpdateFrequency", Duration),
    supported("nodeStatusReportFrequency", Duration),
    supported("nodeLeaseDurationSeconds", Int),
    supported("imageMinimumGCAge", Duration),
    supported("imageMaximumGCAge", Duration),
    supported("imageGCHighThresholdPercent", Int),
    supported("imageGCLowThresholdPercent", Int),
    supported("volumeStatsAggPeriod", Duration),
    unsupported_unless("kubeletCgroups", Text, Word("")),
    unsupported_unless("systemCgroups", Text, Word("")),
    supported("cgroupRoot", Text),
    unsupported_unless("cgroupsPerQOS", Bool, Is(true)),
    supported("cgroupDriver", Text),
    supported("cpuManagerPolicy", Text),
    supported("singleProcessOOMKill", Bool),
    supported("cpuManagerPolicyOptions", Map),
    supported("cpuManagerReconcilePeriod", Duration),
    unsupported_unless("memoryManagerPolicy", Text, Word("None")),
    unsupported_unless("topologyManagerPolicy", Text, Word("none")),
    unsupported("topologyManagerScope", Text),
    unsupported("topologyManagerPolicyOptions", Map),
    unsupported("qosReserved", Map),
    supported("runtimeRequestTimeout", Duration),
    unsupported("hairpinMode", Text),
    supported("maxPods", Int),
    unsupported_unless("podCIDR", Text, Word("")),
    supported("podPidsLimit", Int),
    supported("resolvConf", Text),
    unsupported_unless("runOnce", Bool, Is(false)),
    supported("cpuCFSQuota", Bool),
    supported("cpuCFSQuotaPeriod", Duration),
    supported("nodeStatusMaxImages", Int),
    unsupported("maxOpenFiles", Int),
    unsupported("contentType", Text),
    unsupported("kubeAPIQPS", Int),
    unsupported("kubeAPIBurst", Int),
    supported("serializeImagePulls", Bool),
    supported("maxParallelImagePulls", Int),
    supported("evictionHard", Map),
    supported("evictionSoft", Map),
    supported("evictionSoftGracePeriod", Map),
    supported("evictionPressureTransitionPeriod", Duration),
    supported("evictionMaxPodGracePeriod", Int),
    supported("evictionMinimumReclaim", Map),
    supported("mergeDefaultEvictionSettings", Bool),
    supported("podsPerCore", Int),
    unsupported_unless("enableControllerAttachDetach", Bool, Is(true)),
    supported("protectKernelDefaults", Bool),
    unsupported_unless("makeIPTablesUtilChains", Bool, Is(false)),
    unsupported("iptablesMasqueradeBit", Int),
    unsupported("iptablesDropBit", Int),
    unsupported("featureGates", Map),
    supported("failSwapOn", Bool),
    supported("memorySwap", Object(&[supported("swapBehavior", Text)])),
    supported("containerLogMaxSize", Text),
    supported("containerLogMaxFiles", Int),
    not_needed("containerLogMaxWorkers", Int, "every container's logger rotates its own log"),
    not_needed("containerLogMonitorInterval", Duration, "every container's logger rotates its own log as it writes"),
    unsupported("configMapAndSecretChangeDetectionStrategy", Text),
    supported("systemReserved", Map),
    supported("kubeReserved", Map),
    supported("reservedSystemCPUs", Text),
    unsupported("showHiddenMetricsForVersion", Text),
    supported("systemReservedCgroup", Text),
    supported("kubeReservedCgroup", Text),
    supported("enforceNodeAllocatable", Texts),
    supported("allowedUnsafeSysctls", Texts),
    supported("volumePluginDir", Text),
    supported("providerID", Text),
    unsupported_unless("kernelMemcgNotification", Bool, Is(false)),
    unsupported("logging", Object(LOGGING)),
    supported("enableSystemLogHandler", Bool),
    supported("enableSystemLogQuery", Bool),
    supported("shutdownGracePeriod", Duration),
    supported("shutdownGracePeriodCriticalPods", Duration),
    supported("shutdownGracePeriodByPodPriority", List),
    supported("crashLoopBackOff", Object(&[supported("maxContainerRestartPeriod", Duration)])),
    unsupported("reservedMemory", List),
    supported("enableProfilingHandler", Bool),
    supported("enableDebugFlagsHandler", Bool),
    supported("seccompDefault", Bool),
    supported("memoryThrottlingFactor", Float),
    supported("memoryReservationPolicy", Text),
    supported("registerWithTaints", List),
    supported("registerNode", Bool),
    unsupported("tracing", Object(&[unsupported("endpoint", Text), unsupported("samplingRatePerMillion", Int)])),
    unsupported_unless("localStorageCapacityIsolation", Bool, Is(true)),
    supported("containerRuntimeEndpoint", Text),
    unsupported_unless("imageServiceEndpoint", Text, Word("")),
    unsupported_unless("failCgroupV1", Bool, Is(false)),
    unsupported("userNamespaces", Object(&[unsupported("idsPerPod", Int)])),
];

#[cfg(test)]
pub(crate) fn kubelet_names() -> impl Iterator<Item = &'static str> {
    KUBELET.iter().map(|key| key.name)
}

/// The `apiVersion` of LimpetConfiguration.
pub(super) const LIMPET_VERSION: &str = "limpet.dev/v1beta1";
/// Earlier versions, which are accepted with a warning.
pub(super) const EARLIER_LIMPET_VERSIONS: &[&str] = &["limpet.dev/v1alpha1"];
/// Keys of LimpetConfiguration that have been renamed: the earlier name, which is accepted with a warning, and the
/// current one.
pub(super) const RENAMED_LIMPET_KEYS: &[(&str, &str)] = &[("containerdConfig", "containerdConfigFile")];

const BUNDLE: &[Key] = &[
    supported("keys", Texts),
    supported("directory", Text),
    supported("url", Text),
    supported("urlCAFile", Text),
    supported("image", Text),
    supported("interval", Duration),
    supported("maxSize", Text),
];

/// LimpetConfiguration: what kubelet has no key for.
pub(super) const LIMPET: &[Key] = &[
    supported("apiVersion", Text),
    supported("kind", Text),
    supported("rootDirectory", Text),
    supported("runDirectory", Text),
    supported("containerLogsDirectory", Text),
    supported("manifestWatch", Text),
    supported("staticPodURLCAFile", Text),
    supported("staticPodURLCertFile", Text),
    supported("staticPodURLKeyFile", Text),
    supported("registryConfigDirectory", Text),
    supported("containerdConfigFile", Text),
    supported("cniConfigDirectory", Text),
    supported("cniBinaryDirectories", Texts),
    supported("persistentVolumesDirectory", Text),
    supported("localImageWhenUnreachable", Bool),
    supported("imagePolicy", Map),
    supported("bundle", Object(BUNDLE)),
    supported("generations", Map),
    supported("updates", Map),
    supported("services", Map),
    supported("probeTimerSlackPercent", Int),
    supported("podSecurity", Map),
    supported("fieldValidation", Map),
    supported("snapshotter", Text),
    supported("runtimeBinary", Text),
    supported("shim", Text),
    supported("shimGroup", Text),
    supported("runtimeClasses", Map),
    supported("devices", Map),
    supported("metricsAddress", Text),
    supported("serverAllowedNames", Texts),
    supported("nodeIP", Text),
    supported("ignoreOtherAgents", Bool),
    supported("socketAllowedPods", Texts),
    supported("secretEncryptionKey", Text),
    supported("criSocket", Switch),
    supported("pluginDirectory", Switch),
    supported("cdiSpecDirectories", Texts),
    supported("manifestGuard", Switch),
    supported("manifestGuardRequired", Bool),
    supported("manifestGuardExecutables", Texts),
    supported("manifestGuardCgroups", Texts),
];

/// CredentialProviderConfig, `kubelet.config.k8s.io/v1`.
pub(super) const CREDENTIAL_PROVIDER_CONFIG: &[Key] =
    &[supported("apiVersion", Text), supported("kind", Text), supported("providers", List)];

pub(super) const CREDENTIAL_PROVIDER: &[Key] = &[
    supported("name", Text),
    supported("matchImages", Texts),
    supported("defaultCacheDuration", Duration),
    supported("apiVersion", Text),
    supported("args", Texts),
    supported("env", List),
    supported("tokenAttributes", Map),
];

/// The `tokenAttributes` of a provider.
pub(super) const TOKEN_ATTRIBUTES: &[Key] = &[
    supported("serviceAccountTokenAudience", Text),
    supported("cacheType", Text),
    supported("requireServiceAccount", Bool),
    supported("requiredServiceAccountAnnotationKeys", Texts),
    supported("optionalServiceAccountAnnotationKeys", Texts),
];

/// A variable of a provider's `env`.
pub(super) const CREDENTIAL_PROVIDER_VARIABLE: &[Key] = &[supported("name", Text), supported("value", Text)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_key_without_effect() {
        let page = include_str!("../../../docs/configuration.md");
        let (_, list) = page.split_once("### Keys without effect").unwrap_or_default();
        let (list, _) = list.split_once("\n## ").unwrap_or_default();
        let is_named = |key: &&Key| {
            let parts: &[Key] = if let Shape::Object(parts) = key.shape { parts } else { &[] };
            list.contains(&format!("`{}`", key.name))
                || parts.iter().any(|part| list.contains(&format!("`{}.{}`", key.name, part.name)))
        };
        let silent = KUBELET.iter().filter(|key| matches!(key.support, Support::NotYet(_)));
        let missing: Vec<_> = silent.filter(|key| !is_named(key)).map(|key| key.name).collect();
        assert!(missing.is_empty() && !list.is_empty(), "not in docs/configuration.md: {missing:?}");
        let acting = KUBELET.iter().filter(|key| key.support == Support::Acts && is_named(key));
        // The list also names these keys, to say what counts instead.
        let acting: Vec<_> = acting.map(|key| key.name).collect();
        assert_eq!(acting, ["containerRuntimeEndpoint"]);
    }
}
