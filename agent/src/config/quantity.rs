//! Kubernetes quantities, limited to what sizes in bytes need.

/// The bytes of a quantity such as `10Mi`, `1e6` or `1.5G`, rounded up; `None` when it is invalid or negative.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let scale: u128 = match suffix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        _ => 10_u128.checked_pow(suffix.strip_prefix(['e', 'E'])?.parse().ok().filter(|exponent| *exponent <= 18)?)?,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || fraction.len() > 9 || whole.len() > 19 {
        return None;
    }
    let divisor = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    u64::try_from((digits * scale).div_ceil(divisor)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_as_in_kubernetes() {
        let cases = [
            ("10Mi", Some(10 << 20)),
            ("1048576", Some(1 << 20)),
            ("1e6", Some(1_000_000)),
            ("1.5Gi", Some(3 << 29)),
            (".5k", Some(500)),
            ("0.1", Some(1)),
            ("0", Some(0)),
            ("", None),
            ("Mi", None),
            ("10MB", None),
            ("-1", None),
            ("1.2.3", None),
            ("99999999999999999999", None),
            ("10P", Some(10_000_000_000_000_000)),
            ("99999999P", None),
        ];
        for (text, expected) in cases {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
