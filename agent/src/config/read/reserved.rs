//! `kubeReserved` and `systemReserved`: what of the node is not for pods.

use super::super::tree::{Map, Position, Value};
use super::super::{Config, Reservation, Reserved, RunFlags};
use super::Judge;
use limpet_model::pod::quantity;
use limpet_model::pod::requests::Resource;

const ENFORCE: &str = "enforceNodeAllocatable";
const PODS: &str = "pods";
const NONE: &str = "none";
/// kubelet limits the cgroups of the node's own processes, too.
const OF_RESERVED: [&str; 4] =
    ["system-reserved", "kube-reserved", "system-reserved-compressible", "kube-reserved-compressible"];
/// kubelet's name of process ids.
const PID: &str = "pid";

impl Judge {
    /// Reads the map `key` of KubeletConfiguration.
    pub(super) fn reserved(&mut self, map: &Map<'_>, key: &'static str) -> Reservation {
        let mut reserved = Reservation::default();
        for entry in map.map(key) {
            let (path, at) = (format!("{key}.{}", entry.key), Some(entry.node.position));
            match &entry.node.value {
                Value::Text(text) => self.reserve(&mut reserved, &entry.key, text, at, &path),
                other => {
                    self.error(at, &path, format!("expected text, found {}; write it in quotes", other.kind()));
                }
            }
        }
        reserved
    }

    /// Reads which cgroups are limited to what they are to have.
    pub(super) fn enforcement(&mut self, map: &Map<'_>, config: &mut Config) {
        // An empty list enforces nothing, as under kubelet.
        let Some(names) = map.list(ENFORCE) else { return };
        config.limit_all_pods = names.iter().any(|(name, _)| *name == PODS);
        for (name, at) in &names {
            match *name {
                PODS => {}
                NONE if names.len() == 1 => {}
                NONE => self.error(Some(*at), ENFORCE, "\"none\" has to be alone"),
                name if OF_RESERVED.contains(&name) => {
                    let message = format!("{name:?} has no effect: limpet limits the cgroup of the pods alone");
                    self.warn(Some(*at), ENFORCE, message);
                }
                name => {
                    let message = format!("{name:?} is none of {PODS}, {NONE}, {}", OF_RESERVED.join(", "));
                    self.error(Some(*at), ENFORCE, message);
                }
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
            let reserved = load_text(&text, flags).0.map(|config| config.reserved).unwrap_or_default();
            let sum = reserved.kube.resources.plus(&reserved.system.resources);
            Resource::BASIC.map(|resource| resource.number(sum[resource]))
        };
        assert_eq!(numbers(&[]), [500, 100 << 20, 1 << 30]);
        assert_eq!(numbers(&["--kube-reserved=cpu=1,memory=50Mi"]), [1_300, 50 << 20, 1 << 30]);
        assert_eq!(numbers(&["--system-reserved=memory=50Mi"]), [200, 150 << 20, 0]);
        let pids = |flags: &[&str]| {
            let reserved = load_text(&text, flags).0.map(|config| config.reserved).unwrap_or_default();
            (reserved.kube.pids, reserved.system.pids)
        };
        assert_eq!((pids(&[]), pids(&["--kube-reserved=pid=7,cpu=1"])), ((0, 100), (7, 100)));
    }

    #[test]
    fn mistakes_name_the_key_and_the_remedy() {
        let text = format!("{KUBELET_HEAD}kubeReserved: {{gpu: '1', cpu: -1m}}\nsystemReserved: {{memory: 5}}\n");
        let faults = load_text(&text, &["--kube-reserved=cpu"]).0.err().unwrap_or_default();
        for expected in [
            "kubeReserved.gpu: \"gpu\" cannot be reserved; cpu, memory, ephemeral-storage and pid can",
            "kubeReserved.cpu: \"-1m\" is not a quantity such as 200m or 150Mi",
            "systemReserved.memory: expected text, found",
            "flags: --kube-reserved: \"cpu\" is not a resource and its amount such as memory=150Mi",
        ] {
            assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}\n{faults:#?}");
        }
    }

    #[test]
    fn all_pods_are_limited_unless_nothing_is_enforced() {
        let read = |list: &str| load_text(&format!("{KUBELET_HEAD}enforceNodeAllocatable: {list}\n"), &[]);
        for (list, limited) in
            [("[]", false), ("null", true), ("[pods]", true), ("[pods, kube-reserved]", true), ("[none]", false)]
        {
            assert_eq!(read(list).0.map(|config| config.limit_all_pods), Ok(limited), "{list}");
        }
        let warned = format!("{:?}", read("[pods, kube-reserved]").1);
        assert!(warned.contains("\\\"kube-reserved\\\" has no effect"), "{warned}");
        for (list, error) in
            [("[pods, none]", "\"none\" has to be alone"), ("[qos]", "\"qos\" is none of pods, none, ")]
        {
            let errors = read(list).0.map(drop).map_err(|errors| format!("{errors:?}").replace("\\\"", "\""));
            assert!(errors.as_ref().is_err_and(|errors| errors.contains(error)), "{list}: {errors:?}");
        }
    }
}
