//! The form of a record: self-describing, so that records can be found in a damaged file too.
//!
//! Magic with format version, length of the rest, checksum of the rest; then sequence, source, name, tag, content. The
//! tag says of which type the record is ([`super::table::Stored`]), which defines the content. Numbers are big-endian.
//! Records of another format version are not read.

use sha2::{Digest, Sha256};

use limpet_model::source::SourceKind;

/// The start of every record; the last byte is the format version.
pub(super) const MAGIC: [u8; 8] = *b"limpetG\x02";
const LENGTH_SIZE: usize = 4;
const CHECKSUM_SIZE: usize = 16;
const HEAD_SIZE: usize = MAGIC.len() + LENGTH_SIZE + CHECKSUM_SIZE;

/// A decoded record, or one to encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// Increases with every transaction: of two records of one name, the higher one is valid.
    pub(super) sequence: u64,
    pub(super) source: SourceKind,
    /// The subject of the record: a file, a URL, a pod, a path.
    pub(super) name: &'a str,
    /// Its type, and whether it says that the name was removed.
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
}

impl<'a> Record<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = self.sequence.to_be_bytes().to_vec();
        put(&mut body, self.source.as_str().as_bytes());
        put(&mut body, self.name.as_bytes());
        body.push(self.tag);
        body.extend_from_slice(self.content);
        sign(&body)
    }

    /// Decodes the record at the start of `bytes`; `None` when it is damaged, truncated or of another format version.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (length, rest) = rest.split_first_chunk::<LENGTH_SIZE>()?;
        let (checksum, rest) = rest.split_at_checked(CHECKSUM_SIZE)?;
        let body = rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        if Sha256::digest(body)[..CHECKSUM_SIZE] != *checksum {
            return None;
        }
        let (sequence, mut body) = body.split_first_chunk::<8>()?;
        let source = SourceKind::from_name(std::str::from_utf8(take(&mut body)?).ok()?)?;
        let name = std::str::from_utf8(take(&mut body)?).ok()?;
        let (tag, content) = body.split_first()?;
        Some(Self { sequence: u64::from_be_bytes(*sequence), source, name, tag: *tag, content })
    }
}

/// Adds the header to `body`.
pub(super) fn sign(body: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD_SIZE + body.len());
    record.extend_from_slice(&MAGIC);
    record.extend_from_slice(&length(body));
    record.extend_from_slice(&Sha256::digest(body)[..CHECKSUM_SIZE]);
    record.extend_from_slice(body);
    record
}

/// Appends `bytes` with their length.
pub(super) fn put(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend_from_slice(&length(bytes));
    body.extend_from_slice(bytes);
}

/// Takes what [`put`] appended from the start of `body`.
pub(super) fn take<'a>(body: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = body.split_first_chunk::<LENGTH_SIZE>()?;
    let (taken, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    *body = rest;
    Some(taken)
}

/// The length always fits, because all content comes from files and responses of at most 10 MiB.
fn length(bytes: &[u8]) -> [u8; LENGTH_SIZE] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_a_round_trip_and_damage_is_detected() {
        let whole = Record { sequence: 7, source: SourceKind::Http, name: "https://x", tag: 1, content: b"{\"a\":1}" };
        let record = whole.encode();
        assert_eq!(Record::decode(&record), Some(whole));
        assert_eq!(Record::decode(&[&record[..], b"and more"].concat()), Some(whole));
        for index in 0..record.len() {
            let mut damaged = record.clone();
            damaged[index] ^= 0x40;
            assert_eq!(Record::decode(&damaged), None, "byte {index}");
            assert_eq!(Record::decode(&record[..index]), None, "cut at {index}");
        }
    }
}
