//! The variables that describe Services to pods (`FromServices` in kubelet's `pkg/kubelet/envvars`).
//!
//! They are kept as an object that a pod's environment refers to. It is read when a container starts, and its change
//! restarts none.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort};

use crate::object::{ObjectKey, ObjectKind, ObjectRecord};
use crate::pod::PodRecord;

/// The name of the object with the Services of the pod's namespace.
const OF_NAMESPACE: &str = "services";
/// The apiserver's own Service, whose variables every pod gets; also the name of its object.
pub const KUBERNETES: &str = "kubernetes";
const KUBERNETES_NAMESPACE: &str = "default";

/// What the environment of the pod's containers refers to; nothing unless the pod belongs to a cluster.
pub(super) fn references(pod: &PodRecord) -> impl Iterator<Item = ObjectKey> {
    let has_cluster = pod.source.traits().has_cluster;
    let links = has_cluster && pod.spec().enable_service_links.unwrap_or(true);
    let key = |namespace: &str, name: &str| ObjectKey::new(ObjectKind::ServiceVariables, namespace, name);
    let master = has_cluster.then(|| key(KUBERNETES_NAMESPACE, KUBERNETES));
    master.into_iter().chain(links.then(|| variables_key(pod.key.namespace())))
}

/// Whether the pod's containers have the variables of Services of the node's own sources.
pub fn has_local_links(pod: &PodRecord) -> bool {
    !pod.source.traits().has_cluster && pod.spec().enable_service_links.unwrap_or(true)
}

/// The key of the object with the Services of a namespace.
pub fn variables_key(namespace: &str) -> ObjectKey {
    ObjectKey::new(ObjectKind::ServiceVariables, namespace, OF_NAMESPACE)
}

/// The Services as an object.
pub fn record<'a>(key: ObjectKey, origin: &str, services: impl IntoIterator<Item = &'a Service>) -> ObjectRecord {
    ObjectRecord::of_texts(key, origin, variables(services))
}

/// The variables of these Services. A headless Service has none.
fn variables<'a>(services: impl IntoIterator<Item = &'a Service>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for service in services {
        let (Some(name), Some(spec)) = (&service.metadata.name, &service.spec) else { continue };
        let address = spec.cluster_ip.as_deref().filter(|address| !address.is_empty() && *address != "None");
        let ports = spec.ports.as_deref().unwrap_or_default();
        let (Some(address), [first, ..]) = (address, ports) else { continue };
        let name = variable_name(name);
        all.insert(format!("{name}_SERVICE_HOST"), address.to_owned());
        all.insert(format!("{name}_SERVICE_PORT"), first.port.to_string());
        for port in ports {
            if let Some(port_name) = port.name.as_deref().filter(|port_name| !port_name.is_empty()) {
                all.insert(format!("{name}_SERVICE_PORT_{}", variable_name(port_name)), port.port.to_string());
            }
        }
        // As for Docker's links, the first port has one more name.
        all.insert(format!("{name}_PORT"), link(address, first));
        for port in ports {
            let protocol = protocol(port);
            let prefix = format!("{name}_PORT_{}_{protocol}", port.port);
            all.insert(format!("{prefix}_PROTO"), protocol.to_lowercase());
            all.insert(format!("{prefix}_PORT"), port.port.to_string());
            all.insert(format!("{prefix}_ADDR"), address.to_owned());
            all.insert(prefix, link(address, port));
        }
    }
    all
}

fn protocol(port: &ServicePort) -> String {
    port.protocol.as_deref().filter(|protocol| !protocol.is_empty()).unwrap_or("TCP").to_uppercase()
}

fn link(address: &str, port: &ServicePort) -> String {
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    format!("{}://{host}:{}", protocol(port).to_lowercase(), port.port)
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::source::SourceKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_variables_are_kubelets() {
        let service = |name: &str, address: &str, ports: serde_json::Value| -> Service {
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"clusterIP": address, "ports": ports}}))
                .unwrap()
        };
        let services = [
            service("my-db", "10.0.0.3", json!([{"name": "sql-in", "port": 5432}, {"port": 53, "protocol": "UDP"}])),
            service("six", "fd00::1", json!([{"port": 80, "protocol": "TCP"}])),
            service("headless", "None", json!([{"port": 80}])),
            service("nothing", "10.0.0.4", json!([])),
        ];
        let lines: Vec<String> =
            variables(&services).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = [
            "MY_DB_PORT=tcp://10.0.0.3:5432",
            "MY_DB_PORT_53_UDP=udp://10.0.0.3:53",
            "MY_DB_PORT_53_UDP_ADDR=10.0.0.3",
            "MY_DB_PORT_53_UDP_PORT=53",
            "MY_DB_PORT_53_UDP_PROTO=udp",
            "MY_DB_PORT_5432_TCP=tcp://10.0.0.3:5432",
            "MY_DB_PORT_5432_TCP_ADDR=10.0.0.3",
            "MY_DB_PORT_5432_TCP_PORT=5432",
            "MY_DB_PORT_5432_TCP_PROTO=tcp",
            "MY_DB_SERVICE_HOST=10.0.0.3",
            "MY_DB_SERVICE_PORT=5432",
            "MY_DB_SERVICE_PORT_SQL_IN=5432",
            "SIX_PORT=tcp://[fd00::1]:80",
            "SIX_PORT_80_TCP=tcp://[fd00::1]:80",
            "SIX_PORT_80_TCP_ADDR=fd00::1",
            "SIX_PORT_80_TCP_PORT=80",
            "SIX_PORT_80_TCP_PROTO=tcp",
            "SIX_SERVICE_HOST=fd00::1",
            "SIX_SERVICE_PORT=80",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn only_pods_of_a_cluster_refer_to_services_and_all_of_them_to_its_own() {
        let keys = |source, links: Option<bool>| -> Vec<String> {
            let pod = json!({"metadata": {"name": "p", "namespace": "n"},
                "spec": {"containers": [{"name": "c", "image": "i"}], "enableServiceLinks": links}});
            let pod = crate::manifest::restore(pod.to_string().as_bytes(), "p.yaml", source, "node").unwrap();
            references(&pod).map(|key| key.to_string()).collect()
        };
        let both = ["ServiceVariables default/kubernetes", "ServiceVariables n/services"];
        assert_eq!(keys(SourceKind::Api, None), both);
        assert_eq!(keys(SourceKind::Api, Some(false)), both[..1]);
        assert!(
            keys(SourceKind::File, Some(true)).is_empty(),
            "those of the node's own sources are no object of theirs"
        );
    }
}
