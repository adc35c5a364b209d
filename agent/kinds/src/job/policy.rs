//! A Job's policies, applied: what a failed pod means, and whether the indexes that have succeeded suffice.

use limpet_model::object::workload::job::{Action, FailureRule, Indexes, Requirement, SuccessRule};

use super::seen::Seen;

/// What the policy requires for a failed pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The Job fails, for that reason.
    FailJob(String),
    FailIndex,
    /// It does not count.
    Ignore,
    Count,
}

/// Decides what happens to a failed pod by the first rule that applies.
pub(crate) fn judge(rules: &[FailureRule], namespace: &str, pod: &str, seen: &Seen) -> Effect {
    let mut matches = rules.iter().enumerate().filter_map(|(index, rule)| Some((index, rule, reason(rule, seen)?)));
    let Some((index, rule, reason)) = matches.next() else { return Effect::Count };
    match rule.action {
        Action::FailIndex => Effect::FailIndex,
        Action::Ignore => Effect::Ignore,
        Action::Count => Effect::Count,
        Action::FailJob => Effect::FailJob(match reason {
            Reason::Exit(container, code) => format!(
                "Container {container} for pod {namespace}/{pod} failed with exit code {code} matching FailJob rule at \
                 index {index}"
            ),
            Reason::Condition(condition) => {
                format!("Pod {namespace}/{pod} has condition {condition} matching FailJob rule at index {index}")
            }
        }),
    }
}

/// Why a rule applies.
enum Reason<'a> {
    Exit(&'a str, i32),
    Condition(&'a str),
}

fn reason<'a>(rule: &FailureRule, seen: &'a Seen) -> Option<Reason<'a>> {
    match &rule.requirement {
        Requirement::ExitCodes { container, is_in, codes } => {
            let applies = |(name, code): &&(String, i32)| {
                container.as_ref().is_none_or(|container| container == name) && codes.contains(code) == *is_in
            };
            seen.exits.iter().find(applies).map(|(name, code)| Reason::Exit(name, *code))
        }
        Requirement::Conditions(patterns) => {
            let condition = seen.conditions.iter().find(|condition| patterns.contains(condition));
            condition.map(|(name, _)| Reason::Condition(name))
        }
    }
}

/// The message of the first rule that the succeeded indexes fulfil.
pub(crate) fn suffices(rules: &[SuccessRule], succeeded: &Indexes) -> Option<String> {
    let is_met = |rule: &SuccessRule| match (&rule.indexes, rule.count) {
        (Some(indexes), count) => {
            let has = indexes.count_common(succeeded);
            indexes.count() > 0 && (has == indexes.count() || count.is_some_and(|count| has >= count))
        }
        (None, Some(count)) => succeeded.count() >= count,
        (None, None) => false,
    };
    let first = rules.iter().position(is_met).filter(|_| succeeded.count() > 0)?;
    Some(format!("Matched rules at index {first}"))
}
