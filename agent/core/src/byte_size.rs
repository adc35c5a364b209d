//! Sizes for people to read.

/// A size in the largest binary unit of which it has at least one, rounded to one decimal place, as kubelet shows it:
/// `1.5 GiB`.
pub fn text(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((bits, unit)) = units.into_iter().find(|(bits, _)| bytes >> bits > 0) else {
        return format!("{bytes} B");
    };
    let tenths = (u128::from(bytes) * 10 + (1 << (bits - 1))) >> bits;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_people_read() {
        let table =
            [(0, "0 B"), (1_023, "1023 B"), (1_024, "1.0 KiB"), (1_600 << 10, "1.6 MiB"), (u64::MAX, "16777216.0 TiB")];
        for (bytes, expected) in table {
            assert_eq!(text(bytes), expected);
        }
    }
}
