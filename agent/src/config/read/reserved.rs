//! `kubeReserved` and `systemReserved`: what of the node is not available to pods, and which cgroups are limited for
//! that.

use super::super::RunFlags;
use super::super::tree::{Map, Position, Value};
use super::ConfigDiagnostics;
use limpet_model::pod::quantity;
use limpet_model::pod::requests::Resource;
use limpet_node::settings::{NodeSettings, Reservation, Reserved, ReservedCgroup};

const ENFORCE: &str = "enforceNodeAllocatable";
const PODS: &str = "pods";
const NONE: &str = "none";
/// The words for the node's own processes: for limiting their cgroup, for limiting only its processors, and the key
/// with the cgroup.
const SYSTEM: [&str; 3] = ["system-reserved", "system-reserved-compressible", "systemReservedCgroup"];
const KUBE: [&str; 3] = ["kube-reserved", "kube-reserved-compressible", "kubeReservedCgroup"];
/// kubelet's name of process ids.
const PID: &str = "pid";

impl ConfigDiagnostics {
    /// Reads the map `key` of KubeletConfiguration.
    pub(super) fn reserved(&mut self, map: &Map<'_>, key: &'static str) -> Reservation {
        let mut reserved = Reservation::default();
        for entry in map.map(key) {
            let (path, at) = (format!("{key}.{}", entry.key), Some(entry.node.position));
            match &entry.node.value {
                Value::Text(text) => self.reserve(&mut reserved, &entry.key, text, at, &path),
                Value::Null => {
                    self.error(at, &path, "has no value; write a quantity such as 200m or 150Mi, or remove the key");
                }
                other => {
                    self.error(at, &path, format!("expected text, found {}; write it in quotes", other.kind()));
                }
            }
        }
        reserved
    }

    /// Reads which cgroups are limited to their reserved amounts.
    pub(super) fn enforcement(&mut self, map: &Map<'_>, node: &mut NodeSettings) {
        // As in kubelet, an empty list enforces nothing.
        let Some(names) = map.list(ENFORCE) else { return };
        node.limit_all_pods = names.iter().any(|(name, _)| *name == PODS);
        let valid =
            || [PODS, NONE].into_iter().chain([SYSTEM, KUBE].into_iter().flat_map(|[all, part, _]| [all, part]));
        for (index, (name, at)) in names.iter().enumerate() {
            if names[..index].iter().any(|(before, _)| before == name) {
                self.error(Some(*at), ENFORCE, format!("{name:?} is listed twice"));
            } else if *name == NONE && names.len() > 1 {
                self.error(Some(*at), ENFORCE, "\"none\" cannot be combined with others");
            } else if !valid().any(|known| known == *name) {
                let message = format!("{name:?} is unknown; use one of {}", valid().collect::<Vec<_>>().join(", "));
                self.error(Some(*at), ENFORCE, message);
            }
        }
        node.reserved.kube_cgroup = self.reserved_cgroup(map, &names, KUBE);
        node.reserved.system_cgroup = self.reserved_cgroup(map, &names, SYSTEM);
    }

    fn reserved_cgroup(
        &mut self,
        map: &Map<'_>,
        names: &[(&str, Position)],
        [all, part, key]: [&'static str; 3],
    ) -> Option<ReservedCgroup> {
        let named = |wanted: &str| names.iter().find(|(name, _)| *name == wanted);
        let (name, at) = named(all).or(named(part))?;
        if let (Some(_), Some((_, at))) = (named(all), named(part)) {
            self.error(Some(*at), ENFORCE, format!("{part:?} and {all:?} exclude each other; use one of them"));
        }
        match map.text(key).filter(|(group, _)| !group.is_empty()) {
            Some((group, _)) => Some(ReservedCgroup { group: group.into(), compressible_only: *name == part }),
            None => {
                self.error(Some(*at), ENFORCE, format!("{name:?} needs {key}, the cgroup to limit"));
                None
            }
        }
    }

    /// Applies the flags, each of which replaces its key.
    pub(super) fn reserved_flags(&mut self, flags: &RunFlags, reserved: &mut Reserved) {
        if !flags.kube_reserved.is_empty() {
            reserved.kube = self.reserved_flag(&flags.kube_reserved, "--kube-reserved");
        }
        if !flags.system_reserved.is_empty() {
            reserved.system = self.reserved_flag(&flags.system_reserved, "--system-reserved");
        }
    }

    fn reserved_flag(&mut self, texts: &[String], flag: &'static str) -> Reservation {
        let mut reserved = Reservation::default();
        for text in texts.iter().filter(|text| !text.is_empty()) {
            match text.split_once('=') {
                Some((name, amount)) => self.reserve(&mut reserved, name.trim(), amount.trim(), None, flag),
                None => {
                    self.error(None, flag, format!("{text:?} is not a resource and its amount such as memory=150Mi"))
                }
            }
        }
        reserved
    }

    fn reserve(&mut self, reserved: &mut Reservation, name: &str, text: &str, at: Option<Position>, path: &str) {
        let resource = Resource::BASIC.into_iter().find(|resource| resource.name() == name);
        if resource.is_none() && name != PID {
            let message = format!("{name:?} cannot be reserved; cpu, memory, ephemeral-storage and pid can");
            return self.error(at, path, message);
        }
        let Some(amount) = quantity::parse(text).ok().filter(|amount| *amount >= quantity::Amount::ZERO) else {
            return self.error(at, path, format!("{text:?} is not a quantity such as 200m or 150Mi"));
        };
        match resource {
            Some(resource) => reserved.resources[resource] = amount,
            None => reserved.pids = u64::try_from(amount.units()).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{KUBELET_HEAD, load_text};
    use super::*;

    #[test]
    fn reservations_add_up_and_a_flag_replaces_its_key() {
        let text = format!(
            "{KUBELET_HEAD}kubeReserved: {{cpu: 200m, memory: 100Mi}}\nsystemReserved: {{cpu: 300m, pid: '100', ephemeral-storage: 1Gi}}\n"
        );
        let numbers = |flags: &[&str]| {
            let reserved = load_text(&text, flags).0.map(|config| config.node.reserved).unwrap_or_default();
            let sum = reserved.kube.resources.plus(&reserved.system.resources);
            Resource::BASIC.map(|resource| resource.number(sum[resource]))
        };
        assert_eq!(numbers(&[]), [500, 100 << 20, 1 << 30]);
        assert_eq!(numbers(&["--kube-reserved=cpu=1,memory=50Mi"]), [1_300, 50 << 20, 1 << 30]);
        assert_eq!(numbers(&["--system-reserved=memory=50Mi"]), [200, 150 << 20, 0]);
        let pids = |flags: &[&str]| {
            let reserved = load_text(&text, flags).0.map(|config| config.node.reserved).unwrap_or_default();
            (reserved.kube.pids, reserved.system.pids)
        };
        assert_eq!((pids(&[]), pids(&["--kube-reserved=pid=7,cpu=1"])), ((0, 100), (7, 100)));
    }

    #[test]
    fn mistakes_name_the_key_and_the_remedy() {
        let text =
            format!("{KUBELET_HEAD}kubeReserved: {{gpu: '1', cpu: -1m}}\nsystemReserved: {{memory: 5, cpu: }}\n");
        let faults = load_text(&text, &["--kube-reserved=cpu"]).0.err().unwrap_or_default();
        for expected in [
            "kubeReserved.gpu: \"gpu\" cannot be reserved; cpu, memory, ephemeral-storage and pid can",
            "kubeReserved.cpu: \"-1m\" is not a quantity such as 200m or 150Mi",
            "systemReserved.memory: expected text, found",
            "systemReserved.cpu: has no value; write a quantity such as 200m or 150Mi, or remove the key",
            "flags: --kube-reserved: \"cpu\" is not a resource and its amount such as memory=150Mi",
        ] {
            assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}\n{faults:#?}");
        }
    }

    #[test]
    fn all_pods_are_limited_unless_nothing_is_enforced() {
        let read = |list: &str| load_text(&format!("{KUBELET_HEAD}enforceNodeAllocatable: {list}\n"), &[]);
        for (list, limited) in [("[]", false), ("null", true), ("[pods]", true), ("[none]", false)] {
            assert_eq!(read(list).0.map(|config| config.node.limit_all_pods), Ok(limited), "{list}");
        }
        for (list, error) in [
            ("[pods, none]", "\"none\" cannot be combined with others"),
            ("[pods, pods]", "\"pods\" is listed twice"),
            ("[qos]", "\"qos\" is unknown; use one of pods, none, system-reserved, "),
            ("[kube-reserved]", "\"kube-reserved\" needs kubeReservedCgroup, the cgroup to limit"),
            (
                "[system-reserved, system-reserved-compressible]",
                "-compressible\" and \"system-reserved\" exclude each other; use one",
            ),
        ] {
            let errors = read(list).0.map(drop).map_err(|errors| format!("{errors:?}").replace("\\\"", "\""));
            assert!(errors.as_ref().is_err_and(|errors| errors.contains(error)), "{list}: {errors:?}");
        }
    }

    #[test]
    fn cgroups_of_the_nodes_own_processes_are_limited_where_the_list_names_them() {
        let read = |list: &str| {
            let text = format!(
                "{KUBELET_HEAD}systemReservedCgroup: /system.slice\nkubeReservedCgroup: /runtime.slice\n\
                 enforceNodeAllocatable: {list}\n"
            );
            let reserved = load_text(&text, &[]).0.map(|config| config.node.reserved).unwrap_or_default();
            (reserved.system_cgroup, reserved.kube_cgroup)
        };
        let cgroup = |group: &str, compressible_only| Some(ReservedCgroup { group: group.into(), compressible_only });
        assert_eq!(read("[pods]"), (None, None));
        assert_eq!(read("[kube-reserved-compressible]"), (None, cgroup("/runtime.slice", true)));
        assert_eq!(read("[pods, system-reserved]"), (cgroup("/system.slice", false), None));
    }
}
