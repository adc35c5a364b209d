//! Services as the agent shows them.

use std::net::SocketAddr;

use limpet_model::object::local_service::ServiceKind;
use limpet_wire::services::{ServiceDocument, ServicePortDocument, ServicesDocument};

use crate::membership::{ServedPort, ServedService};

/// The Services as a document. `unserved`: why the kernel serves none.
pub(crate) fn document(services: &[ServedService], unserved: Option<&str>) -> ServicesDocument {
    ServicesDocument { unserved: unserved.map(str::to_owned), services: services.iter().map(of_service).collect() }
}

fn of_service(service: &ServedService) -> ServiceDocument {
    let definition = &service.definition;
    let cluster_ips = match definition.kind {
        ServiceKind::Headless => vec!["None".to_owned()],
        _ => service.addresses.iter().map(ToString::to_string).collect(),
    };
    let external_name = match &definition.kind {
        ServiceKind::ExternalName(name) => Some(name.to_string()),
        _ => None,
    };
    ServiceDocument {
        namespace: service.key.namespace.to_string(),
        name: service.key.name.to_string(),
        source: service.source.as_str().to_owned(),
        origin: service.origin.to_string(),
        r#type: definition.kind.as_str().to_owned(),
        cluster_ips,
        external_name,
        ports: service.ports.iter().map(of_port).collect(),
        pods: service.members.iter().map(|member| member.pod.to_string()).collect(),
        fault: service.fault.clone(),
    }
}

fn of_port(port: &ServedPort) -> ServicePortDocument {
    let endpoint = |end: &crate::membership::Endpoint| SocketAddr::new(end.address, end.port).to_string();
    ServicePortDocument {
        name: Some(port.name.to_string()).filter(|name| !name.is_empty()),
        protocol: port.protocol.as_str().to_owned(),
        port: port.number,
        node_port: port.node_port,
        endpoints: port.endpoints.iter().map(endpoint).collect(),
    }
}
