//! The bandwidth annotations of a pod (Kubernetes' "network plugins" page), which the CNI plugin `bandwidth` enforces.

use std::collections::BTreeMap;

use crate::pod::quantity::parse;

/// The annotations: bits per second into the pod, and out of it.
pub(crate) const ANNOTATIONS: [&str; 2] = ["kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"];

/// Kubernetes accepts rates between 1k and 1P.
const RATE_RANGE: std::ops::RangeInclusive<i64> = 1_000..=1_000_000_000_000_000;

/// The rates to which a pod is limited, in bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bandwidth {
    /// Into the pod; `None` for no limit.
    pub ingress: Option<u64>,
    /// Out of the pod; `None` for no limit.
    pub egress: Option<u64>,
}

/// The limits in annotations; `None` if there are none.
pub fn bandwidth(annotations: &BTreeMap<String, String>) -> Option<Bandwidth> {
    let [ingress, egress] = ANNOTATIONS.map(|key| annotations.get(key).and_then(|text| rate(text)));
    (ingress.is_some() || egress.is_some()).then_some(Bandwidth { ingress, egress })
}

/// A rate in bits per second; `None` if it is not a quantity between 1k and 1P.
pub(crate) fn rate(text: &str) -> Option<u64> {
    let rate = parse(text).ok()?.units();
    RATE_RANGE.contains(&rate).then(|| u64::try_from(rate).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_quantities_between_1k_and_1p() {
        for (text, wanted) in [
            ("10M", Some(10_000_000)),
            ("1k", Some(1_000)),
            ("1P", Some(1_000_000_000_000_000)),
            ("999", None),
            ("2P", None),
            ("-1M", None),
            ("fast", None),
            ("", None),
        ] {
            assert_eq!(rate(text), wanted, "{text}");
        }
    }

    #[test]
    fn either_annotation_limits_its_direction() {
        let limits_of = |pairs: &[(&str, &str)]| {
            bandwidth(&pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        assert_eq!(limits_of(&[("a", "1M")]), None);
        let [ingress, egress] = ANNOTATIONS;
        assert_eq!(limits_of(&[(ingress, "1M")]), Some(Bandwidth { ingress: Some(1_000_000), egress: None }));
        assert_eq!(limits_of(&[(egress, "2k")]), Some(Bandwidth { ingress: None, egress: Some(2_000) }));
    }
}
