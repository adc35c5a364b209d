//! kubelet's flags that limpet has no flag for. Most are deprecated in favour of a key of the KubeletConfiguration, and
//! are still used in many unit files: each sets its key. The others are ignored, with one warning.

use std::ffi::OsString;

use super::strconv::{boolean, integer};
use super::tree::{Entry, Node, Position, Value};

/// How the text of a flag is written as the value of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Number,
    Text,
    /// A boolean, which is true if it has no value.
    Switch,
    /// Texts with commas between them; the flag may be repeated.
    List,
    /// `a=b,c=d`; the flag may be repeated.
    Pairs,
    /// `a=true,b=false`; the flag may be repeated.
    Switches,
    /// `memory.available<100Mi,…`; the flag may be repeated.
    Thresholds,
}

/// A flag, its key and its form (`AddKubeletConfigFlags` in `cmd/kubelet/app/options/options.go`, Kubernetes 1.37).
const OF_KEYS: &[(&str, &str, Form)] = &[
    ("allowed-unsafe-sysctls", "allowedUnsafeSysctls", Form::List),
    ("cgroup-driver", "cgroupDriver", Form::Text),
    ("cgroup-root", "cgroupRoot", Form::Text),
    ("cgroups-per-qos", "cgroupsPerQOS", Form::Switch),
    ("cluster-dns", "clusterDNS", Form::List),
    ("cluster-domain", "clusterDomain", Form::Text),
    ("container-log-max-files", "containerLogMaxFiles", Form::Number),
    ("container-log-max-size", "containerLogMaxSize", Form::Text),
    ("contention-profiling", "enableContentionProfiling", Form::Switch),
    ("cpu-cfs-quota", "cpuCFSQuota", Form::Switch),
    ("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", Form::Text),
    ("cpu-manager-policy", "cpuManagerPolicy", Form::Text),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions", Form::Pairs),
    ("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", Form::Text),
    ("enable-controller-attach-detach", "enableControllerAttachDetach", Form::Switch),
    ("enforce-node-allocatable", "enforceNodeAllocatable", Form::List),
    ("event-burst", "eventBurst", Form::Number),
    ("event-qps", "eventRecordQPS", Form::Number),
    ("eviction-hard", "evictionHard", Form::Thresholds),
    ("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Form::Number),
    ("eviction-minimum-reclaim", "evictionMinimumReclaim", Form::Pairs),
    ("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Form::Text),
    ("eviction-soft", "evictionSoft", Form::Thresholds),
    ("eviction-soft-grace-period", "evictionSoftGracePeriod", Form::Pairs),
    ("fail-cgroupv1", "failCgroupV1", Form::Switch),
    ("fail-swap-on", "failSwapOn", Form::Switch),
    ("feature-gates", "featureGates", Form::Switches),
    ("file-check-frequency", "fileCheckFrequency", Form::Text),
    ("hairpin-mode", "hairpinMode", Form::Text),
    ("image-gc-high-threshold", "imageGCHighThresholdPercent", Form::Number),
    ("image-gc-low-threshold", "imageGCLowThresholdPercent", Form::Number),
    ("image-service-endpoint", "imageServiceEndpoint", Form::Text),
    ("iptables-drop-bit", "iptablesDropBit", Form::Number),
    ("iptables-masquerade-bit", "iptablesMasqueradeBit", Form::Number),
    ("kernel-memcg-notification", "kernelMemcgNotification", Form::Switch),
    ("kube-api-burst", "kubeAPIBurst", Form::Number),
    ("kube-api-content-type", "contentType", Form::Text),
    ("kube-api-qps", "kubeAPIQPS", Form::Number),
    ("kube-reserved-cgroup", "kubeReservedCgroup", Form::Text),
    ("kubelet-cgroups", "kubeletCgroups", Form::Text),
    ("local-storage-capacity-isolation", "localStorageCapacityIsolation", Form::Switch),
    ("make-iptables-util-chains", "makeIPTablesUtilChains", Form::Switch),
    ("max-open-files", "maxOpenFiles", Form::Number),
    ("max-pods", "maxPods", Form::Number),
    ("memory-manager-policy", "memoryManagerPolicy", Form::Text),
    ("minimum-image-ttl-duration", "imageMinimumGCAge", Form::Text),
    ("node-status-max-images", "nodeStatusMaxImages", Form::Number),
    ("node-status-update-frequency", "nodeStatusUpdateFrequency", Form::Text),
    ("oom-score-adj", "oomScoreAdj", Form::Number),
    ("pod-cidr", "podCIDR", Form::Text),
    ("pod-max-pids", "podPidsLimit", Form::Number),
    ("pods-per-core", "podsPerCore", Form::Number),
    ("protect-kernel-defaults", "protectKernelDefaults", Form::Switch),
    ("qos-reserved", "qosReserved", Form::Pairs),
    ("registry-burst", "registryBurst", Form::Number),
    ("registry-qps", "registryPullQPS", Form::Number),
    ("reserved-cpus", "reservedSystemCPUs", Form::Text),
    ("resolv-conf", "resolvConf", Form::Text),
    ("runonce", "runOnce", Form::Switch),
    ("runtime-request-timeout", "runtimeRequestTimeout", Form::Text),
    ("seccomp-default", "seccompDefault", Form::Switch),
    ("serialize-image-pulls", "serializeImagePulls", Form::Switch),
    ("sync-frequency", "syncFrequency", Form::Text),
    ("show-hidden-metrics-for-version", "showHiddenMetricsForVersion", Form::Text),
    ("system-cgroups", "systemCgroups", Form::Text),
    ("system-reserved-cgroup", "systemReservedCgroup", Form::Text),
    ("topology-manager-policy", "topologyManagerPolicy", Form::Text),
    ("topology-manager-policy-options", "topologyManagerPolicyOptions", Form::Pairs),
    ("topology-manager-scope", "topologyManagerScope", Form::Text),
    ("volume-plugin-dir", "volumePluginDir", Form::Text),
    ("volume-stats-agg-period", "volumeStatsAggPeriod", Form::Text),
];

/// Ignored flags, and whether each is a switch. The last ones are of older kubelets, of klog and of cAdvisor.
const WITHOUT_EFFECT: &[(&str, bool)] = &[
    ("exit-on-lock-contention", true),
    ("experimental-allocatable-ignore-eviction", true),
    ("experimental-mounter-path", false),
    ("housekeeping-interval", false),
    ("lock-file", false),
    ("log-flush-frequency", false),
    ("log-json-info-buffer-size", false),
    ("log-json-split-stream", true),
    ("log-text-info-buffer-size", false),
    ("log-text-split-stream", true),
    ("logging-format", false),
    ("maximum-dead-containers", false),
    ("maximum-dead-containers-per-container", false),
    ("minimum-container-ttl-duration", false),
    ("reserved-memory", false),
    ("runtime-cgroups", false),
    ("vmodule", false),
    ("add-dir-header", true),
    ("alsologtostderr", true),
    ("cloud-config", false),
    ("cni-bin-dir", false),
    ("cni-conf-dir", false),
    ("container-runtime", false),
    ("containerd", false),
    ("global-housekeeping-interval", false),
    ("keep-terminated-pod-volumes", true),
    ("log-backtrace-at", false),
    ("log-dir", false),
    ("log-file", false),
    ("log-file-max-size", false),
    ("logtostderr", true),
    ("network-plugin", false),
    ("one-output", true),
    ("pod-infra-container-image", false),
    ("register-schedulable", true),
    ("skip-headers", true),
    ("skip-log-headers", true),
    ("stderrthreshold", false),
];

/// The kubelet flags of a command line: name and value, `None` if the value is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletFlags(Vec<(String, Option<String>)>);

impl KubeletFlags {
    /// Takes these flags out of the arguments of `limpet run`; those of other commands stay as they are. In the names of
    /// all flags of `run` an underscore is a hyphen.
    pub fn take(arguments: impl IntoIterator<Item = OsString>) -> (Vec<OsString>, Self) {
        let (mut left, mut taken): (Vec<OsString>, _) = (Vec::new(), Vec::new());
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let flag = argument.to_str().filter(|_| is_run(&left)).and_then(|text| text.strip_prefix("--"));
            let Some((name, text)) = flag.map(|flag| flag.split_once('=').map_or((flag, None), |(a, b)| (a, Some(b))))
            else {
                left.push(argument);
                continue;
            };
            let name = name.replace('_', "-");
            let value = match (is_switch(&name), text) {
                (None, _) => {
                    left.push(text.map_or_else(|| format!("--{name}"), |text| format!("--{name}={text}")).into());
                    continue;
                }
                (_, Some(text)) => Some(text.to_owned()),
                (Some(true), None) => Some("true".to_owned()),
                (Some(false), None) => arguments.next().map(|text| text.to_string_lossy().into_owned()),
            };
            taken.push((name, value));
        }
        (left, Self(taken))
    }

    /// Name and text of each flag, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, text)| (name.as_str(), text.as_deref().unwrap_or_default()))
    }

    /// The flags that need a value and have none.
    pub(super) fn without_value(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter(|(_, text)| text.is_none()).map(|(name, _)| format!("--{name}"))
    }

    /// The flags without effect, each once.
    pub(super) fn without_effect(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for (name, _) in self.iter() {
            let flag = format!("--{name}");
            if WITHOUT_EFFECT.iter().any(|(other, _)| *other == name) && !names.contains(&flag) {
                names.push(flag);
            }
        }
        names
    }

    /// The other flags as entries of a KubeletConfiguration, at that position.
    pub(super) fn entries(&self, position: Position) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        for (name, text) in self.iter() {
            let Some((_, key, form)) = OF_KEYS.iter().find(|(flag, ..)| *flag == name) else { continue };
            let value = value(*form, text, position);
            match entries.iter_mut().find(|entry| entry.key == *key) {
                Some(entry) => extend(&mut entry.node.value, value),
                None => {
                    entries.push(Entry { key: (*key).to_owned(), position, node: Node { position, value } });
                }
            }
        }
        entries
    }
}

/// The flag whose key, or a part of its value, `path` names.
pub(super) fn flag_of(path: &str) -> Option<String> {
    let key = path.split(['.', '[']).next()?;
    let (flag, ..) = OF_KEYS.iter().find(|(_, flag_key, _)| *flag_key == key)?;
    Some(format!("--{flag}"))
}

/// Whether the command is `run`: the first argument after the program that is neither a flag nor the value of `--socket`.
fn is_run(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter().skip(1).map(|word| word.to_str().unwrap_or_default());
    while let Some(word) = words.next() {
        match word {
            "--socket" => _ = words.next(),
            flag if flag.starts_with('-') => {}
            command => return command == "run",
        }
    }
    false
}

/// Whether the flag is a switch; `None` if it is not one of kubelet's.
fn is_switch(name: &str) -> Option<bool> {
    let of_key = OF_KEYS.iter().find(|(flag, ..)| *flag == name).map(|(_, _, form)| *form == Form::Switch);
    of_key.or_else(|| WITHOUT_EFFECT.iter().find(|(flag, _)| *flag == name).map(|(_, switch)| *switch))
}

/// The value of a flag. Text that does not have the form stays text, which the check of the key's type rejects.
fn value(form: Form, text: &str, position: Position) -> Value {
    let as_text = || Value::Text(text.to_owned());
    let node = |value: Value| Node { position, value };
    let pairs = |separator: char, value: fn(&str) -> Value| {
        let pair = |pair: &str| {
            let (key, text) = pair.split_once(separator)?;
            Some(Entry { key: key.trim().to_owned(), position, node: node(value(text.trim())) })
        };
        parts(text).map(pair).collect::<Option<Vec<_>>>().map_or_else(as_text, Value::Map)
    };
    let plain = |text: &str| Value::Text(text.to_owned());
    match form {
        Form::Text => as_text(),
        Form::Number => integer(text).map_or_else(as_text, Value::Int),
        Form::Switch => switch(text),
        Form::List => Value::List(parts(text).map(|part| node(plain(part))).collect()),
        Form::Pairs => pairs('=', plain),
        Form::Switches => pairs('=', switch),
        Form::Thresholds => pairs('<', plain),
    }
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn switch(text: &str) -> Value {
    boolean(text).map_or_else(|| Value::Text(text.to_owned()), Value::Bool)
}

/// The value of a repeated flag: lists and maps grow, anything else is replaced.
fn extend(value: &mut Value, more: Value) {
    match (value, more) {
        (Value::List(items), Value::List(more)) => items.extend(more),
        (Value::Map(entries), Value::Map(more)) => {
            entries.retain(|entry| !more.iter().any(|other| other.key == entry.key));
            entries.extend(more);
        }
        (value, more) => *value = more,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::keys::KUBELET;

    fn taken(line: &str) -> (String, KubeletFlags) {
        let (left, flags) = KubeletFlags::take(line.split(' ').map(OsString::from));
        (left.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" "), flags)
    }

    #[test]
    fn every_key_is_one_of_the_configuration() {
        for (flag, key, _) in OF_KEYS {
            assert!(KUBELET.iter().any(|known| known.name == *key), "{flag}: {key}");
            assert!(!WITHOUT_EFFECT.iter().any(|(other, _)| other == flag), "{flag}");
        }
    }

    #[test]
    fn flags_are_taken_out_of_limpet_run_alone() {
        let line = "limpet --socket run run --pod_infra_container_image=pause:3 --v=3 --max-pods 20 --fail-swap-on \
                    --container-runtime remote --kubeconfig a";
        let (left, flags) = taken(line);
        assert_eq!(left, "limpet --socket run run --v=3 --kubeconfig a");
        assert_eq!(flags.without_effect(), ["--pod-infra-container-image", "--container-runtime"]);
        let names: Vec<_> = flags.entries(Position::default()).into_iter().map(|entry| entry.key).collect();
        assert_eq!(names, ["maxPods", "failSwapOn"]);
        for other in ["limpet logs --max-pods 20", "limpet --socket run logs run --max-pods 20"] {
            assert_eq!(taken(other), (other.to_owned(), KubeletFlags::default()));
        }
    }

    #[test]
    fn a_list_may_be_empty() {
        let (_, flags) = taken("limpet run --enforce-node-allocatable=");
        let entries = flags.entries(Position::default());
        let empty = |value: &Value| matches!(value, Value::List(items) if items.is_empty());
        assert!(entries.len() == 1 && empty(&entries[0].node.value), "{entries:?}");
    }

    #[test]
    fn repeated_lists_and_maps_grow() {
        let (_, flags) = taken(
            "limpet run --cluster-dns=1.1.1.1,2.2.2.2 --cluster-dns=3.3.3.3 --max-pods=1 --max-pods=2 \
                                --feature-gates=A=true --feature-gates=A=false,B=1 --eviction-hard=memory.available<5%",
        );
        let shown: Vec<String> =
            flags.entries(Position::default()).iter().map(|entry| format!("{:?}", entry.node.value)).collect();
        assert!(shown[0].contains("1.1.1.1") && shown[0].contains("3.3.3.3"), "{shown:?}");
        assert_eq!(shown[1], "Int(2)");
        let gate = |name: &str, on: bool| {
            let gate = shown[2].split("key: ").find(|part| part.starts_with(&format!("\"{name}\"")));
            gate.is_some_and(|part| part.contains(&format!("Bool({on})")))
        };
        assert!(gate("A", false) && gate("B", true), "{shown:?}");
        assert!(shown[3].contains("memory.available") && shown[3].contains("5%"), "{shown:?}");
    }
}
