//! Every key of KubeletConfiguration v1beta1 (Kubernetes 1.36), and limpet's own: type, and what becomes of it.

/// The type a key's value must have.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    Bool,
    Int,
    Float,
    Text,
    /// A word, which may be `off`: YAML takes that for false.
    Switch,
    /// A Go duration: `1m30s`.
    Duration,
    Texts,
    Ints,
    /// A map to anything: keys are the user's own.
    Map,
    /// A list of anything.
    List,
    Object(&'static [Key]),
}

/// What limpet does about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Support {
    /// It does what it says.
    Acts,
    /// Nothing yet. The value named, if any, is what limpet does anyway and needs no word.
    NotYet(Option<Plain>),
    /// Nothing, because nothing is needed; the text says why.
    Needless(&'static str),
}

/// A value that can be named in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plain {
    Bool(bool),
    Int(i64),
    Text(&'static str),
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) support: Support,
}

const fn acts(name: &'static str, shape: Shape) -> Key {
    Key { name, shape, support: Support::Acts }
}

const fn not_yet(name: &'static str, shape: Shape) -> Key {
    Key { name, shape, support: Support::NotYet(None) }
}

const fn not_yet_but(name: &'static str, shape: Shape, anyway: Plain) -> Key {
    Key { name, shape, support: Support::NotYet(Some(anyway)) }
}

const fn needless(name: &'static str, shape: Shape, why: &'static str) -> Key {
    Key { name, shape, support: Support::Needless(why) }
}

use Plain::{Bool as Is, Int as Number, Text as Word};
use Shape::{Bool, Duration, Float, Int, Ints, List, Map, Object, Switch, Text, Texts};

const WATCHES: &str = "changes are seen as they happen, without a period";

const AUTHENTICATION: &[Key] = &[
    not_yet("x509", Object(&[not_yet("clientCAFile", Text)])),
    not_yet("webhook", Object(&[not_yet_but("enabled", Bool, Is(false)), not_yet("cacheTTL", Duration)])),
    not_yet("anonymous", Object(&[not_yet("enabled", Bool)])),
];
const AUTHORIZATION: &[Key] = &[
    not_yet("mode", Text),
    not_yet("webhook", Object(&[not_yet("cacheAuthorizedTTL", Duration), not_yet("cacheUnauthorizedTTL", Duration)])),
];
const LOGGING: &[Key] = &[
    not_yet("format", Text),
    not_yet("flushFrequency", Duration),
    not_yet("verbosity", Int),
    not_yet("vmodule", List),
    not_yet("options", Map),
];

/// KubeletConfiguration, `kubelet.config.k8s.io/v1beta1`.
pub(super) const KUBELET: &[Key] = &[
    acts("apiVersion", Text),
    acts("kind", Text),
    not_yet_but("enableServer", Bool, Is(false)),
    acts("staticPodPath", Text),
    acts("podLogsDir", Text),
    needless("syncFrequency", Duration, WATCHES),
    needless("fileCheckFrequency", Duration, WATCHES),
    acts("httpCheckFrequency", Duration),
    acts("staticPodURL", Text),
    acts("staticPodURLHeader", Map),
    not_yet("address", Text),
    not_yet("port", Int),
    not_yet_but("readOnlyPort", Int, Number(0)),
    not_yet("tlsCertFile", Text),
    not_yet("tlsPrivateKeyFile", Text),
    not_yet("tlsCipherSuites", Texts),
    not_yet("tlsCurvePreferences", Ints),
    not_yet("tlsMinVersion", Text),
    not_yet_but("rotateCertificates", Bool, Is(false)),
    not_yet_but("serverTLSBootstrap", Bool, Is(false)),
    not_yet("authentication", Object(AUTHENTICATION)),
    not_yet("authorization", Object(AUTHORIZATION)),
    not_yet("registryPullQPS", Int),
    not_yet("registryBurst", Int),
    not_yet("imagePullCredentialsVerificationPolicy", Text),
    not_yet("preloadedImagesVerificationAllowlist", Texts),
    not_yet("eventRecordQPS", Int),
    not_yet("eventBurst", Int),
    not_yet_but("enableDebuggingHandlers", Bool, Is(false)),
    not_yet_but("enableContentionProfiling", Bool, Is(false)),
    not_yet_but("healthzPort", Int, Number(0)),
    not_yet("healthzBindAddress", Text),
    not_yet("oomScoreAdj", Int),
    acts("clusterDomain", Text),
    acts("clusterDNS", Texts),
    not_yet("streamingConnectionIdleTimeout", Duration),
    not_yet("nodeStatusUpdateFrequency", Duration),
    not_yet("nodeStatusReportFrequency", Duration),
    not_yet("nodeLeaseDurationSeconds", Int),
    not_yet("imageMinimumGCAge", Duration),
    not_yet("imageMaximumGCAge", Duration),
    not_yet("imageGCHighThresholdPercent", Int),
    not_yet("imageGCLowThresholdPercent", Int),
    not_yet("volumeStatsAggPeriod", Duration),
    not_yet_but("kubeletCgroups", Text, Word("")),
    not_yet_but("systemCgroups", Text, Word("")),
    acts("cgroupRoot", Text),
    not_yet_but("cgroupsPerQOS", Bool, Is(true)),
    acts("cgroupDriver", Text),
    not_yet_but("cpuManagerPolicy", Text, Word("none")),
    not_yet("singleProcessOOMKill", Bool),
    not_yet("cpuManagerPolicyOptions", Map),
    not_yet("cpuManagerReconcilePeriod", Duration),
    not_yet_but("memoryManagerPolicy", Text, Word("None")),
    not_yet_but("topologyManagerPolicy", Text, Word("none")),
    not_yet("topologyManagerScope", Text),
    not_yet("topologyManagerPolicyOptions", Map),
    not_yet("qosReserved", Map),
    acts("runtimeRequestTimeout", Duration),
    not_yet("hairpinMode", Text),
    acts("maxPods", Int),
    not_yet_but("podCIDR", Text, Word("")),
    acts("podPidsLimit", Int),
    acts("resolvConf", Text),
    not_yet_but("runOnce", Bool, Is(false)),
    not_yet_but("cpuCFSQuota", Bool, Is(true)),
    not_yet_but("cpuCFSQuotaPeriod", Duration, Word("100ms")),
    not_yet("nodeStatusMaxImages", Int),
    not_yet("maxOpenFiles", Int),
    not_yet("contentType", Text),
    not_yet("kubeAPIQPS", Int),
    not_yet("kubeAPIBurst", Int),
    acts("serializeImagePulls", Bool),
    acts("maxParallelImagePulls", Int),
    not_yet("evictionHard", Map),
    not_yet("evictionSoft", Map),
    not_yet("evictionSoftGracePeriod", Map),
    not_yet("evictionPressureTransitionPeriod", Duration),
    not_yet("evictionMaxPodGracePeriod", Int),
    not_yet("evictionMinimumReclaim", Map),
    not_yet("mergeDefaultEvictionSettings", Bool),
    not_yet_but("podsPerCore", Int, Number(0)),
    not_yet_but("enableControllerAttachDetach", Bool, Is(false)),
    not_yet_but("protectKernelDefaults", Bool, Is(false)),
    not_yet_but("makeIPTablesUtilChains", Bool, Is(false)),
    not_yet("iptablesMasqueradeBit", Int),
    not_yet("iptablesDropBit", Int),
    not_yet("featureGates", Map),
    not_yet_but("failSwapOn", Bool, Is(false)),
    not_yet("memorySwap", Object(&[not_yet_but("swapBehavior", Text, Word(""))])),
    acts("containerLogMaxSize", Text),
    acts("containerLogMaxFiles", Int),
    needless("containerLogMaxWorkers", Int, "every container's logger rotates its own log"),
    needless("containerLogMonitorInterval", Duration, "every container's logger rotates its own log as it writes"),
    not_yet("configMapAndSecretChangeDetectionStrategy", Text),
    not_yet("systemReserved", Map),
    not_yet("kubeReserved", Map),
    not_yet("reservedSystemCPUs", Text),
    not_yet("showHiddenMetricsForVersion", Text),
    not_yet("systemReservedCgroup", Text),
    not_yet("kubeReservedCgroup", Text),
    not_yet("enforceNodeAllocatable", Texts),
    acts("allowedUnsafeSysctls", Texts),
    not_yet("volumePluginDir", Text),
    not_yet("providerID", Text),
    not_yet_but("kernelMemcgNotification", Bool, Is(false)),
    not_yet("logging", Object(LOGGING)),
    not_yet_but("enableSystemLogHandler", Bool, Is(false)),
    not_yet_but("enableSystemLogQuery", Bool, Is(false)),
    not_yet("shutdownGracePeriod", Duration),
    not_yet("shutdownGracePeriodCriticalPods", Duration),
    not_yet("shutdownGracePeriodByPodPriority", List),
    not_yet("crashLoopBackOff", Object(&[not_yet("maxContainerRestartPeriod", Duration)])),
    not_yet("reservedMemory", List),
    not_yet_but("enableProfilingHandler", Bool, Is(false)),
    not_yet_but("enableDebugFlagsHandler", Bool, Is(false)),
    acts("seccompDefault", Bool),
    not_yet("memoryThrottlingFactor", Float),
    not_yet_but("memoryReservationPolicy", Text, Word("None")),
    not_yet("registerWithTaints", List),
    not_yet_but("registerNode", Bool, Is(false)),
    not_yet("tracing", Object(&[not_yet("endpoint", Text), not_yet("samplingRatePerMillion", Int)])),
    not_yet_but("localStorageCapacityIsolation", Bool, Is(false)),
    acts("containerRuntimeEndpoint", Text),
    not_yet_but("imageServiceEndpoint", Text, Word("")),
    not_yet_but("failCgroupV1", Bool, Is(false)),
    not_yet("userNamespaces", Object(&[not_yet("idsPerPod", Int)])),
];

/// LimpetConfiguration, `limpet.dev/v1alpha1`: what kubelet has no key for.
pub(super) const LIMPET: &[Key] = &[
    acts("apiVersion", Text),
    acts("kind", Text),
    acts("rootDirectory", Text),
    acts("runDirectory", Text),
    acts("containerLogsDirectory", Text),
    acts("manifestWatch", Text),
    acts("staticPodURLCAFile", Text),
    acts("staticPodURLCertFile", Text),
    acts("staticPodURLKeyFile", Text),
    acts("registryConfigDirectory", Text),
    acts("cniConfigDirectory", Text),
    acts("cniBinaryDirectories", Texts),
    acts("localImageWhenUnreachable", Bool),
    acts("snapshotter", Text),
    acts("runtimeBinary", Text),
    acts("metricsAddress", Text),
    acts("nodeIP", Text),
    acts("ignoreOtherAgents", Bool),
    acts("manifestGuard", Switch),
    acts("manifestGuardRequired", Bool),
    acts("manifestGuardExecutables", Texts),
    acts("manifestGuardCgroups", Texts),
];
