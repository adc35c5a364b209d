//! Builds the input of each CNI plugin from its configuration and the pod's record.

use serde_json::{Map, Value, json};

use super::conflist::{Conflist, is_declared};
use super::record::Record;
use super::{CGROUP_PATH, DNS, POD_ANNOTATIONS};

impl Conflist {
    /// The standard input of plugin `index`: its own configuration with the network's name and version, the result so
    /// far, and the runtime's settings for the capabilities that it declares.
    pub(super) fn stdin(&self, index: usize, previous: Option<&Value>, pod: &Record) -> Value {
        let mut config = self.plugins.get(index).cloned().unwrap_or_default();
        config.insert("name".to_owned(), json!(self.name));
        config.insert("cniVersion".to_owned(), json!(self.version));
        config.remove("prevResult");
        if let Some(previous) = previous {
            config.insert("prevResult".to_owned(), previous.clone());
        }
        let declared = config.remove("capabilities");
        let declares = |name: &str| is_declared(declared.as_ref(), name);
        let mut runtime = Map::new();
        if declares("portMappings") && !pod.ports.is_empty() {
            runtime.insert("portMappings".to_owned(), json!(pod.ports));
        }
        if let Some(bandwidth) = pod.bandwidth.filter(|_| declares("bandwidth")) {
            runtime.insert("bandwidth".to_owned(), json!(bandwidth));
        }
        if declares(POD_ANNOTATIONS) {
            runtime.insert(POD_ANNOTATIONS.to_owned(), json!(pod.annotations));
        }
        if let Some(dns) = pod.dns.as_ref().filter(|_| declares(DNS)) {
            runtime.insert(DNS.to_owned(), json!(dns));
        }
        if declares(CGROUP_PATH) && !pod.cgroup_path.is_empty() {
            runtime.insert(CGROUP_PATH.to_owned(), json!(pod.cgroup_path));
        }
        if !runtime.is_empty() {
            config.insert("runtimeConfig".to_owned(), Value::Object(runtime));
        }
        Value::Object(config)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::network::conflist::parse;
    use limpet_model::pod::bandwidth::Bandwidth;

    #[test]
    fn a_plugins_standard_input() {
        let list = parse(
            json!({"cniVersion": "0.4.0", "name": "net", "plugins": [
                {"type": "bridge", "name": "other", "ipam": {"type": "host-local"}},
                {"type": "portmap", "capabilities": {"portMappings": true, "bandwidth": true}},
            ]}),
            true,
        )
        .unwrap();
        let mut pod: Record = serde_json::from_value(json!({
            "namespace": "default", "name": "web", "uid": "u", "conflist": null, "result": null,
            "network_namespace": {"path": "/ns", "inode": 1, "boot_id": "b"},
            "ports": [{"hostPort": 80, "containerPort": 8080, "protocol": "tcp", "hostIP": ""}],
        }))
        .unwrap();
        assert_eq!(
            list.stdin(0, None, &pod),
            json!({"type": "bridge", "name": "net", "cniVersion": "0.4.0", "ipam": {"type": "host-local"}})
        );
        let previous = json!({"cniVersion": "0.4.0", "ips": []});
        assert_eq!(
            list.stdin(1, Some(&previous), &pod),
            json!({
                "type": "portmap", "name": "net", "cniVersion": "0.4.0", "prevResult": previous,
                "runtimeConfig": {"portMappings": [
                    {"hostPort": 80, "containerPort": 8080, "protocol": "tcp", "hostIP": ""}
                ]},
            })
        );
        pod.ports.clear();
        assert_eq!(list.stdin(1, None, &pod).get("runtimeConfig"), None, "no runtime settings");
        pod.bandwidth = Some(Bandwidth { ingress: Some(10_000_000), egress: None }.into());
        let limits =
            json!({"ingressRate": 10_000_000, "ingressBurst": 4_294_967_295_u32, "egressRate": 0, "egressBurst": 0});
        assert_eq!(list.stdin(1, None, &pod)["runtimeConfig"], json!({"bandwidth": limits}));
        assert_eq!(list.stdin(0, None, &pod).get("runtimeConfig"), None, "a plugin that does not declare it");
        assert!(list.has_capability("bandwidth") && !list.has_capability("aliases"));
    }

    #[test]
    fn a_plugin_is_told_what_containerd_tells_it() {
        let capabilities = json!({"dns": true, "io.kubernetes.cri.pod-annotations": true, "cgroupPath": true});
        let plugins =
            json!([{"type": "a", "capabilities": capabilities}, {"type": "b", "capabilities": {"dns": false}}]);
        let list = parse(json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins}), true).unwrap();
        let mut pod: Record = serde_json::from_value(json!({
            "namespace": "default", "name": "web", "uid": "u", "conflist": null, "result": null,
            "network_namespace": {"path": "/ns", "inode": 1, "boot_id": "b"}, "ports": [],
            "dns": {"servers": ["10.96.0.10"], "searches": ["svc.cluster.local"], "options": ["ndots:5"]},
            "annotations": {"cni.example/ip": "10.1.0.9"}, "cgroup_path": "/kubepods/podu",
        }))
        .unwrap();
        let told = json!({
            "dns": {"servers": ["10.96.0.10"], "searches": ["svc.cluster.local"], "options": ["ndots:5"]},
            "io.kubernetes.cri.pod-annotations": {"cni.example/ip": "10.1.0.9"},
            "cgroupPath": "/kubepods/podu",
        });
        assert_eq!(list.stdin(0, None, &pod)["runtimeConfig"], told);
        assert_eq!(list.stdin(1, None, &pod).get("runtimeConfig"), None);
        (pod.dns, pod.annotations, pod.cgroup_path) = (None, Default::default(), String::new());
        let told = json!({"io.kubernetes.cri.pod-annotations": {}});
        assert_eq!(list.stdin(0, None, &pod)["runtimeConfig"], told, "what is not known is left out");
    }
}
