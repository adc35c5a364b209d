//! How manifests lie in the database: a format byte, a checksum, then each manifest with its length before it.

use std::sync::Arc;

use sha2::{Digest, Sha256};

/// The layout below; a record of another one is not read.
const FORMAT: u8 = 1;
const CHECKSUM: usize = 16;

/// The record of `manifests`.
pub(super) fn encode(manifests: &[Arc<[u8]>]) -> Vec<u8> {
    let mut body = Vec::with_capacity(manifests.iter().map(|manifest| manifest.len() + 4).sum());
    for manifest in manifests {
        // A manifest comes from a file of at most 10 MiB.
        body.extend_from_slice(&u32::try_from(manifest.len()).unwrap_or(u32::MAX).to_be_bytes());
        body.extend_from_slice(manifest);
    }
    sign(&body)
}

/// A record of `body`, with its checksum.
pub(super) fn sign(body: &[u8]) -> Vec<u8> {
    let mut record = vec![FORMAT];
    record.extend_from_slice(&Sha256::digest(body)[..CHECKSUM]);
    record.extend_from_slice(body);
    record
}

/// The manifests of `record`; `None` when it is damaged or of another format.
pub(super) fn decode(record: &[u8]) -> Option<Vec<Arc<[u8]>>> {
    let (format, rest) = record.split_first()?;
    let (checksum, mut body) = rest.split_at_checked(CHECKSUM)?;
    if *format != FORMAT || Sha256::digest(body)[..CHECKSUM] != *checksum {
        return None;
    }
    let mut manifests = Vec::new();
    while !body.is_empty() {
        let (length, rest) = body.split_first_chunk::<4>()?;
        let (manifest, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        manifests.push(Arc::from(manifest));
        body = rest;
    }
    Some(manifests)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_no_damaged_byte_passes() {
        let manifests: Vec<Arc<[u8]>> = vec![Arc::from(&b"{}"[..]), Arc::from(&b""[..]), Arc::from(&b"{\"a\":1}"[..])];
        let record = encode(&manifests);
        assert_eq!(decode(&record), Some(manifests));
        assert_eq!(decode(&encode(&[])), Some(Vec::new()));
        for index in 0..record.len() {
            let mut damaged = record.clone();
            damaged[index] ^= 0x40;
            assert_eq!(decode(&damaged), None, "byte {index}");
            assert_eq!(decode(&record[..index]), None, "cut at {index}");
        }
    }
}
