#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::spec::tests::Fixture;
use limpet_model::node::NodeAddresses;
use limpet_model::object::PodObjects;

fn env(container: Value, image: Value) -> Result<Vec<String>, SpecError> {
    let fixture = Fixture::new(container, json!({"Cmd": ["run"], "Env": image}));
    let variables = pod_variables(&fixture.input(), &fixture.host)?;
    Ok(environment(&fixture.input(), &variables))
}

/// The value of `V` given this definition.
fn value(definition: Value) -> Result<String, SpecError> {
    let mut variable = definition;
    variable["name"] = "V".into();
    let all = env(json!({"env": [variable]}), json!([]))?;
    Ok(all.iter().find_map(|entry| entry.strip_prefix("V=")).unwrap_or("(unset)").to_owned())
}

#[test]
fn a_later_value_replaces_the_earlier_in_its_position() {
    let cases = [
        (
            json!({}),
            json!([]),
            vec![format!("PATH={DEFAULT_PATH}"), "HOSTNAME=web-node".into(), "HOME=/home/seven".into()],
        ),
        (
            json!({"tty": true, "env": [{"name": "PATH", "value": "/p"}]}),
            json!(["PATH=/i", "HOSTNAME=other", "A=1=2", "B"]),
            vec![
                "PATH=/p".into(),
                "TERM=xterm".into(),
                "HOSTNAME=other".into(),
                "A=1=2".into(),
                "B=".into(),
                "HOME=/home/seven".into(),
            ],
        ),
        (
            json!({"env": [{"name": "HOME", "value": "/h"}, {"name": "X", "value": "1"}, {"name": "X", "value": "2"}]}),
            json!(["PATH=/i"]),
            vec!["PATH=/i".into(), "HOSTNAME=web-node".into(), "HOME=/h".into(), "X=2".into()],
        ),
    ];
    for (container, image, wanted) in cases {
        assert_eq!(env(container.clone(), image).unwrap(), wanted, "{container}");
    }
}

#[test]
fn values_refer_to_earlier_variables_of_the_pod() {
    let list = json!([
        {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(C)-$(IMAGE)"}, {"name": "C", "value": "$(B)"},
        {"name": "D"},
    ]);
    let all = env(json!({"env": list}), json!(["IMAGE=i"])).unwrap();
    for wanted in ["B=1-$(C)-$(IMAGE)", "C=1-$(C)-$(IMAGE)", "D="] {
        assert!(all.iter().any(|entry| entry == wanted), "{wanted} in {all:?}");
    }
}

#[test]
fn fields_of_the_pod_are_values() {
    let cases = [
        ("metadata.name", "web-node"),
        ("metadata.namespace", "shop"),
        ("metadata.uid", "0123456789abcdef0123456789abcdef"),
        ("metadata.labels['app']", "web"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['team/a']", "b c"),
        ("spec.nodeName", "node"),
        ("spec.serviceAccountName", ""),
        ("status.hostIP", "192.0.2.1"),
        ("status.hostIPs", "192.0.2.1,2001:db8::1"),
        ("status.podIP", "10.1.0.2"),
        ("status.podIPs", "10.1.0.2,fd00::2"),
    ];
    for (path, wanted) in cases {
        let made = value(json!({"valueFrom": {"fieldRef": {"fieldPath": path}}}));
        assert_eq!(made.unwrap(), wanted, "{path}");
    }
    for path in ["metadata.labels", "spec.containers", "spec.x['y']", ""] {
        let made = value(json!({"valueFrom": {"fieldRef": {"fieldPath": path}}}));
        assert!(matches!(made, Err(SpecError::Field { .. })), "{path}");
    }
}

#[test]
fn an_address_that_is_not_known_is_no_value() {
    for field in ["status.hostIP", "status.hostIPs"] {
        let env = json!([{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": field}}}]);
        let mut fixture = Fixture::new(json!({"env": env}), json!({"Cmd": ["run"]}));
        fixture.node_addresses = NodeAddresses::NONE;
        let refused = pod_variables(&fixture.input(), &fixture.host).err().unwrap().to_string();
        assert_eq!(refused, format!("env \"IP\": {field} is not known yet"));
    }
}

#[test]
fn resources_are_values() {
    let resources = json!({"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}});
    let cases = [
        (json!({"resource": "requests.cpu"}), "1"),
        (json!({"resource": "requests.cpu", "divisor": "1m"}), "250"),
        (json!({"resource": "limits.memory", "divisor": "1Mi"}), "64"),
        (json!({"resource": "requests.memory"}), "67108864"),
        (json!({"resource": "limits.cpu"}), "4"),
        (json!({"resource": "limits.cpu", "containerName": "c", "divisor": "0"}), "4"),
    ];
    for (selector, wanted) in cases {
        let container =
            json!({"resources": resources, "env": [{"name": "V", "valueFrom": {"resourceFieldRef": selector}}]});
        let all = env(container, json!([])).unwrap();
        assert!(all.contains(&format!("V={wanted}")), "{selector}: {all:?}");
    }
    for selector in [json!({"resource": "cpu"}), json!({"resource": "limits.cpu", "containerName": "x"})] {
        assert!(matches!(value(json!({"valueFrom": {"resourceFieldRef": selector}})), Err(SpecError::Field { .. })));
    }
}

/// The Pod's variables with these objects, `NAME=value` in order.
fn with_objects(container: Value, objects: &[Value]) -> Result<Vec<String>, SpecError> {
    let mut fixture = Fixture::new(container, json!({"Cmd": ["run"]}));
    let decode = |value: &Value| {
        let kind = ObjectKind::from_name(value["kind"].as_str().unwrap()).unwrap();
        let mut value = value.clone();
        value["metadata"]["namespace"] = "shop".into();
        Arc::new(limpet_model::object::decode(&value, kind, Arc::from("f.yaml")).0.unwrap())
    };
    let objects: Vec<_> = objects.iter().map(decode).collect();
    fixture.objects =
        PodObjects::collect(&fixture.pod, |key| objects.iter().find(|object| object.key == *key).cloned());
    let variables = pod_variables(&fixture.input(), &fixture.host)?;
    Ok(variables.iter().map(|(name, value)| format!("{name}={value}")).collect())
}

fn settings() -> [Value; 2] {
    [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a.b": "1", "B": "$(X)"},
            "binaryData": {"BIN": "/w=="}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"B": "Mg==", "RAW": "/w=="},
            "stringData": {"NUL": "a\u{0}b"}}),
    ]
}

#[test]
fn values_of_objects() {
    let key = |kind: &str, name: &str, key: &str, optional: bool| json!({"valueFrom": {format!("{kind}KeyRef"): {"name": name, "key": key, "optional": optional}}, "name": "V"});
    let no_object = r#"configmap "none" not found"#;
    let no_text = "the value of key RAW in Secret shop/s is not text; mount it as a file instead";
    let table: &[(Value, Result<&[&str], &str>)] = &[
        (json!({"env": [key("configMap", "m", "a.b", false)]}), Ok(&["V=1"])),
        (json!({"env": [key("secret", "s", "B", false)]}), Ok(&["V=2"])),
        // A value from an object is not expanded; a later variable that refers to it is.
        (
            json!({"env": [{"name": "X", "value": "x"}, key("configMap", "m", "B", false), {"name": "W", "value": "$(V)"}]}),
            Ok(&["X=x", "V=$(X)", "W=$(X)"]),
        ),
        (json!({"env": [key("configMap", "none", "k", false)]}), Err(no_object)),
        (json!({"env": [key("secret", "none", "k", false)]}), Err(r#"secret "none" not found"#)),
        (json!({"env": [key("configMap", "none", "k", true)]}), Ok(&[])),
        (json!({"env": [key("configMap", "m", "k", false)]}), Err("couldn't find key k in ConfigMap shop/m")),
        (json!({"env": [key("secret", "s", "k", false)]}), Err("couldn't find key k in Secret shop/s")),
        (json!({"env": [key("secret", "s", "k", true)]}), Ok(&[])),
        (json!({"env": [key("configMap", "m", "BIN", false)]}), Err("couldn't find key BIN in ConfigMap shop/m")),
        (json!({"env": [key("secret", "s", "RAW", false)]}), Err(no_text)),
        (
            json!({"env": [key("secret", "s", "NUL", true)]}),
            Err("the value of key NUL in Secret shop/s is not text; mount it as a file instead"),
        ),
        (json!({"envFrom": [{"configMapRef": {"name": "m"}}]}), Ok(&["B=$(X)", "a.b=1"])),
        (
            json!({"envFrom": [{"configMapRef": {"name": "m"}, "prefix": "P_"}, {"configMapRef": {"name": "m"}}],
                "env": [{"name": "B", "value": "own"}]}),
            Ok(&["P_B=$(X)", "P_a.b=1", "B=own", "a.b=1"]),
        ),
        (json!({"envFrom": [{"configMapRef": {"name": "none"}}]}), Err(no_object)),
        (json!({"envFrom": [{"secretRef": {"name": "none", "optional": true}}]}), Ok(&[])),
        (
            json!({"envFrom": [{"secretRef": {"name": "s"}}]}),
            Err("the value of key NUL in Secret shop/s is not text; mount it as a file instead"),
        ),
    ];
    for (container, wanted) in table {
        let made = with_objects(container.clone(), &settings()).map_err(|error| error.to_string());
        let wanted = wanted.map(|list| list.iter().map(|&entry| entry.to_owned()).collect()).map_err(str::to_owned);
        assert_eq!(made, wanted, "{container}");
    }
}

#[test]
fn variables_of_services_give_way_to_all_others_and_may_be_referred_to() {
    use k8s_openapi::api::core::v1::Service;
    use limpet_model::object::{ObjectKey, service};

    let mut fixture = Fixture::new(
        json!({"env": [{"name": "DB_SERVICE_PORT", "value": "1"}, {"name": "WHERE", "value": "$(DB_SERVICE_HOST)"}]}),
        json!({"Cmd": ["run"], "Env": ["DB_SERVICE_HOST=image"]}),
    );
    let db: Service = serde_json::from_value(
        json!({"metadata": {"name": "db"}, "spec": {"clusterIP": "10.0.0.3", "ports": [{"port": 80}]}}),
    )
    .unwrap();
    let key = ObjectKey::new(ObjectKind::ServiceVariables, "default", service::KUBERNETES);
    let record = Arc::new(service::record(key, "apiserver", [&db]));
    let mut pod = fixture.pod.clone();
    pod.source = limpet_model::source::SourceKind::Api;
    fixture.objects = PodObjects::collect(&pod, |key| (*key == record.key).then(|| Arc::clone(&record)));
    let variables = pod_variables(&fixture.input(), &fixture.host).unwrap();
    let all = environment(&fixture.input(), &variables);
    for wanted in ["DB_SERVICE_PORT=1", "WHERE=10.0.0.3", "DB_SERVICE_HOST=10.0.0.3", "DB_PORT_80_TCP_PROTO=tcp"] {
        assert_eq!(all.iter().filter(|entry| *entry == wanted).count(), 1, "{wanted} in {all:?}");
    }
}
