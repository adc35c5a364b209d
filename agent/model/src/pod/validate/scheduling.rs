//! Validation of scheduling fields: affinity, tolerations, spread, gates, groups. A node ignores them, but rejects
//! invalid ones.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodSpec, Toleration, TopologySpreadConstraint};

use crate::pod::validate::field::{At, Faults, items, text};
use crate::pod::validate::selector;

const MAX_EVICTION_RESPONDERS: usize = 10;
/// Priorities below are Kubernetes' own, as are names of its domains.
const MIN_EVICTION_PRIORITY: i64 = 1_000;
const MAX_EVICTION_PRIORITY: i64 = 100_000;
const RESERVED_DOMAINS: [&str; 2] = ["k8s.io", "kubernetes.io"];

/// Validates all scheduling fields.
pub(super) fn scheduling(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    faults.labels(&at.field("nodeSelector"), spec.node_selector.iter().flatten());
    if let Some(affinity) = &spec.affinity {
        super::affinity::affinity(&at.field("affinity"), affinity, faults);
    }
    tolerations(&at.field("tolerations"), spec.tolerations.as_deref().unwrap_or_default(), faults);
    let constraints = spec.topology_spread_constraints.as_deref().unwrap_or_default();
    spread(&at.field("topologySpreadConstraints"), constraints, faults);
    gates(spec, at, faults);
    let class = text(&spec.priority_class_name);
    if !class.is_empty() {
        faults.dns_subdomain(&at.field("priorityClassName"), class);
    }
    if let Some(class) = spec.runtime_class_name.as_deref() {
        faults.dns_subdomain(&at.field("runtimeClassName"), class);
    }
    if spec.preemption_policy.is_some() {
        let policies = ["PreemptLowerPriority", "Never"];
        faults.one_of(&at.field("preemptionPolicy"), spec.preemption_policy.as_deref(), &policies);
    }
    group(spec, at, faults);
    eviction_responders(spec, &at.field("evictionResponders"), faults);
}

fn tolerations(at: &At<'_>, tolerations: &[Toleration], faults: &mut Faults) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let item = at.index(index);
        let (key, operator) = (text(&toleration.key), text(&toleration.operator));
        let (value, effect) = (text(&toleration.value), text(&toleration.effect));
        let at_operator = item.field("operator");
        if !key.is_empty() {
            faults.qualified_name(&item.field("key"), key);
        } else if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            faults.invalid(&at_operator, operator, detail);
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            faults.invalid(&item.field("effect"), effect, detail);
        }
        match operator {
            "" | "Equal" => faults.label_value(&at_operator, value),
            "Exists" if value.is_empty() => {}
            "Exists" => faults.invalid(&at_operator, value, "value must be empty when `operator` is 'Exists'"),
            other => faults.unsupported(&at_operator, other, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            faults.if_set_one_of(&item.field("effect"), Some(effect), &effects);
        }
    }
}

fn spread(at: &At<'_>, constraints: &[TopologySpreadConstraint], faults: &mut Faults) {
    let pair_of = |constraint: &TopologySpreadConstraint| {
        format!("{{{}, {}}}", constraint.topology_key, constraint.when_unsatisfiable)
    };
    // Of several, the last is not reported.
    let mut left: BTreeMap<String, usize> = BTreeMap::new();
    constraints.iter().for_each(|constraint| *left.entry(pair_of(constraint)).or_default() += 1);
    for (index, constraint) in constraints.iter().enumerate() {
        let item = at.index(index);
        if constraint.max_skew <= 0 {
            faults.invalid(&item.field("maxSkew"), constraint.max_skew, "must be greater than zero");
        }
        if constraint.topology_key.is_empty() {
            faults.required(&item.field("topologyKey"), "can not be empty");
        }
        let action = constraint.when_unsatisfiable.as_str();
        faults.if_set_one_of(&item.field("whenUnsatisfiable"), Some(action), &["DoNotSchedule", "ScheduleAnyway"]);
        let pair = pair_of(constraint);
        let left = left.entry(pair.clone()).or_default();
        *left = left.saturating_sub(1);
        if *left > 0 {
            faults.duplicate(&item.field("{topologyKey, whenUnsatisfiable}"), &pair);
        }
        if let Some(domains) = constraint.min_domains {
            let at = item.field("minDomains");
            if domains <= 0 {
                faults.invalid(&at, domains, "must be greater than zero");
            }
            if action != "DoNotSchedule" {
                let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                faults.invalid(&at, domains, &detail);
            }
        }
        for (field, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            faults.if_set_one_of(&item.field(field), policy.as_deref(), &["Honor", "Ignore"]);
        }
        let (keys, selected) = (constraint.match_label_keys.as_deref(), constraint.label_selector.as_ref());
        selector::label_keys(&item, keys.unwrap_or_default(), &[], selected, faults);
        selector::labels(&item.field("labelSelector"), selected, faults);
    }
}

fn gates(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let list = at.field("readinessGates");
    for (index, gate) in items(&spec.readiness_gates) {
        faults.qualified_name(&list.index(index).field("conditionType"), &gate.condition_type);
    }
    let list = at.field("schedulingGates");
    let mut names = BTreeSet::new();
    for (index, gate) in items(&spec.scheduling_gates) {
        let item = list.index(index);
        faults.qualified_name(&item, &gate.name);
        if !names.insert(&gate.name) {
            faults.duplicate(&item, &gate.name);
        }
    }
}

fn group(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let Some(group) = &spec.scheduling_group else { return };
    let at_group = at.field("schedulingGroup");
    match group.pod_group_name.as_deref() {
        None => faults.invalid(&at_group.field("podGroupName"), "", "must specify one of: `podGroupName`"),
        Some(name) => faults.dns_subdomain(&at_group.field("podGroupName"), name),
    }
    if spec.eviction_responders.as_ref().is_some_and(|responders| !responders.is_empty()) {
        faults.forbidden(&at_group, "may not be set when evictionResponders is set");
    }
}

fn eviction_responders(spec: &PodSpec, at: &At<'_>, faults: &mut Faults) {
    let count = spec.eviction_responders.as_ref().map_or(0, Vec::len);
    if count > MAX_EVICTION_RESPONDERS {
        return faults.too_many(at, count, MAX_EVICTION_RESPONDERS);
    }
    let mut names = BTreeSet::new();
    for (index, responder) in items(&spec.eviction_responders) {
        let item = at.index(index);
        let name = responder.name.as_str();
        match name {
            "" => faults.required(&item.field("name"), ""),
            name if !name.contains('/') => {
                faults.invalid(&item.field("name"), name, "must be a domain-prefixed key (such as \"acme.io/foo\")");
            }
            name => {
                faults.qualified_name(&item.field("name"), name);
                reserved_domain(&item.field("name"), name, faults);
            }
        }
        if !names.insert(name) {
            faults.duplicate(&item, name);
        }
        let priority = i64::from(responder.priority);
        if (0..MIN_EVICTION_PRIORITY).contains(&priority) {
            let detail = "priorities 0-999 are reserved for responders with *.k8s.io suffix";
            faults.invalid(&item.field("priority"), priority, detail);
        } else {
            faults.in_range(&item.field("priority"), priority, 0, MAX_EVICTION_PRIORITY);
        }
    }
}

fn reserved_domain(at: &At<'_>, name: &str, faults: &mut Faults) {
    let domain = format!(".{}", name.split('/').next().unwrap_or_default().to_lowercase());
    if RESERVED_DOMAINS.iter().any(|reserved| domain.ends_with(&format!(".{reserved}"))) {
        faults.invalid(at, name, "domain names *.k8s.io, *.kubernetes.io are reserved");
    }
}
