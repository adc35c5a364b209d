//! Kubernetes quantities (`500m`, `1.5Gi`, `1e3`) as exact numbers.
//!
//! No floating point: an amount is a count of billionths, Kubernetes' precision. Finer amounts are
//! rounded up (away from zero), amounts above 2^63-1 are capped, as in `resource.ParseQuantity`.

use std::cmp::Ordering;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Maximum length of a text. Kubernetes has no limit, but no real quantity comes near this one.
const MAX_LENGTH: usize = 128;

/// Significant digits kept exactly: with the largest binary suffix they still fit into 128 bits.
const MAX_DIGITS: usize = 20;

/// Billionths in one unit, as a power of ten.
const NANO_DIGITS: i32 = 9;

/// Billionths in one unit.
const NANO: i128 = 1_000_000_000;

/// The largest amount in billionths: 2^63-1 units.
const MAX_NANO: i128 = i64::MAX as i128 * NANO;

/// An exact amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Amount(i128);

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text does not follow the grammar. The message is Kubernetes' own.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$', got {0:?}")]
    Format(String),
    /// The suffix is not one of Kubernetes'.
    #[error("unable to parse quantity's suffix in {0:?}: use m, k, M, G, T, P, E or Ki, Mi, Gi, Ti, Pi, Ei")]
    Suffix(String),
    /// More digits than an amount of anything needs.
    #[error("quantity {0:?} has more than {MAX_DIGITS} significant digits")]
    Digits(String),
}

impl Amount {
    pub const ZERO: Self = Self(0);

    /// Whole units, capped.
    pub fn from_units(units: u64) -> Self {
        Self((i128::from(units) * NANO).min(MAX_NANO))
    }

    /// Billionths.
    pub fn nanos(self) -> i128 {
        self.0
    }

    /// Thousandths, rounded up: millicores.
    pub fn milli(self) -> i64 {
        ceiling(self.0, 1_000_000)
    }

    /// Whole units, rounded up: bytes.
    pub fn units(self) -> i64 {
        ceiling(self.0, NANO)
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// `self / divisor`, rounded up, as `resourceFieldRef` gives it; a zero divisor counts as one.
    pub fn divided_by(self, divisor: Self) -> i64 {
        ceiling(self.0, if divisor.0 == 0 { NANO } else { divisor.0 })
    }
}

/// The shortest decimal quantity: `2`, `1500m`, `1n`.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (divisor, suffix) in [(NANO, ""), (1_000_000, "m"), (1_000, "u")] {
            if self.0 % divisor == 0 {
                return write!(f, "{}{suffix}", self.0 / divisor);
            }
        }
        write!(f, "{}n", self.0)
    }
}

impl Add for Amount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self((self.0 + other.0).clamp(-MAX_NANO, MAX_NANO))
    }
}

impl Sub for Amount {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self((self.0 - other.0).clamp(-MAX_NANO, MAX_NANO))
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

fn ceiling(value: i128, divisor: i128) -> i64 {
    let rest = value.rem_euclid(divisor);
    let quotient = (value - rest) / divisor + i128::from(rest != 0);
    i64::try_from(quotient).unwrap_or(if quotient < 0 { i64::MIN } else { i64::MAX })
}

/// Parses a quantity.
///
/// # Errors
///
/// The text does not follow Kubernetes' grammar, or is longer than any amount needs to be.
pub fn parse(text: &str) -> Result<Amount, QuantityError> {
    let wrong = || QuantityError::Format(text.chars().take(MAX_LENGTH).collect());
    if text.len() > MAX_LENGTH {
        return Err(wrong());
    }
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return Err(wrong());
    }
    let (tens, twos) = scale(suffix).ok_or_else(|| QuantityError::Suffix(text.to_owned()))?;

    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_matches('0');
    if significant.is_empty() {
        return Ok(Amount::ZERO);
    }
    if significant.len() > MAX_DIGITS {
        return Err(QuantityError::Digits(text.to_owned()));
    }
    let mantissa: i128 = significant.parse().map_err(|_| wrong())?;
    // Both lengths are at most MAX_LENGTH, so they fit.
    let trailing_zeros = (digits.len() - digits.trim_end_matches('0').len()) as i32;
    let exponent = trailing_zeros - fraction.len() as i32 + tens + NANO_DIGITS;
    let magnitude = scaled(mantissa, exponent, twos);
    Ok(Amount(if negative { -magnitude } else { magnitude }))
}

/// `mantissa * 10^tens * 2^twos`, rounded up and capped. `mantissa` is positive, of at most 20 digits.
fn scaled(mantissa: i128, tens: i32, twos: u32) -> i128 {
    let shifted = mantissa << twos; // 10^20 * 2^60 < 2^127
    let power = 10_i128.checked_pow(tens.unsigned_abs());
    let value = match (tens.cmp(&0), power) {
        (Ordering::Less, Some(power)) => (shifted + power - 1) / power,
        (Ordering::Less, None) => 1, // less than one billionth, but not nothing
        (_, Some(power)) => shifted.saturating_mul(power),
        (_, None) => MAX_NANO,
    };
    value.min(MAX_NANO)
}

/// A suffix as powers of ten and of two.
fn scale(suffix: &str) -> Option<(i32, u32)> {
    Some(match suffix {
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "" => (0, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            // Four digits are far beyond the cap and keep the arithmetic small.
            if exponent.trim_start_matches(['+', '-']).len() > 4 {
                return None;
            }
            (exponent.parse().ok()?, 0)
        }
    })
}

/// A CPU quantity in millicores, rounded up.
///
/// # Errors
///
/// It is not a quantity.
pub fn milli_cpu(quantity: &Quantity) -> Result<i64, QuantityError> {
    parse(&quantity.0).map(Amount::milli)
}

/// A memory or storage quantity in bytes, rounded up.
///
/// # Errors
///
/// It is not a quantity.
pub fn bytes(quantity: &Quantity) -> Result<i64, QuantityError> {
    parse(&quantity.0).map(Amount::units)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::pod::quantity::*;

    #[test]
    fn texts_give_exact_amounts() {
        let cases: &[(&str, i128)] = &[
            ("0", 0),
            ("-0.000", 0),
            ("1", NANO),
            ("+1", NANO),
            ("-1", -NANO),
            ("1.", NANO),
            (".5", NANO / 2),
            ("500m", NANO / 2),
            ("0.5", NANO / 2),
            ("100u", 100_000),
            ("1n", 1),
            ("0.1n", 1),
            ("-0.1n", -1),
            ("1e-30", 1),
            ("1.0000000001", NANO + 1),
            ("1k", 1_000 * NANO),
            ("1E", 1_000_000_000_000_000_000 * NANO),
            ("1e3", 1_000 * NANO),
            ("1E3", 1_000 * NANO),
            ("1e+3", 1_000 * NANO),
            ("12e-1", 1_200_000_000),
            ("1Ki", 1_024 * NANO),
            ("1.5Gi", 1_610_612_736 * NANO),
            ("0.1Ki", 102_400_000_000),
            ("1Ei", 1_152_921_504_606_846_976 * NANO),
            ("9223372036854775807", MAX_NANO),
            ("9223372036854775808", MAX_NANO),
            ("100E", MAX_NANO),
            ("8Ei", MAX_NANO),
            ("1e999", MAX_NANO),
            ("-1e999", -MAX_NANO),
            ("00000000000000000000000001", NANO),
            ("1000000000000000000000000000000000000000000", MAX_NANO),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse(text).map(Amount::nanos), Ok(*nanos), "{text}");
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in [
            "", "-", "+", ".", "m", "1..2", "1.2.3", "1K", "1ki", "1Mib", "1 Gi", " 1", "1 ", "0x10", "1e", "1e+",
            "1e1.5", "1e99999", "--1", "1mm", "½", "1,5", "1e--1", "1e+-1",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse(&"1".repeat(129)).is_err());
        assert!(parse("123456789012345678901").is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text in "[-+0-9.eEKMGimnuk]{0,40}|.{0,10}") {
            let negated = parse(&format!("-{text}")).map(Amount::nanos);
            if let (Ok(amount), Ok(negated)) = (parse(&text), negated) {
                proptest::prop_assert_eq!(amount.nanos(), -negated);
            }
        }

        #[test]
        fn whole_bytes_are_kept(count in 0..=i64::MAX) {
            proptest::prop_assert_eq!(parse(&count.to_string()).map(Amount::units), Ok(count));
        }
    }

    #[test]
    fn cpu_and_bytes_round_up() {
        for (text, milli) in [("1", 1000), ("100m", 100), ("0.1", 100), ("0.5m", 1), ("1.0001", 1001), ("2u", 1)] {
            assert_eq!(milli_cpu(&Quantity(text.to_owned())), Ok(milli), "{text}");
        }
        for (text, count) in [("1Ki", 1024), ("1.5", 2), ("128974848", 128_974_848), ("129M", 129_000_000), ("1m", 1)] {
            assert_eq!(bytes(&Quantity(text.to_owned())), Ok(count), "{text}");
        }
    }

    #[test]
    fn an_amount_is_written_in_its_shortest_form() {
        for text in ["0", "2", "1500m", "-3", "1u", "7n", "1500000001n"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(parse("1Ki").unwrap().to_string(), "1024");
    }

    #[test]
    fn division_rounds_up_and_ignores_a_zero_divisor() {
        let amount = |text| parse(text).unwrap();
        assert_eq!(amount("250m").divided_by(amount("1")), 1);
        assert_eq!(amount("250m").divided_by(amount("1m")), 250);
        assert_eq!(amount("64Mi").divided_by(amount("1Mi")), 64);
        assert_eq!(amount("65537Ki").divided_by(amount("1Mi")), 65);
        assert_eq!(amount("3").divided_by(Amount::ZERO), 3);
    }
}
