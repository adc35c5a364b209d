//! Affinity to nodes and to other pods.

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, WeightedPodAffinityTerm,
};

use crate::pod::name::is_dns_label;
use crate::pod::validate::field::{At, Faults, items};
use crate::pod::validate::selector;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Validates `affinity`.
pub(super) fn affinity(at: &At<'_>, affinity: &Affinity, faults: &mut Faults) {
    if let Some(nodes) = &affinity.node_affinity {
        to_nodes(&at.field("nodeAffinity"), nodes, faults);
    }
    if let Some(pods) = &affinity.pod_affinity {
        let required = &pods.required_during_scheduling_ignored_during_execution;
        let preferred = &pods.preferred_during_scheduling_ignored_during_execution;
        to_pods(&at.field("podAffinity"), required, preferred, faults);
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        let required = &pods.required_during_scheduling_ignored_during_execution;
        let preferred = &pods.preferred_during_scheduling_ignored_during_execution;
        to_pods(&at.field("podAntiAffinity"), required, preferred, faults);
    }
}

fn weight(at: &At<'_>, weight: i32, faults: &mut Faults) {
    if !(1..=100).contains(&weight) {
        faults.invalid(&at.field("weight"), weight, "must be in the range 1-100");
    }
}

fn to_nodes(at: &At<'_>, affinity: &NodeAffinity, faults: &mut Faults) {
    if let Some(required) = &affinity.required_during_scheduling_ignored_during_execution {
        let at = at.field(REQUIRED);
        let list = at.field("nodeSelectorTerms");
        if required.node_selector_terms.is_empty() {
            faults.required(&list, "must have at least one node selector term");
        }
        for (index, term) in required.node_selector_terms.iter().enumerate() {
            node_term(&list.index(index), term, true, faults);
        }
    }
    let list = at.field(PREFERRED);
    for (index, preferred) in items(&affinity.preferred_during_scheduling_ignored_during_execution) {
        let item = list.index(index);
        weight(&item, preferred.weight, faults);
        node_term(&item.field("preference"), &preferred.preference, false, faults);
    }
}

fn node_term(at: &At<'_>, term: &NodeSelectorTerm, check_values: bool, faults: &mut Faults) {
    let list = at.field("matchExpressions");
    for (index, requirement) in items(&term.match_expressions) {
        node_label(&list.index(index), requirement, check_values, faults);
    }
    let list = at.field("matchFields");
    for (index, requirement) in items(&term.match_fields) {
        node_field(&list.index(index), requirement, faults);
    }
}

fn node_label(at: &At<'_>, requirement: &NodeSelectorRequirement, check_values: bool, faults: &mut Faults) {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "Gt" | "Lt" if values.len() != 1 => {
            let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            faults.required(&at.field("values"), detail);
        }
        "Gt" | "Lt" => {}
        operator => selector::operator(at, operator, values.len(), faults),
    }
    faults.qualified_name(&at.field("key"), &requirement.key);
    if check_values {
        for (index, value) in values.iter().enumerate() {
            faults.label_value(&at.field("values").index(index), value);
        }
    }
}

fn node_field(at: &At<'_>, requirement: &NodeSelectorRequirement, faults: &mut Faults) {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.len() == 1 => {}
        "In" | "NotIn" => {
            let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            faults.required(&at.field("values"), detail);
        }
        other => faults.invalid(&at.field("operator"), other, "not a valid selector operator"),
    }
    if requirement.key != "metadata.name" {
        return faults.invalid(&at.field("key"), &requirement.key, "not a valid field selector key");
    }
    for (index, value) in values.iter().enumerate() {
        faults.dns_subdomain(&at.field("values").index(index), value);
    }
}

fn to_pods(
    at: &At<'_>,
    required: &Option<Vec<PodAffinityTerm>>,
    preferred: &Option<Vec<WeightedPodAffinityTerm>>,
    faults: &mut Faults,
) {
    let list = at.field(REQUIRED);
    for (index, term) in items(required) {
        pod_term(&list.index(index), term, faults);
    }
    let list = at.field(PREFERRED);
    for (index, term) in items(preferred) {
        let item = list.index(index);
        weight(&item, term.weight, faults);
        pod_term(&item.field("podAffinityTerm"), &term.pod_affinity_term, faults);
    }
}

fn pod_term(at: &At<'_>, term: &PodAffinityTerm, faults: &mut Faults) {
    selector::labels(&at.field("labelSelector"), term.label_selector.as_ref(), faults);
    selector::labels(&at.field("namespaceSelector"), term.namespace_selector.as_ref(), faults);
    for (index, namespace) in items(&term.namespaces) {
        if !is_dns_label(namespace) {
            faults.dns_label(&at.field("namespaces").index(index), namespace);
        }
    }
    let (keys, not_keys) = (term.match_label_keys.as_deref(), term.mismatch_label_keys.as_deref());
    let selected = term.label_selector.as_ref();
    selector::label_keys(at, keys.unwrap_or_default(), not_keys.unwrap_or_default(), selected, faults);
    match term.topology_key.as_str() {
        "" => faults.required(&at.field("topologyKey"), "can not be empty"),
        key => faults.qualified_name(&at.field("topologyKey"), key),
    }
}
