//! Taints of a node and the tolerations of pods, as compared by admission and by the reaction to a shortage.

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Whether the toleration tolerates the taint (`Toleration.ToleratesTaint` in `k8s.io/api/core/v1`).
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let Toleration { key, operator, value, effect, .. } = toleration;
    let is_empty_or =
        |text: &Option<String>, wanted: &str| text.as_deref().is_none_or(|text| text.is_empty() || text == wanted);
    let same_value = || value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    is_empty_or(effect, &taint.effect)
        && match operator.as_deref() {
            Some("Exists") => is_empty_or(key, &taint.key),
            None | Some("" | "Equal") => key.as_deref() == Some(&taint.key) && same_value(),
            Some(_) => false,
        }
}
