//! A Job: pods that run until enough of them have succeeded.

pub mod indexes;
mod policy;
mod rules;

use std::sync::Arc;

use k8s_openapi::api::batch::v1::JobSpec;

pub use indexes::Indexes;
pub use policy::{Action, FailureRule, Requirement, SuccessRule};
pub(super) use rules::{check, check_whole};

const INDEXED: &str = "Indexed";
const DEFAULT_BACKOFF_LIMIT: u32 = 6;
/// What a Job's controller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// How many pods run at a time.
    pub parallelism: u32,
    /// How many have to succeed; `None` if one suffices, and then those that run.
    pub completions: Option<u32>,
    /// Whether each pod has an index below `completions`, and each index has to succeed.
    pub indexed: bool,
    /// How many pods may fail.
    pub backoff_limit: u32,
    /// How many pods of one index may fail.
    pub backoff_limit_per_index: Option<u32>,
    /// How many indexes may fail.
    pub max_failed_indexes: Option<u32>,
    /// What happens to a pod that failed; the first rule that matches counts.
    pub failure_rules: Arc<[FailureRule]>,
    /// Whether there is a policy for failed pods.
    pub has_failure_policy: bool,
    /// Which indexes suffice.
    pub success_rules: Arc<[SuccessRule]>,
    /// How long it may be active, in seconds.
    pub active_deadline_seconds: Option<u64>,
    /// How long its pods are kept once it has finished, in seconds.
    pub ttl_seconds_after_finished: Option<u32>,
    /// Whether no pods run.
    pub suspend: bool,
    /// Whether a terminating pod is replaced only once it has failed.
    pub replaces_failed_only: bool,
    /// Whether a pod's failed containers are restarted in it.
    pub restarts_in_place: bool,
    /// Whether its author has given the pods the labels that it selects.
    pub manual_selector: bool,
}

/// What the controller has to do, with defaults.
pub(super) fn settle(spec: JobSpec, restart_policy: &str) -> Job {
    let natural = |value: Option<i32>| value.map(|value| u32::try_from(value).unwrap_or(0));
    let per_index = natural(spec.backoff_limit_per_index);
    let default_limit = if per_index.is_some() { i32::MAX.unsigned_abs() } else { DEFAULT_BACKOFF_LIMIT };
    let completions = match (spec.completions, spec.parallelism) {
        (None, None) => Some(1),
        (completions, _) => natural(completions),
    };
    let has_failure_policy = spec.pod_failure_policy.is_some();
    let replacement = spec.pod_replacement_policy.as_deref();
    let rules = spec.pod_failure_policy.map(|policy| policy.rules).unwrap_or_default();
    let success = spec.success_policy.map(|policy| policy.rules).unwrap_or_default();
    Job {
        parallelism: natural(spec.parallelism).unwrap_or(1),
        completions,
        indexed: spec.completion_mode.as_deref() == Some(INDEXED),
        backoff_limit: natural(spec.backoff_limit).unwrap_or(default_limit),
        backoff_limit_per_index: per_index,
        max_failed_indexes: natural(spec.max_failed_indexes),
        failure_rules: rules.into_iter().map(policy::failure_rule).collect(),
        has_failure_policy,
        success_rules: success.into_iter().map(|rule| policy::success_rule(rule, completions)).collect(),
        active_deadline_seconds: spec.active_deadline_seconds.map(|seconds| u64::try_from(seconds).unwrap_or(0)),
        ttl_seconds_after_finished: natural(spec.ttl_seconds_after_finished),
        suspend: spec.suspend.unwrap_or(false),
        replaces_failed_only: replacement.map_or(has_failure_policy, |policy| policy == "Failed"),
        restarts_in_place: restart_policy == "OnFailure",
        manual_selector: spec.manual_selector.unwrap_or(false),
    }
}
