//! Booleans and whole numbers as text, parsed as Go's `strconv` does.

/// `strconv.ParseBool`.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// `strconv.ParseInt` with base 0, as pflag calls it: a prefix names the base, and underscores may follow it.
pub(super) fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, rest) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    // An underscore stands between two digits, or behind the prefix.
    let behind_prefix = if radix == 10 { rest } else { rest.strip_prefix('_').unwrap_or(rest) };
    let has_underscores = lower.contains('_');
    if has_underscores && (radix == 10 || behind_prefix.starts_with('_') || rest.ends_with('_') || rest.contains("__"))
    {
        return None;
    }
    let plain = behind_prefix.replace('_', "");
    let is_digits = plain.bytes().all(|digit| digit.is_ascii_alphanumeric());
    let number = i64::from_str_radix(&plain, radix).ok().filter(|_| is_digits)?;
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_go() {
        let cases = [
            ("10250", Some(10250)),
            ("+7", Some(7)),
            ("-1", Some(-1)),
            ("0", Some(0)),
            ("0x280A", Some(10250)),
            ("0X_28_0a", Some(10250)),
            ("0b101", Some(5)),
            ("0o17", Some(15)),
            ("017", Some(15)),
            ("0_17", Some(15)),
            ("08", None),
            ("1_000", None),
            ("0x", None),
            ("0x_", None),
            ("0x1__0", None),
            ("0x-1", None),
            ("--1", None),
            ("", None),
            (" 1", None),
            ("1.0", None),
            ("9223372036854775808", None),
        ];
        for (text, number) in cases {
            assert_eq!(integer(text), number, "{text:?}");
        }
    }
}
