//! Whether a label selector selects labels (`k8s.io/apimachinery/pkg/apis/meta/v1`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::PodTemplate;
use crate::pod::Fault;

/// The faults of the selector of a workload: it must select the pods of its template.
pub(super) fn check(selector: &LabelSelector, template: &PodTemplate, template_path: &str) -> Option<Fault> {
    let labels = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    if labels.clone().next().is_none() && expressions.clone().next().is_none() {
        let remedy = "name labels of the template under matchLabels";
        return Some(Fault::error("spec.selector", "required: it must select the template's pods").with_remedy(remedy));
    }
    for (index, expression) in expressions.clone().enumerate() {
        let (operator, values) = (expression.operator.as_str(), expression.values.iter().flatten().count());
        let is_valid = match operator {
            "In" | "NotIn" => values > 0,
            "Exists" | "DoesNotExist" => values == 0,
            _ => false,
        };
        if !is_valid {
            let path = format!("spec.selector.matchExpressions[{index}]");
            let remedy = "In and NotIn with values, Exists and DoesNotExist without";
            return Some(Fault::error(path, "is no requirement").with_remedy(remedy));
        }
    }
    let named = labels.clone().all(|(name, value)| template.label(name) == Some(value));
    let holds = expressions.clone().all(|expression| {
        let value = template.label(&expression.key);
        let is_in = value.is_some_and(|value| expression.values.iter().flatten().any(|listed| listed == value));
        match expression.operator.as_str() {
            "In" => is_in,
            "NotIn" => !is_in,
            "Exists" => value.is_some(),
            _ => value.is_none(),
        }
    });
    let fault = || {
        let path = format!("{template_path}.metadata.labels");
        Fault::error(path, "`selector` does not match template `labels`").with_remedy("give both the same labels")
    };
    (!named || !holds).then(fault)
}
