use serde_json::json;

use super::*;

fn document(change: &Value) -> Value {
    let mut spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80}]});
    for (field, value) in change.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": spec})
}

fn faults(change: &Value) -> Vec<(String, String)> {
    let (_, faults) = read(&document(change), FieldValidation::Strict);
    faults.finish().into_iter().map(|fault| (fault.path, fault.message)).collect()
}

#[test]
fn what_an_apiserver_or_a_node_does_not_accept_is_refused() {
    let table = [
        (json!({"selector": {}}), "spec.selector", "required: a node without an apiserver has no EndpointSlices"),
        (json!({"ports": []}), "spec.ports", "required"),
        (json!({"ports": [{"port": 0}]}), "spec.ports[0].port", "0 must be between 1 and 65535"),
        (json!({"ports": [{"port": 80, "protocol": "SCTP"}]}), "spec.ports[0].protocol", "SCTP is not supported"),
        (json!({"ports": [{"port": 80}, {"port": 81, "name": "b"}]}), "spec.ports[0].name", "required: there are"),
        (json!({"ports": [{"port": 80, "targetPort": "Web!"}]}), "spec.ports[0].targetPort", "\"Web!\" is no port"),
        (json!({"ports": [{"port": 80, "nodePort": 30080}]}), "spec.ports[0].nodePort", "may not be used when"),
        (json!({"ports": [{"port": 80, "nodeport": 1}]}), "spec.ports[0].nodeport", "no such field"),
        (json!({"type": "Ingress"}), "spec.type", "\"Ingress\" is not supported"),
        (json!({"type": "NodePort", "clusterIP": "None"}), "spec.clusterIP", "may not be set to 'None'"),
        (json!({"clusterIP": "10.43.0"}), "spec.clusterIP", "\"10.43.0\" is not an IP address"),
        (json!({"clusterIPs": ["10.43.0.9", "10.43.0.8"]}), "spec.clusterIPs", "at most one address of each"),
        (json!({"ipFamilies": ["IPv5"]}), "spec.ipFamilies[0]", "\"IPv5\" is not supported"),
        (json!({"type": "ExternalName"}), "spec.externalName", "required"),
        (json!({"externalIPs": ["192.0.2.1"]}), "spec.externalIPs", "not supported"),
        (json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}), "spec.loadBalancerSourceRanges", "not supported"),
        (json!({"sessionAffinity": "Cookie"}), "spec.sessionAffinity", "\"Cookie\" is not supported"),
        (
            json!({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}}),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            "0 must be greater than 0",
        ),
        (json!({"healthCheckNodePort": 30000}), "spec.healthCheckNodePort", "has no effect"),
    ];
    for (change, path, message) in table {
        let named = faults(&change);
        let is_named = named.iter().any(|(at, text)| at == path && text.contains(message));
        assert!(is_named, "{change}: {named:?}");
    }
    let (_, faults) = read(
        &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a.b"},
            "spec": {"selector": {"a": "b"}, "ports": [{"port": 1}]}}),
        FieldValidation::Strict,
    );
    assert_eq!(faults.finish()[0].path, "metadata.name");
}

#[test]
fn a_service_is_what_its_manifest_says_and_is_restored() {
    let accepted = |change: Value| {
        assert_eq!(faults(&change), [], "{change}");
        let (key, service) = read(&document(&change), FieldValidation::Strict).0.unwrap();
        let stored: Value = serde_json::from_slice(&service.manifest).unwrap();
        assert_eq!(restore(&stored).unwrap(), (key, service.clone()));
        service
    };
    let plain = accepted(json!({}));
    assert_eq!(plain.kind, ServiceKind::ClusterIp);
    assert_eq!(plain.ports[0].target, Target::Number(80));
    let full = accepted(json!({
        "type": "NodePort", "clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "sessionAffinity": "ClientIP",
        "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster", "publishNotReadyAddresses": true,
        "ports": [
            {"name": "http", "port": 80, "targetPort": "web", "nodePort": 30080},
            {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353},
        ],
    }));
    assert_eq!(full.kind, ServiceKind::NodePort);
    assert_eq!(full.addresses, ["10.43.0.9".parse::<IpAddr>().unwrap()]);
    assert_eq!((full.is_sticky, full.keeps_source, full.has_unready), (true, true, true));
    assert_eq!(full.ports[0].target, Target::Name(Arc::from("web")));
    assert_eq!((full.ports[0].node_port, full.ports[1].protocol), (Some(30080), Protocol::Udp));
    assert_eq!(accepted(json!({"clusterIP": "None", "ports": []})).kind, ServiceKind::Headless);
    let external = accepted(json!({"type": "ExternalName", "externalName": "db.example.com.", "ports": []}));
    assert_eq!(external.kind, ServiceKind::ExternalName(Arc::from("db.example.com")));
    let both = accepted(json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}));
    assert_eq!((both.families.named, both.families.policy), (vec![false, true], FamilyPolicy::PreferDualStack));
    let moved = plain.in_namespace("other");
    assert_eq!(restore(&serde_json::from_slice(&moved.manifest).unwrap()).unwrap().0.namespace.as_ref(), "other");
}

#[test]
fn a_stored_service_that_is_damaged_is_none() {
    assert!(restore(&json!({"kind": "Service", "metadata": {"name": "web"}})).is_err());
}
