#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::runtime::spec::tests::Fixture;

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
fn the_later_wins_in_its_place() {
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
fn values_refer_to_what_came_before_in_the_pod() {
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

#[test]
fn absent_objects_are_errors_unless_optional() {
    let required = json!({"valueFrom": {"configMapKeyRef": {"name": "settings", "key": "k"}}});
    assert_eq!(value(required).unwrap_err().to_string(), r#"env "V": configmap "settings" not found"#);
    let optional = json!({"valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}});
    assert_eq!(value(optional).unwrap(), "(unset)");
    let from = json!({"envFrom": [{"secretRef": {"name": "s"}}]});
    assert!(matches!(env(from, json!([])), Err(SpecError::Source { kind: "secret", .. })));
    assert!(env(json!({"envFrom": [{"configMapRef": {"name": "s", "optional": true}}]}), json!([])).is_ok());
}
