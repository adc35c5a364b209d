//! The encoding of a manifest: UTF-8, or UTF-16 with a byte order mark, as PowerShell writes it. kubelet's parser reads both.

use std::borrow::Cow;

/// How the two bytes of a UTF-16 unit make its number.
type ByteOrder = fn([u8; 2]) -> u16;

/// Converts a text that begins with a byte order mark of UTF-16 to UTF-8. Any other text, and one that is not UTF-16,
/// is returned as it is.
pub fn utf8(text: &[u8]) -> Cow<'_, [u8]> {
    let (units, number): (&[u8], ByteOrder) = match text {
        [0xff, 0xfe, units @ ..] => (units, u16::from_le_bytes),
        [0xfe, 0xff, units @ ..] => (units, u16::from_be_bytes),
        _ => return Cow::Borrowed(text),
    };
    let (units, rest) = units.as_chunks::<2>();
    let decoded = char::decode_utf16(units.iter().map(|unit| number(*unit))).collect::<Result<String, _>>();
    match decoded {
        Ok(decoded) if rest.is_empty() => Cow::Owned(decoded.into_bytes()),
        _ => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf16_is_told_by_its_byte_order_mark() {
        let text = "kind: Pod # ü 😀\r\n";
        let encoded = |mark: [u8; 2], bytes: fn(u16) -> [u8; 2]| {
            let units = text.encode_utf16().flat_map(bytes);
            mark.into_iter().chain(units).collect::<Vec<u8>>()
        };
        assert_eq!(&*utf8(&encoded([0xff, 0xfe], u16::to_le_bytes)), text.as_bytes());
        assert_eq!(&*utf8(&encoded([0xfe, 0xff], u16::to_be_bytes)), text.as_bytes());
        assert_eq!(&*utf8(text.as_bytes()), text.as_bytes());
    }

    #[test]
    fn what_is_no_utf16_is_left_alone() {
        for text in [&[0xff, 0xfe, b'a'][..], &[0xff, 0xfe, 0x00, 0xd8], &[0xff], &[]] {
            assert_eq!(&*utf8(text), text);
        }
    }
}
