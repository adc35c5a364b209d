//! The variables by which containers find Services (`enableServiceLinks`), such as `WEB_SERVICE_HOST`.
//!
//! In: the Services as they are served. Out: for each namespace an object with the variables, which a container reads when it
//! starts. A container that starts while Services have changed waits until they have their addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use limpet_model::object::{ObjectRecord, service};
use limpet_model::pod::PodRecord;
use tokio::sync::watch;

use crate::membership::{ServedPort, ServedService};

/// The variables of each namespace.
type Variables = BTreeMap<String, Arc<ObjectRecord>>;

/// The variables of the Services of a node. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ServiceLinks(watch::Sender<LinksState>);

#[derive(Debug, Default)]
struct LinksState {
    /// The newest version of the definitions.
    newest: u64,
    /// The version of which these are the variables.
    version: u64,
    /// Whether the kernel serves it.
    is_served: bool,
    variables: Variables,
}

impl ServiceLinks {
    /// The variables for a container of the pod that starts now; `None`: it has none. Cancel safe.
    pub async fn variables(&self, pod: &PodRecord) -> Option<Arc<ObjectRecord>> {
        if !service::has_local_links(pod) {
            return None;
        }
        let mut state = self.0.subscribe();
        // The sender lives in `self`.
        let state = state.wait_for(|state| state.version >= state.newest).await.ok()?;
        state.variables.get(pod.key.namespace()).cloned()
    }

    /// Containers that start from now on wait for the variables of this version.
    pub(crate) fn expect(&self, newest: u64) {
        self.0.send_modify(|state| state.newest = newest);
    }

    /// From now on containers get the variables of these Services, which are of that version; `None`: none is served.
    pub(crate) fn publish(&self, version: u64, services: Option<&[ServedService]>) {
        let is_served = services.is_some();
        self.0.send_if_modified(|state| {
            let differs = (state.version, state.is_served) != (version, is_served);
            if differs {
                (state.version, state.is_served) = (version, is_served);
                state.variables = variables(services.unwrap_or_default());
            }
            differs
        });
    }

    /// Lets all containers go on that wait: nothing will be published any more.
    pub(crate) fn release(&self) {
        self.0.send_modify(|state| state.version = u64::MAX);
    }
}

/// The variables of each namespace. A Service without an address of its own has none.
fn variables(services: &[ServedService]) -> Variables {
    let mut by_namespace: BTreeMap<String, Vec<Service>> = BTreeMap::new();
    for served in services.iter().filter(|served| served.fault.is_none()) {
        by_namespace.entry(served.key.namespace.to_string()).or_default().push(as_object(served));
    }
    let record = |(namespace, services): (String, Vec<Service>)| {
        let key = service::variables_key(&namespace);
        let record = Arc::new(service::record(key, "services", &services));
        (namespace, record)
    };
    by_namespace.into_iter().map(record).filter(|(_, record)| !record.data.is_empty()).collect()
}

/// The Service as an apiserver has it, as far as variables go.
fn as_object(served: &ServedService) -> Service {
    let port = |port: &ServedPort| ServicePort {
        name: Some(port.name.to_string()),
        port: i32::from(port.number),
        protocol: Some(port.protocol.to_string()),
        ..ServicePort::default()
    };
    Service {
        metadata: ObjectMeta { name: Some(served.key.name.to_string()), ..ObjectMeta::default() },
        spec: Some(ServiceSpec {
            cluster_ip: served.addresses.first().map(ToString::to_string),
            ports: Some(served.ports.iter().map(port).collect()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::membership::tests::{definition, named, pods, served};

    fn pod(namespace: &str, links: Option<bool>) -> Arc<PodRecord> {
        limpet_model::fixtures::record(json!({"metadata": {"name": "p", "namespace": namespace},
            "spec": {"containers": [{"name": "c", "image": "i"}], "enableServiceLinks": links}}))
    }

    fn lines(record: Option<Arc<ObjectRecord>>) -> Vec<String> {
        let line = |(name, entry): (&String, &limpet_model::object::Entry)| {
            format!("{name}={}", entry.bytes.expose_text().unwrap())
        };
        record.iter().flat_map(|record| record.data.iter().map(line)).collect()
    }

    #[tokio::test]
    async fn a_pod_has_the_services_of_its_namespace_that_have_an_address() {
        let web = |spec: Value| served(&[definition(spec)], &pods([]));
        let at = json!({"clusterIP": "10.43.0.9"});
        let variables = [
            "WEB_PORT=tcp://10.43.0.9:80",
            "WEB_PORT_80_TCP=tcp://10.43.0.9:80",
            "WEB_PORT_80_TCP_ADDR=10.43.0.9",
            "WEB_PORT_80_TCP_PORT=80",
            "WEB_PORT_80_TCP_PROTO=tcp",
            "WEB_SERVICE_HOST=10.43.0.9",
            "WEB_SERVICE_PORT=80",
            "WEB_SERVICE_PORT_HTTP=80",
        ];
        let cases: [(Vec<ServedService>, Arc<PodRecord>, &[&str]); 7] = [
            (web(at.clone()), pod("shop", None), &variables),
            (web(at.clone()), pod("shop", Some(true)), &variables),
            (web(at.clone()), pod("shop", Some(false)), &[]),
            (web(at), pod("other", None), &[]),
            (web(json!({"clusterIP": "None"})), pod("shop", None), &[]),
            (
                served(&[named("mail", json!({"type": "ExternalName", "externalName": "a.example"}))], &pods([])),
                pod("shop", None),
                &[],
            ),
            // The second one is not served: the address is the first one's.
            (
                served(
                    &[definition(json!({"clusterIP": "10.43.0.9"})), named("x", json!({"clusterIP": "192.0.2.1"}))],
                    &pods([]),
                ),
                pod("shop", None),
                &variables,
            ),
        ];
        for (services, pod, expected) in cases {
            let links = ServiceLinks::default();
            links.publish(1, Some(&services));
            assert_eq!(lines(links.variables(&pod).await), expected, "{:?}", pod.key);
        }
    }

    #[tokio::test]
    async fn a_start_waits_for_the_addresses_of_new_services() {
        let links = ServiceLinks::default();
        let pod = pod("shop", None);
        assert_eq!(links.variables(&pod).await, None, "a node without Services does not wait");
        links.expect(1);
        let waits = tokio::time::timeout(std::time::Duration::ZERO, links.variables(&pod));
        assert!(waits.await.is_err());
        let web = served(&[definition(json!({"clusterIP": "10.43.0.9"}))], &pods([]));
        links.publish(1, Some(&web));
        assert_eq!(lines(links.variables(&pod).await).len(), 8);
        links.publish(1, None);
        assert_eq!(links.variables(&pod).await, None, "the kernel serves none");
        links.publish(1, Some(&web));
        links.expect(2);
        links.release();
        assert_eq!(lines(links.variables(&pod).await).len(), 8, "at the end of the agent nothing waits");
    }
}
