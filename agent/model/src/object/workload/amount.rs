//! Amounts of a workload's pods: numbers, and percentages of the replicas.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A number that is not negative, or its default.
pub(super) fn natural(value: Option<i32>, default: i32) -> u32 {
    u32::try_from(value.unwrap_or(default)).unwrap_or(0)
}

/// An amount of `total`; a percentage is rounded by `divide`.
pub(super) fn scaled(amount: &IntOrString, total: u32, divide: fn(u64, u64) -> u64) -> u32 {
    let part = percent(amount).map(|percent| divide(u64::from(percent) * u64::from(total), 100));
    let amount = part.or(number(amount).map(u64::from)).unwrap_or(0);
    u32::try_from(amount).unwrap_or(u32::MAX)
}

/// The amount if it is a number.
pub(super) fn number(amount: &IntOrString) -> Option<u32> {
    match amount {
        IntOrString::Int(number) => u32::try_from(*number).ok(),
        IntOrString::String(_) => None,
    }
}

/// The amount if it is a percentage.
pub(super) fn percent(amount: &IntOrString) -> Option<u32> {
    match amount {
        IntOrString::Int(_) => None,
        IntOrString::String(text) => {
            let digits = text.strip_suffix('%')?;
            let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| is_plain)
        }
    }
}
