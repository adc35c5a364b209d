//! Validation of label selectors, and of label keys added to them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::pod::validate::field::{At, Faults, items};

/// Validates a label selector.
pub(super) fn labels(at: &At<'_>, selector: Option<&LabelSelector>, faults: &mut Faults) {
    let Some(selector) = selector else { return };
    faults.labels(&at.field("matchLabels"), selector.match_labels.iter().flatten());
    let list = at.field("matchExpressions");
    for (index, expression) in items(&selector.match_expressions) {
        let item = list.index(index);
        let values = expression.values.as_deref().unwrap_or_default();
        operator(&item, &expression.operator, values.len(), faults);
        faults.qualified_name(&item.field("key"), &expression.key);
        for (number, value) in values.iter().enumerate() {
            faults.label_value(&item.field("values").index(number), value);
        }
    }
}

/// Validates a set operator and the number of its values.
pub(super) fn operator(at: &At<'_>, operator: &str, values: usize, faults: &mut Faults) {
    let at_values = at.field("values");
    match operator {
        "In" | "NotIn" if values == 0 => {
            faults.required(&at_values, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if values > 0 => {
            faults.forbidden(&at_values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => faults.invalid(&at.field("operator"), other, "not a valid selector operator"),
    }
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys` against their selector.
pub(super) fn label_keys(
    at: &At<'_>,
    keys: &[String],
    not_keys: &[String],
    selector: Option<&LabelSelector>,
    faults: &mut Faults,
) {
    for (field, keys) in [("matchLabelKeys", keys), ("mismatchLabelKeys", not_keys)] {
        let list = at.field(field);
        if !keys.is_empty() && selector.is_none() {
            faults.forbidden(&list, "must not be specified when labelSelector is not set");
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            faults.qualified_name(&list.index(index), key);
        }
    }
    let index_of: BTreeMap<&String, usize> = keys.iter().enumerate().map(|(index, key)| (key, index)).collect();
    let labels = selector.iter().flat_map(|selector| selector.match_labels.iter().flatten());
    let mut selected: BTreeSet<&String> = labels.map(|(key, _)| key).collect();
    for expression in selector.iter().flat_map(|selector| selector.match_expressions.iter().flatten()) {
        // The apiserver itself appends the keys as expressions, so one occurrence is allowed.
        if let (false, Some(index)) = (selected.insert(&expression.key), index_of.get(&expression.key)) {
            faults.invalid(&at.index(*index), &expression.key, "exists in both matchLabelKeys and labelSelector");
        }
    }
    let not_keys: BTreeSet<&String> = not_keys.iter().collect();
    for (index, key) in keys.iter().enumerate().filter(|(_, key)| not_keys.contains(key)) {
        let list = at.field("matchLabelKeys");
        faults.invalid(&list.index(index), key, "exists in both matchLabelKeys and mismatchLabelKeys");
    }
}
