//! A Job's policies: what happens to it when a pod fails, and which successes suffice.

use k8s_openapi::api::batch::v1::{PodFailurePolicyRule, SuccessPolicyRule};

use super::indexes::Indexes;

/// What happens to a Job whose pod failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    FailJob,
    /// The pod's index fails.
    FailIndex,
    /// The failure does not count.
    Ignore,
    Count,
}

impl Action {
    /// Its name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FailJob => "FailJob",
            Self::FailIndex => "FailIndex",
            Self::Ignore => "Ignore",
            Self::Count => "Count",
        }
    }

    /// The actions by name, as an apiserver lists them.
    pub(super) const ALL: [Self; 4] = [Self::Count, Self::FailIndex, Self::FailJob, Self::Ignore];
}

/// What a failed pod must be like for a rule to apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    /// A container ended with a code other than 0.
    ExitCodes {
        /// Its name; `None` for any container.
        container: Option<String>,
        /// Whether the code is one of `codes`, or none of them.
        is_in: bool,
        /// In ascending order.
        codes: Vec<i32>,
    },
    /// It has one of these conditions: type and status.
    Conditions(Vec<(String, String)>),
}

/// A rule of `podFailurePolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureRule {
    pub action: Action,
    /// Which pods it applies to.
    pub requirement: Requirement,
}

/// A rule of `successPolicy`: the Job has succeeded once it applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuccessRule {
    /// The indexes that count; `None` for all.
    pub indexes: Option<Indexes>,
    /// How many of them suffice; `None` for all of `indexes`.
    pub count: Option<u32>,
}

pub(super) fn failure_rule(rule: PodFailurePolicyRule) -> FailureRule {
    let action = Action::ALL.into_iter().find(|action| action.as_str() == rule.action).unwrap_or(Action::Count);
    let requirement = match rule.on_exit_codes {
        Some(codes) => Requirement::ExitCodes {
            container: codes.container_name,
            is_in: codes.operator == "In",
            codes: codes.values,
        },
        None => {
            let patterns = rule.on_pod_conditions.unwrap_or_default().into_iter();
            let status = |status: Option<String>| status.unwrap_or_else(|| "True".to_owned());
            Requirement::Conditions(patterns.map(|pattern| (pattern.type_, status(pattern.status))).collect())
        }
    };
    FailureRule { action, requirement }
}

pub(super) fn success_rule(rule: SuccessPolicyRule, completions: Option<u32>) -> SuccessRule {
    let parse = |text: String| Indexes::parse(&text, completions.unwrap_or(0)).unwrap_or_default();
    SuccessRule {
        indexes: rule.succeeded_indexes.map(parse),
        count: rule.succeeded_count.map(|count| u32::try_from(count).unwrap_or(0)),
    }
}
