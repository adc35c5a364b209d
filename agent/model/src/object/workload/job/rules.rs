//! Kubernetes' rules for Jobs (`pkg/apis/batch/validation`), and what a node adds to them.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule, SuccessPolicyRule,
};

use super::{Action, INDEXED, Indexes};
use crate::object::workload::{MAX_REPLICAS, PodTemplate, selector};
use crate::pod::{Fault, FaultList, is_dns_label};

const MAX_FAILED_INDEXES: i32 = 100_000;
/// With more completions, the limits of indexes have bounds of their own.
const MANY_COMPLETIONS: i32 = 100_000;
const MAX_FAILED_OF_MANY: i32 = 10_000;
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_INDEXES_TEXT: usize = 64 << 10;
const CONTROLLER: &str = "kubernetes.io/job-controller";

/// The faults of a Job's spec at `path`, apart from those of its template.
pub(in crate::object::workload) fn check(spec: &JobSpec, template: &PodTemplate, path: &str) -> Vec<Fault> {
    let mut faults = FaultList::default();
    numbers(spec, path, &mut faults);
    indexes(spec, path, &mut faults);
    policies(spec, template, path, &mut faults);
    restart_policy(spec, template, path, &mut faults);
    if spec.managed_by.as_deref().is_some_and(|name| name != CONTROLLER) {
        faults.push(
            Fault::error(format!("{path}.managedBy"), "has no effect on a node: its own controller runs the Job")
                .with_remedy("remove it"),
        );
    }
    if spec.scheduling.is_some() {
        let fault = Fault::error(format!("{path}.scheduling"), "has no effect on one node: nothing schedules its pods");
        faults.push(fault.with_remedy("remove it"));
    }
    faults.finish()
}

/// The faults of the selector and the name of a Job that does not belong to a CronJob.
pub(in crate::object::workload) fn check_whole(name: &str, spec: &JobSpec, template: &PodTemplate) -> Vec<Fault> {
    let mut faults = FaultList::default();
    match (&spec.selector, spec.manual_selector) {
        (Some(given), Some(true)) => faults.extend(selector::check(given, template, "spec.template")),
        (None, Some(true)) => faults.push(Fault::error("spec.selector", "Required value")),
        (Some(_), _) => faults.push(
            Fault::error("spec.selector", "Invalid value: `selector` not auto-generated")
                .with_remedy("remove it, or set manualSelector: true"),
        ),
        (None, _) => {}
    }
    let last = spec.completions.filter(|_| is_indexed(spec)).filter(|completions| *completions > 0);
    let host_name = last.map(|completions| format!("{name}-{}", completions - 1));
    if let Some(host_name) = host_name.filter(|host_name| !is_dns_label(host_name)) {
        let message = format!("Invalid value: will not able to create pod with invalid DNS label: {host_name}");
        faults.push(Fault::error("metadata.name", message).with_remedy("a shorter name without dots"));
    }
    faults.finish()
}

fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some(INDEXED)
}

fn invalid(path: String, value: impl std::fmt::Display, rule: &str) -> Fault {
    Fault::error(path, format!("Invalid value: {value}: {rule}"))
}

fn numbers(spec: &JobSpec, path: &str, faults: &mut FaultList) {
    let values = [
        ("parallelism", spec.parallelism.map(i64::from)),
        ("completions", spec.completions.map(i64::from)),
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("backoffLimit", spec.backoff_limit.map(i64::from)),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished.map(i64::from)),
        ("backoffLimitPerIndex", spec.backoff_limit_per_index.map(i64::from)),
        ("maxFailedIndexes", spec.max_failed_indexes.map(i64::from)),
    ];
    for (field, value) in values {
        if let Some(value) = value.filter(|value| *value < 0) {
            faults.push(invalid(format!("{path}.{field}"), value, "must be greater than or equal to 0"));
        }
    }
    if let Some(value) = spec.parallelism.filter(|value| *value > MAX_REPLICAS) {
        faults.push(invalid(
            format!("{path}.parallelism"),
            value,
            &format!("must be at most {MAX_REPLICAS} on one node"),
        ));
    }
}

/// The rules that depend on whether pods have indexes.
fn indexes(spec: &JobSpec, path: &str, faults: &mut FaultList) {
    let at = |field: &str| format!("{path}.{field}");
    if let Some(mode) = spec.completion_mode.as_deref().filter(|mode| !["NonIndexed", INDEXED].contains(mode)) {
        let message = format!("Unsupported value: {mode:?}: supported values: \"Indexed\", \"NonIndexed\"");
        faults.push(Fault::error(at("completionMode"), message));
        return;
    }
    if !is_indexed(spec) {
        let given =
            [("backoffLimitPerIndex", spec.backoff_limit_per_index), ("maxFailedIndexes", spec.max_failed_indexes)];
        for (field, value) in given.into_iter().filter_map(|(field, value)| Some((field, value?))) {
            faults.push(invalid(at(field), value, "requires indexed completion mode"));
        }
        if spec.success_policy.is_some() {
            let message = "Invalid value: requires indexed completion mode";
            faults.push(Fault::error(at("successPolicy"), message).with_remedy("completionMode: Indexed"));
        }
        return;
    }
    if spec.max_failed_indexes.is_some() && spec.backoff_limit_per_index.is_none() {
        let message = "Required value: when maxFailedIndexes is specified";
        faults.push(Fault::error(at("backoffLimitPerIndex"), message));
    }
    let Some(completions) = spec.completions else {
        faults.push(Fault::error(at("completions"), "Required value: when completion mode is Indexed"));
        return;
    };
    let failed = spec.max_failed_indexes;
    if let Some(value) = failed.filter(|value| *value > completions) {
        faults.push(invalid(at("maxFailedIndexes"), value, "must be less than or equal to completions"));
    }
    if let Some(value) = failed.filter(|value| *value > MAX_FAILED_INDEXES) {
        let rule = format!("must be less than or equal to {MAX_FAILED_INDEXES}");
        faults.push(invalid(at("maxFailedIndexes"), value, &rule));
    }
    if completions > MANY_COMPLETIONS && spec.backoff_limit_per_index.is_some() {
        match failed {
            None => {
                let message = format!("Required value: must be specified when completions is above {MANY_COMPLETIONS}");
                faults.push(Fault::error(at("maxFailedIndexes"), message));
            }
            Some(value) if value > MAX_FAILED_OF_MANY => {
                let rule = format!(
                    "must be less than or equal to {MAX_FAILED_OF_MANY} when completions are above {MANY_COMPLETIONS} and \
                     used with backoff limit per index"
                );
                faults.push(invalid(at("maxFailedIndexes"), value, &rule));
            }
            Some(_) => {}
        }
    }
}

fn policies(spec: &JobSpec, template: &PodTemplate, path: &str, faults: &mut FaultList) {
    let supported: &[&str] = match spec.pod_failure_policy {
        Some(_) => &["Failed"],
        None => &["Failed", "TerminatingOrFailed"],
    };
    if let Some(policy) = spec.pod_replacement_policy.as_deref().filter(|policy| !supported.contains(policy)) {
        let message = format!("Unsupported value: {policy:?}: supported values: {}", quoted(supported));
        faults.push(Fault::error(format!("{path}.podReplacementPolicy"), message));
    }
    if let Some(policy) = &spec.pod_failure_policy {
        let rules = format!("{path}.podFailurePolicy.rules");
        too_many(&rules, policy.rules.len(), MAX_RULES, faults);
        let names = template.container_names();
        for (index, rule) in policy.rules.iter().enumerate().take(MAX_RULES) {
            failure_rule(spec, rule, &names, &format!("{rules}[{index}]"), faults);
        }
    }
    if let Some(policy) = spec.success_policy.as_ref().filter(|_| is_indexed(spec)) {
        let rules = format!("{path}.successPolicy.rules");
        if policy.rules.is_empty() {
            let message = "Required value: at least one rules must be specified when the successPolicy is specified";
            faults.push(Fault::error(rules.clone(), message));
        }
        too_many(&rules, policy.rules.len(), MAX_RULES, faults);
        for (index, rule) in policy.rules.iter().enumerate().take(MAX_RULES) {
            success_rule(spec.completions.unwrap_or(0), rule, &format!("{rules}[{index}]"), faults);
        }
    }
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

fn too_many(path: &str, count: usize, most: usize, faults: &mut FaultList) {
    if count > most {
        faults.push(Fault::error(path, format!("Too many: {count}: must have at most {most} items")));
    }
}

fn failure_rule(
    spec: &JobSpec,
    rule: &PodFailurePolicyRule,
    containers: &BTreeSet<&str>,
    path: &str,
    faults: &mut FaultList,
) {
    let actions = Action::ALL.map(Action::as_str);
    let action = rule.action.as_str();
    if action.is_empty() {
        let message = format!("Required value: valid values: {}", quoted(&actions));
        faults.push(Fault::error(format!("{path}.action"), message));
    } else if !actions.contains(&action) {
        let message = format!("Unsupported value: {action:?}: supported values: {}", quoted(&actions));
        faults.push(Fault::error(format!("{path}.action"), message));
    } else if action == Action::FailIndex.as_str() && spec.backoff_limit_per_index.is_none() {
        let rule = "requires the backoffLimitPerIndex to be set";
        faults.push(invalid(format!("{path}.action"), format_args!("{action:?}"), rule));
    }
    let conditions = rule.on_pod_conditions.as_deref().unwrap_or_default();
    match (&rule.on_exit_codes, conditions.is_empty()) {
        (Some(_), false) => {
            let message = "Invalid value: specifying both OnExitCodes and OnPodConditions is not supported";
            faults.push(Fault::error(path, message));
        }
        (None, true) => {
            let message = "Invalid value: specifying one of OnExitCodes and OnPodConditions is required";
            faults.push(Fault::error(path, message));
        }
        _ => {}
    }
    if let Some(codes) = &rule.on_exit_codes {
        exit_codes(codes, containers, &format!("{path}.onExitCodes"), faults);
    }
    let path = format!("{path}.onPodConditions");
    too_many(&path, conditions.len(), MAX_RULES, faults);
    for (index, pattern) in conditions.iter().enumerate().take(MAX_RULES) {
        let status = pattern.status.as_deref().unwrap_or("True");
        if pattern.type_.is_empty() {
            faults.push(Fault::error(format!("{path}[{index}].type"), "Required value"));
        }
        if !["False", "True", "Unknown"].contains(&status) {
            let message = format!("Unsupported value: {status:?}: supported values: \"False\", \"True\", \"Unknown\"");
            faults.push(Fault::error(format!("{path}[{index}].status"), message));
        }
    }
}

fn exit_codes(
    codes: &PodFailurePolicyOnExitCodesRequirement,
    containers: &BTreeSet<&str>,
    path: &str,
    faults: &mut FaultList,
) {
    let operator = codes.operator.as_str();
    if operator.is_empty() {
        faults.push(Fault::error(format!("{path}.operator"), "Required value: valid values: \"In\", \"NotIn\""));
    } else if !["In", "NotIn"].contains(&operator) {
        let message = format!("Unsupported value: {operator:?}: supported values: \"In\", \"NotIn\"");
        faults.push(Fault::error(format!("{path}.operator"), message));
    }
    if let Some(name) = codes.container_name.as_deref().filter(|name| !containers.contains(name)) {
        let rule = "must be one of the container or initContainer names in the pod template";
        faults.push(invalid(format!("{path}.containerName"), format_args!("{name:?}"), rule));
    }
    let at = format!("{path}.values");
    if codes.values.is_empty() {
        faults.push(Fault::error(at.clone(), "Invalid value: at least one value is required"));
    }
    too_many(&at, codes.values.len(), MAX_EXIT_CODES, faults);
    let mut seen = BTreeSet::new();
    for (index, code) in codes.values.iter().enumerate().take(MAX_EXIT_CODES) {
        if *code == 0 && operator == "In" {
            faults.push(invalid(format!("{at}[{index}]"), code, "must not be 0 for the In operator"));
        }
        if !seen.insert(code) {
            faults.push(Fault::error(format!("{at}[{index}]"), format!("Duplicate value: {code}")));
        }
    }
    if !codes.values.is_sorted() {
        faults.push(Fault::error(at, "Invalid value: must be ordered"));
    }
}

fn success_rule(completions: i32, rule: &SuccessPolicyRule, path: &str, faults: &mut FaultList) {
    let mut total = None;
    if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
        let message = "Required value: at least one of succeededCount or succeededIndexes must be specified";
        faults.push(Fault::error(path, message));
    }
    if let Some(text) = &rule.succeeded_indexes {
        let at = format!("{path}.succeededIndexes");
        if text.len() > MAX_INDEXES_TEXT {
            faults.push(Fault::error(at.clone(), format!("Too long: must have at most {MAX_INDEXES_TEXT} bytes")));
        }
        match Indexes::parse(text, u32::try_from(completions).unwrap_or(0)) {
            Ok(indexes) => total = i32::try_from(indexes.count()).ok(),
            Err(error) => {
                let rule = format!("error parsing succeededIndexes: {error}");
                faults.push(invalid(at, format_args!("{text:?}"), &rule));
            }
        }
    }
    let Some(count) = rule.succeeded_count else { return };
    let at = format!("{path}.succeededCount");
    if count < 0 {
        faults.push(invalid(at.clone(), count, "must be greater than or equal to 0"));
    }
    if count > completions {
        let rule = format!("must be less than or equal to {completions} (the number of specified completions)");
        faults.push(invalid(at.clone(), count, &rule));
    }
    if let Some(total) = total.filter(|total| count > *total) {
        let rule = format!(
            "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
        );
        faults.push(invalid(at, count, &rule));
    }
}

fn restart_policy(spec: &JobSpec, template: &PodTemplate, path: &str, faults: &mut FaultList) {
    let at = format!("{path}.template.spec.restartPolicy");
    match template.restart_policy() {
        "Never" => {}
        "OnFailure" if spec.pod_failure_policy.is_none() => {}
        "OnFailure" => {
            let rule = "only \"Never\" is supported when podFailurePolicy is specified";
            faults.push(invalid(at, "\"OnFailure\"", rule));
        }
        "Always" => {
            let message = "Required value: valid values: \"OnFailure\", \"Never\"";
            faults.push(Fault::error(at, message).with_remedy("restartPolicy: Never"));
        }
        policy => {
            let message = format!("Unsupported value: {policy:?}: supported values: \"OnFailure\", \"Never\"");
            faults.push(Fault::error(at, message));
        }
    }
}
