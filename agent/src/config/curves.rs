//! Key exchanges of TLS by Go's numbers, which are those of IANA, as in kubelet's `tlsCurvePreferences`.

use rustls::NamedGroup;

/// The key exchanges that limpet supports.
const SPOKEN: [(i64, NamedGroup); 3] =
    [(23, NamedGroup::secp256r1), (24, NamedGroup::secp384r1), (29, NamedGroup::X25519)];
/// Other key exchanges that Go supports, by Go's names.
const OTHERS: [(i64, &str); 4] =
    [(25, "CurveP521"), (4587, "SecP256r1MLKEM768"), (4588, "X25519MLKEM768"), (4589, "SecP384r1MLKEM1024")];

/// The key exchange of that number.
///
/// # Errors
/// What is wrong with it.
pub(super) fn numbered(number: i64) -> Result<NamedGroup, String> {
    if let Some((_, group)) = SPOKEN.iter().find(|(known, _)| *known == number) {
        return Ok(*group);
    }
    const REMEDY: &str = "name some of 23 (CurveP256), 24 (CurveP384), 29 (X25519)";
    Err(match OTHERS.iter().find(|(known, _)| *known == number) {
        Some((_, name)) => format!("{number} ({name}) is not supported; {REMEDY}"),
        None => format!("{number} is not a key exchange of Go; {REMEDY}"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_gos() {
        assert_eq!(numbered(29), Ok(NamedGroup::X25519));
        assert!(numbered(4588).unwrap_err().starts_with("4588 (X25519MLKEM768) is not supported; "));
        for none in [0, -1, 1, 30, 65_536, i64::MAX] {
            assert!(numbered(none).unwrap_err().starts_with(&format!("{none} is not a key exchange of Go; ")));
        }
        let provider = rustls::crypto::ring::default_provider();
        let is_there = |group: NamedGroup| provider.kx_groups.iter().any(|offered| offered.name() == group);
        assert!(SPOKEN.iter().all(|(number, group)| is_there(*group) && i64::from(u16::from(*group)) == *number));
    }
}
