//! Evaluates the values of the two documents, whose keys are already checked.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use limpet_bpf::{GuardMode, GuardSettings};
use limpet_store::KeyLocation;

use super::super::tree::Map;
use super::super::{Config, quantity};
use super::ConfigDiagnostics;
use crate::executor::settings::PullSettings;
use limpet_containerd::settings::{ContainerSettings, RuntimeSettings, Shim};
use limpet_containerd::spec::ShimGroup;
use limpet_core::backoff;
use limpet_core::pull_rate::PullRate;
use limpet_host::cgroup::CgroupDriver;
use limpet_model::attribution::ManifestWatch;
use limpet_model::go_duration;
use limpet_model::pod::PodKey;
use limpet_model::pod::compute_resources::{CPU_PERIOD, CpuQuotas};
use limpet_model::pod::swap::SwapBehavior;
use limpet_plugins::settings::{PluginDirectory, PluginSettings};
use limpet_server::settings::{CriSocket, LocalSettings};
use limpet_sources::settings::SourceSettings;

/// The limit of parallel pulls if kubelet would set none.
pub(super) const PULLS_WITHOUT_LIMIT: usize = 16;
/// kubelet's shortest `maxContainerRestartPeriod`.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// containerd's own calls take milliseconds, and starting a container on a slow node takes a second or two.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(1);
/// kubelet's range of `cpuCFSQuotaPeriod`, which is the kernel's.
const CPU_PERIODS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(1);

impl ConfigDiagnostics {
    /// Applies the values of KubeletConfiguration.
    pub(super) fn kubelet(&mut self, map: &Map<'_>, directory: &Path, config: &mut Config) {
        self.paths_and_runtime(map, directory, config);
        self.limits(map, config);
        if let Some((on, _)) = map.bool("seccompDefault") {
            config.containers.seccomp_default = on;
        }
        self.memory(map, &mut config.containers);
        config.cgroups.memory_qos = self.memory_qos(map);
        self.processors(map, &mut config.cpus);
        self.names(map, config);
        self.logs(map, config);
        self.pulls(map, &mut config.pulls);
        self.image_gc(map, &mut config.image_gc);
        self.image_verification(map, &mut config.pulls.verification);
        self.eviction(map, &mut config.eviction);
        self.server(map, directory, &mut config.server);
        config.node.reserved.kube = self.reserved(map, "kubeReserved");
        config.node.reserved.system = self.reserved(map, "systemReserved");
        self.enforcement(map, &mut config.node);
        self.cluster(map, &mut config.cluster);
        for (position, path, message) in self.url.kubelet(map) {
            self.error(Some(position), &path, message);
        }
    }

    fn paths_and_runtime(&mut self, map: &Map<'_>, directory: &Path, config: &mut Config) {
        if let Some((path, _)) = map.text("staticPodPath").filter(|(path, _)| !path.is_empty()) {
            config.sources.manifest_path = Some(directory.join(path));
        }
        self.absolute_path(map, "podLogsDir", &mut config.logs.pods_dir);
        self.absolute_path(map, "volumePluginDir", &mut config.volumes.plugin_dir);
        self.absolute_path(map, "cgroupRoot", &mut config.cgroups.root);
        if let Some((path, _)) = map.text("resolvConf") {
            config.volumes.resolv_conf = (!path.is_empty()).then(|| directory.join(path));
        }
        if let Some((endpoint, at)) = map.text("containerRuntimeEndpoint").filter(|(text, _)| !text.is_empty()) {
            self.endpoint(endpoint, Some(at), "containerRuntimeEndpoint", &mut config.runtime.endpoint);
        }
        match map.text("cgroupDriver") {
            Some(("cgroupfs" | "", _)) | None => {}
            Some(("systemd", _)) => config.cgroups.driver = CgroupDriver::Systemd,
            Some((other, at)) => {
                self.error(Some(at), "cgroupDriver", format!("{other:?} is neither cgroupfs nor systemd"));
            }
        }
    }

    fn limits(&mut self, map: &Map<'_>, config: &mut Config) {
        if let Some((limit, _)) = map.int("podPidsLimit") {
            config.cgroups.pod_pids_limit = Some(limit).filter(|limit| *limit > 0);
        }
        if let Some((pods, at)) = map.int("maxPods").filter(|(pods, _)| *pods != 0) {
            match u32::try_from(pods) {
                Ok(pods) => config.node.max_pods = pods,
                Err(_) => self.error(Some(at), "maxPods", format!("{pods} is not a valid number of pods")),
            }
        }
        if let Some((pods, at)) = map.int("podsPerCore") {
            match u32::try_from(pods) {
                Ok(pods) => config.node.pods_per_core = Some(pods).filter(|pods| *pods != 0),
                Err(_) => self.error(Some(at), "podsPerCore", format!("{pods} is not a valid number of pods")),
            }
        }
        self.kernel(map, config);
        config.shutdown = self.shutdown(map);
        if let Some(timeout) = self.timeout(map, "runtimeRequestTimeout", "2m") {
            config.runtime.request_timeout = timeout;
        }
        if let Some(period) = self.timeout(map, "volumeStatsAggPeriod", "1m; limits on disks are always kept") {
            config.volumes.stats_period = period;
        }
        let back_off = Map { entries: map.map("crashLoopBackOff") };
        if let Some((period, at)) = back_off.text("maxContainerRestartPeriod") {
            match go_duration::parse(period).filter(|period| (SHORTEST_PAUSE..=backoff::MAX_BACKOFF).contains(period)) {
                Some(period) => config.restarts.max_pause = period,
                None => self.error(
                    Some(at),
                    "crashLoopBackOff.maxContainerRestartPeriod",
                    format!("{period:?} is not a duration from 1s to 300s"),
                ),
            }
        }
    }

    /// Reads what the kernel should do, or has to support.
    fn kernel(&mut self, map: &Map<'_>, config: &mut Config) {
        const PERIOD: &str = "cpuCFSQuotaPeriod";
        let mut period = CPU_PERIOD;
        if let Some((text, at)) = map.text(PERIOD) {
            match go_duration::parse(text).filter(|period| CPU_PERIODS.contains(period)) {
                Some(given) => period = u64::try_from(given.as_micros()).unwrap_or(CPU_PERIOD),
                None => self.error(Some(at), PERIOD, format!("{text:?} is not a duration from 1ms to 1s")),
            }
        }
        let on = map.bool("cpuCFSQuota").is_none_or(|(on, _)| on);
        config.cgroups.cpu_quotas = if on { CpuQuotas::InPeriods(period) } else { CpuQuotas::Off };
        if let Some((fail, _)) = map.bool("failSwapOn") {
            config.node.kernel.fail_swap_on = fail;
        }
        config.node.kernel.protect_defaults = map.bool("protectKernelDefaults").map(|(protect, _)| protect);
    }

    /// A duration of 1s or more; `None` if it is not set, or zero, which is Kubernetes' default.
    pub(super) fn timeout(&mut self, map: &Map<'_>, key: &'static str, example: &str) -> Option<Duration> {
        let (text, at) = map.text(key)?;
        match go_duration::parse(text) {
            Some(Duration::ZERO) => return None,
            Some(timeout) if timeout >= SHORTEST_TIMEOUT => return Some(timeout),
            Some(_) => self.error(Some(at), key, "must be 1s or more"),
            None => self.error(Some(at), key, format!("{text:?} is not a duration such as {example}")),
        }
        None
    }

    /// The names and addresses that pods get, and the sysctls.
    fn names(&mut self, map: &Map<'_>, config: &mut Config) {
        if let Some((domain, _)) = map.text("clusterDomain") {
            domain.trim_end_matches('.').clone_into(&mut config.volumes.cluster.domain);
        }
        for (address, at) in map.texts("clusterDNS") {
            match address.parse() {
                Ok(address) => config.volumes.cluster.nameservers.push(address),
                Err(_) => self.error(Some(at), "clusterDNS", format!("{address:?} is not an IP address")),
            }
        }
        config.workers.allowed_unsafe_sysctls =
            map.texts("allowedUnsafeSysctls").into_iter().map(|(name, _)| name.to_owned()).collect();
    }

    fn memory(&mut self, map: &Map<'_>, containers: &mut ContainerSettings) {
        if let Some((single, _)) = map.bool("singleProcessOOMKill") {
            containers.single_process_oom_kill = single;
        }
        let swap = Map { entries: map.map("memorySwap") };
        match swap.text("swapBehavior") {
            None => {}
            Some(("" | "NoSwap", _)) => containers.swap_behavior = SwapBehavior::NoSwap,
            Some(("LimitedSwap", _)) => containers.swap_behavior = SwapBehavior::LimitedSwap,
            Some((other, at)) => {
                self.error(Some(at), "memorySwap.swapBehavior", format!("{other:?} is neither NoSwap nor LimitedSwap"));
            }
        }
    }

    fn logs(&mut self, map: &Map<'_>, config: &mut Config) {
        let logging = Map { entries: map.map("logging") };
        if let Some((verbosity, at)) = logging.int("verbosity") {
            match verbosity {
                // kubeadm writes this if nobody has set it.
                0 => {}
                1.. => config.verbosity = u8::try_from(verbosity).unwrap_or(u8::MAX),
                _ => self.error(Some(at), "logging.verbosity", format!("{verbosity} is less than 0")),
            }
        }
        if let Some((size, at)) = map.text("containerLogMaxSize") {
            match quantity::bytes(size).filter(|bytes| *bytes > 0) {
                Some(bytes) => config.logs.rotation.max_size = bytes,
                None => self.error(Some(at), "containerLogMaxSize", format!("{size:?} is not a size such as 10Mi")),
            }
        }
        if let Some((files, at)) = map.int("containerLogMaxFiles") {
            match u32::try_from(files).ok().filter(|files| *files > 1) {
                Some(files) => config.logs.rotation.max_files = files,
                None => self.error(Some(at), "containerLogMaxFiles", "must be 2 or more"),
            }
        }
    }

    /// As in kubelet, zero pulls per second mean no limit, and a zero burst means the default.
    fn pull_rate(&mut self, map: &Map<'_>, pulls: &mut PullSettings) {
        let mut rate = PullRate::DEFAULT;
        for (key, into) in [("registryPullQPS", &mut rate.per_second), ("registryBurst", &mut rate.burst)] {
            match map.int(key).map(|(number, at)| (u32::try_from(number), number, at)) {
                Some((Ok(0), ..)) if key == "registryBurst" => {}
                Some((Ok(number), ..)) => *into = number,
                Some((Err(_), number, at)) => self.error(Some(at), key, format!("{number} is not 0 or more")),
                None => {}
            }
        }
        pulls.rate = Some(rate).filter(|rate| rate.per_second != 0);
    }

    fn pulls(&mut self, map: &Map<'_>, pulls: &mut PullSettings) {
        self.pull_rate(map, pulls);
        let most = map.int("maxParallelImagePulls");
        // As in kubelet: one at a time, unless the number is above one or serializeImagePulls is off.
        let serial = map.bool("serializeImagePulls").map_or(most.is_none_or(|(most, _)| most <= 1), |(on, _)| on);
        match (most, serial) {
            (Some((most, at)), _) if most < 1 => {
                self.error(Some(at), "maxParallelImagePulls", format!("{most} is not 1 or more"));
            }
            (Some((most, at)), true) if most > 1 => {
                let message = format!("{most} is not possible while serializeImagePulls is true");
                self.error(Some(at), "maxParallelImagePulls", message);
            }
            (Some((most, _)), false) => pulls.max_parallel = usize::try_from(most).unwrap_or(usize::MAX),
            (None, false) => pulls.max_parallel = PULLS_WITHOUT_LIMIT,
            (_, true) => pulls.max_parallel = 1,
        }
    }

    fn guard(&mut self, map: &Map<'_>, guard: &mut GuardSettings) {
        let switch = map.bool("manifestGuard").map(|(on, at)| (if on { "on" } else { "off" }, at));
        if let Some((mode, at)) = map.text("manifestGuard").or(switch) {
            guard.mode = match mode {
                "" | "off" => None,
                "audit" => Some(GuardMode::Audit),
                "containers" => Some(GuardMode::Containers),
                "strict" => Some(GuardMode::Strict),
                _ => {
                    let message = format!("{mode:?} is unknown; use one of off, audit, containers, strict");
                    return self.error(Some(at), "manifestGuard", message);
                }
            };
        }
        if let Some((required, _)) = map.bool("manifestGuardRequired") {
            guard.required = required;
        }
        let lists =
            [("manifestGuardExecutables", &mut guard.executables), ("manifestGuardCgroups", &mut guard.cgroups)];
        for (key, into) in lists {
            let paths = map.texts(key);
            *into = paths.iter().map(|(path, _)| PathBuf::from(path)).collect();
            for (path, at) in paths.iter().filter(|(path, _)| !path.starts_with('/')) {
                self.error(Some(*at), key, format!("{path:?} is not an absolute path"));
            }
        }
        let (any, strict) =
            (!guard.executables.is_empty() || !guard.cgroups.is_empty(), guard.mode == Some(GuardMode::Strict));
        if any && !strict {
            self.warn(
                None,
                "manifestGuardExecutables",
                "and manifestGuardCgroups only have an effect with manifestGuard: strict",
            );
        }
    }

    fn secret_key(&mut self, map: &Map<'_>) -> Option<KeyLocation> {
        let (text, at) = map.text("secretEncryptionKey")?;
        let is_name = |name: &str| {
            !name.is_empty() && !name.starts_with('.') && name.bytes().all(|c| c.is_ascii_graphic() && c != b'/')
        };
        match text.strip_prefix("credential:") {
            Some(name) if is_name(name) => return Some(KeyLocation::Credential(name.to_owned())),
            None if text.starts_with('/') => return Some(KeyLocation::File(text.into())),
            _ => {}
        }
        if let Some(path) = text.strip_prefix("systemd-creds:").filter(|path| path.starts_with('/')) {
            return Some(KeyLocation::Encrypted(path.into()));
        }
        let message = format!(
            "{text:?} is not a key; use an absolute path, systemd-creds: and a path, or credential: and the name of a systemd credential"
        );
        self.error(Some(at), "secretEncryptionKey", message);
        None
    }

    /// Applies the values of LimpetConfiguration.
    pub(super) fn limpet(&mut self, map: &Map<'_>, config: &mut Config) {
        self.absolute_path(map, "rootDirectory", &mut config.root_dir);
        self.absolute_path(map, "runDirectory", &mut config.run_dir);
        self.absolute_path(map, "containerLogsDirectory", &mut config.logs.containers_dir);
        self.absolute_path(map, "registryConfigDirectory", &mut config.images.registry_config_dir);
        if map.text("persistentVolumesDirectory").is_some() {
            self.absolute_path(map, "persistentVolumesDirectory", config.volumes.claims_dir.get_or_insert_default());
        }
        self.absolute_path(map, "containerdConfigFile", &mut config.runtime.containerd_config);
        self.absolute_path(map, "cniConfigDirectory", &mut config.network.config_dir);
        let url = ["staticPodURLCAFile", "staticPodURLCertFile", "staticPodURLKeyFile"].map(|key| {
            let mut path = PathBuf::new();
            self.absolute_path(map, key, &mut path);
            Some(path).filter(|path| path.is_absolute())
        });
        [self.url.ca_file, self.url.cert_file, self.url.key_file] = url;
        self.directories(map, "cniBinaryDirectories", &mut config.network.binary_dirs);
        self.directories(map, "cdiSpecDirectories", &mut config.plugins.cdi_dirs);
        config.secret_key = self.secret_key(map);
        self.snapshotter(map, &mut config.runtime);
        self.manifest_watch(map, &mut config.sources);
        if map.text("runtimeBinary").is_some() {
            let mut binary = PathBuf::new();
            self.absolute_path(map, "runtimeBinary", &mut binary);
            config.runtime.binary = Some(binary);
        }
        if let Some((text, at)) = map.text("shim") {
            match Shim::parse(text) {
                Ok(shim) => config.runtime.shim = shim,
                Err(why) => self.error(Some(at), "shim", why),
            }
        }
        if let Some((text, at)) = map.text("shimGroup") {
            match ShimGroup::parse(text) {
                Some(group) => config.runtime.shim_group = group,
                None => self.error(Some(at), "shimGroup", format!("{text:?} is unknown; use pod or node")),
            }
        }
        self.metrics_address(map, &mut config.local);
        if let Some((address, at)) = map.text("nodeIP") {
            self.node_ip(address, Some(at), "nodeIP", &mut config.node.ip);
        }
        if let Some((on, _)) = map.bool("localImageWhenUnreachable") {
            config.pulls.local_when_unreachable = on;
        }
        if let Some((percent, at)) = map.int("probeTimerSlackPercent") {
            match u32::try_from(percent).ok().filter(|percent| *percent <= 10) {
                Some(percent) => config.workers.probe_timer_slack = percent,
                None => self.error(Some(at), "probeTimerSlackPercent", format!("{percent} is not 0 to 10")),
            }
        }
        self.pod_security(map, &mut config.sources);
        self.field_validation(map, &mut config.sources);
        if let Some((on, _)) = map.bool("ignoreOtherAgents") {
            config.node.ignore_other_agents = on;
        }
        self.socket_allowed_pods(map, &mut config.local);
        self.cri_socket(map, &mut config.local);
        self.plugins(map, &mut config.plugins);
        self.allowed_names(map, &mut config.server);
        self.runtime_classes(map, &mut config.runtime.classes);
        config.images.policy = self.image_policy(map);
        config.bundle = self.bundle(map);
        config.sources.bundle_url = self.bundle_url(map);
        self.generations(map, &mut config.generations);
        config.report = self.updates(map, &mut config.updates);
        self.services(map, &mut config.services);
        self.devices(map, &mut config.plugins.devices);
        self.guard(map, &mut config.guard);
    }

    fn snapshotter(&mut self, map: &Map<'_>, runtime: &mut RuntimeSettings) {
        if let Some((snapshotter, at)) = map.text("snapshotter") {
            if snapshotter.is_empty() {
                self.error(Some(at), "snapshotter", "is empty");
            }
            if snapshotter == "blockfile" {
                let why = "blockfile is not supported: its snapshots need loop devices; use overlayfs, native, btrfs or devmapper";
                self.error(Some(at), "snapshotter", why);
            }
            snapshotter.clone_into(&mut runtime.snapshotter);
        }
    }

    fn manifest_watch(&mut self, map: &Map<'_>, sources: &mut SourceSettings) {
        if let Some((name, at)) = map.text("manifestWatch") {
            match ManifestWatch::ALL.into_iter().find(|watch| watch.as_str() == name) {
                Some(watch) => sources.watch = watch,
                None => {
                    self.error(
                        Some(at),
                        "manifestWatch",
                        format!("{name:?} is unknown; use one of auto, inotify, fanotify, ebpf"),
                    );
                }
            }
        }
    }

    fn metrics_address(&mut self, map: &Map<'_>, local: &mut LocalSettings) {
        if let Some((address, at)) = map.text("metricsAddress") {
            match address.parse::<SocketAddr>() {
                Ok(address) if address.ip().is_loopback() => local.metrics_address = Some(address),
                Ok(_) => self.error(
                    Some(at),
                    "metricsAddress",
                    format!("{address} is not on loopback; only 127.0.0.0/8 and [::1] are allowed"),
                ),
                Err(_) => {
                    self.error(
                        Some(at),
                        "metricsAddress",
                        format!("{address:?} is not an address such as 127.0.0.1:10249"),
                    );
                }
            }
        }
    }

    fn socket_allowed_pods(&mut self, map: &Map<'_>, local: &mut LocalSettings) {
        for (text, at) in map.texts("socketAllowedPods") {
            match text.split_once('/').and_then(|(namespace, name)| PodKey::parse(namespace, name).ok()) {
                Some(key) => local.allowed_pods.push(key),
                None => self.error(Some(at), "socketAllowedPods", format!("{text:?} is not namespace/name of a pod")),
            }
        }
    }

    fn cri_socket(&mut self, map: &Map<'_>, local: &mut LocalSettings) {
        const KEY: &str = "criSocket";
        let switch = map.bool(KEY).map(|(on, at)| (if on { "" } else { "off" }, at));
        let Some((text, at)) = map.text(KEY).or(switch) else { return };
        local.cri_socket = match text.strip_prefix("unix://").unwrap_or(text) {
            "" => CriSocket::InRunDirectory,
            "off" => CriSocket::Off,
            path if path.starts_with('/') => CriSocket::At(PathBuf::from(path)),
            _ => return self.error(Some(at), KEY, format!("{text:?} is neither off nor an absolute path")),
        };
    }

    fn directories(&mut self, map: &Map<'_>, key: &'static str, into: &mut Vec<PathBuf>) {
        let directories = map.texts(key);
        if !directories.is_empty() {
            *into = directories.iter().map(|(path, _)| PathBuf::from(path)).collect();
            for (path, at) in directories.iter().filter(|(path, _)| !path.starts_with('/')) {
                self.error(Some(*at), key, format!("{path:?} is not an absolute path"));
            }
        }
    }

    fn plugins(&mut self, map: &Map<'_>, plugins: &mut PluginSettings) {
        const KEY: &str = "pluginDirectory";
        let switch = map.bool(KEY).map(|(on, at)| (if on { "" } else { "off" }, at));
        if let Some((text, at)) = map.text(KEY).or(switch) {
            match text {
                "" => plugins.directory = PluginDirectory::OfKubelet,
                "off" => plugins.directory = PluginDirectory::Off,
                path if path.starts_with('/') => plugins.directory = PluginDirectory::At(PathBuf::from(path)),
                _ => self.error(Some(at), KEY, format!("{text:?} is neither off nor an absolute path")),
            }
        }
    }
}
