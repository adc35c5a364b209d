//! The record format of last good manifests: self-describing, so that records can be found in a damaged file too.
//!
//! Magic with format version, length of the rest, checksum of the rest; then sequence, source, origin, content. The
//! content of a file or URL: time, mark, and each manifest with its length; of a directory: device and inode. Numbers
//! are big-endian. Records of another format version are not read.

use std::sync::Arc;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use limpet_core::last_good::LastGood;
use limpet_model::directory_id::DirectoryId;
use limpet_model::source::SourceKind;

/// The start of every record; the last byte is the format version.
pub(super) const MAGIC: [u8; 8] = *b"limpetG\x02";
const CHECKSUM: usize = 16;
const HEAD: usize = MAGIC.len() + 4 + CHECKSUM;

/// One decoded record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Increases with every transaction: of two records of one origin, the higher one is valid.
    pub(super) sequence: u64,
    pub(super) source: SourceKind,
    pub(super) origin: String,
    pub(super) content: Content,
}

/// The content of a record about its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// The origin was removed.
    Removed,
    /// Its last good manifests.
    LastGood(LastGood),
    /// The origin is a path; this is the directory last accepted there.
    Directory(DirectoryId),
}

const REMOVED: u8 = 0;
const LAST_GOOD: u8 = 1;
const DIRECTORY: u8 = 2;

/// Encodes a record of a file or URL; `None`: it was removed.
pub(super) fn encode(sequence: u64, source: SourceKind, origin: &str, last_good: Option<&LastGood>) -> Vec<u8> {
    let mut body = begin(sequence, source, origin, if last_good.is_some() { LAST_GOOD } else { REMOVED });
    if let Some(last_good) = last_good {
        body.extend_from_slice(&last_good.accepted.as_millisecond().to_be_bytes());
        put(&mut body, last_good.mark.as_bytes());
        last_good.manifests.iter().for_each(|manifest| put(&mut body, manifest));
    }
    sign(&body)
}

/// Encodes a record of the directory at `path`.
pub(super) fn encode_directory(sequence: u64, source: SourceKind, path: &str, id: DirectoryId) -> Vec<u8> {
    let mut body = begin(sequence, source, path, DIRECTORY);
    body.extend_from_slice(&id.device.to_be_bytes());
    body.extend_from_slice(&id.inode.to_be_bytes());
    sign(&body)
}

fn begin(sequence: u64, source: SourceKind, origin: &str, content: u8) -> Vec<u8> {
    let mut body = sequence.to_be_bytes().to_vec();
    put(&mut body, source.as_str().as_bytes());
    put(&mut body, origin.as_bytes());
    body.push(content);
    body
}

/// Adds the header to `body`.
pub(super) fn sign(body: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD + body.len());
    record.extend_from_slice(&MAGIC);
    record.extend_from_slice(&length(body));
    record.extend_from_slice(&Sha256::digest(body)[..CHECKSUM]);
    record.extend_from_slice(body);
    record
}

fn put(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend_from_slice(&length(bytes));
    body.extend_from_slice(bytes);
}

/// Fits: all content comes from files and responses of at most 10 MiB.
fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

/// Decodes the record at the start of `bytes`; `None` when it is damaged, truncated or of another format version.
pub(super) fn decode(bytes: &[u8]) -> Option<Record> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (checksum, rest) = rest.split_at_checked(CHECKSUM)?;
    let body = rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    if Sha256::digest(body)[..CHECKSUM] != *checksum {
        return None;
    }
    let (sequence, mut body) = body.split_first_chunk::<8>()?;
    let source = SourceKind::from_name(std::str::from_utf8(take(&mut body)?).ok()?)?;
    let origin = String::from_utf8(take(&mut body)?.to_vec()).ok()?;
    let (content, body) = body.split_first()?;
    Some(Record {
        sequence: u64::from_be_bytes(*sequence),
        source,
        origin,
        content: match (*content, body) {
            (REMOVED, []) => Content::Removed,
            (LAST_GOOD, body) => Content::LastGood(last_good(body)?),
            (DIRECTORY, body) => Content::Directory(directory(body)?),
            _ => return None,
        },
    })
}

fn last_good(body: &[u8]) -> Option<LastGood> {
    let (accepted, mut body) = body.split_first_chunk::<8>()?;
    let accepted = Timestamp::from_millisecond(i64::from_be_bytes(*accepted)).ok()?;
    let mark = String::from_utf8(take(&mut body)?.to_vec()).ok()?;
    let mut manifests = Vec::new();
    while !body.is_empty() {
        manifests.push(Arc::from(take(&mut body)?));
    }
    Some(LastGood { manifests, mark, accepted })
}

fn directory(body: &[u8]) -> Option<DirectoryId> {
    let (device, inode) = body.split_first_chunk::<8>()?;
    let inode = <[u8; 8]>::try_from(inode).ok()?;
    Some(DirectoryId { device: u64::from_be_bytes(*device), inode: u64::from_be_bytes(inode) })
}

fn take<'a>(body: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = body.split_first_chunk::<4>()?;
    let (taken, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    *body = rest;
    Some(taken)
}

/// The sequence of a record of a removed origin.
pub(super) fn removed_sequence(bytes: &[u8]) -> Option<u64> {
    decode(bytes).filter(|record| record.content == Content::Removed).map(|record| record.sequence)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_a_round_trip_and_damage_is_detected() {
        let manifests: Vec<Arc<[u8]>> = vec![Arc::from(&b"{}"[..]), Arc::from(&b""[..]), Arc::from(&b"{\"a\":1}"[..])];
        let last_good = LastGood { manifests, mark: "etag".to_owned(), accepted: Timestamp::UNIX_EPOCH };
        let record = encode(7, SourceKind::Http, "https://x", Some(&last_good));
        let (source, origin) = (SourceKind::Http, "https://x".to_owned());
        let whole = Record { sequence: 7, source, origin, content: Content::LastGood(last_good) };
        assert_eq!(decode(&record), Some(whole.clone()));
        assert_eq!(decode(&[&record[..], b"and more"].concat()), Some(whole));
        assert_eq!(removed_sequence(&record), None);
        assert_eq!(removed_sequence(&encode(8, SourceKind::Push, "web", None)), Some(8));
        let id = DirectoryId { device: 3, inode: u64::MAX };
        let of_directory = encode_directory(9, SourceKind::File, "/etc/manifests", id);
        assert_eq!(decode(&of_directory).map(|record| record.content), Some(Content::Directory(id)));
        assert_eq!(removed_sequence(&of_directory), None);
        for index in 0..record.len() {
            let mut damaged = record.clone();
            damaged[index] ^= 0x40;
            assert_eq!(decode(&damaged), None, "byte {index}");
            assert_eq!(decode(&record[..index]), None, "cut at {index}");
        }
    }
}
