//! The settings of a node that is part of a cluster, with kubelet's checks; its kubeconfig is read once.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::flags::RunFlags;
use super::super::tree::{Map, Position};
use super::ConfigDiagnostics;
use limpet_apiserver_client::kubeconfig;
use limpet_cluster::settings::ClusterSettings;
use limpet_core::node_object::NodeTaint;
use limpet_model::go_duration;
use limpet_model::node::NodeAddresses;
use limpet_model::pod::is_dns_subdomain;

/// A lease is renewed after a quarter of its duration, so a shorter one would mean more than a request per second.
const SHORTEST_LEASE: i64 = 4;

/// The labels of Kubernetes' own domains that a node may set, beside those below [`OWN_DOMAINS`] (kubelet's
/// `KubeletLabels`).
const OWN_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// The domains in which a node may set any label.
const OWN_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Whether the apiserver's admission NodeRestriction refuses a node that sets the label.
fn is_reserved(key: &str) -> bool {
    let is_below = |domain: &str, parent: &str| {
        domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let Some((domain, _)) = key.split_once('/') else { return false };
    let is_kubernetes = ["kubernetes.io", "k8s.io"].iter().any(|parent| is_below(domain, parent));
    is_kubernetes && !OWN_LABELS.contains(&key) && !OWN_DOMAINS.iter().any(|parent| is_below(domain, parent))
}

impl ConfigDiagnostics {
    /// Applies the values of KubeletConfiguration.
    pub(super) fn cluster(&mut self, map: &Map<'_>, cluster: &mut ClusterSettings) {
        if let Some((register, _)) = map.bool("registerNode") {
            cluster.register = register;
        }
        if let Some((rotate, _)) = map.bool("rotateCertificates") {
            cluster.rotate_certificates = rotate;
        }
        cluster.provider_id = map.text("providerID").map(|(id, _)| id.to_owned()).filter(|id| !id.is_empty());
        if let Some((every, at)) = self.frequency(map, "nodeStatusUpdateFrequency") {
            cluster.frequencies.correction = every;
            // If a file lacks the other key, it sets both, as in kubelet; a flag does not.
            if at.at.is_some() {
                cluster.frequencies.report = every;
            }
        }
        if let Some((every, _)) = self.frequency(map, "nodeStatusReportFrequency") {
            cluster.frequencies.report = every;
        }
        if let Some((seconds, at)) = map.int("nodeLeaseDurationSeconds").filter(|(seconds, _)| *seconds != 0) {
            match u64::try_from(seconds).ok().filter(|_| seconds >= SHORTEST_LEASE) {
                Some(seconds) => cluster.lease_duration = Duration::from_secs(seconds),
                None => self.error(Some(at), "nodeLeaseDurationSeconds", format!("must be {SHORTEST_LEASE} or more")),
            }
        }
        if let Some((most, at)) = map.int("nodeStatusMaxImages") {
            match usize::try_from(most) {
                Ok(most) => cluster.max_images = Some(most),
                Err(_) if most == -1 => cluster.max_images = None,
                Err(_) => self.error(Some(at), "nodeStatusMaxImages", "must be -1, for all of them, or more"),
            }
        }
        for (taint, at) in map.maps("registerWithTaints") {
            let text = |name| taint.text(name).map(|(text, _)| text).unwrap_or_default();
            match new_taint(text("key"), text("value"), text("effect")) {
                Ok(taint) => cluster.taints.push(taint),
                Err(message) => self.error(Some(at), "registerWithTaints", message),
            }
        }
    }

    /// How often something is sent; Kubernetes' zero is its default.
    fn frequency(&mut self, map: &Map<'_>, key: &'static str) -> Option<(Duration, Position)> {
        let (text, at) = map.text(key)?;
        match go_duration::parse(text) {
            Some(Duration::ZERO) => None,
            Some(every) if every >= Duration::from_secs(1) => Some((every, at)),
            Some(_) => {
                self.warn(Some(at), key, format!("{text:?} is less than 1s; 1s is used"));
                Some((Duration::from_secs(1), at))
            }
            None => {
                self.error(Some(at), key, format!("{text:?} is not a duration such as 5m"));
                None
            }
        }
    }

    /// The node's only address, or two of different families, the primary one first. `::` or `0.0.0.0` stands for the
    /// addresses that it has, with that family first.
    pub(super) fn node_ip(&mut self, text: &str, at: Option<Position>, key: &str, into: &mut NodeAddresses) {
        let mut all: Vec<IpAddr> = Vec::new();
        for address in text.split(',').map(str::trim) {
            match address.parse::<IpAddr>() {
                Ok(ip) if ip.is_unspecified() && text.contains(',') => {
                    return self.error(at, key, format!("{ip} is not allowed together with other addresses"));
                }
                Ok(ip) if !ip.is_loopback() && !ip.is_multicast() => all.push(ip),
                _ => return self.error(at, key, format!("{address:?} is not an address of a node")),
            }
        }
        *into = all.iter().copied().collect();
        if into.iter().count() != all.len() {
            self.error(at, key, format!("{text:?} has more than one address of a family"));
        }
    }

    /// Applies the flags, and reads the kubeconfig.
    pub(super) fn cluster_flags(&mut self, flags: &RunFlags, cluster: &mut ClusterSettings) {
        if let Some(register) = flags.register_node {
            cluster.register = register;
        }
        if let Some(id) = &flags.provider_id {
            cluster.provider_id = Some(id.clone()).filter(|id| !id.is_empty());
        }
        match flags.cloud_provider.as_deref() {
            None | Some("") => {}
            Some("external") => cluster.external_cloud = true,
            Some(name) => {
                let message = format!("{name:?} is not supported; use external, or omit the flag");
                self.error(None, "--cloud-provider", message);
            }
        }
        if flags.register_with_taints.is_some() {
            cluster.taints.clear();
        }
        let taints = flags.register_with_taints.iter().flat_map(|taints| taints.split(','));
        for text in taints.filter(|text| !text.is_empty()) {
            let (pair, effect) = text.rsplit_once(':').unwrap_or((text, ""));
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match new_taint(key, value, effect) {
                Ok(taint) => cluster.taints.push(taint),
                Err(message) => self.error(None, "--register-with-taints", format!("{text:?}: {message}")),
            }
        }
        for text in flags.node_labels.iter().filter(|text| !text.is_empty()) {
            let (key, value) = text.split_once('=').unwrap_or((text, ""));
            let (key, value) = (key.trim(), value.trim());
            if !is_label_key(key) || !is_label_value(value) {
                self.error(None, "--node-labels", format!("{text:?} is not a label such as site=lab"));
            } else if is_reserved(key) {
                let message = format!(
                    "a node may not set {key}; in the domains kubernetes.io and k8s.io use node.kubernetes.io/…, \
                     kubelet.kubernetes.io/… or one of {}",
                    OWN_LABELS.join(", ")
                );
                self.error(None, "--node-labels", message);
            } else {
                cluster.labels.insert(key.to_owned(), value.to_owned());
            }
        }
        if let Some(rotate) = flags.rotate_certificates {
            cluster.rotate_certificates = rotate;
        }
        self.kubeconfigs(flags, cluster);
    }

    /// Checks what both documents and the flags mean together.
    pub(super) fn cluster_as_a_whole(&mut self, cluster: &ClusterSettings) {
        if cluster.rotate_certificates && cluster.kubeconfig.is_none() {
            self.warn(None, "rotateCertificates", "has no effect without --kubeconfig");
        }
    }

    /// Reads the kubeconfig, which may be missing if there is a bootstrap kubeconfig.
    fn kubeconfigs(&mut self, flags: &RunFlags, cluster: &mut ClusterSettings) {
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        let bootstrap = given(&flags.bootstrap_kubeconfig);
        let Some(path) = given(&flags.kubeconfig) else {
            if bootstrap.is_some() {
                self.error(None, "--bootstrap-kubeconfig", "needs --kubeconfig: the file that it writes");
            }
            if cluster.external_cloud {
                self.warn(None, "--cloud-provider", "has no effect without --kubeconfig");
            }
            if flags.register_with_taints.as_ref().is_some_and(|taints| !taints.is_empty()) {
                self.warn(None, "--register-with-taints", "has no effect without --kubeconfig");
            }
            return;
        };
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let (path, bootstrap) = (absolute(&path), bootstrap.as_deref().map(absolute));
        let server = match (kubeconfig::check(&path), &bootstrap) {
            (Ok(server), _) => Ok(server),
            (Err(error), None) => Err(("--kubeconfig", error)),
            (Err(_), Some(bootstrap)) => {
                kubeconfig::check(bootstrap).map_err(|error| ("--bootstrap-kubeconfig", error))
            }
        };
        match server {
            Ok(server) => {
                cluster.server = server;
                (cluster.kubeconfig, cluster.bootstrap_kubeconfig) = (Some(path), bootstrap);
            }
            Err((flag, error)) => self.error(None, flag, error.to_string()),
        }
    }
}

fn new_taint(key: &str, value: &str, effect: &str) -> Result<NodeTaint, String> {
    if !is_label_key(key) {
        return Err(format!("{key:?} is not the key of a taint"));
    }
    if !is_label_value(value) {
        return Err(format!("{value:?} is not the value of a taint"));
    }
    if !NodeTaint::EFFECTS.contains(&effect) {
        return Err(format!("{effect:?} is unknown; use one of {}", NodeTaint::EFFECTS.join(", ")));
    }
    Ok(NodeTaint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() })
}

fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && !name.is_empty() && is_label_value(name),
        None => !key.is_empty() && is_label_value(key),
    }
}

fn is_label_value(value: &str) -> bool {
    let within = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= 63 && value.chars().all(within) && ends(value.chars().next()) && ends(value.chars().next_back())
}

#[cfg(test)]
mod tests {
    use limpet_core::node_object::Frequencies;

    use super::super::tests::{KUBELET_HEAD, load_text};
    use super::*;

    const KUBECONFIG: &str = "current-context: edge\ncontexts: [{name: edge, context: {cluster: lab}}]\n\
        clusters: [{name: lab, cluster: {server: 'https://192.0.2.1:6443'}}]\n";

    #[test]
    fn flags_and_keys_of_a_node_in_a_cluster() {
        let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let path = dir.path().join("kubeconfig");
        std::fs::write(&path, KUBECONFIG).unwrap_or_else(|error| panic!("{error}"));
        let flag = format!("--kubeconfig={}", path.display());
        let text = format!("{KUBELET_HEAD}registerWithTaints: [{{key: a, effect: NoExecute}}]\nregisterNode: true\n");
        let more = [
            &*flag,
            "--node-labels=site=lab,example.com/x=",
            "--register-node=false",
            "--provider-id=edge://7",
            "--cloud-provider=external",
            "--node-ip=192.0.2.7,2001:db8::7",
        ];
        let config = load_text(&text, &more).0.unwrap_or_default();
        assert_eq!(
            (config.cluster.provider_id.as_deref(), config.node.ip),
            (
                Some("edge://7"),
                [[192, 0, 2, 7].into(), [0x2001_u16, 0xdb8, 0, 0, 0, 0, 0, 7].into()].into_iter().collect()
            )
        );
        let cluster = config.cluster;
        let taint = |key: &str, value: &str, effect: &str| NodeTaint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
        };
        assert_eq!((cluster.kubeconfig, &*cluster.server), (Some(path), "https://192.0.2.1:6443"));
        assert_eq!(
            cluster.labels.into_iter().collect::<Vec<_>>(),
            [("example.com/x".to_owned(), String::new()), ("site".to_owned(), "lab".to_owned())]
        );
        assert!(cluster.external_cloud);
        assert_eq!((cluster.register, cluster.taints), (false, vec![taint("a", "", "NoExecute")]));
        let more = [&*flag, "--register-node", "--register-with-taints=b=1:NoSchedule,c:NoExecute"];
        let cluster = load_text(&text, &more).0.map(|config| config.cluster).unwrap_or_default();
        assert_eq!(
            (cluster.register, cluster.taints),
            (true, vec![taint("b", "1", "NoSchedule"), taint("c", "", "NoExecute")])
        );
    }

    #[test]
    fn labels_that_the_apiserver_lets_no_node_set_are_refused_at_the_start() {
        let allowed = [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
            "node.kubernetes.io/x",
            "a.node.kubernetes.io/x",
            "kubelet.kubernetes.io/x",
            "example.com/x",
            "mykubernetes.io/x",
            "x",
        ];
        for label in allowed {
            assert!(!is_reserved(label), "{label}");
        }
        for label in
            ["node-role.kubernetes.io/worker", "kubernetes.io/x", "k8s.io/x", "node-restriction.kubernetes.io/x"]
        {
            assert!(is_reserved(label), "{label}");
        }
        let errors =
            load_text(KUBELET_HEAD, &["--node-labels=node-role.kubernetes.io/edge="]).0.err().unwrap_or_default();
        let message = "--node-labels: a node may not set node-role.kubernetes.io/edge; in the domains kubernetes.io and k8s.io use";
        assert!(errors.iter().any(|error| error.contains(message)), "{errors:?}");
    }

    #[test]
    fn a_node_without_a_kubeconfig_begins_with_the_one_for_its_bootstrap() {
        let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let [bootstrap, missing] = ["bootstrap", "kubeconfig"].map(|name| dir.path().join(name));
        std::fs::write(&bootstrap, KUBECONFIG).unwrap_or_else(|error| panic!("{error}"));
        let [of_bootstrap, of_node] = [("bootstrap-kubeconfig", &bootstrap), ("kubeconfig", &missing)]
            .map(|(flag, path)| format!("--{flag}={}", path.display()));
        let text = format!("{KUBELET_HEAD}rotateCertificates: true\n");
        let cluster = load_text(&text, &[&of_bootstrap, &of_node]).0.unwrap_or_default().cluster;
        assert_eq!((cluster.kubeconfig, &*cluster.server), (Some(missing.clone()), "https://192.0.2.1:6443"));
        assert_eq!((cluster.bootstrap_kubeconfig, cluster.rotate_certificates), (Some(bootstrap), true));
        let faults = load_text(&text, &[&of_bootstrap]).0.err().unwrap_or_default();
        let expected = "flags: --bootstrap-kubeconfig: needs --kubeconfig: the file that it writes";
        assert_eq!(faults, [expected]);
        let faults = load_text(&text, &["--bootstrap-kubeconfig=/nowhere/b", &of_node]).0.err().unwrap_or_default();
        let expected = "flags: --bootstrap-kubeconfig: /nowhere/b: there is no such file; write one (kubeadm and k3s do), or start without --kubeconfig";
        assert_eq!(faults, [expected]);
    }

    #[test]
    fn an_update_frequency_alone_is_that_of_unchanged_reports_too() {
        let read = |text: &str| {
            let config = load_text(&format!("{KUBELET_HEAD}{text}"), &[]).0.unwrap_or_default();
            let Frequencies { report, correction } = config.cluster.frequencies;
            (report.as_secs(), correction.as_secs())
        };
        assert_eq!(read(""), (300, 10));
        assert_eq!(read("nodeStatusUpdateFrequency: 20s\n"), (20, 20));
        assert_eq!(read("nodeStatusUpdateFrequency: 20s\nnodeStatusReportFrequency: 2m\n"), (120, 20));
        assert_eq!(read("nodeStatusUpdateFrequency: 1ms\n"), (1, 1));
        assert_eq!(read("nodeStatusUpdateFrequency: 0s\nnodeStatusReportFrequency: 0s\n"), (300, 10));
    }

    #[test]
    fn an_unspecified_address_names_a_family_and_is_alone() {
        let read = |flag: &str| load_text(KUBELET_HEAD, &[flag]).0.map(|config| config.node.ip.to_string());
        assert_eq!((read("--node-ip=::"), read("--node-ip=0.0.0.0")), (Ok("::".into()), Ok("0.0.0.0".into())));
        let error = "flags: --node-ip: :: is not allowed together with other addresses".to_owned();
        assert_eq!(read("--node-ip=::,192.0.2.1"), Err(vec![error]));
    }

    #[test]
    fn mistakes_are_reported_with_their_remedy() {
        let text = format!(
            "{KUBELET_HEAD}nodeLeaseDurationSeconds: 2\nnodeStatusReportFrequency: soon\nnodeStatusMaxImages: -2\n\
             registerWithTaints: [{{key: a, effect: Never}}]\n"
        );
        let more = [
            "--kubeconfig=/nowhere/kubeconfig",
            "--node-labels=a b",
            "--register-with-taints=x",
            "--node-ip=::1",
            "--cloud-provider=aws",
        ];
        let faults = load_text(&text, &more).0.err().unwrap_or_default();
        let expected = [
            "config.yaml:3:27: nodeLeaseDurationSeconds: must be 4 or more",
            "config.yaml:4:28: nodeStatusReportFrequency: \"soon\" is not a duration such as 5m",
            "config.yaml:5:22: nodeStatusMaxImages: must be -1, for all of them, or more",
            "config.yaml:6:22: registerWithTaints: \"Never\" is unknown; use one of NoSchedule, PreferNoSchedule, NoExecute",
            "flags: --register-with-taints: \"x\": \"\" is unknown; use one of NoSchedule, PreferNoSchedule, NoExecute",
            "flags: --cloud-provider: \"aws\" is not supported; use external, or omit the flag",
            "flags: --node-ip: \"::1\" is not an address of a node",
            "flags: --node-labels: \"a b\" is not a label such as site=lab",
            "flags: --kubeconfig: /nowhere/kubeconfig: there is no such file; write one (kubeadm and k3s do), or start without --kubeconfig",
        ];
        for line in expected {
            assert!(faults.iter().any(|fault| fault == line), "{line}\n{faults:#?}");
        }
    }
}
