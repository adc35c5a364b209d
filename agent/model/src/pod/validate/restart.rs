//! A container's own restart policy and its rules.

use k8s_openapi::api::core::v1::Container;

use crate::pod::validate::field::{At, Faults, items};

const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;

/// Validates `restartPolicy` and `restartPolicyRules`.
pub(super) fn policy(at: &At<'_>, container: &Container, faults: &mut Faults) {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    match container.restart_policy.as_deref() {
        None if rules.is_empty() => return,
        None => faults.required(&at.field("restartPolicy"), "must specify restartPolicy when restart rules are used"),
        policy => faults.if_set_one_of(&at.field("restartPolicy"), policy, &["Always", "Never", "OnFailure"]),
    }
    let list = at.field("restartPolicyRules");
    if rules.len() > MAX_RULES {
        faults.too_many(&list, rules.len(), MAX_RULES);
    }
    for (index, rule) in items(&container.restart_policy_rules) {
        let at = list.index(index);
        let actions = ["Restart", "RestartAllContainers"];
        faults.if_set_one_of(&at.field("action"), Some(&rule.action), &actions);
        let at = at.field("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            faults.required(&at, "must be specified");
            continue;
        };
        faults.if_set_one_of(&at.field("operator"), Some(&codes.operator), &["In", "NotIn"]);
        let count = codes.values.as_ref().map_or(0, Vec::len);
        if count > MAX_EXIT_CODES {
            faults.too_many(&at.field("values"), count, MAX_EXIT_CODES);
        }
    }
}
