//! Whether a node selector matches a node, by kubelet's rules
//! (`k8s.io/component-helpers/scheduling/corev1/nodeaffinity`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement};

/// Whether any of the selector's terms matches a node with that name and those labels. A term without requirements
/// matches no node.
pub fn matches(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.node_selector_terms.iter().any(|term| {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        let has_labels =
            expressions.iter().all(|wanted| requirement_holds(wanted, labels.get(&wanted.key).map(String::as_str)));
        let has_fields =
            fields.iter().all(|wanted| wanted.key == "metadata.name" && requirement_holds(wanted, Some(name)));
        !(expressions.is_empty() && fields.is_empty()) && has_labels && has_fields
    })
}

fn requirement_holds(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let is_in = || value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = |compare: fn(&i64, &i64) -> bool| {
        let bound = values.first().filter(|_| values.len() == 1).and_then(|text| number(text));
        value.and_then(number).zip(bound).is_some_and(|(value, bound)| compare(&value, &bound))
    };
    match wanted.operator.as_str() {
        "In" => is_in(),
        "NotIn" => !is_in(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(i64::gt),
        "Lt" => compared(i64::lt),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selected(terms: Value) -> bool {
        let selector = serde_json::from_value(json!({ "nodeSelectorTerms": terms })).unwrap();
        let labels = [("zone", "a"), ("disks", "4")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        matches(&selector, "edge1", &BTreeMap::from(labels))
    }

    #[test]
    fn a_node_is_selected_by_all_requirements_of_any_term() {
        let label =
            |key: &str, operator: &str, values: Value| json!({"key": key, "operator": operator, "values": values});
        let matches_label = |key: &str, operator: &str, values: Value| {
            selected(json!([{"matchExpressions": [label(key, operator, values)]}]))
        };
        for (key, operator, values, expected) in [
            ("zone", "In", json!(["b", "a"]), true),
            ("zone", "In", json!(["b"]), false),
            ("none", "In", json!(["a"]), false),
            ("zone", "NotIn", json!(["a"]), false),
            ("none", "NotIn", json!(["a"]), true),
            ("zone", "Exists", json!([]), true),
            ("none", "Exists", json!([]), false),
            ("none", "DoesNotExist", json!([]), true),
            ("disks", "Gt", json!(["3"]), true),
            ("disks", "Lt", json!(["4"]), false),
            ("zone", "Gt", json!(["3"]), false),
            ("zone", "Near", json!(["a"]), false),
        ] {
            assert_eq!(matches_label(key, operator, values.clone()), expected, "{key} {operator} {values}");
        }
        let (a, b) = (label("zone", "In", json!(["a"])), label("zone", "In", json!(["b"])));
        assert!(!selected(json!([{"matchExpressions": [a, b]}])));
        assert!(selected(json!([{"matchExpressions": [b]}, {"matchExpressions": [a]}])));
        let named = |name: &str| json!([{"matchFields": [label("metadata.name", "In", json!([name]))]}]);
        assert!(selected(named("edge1")) && !selected(named("edge2")));
        assert!(!selected(json!([{}])) && !selected(json!([])));
    }
}
